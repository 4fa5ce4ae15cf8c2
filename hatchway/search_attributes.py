"""The typed search attributes of a provision. The one list that `hatchway setup` registers and workers probe."""

from collections.abc import Sequence

from temporalio.common import SearchAttributeKey

SCALER = SearchAttributeKey.for_keyword("HatchwayScaler")
STATE = SearchAttributeKey.for_keyword("HatchwayState")
AGENT_ID = SearchAttributeKey.for_keyword("HatchwayAgentId")
RUN_ID = SearchAttributeKey.for_keyword("HatchwayRunId")
REASON = SearchAttributeKey.for_keyword("HatchwayReason")

ALL: Sequence[SearchAttributeKey[str]] = [SCALER, STATE, AGENT_ID, RUN_ID, REASON]
