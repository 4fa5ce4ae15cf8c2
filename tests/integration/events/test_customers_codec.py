"""A customer whose workers encode what they say: what came of it is told all the same."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

import pytest
from temporalio.api.common.v1 import Payload
from temporalio.client import Client
from temporalio.converter import DataConverter, DefaultFailureConverterWithEncodedAttributes, PayloadCodec

from hatchway.backends.base import Gone
from hatchway.errors import DestroyError, PermanentSpawnError, SpawnCode, SpawnError, TransientSpawnError
from hatchway.model import ScaleDownReason
from tests.integration.events import misbehaving
from tests.support.customer import Customer, backend_of, facts_of, fresh_agent_id, silent, spec_of

SHUTDOWN = ScaleDownReason.SHUTDOWN


class Theirs(PayloadCodec):
    """Takes in the clear what was sent in the clear, and says nothing so."""

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return [
            Payload(metadata={"encoding": b"binary/theirs"}, data=one.SerializeToString()[::-1]) for one in payloads
        ]

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return [
            Payload.FromString(one.data[::-1]) if one.metadata["encoding"] == b"binary/theirs" else one
            for one in payloads
        ]


@pytest.fixture
async def encoding(customer: Customer) -> AsyncIterator[Customer]:
    """Whose worker has a codec, and encodes failures too."""
    converter = DataConverter(
        payload_codec=Theirs(), failure_converter_class=DefaultFailureConverterWithEncodedAttributes
    )
    plain = customer.temporal
    one = replace(
        customer,
        temporal=Client(plain.service_client, namespace=plain.namespace, data_converter=converter),
        _running=[],
    )
    yield one
    await one.stop()


async def test_results_that_only_they_can_read_confirm_spawn_and_teardown(own: Client, encoding: Customer) -> None:
    backend, config = backend_of(own, encoding)
    encoding.start(workflows=[misbehaving.QuickScaleUp, misbehaving.QuickScaleDown])
    agent_id = fresh_agent_id()

    ref = await backend.spawn(spec_of(config.scaler, agent_id), silent)
    found = await backend.find(agent_id)
    gone = await backend.destroy(agent_id, facts_of(config.scaler), SHUTDOWN)

    assert found == ref
    assert gone == Gone()


@pytest.mark.parametrize(
    ("workflow", "error", "code"),
    [
        (misbehaving.FullScaleUp, TransientSpawnError, SpawnCode.CAPACITY),
        (misbehaving.FailingScaleUp, PermanentSpawnError, SpawnCode.PROVISIONER_FAILED),
    ],
)
async def test_a_failure_that_only_they_can_read_counts_by_its_type_and_says_where_its_words_are(
    own: Client, encoding: Customer, workflow: type, error: type[SpawnError], code: SpawnCode
) -> None:
    backend, config = backend_of(own, encoding)
    encoding.start(workflows=[workflow])
    agent_id = fresh_agent_id()

    with pytest.raises(error, match="their own codec") as raised:
        await backend.spawn(spec_of(config.scaler, agent_id), silent)

    assert raised.value.code is code
    assert f"scale-up/{agent_id}" in str(raised.value)


async def test_a_teardown_that_fails_in_words_of_theirs_is_tried_again(own: Client, encoding: Customer) -> None:
    backend, config = backend_of(own, encoding)
    encoding.start(workflows=[misbehaving.QuickScaleUp, misbehaving.FailingScaleDown])
    agent_id = fresh_agent_id()
    await backend.spawn(spec_of(config.scaler, agent_id), silent)

    with pytest.raises(DestroyError, match="their own codec"):
        await backend.destroy(agent_id, facts_of(config.scaler), SHUTDOWN)
