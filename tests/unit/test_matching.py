"""Which label sets may serve a job, in which order, and what is said when none may."""

from __future__ import annotations

import itertools
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hatchway.config.schema import LabelSet, Scaler
from hatchway.labels import fold_all, gates, injected
from hatchway.matching import match, no_match_message, refusals

PLATFORM = "linux/amd64"


def scaler(name: str, *sets: list[str] | dict[str, Any], **fields: Any) -> Scaler:
    label_sets = [{"labels": labels} if isinstance(labels, list) else labels for labels in sets]
    return Scaler.model_validate(
        {"name": name, "type": "bare-metal", "maxAgents": 1, "labelSets": label_sets, **fields}
    )


def matched(
    scalers: list[Scaler], labels: list[str], exclude: list[str] | None = None, role: str | None = None
) -> list[tuple[str, int]]:
    found = match(labels, exclude or [], role, scalers, default_platform=PLATFORM, agent_id="scaler-me")
    return [(candidate.scaler.name, candidate.label_set_index) for candidate in found]


def refused(
    scalers: list[Scaler], labels: list[str], exclude: list[str] | None = None, role: str | None = None
) -> dict[str, str]:
    return refusals(labels, exclude or [], role, scalers, default_platform=PLATFORM, agent_id="scaler-me")


@pytest.mark.parametrize(
    ("labels", "matches"),
    [
        (["linux"], True),
        (["LINUX", "Gpu"], True),
        ([], True),
        (["linux", "linux"], True),
        (["linux", "arm"], False),
        (["kici:os:linux"], True),
        (["KICI:OS:Linux", "linux"], True),
        (["kici:os:windows"], False),
        (["kici:arch:amd64"], True),
        (["kici:arch:arm64"], False),
        (["kici:scaler:a"], True),
        (["kici:scaler:b"], False),
        (["kici:agent:scaler-me"], True),
        (["kici:agent:scaler-other"], False),
        (["kici:role:build"], True),
        (["kici:role:deploy"], False),
    ],
)
def test_a_job_matches_when_its_labels_are_a_subset_of_the_sets_and_the_injected(
    labels: list[str], matches: bool
) -> None:
    assert matched([scaler("a", ["linux", "gpu"], roles=["build"])], labels) == ([("a", 0)] if matches else [])


@pytest.mark.parametrize(("role", "matches"), [(None, True), ("build", True), ("BUILD", True), ("deploy", False)])
def test_a_role_is_served_by_scalers_that_have_it(role: str | None, matches: bool) -> None:
    assert bool(matched([scaler("a", ["linux"], roles=["build"])], ["linux"], role=role)) is matches


@pytest.mark.parametrize(
    ("fields", "labels", "matches"),
    [
        ({"mandatoryLabels": ["gpu"]}, ["linux"], False),
        ({"mandatoryLabels": ["gpu"]}, ["linux", "GPU"], True),
        ({"mandatoryLabels": ["gpu"]}, [], False),
        ({"platform": "windows/amd64"}, ["linux"], False),
        ({"platform": "windows/amd64"}, [], False),
        ({"platform": "windows/amd64"}, ["kici:os:windows"], True),
        ({"platform": "linux/arm64"}, ["linux"], True),
    ],
)
def test_a_gated_set_wants_its_gates_in_the_jobs_labels(
    fields: dict[str, Any], labels: list[str], matches: bool
) -> None:
    assert bool(matched([scaler("a", ["linux", "gpu"], **fields)], labels)) is matches


@pytest.mark.parametrize(
    ("set_excludes", "labels", "excludes", "role", "matches"),
    [
        ([], ["linux"], ["gpu"], None, False),
        ([], [], ["GPU"], None, False),
        ([], ["linux"], ["arm"], None, True),
        ([], ["linux"], ["kici:os:linux"], None, False),
        ([], ["linux"], ["kici:scaler:a"], None, False),
        ([], ["linux"], ["kici:scaler:b"], None, True),
        (["kici:role:build"], ["linux"], [], None, True),
        (["kici:role:build"], ["linux"], [], "build", False),
        (["Linux"], ["linux"], [], None, False),
        (["linux"], ["gpu"], [], None, True),
    ],
)
def test_an_excluded_label_on_either_side_keeps_them_apart(
    set_excludes: list[str], labels: list[str], excludes: list[str], role: str | None, matches: bool
) -> None:
    only = scaler("a", {"labels": ["linux", "gpu"], "excludeLabels": set_excludes}, roles=["build"])

    assert bool(matched([only], labels, excludes, role)) is matches


@pytest.mark.scenario("S46")
def test_every_set_that_fits_is_a_candidate_the_smallest_first_then_in_the_files_order() -> None:
    scalers = [
        scaler("big", ["linux", "gpu", "large"], ["linux", "gpu"]),
        scaler("small", ["linux"]),
        scaler("other", ["windows"]),
        scaler("second", ["linux", "cpu"], mandatoryLabels=["linux"]),
    ]

    assert matched(scalers, ["linux"]) == [("small", 0), ("big", 1), ("second", 0), ("big", 0)]


def test_the_size_of_a_set_counts_its_declared_labels_once() -> None:
    repeated = scaler("repeated", ["linux", "Linux", "LINUX"])
    injecting = scaler("injecting", ["linux", "x"], roles=["a", "b", "c"])

    assert matched([injecting, repeated], ["linux"]) == [("repeated", 0), ("injecting", 0)]


@pytest.mark.parametrize(
    ("labels", "exclude", "role", "words"),
    [
        (["linux"], [], None, "the job lacks gate label gpu"),
        (["linux", "gpu", "arm"], [], None, "has no label arm"),
        (["gpu"], ["linux"], None, "the job excludes linux"),
        (["gpu"], [], "deploy", "has no label kici:role:deploy"),
        (["gpu", "quick"], [], None, "takes no job with quick"),
    ],
)
def test_a_refusal_says_what_stood_in_the_way(
    labels: list[str], exclude: list[str], role: str | None, words: str
) -> None:
    only = scaler("a", {"labels": ["linux", "gpu", "quick"], "excludeLabels": ["quick"]}, mandatoryLabels=["gpu"])

    assert refused([only], labels, exclude, role) == {"a": words}


def test_of_several_sets_the_closest_one_is_spoken_of() -> None:
    several = scaler("a", ["windows", "x"], ["linux", "gpu"])

    assert refused([several], ["linux", "arm"]) == {"a": "has no label arm"}


def test_the_message_names_each_scaler_and_its_reason() -> None:
    scalers = [scaler("a", ["linux", "gpu"], mandatoryLabels=["gpu"]), scaler("b", ["arm"])]

    message = no_match_message(refused(scalers, ["linux"]))

    assert message == "no scaler matches: a: the job lacks gate label gpu; b: has no label linux"
    assert no_match_message({}) == "no scaler is configured"


def test_what_workflows_may_import_brings_no_library_that_does_io() -> None:
    pure = "hatchway.matching, hatchway.labels, hatchway.resources, hatchway.registry.reference, hatchway.agent_env"
    forbidden = {"temporalio", "psycopg", "docker", "boto3", "ruamel", "httpx", "fastapi", "structlog", "asyncio"}
    code = f"import sys, {pure}; print(*{{name.partition('.')[0] for name in sys.modules}})"

    imported = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()

    assert "pydantic" in imported
    assert not forbidden & set(imported)


@pytest.mark.parametrize(
    ("fields", "labels", "host", "gated"),
    [
        ({"platform": "windows/amd64"}, ["linux"], PLATFORM, {"kici:os:windows"}),  # declared
        ({}, ["linux"], "windows/amd64", {"kici:os:windows"}),  # the host's own
        ({"platform": "linux/amd64"}, ["linux"], "windows/amd64", set()),  # what is declared counts before the host's
        ({}, ["Windows", "x"], PLATFORM, {"windows"}),  # the plain label of old
        ({"platform": "windows/amd64"}, ["windows", "x"], PLATFORM, {"windows"}),  # one word for it is enough
        ({}, ["macos", "darwin"], PLATFORM, {"macos", "darwin"}),
        ({"platform": "Linux/arm64"}, ["linux"], PLATFORM, set()),
        ({}, ["linux"], PLATFORM, set()),
    ],
)
def test_a_platform_other_than_linux_is_a_gate_however_it_is_known(
    fields: dict[str, Any], labels: list[str], host: str, gated: set[str]
) -> None:
    only = scaler("a", labels, **fields)

    assert gates(only, only.label_sets[0], host) == gated
    assert bool(match([], [], None, [only], default_platform=host)) is not bool(gated)
    assert match(sorted(gated), [], None, [only], default_platform=host)


WORDS = ["linux", "gpu", "arm", "large", "kici:os:linux", "kici:role:build"]
labels_of_jobs = st.lists(st.sampled_from(WORDS), max_size=4)
sets = st.builds(
    lambda labels, excludes: {"labels": labels, "excludeLabels": excludes},
    st.lists(st.sampled_from(WORDS[:4]), min_size=1, max_size=4),
    st.lists(st.sampled_from(WORDS), max_size=1),
)
scalers_of_files = st.lists(
    st.builds(
        lambda label_sets, gate, roles: scaler("s", *label_sets, mandatoryLabels=gate, roles=roles),
        st.lists(sets, min_size=1, max_size=3),
        st.lists(st.sampled_from(WORDS[:4]), max_size=1),
        st.lists(st.just("build"), max_size=1),
    ),
    min_size=1,
    max_size=4,
).map(lambda scalers: [each.model_copy(update={"name": f"s{n}"}) for n, each in enumerate(scalers)])
roles = st.sampled_from([None, "build"])


@given(scalers_of_files, labels_of_jobs, labels_of_jobs, roles, st.randoms(use_true_random=False))
def test_neither_case_nor_order_nor_repetition_of_labels_changes_the_answer(
    scalers: list[Scaler], labels: list[str], excludes: list[str], role: str | None, random: Any
) -> None:
    shuffled = [random.choice([label, label.upper(), f" {label} "]) for label in labels + labels]
    random.shuffle(shuffled)

    again = matched(scalers, shuffled, [label.title() for label in excludes], role)

    assert again == matched(scalers, labels, excludes, role)


@given(scalers_of_files, labels_of_jobs, labels_of_jobs, roles)
def test_asking_for_more_or_excluding_more_never_adds_an_ungated_candidate(
    scalers: list[Scaler], labels: list[str], more: list[str], role: str | None
) -> None:
    ungated = [each.model_copy(update={"mandatory_labels": []}) for each in scalers]
    before = matched(ungated, labels, [], role)

    assert set(matched(ungated, labels + more, [], role)) <= set(before)
    assert set(matched(ungated, labels, more, role)) <= set(before)


@given(scalers_of_files, labels_of_jobs, labels_of_jobs, roles)
def test_a_job_that_asks_for_less_loses_only_the_sets_that_it_no_longer_has_a_gate_of(
    scalers: list[Scaler], labels: list[str], excludes: list[str], role: str | None
) -> None:
    sets_of = {(of.name, n): (of, label_set) for of in scalers for n, label_set in enumerate(of.label_sets)}
    before = set(matched(scalers, labels, excludes, role))

    for gone in fold_all(labels):
        after = set(matched(scalers, [label for label in labels if label != gone], excludes, role))
        lost = before - after
        assert all(gone in gates(*sets_of[place]) for place in lost)
        # What it gains are sets that did not have the label, or would take no job with it.
        for of, label_set in (sets_of[place] for place in after - before):
            refused_it = gone in fold_all(label_set.exclude_labels)
            assert refused_it or gone not in fold_all(label_set.labels) | injected(of, PLATFORM, "scaler-me")


@given(scalers_of_files, labels_of_jobs, labels_of_jobs, labels_of_jobs, roles)
def test_excluding_more_never_adds_a_candidate_gated_or_not(
    scalers: list[Scaler], labels: list[str], excludes: list[str], more: list[str], role: str | None
) -> None:
    before = matched(scalers, labels, excludes, role)

    assert set(matched(scalers, labels, excludes + more, role)) <= set(before)


@given(scalers_of_files, labels_of_jobs, labels_of_jobs, roles)
def test_the_answer_is_what_the_rules_say_of_each_set_alone(
    scalers: list[Scaler], labels: list[str], excludes: list[str], role: str | None
) -> None:
    asked = fold_all(labels) | ({f"kici:role:{role}"} if role else set())

    def fits(of: Scaler, label_set: LabelSet) -> bool:
        has = fold_all(label_set.labels) | injected(of, PLATFORM, "scaler-me")
        return (
            asked <= has
            and gates(of, label_set) <= asked
            and not has & fold_all(excludes)
            and not asked & fold_all(label_set.exclude_labels)
        )

    expected = {(of.name, n) for of in scalers for n, label_set in enumerate(of.label_sets) if fits(of, label_set)}

    assert set(matched(scalers, labels, excludes, role)) == expected


@given(scalers_of_files, labels_of_jobs, labels_of_jobs, roles)
def test_a_scaler_is_either_a_candidate_or_refused_with_a_reason(
    scalers: list[Scaler], labels: list[str], excludes: list[str], role: str | None
) -> None:
    candidates = {name for name, _ in matched(scalers, labels, excludes, role)}
    refused_ones = refused(scalers, labels, excludes, role)

    assert candidates | refused_ones.keys() == {each.name for each in scalers}
    assert not candidates & refused_ones.keys()
    assert all(refused_ones.values())


@given(scalers_of_files, labels_of_jobs)
def test_candidates_stand_in_order_of_size_then_place(scalers: list[Scaler], labels: list[str]) -> None:
    found = match(labels, [], None, scalers, default_platform=PLATFORM)
    places = {each.name: index for index, each in enumerate(scalers)}
    keys = [(len(fold_all(c.label_set.labels)), places[c.scaler.name], c.label_set_index) for c in found]

    assert all(one < other for one, other in itertools.pairwise(keys))
