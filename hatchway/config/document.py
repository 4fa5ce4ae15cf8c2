"""One YAML file as plain data, with the line and column of every value in it.

The file is composed to its nodes and no further: nothing in it is constructed, so no tag can name a Python type. It is
YAML 1.2, read the way a configuration is meant: `no` is a word, a date is the text that was written.
"""

from __future__ import annotations

import errno
import io
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.reader import ReaderError

from hatchway.printable import printable

MAX_FILE_BYTES = 1024 * 1024
MAX_NODES = 100_000
"""Aliases multiply what they name; 1 MiB of them could spell out more values than there is memory."""
MAX_DEPTH = 50
MAX_DIGITS = 100
"""Far more than any key takes. Python refuses to read thousands of digits, and cannot print what it read of them."""

Path_ = tuple[str | int, ...]
Plain = dict[str, "Plain"] | list["Plain"] | str | int | float | bool | None

_CORE = "tag:yaml.org,2002:"
_TEXT_TAGS = {f"{_CORE}str", f"{_CORE}timestamp", f"{_CORE}value"}


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong, and where. `line` and `column` count from 1; 0 is the file as a whole."""

    file: Path
    message: str
    path: Path_ = ()
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}:{self.column}" if self.line else str(self.file)
        return f"{place}: {spell(self.path)}: {self.message}" if self.path else f"{place}: {self.message}"


def spell(path: Path_) -> str:
    """A path as people write it: `scalers[0].labelSets[1].image`. Printable, although its keys are foreign text."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return printable(text)


@dataclass
class Document:
    """A file's content. `marks` has the line and column of every path in it (a mapping's entry is at its key)."""

    file: Path
    data: Plain = None
    marks: dict[Path_, tuple[int, int]] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    unread: set[Path_] = field(default_factory=set)
    """Where a value stood that was found fault with and not read: what stands there in `data` means nothing."""

    def finding(self, path: Path_, message: str, *, shown_as: Path_ | None = None) -> Finding:
        """A finding at `path`, or at the closest enclosing value that exists. `shown_as` is how the path is spelled."""
        known = next((path[:end] for end in range(len(path), -1, -1) if path[:end] in self.marks), ())
        line, column = self.marks.get(known, (0, 0))
        return Finding(self.file, message, path if shown_as is None else shown_as, line, column)


def read_document(file: Path) -> Document:
    """Read one file. What is wrong with it stands in `findings`; `data` is then as much as could be read."""
    document = Document(file)
    try:
        text = _read(file)
    except _Unreadable as e:
        document.findings.append(Finding(file, str(e), line=e.line, column=e.column))
        return document
    try:
        root = YAML(typ="safe", pure=True).compose(io.StringIO(text))
    except ReaderError as e:
        line, column = text.count("\n", 0, e.position) + 1, e.position - text.rfind("\n", 0, e.position)
        document.findings.append(Finding(file, "holds a control character", line=line, column=column))
    except MarkedYAMLError as e:
        document.findings.append(_syntax(file, e))
    except (YAMLError, RecursionError):
        document.findings.append(Finding(file, "is not YAML that can be read: it may be nested too deeply"))
    else:
        if root is None or root.tag == f"{_CORE}null":
            document.findings.append(Finding(file, "is empty: a configuration has at least `version: 1` and `scalers`"))
        else:
            _Plainer(document).read(root)
    return document


class _Unreadable(Exception):
    def __init__(self, message: str, line: int = 0, column: int = 0) -> None:
        super().__init__(message)
        self.line = line
        self.column = column


def _read(file: Path) -> str:
    try:
        # Not a fifo and not a device: a configuration is read whole, and a pipe given by mistake would hang the start.
        if file.is_dir():
            raise _Unreadable("is a directory, not a file")
        if file.exists() and not file.is_file():
            raise _Unreadable("is not a regular file")
        with file.open("rb") as stream:
            data = stream.read(MAX_FILE_BYTES + 1)
    except OSError as e:
        raise _Unreadable(_why(e)) from None
    if len(data) > MAX_FILE_BYTES:
        raise _Unreadable("is larger than 1 MiB, which no configuration is")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as e:
        line, column = data.count(b"\n", 0, e.start) + 1, e.start - data.rfind(b"\n", 0, e.start)
        raise _Unreadable("is not UTF-8 text; save the file as UTF-8", line, column) from None


def _why(error: OSError) -> str:
    if error.errno == errno.ENOENT:
        return "does not exist"
    if error.errno == errno.EACCES:
        return "cannot be read: permission denied"
    return f"cannot be read: {os.strerror(error.errno or 0)}"


def _syntax(file: Path, error: MarkedYAMLError) -> Finding:
    problem = str(error.problem or error.context or "is not YAML")
    # A scanner's problem quotes one character or an alias' name at most, never a value.
    mark = error.problem_mark or error.context_mark
    if "'\\t'" in problem:
        problem = "a tab cannot indent YAML; use spaces"
    elif "another document" in problem:
        problem = "a second document starts here (---); a file holds one"
    elif mark and error.context_mark and error.context_mark.line < mark.line:
        problem += f", inside what begins on line {error.context_mark.line + 1}"
    return Finding(file, problem, line=mark.line + 1 if mark else 0, column=mark.column + 1 if mark else 0)


class _Plainer:
    """Turns composed nodes into plain data, notes where each stood, and collects what a configuration may not hold."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._nodes = 0

    def read(self, root: Node) -> None:
        try:
            self._document.marks[()] = (1, 1)
            self._document.data = self._plain(root, (), ())
        except _TooMuch as e:
            self._document.data = None
            self._find(e.node, (), "is too deeply nested, or its aliases spell out too many values")

    def _plain(self, node: Node, path: Path_, inside: tuple[int, ...]) -> Plain:
        self._nodes += 1
        if self._nodes > MAX_NODES or len(inside) > MAX_DEPTH or id(node) in inside:
            raise _TooMuch(node)
        inside = (*inside, id(node))
        if isinstance(node, MappingNode):
            return self._mapping(node, path, inside)
        if isinstance(node, SequenceNode):
            return self._sequence(node, path, inside)
        return self._scalar(node, path)

    def _mapping(self, node: MappingNode, path: Path_, inside: tuple[int, ...]) -> Plain:
        if str(node.tag) != f"{_CORE}map":
            return self._foreign(node, path)
        data: dict[str, Plain] = {}
        for key, value in self._entries(node, path, inside):
            self._mark((*path, key.value), key)
            data[key.value] = self._plain(value, (*path, key.value), inside)
        return data

    def _entries(self, node: MappingNode, path: Path_, inside: tuple[int, ...]) -> Iterator[tuple[ScalarNode, Node]]:
        """The entries with merged ones (`<<: *base`) first, less those that the mapping itself overrides."""
        own: dict[str, tuple[ScalarNode, Node]] = {}
        merged: dict[str, tuple[ScalarNode, Node]] = {}
        for key, value in node.value:
            if _unstorable(str(key.value)):
                self._find(key, path, "a key holds a NUL or half a surrogate pair, which no database can store")
            elif str(key.tag) == f"{_CORE}merge":
                for base in value.value if isinstance(value, SequenceNode) else [value]:
                    if not isinstance(base, MappingNode):
                        self._find(key, path, "`<<` merges mappings only")
                        continue
                    self._nodes += 1
                    if self._nodes > MAX_NODES or len(inside) > MAX_DEPTH or id(base) in inside:
                        raise _TooMuch(base)
                    for entry in self._entries(base, path, (*inside, id(base))):
                        merged.setdefault(entry[0].value, entry)
            elif not isinstance(key, ScalarNode):
                self._find(key, path, "a key is a word, not a list or a mapping")
            elif key.value in own:
                first = own[key.value][0].start_mark.line + 1
                self._find(key, (*path, key.value), f"is given twice, first on line {first}")
            else:
                own[key.value] = (key, value)
        yield from (merged | own).values()

    def _sequence(self, node: SequenceNode, path: Path_, inside: tuple[int, ...]) -> Plain:
        if str(node.tag) != f"{_CORE}seq":
            return self._foreign(node, path)
        items: list[Plain] = []
        for index, item in enumerate(node.value):
            self._mark((*path, index), item)
            items.append(self._plain(item, (*path, index), inside))
        return items

    def _scalar(self, node: Node, path: Path_) -> Plain:
        tag, text = str(node.tag), str(node.value)
        if tag in _TEXT_TAGS:
            if _unstorable(text):
                self._refused(node, path, "holds a NUL or half a surrogate pair, which no database can store")
                return None
            return text
        if tag == f"{_CORE}null":
            return None
        if tag == f"{_CORE}bool":
            return text.lower() == "true"
        if tag == f"{_CORE}int":
            if len(text) > MAX_DIGITS:
                self._refused(node, path, f"is a number of more than {MAX_DIGITS} digits")
                return None
            return _integer(text)
        if tag == f"{_CORE}float":
            return float(re.sub(r"^([+-]?)\.(inf|nan)$", r"\1\2", text.lower()))
        return self._foreign(node, path)

    def _foreign(self, node: Node, path: Path_) -> Plain:
        self._refused(node, path, "has a YAML tag (!…), which a configuration does not use")
        return None

    def _refused(self, node: Node, path: Path_, message: str) -> None:
        """What stands at `path` is not read: nothing else is to be said of it."""
        self._find(node, path, message)
        self._document.unread.add(path)

    def _mark(self, path: Path_, node: Node) -> None:
        self._document.marks[path] = (node.start_mark.line + 1, node.start_mark.column + 1)

    def _find(self, node: Node, path: Path_, message: str) -> None:
        mark = node.start_mark
        self._document.findings.append(
            Finding(self._document.file, message, path, line=mark.line + 1, column=mark.column + 1)
        )


class _TooMuch(Exception):
    def __init__(self, node: Node) -> None:
        super().__init__()
        self.node = node


def _unstorable(text: str) -> bool:
    """Only an escape in quotes ("\\0", "\\ud800") gets such a character past YAML's own reader."""
    return any(c == "\0" or "\ud800" <= c <= "\udfff" for c in text)


def _integer(text: str) -> int:
    """YAML 1.2 core schema: decimal, 0o17, 0x1f; 010 is ten. Python's own base detection would refuse the last."""
    for prefix, base in (("0o", 8), ("0x", 16), ("0b", 2)):
        if text.lower().lstrip("+-").startswith(prefix):
            return int(text, base)
    return int(text)
