"""The command as a process: what it imports, and how it ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

HEAVY = ["temporalio", "docker", "boto3", "psycopg", "fastapi", "structlog", "httpx", "alembic"]


def hatchway(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "hatchway.cli", *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


@pytest.mark.parametrize(
    ("arguments", "code"), [(["image", "parse", "nginx"], 0), (["agent", "--", "true"], 64), (["--help"], 0)]
)
def test_what_runs_on_an_agents_machine_imports_no_server_sdk(arguments: list[str], code: int) -> None:
    program = (
        "import sys, json; from hatchway.cli.app import run; code = run(sys.argv[1:]); "
        f"print(json.dumps([code, sorted(set(sys.modules) & set({HEAVY!r}))]), file=sys.stderr)"
    )

    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env={name: value for name, value in os.environ.items() if not name.startswith(("KICI_", "HATCHWAY_"))},
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )

    assert json.loads(done.stderr.splitlines()[-1]) == [code, []]


def test_output_is_complete_although_the_process_ends_at_once() -> None:
    done = hatchway("image", "parse", "nginx", "--json")

    assert done.returncode == 0
    assert json.loads(done.stdout)["repository"] == "library/nginx"


def test_a_reader_that_has_gone_makes_no_traceback() -> None:
    reading, writing = os.pipe()
    os.close(reading)

    done = subprocess.run(
        [sys.executable, "-m", "hatchway.cli", "image", "parse", "nginx", "--json"],
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
        timeout=30,
        check=False,
    )
    os.close(writing)

    assert done.stderr == ""


def test_the_agents_own_options_and_exit_code_pass_through() -> None:
    version = hatchway("agent", "--version")
    unclaimed = hatchway("agent", "--", "sh", "-c", "exit 3", KICI_ORCHESTRATOR_URL="http://127.0.0.1:1")

    assert (version.returncode, version.stdout.strip()) == (0, "0.1.0")
    assert unclaimed.returncode == 64
    assert "KICI_SCALER_CLAIM_CODE is not set" in unclaimed.stderr
