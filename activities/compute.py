"""Spawn: the step that makes compute. One instance for each host that a worker serves."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta

from temporalio import activity
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from activities.backends import Backends
from activities.errors import patiently
from activities.failures import blames_scaler
from activities.heartbeats import heartbeats
from activities.models import SpawnAnswer, SpawnInput
from activities.unwanted import Unwanted
from hatchway.agent_env import compose_agent_env, url_on_record
from hatchway.backends.base import Backend, OnEngine, Progress, SpawnSpec
from hatchway.backends.errors import redact
from hatchway.config.current import CurrentConfig
from hatchway.config.schema import Config, LabelSet, Scaler, ScalerType
from hatchway.errors import (
    AuthError,
    AuthUnavailable,
    ErrorType,
    PermanentSpawnError,
    SecretError,
    SecretUnavailable,
    SpawnCode,
    SpawnError,
    TransientSpawnError,
)
from hatchway.labels import agent_labels
from hatchway.metrics import Metrics
from hatchway.model import ComputeRef
from hatchway.registry.auth import RegistryAuth
from hatchway.registry.pull import Logins
from hatchway.resources import shape
from hatchway.secrets.env import resolve_env
from hatchway.store.backoff import Backoff
from hatchway.store.claims import Claims
from hatchway.store.slots import BoundToHost, Slots, SpawnRow, Stamped
from hatchway.store.slots import Closing as RowClosing
from hatchway.through_cancel import to_its_end

CLAIM_PREFIX_LENGTH = 12

UNFORESEEN = "unforeseen"
"""What a backend's bug is counted as."""


@dataclass(frozen=True)
class Installation:
    """What every agent of this installation is told, and what its compute bears."""

    id: str
    gateway_url: str
    agent_env: Mapping[str, str]
    """The worker's own `KICI_AGENT_ENV_*`, prefix stripped: for every agent."""
    platform: str


@dataclass(frozen=True)
class Blueprint:
    """What the row was reserved for, looked up in the configuration that it was reserved under."""

    config: Config
    scaler: Scaler
    label_set: LabelSet
    labels: tuple[str, ...]


class ComputeActivities:
    def __init__(
        self,
        host_id: str,
        backends: Mapping[str, Backend],
        slots: Slots,
        claims: Claims,
        config: CurrentConfig,
        installation: Installation,
        metrics: Metrics,
        backoff: Backoff,
        logins: Logins | None = None,
    ) -> None:
        self._host_id = host_id
        self._backends = Backends(host_id, backends)
        self._unwanted = Unwanted(self._backends, slots)
        self._slots = slots
        self._claims = claims
        self._config = config
        self._installation = installation
        self._metrics = metrics
        self._backoff = backoff
        self._logins = logins or Logins()

    # ── spawn ───────────────────────────────────────────────────────────────────────────────────────────────────

    @activity.defn
    async def spawn(self, ask: SpawnInput) -> SpawnAnswer:
        """Stamp this host, mint the claim, call the backend, confirm. A retry finds what an earlier attempt made.

        The row is read again after the effect: a provision that was closed meanwhile gets its compute removed here,
        by the one who made it, because its teardown may have looked before there was anything to see.
        """
        handled: set[str] = set()
        row: SpawnRow | None = None
        try:
            async with heartbeats() as progress:
                stamped = await self._stamp(ask)
                row = stamped.row
                await self._stamp_engine(row)
                spec = replace(await self._spec(ask, row, handled), asked_before=stamped.again)
                compute = await self._made(ask, row, spec, progress)
        except SpawnError as e:
            await self._failed(ask, row, e.code, redact(str(e), handled))
            raise spawn_failure(e, handled) from None
        except (AuthUnavailable, SecretUnavailable) as e:
            await self._failed(ask, row, SpawnCode.AUTH_DENIED, redact(str(e), handled))
            raise spawn_failure(TransientSpawnError(SpawnCode.AUTH_DENIED, str(e)), handled) from None
        except (AuthError, SecretError) as e:
            await self._failed(ask, row, SpawnCode.AUTH_DENIED, redact(str(e), handled))
            raise spawn_failure(PermanentSpawnError(SpawnCode.AUTH_DENIED, str(e)), handled) from None
        except ApplicationError:
            raise
        except Exception as e:
            # A backend's bug or an SDK's own error may quote what it was given. It is retried, without its quotes.
            words = redact(f"{type(e).__name__}: {e}", handled)
            activity.logger.error("the backend failed in an unforeseen way: %s", words)
            await self._failed(ask, row, None, words)
            raise ApplicationError(words, type=ErrorType.SPAWN_FAILED) from None
        return SpawnAnswer(compute=compute)

    async def _made(self, ask: SpawnInput, row: SpawnRow, spec: SpawnSpec, progress: Progress) -> ComputeRef:
        """The effect, and its confirmation. What becomes of it when that is cut short, or when it is not wanted any
        more, is decided by the row, and brought to its end whatever else cuts in.
        """
        try:
            compute = await self._backends.of(row.backend_type).spawn(spec, progress)
            confirmed = await patiently(
                lambda: self._slots.confirm_spawned(ask.agent_id, compute.model_dump(mode="json"), ask.adoption_timeout)
            )
        except asyncio.CancelledError:
            await to_its_end(self._unwanted.after_a_cut(row, spec.stop_grace))
            raise
        if confirmed is None:
            gone = await to_its_end(self._unwanted.destroy(row, spec.stop_grace, compute))
            what_of_it = "has been removed again" if gone else "could not be removed yet"
            raise closing(f"it was closed while its compute was being made, which {what_of_it}")
        return compute

    async def _failed(self, ask: SpawnInput, row: SpawnRow | None, code: SpawnCode | None, words: str) -> None:
        """Count the attempt; let the scaler back off unless it is the job's own doing. `code` None: unforeseen."""
        word = code.value if code else UNFORESEEN
        self._metrics.spawn_failed(word)
        if row is None:  # not even stamped: the database was asked, no backend
            return
        config = await patiently(lambda: self._config.of_row(row))
        scaler = config.scaler(row.scaler)
        if scaler is None or not blames_scaler(code, ask.request, scaler):
            return
        await patiently(
            lambda: self._backoff.failed(
                row.scaler,
                row.agent_id,
                began_at=row.read_at,
                code=word,
                message=words,
                base=config.backoff.base,
                max=config.backoff.max,
            )
        )

    async def _stamp(self, ask: SpawnInput) -> Stamped:
        stamped = await patiently(lambda: self._slots.stamp_host(ask.agent_id, self._host_id, ask.spawn_timeout))
        match stamped:
            case Stamped():
                return stamped
            case BoundToHost(host_id=host_id):
                raise ApplicationError(
                    f"an earlier attempt had its effect on host {host_id}: the next one goes there",
                    host_id, activity.info().attempt,
                    type=ErrorType.BOUND_TO_HOST, non_retryable=True, category=ApplicationErrorCategory.BENIGN,
                )  # fmt: skip
            case RowClosing(end_reason=reason):
                raise closing(f"it is closing: {reason}")
            case _:
                raise closing("its row is gone")

    async def _stamp_engine(self, row: SpawnRow) -> None:
        """Two workers under one host id may reach two engines: the first one that is tried has it for good."""
        backend = self._backends.of(row.backend_type)
        if not isinstance(backend, OnEngine) or (engine := await backend.engine_id()) == row.engine:
            return
        bound = await patiently(lambda: self._slots.stamp_engine(row.agent_id, engine))
        if bound is None:
            raise closing("it was closed before an engine was asked for it")
        if bound != engine:
            raise TransientSpawnError(
                SpawnCode.DAEMON_UNAVAILABLE,
                f"an earlier attempt went to engine {bound}, and host {self._host_id} means engine {engine} to this "
                "worker: give every engine's workers a --host-id of their own, or leave it out",
            )

    async def _spec(self, ask: SpawnInput, row: SpawnRow, handled: set[str]) -> SpawnSpec:
        """Everything that the backend needs. Adds every secret value to `handled` before anything can quote it."""
        config = await patiently(lambda: self._config.of_row(row))
        scaler, label_set = label_set_of(config, row)
        labels = agent_labels(scaler, label_set, self._installation.platform, row.agent_id)
        image = image_for(ask, scaler, label_set)
        auth = await self._credentials(ask, image, scaler, config)
        if auth:
            handled |= auth.secret_values
        env = await self._env(ask, row, Blueprint(config, scaler, label_set, labels), handled)
        wants = shape(ask.request.resources, label_set.resources, config.defaults.resources)
        return SpawnSpec(
            agent_id=row.agent_id,
            scaler=scaler,
            label_set=label_set,
            labels=labels,
            installation_id=self._installation.id,
            env=env,
            secret_values=frozenset(handled),
            image=image,
            auth=auth,
            job_id=row.job_id,
            run_id=row.run_id,
            mcpu=wants.limit_mcpu,
            mem_bytes=wants.limit_mem_bytes,
            stop_grace=scaler.stop_grace,
            time_limit=ask.spawn_timeout,
            max_lifetime=ask.request.max_lifetime or scaler.max_lifetime,
            adoption_timeout=ask.adoption_timeout,
        )

    async def _credentials(
        self, ask: SpawnInput, image: str | None, scaler: Scaler, config: Config
    ) -> RegistryAuth | None:
        if image is None:
            return None
        return await self._logins.credentials(image, ask.request.container, scaler, self._config.resolver(config))

    async def _env(self, ask: SpawnInput, row: SpawnRow, spec: Blueprint, handled: set[str]) -> dict[str, str]:
        """The agent's whole environment. The claim is minted last, so that a refused secret costs none."""
        resolver = self._config.resolver(spec.config)
        container = ask.request.container
        label_set_env = await resolve_env(spec.label_set.env, resolver, field="labelSet.env")
        job_env = await resolve_env(container.env if container else {}, resolver, field="container.env")
        handled |= label_set_env.secret_values | job_env.secret_values
        url = spec.scaler.orchestrator_url or self._installation.gateway_url
        code = await self._mint(row, spec, url_on_record(url, self._installation.agent_env))
        handled.add(code)
        return compose_agent_env(
            {
                "KICI_ORCHESTRATOR_URL": url,
                "KICI_AGENT_ID": row.agent_id,
                "KICI_LABELS": ",".join(spec.labels),
                "KICI_SCALER_MANAGED": "1",
                "KICI_SCALER_CLAIM_CODE": code,
            },
            self._installation.agent_env,
            label_set_env.values,
            job_env.values,
        )

    async def _mint(self, row: SpawnRow, spec: Blueprint, url: str) -> str:
        """A one-use claim code of 32 random bytes. Only its hash and its first 12 characters are stored."""
        code = secrets.token_urlsafe(32)
        minted = await patiently(
            lambda: self._claims.mint(
                agent_id=row.agent_id,
                scaler=row.scaler,
                labels=list(spec.labels),
                claim_hash=hashlib.sha256(code.encode()).hexdigest(),
                claim_prefix=code[:CLAIM_PREFIX_LENGTH],
                ttl=timedelta(seconds=spec.scaler.claim_ttl_seconds),
                agent_token_ttl=timedelta(seconds=spec.scaler.agent_token_ttl_seconds),
                orchestrator_url=url,
            )
        )
        if not minted:
            raise closing("it was closed before its claim was minted")
        return code


def closing(why: str) -> ApplicationError:
    return ApplicationError(
        f"nothing was spawned for this agent: {why}",
        type=ErrorType.CLOSING,
        non_retryable=True,
        category=ApplicationErrorCategory.BENIGN,
    )


def spawn_failure(error: SpawnError, handled: set[str]) -> ApplicationError:
    """SpawnFailed with the code as detail; permanent ones are not tried again."""
    return ApplicationError(
        f"{error.code.value}: {redact(str(error), handled)}",
        error.code.value,
        type=ErrorType.SPAWN_FAILED,
        non_retryable=not isinstance(error, TransientSpawnError),
        next_retry_delay=error.retry_after if isinstance(error, TransientSpawnError) else None,
    )


def label_set_of(config: Config, row: SpawnRow) -> tuple[Scaler, LabelSet]:
    """The scaler and label set that the row was reserved for, from the configuration that it was reserved under."""
    scaler = config.scaler(row.scaler)
    for label_set in scaler.label_sets if scaler else ():
        if list(label_set.labels) == list(row.label_set):
            assert scaler is not None  # noqa: S101 - it has this label set
            return scaler, label_set
    raise PermanentSpawnError(
        SpawnCode.INVALID_SPEC,
        f"configuration version {row.config_version} has no scaler {row.scaler} with this label set",
    )


def image_for(ask: SpawnInput, scaler: Scaler, label_set: LabelSet) -> str | None:
    """The job's image where the scaler allows that, else the label set's. A dockerfile job runs on the label set's."""
    if scaler.type is not ScalerType.CONTAINER:
        return None
    container = ask.request.container
    return container.image if scaler.allow_job_image and container and container.image else label_set.image
