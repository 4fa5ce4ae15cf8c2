"""CPU and memory as whole numbers, and whose word about them counts."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from hatchway.model import ProvisionRequest, ResourceRequest
from hatchway.quantities import (
    MAX_BYTES,
    MAX_CAP_BYTES,
    MAX_CAP_MCPU,
    MAX_MCPU,
    QuantityError,
    cap_bytes,
    cap_mcpu,
    parse_cpus,
    parse_memory,
    say_cpus,
    say_memory,
)
from hatchway.resources import Shape, shape

GIB = 2**30


@pytest.mark.parametrize(
    ("amount", "mcpu"),
    [
        (1, 1000), (0.5, 500), (2.0, 2000), (0.1, 100), (0.001, 1), (1.001, 1001), (0.3, 300), ("2", 2000),
        ("0.5", 500), ("500m", 500), ("1m", 1), ("1500m", 1500), ("0.250", 250), (10_000, 10_000_000),
        ("1000.0m", 1000),
    ],
)  # fmt: skip
def test_cpus_are_whole_thousandths(amount: float | str, mcpu: int) -> None:
    assert parse_cpus(amount) == mcpu


@pytest.mark.parametrize(
    ("amount", "size"),
    [
        (1, 1), (GIB, GIB), ("1073741824", GIB), ("1k", 1024), ("1Ki", 1024), ("512m", 512 * 2**20),
        ("512Mi", 512 * 2**20), ("2g", 2 * GIB), ("2Gi", 2 * GIB), ("1.5g", GIB * 3 // 2), ("0.5Ki", 512),
        (2**50, 2**50),
    ],
)  # fmt: skip
def test_memory_is_whole_bytes_in_units_of_1024(amount: int | str, size: int) -> None:
    assert parse_memory(amount) == size


NO_AMOUNT = ["", " ", "-1", -1, -0.5, "1e3", float("nan"), float("inf"), 1e300, "NaN", "one", "1,5", "0x10", "+1", True]


@pytest.mark.parametrize("amount", [*NO_AMOUNT, "500M", "1 m", "1mm", "½", "٣"])
def test_what_is_no_amount_of_cpus_is_refused_with_the_form(amount: float | str) -> None:
    with pytest.raises(QuantityError, match="500m"):
        parse_cpus(amount)


@pytest.mark.parametrize("amount", [*NO_AMOUNT, "4GB", "4G", "4M", "4K", "4gi", "4gib", "4 g", "4b", "4t", "4Ti"])
def test_what_is_no_amount_of_memory_is_refused_with_the_form(amount: float | str) -> None:
    with pytest.raises(QuantityError, match="512m"):
        parse_memory(amount)


@pytest.mark.parametrize(
    ("parse", "amount", "reason"),
    [
        (parse_cpus, 0, "zero"), (parse_cpus, "0m", "zero"), (parse_cpus, 0.0, "zero"),
        (parse_cpus, 0.0005, "finer"), (parse_cpus, "0.5m", "finer"), (parse_cpus, 1.0001, "finer"),
        (parse_cpus, 10_001, "more than 10000"), (parse_cpus, "10000001m", "more than 10000"),
        (parse_memory, 0, "zero"), (parse_memory, "0g", "zero"), (parse_memory, "0.3", "whole number"),
        (parse_memory, "0.3k", "whole number"), (parse_memory, 2**50 + 1, "1 PiB"), (parse_memory, "1048577Gi", "PiB"),
    ],
)  # fmt: skip
def test_an_amount_that_cannot_be_used_is_refused_with_the_reason(parse: Any, amount: Any, reason: str) -> None:
    with pytest.raises(QuantityError, match=reason):
        parse(amount)


@given(st.integers(min_value=1, max_value=10_000_000))
def test_every_number_of_thousandths_is_the_same_as_text_and_as_a_float(mcpu: int) -> None:
    assert parse_cpus(f"{mcpu}m") == parse_cpus(mcpu / 1000) == mcpu


@given(st.integers(min_value=1, max_value=MAX_MCPU))
def test_cpus_come_back_from_how_they_are_said(mcpu: int) -> None:
    assert parse_cpus(say_cpus(mcpu)) == mcpu


@given(st.one_of(st.integers(min_value=1, max_value=MAX_BYTES), st.integers(1, 2**20).map(lambda n: n * 2**20)))
def test_memory_comes_back_from_how_it_is_said(size: int) -> None:
    assert parse_memory(say_memory(size)) == size == parse_memory(size) == parse_memory(str(size))


UNITS = {"": 0, "k": 10, "Ki": 10, "m": 20, "Mi": 20, "g": 30, "Gi": 30}


@given(st.integers(min_value=1, max_value=4096), st.sampled_from(sorted(UNITS)))
def test_every_unit_is_a_power_of_1024_whichever_way_it_is_spelled(number: int, unit: str) -> None:
    assert parse_memory(f"{number}{unit}") == number << UNITS[unit]


def used(parse: Any, amount: Any) -> int | None:
    """The amount, or None where it is refused. Anything else that is raised is a bug."""
    try:
        return int(parse(amount))
    except QuantityError:
        return None


anything = st.one_of(
    st.text(max_size=12), st.integers(), st.floats(), st.booleans(),
    st.from_regex(r"[0-9]{1,3}(\.[0-9]{1,3})?(m|k|Ki|Gi|g)?", fullmatch=True),
)  # fmt: skip


@given(anything)
def test_whatever_is_written_is_an_amount_within_the_bounds_or_refused(amount: Any) -> None:
    for parse, most in (
        (parse_cpus, MAX_MCPU), (parse_memory, MAX_BYTES), (cap_mcpu, MAX_CAP_MCPU), (cap_bytes, MAX_CAP_BYTES),
    ):  # fmt: skip
        number = used(parse, amount)
        assert number is None or 0 < number <= most


@given(anything)
def test_a_cap_may_be_whatever_an_agent_may_have(amount: Any) -> None:
    for agents, caps in ((parse_cpus, cap_mcpu), (parse_memory, cap_bytes)):
        number = used(agents, amount)
        assert number is None or used(caps, amount) == number


@pytest.mark.parametrize(
    ("parse", "amount", "reason"),
    [
        (cap_mcpu, 0, "maxAgents: 0"), (cap_bytes, "0g", "maxAgents: 0"), (cap_mcpu, 10_000_001, "10,000,000 CPUs"),
        (cap_bytes, 2**60 + 1, "1 EiB"), (cap_bytes, "9" * 25, "1 EiB"), (cap_mcpu, "-4", "not an amount"),
        (cap_bytes, "4GB", "not an amount"), (cap_mcpu, float("nan"), "not an amount"),
        (cap_mcpu, float("inf"), "not an amount"), (cap_mcpu, True, "not an amount"),
    ],
)  # fmt: skip
def test_a_cap_that_cannot_be_used_is_refused_with_the_reason(parse: Any, amount: Any, reason: str) -> None:
    with pytest.raises(QuantityError, match=reason):
        parse(amount)


def test_a_cap_may_be_that_of_a_whole_fleet() -> None:
    assert (cap_mcpu(10_000_000), cap_bytes("1048576Gi")) == (MAX_CAP_MCPU, 2**50)


def of(**sides: Any) -> ResourceRequest:
    return ResourceRequest.model_validate(sides)


JOB = of(requests={"cpus": 1, "memory": "1g"}, limits={"cpus": 2, "memory": "2g"})


@pytest.mark.parametrize(
    ("job", "label_set", "defaults", "expected"),
    [
        (None, None, None, Shape(0, 0, None, None)),
        (JOB, None, None, Shape(1000, GIB, 2000, 2 * GIB)),
        # one side alone is both
        (of(limits={"cpus": 2}), None, None, Shape(2000, 0, 2000, None)),
        (of(requests={"cpus": 2}), None, None, Shape(2000, 0, 2000, None)),
        (of(limits={"memory": "1g"}), None, None, Shape(0, GIB, None, GIB)),
        (of(requests={"memory": "1g"}), None, None, Shape(0, GIB, None, GIB)),
        (of(cpus=2, memory="1g"), None, None, Shape(2000, GIB, 2000, GIB)),
        # the first that says anything about a kind decides both of its numbers
        (None, JOB, of(cpus=8), Shape(1000, GIB, 2000, 2 * GIB)),
        (None, None, JOB, Shape(1000, GIB, 2000, 2 * GIB)),
        (of(requests={"cpus": 4}), of(limits={"cpus": 2}), None, Shape(4000, 0, 4000, None)),
        (of(limits={"cpus": 1}), of(requests={"cpus": 2}), None, Shape(1000, 0, 1000, None)),
        # CPU and memory are decided apart
        (of(cpus=1), of(memory="1g"), of(cpus=8, memory="8g"), Shape(1000, GIB, 1000, GIB)),
        (of(requests={}), JOB, None, Shape(1000, GIB, 2000, 2 * GIB)),
        (of(), JOB, None, Shape(1000, GIB, 2000, 2 * GIB)),
    ],
)
def test_the_job_comes_before_the_label_set_before_the_defaults(
    job: ResourceRequest | None, label_set: ResourceRequest | None, defaults: ResourceRequest | None, expected: Shape
) -> None:
    assert shape(job, label_set, defaults) == expected


amounts = st.one_of(st.none(), st.integers(min_value=1, max_value=64))


@st.composite
def levels(draw: st.DrawFn) -> ResourceRequest | None:
    if draw(st.booleans()):
        return None
    sides: dict[str, dict[str, int | None]] = {"requests": {}, "limits": {}}
    for kind in ("cpus", "memory"):
        request, limit = draw(amounts), draw(amounts)
        if request is not None and limit is not None and request > limit:
            request, limit = limit, request
        sides["requests"][kind], sides["limits"][kind] = request, limit
    return ResourceRequest.model_validate(sides)


@given(levels(), levels(), levels())
def test_what_is_reserved_is_never_more_than_the_limit(
    job: ResourceRequest | None, label_set: ResourceRequest | None, defaults: ResourceRequest | None
) -> None:
    of_agent = shape(job, label_set, defaults)

    assert of_agent.limit_mcpu is None or of_agent.mcpu <= of_agent.limit_mcpu
    assert of_agent.limit_mem_bytes is None or of_agent.mem_bytes <= of_agent.limit_mem_bytes
    assert (of_agent.limit_mcpu is None) == (of_agent.mcpu == 0)


@pytest.mark.parametrize(
    ("resources", "words"),
    [
        ({"requests": {"cpus": 3}, "limits": {"cpus": "2000m"}}, "requests.cpus is more than limits.cpus"),
        ({"requests": {"memory": "1Gi"}, "limits": {"memory": "1023m"}}, "requests.memory is more than limits.memory"),
        ({"limits": {"memory": "4GB"}}, "not an amount of memory"),
        ({"requests": {"cpus": "-1"}}, "not an amount of CPUs"),
        ({"requests": {"cpus": float("nan")}}, "not an amount of CPUs"),
        ({"cpus": 0}, "zero"),
        ({"cpus": 1, "limits": {"cpus": 1}}, "cpus"),
        ({"requests": {"gpus": 1}}, "gpus"),
    ],
)
def test_a_request_with_bad_amounts_is_refused_as_a_request(resources: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        ProvisionRequest.model_validate({"labels": [], "resources": resources})


def test_a_requests_amounts_survive_the_way_through_json() -> None:
    request = ProvisionRequest.model_validate({"labels": [], "resources": {"cpus": "500m", "memory": GIB}})

    again = ProvisionRequest.model_validate_json(request.model_dump_json())

    assert shape(again.resources, None, None) == Shape(500, GIB, 500, GIB)
