"""How payloads are read: as pydantic does, and what cannot be read is handed on as just that.

Whoever can reach the namespace can send any bytes. A decoder that raises stops the workflow that they were sent to, for
ever, and its error quotes them into the log and the history. Handlers take what comes as it is and check it themselves,
so for them, and wherever else no type is asked for, `Unreadable` stands for it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import temporalio.api.common.v1
from temporalio.api.failure.v1 import Failure
from temporalio.contrib.pydantic import PydanticPayloadConverter
from temporalio.converter import DataConverter, DefaultFailureConverter, FailureConverter, PayloadConverter
from temporalio.exceptions import ApplicationError

from hatchway.codec import EncryptingCodec, PayloadKeyMissing, WithoutKeys, codec_from, is_encrypted, key_id_of, key_of

if TYPE_CHECKING:
    from hatchway.codec_keys import KeyRing


class Unreadable:
    """A payload in an encoding that nobody here knows, or not in the one that it says."""


class LenientPayloadConverter(PydanticPayloadConverter):
    def from_payloads(
        self, payloads: Sequence[temporalio.api.common.v1.Payload], type_hints: list[type] | None = None
    ) -> list[Any]:
        """Raises for what was to be of a type and is not; answers `Unreadable` where no type was asked for."""
        return [self._read(payload, hint) for payload, hint in zip_longest(payloads, type_hints or [])]

    def _read(self, payload: temporalio.api.common.v1.Payload, hint: type | None) -> Any:
        if hint is not None and is_encrypted(payload):  # and yet it comes here: no key that fits has opened it
            raise ValueError(
                f"a payload is not what was encrypted with the key {key_id_of(payload)!r}: it was altered or cut"
            )
        if hint is not None:
            return super().from_payloads([payload], [hint])[0]
        try:
            return super().from_payloads([payload])[0]
        except Exception:  # each encoding has errors of its own
            return Unreadable()


class Failures(DefaultFailureConverter):
    """Names the failure of an activity whose input could not be decrypted.

    The SDK puts an error without a type around what the codec raised, and retry policies know failures by their type.
    """

    def to_failure(self, exception: BaseException, payload_converter: PayloadConverter, failure: Failure) -> None:
        super().to_failure(exception, payload_converter, failure)
        unnamed = isinstance(exception, ApplicationError) and exception.type is None
        if unnamed and isinstance(exception.__cause__, PayloadKeyMissing):
            failure.application_failure_info.type = PayloadKeyMissing.__name__


def _failures_of(ring: KeyRing) -> type[FailureConverter]:
    """A class, as the SDK wants one: its failures are encrypted when the ring encrypts as they are made.

    Their messages and stacks become a payload, which the codec then encrypts as any other. Not decided once: a ring is
    read again while its process runs.
    """

    class FailuresOfRing(Failures):
        def __init__(self) -> None:
            super().__init__()
            self._sealing = Failures(encode_common_attributes=True)

        def to_failure(self, exception: BaseException, payload_converter: PayloadConverter, failure: Failure) -> None:
            if ring.encrypts_with is None:
                super().to_failure(exception, payload_converter, failure)
            else:
                self._sealing.to_failure(exception, payload_converter, failure)

    return FailuresOfRing


data_converter = DataConverter(
    payload_converter_class=LenientPayloadConverter, payload_codec=WithoutKeys(), failure_converter_class=Failures
)
"""Of a process without payload keys."""


def converter_from(environ: Mapping[str, str] = os.environ) -> DataConverter:
    """The converter that the environment asks for: with HATCHWAY_PAYLOAD_KEYS it encrypts, failures included.

    Raises PayloadKeysError. Blocks.
    """
    codec = codec_from(environ)
    if not isinstance(codec, EncryptingCodec):
        return data_converter
    return replace(data_converter, payload_codec=codec, failure_converter_class=_failures_of(codec.ring))


async def failure_words(converter: DataConverter, failure: Failure) -> str:
    """The message of a failure as it is described, decrypted where it has to be; where it cannot be, why."""
    if not failure.HasField("encoded_attributes"):
        return failure.message
    copy = Failure()
    copy.CopyFrom(failure)
    try:
        error = await converter.decode_failure(copy)
    except PayloadKeyMissing as e:
        return str(e)
    return str(getattr(error, "message", error))


async def encoded_as_now(converter: DataConverter, payloads: Sequence[Any], values: Sequence[Any]) -> bool:
    """Whether these are the values as this process would encode them now: the same text, under the key that encrypts.

    For what is kept for ever, such as the input of a schedule: it has to leave an old key before that key goes.
    """
    if not all(isinstance(payload, temporalio.api.common.v1.Payload) for payload in payloads):
        return False
    codec = converter.payload_codec
    key_id = codec.ring.encrypts_with if isinstance(codec, EncryptingCodec) else None
    key = (key_id, codec.ring.fingerprint(key_id)) if isinstance(codec, EncryptingCodec) and key_id else None
    if any((key_of(payload) if is_encrypted(payload) else None) != key for payload in payloads):
        return False
    plain = await codec.decode(payloads) if codec else payloads
    return [payload.data for payload in plain] == [p.data for p in converter.payload_converter.to_payloads(values)]
