"""Real secrets on disk and in an environment, behind a resolver of a real configuration."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hatchway.config.schema import SecretsConfig
from hatchway.secrets.resolver import SecretResolver
from tests.unit.registry.rig import MakeHelper


@pytest.fixture
def resolver(tmp_path: Path) -> SecretResolver:
    """Contexts: `reg` (127.0.0.1:5000, ghcr.io), `hub` (docker.io), `env` (environments only)."""
    for name, value in {"user": "robot", "token": "t0ken-value", "colon": "a:b", "idtoken-user": "<token>"}.items():
        (tmp_path / name).write_text(value + "\n")
    config = SecretsConfig.model_validate(
        {
            "contexts": {
                "reg": {"type": "file", "path": str(tmp_path), "registries": ["127.0.0.1:5000", "ghcr.io"]},
                "hub": {"type": "file", "path": str(tmp_path), "registries": ["index.docker.io"]},
                "env": {"type": "env"},
            }
        }
    )
    return SecretResolver(config, {"HATCHWAY_SECRET_NPM_TOKEN": "npm-value", "HOME": "/root"})


@pytest.fixture
def make_helper(tmp_path: Path) -> MakeHelper:
    """Credential helpers of this test alone; the system's own programs stay within their reach."""
    directory = tmp_path / "bin"
    directory.mkdir()

    def make(name: str, script: str, *, answer: tuple[str, str] | None = None) -> str:
        program = directory / f"docker-credential-{name}"
        lines = ["#!/bin/sh", script]
        if answer is not None:
            user, secret = answer
            lines.append(f"cat <<'END'\n{json.dumps({'ServerURL': 'x', 'Username': user, 'Secret': secret})}\nEND")
        program.write_text("\n".join(lines) + "\n")
        program.chmod(0o755)
        return f"{directory}:/usr/bin:/bin"

    return make
