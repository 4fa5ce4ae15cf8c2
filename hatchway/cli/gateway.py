"""`hatchway gateway`: the agents' HTTP door."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hatchway.cli.connections import database, database_url, run_async, temporal, temporal_errors
from hatchway.cli.failures import usage

if TYPE_CHECKING:
    from hatchway.gateway.settings import GatewaySettings


def gateway(
    bind: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Default 127.0.0.1:8780; port 0: any free.")
    ] = None,
    tls_cert: Annotated[Path | None, typer.Option(help="PEM file with the certificate chain.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="PEM file with its key.")] = None,
    behind_tls_proxy: Annotated[bool, typer.Option(help="A proxy in front speaks TLS to the agents.")] = False,
    instance_id: Annotated[str | None, typer.Option(help="The same after every restart. Unset: derived.")] = None,
    metrics_bind: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Prometheus page; `none` for none. Default 127.0.0.1:8781.")
    ] = None,
) -> None:
    """Let agents redeem claims, register, send heartbeats and report, until SIGTERM or Ctrl-C.

    Needs DATABASE_URL and Temporal's own environment. Every option is HATCHWAY_GATEWAY_… in the environment as well.
    """
    given: dict[str, Any] = {
        "bind": bind,
        "tls_cert": tls_cert,
        "tls_key": tls_key,
        "behind_tls_proxy": behind_tls_proxy or None,
        "instance_id": instance_id,
    }
    given = {name: value for name, value in given.items() if value is not None}
    if metrics_bind is not None:
        given["metrics_bind"] = None if metrics_bind == "none" else metrics_bind
    run_async(_serve(_settings(given)))


def _settings(given: dict[str, Any]) -> GatewaySettings:
    from pydantic import ValidationError

    from hatchway.gateway.settings import GatewaySettings

    try:
        return GatewaySettings(**given)
    except ValidationError as e:
        wrong = e.errors(include_url=False, include_context=False, include_input=False)
        raise usage(
            "; ".join(f"{'.'.join(map(str, w['loc']))}: {w['msg'].removeprefix('Value error, ')}" for w in wrong)
        ) from None


async def _serve(settings: GatewaySettings) -> None:
    from hatchway import metrics
    from hatchway.gateway.connections import raise_open_files
    from hatchway.gateway.server import serve
    from hatchway.logs import configure_logging

    url = database_url()
    settings.check()
    configure_logging()
    raise_open_files()
    async with database():  # a schema that is too old is said before anything listens
        pass
    client = await temporal(runtime=metrics.runtime(settings.metrics_bind))
    with temporal_errors():
        await serve(settings, url, client)
