"""The gateway's HTTP application: wiring only."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from importlib.metadata import version

from fastapi import Depends, FastAPI
from temporalio.client import Client

from hatchway.gateway import errors
from hatchway.gateway.agents import AgentCalls
from hatchway.gateway.belonging import Belonging
from hatchway.gateway.claims import claims_router
from hatchway.gateway.completion import Completions
from hatchway.gateway.health import health_router
from hatchway.gateway.heartbeats import HeartbeatBatches
from hatchway.gateway.instance import keep_alive
from hatchway.gateway.intake import Intake
from hatchway.gateway.patience import Patience
from hatchway.gateway.provisions import Provisions
from hatchway.gateway.ratelimit import RefusalLimit
from hatchway.gateway.settings import GatewaySettings
from hatchway.gateway.tokens import TokenCache
from hatchway.metrics import Metrics
from hatchway.store.claims import Claims
from hatchway.store.outcomes import Outcomes
from hatchway.store.pool import Database
from hatchway.store.presence import Presence
from hatchway.store.tokens import Tokens


def create_app(settings: GatewaySettings, db: Database, temporal: Client, belonging: Belonging) -> FastAPI:
    """The application on an open pool and a connected client, both of which stay the caller's.

    Its lifespan keeps this gateway's own heartbeat going, and looks whether the two still belong together.
    """
    instance_id, release = settings.instance, version("hatchway")
    presence, outcomes = Presence(db, agent_heartbeat=settings.heartbeat_interval), Outcomes(db)
    patience = Patience(settings.answer_timeout)
    provisions = Provisions(temporal, settings.answer_timeout)

    async def beat() -> None:
        if belonging.elsewhere:
            return  # to the agents of that database this is no gateway
        await patience(presence.instance_beat(instance_id, "gateway", release, [], None))

    async def ping_postgres() -> None:
        await patience(db.ping())

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        every = settings.instance_heartbeat
        tasks = [asyncio.create_task(keep_alive(beat, every)), asyncio.create_task(belonging.watch(every))]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task

    async def vouched(e: errors.ApiError) -> None:
        await belonging.vouch(unknown=e.status in (401, 403))

    docs = "/docs" if settings.is_private else None
    app = FastAPI(
        title="Hatchway gateway",
        version=release,
        lifespan=lifespan,
        docs_url=docs,
        redoc_url=None,
        openapi_url="/openapi.json" if docs else None,
    )
    errors.install(app, vouched)
    app.add_middleware(Intake)
    calls = AgentCalls(
        settings=settings,
        tokens=TokenCache(Tokens(db)),
        heartbeats=HeartbeatBatches(lambda agents: presence.beat(instance_id, agents)),
        provisions=provisions,
        completions=Completions(outcomes, provisions, patience, instance_id),
        outcomes=outcomes,
        patience=patience,
        belonging=belonging,
    )
    limit = RefusalLimit(settings.refused_redeems_per_minute)
    at_home = [Depends(belonging.refuse_calls_elsewhere)]
    app.include_router(claims_router(settings, Claims(db), limit, Metrics.of(temporal), patience), dependencies=at_home)
    app.include_router(calls.router(), dependencies=at_home)
    app.include_router(health_router(ping_postgres, provisions.ping, belonging.facts))
    return app
