"""Deterministic orchestration. `ALL` is what a worker registers and what the replayer is given."""

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from workflows.provision import ProvisionWorkflow
    from workflows.sweep import SweepWorkflow
    from workflows.teardown import TeardownWorkflow

ALL = [ProvisionWorkflow, SweepWorkflow, TeardownWorkflow]
