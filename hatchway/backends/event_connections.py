"""Connections to customers' Temporal servers, one for each server and credential; never to Hatchway's own namespace.

Who can reach that namespace can start, adopt and release. A target in it would put customers' workflows, and with them
whoever may read them, inside of that boundary. Another address does not hide it: namespaces are told apart by their
UUID.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from temporalio.api.common.v1 import Payload
from temporalio.client import Client
from temporalio.converter import DataConverter, DefaultPayloadConverter
from temporalio.service import RPCError, TLSConfig

from hatchway.backends.event_targets import TemporalTarget
from hatchway.backends.event_temporal_calls import Place, reported
from hatchway.config.event_schema import ProvisioningTarget
from hatchway.converter import Unreadable
from hatchway.errors import PermanentSpawnError, SpawnCode, TransientSpawnError
from hatchway.namespace import namespace_uuid
from hatchway.secrets.secret import Secret

CONNECT_S = 5.0


class _Tolerant(DefaultPayloadConverter):
    """Plain JSON, and `Unreadable` for what comes in another form.

    Customers' workers may have a codec or a converter of their own. What their workflows answer is of no interest, only
    that they have; and of a failure its type, which is never encoded.
    """

    def from_payloads(self, payloads: Sequence[Payload], type_hints: list[type] | None = None) -> list[Any]:
        return [self._read(payload) for payload in payloads]

    def _read(self, payload: Payload) -> Any:
        try:
            return super().from_payloads([payload])[0]
        except Exception:  # each encoding has errors of its own
            return Unreadable()


PLAIN = DataConverter(payload_converter_class=_Tolerant)
"""No codec: that of Hatchway's own namespace, if it has one, is nothing that customers hold."""


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
            client = Client(self._own.service_client, namespace=target.namespace, data_converter=PLAIN)
            return Place(target, client)
        place = Place(target, await self._elsewhere(target, settings, settings.address, api_key), api_key)
        await self._refuse_own(place)  # each time: what an address leads to may change under a connection
        return place

    async def _elsewhere(
        self, target: TemporalTarget, settings: ProvisioningTarget, address: str, api_key: Secret | None
    ) -> Client:
        # A rotated key is another connection; the key itself is not kept as one.
        digest = hashlib.sha256(api_key.reveal().encode()).hexdigest() if api_key else ""
        key = (address, target.namespace, str(settings.tls), settings.ca_file or "", digest)
        if key not in self._made:
            self._made[key] = await self._connect(target, settings, address, api_key)
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
                    data_converter=PLAIN,
                )
        except (TimeoutError, RuntimeError, RPCError):
            # Not quoted: what the SDK says of a connection holds its whole configuration.
            raise TransientSpawnError(
                SpawnCode.DAEMON_UNAVAILABLE,
                f"the Temporal server of namespace {target.namespace} does not answer at {address}",
            ) from None

    async def _refuse_own(self, place: Place) -> None:
        self._own_uuid = self._own_uuid or await reported(Place(place.target, self._own), namespace_uuid(self._own))
        if await reported(place, namespace_uuid(place.client)) == self._own_uuid:
            raise _own_namespace(place.target)


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
