"""What the runner takes for granted, and what the sandbox behind it still refuses."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
from temporalio import workflow
from temporalio.converter import WithSerializationContext
from temporalio.worker.workflow_sandbox import RestrictedWorkflowAccessError
from temporalio.worker.workflow_sandbox._importer import Importer
from temporalio.worker.workflow_sandbox._restrictions import RestrictionContext

import workflows
from hatchway.converter import data_converter
from hatchway.runner import RESTRICTIONS, ContextFreeRunner
from workflows.provision import ProvisionWorkflow

MODULES = sorted((Path(__file__).parents[3] / "workflows").glob("*.py"))
CHANGEABLE = {"list", "dict", "set", "deque", "defaultdict", "Counter", "count", "iter"}


def test_neither_codec_nor_external_storage_takes_a_context() -> None:
    """The parts that the SDK hands a payload's context to. A converter works inside the workflow, and has it there."""
    assert not isinstance(data_converter.payload_codec, WithSerializationContext)
    assert data_converter.external_storage is None


@pytest.mark.parametrize("registered", workflows.ALL, ids=lambda registered: registered.__name__)
async def test_a_run_does_not_read_its_class_for_handlers_again(
    monkeypatch: pytest.MonkeyPatch, registered: type[Any]
) -> None:
    read: list[type[Any]] = []
    definition = workflow._Definition
    monkeypatch.setattr(definition, "_apply_to_class", staticmethod(lambda cls, **_: read.append(cls)))

    ContextFreeRunner().prepare_workflow(definition.must_from_class(registered))

    assert read == []


def _in_a_run(call: str) -> Any:
    """Evaluate it as a workflow's code is run."""
    importer = Importer(RESTRICTIONS, RestrictionContext(), workflow_module_name=ProvisionWorkflow.__module__)
    with importer.applied():
        importer.restriction_context.is_runtime = True
        importer.restriction_context.in_activation = True
        try:
            return eval(call, {})  # noqa: S307 - the texts below
        finally:
            importer.restriction_context.is_runtime = importer.restriction_context.in_activation = False


@pytest.mark.parametrize(
    "call", ["open('/dev/null')", "input()", "__import__('random').random()", "__import__('time').time()"]
)
def test_a_run_is_kept_from_what_differs_on_replay(call: str) -> None:
    with pytest.raises(RestrictedWorkflowAccessError):
        _in_a_run(call)


def test_a_run_may_do_what_is_the_same_on_replay() -> None:
    """The check above can pass for no other reason than that everything fails."""
    assert _in_a_run("__import__('math').floor(1.5)") == 1


def shared(source: str) -> list[str]:
    """What runs would share and could change: names bound anew, and collections that are there to be filled."""
    tree = ast.parse(source)
    found = [f"{node.lineno}: global" for node in ast.walk(tree) if isinstance(node, ast.Global)]
    bodies = [tree.body, *(node.body for node in ast.walk(tree) if isinstance(node, ast.ClassDef))]
    for statement in (statement for body in bodies for statement in body):
        match statement:
            case ast.Assign(value=value) | ast.AnnAssign(value=ast.expr() as value):
                match value:
                    case ast.List(elts=[]) | ast.Dict(keys=[]):
                        found.append(f"{statement.lineno}: {ast.unparse(value)}")
                    case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if name in CHANGEABLE:
                        found.append(f"{statement.lineno}: {ast.unparse(value)}")
    return found


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.name)
def test_runs_share_nothing_that_changes(module: Path) -> None:
    assert shared(module.read_text()) == []


@pytest.mark.parametrize(
    "source", ["seen = []", "seen: dict[str, int] = {}", "class A:\n    n = set()", "def f():\n    global n\n    n = 1"]
)
def test_what_runs_would_share_is_found(source: str) -> None:
    assert len(shared(source)) == 1
