"""Connections to customers' Temporal servers, one for each server and credential; never to Hatchway's own namespace.

Who can reach that namespace can start, adopt and release. A target in it would put customers' workflows, and with them
whoever may read them, inside of that boundary. Another address does not hide it: namespaces are told apart by their
UUID.
"""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path

from temporalio.client import Client
from temporalio.converter import DataConverter
from temporalio.service import RPCError, TLSConfig

from hatchway.backends.event_targets import TemporalTarget
from hatchway.backends.event_temporal_calls import Place, reported
from hatchway.config.event_schema import ProvisioningTarget
from hatchway.errors import PermanentSpawnError, SpawnCode, TransientSpawnError
from hatchway.namespace import namespace_uuid
from hatchway.secrets.secret import Secret

CONNECT_S = 5.0


class TemporalConnections:
    """Clients by server, namespace and credential, each made once."""

    def __init__(self, own: Client) -> None:
        self._own = own
        self._own_uuid: str | None = None
        self._made: dict[tuple[str, ...], Client] = {}

    async def place(self, target: TemporalTarget, settings: ProvisioningTarget, api_key: Secret | None) -> Place:
        """A client for this target. Raises SpawnError."""
        if settings.address is None:
            if target.namespace == self._own.namespace:
                raise _own_namespace(target)
            # Plain JSON: the codec of Hatchway's own namespace, if it has one, is nothing that customers hold.
            client = Client(self._own.service_client, namespace=target.namespace, data_converter=DataConverter.default)
            return Place(target, client)
        return Place(target, await self._elsewhere(target, settings, settings.address, api_key))

    async def _elsewhere(
        self, target: TemporalTarget, settings: ProvisioningTarget, address: str, api_key: Secret | None
    ) -> Client:
        # A rotated key is another connection; the key itself is not kept as one.
        digest = hashlib.sha256(api_key.reveal().encode()).hexdigest() if api_key else ""
        key = (address, target.namespace, str(settings.tls), settings.ca_file or "", digest)
        if key not in self._made:
            client = await self._connect(target, settings, address, api_key)
            await self._refuse_own(target, client)
            self._made[key] = client
        return self._made[key]

    async def _connect(
        self, target: TemporalTarget, settings: ProvisioningTarget, address: str, api_key: Secret | None
    ) -> Client:
        tls = settings.tls if settings.tls is not None else api_key is not None
        try:
            async with asyncio.timeout(CONNECT_S):
                return await Client.connect(
                    address,
                    namespace=target.namespace,
                    api_key=api_key.reveal() if api_key else None,
                    tls=TLSConfig(server_root_ca_cert=await _authorities(settings.ca_file)) if tls else False,
                    data_converter=DataConverter.default,
                )
        except (TimeoutError, RuntimeError, RPCError):
            # Not quoted: what the SDK says of a connection holds its whole configuration.
            raise TransientSpawnError(
                SpawnCode.DAEMON_UNAVAILABLE,
                f"the Temporal server of namespace {target.namespace} does not answer at {address}",
            ) from None

    async def _refuse_own(self, target: TemporalTarget, client: Client) -> None:
        self._own_uuid = self._own_uuid or await reported(Place(target, self._own), namespace_uuid(self._own))
        if await reported(Place(target, client), namespace_uuid(client)) == self._own_uuid:
            raise _own_namespace(target)


def _own_namespace(target: TemporalTarget) -> PermanentSpawnError:
    return PermanentSpawnError(
        SpawnCode.INVALID_SPEC,
        f"namespace {target.namespace} is Hatchway's own, and never a target: whoever may run workflows there could "
        "adopt and release agents; give the customer's workflows a namespace of theirs",
    )


async def _authorities(ca_file: str | None) -> bytes | None:
    if ca_file is None:
        return None
    try:
        return await asyncio.to_thread(Path(ca_file).read_bytes)
    except OSError as e:
        raise PermanentSpawnError(
            SpawnCode.INVALID_SPEC, f"the target's `caFile` {ca_file} cannot be read on this worker: {e.strerror}"
        ) from None
