"""What the runner takes for granted: nothing that handles a payload asks which command it belongs to."""

from __future__ import annotations

from temporalio.converter import WithSerializationContext

from hatchway.converter import data_converter


def test_neither_codec_nor_external_storage_takes_a_context() -> None:
    """The parts that the SDK hands a payload's context to. A converter works inside the workflow, and has it there."""
    assert not isinstance(data_converter.payload_codec, WithSerializationContext)
    assert data_converter.external_storage is None
