"""`hatchway claim-keys FILE`: the private half is nobody else's to read, and never takes another one's place."""

from __future__ import annotations

import json
import stat
from pathlib import Path

from hatchway.sealed_claims import open_claim, seal_claim
from tests.unit.cli.conftest import Command


def test_the_pair_works_and_the_private_half_is_only_in_its_file(command: Command, tmp_path: Path) -> None:
    file = tmp_path / "claim.key"

    said = command("claim-keys", str(file), "--json")

    private, public = file.read_text().strip(), json.loads(said.out)["claimKey"]
    assert said.code == 0
    assert open_claim(seal_claim("code", public, "scaler-1"), private, "scaler-1") == "code"
    assert private not in said.out + said.err
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_key_that_is_there_stays(command: Command, tmp_path: Path) -> None:
    file = tmp_path / "claim.key"
    file.write_text("in use")

    said = command("claim-keys", str(file))

    assert said.code == 1
    assert "name another file" in said.err
    assert file.read_text() == "in use"


def test_a_place_that_cannot_be_written_is_said_so(command: Command, tmp_path: Path) -> None:
    said = command("claim-keys", str(tmp_path / "missing" / "claim.key"))

    assert said.code == 1
    assert "cannot be written" in said.err
