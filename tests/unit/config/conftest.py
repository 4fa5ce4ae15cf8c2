"""A configuration file on disk, and the findings about it without the directory's name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from hatchway.config.loading import load
from hatchway.errors import ConfigError

Findings = Callable[[str], list[str]]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "hatchway.yaml"


@pytest.fixture
def findings(file: Path) -> Findings:
    """Write the text as the configuration, load it, and answer what is found, one line each."""

    def of(text: str) -> list[str]:
        file.write_text(text)
        with pytest.raises(ConfigError) as refused:
            load(file)
        return str(refused.value).replace(f"{file.parent}/", "").splitlines()

    return of
