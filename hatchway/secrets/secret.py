"""A secret's value in memory, which shows itself to nobody who does not ask for it by name."""

from __future__ import annotations

from typing import Any, NoReturn

REDACTED = "***"


class Secret:
    """Holds one secret value. `repr`, `str`, `format` and a logged exception show `***`; pickling is refused.

    It has no equality by value: comparing secrets is what `hmac.compare_digest` is for.
    """

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """The value itself, for the one place that uses it."""
        return self._value

    def __repr__(self) -> str:
        return f"Secret({REDACTED})"

    def __str__(self) -> str:
        return REDACTED

    def __format__(self, spec: str) -> str:
        return format(REDACTED, spec)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret is not pickled: it would leave this process")

    def __copy__(self) -> Secret:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Secret:
        return self
