"""Links into the Temporal UI."""

from __future__ import annotations

import pytest

from hatchway.links import page_url, ui_base


@pytest.mark.parametrize(
    ("address", "base"),
    [
        ("localhost:7233", "http://localhost:8233"),
        ("127.0.0.1:7233", "http://127.0.0.1:8233"),
        ("acme.a1b2c.tmprl.cloud:7233", "https://cloud.temporal.io"),
        ("us-east-1.aws.api.temporal.io:7233", "https://cloud.temporal.io"),
        ("127.0.0.1:7300", None),
        ("temporal.internal:7233", None),
    ],
)
def test_the_ui_of_a_server_is_named_only_where_it_is_known(
    monkeypatch: pytest.MonkeyPatch, address: str, base: str | None
) -> None:
    monkeypatch.delenv("HATCHWAY_UI_URL", raising=False)

    assert ui_base(address) == base


def test_an_operators_word_on_the_ui_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HATCHWAY_UI_URL", "https://temporal.acme.example/")

    assert ui_base("localhost:7233") == "https://temporal.acme.example/"


def test_a_workflow_id_with_slashes_is_one_part_of_the_path() -> None:
    url = page_url("http://ui/", "team a", "provision/job/7", "run")

    assert url == "http://ui/namespaces/team%20a/workflows/provision%2Fjob%2F7/run/history"
