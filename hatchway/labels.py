"""Labels, and what each scaler adds to its own. Pure: no I/O.

Labels know no case: they are folded to lower case wherever they are compared. Labels that start with `kici:` are
*injected*: a scaler has them by what it is, and no label set may declare one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hatchway.config.schema import LabelSet, Scaler

RESERVED_PREFIX = "kici:"

LEGACY_PLATFORM_LABELS = frozenset({"windows", "macos", "darwin"})
"""Plain labels that named a platform before `kici:os:` did. A set that declares one is for jobs that ask for it."""

_ARCHITECTURES: Mapping[str, str] = {"x86_64": "amd64", "aarch64": "arm64", "armv7l": "arm"}


def fold(label: str) -> str:
    """The one spelling of a label, in which labels are compared and stored."""
    return label.strip().lower()


def fold_all(labels: Iterable[str]) -> frozenset[str]:
    return frozenset(fold(label) for label in labels)


def platform_of(machine: str) -> str:
    """The default platform of a scaler that names none: `linux/<arch>`. `machine` is what `uname -m` says."""
    arch = machine.lower()
    return f"linux/{_ARCHITECTURES.get(arch, arch)}"


def injected(scaler: Scaler, default_platform: str, agent_id: str | None = None) -> frozenset[str]:
    """The `kici:` labels of this scaler's agents, and with `agent_id` of this one agent.

    `default_platform` (`linux/amd64`) is for a scaler without `platform`. It is an argument because it is a fact about
    the worker, and the same configuration must give the same answer to whoever asks twice.
    """
    system, _, arch = (scaler.platform or default_platform).partition("/")
    labels = [f"kici:os:{system}", f"kici:arch:{arch}", f"kici:scaler:{scaler.name}"]
    labels += [f"kici:role:{role}" for role in scaler.roles]
    if agent_id is not None:
        labels.append(f"kici:agent:{agent_id}")
    return fold_all(labels)


def gates(scaler: Scaler, label_set: LabelSet, default_platform: str = "linux/amd64") -> frozenset[str]:
    """The labels that a job must carry to be let in to this set.

    They are the scaler's mandatory labels, and for a platform other than Linux the label that names it: the set's own
    plain one where it declares one (`windows`), else `kici:os:<os>`. A job that says nothing about its platform means
    Linux, and must not land on a Windows machine because that one was free. `default_platform` is the host's, for a
    scaler that declares none.
    """
    mandatory = fold_all(scaler.mandatory_labels)
    legacy = fold_all(label_set.labels) & LEGACY_PLATFORM_LABELS
    if legacy:
        return mandatory | legacy
    system = fold(scaler.platform or default_platform).partition("/")[0]
    return mandatory if system == "linux" else mandatory | {f"kici:os:{system}"}


def agent_labels(scaler: Scaler, label_set: LabelSet, default_platform: str, agent_id: str) -> tuple[str, ...]:
    """Everything that an agent of this set is, sorted: what `KICI_LABELS` lists."""
    return tuple(sorted(fold_all(label_set.labels) | injected(scaler, default_platform, agent_id)))
