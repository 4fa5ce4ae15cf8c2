"""`hatchway claim-keys FILE`: a pair of keys for sealed claim codes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from hatchway.cli.output import JsonOption, emit
from hatchway.errors import HatchwayError


class KeyFileRefused(HatchwayError):
    """The private key cannot go there. What is there already may be a key in use, and is left as it is."""


def claim_keys(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Where the private key goes; it must not exist.")],
    json: JsonOption = False,
) -> None:
    """Make a key pair: the private key into FILE, for the customer's workers; the public one is printed."""
    from hatchway.sealed_claims import new_claim_keys

    private, public = new_claim_keys()
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise KeyFileRefused(f"{file} exists already, and may hold a key that is in use: name another file") from None
    except OSError as e:
        raise KeyFileRefused(f"{file} cannot be written: {e.strerror}") from None
    with os.fdopen(descriptor, "w") as out:
        out.write(private + "\n")
    emit({"claimKey": public}, json_wanted=json)
