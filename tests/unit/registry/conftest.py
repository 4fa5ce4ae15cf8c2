"""Real secrets on disk and in an environment, behind a resolver of a real configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from hatchway.config.schema import SecretsConfig
from hatchway.secrets.resolver import SecretResolver


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
