"""What `hatchway provision` does with a request that is none. Nothing here reaches a server."""

from __future__ import annotations

from pathlib import Path

import pytest

from hatchway.cli.provision import MAX_REQUEST_BYTES, read_request
from tests.unit.cli.conftest import Command

MARKER = "hunter2"

BAD = [
    (b"", "is not JSON"),
    (b"{", "line 1, column 2"),
    (b'{"labels": ["linux"],}', "is not JSON"),
    (b'["linux"]', "holds no JSON object"),
    (b'"hunter2"', "holds no JSON object"),
    (b"\xff\xfe", "UTF-8"),
    (b"[" * 100_000, "nested too deeply"),
    (b"{}", "labels: Field required"),
    (b'{"labels": "hunter2"}', "labels"),
    (b'{"labels": [], "lables": ["hunter2"]}', "lables"),
    (b'{"labels": [], "priority": 9}', "priority"),
    (b'{"labels": [], "job_id": "hunter2 !"}', "job_id"),
    (b'{"labels": [], "wait_timeout": -1}', "wait_timeout"),
    (b'{"labels": [], "container": {"image": "https://u:hunter2@h/i"}}', "container.image"),
    (b'{"labels": [], "container": {"image": "a", "auth": {"tokenValue": "hunter2"}}}', "rotate"),
    (b'{"labels": [], "resources": {"cpus": "hunter2"}}', "resources"),
]


@pytest.mark.parametrize(("content", "hint"), BAD)
def test_a_request_that_is_none_is_bad_input_named_and_never_quoted(
    command: Command, content: bytes, hint: str
) -> None:
    said = command("provision", "-", stdin=content)

    assert (said.code, said.out) == (2, "")
    assert hint in said.err
    assert MARKER not in said.err
    assert said.err.count("\n") == 1


@pytest.mark.parametrize(("content", "hint"), BAD)
def test_the_same_as_json_is_an_error_object(command: Command, content: bytes, hint: str) -> None:
    said = command("provision", "-", "--json", stdin=content)

    assert said.code == 2
    assert hint in said.error["message"]
    assert MARKER not in said.err


def test_a_file_that_is_not_there_is_bad_input(command: Command, tmp_path: Path) -> None:
    said = command("provision", str(tmp_path / "absent.json"))

    assert said.code == 2
    assert "absent.json cannot be read: No such file" in said.err


def test_a_request_that_is_too_large_is_not_read_to_its_end(command: Command) -> None:
    said = command("provision", "-", stdin=b" " * (MAX_REQUEST_BYTES + 1))

    assert said.code == 2
    assert "1 MiB" in said.err


def test_a_request_in_a_file_is_read(tmp_path: Path) -> None:
    file = tmp_path / "job.json"
    file.write_text('{"labels": ["linux"], "job_id": "build-7", "container": "nginx"}')

    request = read_request(str(file))

    assert (request.job_id, request.labels) == ("build-7", ["linux"])
    assert request.container is not None
    assert request.container.image == "nginx"
