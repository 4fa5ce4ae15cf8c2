"""Amounts of CPU and memory as people write them, as whole numbers. Pure: the payload models import it.

CPU is counted in millicpu (1 CPU = 1000), memory in bytes. Nothing is rounded: an amount that is not a whole number of
either is refused, because what is reserved, limited and shown must be one number.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal

from hatchway.errors import HatchwayError

MAX_MCPU = 10_000_000
"""10,000 CPUs: beyond any machine, and far below what the database's bigint sums could overflow at."""
MAX_BYTES = 2**50
"""1 PiB, for the same reason."""

MAX_CAP_MCPU = 10_000_000_000
MAX_CAP_BYTES = 2**60
"""What a cap may say, over a whole fleet: a thousand times as much, and still a bigint."""

_CPUS = re.compile(r"(?P<number>[0-9]{1,30}(?:\.[0-9]{1,12})?)(?P<milli>m?)")
_MEMORY = re.compile(r"(?P<number>[0-9]{1,30}(?:\.[0-9]{1,12})?)(?P<unit>k|m|g|Ki|Mi|Gi)?")
_UNITS: Mapping[str | None, int] = {None: 1, "k": 2**10, "m": 2**20, "g": 2**30, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30}

_CPUS_FORM = "write CPUs as a number (0.5 is half a core) or in thousandths (500m)"
_MEMORY_FORM = "write memory as bytes or with one of k, m, g, Ki, Mi, Gi (1024-based), as in 512m or 2Gi"


class QuantityError(HatchwayError, ValueError):
    """An amount that cannot be used. A ValueError too, so that a model's validator may raise it."""


def parse_cpus(amount: float | str) -> int:
    """`0.5`, `"0.5"` or `"500m"` as millicpu: 500. Raises QuantityError."""
    mcpu = _mcpu(amount)
    if mcpu == 0:
        raise QuantityError("is zero: leave the amount out to reserve nothing")
    if mcpu > MAX_MCPU:
        raise QuantityError(f"is more than {MAX_MCPU // 1000} CPUs; for thousandths write an m, as in 500m")
    return mcpu


def parse_memory(amount: float | str) -> int:
    """`1073741824`, `"1024m"` or `"1Gi"` as bytes. Units are 1024-based. Raises QuantityError."""
    size = _bytes(amount)
    if size == 0:
        raise QuantityError("is zero: leave the amount out to reserve nothing")
    if size > MAX_BYTES:
        raise QuantityError("is more than 1 PiB")
    return size


def cap_mcpu(amount: float | str) -> int:
    """The same for a cap: millicpu, up to a whole fleet's. Raises QuantityError."""
    mcpu = _mcpu(amount)
    if mcpu == 0:
        raise QuantityError("is zero: say `maxAgents: 0` to take no work, or leave the cap out for none")
    if mcpu > MAX_CAP_MCPU:
        raise QuantityError(f"is more than {MAX_CAP_MCPU // 1000:,} CPUs; for thousandths write an m, as in 500m")
    return mcpu


def cap_bytes(amount: float | str) -> int:
    """The same for a cap: bytes, up to a whole fleet's. Raises QuantityError."""
    size = _bytes(amount)
    if size == 0:
        raise QuantityError("is zero: say `maxAgents: 0` to take no work, or leave the cap out for none")
    if size > MAX_CAP_BYTES:
        raise QuantityError("is more than 1 EiB")
    return size


def _mcpu(amount: float | str) -> int:
    match = _CPUS.fullmatch(_text(amount))
    if match is None:
        raise QuantityError(f"is not an amount of CPUs: {_CPUS_FORM}")
    mcpu = Decimal(match["number"]) * (1 if match["milli"] else 1000)
    if mcpu != mcpu.to_integral_value():
        raise QuantityError("is finer than a thousandth of a CPU, which is the unit that is reserved")
    return int(mcpu)


def _bytes(amount: float | str) -> int:
    match = _MEMORY.fullmatch(_text(amount))
    if match is None:
        raise QuantityError(f"is not an amount of memory: {_MEMORY_FORM}")
    size = Decimal(match["number"]) * _UNITS[match["unit"]]
    if size != size.to_integral_value():
        raise QuantityError("is not a whole number of bytes")
    return int(size)


def _text(amount: float | str) -> str:
    # A bool is an int to Python, and `true` in YAML is no amount.
    if isinstance(amount, bool):
        return ""
    if isinstance(amount, float):
        # repr is the shortest text that gives this float back, so 0.1 stays 0.1; NaN, inf and 1e300 match nothing.
        return repr(amount)
    return str(amount)


def say_cpus(mcpu: int) -> str:
    """Millicpu as people write CPUs: 1500 is `1.5`. `parse_cpus` gives the same back."""
    return f"{Decimal(mcpu) / 1000:f}"


def say_memory(size: int) -> str:
    """Bytes in the largest unit that divides them: 2**30 is `1Gi`. `parse_memory` gives the same back."""
    for unit in ("Gi", "Mi", "Ki"):
        if size and size % _UNITS[unit] == 0:
            return f"{size // _UNITS[unit]}{unit}"
    return str(size)
