"""With payload keys Temporal reads nothing of a job; a key that is missing stops work, and fails nothing."""

from __future__ import annotations

import asyncio
import secrets
import uuid
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import pytest
from temporalio.api.common.v1 import Payload, Payloads, WorkflowExecution
from temporalio.api.enums.v1 import EventType
from temporalio.api.workflowservice.v1 import SignalWorkflowExecutionRequest
from temporalio.client import Client, WorkflowFailureError
from temporalio.exceptions import CancelledError

from hatchway import codec_keys
from hatchway.cli.doctor_workflows import look_at
from hatchway.client import Started
from hatchway.codec import EncryptingCodec, PayloadKeyMissing, WithoutKeys
from hatchway.errors import ErrorType, PermanentSpawnError, SpawnCode, TransientSpawnError
from hatchway.gateway.errors import TemporalUnreachable
from hatchway.gateway.provisions import Provisions
from hatchway.model import AdoptRequest, EndReason, ProvisionRequest, ProvisionState, ReleaseRequest
from tests.integration.codec.rig import Keyed
from tests.support.corpus import Corpus
from tests.support.lab import Lab
from tests.support.markers import hits
from tests.support.namespaces import until
from workflows.steps import SPAWN_ATTEMPTS

S = ProvisionState

READ_WITHOUT_KEYS = {
    *(f"history: {kind}" for kind in ("inputs", "results", "failures", "summaries", "memos")),
    "description: summaries", "description: memos", "description: failures", "visibility: memos", "current details",
}  # fmt: skip
"""Where a label, or what a backend says, is found without encryption."""


@pytest.mark.scenario("S41")
@pytest.mark.parametrize("encrypted", [True, False], ids=["with keys", "without keys"])
async def test_no_label_and_no_error_can_be_read_in_temporal(keyed: Keyed, encrypted: bool) -> None:
    marker = f"marker-{secrets.token_hex(8)}"
    lab = await keyed.worker(keyed.write("keys", "2026-12") if encrypted else None)
    corpus = Corpus()

    await _complete(lab, marker, corpus)
    await _fail(lab, marker, corpus)

    await corpus.take_temporal(lab.temporal)
    found = {name for name, place in corpus.places.items() if hits([place], {"the marker": marker})}
    assert set(corpus.places) >= READ_WITHOUT_KEYS
    assert found >= READ_WITHOUT_KEYS if not encrypted else found == set()


async def _complete(lab: Lab, marker: str, corpus: Corpus) -> None:
    """With a memo, a query, an update, signals and a result, each of which holds the marker or comes with one."""
    handle = await lab.temporal.start_workflow(
        "ProvisionWorkflow", ProvisionRequest(labels=["linux"], exclude_labels=[marker]), id=f"w-{uuid.uuid4().hex}",
        task_queue="hatchway", memo={"note": marker}, static_summary=f"for {marker}",
    )  # fmt: skip
    started = await lab.provision(handle.id, exclude_labels=[marker])
    await lab.reaches(started, S.AWAITING_ADOPTION)
    spec = await lab.adopt(started, instance=marker)
    assert spec.agent_id == started.agent_id
    await lab.reaches(started, S.ACTIVE)
    await corpus.take_descriptions(lab.temporal)
    await lab.signal(
        started, "release", ReleaseRequest(agent_id=started.agent_id, reason=EndReason.OPERATOR, by=marker, now=True)
    )
    assert (await lab.outcome(started)).end_reason is EndReason.OPERATOR


async def _fail(lab: Lab, marker: str, corpus: Corpus) -> None:
    """No scaler matches, which is said of each label; a backend fails once in a passing way and then for good."""
    nobody = await lab.failure(await lab.provision(labels=[marker]))
    assert (nobody.error_type, marker in str(nobody)) == (ErrorType.NO_MATCHING_SCALER, True)
    said, seen = iter([TransientSpawnError(SpawnCode.CAPACITY, f"full: {marker}")]), asyncio.Event()

    async def refuse(agent_id: str) -> None:
        for passing in said:
            raise passing
        await seen.wait()
        raise PermanentSpawnError(SpawnCode.INVALID_SPEC, f"wrong: {marker}")

    lab.backend.before_create = refuse
    started = await lab.provision()

    async def tried() -> bool:
        work = await look_at(lab.temporal, started.workflow_id, None)
        if work.error is None:
            return False
        assert marker in work.error  # what `hatchway doctor` says, which has the keys
        return True

    await until(tried, what="the first attempt's failure in the description")
    await corpus.take_descriptions(lab.temporal)
    seen.set()
    spawn = await lab.failure(started)
    assert (spawn.error_type, marker in str(spawn)) == (ErrorType.SPAWN_FAILED, True)


async def _task_failures(client: Client, workflow_id: str) -> list[str]:
    return [
        event.workflow_task_failed_event_attributes.failure.application_failure_info.type
        async for event in client.get_workflow_handle(workflow_id).fetch_history_events()
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED
    ]


@pytest.mark.parametrize(
    "has",
    [("old",), ("new:yesterday", "old"), None],
    ids=["another key", "other bytes under its id", "no keys at all"],
)
async def test_a_provision_waits_for_a_key_that_its_worker_lacks_and_goes_on_once_it_is_there(
    keyed: Keyed, has: tuple[str, ...] | None
) -> None:
    caller = await keyed.caller(keyed.write("of-the-caller", "new", "old"))
    lacking = await keyed.worker(keyed.write("of-the-worker", *has) if has else None)

    started = await caller.provision(ProvisionRequest(labels=["linux"]))
    await until(lambda: _fails_its_tasks(lacking, started), what="a workflow task that fails")
    failures = await until(lambda: _task_failures(lacking.temporal, started.workflow_id), what="its failure")
    assert set(failures) == {"PayloadKeyMissing"}
    assert lacking.cloud.log == []
    if has:
        keyed.write("of-the-worker", "new", "old")
        lab = lacking
    else:
        await keyed.stop(lacking)  # started again, with keys
        lab = await keyed.worker(keyed.write("of-another-worker", "new"))

    # Temporal refuses queries from a task's third failure on, and tries it again after a pause that grows.
    await until(lambda: _goes_on(lab, started), what="a workflow task that is done")
    await lab.reaches(started, S.AWAITING_ADOPTION)
    await lab.adopt(started)
    await lab.complete(started)
    assert (await caller.outcome(started)).end_reason is EndReason.COMPLETED
    assert lab.cloud.created(started.agent_id) == 1


async def _goes_on(lab: Lab, started: Started) -> bool:
    return not await _fails_its_tasks(lab, started)


async def test_without_that_stop_a_worker_without_keys_fails_the_job_for_good(
    keyed: Keyed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the test above hangs on: a codec that hands on what it cannot read, as the SDK's own default does."""

    async def hand_on(self: WithoutKeys, payloads: Sequence[Payload]) -> list[Payload]:
        return list(payloads)

    monkeypatch.setattr(WithoutKeys, "decode", hand_on)
    caller = await keyed.caller(keyed.write("of-the-caller", "new"))
    lacking = await keyed.worker(None)

    started = await caller.provision(ProvisionRequest(labels=["linux"]))

    assert (await lacking.failure(started)).error_type == ErrorType.INVALID_REQUEST


async def test_spawns_that_only_workers_without_the_key_take_use_up_no_attempt(keyed: Keyed) -> None:
    """Three attempts are for the backend's faults; none of these has asked it."""
    keys = keyed.write("keys", "a")
    lab = await keyed.worker(keys, host=False)
    lacking = await keyed.worker(None, control=False)
    started = await lab.provision()

    async def attempts_are_spent() -> bool:
        return EventType.EVENT_TYPE_ACTIVITY_TASK_FAILED in [
            event.event_type async for event in lab.handle(started).fetch_history_events()
        ]

    await until(attempts_are_spent, what="three attempts that could not be read")
    assert "payload keys" in str((await lab.status(started)).waiting_for)
    await keyed.stop(lacking)
    await keyed.worker(keys, control=False)

    await lab.reaches(started, S.AWAITING_ADOPTION)
    assert keyed.cloud.created(started.agent_id) == 1


async def test_attempts_without_the_key_leave_the_backend_its_three(keyed: Keyed) -> None:
    """Also where the backend fails afterwards: how often it was asked is counted, and not who could not ask it."""
    keys = keyed.write("keys", "a")
    lab = await keyed.worker(keys, host=False)
    lacking = await keyed.worker(None, control=False)
    started = await lab.provision()
    await until(lambda: _was_not_read(lab, started), what="an attempt that could not be read")
    await keyed.stop(lacking)
    failures = [TransientSpawnError(SpawnCode.CAPACITY, "full") for _ in range(SPAWN_ATTEMPTS - 1)]

    async def full_at_first(agent_id: str) -> None:
        if failures:
            raise failures.pop()

    (await keyed.worker(keys, control=False)).backend.before_create = full_at_first

    await lab.reaches(started, S.AWAITING_ADOPTION)
    assert (failures, keyed.cloud.created(started.agent_id)) == ([], 1)


async def _was_not_read(lab: Lab, started: Started) -> bool:
    """An attempt of the spawn has failed; the backend was not asked."""
    pending = (await lab.handle(started).describe()).raw_description.pending_activities
    ended = [event.event_type async for event in lab.handle(started).fetch_history_events()]
    return any(one.HasField("last_failure") for one in pending) or EventType.EVENT_TYPE_ACTIVITY_TASK_FAILED in ended


async def test_a_spawn_that_waits_for_a_worker_with_the_key_is_called_off(keyed: Keyed) -> None:
    lab = await keyed.worker(keyed.write("keys", "a"), host=False)
    await keyed.worker(None, control=False)
    started = await lab.provision()
    await until(lambda: _was_not_read(lab, started), what="an attempt that could not be read")

    await lab.handle(started).cancel()

    with pytest.raises(WorkflowFailureError) as ended:
        await asyncio.wait_for(lab.handle(started).result(), 60)
    assert isinstance(ended.value.cause, CancelledError)
    assert keyed.cloud.created(started.agent_id) == 0


async def _fails_its_tasks(lab: Lab, started: Started) -> bool:
    description = (await lab.handle(started).describe()).raw_description
    return description.pending_workflow_task.attempt >= 2


async def test_a_key_is_rotated_while_a_provision_stands_and_nothing_is_lost(keyed: Keyed) -> None:
    ring = keyed.write("keys", "old")
    caller, first = await keyed.caller(ring), await keyed.worker(ring)
    started = await caller.provision(ProvisionRequest(labels=["linux"], job_id="rotated"))
    await first.reaches(started, S.AWAITING_ADOPTION)

    rotated = keyed.write("rotated", "new", "old")
    after = await keyed.worker(rotated)
    after.hatchway = await keyed.caller(rotated)
    keyed.write("keys", "old", "new")
    await after.adopt(started)
    await after.complete(started)

    assert (await after.outcome(started)).end_reason is EndReason.COMPLETED
    used = await _keys_in(after.temporal, started.workflow_id)
    assert used == {b"old", b"new"}


async def _keys_in(client: Client, workflow_id: str) -> set[bytes]:
    raw = b"".join([
        event.SerializeToString()
        async for event in client.get_workflow_handle(workflow_id).fetch_history_events()
    ])  # fmt: skip
    return {name for name in (b"old", b"new") if b"encryption-key-id\x12\x03" + name in raw}


async def test_encryption_is_turned_on_and_off_again_under_a_provision_that_stands(keyed: Keyed) -> None:
    """All get the keys first, with `none` before them; then the word is taken out, and put back."""
    plain = await keyed.caller(None)
    ring = keyed.write("keys", "none", "a")
    lab = await keyed.worker(ring)
    started = await plain.provision(ProvisionRequest(labels=["linux"]))
    await lab.reaches(started, S.AWAITING_ADOPTION)

    on = await keyed.worker(keyed.write("on", "a"))
    await on.adopt(started)
    await lab.complete(started)

    assert (await on.outcome(started)).end_reason is EndReason.COMPLETED


async def test_a_message_that_was_altered_changes_nothing(keyed: Keyed, tmp_path: Path) -> None:
    lab = await keyed.worker(keyed.write("keys", "a"))
    started = await lab.provision()
    await lab.reaches(started, S.AWAITING_ADOPTION)
    release = ReleaseRequest(agent_id=started.agent_id, reason=EndReason.OPERATOR, by="nobody", now=True)
    (sealed,) = await lab.temporal.data_converter.encode([release])
    sealed.data = sealed.data[:-1] + bytes([sealed.data[-1] ^ 1])

    await lab.temporal.workflow_service.signal_workflow_execution(
        SignalWorkflowExecutionRequest(
            namespace=lab.temporal.namespace,
            workflow_execution=WorkflowExecution(workflow_id=started.workflow_id),
            signal_name="release",
            input=Payloads(payloads=[sealed]),
            request_id=uuid.uuid4().hex,
        )
    )
    await lab.adopt(started)
    await lab.complete(started)

    assert (await lab.outcome(started)).end_reason is EndReason.COMPLETED
    assert await _task_failures(lab.temporal, started.workflow_id) == []


async def test_a_gateway_without_the_key_says_so_and_the_agent_that_asks_again_is_served(keyed: Keyed) -> None:
    lab = await keyed.worker(keyed.write("keys", "new"))
    ring = keyed.write("of-the-gateway", "old")
    gateway = Provisions(await keyed.client(ring), timedelta(seconds=30))
    await _both_keys_are_read(lab, keyed)
    started = await lab.provision()
    await lab.reaches(started, S.AWAITING_ADOPTION)
    first_run = (await lab.handle(started).describe()).raw_description.workflow_execution_info.first_run_id
    ask = AdoptRequest(agent_id=started.agent_id, instance_id="gateway", registration_id="r-1")

    with pytest.raises(TemporalUnreachable, match="the key 'new'"):
        await gateway.adopt(started.workflow_id, first_run, ask)
    keyed.write("of-the-gateway", "old", "new")
    await asyncio.sleep(codec_keys.READ_AGAIN_AFTER)
    spec = await gateway.adopt(started.workflow_id, first_run, ask)

    assert spec.agent_id == started.agent_id


async def _both_keys_are_read(lab: Lab, keyed: Keyed) -> None:
    """The worker knows the gateway's key as well; only the gateway lags behind."""
    keyed.write("keys", "new", "old")
    codec = lab.temporal.data_converter.payload_codec
    assert isinstance(codec, EncryptingCodec)
    await until(lambda: codec.ring.knows("old"), what="the worker's second look at its keys")


async def test_a_client_without_the_key_is_told_which_it_lacks(keyed: Keyed) -> None:
    lab = await keyed.worker(keyed.write("keys", "a"))
    started = await lab.provision(labels=["nobody-has-this"])
    stranger = await keyed.caller(None)

    with pytest.raises(PayloadKeyMissing, match="'a'"):
        await stranger.outcome(started)
