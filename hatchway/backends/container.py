"""The container backend: agents as containers of a Docker or Podman engine.

Everything is found again by labels that lie on the engine, so any worker that reaches it can take over from any other.
The container's name is the idempotency key: the engine refuses the second container of a spawn that ran twice, and the
second attempt takes over the first one's.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Self, TypeVar

import structlog

from hatchway.backends.base import Accepted, Gone, OwnedCompute, Progress, SpawnSpec
from hatchway.backends.container_create import (
    AGENT_ID,
    ORCHESTRATOR_URL,
    container_name,
    create,
    is_stopping,
    refuse_what_cannot_run,
    secret_values,
    socket_path,
)
from hatchway.backends.container_engine import CALL_TIMEOUT, Client, Engine
from hatchway.backends.container_entry import agent_source, check_entry, inject_agent, inject_command
from hatchway.backends.container_errors import EngineRefused, EngineUnreachable, container_error, engine_error
from hatchway.backends.container_exits import Exits, read_log
from hatchway.backends.container_firewall import Firewall
from hatchway.backends.container_network import INSTALLATION, Attachment, Networks
from hatchway.backends.container_own import Listed, is_named, own
from hatchway.backends.container_private import is_mark
from hatchway.backends.container_pull import PULL_STALL, Image, Images, Wanted
from hatchway.backends.container_stop import Stopper
from hatchway.backends.container_upkeep import UNUSED_AFTER, Upkeep
from hatchway.backends.errors import plain, quoted, redact
from hatchway.errors import (
    DestroyError,
    HatchwayError,
    InvalidReference,
    PermanentSpawnError,
    SpawnCode,
    SpawnError,
    TransientSpawnError,
)
from hatchway.model import ComputeExit, ComputeRef, ScaleDownReason, TeardownFacts
from hatchway.registry.reference import parse_reference
from hatchway.through_cancel import to_its_end

log = structlog.get_logger(__name__)

T = TypeVar("T")

NAME = "container"
_NAME_WITHOUT_CONTAINER = timedelta(seconds=3)


class ContainerBackend:
    """One engine, shared by all scalers whose `host` leads to it.

    `host_id` names the engine, not the machine of the worker: see `connect`. Blocking calls run in threads of this
    backend's own, each with a deadline, so that an engine that hangs stops nobody else.
    """

    def __init__(
        self,
        host_id: str,
        base_url: str | None,
        installation_id: str,
        *,
        call_timeout: timedelta = CALL_TIMEOUT,
        pull_stall: timedelta = PULL_STALL,
        agent: Callable[[], bytes] = agent_source,
        firewall: Firewall | None = None,
        closed: Sequence[str] = (),
    ) -> None:
        """`closed`: `host:port` of what no agent of an isolated network may reach, whatever its policy opens."""
        self._host_id = host_id
        self._installation_id = installation_id
        self._engine = Engine(base_url, call_timeout)
        self._images = Images(self._engine, pull_stall)
        self._stopper = Stopper(self._engine)
        firewall = firewall or Firewall()
        self._networks = Networks(self._engine, installation_id, firewall, closed)
        self._upkeep = Upkeep(self._engine, self._networks, firewall, installation_id)
        self._agent = agent

    @classmethod
    async def connect(
        cls, base_url: str | None, installation_id: str, host_id: str | None = None, closed: Sequence[str] = ()
    ) -> Self:
        """A backend whose host id is the engine's own (`docker-…`), unless the operator gave one.

        So all workers of an engine, in containers or on other machines, call it by one name. Raises EngineUnreachable
        or EngineRefused.
        """
        if host_id is not None:
            return cls(host_id, base_url, installation_id, closed=closed)
        backend = cls("", base_url, installation_id, closed=closed)
        backend._host_id = (await backend._engine.facts()).host_id
        return backend

    async def engine_id(self) -> str:
        """The own id of the engine that answers now, whatever the host id. Raises TransientSpawnError."""
        try:
            return (await self._engine.facts_now()).host_id
        except EngineRefused as e:
            raise TransientSpawnError(SpawnCode.DAEMON_UNAVAILABLE, str(e)) from None
        except EngineUnreachable as e:
            raise engine_error(e) from None

    @property
    def host_id(self) -> str:
        return self._host_id

    async def spawn(self, spec: SpawnSpec, progress: Progress) -> ComputeRef:
        """Pull, create, check and start; or take over what an earlier attempt made, in whatever state it is.

        A container that was created by an attempt that then died keeps the environment of that attempt.
        """
        try:
            return await self._ref(await self._spawned(spec, progress))
        except EngineRefused as e:
            image, platform = spec.image or "the image", self._engine.platform
            raise container_error(e, image, platform=platform, secrets=spec.secret_values) from None
        except EngineUnreachable as e:
            raise engine_error(e) from None

    async def _spawned(self, spec: SpawnSpec, progress: Progress) -> str:
        refuse_what_cannot_run(spec, self._installation_id, await self._engine.facts())
        taken = await self._take_over(spec)
        if taken is not None:
            return taken
        image = await self._images.ensure(_wanted(spec), progress)
        progress(f"starting {spec.image}")
        try:
            return await to_its_end(self._make(spec, image))
        except EngineRefused as e:
            if not e.name_in_use:
                raise
            return await self._adopt_by_name(spec, e)

    async def _take_over(self, spec: SpawnSpec) -> str | None:
        """What an earlier attempt made, started where that attempt did not come to it."""
        found = await self._list(spec.agent_id)
        if not found:
            return None
        container_id = str(found[0]["Id"])
        if _is_leaving(found[0]):
            raise TransientSpawnError(
                SpawnCode.DAEMON_UNAVAILABLE,
                f"the container of an earlier attempt for {spec.agent_id} is being removed; the next one follows",
            )
        if found[0]["State"] in ("created", "configured", "initialized"):
            image, attachment = await self._image_of(found[0]), await self._attach(spec, container_id)
            await to_its_end(self._start(spec, container_id, image, attachment))
        log.info("container_taken_over", agent_id=spec.agent_id, container_id=container_id, state=found[0]["State"])
        return container_id

    async def _adopt_by_name(self, spec: SpawnSpec, refused: EngineRefused) -> str:
        """Another attempt won the name between our look and our create. The engine shows a container later than it
        gives its name away, so it is looked for again for a moment."""
        deadline = time.monotonic() + _NAME_WITHOUT_CONTAINER.total_seconds()
        while (taken := await self._take_over(spec)) is None:
            if time.monotonic() > deadline:
                raise TransientSpawnError(
                    SpawnCode.DAEMON_UNAVAILABLE,
                    f"the name {container_name(spec.agent_id)} is taken by a container without this installation's "
                    f"labels; see `docker ps -a` there ({quoted(refused.text, 200, spec.secret_values)})",
                )
            await asyncio.sleep(0.05)
        return taken

    async def _image_of(self, container: dict[str, Any]) -> Image:
        image = await self._images.by_id(container["ImageID"])
        if image is None:
            raise TransientSpawnError(SpawnCode.IMAGE_NOT_FOUND, "the image of an earlier attempt's container is gone")
        return image

    async def _make(self, spec: SpawnSpec, image: Image) -> str:
        """Create and start. What fails after the create takes the container with it, unless it may run."""
        command = inject_command() if spec.label_set.agent == "inject" else None
        if command is None and not image.command:
            raise PermanentSpawnError(
                SpawnCode.NO_AGENT,
                f"{spec.image} has no entrypoint, so there is no agent in it; give it one, or say `agent: inject` on "
                "the label set",
            )
        socket = socket_path(self._engine.address)
        attachment = await self._attach(spec)
        container_id = await self._engine.call(
            "create a container",
            lambda c: create(c, spec, image.id, command, socket, attachment),
            late=_remove_unstarted,
        )
        return await self._start(spec, container_id, image, attachment)

    async def _attach(self, spec: SpawnSpec, container_id: str | None = None) -> Attachment | None:
        """The isolated network of this spawn, its rules installed; None where the scaler wants none.

        `container_id`: that container is on a network already. Where it is no good the container is removed, since it
        could never be started.
        """
        if not spec.scaler.network_isolation:
            return None
        urls = spec.env.get(ORCHESTRATOR_URL, "")
        if container_id is None:
            return await self._networks.attach(spec, urls)
        found = await self._engine.call("look at a container", lambda c: c.inspect_container(container_id))
        try:
            return await self._networks.attach(spec, urls, network=str(found["HostConfig"]["NetworkMode"]))
        except SpawnError:
            await self._remove_own(container_id)
            raise

    async def _start(self, spec: SpawnSpec, container_id: str, image: Image, attachment: Attachment | None) -> str:
        """Check, copy the agent, start. A container that was not started is removed."""

        def work(client: Client) -> None:
            check_entry(client, container_id, image, spec)
            if spec.label_set.agent == "inject":
                inject_agent(client, container_id, self._agent())
            if attachment is not None:
                self._networks.verify(attachment)
            client.start(container_id)

        try:
            # Starting waits for the engine's network and cgroup work, which a burst of starts queues for.
            await self._engine.call("start a container", work, timeout=self._engine.call_timeout * 2)
        except BaseException:
            await self._remove_own(container_id)
            raise
        return container_id

    async def _remove_own(self, container_id: str) -> None:
        """What this spawn cannot start. Not by force: where the answer to a start was lost, an agent may be at work.

        Then the next attempt takes it over, and else the teardown that follows every failed spawn finds it by its
        labels. So nothing but a teardown ends what runs, and the watch may take a container that bears a teardown's
        name for torn down.
        """
        try:
            await self._engine.call("remove a container", lambda c: c.remove_container(container_id, v=True))
        except EngineRefused as e:
            if not e.not_found:
                log.warning("container_left_to_the_next_attempt", container_id=container_id, error=str(e))
        except HatchwayError as e:  # the spawn's own error matters more
            log.warning("half_made_container_left", container_id=container_id, error=str(e))

    async def destroy(self, agent_id: str, facts: TeardownFacts, reason: ScaleDownReason) -> Gone | Accepted:
        """Stop signal, grace, removal with anonymous volumes, and a look that nothing bears the agent's id any more.

        Where nothing was there to begin with, the engine must be the one that the agent was spawned on. A container
        that somebody renamed is found by its labels, and by the id on the row.
        """
        spawned = facts.compute.ref if facts.compute else None
        first: set[str] = set()
        try:
            for look in range(3):
                found = await self._list(agent_id, spawned)
                # A duplicate that somebody made does not become the agent's own because that has been removed here.
                found = [one for one in found if look == 0 or one["Id"] in first or is_named(one)]
                first |= {one["Id"] for one in found}
                if not found:
                    if look == 0:
                        await self._refuse_for_another_engine(agent_id, facts)
                    return Gone()
                for container in found:
                    await self._stopper.remove(container["Id"])
        except (EngineUnreachable, EngineRefused) as e:
            raise DestroyError(f"the container of {agent_id} is not confirmed gone: {e}") from None
        raise DestroyError(f"containers of {agent_id} come back after they were removed: see who else makes them")

    async def _refuse_for_another_engine(self, agent_id: str, facts: TeardownFacts) -> None:
        spawned_on = facts.engine or (facts.compute.engine if facts.compute else None)
        if spawned_on is None:
            return
        here = (await self._engine.facts_now()).host_id
        if here != spawned_on:
            raise DestroyError(
                f"the container of {agent_id} is on engine {spawned_on}, and host {self._host_id} now means engine "
                f"{here} at {self._engine.address}: start a worker with this --host-id whose `host:` or DOCKER_HOST "
                f"leads to the former engine until its agents have ended, or, if that engine is gone for good, run "
                f"`hatchway forget {agent_id}`"
            )

    async def find(self, agent_id: str) -> ComputeRef | None:
        found = await self._list(agent_id)
        return await self._ref(found[0]["Id"]) if found else None

    async def exits(self) -> AsyncIterator[ComputeExit]:
        """Ends that no teardown brought about, with exit code and redacted log tail. See `Exits` for what it raises."""
        async with aclosing(Exits(self._engine, self._installation_id).watch()) as watch:
            async for exit_ in watch:
                yield exit_

    async def owned(self) -> AsyncIterator[OwnedCompute]:
        for container in await self._list(None):
            created_at = datetime.fromtimestamp(container["Created"], UTC) if container.get("Created") else None
            yield OwnedCompute(container["Labels"].get(AGENT_ID, ""), await self._ref(container["Id"]), created_at)

    async def logs(self, agent_id: str, lines: int = 200) -> str:
        def work(client: Client, container_id: str) -> str:
            secrets = secret_values(client.inspect_container(container_id))
            text = read_log(client, container_id, lines)
            return redact(plain(redact(text, secrets)), secrets).rstrip("\n")

        for container in await self._list(agent_id):
            try:
                return await self._engine.call("read a log", partial(work, container_id=container["Id"]))
            except EngineRefused as e:
                if not e.not_found:
                    raise
        return ""

    async def keep_networks(self, *, isolating: bool) -> None:
        """Look after the isolated networks until cancelled.

        `isolating`: this engine's scalers ask for isolation, so a worker that cannot give it says so at once.
        """
        await self._upkeep.run(isolating=isolating)

    async def look_after_networks(self, unused_after: timedelta = UNUSED_AFTER) -> None:
        """Once: put back rules of running agents that somebody removed; remove networks that nobody uses.

        Raises EngineUnreachable, EngineRefused.
        """
        await self._upkeep.look(unused_after=unused_after)

    async def ping(self, limit: timedelta) -> None:
        """Return once the engine has answered. Raises EngineUnreachable, EngineRefused."""
        await self._engine.ping(limit)

    async def close(self) -> None:
        await self._engine.close()

    async def _list(self, agent_id: str | None, spawned: str | None = None) -> list[Listed]:
        """The containers of one agent, or of all (None): agents' own only. `spawned`: the id of one that is."""
        labels = [f"{INSTALLATION}={self._installation_id}"]
        labels += [f"{AGENT_ID}={agent_id}"] if agent_id is not None else [AGENT_ID]
        return await self._engine.call(
            "list its containers", lambda c: own(c, c.containers(all=True, filters={"label": labels}), spawned)
        )

    async def _ref(self, container_id: str) -> ComputeRef:
        engine = (await self._engine.facts()).host_id
        return ComputeRef(backend=NAME, ref=container_id, host_id=self._host_id, engine=engine)


def _wanted(spec: SpawnSpec) -> Wanted:
    try:
        reference = parse_reference(spec.image or "")
    except InvalidReference as e:
        raise PermanentSpawnError(SpawnCode.INVALID_SPEC, f"the image is not a reference: {e}") from None
    if is_mark(reference):
        raise PermanentSpawnError(
            SpawnCode.INVALID_SPEC,
            "that name only marks private images on this engine; name the image's own repository",
        )
    return Wanted(
        reference=reference,
        policy=spec.label_set.pull_policy,
        auth=spec.auth,
        platform=spec.scaler.platform,
        secrets=spec.secret_values,
    )


def _is_leaving(container: dict[str, Any]) -> bool:
    return container["State"] in ("removing", "dead") or any(map(is_stopping, container.get("Names") or []))


def _remove_unstarted(client: Client, container_id: str) -> None:
    """Undo a create whose answer came too late. Not by force: the next attempt may have found and started it."""
    client.remove_container(container_id, v=True, force=False)
