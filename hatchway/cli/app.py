"""The table of commands, and the one place where an exception becomes an exit code.

Command modules import what they need inside the command: the whole table costs a fraction of the Temporal SDK's import.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
from collections.abc import Sequence
from typing import Annotated

import typer

from hatchway.cli import (
    agent,
    agents,
    auth,
    claim_keys,
    codec_server,
    config,
    database,
    dev,
    doctor,
    drain,
    gateway,
    image,
    logs,
    provision,
    reap,
    setup,
    show,
    status,
    worker,
)
from hatchway.cli.failures import ExitCode, report, usage

app = typer.Typer(
    name="hatchway",
    help="Provision CI agents, durably.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"hatchway {importlib.metadata.version('hatchway')}")
        raise typer.Exit


@app.callback()
def _hatchway(
    # Eager, and a callback of its own: the parser would ask for a command first.
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and stop.", is_eager=True, callback=_print_version)
    ] = False,
) -> None: ...


TRY_IT, SERVE, WORK, LOOK = "Try it", "Run it", "Provision", "Look closer"

app.command("dev", rich_help_panel=TRY_IT)(dev.dev)
app.command("demo", rich_help_panel=TRY_IT)(dev.demo)
app.command("setup", rich_help_panel=SERVE)(setup.setup)
app.command("worker", rich_help_panel=SERVE)(worker.worker)
app.command("gateway", rich_help_panel=SERVE)(gateway.gateway)
app.command("codec-server", rich_help_panel=SERVE)(codec_server.codec_server)
app.command("agent", rich_help_panel=SERVE, context_settings=agent.CONTEXT, add_help_option=False)(agent.agent)
app.command("claim-keys", rich_help_panel=SERVE)(claim_keys.claim_keys)
app.command("provision", rich_help_panel=WORK)(provision.provision)
app.command("list", rich_help_panel=WORK)(agents.list_agents)
app.command("show", rich_help_panel=WORK)(show.show)
app.command("logs", rich_help_panel=WORK)(logs.logs)
app.command("release", rich_help_panel=WORK)(agents.release)
app.command("cancel", rich_help_panel=WORK)(agents.cancel)
app.command("forget", rich_help_panel=WORK)(agents.forget)
app.command("drain", rich_help_panel=WORK)(drain.drain)
app.command("status", rich_help_panel=LOOK)(status.status)
app.command("doctor", rich_help_panel=LOOK)(doctor.doctor)
app.command("reap", rich_help_panel=LOOK)(reap.reap)
app.add_typer(config.app, name="config", rich_help_panel=LOOK)
app.add_typer(database.app, name="db", rich_help_panel=LOOK)
app.add_typer(image.app, name="image", rich_help_panel=LOOK)
app.add_typer(auth.app, name="auth", rich_help_panel=LOOK)

# `UsageError`, and below it every complaint of the parser. Newer Typers carry a copy of click of their own, so
# the class is reached through one that every version exports.
_UsageError: type[Exception] = typer.BadParameter.__bases__[0]


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code. Prints at most one sentence about a failure, never a traceback."""
    try:
        code = app(args=list(arguments), prog_name="hatchway", standalone_mode=False)
    except _UsageError as e:
        return _misused(e, arguments)
    except (typer.Abort, KeyboardInterrupt, asyncio.CancelledError):
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        return ExitCode.FAILED
    except Exception as e:  # the last frame there is: whatever it was, it becomes a sentence and a code
        return report(e, as_json=_json_wanted(arguments))
    return code if isinstance(code, int) else ExitCode.DONE


def _misused(error: Exception, arguments: Sequence[str]) -> ExitCode:
    message = str(getattr(error, "format_message", lambda: error)()).strip()
    context = getattr(error, "ctx", None)
    if not message and context is not None:  # no command at all: the list of commands says more than a sentence
        print(context.get_help())
        return ExitCode.USAGE
    path = context.command_path if context is not None else "hatchway"
    sentence = message[:1].lower() + message[1:].rstrip(".")
    return report(usage(f"{sentence}; `{path} --help` shows how it is used"), as_json=_json_wanted(arguments))


def _json_wanted(arguments: Sequence[str]) -> bool:
    """Whether errors are to be JSON too, also where the parser gave up. After `--` it belongs to an agent's command."""
    own = arguments[: arguments.index("--")] if "--" in arguments else arguments
    return "--json" in own
