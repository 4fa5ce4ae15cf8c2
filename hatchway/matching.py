"""Which label sets may serve a job, and in which order they are tried. Pure: no I/O, the same answer every time.

A set matches when
- the job's labels are a subset of the set's labels and the injected ones,
- every gate label of the set is among the job's labels,
- none of the set's `excludeLabels` is among the job's labels, and none of the job's excluded labels is among the set's.

A role is a label (`kici:role:<role>`). No labels at all match any set without gates. The smallest declared set comes
first, because the most special machines should stay free for the jobs that need them; then the order of the file.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hatchway.config.schema import LabelSet, Scaler
from hatchway.labels import fold, fold_all, gates, injected


@dataclass(frozen=True)
class Candidate:
    """A label set that may serve the job. `label_set_index` is its place in the scaler's `labelSets`."""

    scaler: Scaler
    label_set_index: int
    label_set: LabelSet


@dataclass(frozen=True)
class Wanted:
    """What a job asks for, folded. `labels` holds its role as a label."""

    labels: frozenset[str]
    excluded: frozenset[str]

    @classmethod
    def of(cls, labels: Iterable[str], exclude_labels: Iterable[str] = (), role: str | None = None) -> Wanted:
        asked = fold_all(labels)
        return cls(
            labels=asked | {f"kici:role:{fold(role)}"} if role is not None else asked,
            excluded=fold_all(exclude_labels),
        )


def match(
    labels: Iterable[str],
    exclude_labels: Iterable[str],
    role: str | None,
    scalers: Sequence[Scaler],
    *,
    default_platform: str,
    agent_id: str | None = None,
) -> list[Candidate]:
    """Every label set that may serve the job, best first. Empty when none may; `refusals` says why.

    `default_platform` (`linux/amd64`) stands in for a scaler without `platform`; see `hatchway.labels.platform_of`.
    """
    wanted = Wanted.of(labels, exclude_labels, role)
    found = [
        Candidate(scaler, index, label_set)
        for scaler in scalers
        for index, label_set in enumerate(scaler.label_sets)
        if not _objections(wanted, scaler, label_set, default_platform, agent_id)
    ]
    # sorted() is stable, so sets of one size stay in the order of the file.
    return sorted(found, key=lambda candidate: len(fold_all(candidate.label_set.labels)))


def refusals(
    labels: Iterable[str],
    exclude_labels: Iterable[str],
    role: str | None,
    scalers: Sequence[Scaler],
    *,
    default_platform: str,
    agent_id: str | None = None,
) -> dict[str, str]:
    """Why each scaler that cannot serve the job cannot, by scaler name. Of several sets the one that came closest."""
    wanted = Wanted.of(labels, exclude_labels, role)
    refused: dict[str, str] = {}
    for scaler in scalers:
        per_set = [
            _objections(wanted, scaler, label_set, default_platform, agent_id) for label_set in scaler.label_sets
        ]
        closest = min(per_set, key=len)
        if closest:
            refused[scaler.name] = "; ".join(closest)
    return refused


def no_match_message(refused: dict[str, str]) -> str:
    """One sentence for NoMatchingScaler: what stood in the way, scaler by scaler."""
    if not refused:
        return "no scaler is configured"
    return "no scaler matches: " + "; ".join(f"{name}: {why}" for name, why in refused.items())


def _objections(
    wanted: Wanted, scaler: Scaler, label_set: LabelSet, default_platform: str, agent_id: str | None
) -> list[str]:
    """What stands between the job and this set: one entry for each label, sorted; empty means that it matches."""
    has = fold_all(label_set.labels) | injected(scaler, default_platform, agent_id)
    refused_here = fold_all(label_set.exclude_labels)
    return [
        *(f"has no label {label}" for label in sorted(wanted.labels - has)),
        *(
            f"the job lacks gate label {label}"
            for label in sorted(gates(scaler, label_set, default_platform) - wanted.labels)
        ),
        *(f"the job excludes {label}" for label in sorted(wanted.excluded & has)),
        *(f"takes no job with {label}" for label in sorted(refused_here & wanted.labels)),
    ]
