"""How payloads are read: as pydantic does, and what cannot be read is handed on as just that.

Whoever can reach the namespace can send any bytes. A decoder that raises stops the workflow that they were sent to, for
ever, and its error quotes them into the log and the history. Handlers take what comes as it is and check it themselves,
so for them, and wherever else no type is asked for, `Unreadable` stands for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

import temporalio.api.common.v1
from temporalio.contrib.pydantic import PydanticPayloadConverter
from temporalio.converter import DataConverter


class Unreadable:
    """A payload in an encoding that nobody here knows, or not in the one that it says."""


class LenientPayloadConverter(PydanticPayloadConverter):
    def from_payloads(
        self, payloads: Sequence[temporalio.api.common.v1.Payload], type_hints: list[type] | None = None
    ) -> list[Any]:
        """Raises for what was to be of a type and is not; answers `Unreadable` where no type was asked for."""
        return [self._read(payload, hint) for payload, hint in zip_longest(payloads, type_hints or [])]

    def _read(self, payload: temporalio.api.common.v1.Payload, hint: type | None) -> Any:
        if hint is not None:
            return super().from_payloads([payload], [hint])[0]
        try:
            return super().from_payloads([payload])[0]
        except Exception:  # each encoding has errors of its own
            return Unreadable()


data_converter = DataConverter(payload_converter_class=LenientPayloadConverter)
