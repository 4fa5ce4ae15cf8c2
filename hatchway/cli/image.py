"""`hatchway image parse REF`: what an image reference really names."""

from __future__ import annotations

from typing import Annotated

import typer

from hatchway.cli.output import JsonOption, emit

app = typer.Typer(help="Image references.", no_args_is_help=True)


@app.callback()
def image() -> None:
    """Image references."""


@app.command("parse")
def parse(
    reference: Annotated[str, typer.Argument(metavar="REF", help="An image, such as `nginx` or ghcr.io/acme/ci:2.")],
    json: JsonOption = False,
) -> None:
    """Say which registry, repository and tag REF names, and the key of its credentials."""
    from hatchway.registry.reference import parse_reference

    named = parse_reference(reference)
    emit(
        {
            "registry": named.registry,
            "repository": named.repository,
            "tag": named.tag,
            "digest": named.digest,
            "auth_key": named.auth_key,
            "normalized": named.normalized,
        },
        json_wanted=json,
    )
