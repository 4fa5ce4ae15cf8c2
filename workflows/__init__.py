"""Deterministic orchestration. `ALL` is what a worker registers and what the replayer is given."""

from workflows.provision import ProvisionWorkflow
from workflows.teardown import TeardownWorkflow

ALL = [ProvisionWorkflow, TeardownWorkflow]
