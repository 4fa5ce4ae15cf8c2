"""`hatchway worker`: the same as `python worker.py`."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Annotated

import typer

from hatchway.cli.connections import database_errors, database_url, run_async, temporal_errors
from hatchway.cli.failures import usage


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
    health: Annotated[
        str | None,
        typer.Option(envvar="HATCHWAY_HEALTH", metavar="HOST:PORT", help="Answer /healthz and /readyz there."),
    ] = None,
    graceful: Annotated[
        float,
        typer.Option(min=0, max=3600, metavar="SECONDS", help="On SIGTERM, what runs may take so long to finish."),
    ] = 20,
    deployment: Annotated[
        str | None,
        typer.Option(envvar="HATCHWAY_DEPLOYMENT", metavar="NAME", help="Temporal worker deployment; with --build-id."),
    ] = None,
    build_id: Annotated[
        str | None,
        typer.Option(envvar="HATCHWAY_BUILD_ID", metavar="ID", help="This build's id; with --deployment."),
    ] = None,
) -> None:
    """Run provisions and serve this host's compute, until SIGTERM or Ctrl-C.

    On SIGTERM nothing new is taken up; what runs may finish for --graceful seconds and is then handed back to other
    workers. A second SIGTERM hands back at once. Agents stay.

    Needs DATABASE_URL, and Temporal's own environment (TEMPORAL_ADDRESS, TEMPORAL_NAMESPACE, …).
    """
    if bool(deployment) != bool(build_id):
        raise usage("--deployment and --build-id go together: a versioned worker has both, any other has neither")
    url = database_url()
    # `worker` is the file at the root of the tree: importing it pulls in every backend.
    from temporalio.common import WorkerDeploymentVersion

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
        health=health,
        graceful=timedelta(seconds=graceful),
        version=WorkerDeploymentVersion(deployment, build_id) if deployment and build_id else None,
    )
    with database_errors(), temporal_errors():
        run_async(composition.run(settings))
