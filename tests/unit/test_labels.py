"""What a scaler's agents are called, and which labels let a job in."""

from __future__ import annotations

from typing import Any

import pytest

from hatchway.config.schema import Scaler
from hatchway.labels import agent_labels, fold, gates, injected, platform_of


def scaler(labels: list[str], **fields: Any) -> Scaler:
    return Scaler.model_validate(
        {"name": "Metal-1", "type": "bare-metal", "maxAgents": 1, "labelSets": [{"labels": labels}], **fields}
    )


@pytest.mark.parametrize("label", ["GPU", "gpu", " Gpu ", "gPU\n"])
def test_labels_know_no_case_and_no_white_space_around_them(label: str) -> None:
    assert fold(label) == "gpu"


@pytest.mark.parametrize(
    ("machine", "platform"),
    [("x86_64", "linux/amd64"), ("aarch64", "linux/arm64"), ("AMD64", "linux/amd64"), ("riscv64", "linux/riscv64")],
)
def test_a_scaler_without_a_platform_is_linux_on_the_machines_architecture(machine: str, platform: str) -> None:
    assert platform_of(machine) == platform


def test_injected_labels_say_what_the_scaler_is() -> None:
    of_scaler = injected(scaler(["x"], roles=["Build", "deploy"]), "linux/amd64", "scaler-1f")

    assert of_scaler == {
        "kici:os:linux", "kici:arch:amd64", "kici:scaler:metal-1", "kici:role:build", "kici:role:deploy",
        "kici:agent:scaler-1f",
    }  # fmt: skip


def test_a_named_platform_stands_for_the_workers_own() -> None:
    assert {"kici:os:windows", "kici:arch:arm64"} <= injected(scaler(["x"], platform="windows/arm64"), "linux/amd64")


def test_no_agent_label_is_injected_before_there_is_an_agent() -> None:
    assert not any(label.startswith("kici:agent:") for label in injected(scaler(["x"]), "linux/amd64"))


@pytest.mark.parametrize(
    ("labels", "fields", "expected"),
    [
        (["linux"], {}, set()),
        (["linux"], {"platform": "linux/arm64"}, set()),
        (["linux", "GPU"], {"mandatoryLabels": ["Gpu"]}, {"gpu"}),
        (["x"], {"platform": "windows/amd64"}, {"kici:os:windows"}),
        (["x"], {"platform": "macos/arm64", "mandatoryLabels": ["x"]}, {"x", "kici:os:macos"}),
        # a set's own plain platform label is asked for in place of the injected one
        (["Windows", "x"], {"platform": "windows/amd64"}, {"windows"}),
        (["macos", "x"], {}, {"macos"}),
    ],
)
def test_gates_are_the_mandatory_labels_and_any_platform_but_linux(
    labels: list[str], fields: dict[str, Any], expected: set[str]
) -> None:
    gated = scaler(labels, **fields)

    assert gates(gated, gated.label_sets[0]) == expected


def test_an_agent_is_told_all_its_labels_once_and_in_order() -> None:
    of = scaler(["Linux", "linux", "gpu"])

    assert agent_labels(of, of.label_sets[0], "linux/amd64", "scaler-1") == (
        "gpu", "kici:agent:scaler-1", "kici:arch:amd64", "kici:os:linux", "kici:scaler:metal-1", "linux",
    )  # fmt: skip
