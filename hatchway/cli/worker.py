"""`hatchway worker`: the same as `python worker.py`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hatchway.cli.connections import database_errors, database_url, run_async, temporal_errors


def worker(
    config: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Applied when the cluster has no configuration yet, and again on SIGHUP."),
    ] = None,
    host_id: Annotated[
        str | None, typer.Option(envvar="HATCHWAY_HOST_ID", help="This machine's name. Unset: from its machine id.")
    ] = None,
    state_dir: Annotated[
        Path | None,
        typer.Option(
            envvar="HATCHWAY_STATE_DIR",
            help="What must be found again on this host. Unset: /var/lib/hatchway, or XDG's.",
        ),
    ] = None,
    gateway_url: Annotated[
        str,
        typer.Option(envvar="HATCHWAY_GATEWAY_URL", help="Where agents find a gateway; a comma list names several."),
    ] = "http://127.0.0.1:8780",
    metrics_port: Annotated[int | None, typer.Option(min=1, max=65535, help="Prometheus page on 127.0.0.1.")] = None,
) -> None:
    """Run provisions and serve this host's compute, until SIGTERM or Ctrl-C.

    Needs DATABASE_URL, and Temporal's own environment (TEMPORAL_ADDRESS, TEMPORAL_NAMESPACE, …).
    """
    url = database_url()
    # `worker` is the file at the root of the tree: importing it pulls in every backend.
    import worker as composition
    from hatchway.host.identity import default_state_dir
    from hatchway.logs import configure_logging

    configure_logging()
    settings = composition.WorkerSettings(
        config=config,
        host_id=host_id,
        database_url=url,
        state_dir=state_dir or default_state_dir(),
        gateway_url=gateway_url,
        metrics_port=metrics_port,
    )
    with database_errors(), temporal_errors():
        run_async(composition.run(settings))
