"""When a worker says that it is ready, and why not."""

from __future__ import annotations

import pytest

from hatchway.gateway.health import NotReady
from hatchway.worker_health import Polling, facts

WELL = {"config_version": 3, "polled": ["hatchway"], "served": 1}


def test_a_worker_that_polls_what_its_configuration_asks_of_it_is_ready() -> None:
    assert facts(Polling(config_version=3, polled=["hatchway", "hatchway.spawn.laptop"], served=1)) == {
        "config_version": 3,
        "polling": ["hatchway", "hatchway.spawn.laptop"],
    }


def test_a_worker_that_reaches_one_backend_of_two_is_ready_and_names_the_other() -> None:
    said = facts(Polling(**{**WELL, "unreached": ["docker"]}))  # type: ignore[arg-type]

    assert said["unreached"] == ["docker"]


def test_a_worker_says_which_scaler_it_can_never_serve_and_why() -> None:
    said = facts(Polling(**{**WELL, "unreached": ["second"], "refused": {"second": "another engine"}}))  # type: ignore[arg-type]

    assert said["refused"] == {"second": "another engine"}


def test_a_worker_of_a_cluster_without_scalers_is_ready() -> None:
    assert facts(Polling(config_version=1, polled=["hatchway"])) == {"config_version": 1, "polling": ["hatchway"]}


@pytest.mark.parametrize(
    ("polling", "words"),
    [
        ({"trouble": "it was told to stop"}, "told to stop"),
        ({"config_version": None}, "configuration has not been read"),
        ({"missing": ["hatchway.spawn.laptop"]}, r"nothing polls hatchway\.spawn\.laptop here"),
        ({"unreached": ["docker", "podman"], "served": 0}, "none of its backends has been reached.*docker, podman"),
    ],
)
def test_a_worker_that_cannot_do_its_work_says_what_is_missing(polling: dict[str, object], words: str) -> None:
    with pytest.raises(NotReady, match=words):
        facts(Polling(**{**WELL, **polling}))  # type: ignore[arg-type]
