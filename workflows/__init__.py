"""Deterministic orchestration. `ALL` is what a worker registers and what the replayer is given.

Loaded once, not anew for each run: nothing here has state of its own, and loading costs as much as an activity. What
the SDK's sandbox would refuse at run time, a test refuses by reading (`tests/unit/workflows/test_determinism.py`).
"""

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from workflows.provision import ProvisionWorkflow
    from workflows.sweep import SweepWorkflow
    from workflows.teardown import TeardownWorkflow
    from workflows.warm_pool import WarmPoolWorkflow

ALL = [ProvisionWorkflow, SweepWorkflow, TeardownWorkflow, WarmPoolWorkflow]
