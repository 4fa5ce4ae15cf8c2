"""The gateway's certificate and key, as files that somebody has to get right."""

from __future__ import annotations

from pathlib import Path

import pytest

from hatchway.errors import ConfigError
from hatchway.gateway.handshakes import tls_of


@pytest.mark.parametrize("text", ["", "not a PEM file, but secret\n"])
def test_files_that_cannot_be_used_are_named_and_not_quoted(tmp_path: Path, text: str) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    for path in (cert, key):
        path.write_text(text)

    with pytest.raises(ConfigError) as raised:
        tls_of(cert, key)

    assert str(cert) in str(raised.value)
    assert str(key) in str(raised.value)
    assert "secret" not in str(raised.value)
    assert "\n" not in str(raised.value)
