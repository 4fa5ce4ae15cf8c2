"""One host id, two engines: what one of them does not have is not gone.

An operator gives the host id (`--host-id`) and edits the scaler's `host:`; the other engine here is one that answers
as an engine does, has an id of its own, and no containers.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from hatchway.backends.base import Gone
from hatchway.backends.container import ContainerBackend
from hatchway.errors import DestroyError
from hatchway.model import ScaleDownReason, TeardownFacts
from tests.docker.backends.rig import FACTS, MakeBackend, MakeSpec, quiet

Ours = Callable[[], list[dict[str, Any]]]
SHUTDOWN = ScaleDownReason.SHUTDOWN


class EmptyEngine:
    """An engine without containers. `id` may change while it runs: another machine behind the same address."""

    def __init__(self) -> None:
        self.id = "OTHR:OTHR"
        engine = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                path = self.path.partition("?")[0].rpartition("/")[2]
                answer = json.dumps(
                    {
                        "version": {"ApiVersion": "1.44", "Os": "linux", "Arch": "amd64"},
                        "info": {"ID": engine.id, "NCPU": 2, "Name": "other", "DockerRootDir": "/var/lib/docker"},
                    }.get(path, [])
                ).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, format: str, *args: object) -> None:
                """Nothing: pytest's output is for failures."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"tcp://127.0.0.1:{self._server.server_address[1]}"

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def other_engine() -> Iterator[EmptyEngine]:
    engine = EmptyEngine()
    yield engine
    engine.stop()


async def test_an_engine_that_took_over_a_host_id_does_not_answer_for_the_agents_of_the_one_before(
    backend: ContainerBackend, make_backend: MakeBackend, other_engine: EmptyEngine, spec: MakeSpec, idle_image: str,
    ours: Ours,
) -> None:  # fmt: skip
    wanted, moved = spec(idle_image), make_backend(other_engine.url)
    first = await backend.engine_id()
    ref = await backend.spawn(wanted, quiet)
    facts = FACTS.model_copy(update={"engine": first})

    with pytest.raises(DestroyError) as refused:
        await moved.destroy(wanted.agent_id, facts, SHUTDOWN)
    standing = [container["Id"] for container in ours()]
    gone = await backend.destroy(wanted.agent_id, facts, SHUTDOWN)

    assert standing == [ref.ref]
    assert (gone, ours()) == (Gone(), [])
    for word in (wanted.agent_id, first, "docker-othrothr", "hatchway forget"):
        assert word in str(refused.value)


async def test_what_a_spawn_answered_says_which_engine_it_is_on(
    backend: ContainerBackend, make_backend: MakeBackend, other_engine: EmptyEngine, spec: MakeSpec, idle_image: str
) -> None:
    """For the teardown of an agent whose row is lost: only its workflow's own memory of it is left."""
    wanted, moved = spec(idle_image), make_backend(other_engine.url)
    ref = await backend.spawn(wanted, quiet)
    facts = TeardownFacts(backend_type="container", host_id=ref.host_id, compute=ref)

    with pytest.raises(DestroyError, match="docker-othrothr"):
        await moved.destroy(wanted.agent_id, facts, SHUTDOWN)

    assert await backend.destroy(wanted.agent_id, facts, SHUTDOWN) == Gone()


async def test_an_engine_answers_for_what_it_never_had_to_make(backend: ContainerBackend) -> None:
    here = FACTS.model_copy(update={"engine": await backend.engine_id()})

    assert await backend.destroy("scaler-never-made", here, SHUTDOWN) == Gone()
    assert await backend.destroy("scaler-never-stamped", FACTS, SHUTDOWN) == Gone()


async def test_an_engine_that_was_replaced_behind_its_address_is_asked_who_it_is_before_gone_is_believed(
    make_backend: MakeBackend, other_engine: EmptyEngine
) -> None:
    backend = make_backend(other_engine.url)
    facts = FACTS.model_copy(update={"engine": await backend.engine_id()})

    other_engine.id = "NEWR:NEWR"

    assert await backend.engine_id() == "docker-newrnewr"  # what a spawn would stamp on its row now
    with pytest.raises(DestroyError, match="docker-newrnewr"):
        await backend.destroy("scaler-of-the-one-before", facts, SHUTDOWN)
    assert await backend.engine_id() == "docker-newrnewr"
