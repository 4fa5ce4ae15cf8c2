"""How a gateway is started: where it listens, who it is, and how patient it is."""

from __future__ import annotations

import hashlib
import ipaddress
import socket
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from hatchway import heartbeats
from hatchway.errors import ConfigError
from hatchway.model import Id


def _seconds(value: Any) -> Any:
    """Text that is a number, as a variable holds it, is seconds; everything else is left to pydantic."""
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


Interval = Annotated[timedelta, Field(gt=timedelta(0), le=timedelta(hours=1)), BeforeValidator(_seconds)]


class GatewaySettings(BaseSettings):
    """From arguments, else from `HATCHWAY_GATEWAY_*` variables, else the defaults. Durations in seconds or ISO 8601."""

    model_config = SettingsConfigDict(env_prefix="HATCHWAY_GATEWAY_", extra="ignore", frozen=True)

    bind: str = "127.0.0.1:8780"
    """host:port; port 0 takes a free one."""
    tls_cert: Path | None = None
    tls_key: Path | None = None
    behind_tls_proxy: bool = False
    """A proxy in front of this gateway speaks TLS to the agents."""
    trusted_proxies: str = "127.0.0.1"
    """Whose X-Forwarded-For is believed behind a proxy: addresses or networks, comma separated."""
    instance_id: Id | None = None
    """Who this gateway is in the database, the same after every restart. Unset: derived from the machine and `bind`."""
    metrics_bind: str | None = "127.0.0.1:8781"
    heartbeat_interval: Interval = heartbeats.AGENT
    heartbeat_timeout: Interval = timedelta(seconds=90)
    idle_heartbeat: Interval = timedelta(seconds=2)
    """Of a warm agent that has no job: it learns of one in the answer, so a job waits half of this on average. A
    thousand idle agents cost five hundred heartbeats a second, which are written in batches."""
    instance_heartbeat: Interval = heartbeats.INSTANCE
    answer_timeout: Interval = timedelta(seconds=5)
    """How long Postgres or Temporal may take for one call before the caller hears 503."""
    refused_redeems_per_minute: Annotated[int, Field(ge=1, le=10_000)] = 10

    @field_validator("bind", "metrics_bind")
    @classmethod
    def _is_an_address(cls, value: str | None) -> str | None:
        if value is not None:
            split_address(value)
        return value

    @property
    def host(self) -> str:
        return split_address(self.bind)[0]

    @property
    def port(self) -> int:
        return split_address(self.bind)[1]

    def heartbeat_after(self, *, idle: bool) -> float:
        """Seconds until an agent should be heard of again; `idle`: it has no job, and one may come."""
        interval = min(self.idle_heartbeat, self.heartbeat_interval) if idle else self.heartbeat_interval
        return interval.total_seconds()

    @property
    def is_private(self) -> bool:
        """Whether only this machine can reach the gateway."""
        return is_loopback(self.host) and not self.behind_tls_proxy

    @property
    def instance(self) -> str:
        return self.instance_id or derived_instance_id(self.bind)

    def check(self) -> None:
        """Raise ConfigError when claims and tokens would travel in the clear, or the TLS files cannot be used."""
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ConfigError("TLS needs both files: give --tls-cert and --tls-key, or neither")
        for path in (self.tls_cert, self.tls_key):
            if path is not None and not path.is_file():
                raise ConfigError(f"the TLS file {path} does not exist or is not a file")
        if not is_loopback(self.host) and self.tls_cert is None and not self.behind_tls_proxy:
            raise ConfigError(
                f"the gateway would take claims and tokens in the clear on {self.bind}: give --tls-cert and --tls-key, "
                "or say --behind-tls-proxy when a proxy in front of it speaks TLS"
            )


def split_address(address: str) -> tuple[str, int]:
    """`127.0.0.1:8780`, `localhost:0` or `[::1]:8780` as host and port. Raises ValueError with the form expected."""
    host, colon, port = address.rpartition(":")
    bare = host.startswith("[") and host.endswith("]")
    if (
        not colon
        or not host
        or not port.isascii()
        or not port.isdigit()
        or int(port) > 65_535
        or (":" in host and not bare)
    ):
        raise ValueError("needs host:port, such as 127.0.0.1:8780 or [::1]:8780")
    return (host[1:-1] if bare else host), int(port)


def is_loopback(host: str) -> bool:
    """Whether an address names this machine only. A name other than `localhost` may resolve to anything."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def derived_instance_id(bind: str, machine_id_file: Path = Path("/etc/machine-id")) -> str:
    """An id that survives restarts and differs between gateways: by machine, host name and address.

    The host name is in it because containers of one image share a machine id: two gateways with one id would vouch for
    each other's agents.
    """
    try:
        machine = machine_id_file.read_text().strip()
    except OSError:
        machine = ""
    digest = hashlib.sha256(f"{machine}\n{socket.gethostname()}\n{bind}".encode()).hexdigest()
    return f"gateway-{digest[:16]}"
