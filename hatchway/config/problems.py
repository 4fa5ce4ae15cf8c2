"""What the schema finds wrong, in words: one sentence for each key, with a hint where one can be given.

No sentence quotes a value: an environment or a key in the wrong place can hold what must not reach a log.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from hatchway.config.document import Path_, spell
from hatchway.config.schema import Config

_NOT_BUILT = "is not supported yet; remove it, since ignoring it would not do what it says"
NOT_BUILT_KEYS = {
    "firecracker": _NOT_BUILT,
}
"""Keys that operators of KiCI know, and that this release refuses rather than ignores."""

_PATTERNS = {
    "name": "must be 1 to 100 letters, digits, dots, underscores and dashes, starting with a letter or digit",
    "secret": "must be a reference of the form <context>:<secret-name>",
}
_TYPES = {
    "string_type": "must be a text; put a number or a true/false in quotes",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "list_type": "must be a list",
    "dict_type": "must be a mapping of keys to values",
    "model_type": "must be a mapping of keys to values",
    "model_attributes_type": "must be a mapping of keys to values",
}


def problems(error: ValidationError, data: Any) -> list[tuple[Path_, str]]:
    """Each problem as the path in `data` where it stands, and a sentence. Several about one value become one."""
    found: dict[Path_, list[tuple[str, str]]] = {}
    for detail in error.errors(include_input=False, include_url=False):
        path = _real_path(detail, data)
        of_path = found.setdefault(path, [])
        problem = (detail["type"], _words(detail, path))
        if problem not in of_path:
            of_path.append(problem)
    above = {path[:end] for path in found for end in range(len(path))}
    for path, of_path in found.items():
        _drop_other_forms(of_path, value_at(data, path), deeper=path in above)
    return [(path, " or ".join(words for _, words in of_path)) for path, of_path in found.items() if of_path]


def _drop_other_forms(of_path: list[tuple[str, str]], value: Any, *, deeper: bool) -> None:
    """A value that may be a text or a mapping is complained about as both; keep what fits the form it was given in."""
    if isinstance(value, dict):
        if deeper:
            of_path[:] = [problem for problem in of_path if problem[0] != "string_type"]
    elif any(kind == "string_type" for kind, _ in of_path):
        of_path[:] = [problem for problem in of_path if problem[0] not in ("model_type", "model_attributes_type")]


def sentences(error: ValidationError) -> list[str]:
    """The same for content that stands in no file: `path: what is wrong`, one for each problem."""
    return [
        f"{spell(tuple(detail['loc']))}: {_words(detail, tuple(detail['loc']))}"
        for detail in error.errors(include_input=False, include_url=False)
    ]


def _words(detail: ErrorDetails, path: Path_) -> str:
    kind, context = detail["type"], detail.get("ctx", {})
    if kind == "extra_forbidden":
        return _unknown_key(path)
    if kind == "missing":
        return "is required"
    if kind == "string_too_short":
        return "must not be empty"
    if kind == "string_unicode":
        return "must be a text without half surrogate pairs"
    if kind == "value_error":
        return str(context.get("error", detail["msg"]))
    if kind == "string_pattern_mismatch":
        return _PATTERNS["secret" if str(path[-1]).lower().endswith("secret") else "name"]
    if kind in ("enum", "literal_error"):
        return f"must be {_alternatives(str(context.get('expected', '')))}"
    if kind in ("union_tag_not_found", "union_tag_invalid"):
        return f"needs a `type`: {_alternatives(str(context.get('expected_tags', 'file or env')))}"
    if kind == "too_short":
        return "must have at least one entry"
    return _TYPES.get(kind, re.sub(r"^(Input|Value|String|List|Dictionary) should", "must", detail["msg"]))


def _alternatives(expected: str) -> str:
    return expected.replace("'", "").replace('"', "") or "one of the known words"


def _unknown_key(path: Path_) -> str:
    key, known = str(path[-1]), _keys_at(path[:-1])
    if key in NOT_BUILT_KEYS:
        return NOT_BUILT_KEYS[key]
    close = difflib.get_close_matches(key.lower(), [name.lower() for name in known], n=1, cutoff=0.7)
    if close:
        meant = next(name for name in known if name.lower() == close[0])
        return f"unknown key; did you mean {meant}?"
    return f"unknown key; known here: {', '.join(sorted(known))}" if known else "unknown key"


def _real_path(detail: ErrorDetails, data: Any) -> Path_:
    """The path of a problem, without what pydantic adds to name a member of a union: those steps lead nowhere."""
    loc = list(detail["loc"])
    if loc[:2] == ["secrets", "contexts"] or loc[:1] == ["contexts"]:
        # The type of a context, which picks its model: `env` is also a key of it, so it cannot be told by looking.
        del loc[loc.index("contexts") + 2 : loc.index("contexts") + 3]
    path: list[int | str] = []
    node = data
    for index, step in enumerate(loc):
        child = _child(node, step)
        if child is not ABSENT:
            node = child
        elif index < len(loc) - 1 or detail["type"] != "missing":
            continue
        path.append(step)
    return tuple(path)


def value_at(data: Any, path: Path_) -> Any:
    """The value at `path`, or ABSENT."""
    for step in path:
        data = _child(data, step)
    return data


ABSENT = object()


def _child(node: Any, step: int | str) -> Any:
    if isinstance(node, dict):
        return node.get(step, ABSENT)
    if isinstance(node, list) and isinstance(step, int) and step < len(node):
        return node[step]
    return ABSENT


def _keys_at(path: Path_) -> list[str]:
    """The keys that the schema knows at `path`."""
    types: list[Any] = [Config]
    for step in path:
        types = [found for kind in types for found in _step(kind, step)]
    return sorted({name for kind in types for name in _key_names(kind)})


def _key_names(kind: Any) -> Iterator[str]:
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        for name, field in kind.model_fields.items():
            yield field.alias or name


def _step(kind: Any, step: int | str) -> Iterator[Any]:
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        for name, field in kind.model_fields.items():
            if step in (field.alias, name):
                yield from _members(field.annotation)
        return
    arguments = get_args(kind)
    if get_origin(kind) in (list, tuple) and arguments:
        yield from _members(arguments[0])
    elif get_origin(kind) is dict and len(arguments) == 2:
        yield from _members(arguments[1])


def _members(kind: Any) -> Iterator[Any]:
    if get_origin(kind) is Annotated:
        yield from _members(get_args(kind)[0])
    elif get_origin(kind) in (Union, UnionType):
        for member in get_args(kind):
            yield from _members(member)
    else:
        yield kind
