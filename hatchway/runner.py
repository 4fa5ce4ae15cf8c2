"""The sandbox that workflows run in, entered for their own code only, which it does not load anew.

By itself the sandbox executes a workflow's module anew for each run: to put its own restricted `datetime`, `random` and
the like in place of what the module imports, and to keep runs from sharing what it holds. All that our workflows import
was passed through anyway, so neither happened to more than one short module each; what it costs is mostly the reading
of the class for its handlers, a tenth of what a provision costs a worker. That no workflow module calls what differs on
replay, and that none holds anything that changes, is tested by reading them. At run time the sandbox still refuses the
builtins that do I/O, and restricts whatever is imported then.

For every payload, three times, the SDK asks the workflow's instance which command or activation it belongs to, so
that a codec or an external storage may depend on it. The sandbox's instance answers from the inside, and going in costs
more than all else that happens to the payload: a quarter of what a provision costs a worker. Ours do not depend on it
(a test says so), and an unknown context is what the SDK itself has for payloads of no command.
"""

from __future__ import annotations

from collections.abc import Sequence

import temporalio.bridge.proto.workflow_activation as activations
import temporalio.bridge.proto.workflow_completion as completions
import temporalio.workflow
from temporalio.converter import SerializationContext, StorageDriverStoreContext
from temporalio.worker import WorkflowInstance, WorkflowInstanceDetails, WorkflowRunner
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

RESTRICTIONS = SandboxRestrictions.default.with_passthrough_modules("workflows")


class ContextFreeRunner(WorkflowRunner):
    """Runs workflows in the SDK's sandbox. For data converters whose codec and external storage take no context."""

    def __init__(self) -> None:
        self._sandbox = SandboxedWorkflowRunner(restrictions=RESTRICTIONS)

    def prepare_workflow(self, defn: temporalio.workflow._Definition) -> None:
        self._sandbox.prepare_workflow(defn)

    def create_instance(self, det: WorkflowInstanceDetails) -> WorkflowInstance:
        return _Instance(self._sandbox.create_instance(det))

    def set_worker_level_failure_exception_types(self, types: Sequence[type[BaseException]]) -> None:
        self._sandbox.set_worker_level_failure_exception_types(types)


class _Instance(WorkflowInstance):
    def __init__(self, sandboxed: WorkflowInstance) -> None:
        self._sandboxed = sandboxed

    def activate(self, act: activations.WorkflowActivation) -> completions.WorkflowActivationCompletion:
        return self._sandboxed.activate(act)

    def get_serialization_context(self, command_info: object) -> SerializationContext | None:
        return None

    def get_external_store_context(self, command_info: object) -> StorageDriverStoreContext:
        return StorageDriverStoreContext(target=None)

    def get_info(self) -> temporalio.workflow.Info:
        return self._sandboxed.get_info()

    def get_thread_id(self) -> int | None:
        return self._sandboxed.get_thread_id()
