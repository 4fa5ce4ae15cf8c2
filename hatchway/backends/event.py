"""Agents that a customer's own provisioning makes: Hatchway tells it when one is wanted, and when it is not any more.

Each event goes to every target of the scaler, side by side: one that is down holds up none of the others, and the next
attempt tells those that took it once more, under the same `requestId`.

    target      a spawn is confirmed by                      a teardown is confirmed by
    temporal:   the completion of the customer's workflow    the completion of the customer's workflow: Gone
    the rest    the delivery; the agent's adoption proves it the delivery: Accepted, nobody will say more

The only record of such compute is the agent's row: what has been asked for is torn down through the targets that were
copied onto it, and the row stays until they have taken that.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Protocol, TypeVar

from temporalio import activity
from temporalio.client import Client

from hatchway.backends.base import Accepted, Gone, OwnedCompute, Progress, SpawnSpec
from hatchway.backends.errors import redact
from hatchway.backends.event_addresses import parse_networks
from hatchway.backends.event_aws import AwsDeliveries
from hatchway.backends.event_connections import TemporalConnections
from hatchway.backends.event_https import post_event
from hatchway.backends.event_targets import HttpsTarget, Target, TargetError, TemporalTarget, parse_target
from hatchway.backends.event_temporal import call_off, scale_down, scale_up, scale_up_id, stands
from hatchway.backends.event_temporal_calls import Place
from hatchway.config.event_schema import ProvisioningTarget
from hatchway.config.schema import Config, ScalerType
from hatchway.errors import (
    DestroyError,
    HatchwayError,
    PermanentSpawnError,
    SecretError,
    SecretUnavailable,
    SpawnCode,
    SpawnError,
    TransientSpawnError,
)
from hatchway.events import EventName, Resources, ScaleDown, ScaleUp, request_id
from hatchway.metrics import Metrics
from hatchway.model import ComputeExit, ComputeRef, ScaleDownReason, TeardownFacts
from hatchway.sealed_claims import ClaimKeyError, seal_claim
from hatchway.secrets.resolver import Purpose, SecretResolver
from hatchway.secrets.secret import Secret
from hatchway.through_cancel import to_its_end

T = TypeVar("T")

TRIES = 3
PAUSE_S = 0.5
"""Between two tries of one delivery, doubled. What outlasts them is for the next attempt of the spawn or teardown."""

DESTROY_S = 25.0
"""How long one target may take with one attempt of a teardown: less than the shortest first round."""
BEFORE_ROUND_ENDS_S = 2.0
"""How much earlier than its round an attempt ends: one that is cut off there cannot say which target hangs."""

MARGIN = timedelta(seconds=5)
"""How much earlier than its attempt a wait ends, so that the attempt ends with the reason and not by its time limit."""


class Configured(Protocol):
    """What is asked of the configuration: whatever is in force at the moment of the call."""

    async def current(self) -> tuple[int, Config]: ...

    def resolver(self, config: Config) -> SecretResolver: ...


class EventBackend:
    """Of one scaler. Every worker has one, and all of them are the same host: `scaler.<name>`."""

    def __init__(
        self,
        scaler: str,
        temporal: Client,
        config: Configured,
        metrics: Metrics,
        aws: AwsDeliveries | None = None,
    ) -> None:
        """`temporal`: Hatchway's own, whose server customers' namespaces may be on too."""
        self._scaler = scaler
        self._config = config
        self._metrics = metrics
        self._temporal = TemporalConnections(temporal)
        self._aws = aws or AwsDeliveries()

    @property
    def host_id(self) -> str:
        return f"scaler.{self._scaler}"

    # ── spawn ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def spawn(self, spec: SpawnSpec, progress: Progress) -> ComputeRef:
        """Ask for the agent. Asked again, a `temporal:` target joins or remembers, any other is told once more."""

        def say(message: str) -> None:
            progress(redact(message, spec.secret_values))

        async def ask(settings: ProvisioningTarget) -> None:
            target, event = _parsed(settings.scale_up), self._scale_up(spec, settings)
            if isinstance(target, TemporalTarget):
                place = replace(await self._place(target, settings), secret_values=spec.secret_values)
                await scale_up(place, event, _limit(spec), say, self._metrics.scale_up_emitted)
            else:
                await self._deliver(target, event, settings)
                self._metrics.scale_up_emitted()

        if not spec.scaler.provisioning_targets:
            raise PermanentSpawnError(
                SpawnCode.INVALID_SPEC, f"scaler {self._scaler} has no `provisioningTargets`: nobody would be asked"
            )
        progress("asking for the agent")
        await _each(spec.scaler.provisioning_targets, ask)
        return self._ref(spec.agent_id)

    def _scale_up(self, spec: SpawnSpec, settings: ProvisioningTarget) -> ScaleUp:
        claim = spec.env["KICI_SCALER_CLAIM_CODE"]
        if settings.claim_key is not None:
            try:
                claim = seal_claim(claim, settings.claim_key, spec.agent_id)
            except ClaimKeyError as e:
                raise PermanentSpawnError(SpawnCode.INVALID_SPEC, str(e)) from None
        elif isinstance(_parsed(settings.scale_up), TemporalTarget):
            raise PermanentSpawnError(
                SpawnCode.INVALID_SPEC,
                "a temporal: target without a `claimKey` gets no event: the claim code would lie in its history",
            )
        return ScaleUp(
            scaler_name=self._scaler,
            agent_id=spec.agent_id,
            labels=list(spec.labels),
            mandatory_labels=list(spec.scaler.mandatory_labels),
            resources=Resources(cpus=spec.mcpu / 1000 if spec.mcpu else None, mem_bytes=spec.mem_bytes or None),
            orchestrator_url=spec.env["KICI_ORCHESTRATOR_URL"],
            claim_code=claim,
            job_id=spec.job_id,
            request_id=request_id(EventName.SCALE_UP, spec.agent_id),
        )

    # ── teardown ────────────────────────────────────────────────────────────────────────────────────────────────

    async def destroy(self, agent_id: str, facts: TeardownFacts, reason: ScaleDownReason) -> Gone | Accepted:
        """Tell every target of the row that the agent is not wanted any more.

        Where the row has lost them, those of the configuration in force are told, which may be others: whatever they
        confirm is only Accepted then.
        """

        async def tell(settings: ProvisioningTarget) -> Gone | Accepted:
            def emitted() -> None:
                self._metrics.scale_down_emitted(reason.value)

            target, up = _parsed(settings.down), _parsed(settings.scale_up)
            asked = await self._place(up, settings) if isinstance(up, TemporalTarget) else None
            if isinstance(target, TemporalTarget):
                await scale_down(asked, await self._place(target, settings), event, emitted, ends_at=ends_at)
                return Gone()
            if asked is not None:
                await call_off(asked, agent_id)
            await self._deliver(target, event, settings)
            emitted()
            return Accepted()

        async def in_time(settings: ProvisioningTarget) -> Gone | Accepted:
            try:
                async with asyncio.timeout(limit):
                    return await tell(settings)
            except TransientSpawnError as e:
                pauses.append(e.retry_after or timedelta(0))
                raise
            except TimeoutError:
                raise TransientSpawnError(
                    SpawnCode.DAEMON_UNAVAILABLE,
                    f"{_parsed(settings.down)} had not taken it when the {limit:.1f} s of this attempt were over",
                ) from None

        limit = _limit_of_teardown()
        ends_at = asyncio.get_running_loop().time() + limit
        pauses: list[timedelta] = []
        event = ScaleDown(
            scaler_name=self._scaler,
            agent_id=agent_id,
            reason=reason,
            request_id=request_id(EventName.SCALE_DOWN, agent_id),
        )
        targets, doubt = await self._targets(agent_id, facts)
        try:
            answers = await _each(targets, in_time)
        except SpawnError as e:
            way_out = f"; {doubt}, then `hatchway forget {agent_id}`" if doubt else ""
            pause = max(pauses, default=None) or None
            raise DestroyError(f"the teardown of {agent_id} is not taken yet: {e}{way_out}", pause) from None
        return Gone() if not doubt and all(isinstance(answer, Gone) for answer in answers) else Accepted(doubt)

    async def _targets(self, agent_id: str, facts: TeardownFacts) -> tuple[list[ProvisioningTarget], str]:
        """Those on the row; for a row that was lost, those of the configuration in force, and the doubt in that."""
        try:
            targets = [ProvisioningTarget.from_row(text) for text in facts.provisioning_targets]
        except ValueError:
            raise DestroyError(f"the targets on the row of {agent_id} cannot be read by this release") from None
        if targets:
            return targets, ""
        targets = await self._configured_targets()
        if not targets:
            raise DestroyError(
                f"nobody knows where to send the teardown of {agent_id}: its row names no target, and the scaler "
                f"{self._scaler} has left the configuration; delete the machine by hand, then `hatchway forget` it"
            )
        return targets, (
            f"the row of {agent_id} was lost, so its teardown went to the targets that the configuration names now: if "
            "they were others when it was spawned, see there that its machine is gone"
        )

    async def _configured_targets(self) -> list[ProvisioningTarget]:
        try:
            _, config = await self._config.current()
        except HatchwayError as e:
            raise DestroyError(f"the targets of scaler {self._scaler} cannot be read: {e}") from None
        scaler = config.scaler(self._scaler)
        return list(scaler.provisioning_targets) if scaler else []

    # ── one delivery ────────────────────────────────────────────────────────────────────────────────────────────

    async def _deliver(self, target: Target, event: ScaleUp | ScaleDown, settings: ProvisioningTarget) -> None:
        """Send it to a target that only takes it, with a few tries. Raises SpawnError."""
        for tried in range(1, TRIES + 1):
            try:
                sending = self._send(target, event, settings)
                # Cut off, it might still arrive: after the teardown's word, which would then count for nothing.
                return await (to_its_end(sending) if isinstance(event, ScaleUp) else sending)
            except TransientSpawnError as e:
                if tried == TRIES or e.retry_after is not None:
                    raise
            await asyncio.sleep(PAUSE_S * 2 ** (tried - 1))

    async def _send(self, target: Target, event: ScaleUp | ScaleDown, settings: ProvisioningTarget) -> None:
        if isinstance(target, TemporalTarget):
            raise AssertionError("a temporal: target is awaited, not only sent to")
        if not isinstance(target, HttpsTarget):
            return await self._aws.send(target, event, settings)
        if settings.signing_secret is None:
            raise PermanentSpawnError(SpawnCode.INVALID_SPEC, f"{target} has no `signingSecret`")
        key = await self._secret(settings.signing_secret, "signingSecret", target.host)
        await post_event(
            target,
            event,
            key,
            allowed=parse_networks(settings.allow_addresses),
            tls=await asyncio.to_thread(_tls, settings.ca_file),
        )

    async def _place(self, target: TemporalTarget, settings: ProvisioningTarget) -> Place:
        key = None
        if settings.api_key_secret is not None and settings.address is not None:
            key = await self._secret(settings.api_key_secret, "apiKeySecret", settings.host)
        return await self._temporal.place(target, settings, key)

    async def _secret(self, reference: str, field: str, host: str) -> Secret:
        try:
            _, config = await self._config.current()
            return await self._config.resolver(config).resolve(
                reference, field=f"provisioningTargets.{field}", purpose=Purpose.target(host)
            )
        except SecretUnavailable as e:
            raise TransientSpawnError(SpawnCode.DAEMON_UNAVAILABLE, str(e)) from None
        except SecretError as e:
            raise PermanentSpawnError(SpawnCode.AUTH_DENIED, str(e)) from None
        except HatchwayError as e:
            raise TransientSpawnError(SpawnCode.DAEMON_UNAVAILABLE, f"the configuration cannot be read: {e}") from None

    # ── what else is asked of a backend ─────────────────────────────────────────────────────────────────────────

    async def find(self, agent_id: str) -> ComputeRef | None:
        """What a customer's workflow says it has made. Other targets are never heard of again: None."""
        for settings in await self._configured_targets():
            target = _parsed(settings.scale_up)
            if isinstance(target, TemporalTarget) and await stands(await self._place(target, settings), agent_id):
                return self._ref(agent_id)
        return None

    async def exits(self) -> AsyncIterator[ComputeExit]:
        """None is ever told: an agent that is gone is missed by its heartbeats."""
        await asyncio.Event().wait()
        yield ComputeExit(agent_id="never")

    async def owned(self) -> AsyncIterator[OwnedCompute]:
        """Nothing: what a customer runs is not ours to list."""
        nothing: tuple[OwnedCompute, ...] = ()
        for one in nothing:
            yield one

    async def logs(self, agent_id: str, lines: int = 200) -> str:
        """Empty: the output of these agents is the customer's."""
        return ""

    async def close(self) -> None:
        self._aws.close()

    def _ref(self, agent_id: str) -> ComputeRef:
        return ComputeRef(backend=ScalerType.EVENT, ref=scale_up_id(agent_id), host_id=self.host_id)


async def _each(
    targets: Sequence[ProvisioningTarget], deliver: Callable[[ProvisioningTarget], Awaitable[T]]
) -> list[T]:
    """To all of them, side by side, each to its own end. Raises one SpawnError for all that failed.

    Permanent, if any is: then trying again cannot help.
    """
    tasks = [asyncio.ensure_future(deliver(target)) for target in targets]
    cancelled = False
    while any(not task.done() for task in tasks):
        try:
            await asyncio.wait(tasks)
        except asyncio.CancelledError:  # each lets go in its own way, and may have succeeded by then
            cancelled = True
            for task in tasks:
                task.cancel()
    if cancelled and any(task.cancelled() for task in tasks):
        raise asyncio.CancelledError
    failed = [failure for task in tasks if (failure := task.exception()) is not None]
    for failure in failed:
        if not isinstance(failure, SpawnError):
            raise failure
    errors = [failure for failure in failed if isinstance(failure, SpawnError)]
    if not errors:
        return [task.result() for task in tasks]
    words = "; ".join(dict.fromkeys(str(error) for error in errors))
    permanent = [error for error in errors if not isinstance(error, TransientSpawnError)]
    if permanent:
        raise PermanentSpawnError(permanent[0].code, words)
    pauses = [error.retry_after for error in errors if isinstance(error, TransientSpawnError) and error.retry_after]
    raise TransientSpawnError(errors[0].code, words, max(pauses, default=None))


def _parsed(text: str) -> Target:
    """A target that was checked when its configuration was applied, maybe by another release."""
    try:
        return parse_target(text)
    except TargetError as e:
        raise PermanentSpawnError(SpawnCode.INVALID_SPEC, f"a target of this scaler {e}") from None


def _limit(spec: SpawnSpec) -> timedelta:
    whole = spec.time_limit or timedelta(seconds=spec.scaler.spawn_timeout_seconds)
    return max(whole - MARGIN, whole / 2)


def _limit_of_teardown() -> float:
    """Seconds. Less in the last attempt of a round, by the server's clock."""
    if not activity.in_activity():
        return DESTROY_S
    info = activity.info()
    if info.schedule_to_close_timeout is None:
        return DESTROY_S
    left = (info.scheduled_time + info.schedule_to_close_timeout - info.started_time).total_seconds()
    return min(DESTROY_S, max(left - BEFORE_ROUND_ENDS_S, left / 2))


def _tls(ca_file: str | None) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=ca_file)
    except (OSError, ssl.SSLError) as e:
        raise PermanentSpawnError(
            SpawnCode.INVALID_SPEC,
            f"the target's `caFile` {ca_file} cannot be used on this worker: {e.strerror or type(e).__name__}",
        ) from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context
