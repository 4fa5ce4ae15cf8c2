"""From files to a `Config`: everything that is wrong at once, each with its file, line and path."""

from __future__ import annotations

from collections.abc import Iterator, Set
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from hatchway.config.backend_checks import NOT_BUILT_TYPES
from hatchway.config.capacity_checks import Surroundings, check_capacity, check_pools, check_windows
from hatchway.config.checks import check_scaler, check_secrets, check_together
from hatchway.config.document import Document, Finding, Path_, Plain, read_document
from hatchway.config.partial import readable, readable_pools, readable_scaler, readable_secrets
from hatchway.config.problems import problems
from hatchway.config.schema import Backoff, Config, Defaults, Reaper, ResourceCap
from hatchway.errors import ConfigError

SCALERS_DIRECTORY = "scalers.d"


def load(path: Path | str) -> Config:
    """The configuration of the file `path` and of `scalers.d/*.yaml` beside it, in the order of their names.

    Raises ConfigError whose text has one line for each finding: `file:line:column: path: what is wrong`.
    """
    config, findings = examine(Path(path))
    if config is None:
        raise ConfigError("\n".join(str(finding) for finding in findings))
    return config


def examine(path: Path) -> tuple[Config | None, list[Finding]]:
    """The configuration, or None and everything that stands in its way, in the order of the files and their lines."""
    main = read_document(path)
    others = [_scalers_only(read_document(file)) for file in sorted(_beside(path))]
    merged = _Merged(main, others)
    findings = [finding for document in (main, *others) for finding in document.findings]
    findings += merged.misplaced
    if isinstance(main.data, dict):
        findings += [
            merged.locate(found, message) for found, message in _examine(merged.data) if not merged.unread(found)
        ]
    elif not main.findings:
        findings.append(main.finding((), "must be a mapping of keys to values, starting with `version: 1`"))
    if not findings:
        return Config.model_validate(merged.data, by_alias=True, by_name=False), []
    order = {document.file: index for index, document in enumerate((main, *others))}
    return None, sorted(findings, key=lambda found: (order[found.file], found.line, found.column))


def _beside(path: Path) -> Iterator[Path]:
    directory = path.parent / SCALERS_DIRECTORY
    if directory.is_dir():
        # Editors leave dot files; the glob's `*` matches them too.
        yield from (file for file in directory.glob("*.yaml") if not file.name.startswith("."))


def _scalers_only(document: Document) -> Document:
    if document.findings and document.data is None:
        return document
    if not isinstance(document.data, dict):
        document.findings.append(document.finding((), "must be a mapping with the one key `scalers`"))
        return document
    document.findings += [
        document.finding((key,), f"belongs into the main file: {SCALERS_DIRECTORY} only adds scalers")
        for key in document.data
        if key != "scalers"
    ]
    return document


class _Merged:
    """The files as one: the scalers of all in one list, and for each of them the way back to its own file."""

    def __init__(self, main: Document, others: list[Document]) -> None:
        self._main = main
        self._origins: list[tuple[Document, int]] = []
        self.misplaced: list[Finding] = []
        scalers: list[Plain] = []
        for document in (main, *others):
            of_file = document.data.get("scalers") if isinstance(document.data, dict) else None
            if isinstance(of_file, list):
                self._origins += [(document, index) for index in range(len(of_file))]
                scalers += of_file
            elif of_file is not None and document is not main:
                self.misplaced.append(document.finding(("scalers",), "must be a list"))
        self.data: dict[str, Any] = dict(main.data) if isinstance(main.data, dict) else {}
        if isinstance(self.data.get("scalers", []), list) or (self.data["scalers"] is None and scalers):
            self.data["scalers"] = scalers

    def locate(self, path: Path_, message: str) -> Finding:
        document, own = self._origin(path)
        return document.finding(own, message)

    def unread(self, path: Path_) -> bool:
        """Whether the file's own reading has found fault with the value there already, or with what holds it."""
        document, own = self._origin(path)
        return _within(own, document.unread)

    def _origin(self, path: Path_) -> tuple[Document, Path_]:
        match path:
            case ("scalers", int(index), *rest) if index < len(self._origins):
                document, own = self._origins[index]
                return document, ("scalers", own, *rest)
        return self._main, path


def _examine(data: dict[str, Any]) -> Iterator[tuple[Path_, str]]:
    """Everything that the schema and the checks find."""
    skipped = dict(_not_built(data))
    yield from skipped.values()
    reported: set[Path_] = set(skipped)
    try:
        Config.model_validate(data, by_alias=True, by_name=False)
    except ValidationError as e:
        of_schema = [found for found in problems(e, data) if found[0][:2] not in skipped]
        reported.update(path for path, _ in of_schema)
        yield from of_schema
    for path, message in _check(data):
        # What the schema cannot read is checked with a stand-in in its place, and is not spoken of twice.
        if not _within(path, reported):
            yield path, message


def _within(path: Path_, known: Set[Path_]) -> bool:
    """Whether `path`, or anything that holds it, is one of the `known`. A file may have thousands of faults."""
    return any(path[:end] in known for end in range(len(path) + 1))


def _check(data: dict[str, Any]) -> Iterator[tuple[Path_, str]]:
    secrets = readable_secrets(data.get("secrets", {}))
    if secrets is not None:
        yield from check_secrets(secrets)
    # A reference to a context that is there and cannot be read is not one to an unknown context.
    known = secrets if secrets is not None and _contexts(data) <= secrets.contexts.keys() else None
    raw = data.get("scalers")
    readable_scalers = [
        (index, scaler)
        for index, entry in enumerate(raw if isinstance(raw, list) else [])
        if (scaler := readable_scaler(entry, index)) is not None
    ]
    pools, named = readable_pools(data.get("machinePools"))
    yield from check_pools(pools)
    yield from check_windows(
        readable(Backoff, data.get("backoff", {})), readable(Reaper, data.get("reaper", {})), readable_scalers
    )
    surroundings = Surroundings(
        named, readable(Defaults, data.get("defaults", {})), readable(ResourceCap, data.get("globalResourceCap"))
    )
    for index, scaler in readable_scalers:
        for path, message in (*check_scaler(scaler, known), *check_capacity(scaler, surroundings)):
            yield ("scalers", index, *path), message
    yield from check_together(readable_scalers)


def _contexts(data: dict[str, Any]) -> set[str]:
    secrets = data.get("secrets")
    contexts = secrets.get("contexts") if isinstance(secrets, dict) else None
    return set(contexts) if isinstance(contexts, dict) else set()


def _not_built(data: dict[str, Any]) -> Iterator[tuple[Path_, tuple[Path_, str]]]:
    """Scalers of a type that is not there yet: one sentence each, since every key of theirs would be unknown too."""
    raw = data.get("scalers")
    for index, scaler in enumerate(raw if isinstance(raw, list) else []):
        kind = scaler.get("type") if isinstance(scaler, dict) else None
        if isinstance(kind, str) and kind in NOT_BUILT_TYPES:
            yield ("scalers", index), (("scalers", index, "type"), NOT_BUILT_TYPES[kind])
