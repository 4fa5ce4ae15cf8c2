"""Worker versioning: which build of a worker Temporal hands a workflow to."""

from __future__ import annotations

from temporalio.common import VersioningBehavior, WorkerDeploymentVersion
from temporalio.worker import WorkerDeploymentConfig


def versioned(version: WorkerDeploymentVersion | None) -> WorkerDeploymentConfig | None:
    """How the Worker that has the workflows is versioned; None: not at all, and it takes whatever comes.

    The queues of hosts and scalers are never versioned: what is bound to a host goes to whichever worker is there, also
    before its build is the current one.

    Every workflow moves on to the current build (AUTO_UPGRADE); none is pinned to the one that it began on. A teardown
    lasts until its host comes back, for which nobody keeps an old build up. A sweep that was pinned to a build whose
    workers have left would never end, and its schedule, which lets no two overlap, would start no other one. And the
    server refuses a behaviour from workers without a version, so that none can stand on the workflows themselves.
    """
    if version is None:
        return None
    return WorkerDeploymentConfig(
        version=version,
        use_worker_versioning=True,
        default_versioning_behavior=VersioningBehavior.AUTO_UPGRADE,
    )
