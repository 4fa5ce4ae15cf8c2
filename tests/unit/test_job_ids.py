"""Job and run ids go into user data and command lines as they are: none may be taken for an option or a directory."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from hatchway.model import BindRequest, ProvisionRequest

IDS = ["-h", "--debug", "-", ".", "..", "..."]


@pytest.mark.parametrize("field", ["job_id", "run_id"])
@pytest.mark.parametrize("given", IDS)
def test_an_id_that_reads_as_an_option_or_a_directory_is_refused(given: str, field: str) -> None:
    with pytest.raises(ValidationError, match="must not begin with a dash, nor be dots only") as asked:
        ProvisionRequest.model_validate({"labels": ["linux"], field: given})
    with pytest.raises(ValidationError, match="must not begin with a dash, nor be dots only"):
        BindRequest.model_validate({"agent_id": "scaler-1", "job_id": "job", field: given})

    assert f"'{given}'" not in str(asked.value)


@pytest.mark.parametrize("given", ["a", "1-2", ".hidden", "..a", "_", "repo:42@main", "a" * 200])
def test_other_ids_are_taken(given: str) -> None:
    assert ProvisionRequest(labels=["linux"], job_id=given, run_id=given).job_id == given
