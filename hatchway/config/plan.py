"""An apply in two steps: see what it would change, and do it if the cluster is still as it was then."""

from __future__ import annotations

from dataclasses import dataclass, field

from hatchway.config.checks import check_config
from hatchway.config.current import apply
from hatchway.config.difference import Difference, difference
from hatchway.config.document import spell
from hatchway.config.schema import Config
from hatchway.config.versions import capacities, from_stored, to_stored
from hatchway.errors import ConfigError, HatchwayError
from hatchway.store.config_versions import (
    Applied,
    ConfigVersion,
    ConfigVersionConflict,
    ConfigVersions,
    ScalerTypeInUse,
)


class NoSuchVersion(HatchwayError):
    """No configuration was ever applied under this number."""


@dataclass(frozen=True)
class Plan:
    """What an apply of `config` would do to the cluster as it was found."""

    config: Config = field(repr=False)
    base: int
    """The version in force; 0 when the cluster has none."""
    same: bool
    """It says what the version in force says: there is nothing to apply."""
    difference: Difference
    unreadable: bool
    """This release cannot read the version in force, so `difference` is from nothing."""


async def plan(versions: ConfigVersions, config: Config, expected_version: int | None = None) -> Plan:
    """Look, and change nothing. Raises ConfigVersionConflict and ScalerTypeInUse, as the apply itself would."""
    current = await versions.current()
    base = current.version if current else 0
    if expected_version is not None and expected_version != base:
        raise ConfigVersionConflict(expected_version, base)
    same = current is not None and current.sha256 == to_stored(config).sha256
    if not same and (changes := await versions.type_changes(capacities(config))):
        raise ScalerTypeInUse(changes)
    before = _readable(current)
    return Plan(
        config=config,
        base=base,
        same=same,
        difference=difference(before, config, await versions.use()),
        unreadable=current is not None and before is None,
    )


async def carry_out(versions: ConfigVersions, plan: Plan, *, source: str, by: str, note: str | None) -> Applied:
    """Apply what was planned, in one transaction. One that changes nothing makes no version.

    Raises ConfigVersionConflict when another apply came in between, and ScalerTypeInUse.
    """
    if plan.same:
        return Applied(plan.base, [])
    return await apply(versions, plan.config, source=source, by=by, note=note, expected_version=plan.base)


async def earlier(versions: ConfigVersions, number: int) -> Config:
    """The configuration that version `number` was, by the rules of this release.

    Raises NoSuchVersion, and ConfigError when this release would refuse it.
    """
    found = await versions.get(number)
    if found is None:
        raise await no_such_version(versions, number)
    config = from_stored(found.content)
    if wrong := [f"{spell(path)}: {message}" for path, message in check_config(config)]:
        raise ConfigError(f"version {number} is refused by the rules of this release:\n" + "\n".join(wrong))
    return config


async def no_such_version(versions: ConfigVersions, number: int) -> NoSuchVersion:
    """The sentence for a version that was never applied."""
    newest = await versions.current()
    there = f"the newest is {newest.version}" if newest else "the cluster has none yet"
    return NoSuchVersion(f"there is no configuration version {number}; {there} (`hatchway config history`)")


def _readable(version: ConfigVersion | None) -> Config | None:
    try:
        return from_stored(version.content) if version else None
    except ConfigError:  # newer than this release; applying over it is how one gets back to what it can read
        return None
