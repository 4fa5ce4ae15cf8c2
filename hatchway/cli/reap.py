"""`hatchway reap --dry-run`: what the next pass of the reaper would do, to whom, and why. Changes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from hatchway.cli.connections import database, hatchway_client, run_async
from hatchway.cli.failures import usage
from hatchway.cli.output import JsonOption, counted, emit, table

if TYPE_CHECKING:
    from hatchway.reaper import Judged

COLUMNS = ("agent_id", "does", "end_reason", "absent_s", "workflow", "why")


def reap(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what the next pass would do. Required.")] = False,
    json: JsonOption = False,
) -> None:
    """Say, per agent, what the reaper's next pass would do and why. The sweep's schedule does it, once a minute.

    Shows every agent that it has to think about; most agents are none of them. `absent_s`: seconds since the last
    heartbeat. `workflow`: open, gone, or a dash where nobody had to ask.
    """
    if not dry_run:
        raise usage(
            "say --dry-run: this command only looks. The reaper itself is a step of the sweep, which its schedule "
            "starts once a minute; `temporal schedule trigger --schedule-id hatchway/sweep` starts one now"
        )
    found = run_async(_reap())
    if json:
        emit(found, json_wanted=True)
        return
    if found["stands_down"]:
        print(f"nothing would be done: {found['stands_down']}")
    elif not found["agents"] and found["slots"]:
        hold = f"{found['slots']} {'holds' if found['slots'] == 1 else 'hold'} a slot"
        print(f"no agent to think about: {hold}, and none is silent, overdue or closing; one that is heard of may "
              "finish its job, whatever became of its workflow")  # fmt: skip
    elif not found["agents"]:
        print("no agent to think about")
    else:
        print("\n".join(table(COLUMNS, found["agents"])))
    if found["blocked"]:
        silent = counted(found["unseen"], "silent agent")
        grace = f"the flap grace ({found['flap_grace_s']} s)"
        print(f"blind: {silent} spared, as no gateway has been alive for {grace}: `hatchway doctor` says what to do")


async def _reap() -> dict[str, Any]:
    from hatchway.config.current import CurrentConfig
    from hatchway.reaper import Reaper
    from hatchway.reaping import Windows
    from hatchway.store.config_versions import ConfigVersions
    from hatchway.store.reaping import Reaping
    from hatchway.store.slots import Slots
    from hatchway.tie import NamespaceTie, Tie

    async with database() as db, hatchway_client() as client:
        _, config = await CurrentConfig(ConfigVersions(db)).current()
        windows = Windows.of(config.reaper)
        sight = await Reaping(db).sight(windows)
        ties = NamespaceTie(db, client.temporal)
        tie = await ties.look()
        reaper = Reaper(Reaping(db), client.temporal, windows)
        slots = len(await Slots(db).list())
        agents = [] if tie is Tie.ELSEWHERE else [_told(one) async for page in reaper.judged() for one in page]
    return {
        "agents": agents,
        "slots": slots,
        "flap_grace_s": round(windows.flap_grace.total_seconds()),
        "blocked": sight.blocked,
        "unseen": sight.unseen,
        "stands_down": ties.words(tie) if tie is Tie.ELSEWHERE else None,
    }


def _told(judged: Judged) -> dict[str, Any]:
    candidate, judgement = judged.candidate, judged.judgement
    absence = candidate.absence(judged.now)
    if judged.unanswered:
        workflow: str | None = "no answer"
    elif candidate.workflow is None:
        workflow = None
    else:
        workflow = "open" if candidate.workflow.open else "gone"
    return {
        "agent_id": candidate.agent_id,
        "does": judgement.rule.action.value,
        "end_reason": judgement.end.value if judgement.end else None,
        "absent_s": None if absence is None else round(absence.total_seconds(), 1),
        "workflow": workflow,
        "why": judgement.rule.value,
        "scaler": judged.row.scaler,
        "state": judged.row.state.value,
        "job_id": judged.row.bound_job_id or judged.row.job_id,
    }
