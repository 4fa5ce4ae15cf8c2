"""A customer's workflow that fails with what it was given: no part of a secret in its words reaches anybody."""

from __future__ import annotations

import base64
import secrets
from dataclasses import replace

import pytest
from temporalio.client import Client

from hatchway.errors import SpawnError
from tests.integration.events.echoing import EchoingScaleUp
from tests.support.customer import Customer, backend_of, fresh_agent_id, silent, spec_of

PASSWORD = "hunter-of-two-rivers"
"""Of a job: it has no looks, only whoever knows it can find it."""
CODE = secrets.token_urlsafe(32)
SAID = {
    "a job's secret": (PASSWORD, "y " * 241 + PASSWORD),
    "a job's secret, form-encoded": (PASSWORD, "a=1&" * 120 + "env%3D" + PASSWORD),
    "a code after letters": (CODE, "y" * 470 + CODE),
    "a code, form-encoded": (CODE, "a=1&" * 115 + "user_data=env%3D" + CODE),
    "a code in JSON": (CODE, '{"userData":"' + "y " * 228 + f'\\n{CODE}\\n"}}'),
}


@pytest.mark.scenario("S41")
@pytest.mark.parametrize(("secret", "said"), SAID.values(), ids=SAID)
async def test_a_secret_across_the_cut_is_shown_to_nobody(
    own: Client, customer: Customer, secret: str, said: str
) -> None:
    backend, config = backend_of(own, customer)
    customer.start(workflows=[EchoingScaleUp])
    spec = spec_of(config.scaler, fresh_agent_id(), claim=CODE, job_id=said)
    spec = replace(spec, secret_values=frozenset({CODE, PASSWORD}))

    with pytest.raises(SpawnError, match="failed: ") as raised:
        await backend.spawn(spec, silent)

    assert not any(secret[at : at + 8] in str(raised.value) for at in range(len(secret) - 7))


@pytest.mark.scenario("S41")
async def test_a_code_in_base64_across_the_cut_is_shown_to_nobody(own: Client, customer: Customer) -> None:
    encoded = base64.b64encode(f"export KICI_SCALER_CLAIM_CODE={CODE}\n".encode()).decode()
    backend, config = backend_of(own, customer)
    customer.start(workflows=[EchoingScaleUp])
    spec = spec_of(config.scaler, fresh_agent_id(), claim=CODE, job_id="y " * 210 + encoded)

    with pytest.raises(SpawnError, match="failed: ") as raised:
        await backend.spawn(spec, silent)

    assert not any(encoded[at : at + 16] in str(raised.value) for at in range(40, len(encoded) - 15))
