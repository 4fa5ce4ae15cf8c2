from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from hatchway.errors import ConfigError
from hatchway.gateway.settings import GatewaySettings, derived_instance_id, is_loopback, split_address


@pytest.mark.parametrize(
    ("address", "host", "port"),
    [
        ("127.0.0.1:8780", "127.0.0.1", 8780), ("localhost:0", "localhost", 0), ("[::1]:8780", "::1", 8780),
        ("192.0.2.1:65535", "192.0.2.1", 65_535),
    ],
)  # fmt: skip
def test_an_address_is_host_and_port(address: str, host: str, port: int) -> None:
    assert split_address(address) == (host, port)


@pytest.mark.parametrize(
    "address", ["", "127.0.0.1", ":8780", "host:", "host:http", "host:65536", "::1:8780", "host:-1"]
)
def test_anything_else_is_refused_with_the_form_expected(address: str) -> None:
    with pytest.raises(ValidationError, match=r"needs host:port, such as 127\.0\.0\.1:8780"):
        GatewaySettings(bind=address)


@pytest.mark.parametrize(
    ("host", "loopback"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("localhost", True), ("192.0.2.1", False), ("::", False),
     ("10.0.0.1", False), ("localhost.example", False)],
)  # fmt: skip
def test_only_addresses_of_this_machine_are_loopback(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback


@pytest.mark.parametrize("bind", ["0.0.0.0:8780", "[::]:8780", "192.0.2.1:8780", "gateway.example:8780"])
def test_an_address_that_others_can_reach_needs_tls(bind: str, tmp_path: Path) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    cert.touch()
    key.touch()

    with pytest.raises(ConfigError, match="give --tls-cert and --tls-key, or say --behind-tls-proxy"):
        GatewaySettings(bind=bind).check()
    GatewaySettings(bind=bind, tls_cert=cert, tls_key=key).check()
    GatewaySettings(bind=bind, behind_tls_proxy=True).check()


def test_loopback_needs_none() -> None:
    GatewaySettings().check()


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"tls_cert": Path("/nowhere/cert.pem")}, "TLS needs both files"),
        ({"tls_key": Path("/nowhere/key.pem")}, "TLS needs both files"),
        (
            {"tls_cert": Path("/nowhere/cert.pem"), "tls_key": Path("/nowhere/key.pem")},
            "/nowhere/cert.pem does not exist",
        ),
    ],
)
def test_tls_files_are_checked_before_anything_listens(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        GatewaySettings(**settings).check()


def test_the_environment_sets_what_arguments_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HATCHWAY_GATEWAY_BIND", "127.0.0.1:1234")
    monkeypatch.setenv("HATCHWAY_GATEWAY_HEARTBEAT_INTERVAL", "PT20S")
    monkeypatch.setenv("HATCHWAY_GATEWAY_HEARTBEAT_TIMEOUT", "60.5")
    monkeypatch.setenv("HATCHWAY_GATEWAY_URL", "http://127.0.0.1:8780")

    from_environment, from_argument = GatewaySettings(), GatewaySettings(bind="127.0.0.1:5678")

    assert (from_environment.port, from_environment.heartbeat_interval.total_seconds()) == (1234, 20)
    assert from_environment.heartbeat_timeout.total_seconds() == 60.5
    assert from_argument.port == 5678


def test_an_instance_keeps_its_id_and_shares_it_with_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = tmp_path / "machine-id"
    machine.write_text("one\n")
    first = derived_instance_id("127.0.0.1:1", machine)
    again = derived_instance_id("127.0.0.1:1", machine)
    other_port = derived_instance_id("127.0.0.1:2", machine)
    machine.write_text("two\n")
    other_machine = derived_instance_id("127.0.0.1:1", machine)
    monkeypatch.setattr("socket.gethostname", lambda: "another-container")
    other_host = derived_instance_id("127.0.0.1:1", machine)
    without_file = derived_instance_id("127.0.0.1:1", tmp_path / "absent")

    assert first == again
    assert len({first, other_port, other_machine, other_host, without_file}) == 5
    assert GatewaySettings(instance_id="chosen").instance == "chosen"
