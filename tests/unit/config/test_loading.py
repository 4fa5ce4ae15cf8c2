"""A configuration is loaded whole or not at all, and everything that is wrong is said at once, with its place."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hatchway.config.loading import load
from hatchway.config.schema import ScalerType
from hatchway.errors import ConfigError

Findings = Callable[[str], list[str]]

GOOD = """\
version: 1
scalers:
  - name: metal
    type: bare-metal
    maxAgents: 2
    labelSets:
      - labels: [linux]
"""


def test_a_good_file_is_a_configuration(file: Path) -> None:
    file.write_text(GOOD)

    config = load(file)

    assert [(scaler.name, scaler.type, scaler.max_agents) for scaler in config.scalers] == [
        ("metal", ScalerType.BARE_METAL, 2)
    ]


def test_everything_wrong_is_found_at_once_in_the_order_of_the_lines(findings: Findings) -> None:
    found = findings(
        """\
version: 2
globalMaxAgnts: 3
secrets:
  contexts:
    ci: {type: file, path: secrets}
scalers:
  - name: one
    type: container
    maxAgents: -1
    labelSets:
      - labels: [linux, "kici:os:linux"]
        image: Nginx
        env: {PORT: 8080, KICI_X: a}
  - name: two
    type: bare-metal
    maxAgents: 1
    host: tcp://x
    labelSets:
      - lables: [linux]
      - labels: [linux]
        image: x
  - name: One
    type: firecracker
    kernel: /vmlinux
"""
    )

    assert found == [
        "hatchway.yaml:1:1: version: must be 1",
        "hatchway.yaml:2:1: globalMaxAgnts: unknown key; did you mean globalMaxAgents?",
        "hatchway.yaml:5:22: secrets.contexts.ci.path: must be absolute: each worker runs in a directory of its own",
        "hatchway.yaml:9:5: scalers[0].maxAgents: must be greater than or equal to 0",
        "hatchway.yaml:11:25: scalers[0].labelSets[0].labels[1]: starts with kici:, which is reserved: agents get "
        "those labels by what they are",
        "hatchway.yaml:12:9: scalers[0].labelSets[0].image: the repository name must be lower case",
        "hatchway.yaml:13:15: scalers[0].labelSets[0].env.PORT: must be a text; put a number or a true/false in quotes",
        "hatchway.yaml:13:27: scalers[0].labelSets[0].env.KICI_X: is refused: names that start with KICI_ or "
        "HATCHWAY_ are reserved",
        "hatchway.yaml:17:5: scalers[1].host: belongs to a container scaler",
        "hatchway.yaml:19:9: scalers[1].labelSets[0].labels: is required",
        "hatchway.yaml:19:9: scalers[1].labelSets[0].lables: unknown key; did you mean labels?",
        "hatchway.yaml:21:9: scalers[1].labelSets[1].image: belongs to a container scaler; a bare-metal agent is a "
        "process of the host",
        "hatchway.yaml:23:5: scalers[2].type: microVMs are not built yet; use container or bare-metal",
    ]


def test_a_key_that_cannot_be_read_does_not_hide_what_the_checks_find_beside_it(findings: Findings) -> None:
    found = findings(GOOD + "    host: tcp://x\n    maxConcurrentSpawns: many\n    adoptionTimeoutSeconds: 400\n")

    assert found == [
        "hatchway.yaml:8:5: scalers[0].host: belongs to a container scaler",
        "hatchway.yaml:9:5: scalers[0].maxConcurrentSpawns: must be a whole number",
        "hatchway.yaml:10:5: scalers[0].adoptionTimeoutSeconds: claimTtlSeconds (300) is shorter than "
        "adoptionTimeoutSeconds (400): an agent that boots slowly would come with spent credentials while its slot is "
        "still held",
    ]


@pytest.mark.parametrize(
    ("broken", "found"),
    [
        ("{labels: 5, image: x}", ["labelSets[0].labels: must be a list"]),
        ("{labels: [linux, gpu], image: [x]}", ["labelSets[0].image: must be a text"]),
        ("{labels: [linux, gpu], image: x, env: {A: {secret: 'ci:x'}}}", []),
        ("{labels: [linux, gpu], image: x, env: {A: {secret: 'no:x'}}}", []),
    ],
)
def test_what_cannot_be_read_is_spoken_of_once_and_blamed_for_nothing_else(
    findings: Findings, broken: str, found: list[str]
) -> None:
    text = GOOD.replace("bare-metal", "container\n    networkIsolation: false\n    mandatoryLabels: [gpu]")
    secrets = "secrets: {contexts: {ci: {type: vault}}}\n"

    lines = findings(text.replace("labels: [linux]", broken) + secrets)

    assert [line.partition("scalers[0].")[2].partition(";")[0] for line in lines if "scalers[0]" in line] == found
    assert any("secrets.contexts.ci: needs a `type`" in line for line in lines)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("maxConcurrentSpawn: 3", "unknown key; did you mean maxConcurrentSpawns?"),
        ("MaxConcurrentSpawns: 3", "unknown key; did you mean maxConcurrentSpawns?"),
        ("max_concurrent_spawns: 3", "unknown key; did you mean maxConcurrentSpawns?"),
        ("firecracker: {}", "is not supported yet; remove it, since ignoring it would not do what it says"),
        ("useHostDockerConfig: true", "belongs to a container scaler"),
        ("provisioningTargets: []", "belongs to an event scaler"),
        ("hosts: build-1", "must be a list"),
        ("hosts: [build 1]", "must be 1 to 100 letters, digits, dots, underscores and dashes"),
        ('mandatoryLabels: ["linux\\u200b"]', "mandatoryLabels[0]: holds a character that cannot be seen"),
        ("stopGraceSeconds: 1.5", "must be a whole number"),
        ("stopGraceSeconds: 601", "must be less than or equal to 600"),
        ("orchestratorUrl: 8780", "must be a text; put a number or a true/false in quotes"),
        ("networkIsolation: perhaps", "must be true or false"),
    ],
)
def test_a_key_that_the_schema_refuses_is_told_how_it_is_meant(findings: Findings, line: str, message: str) -> None:
    found = findings(GOOD + f"    {line}\n")

    assert any(message in text and text.startswith("hatchway.yaml:8:") for text in found)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("bare-metal", "kubernetes", "scalers[0].type: must be container, bare-metal, event or ec2"),
        ("bare-metal", "ec2", "scalers[0].ec2: is required: say the `region`"),
        ("bare-metal", "event", "scalers[0].provisioningTargets: is required: it says where the events go"),
        ("bare-metal", "firecracker", "scalers[0].type: microVMs are not built yet"),
        ("name: metal", "name: -x", "scalers[0].name: must be 1 to 100 letters"),
        ("labels: [linux]", "labels: []", "scalers[0].labelSets[0].labels: must have at least one entry"),
        ("labels: [linux]", "labels: ['']", "scalers[0].labelSets[0].labels[0]: must not be empty"),
        ("labels: [linux]", f"labels: [{'x' * 201}]", "labels[0]: must have at most 200 characters"),
        ("version: 1", "version: '1'", "version: must be 1"),
        ("version: 1\n", "", "version: is required"),
    ],
)
def test_a_value_that_the_schema_refuses_is_told_what_it_may_be(
    findings: Findings, old: str, new: str, message: str
) -> None:
    assert any(message in text for text in findings(GOOD.replace(old, new)))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("version: 1\n", "scalers: must have at least one entry"),
        ("version: 1\nscalers: []\n", "scalers: must have at least one entry"),
        ("version: 1\nscalers: {a: 1}\n", "scalers: must be a list"),
        ("version: 1\nscalers: [5]\n", "scalers[0]: must be a mapping"),
        ("- version: 1\n", "must be a mapping of keys to values"),
        ("just words\n", "must be a mapping of keys to values"),
        ("version: 1\nversion: 1\n", "version: is given twice, first on line 1"),
        ("version: 1\nscalers: [\n", "hatchway.yaml:3:1"),
    ],
)
def test_a_file_of_another_shape_is_told_so(findings: Findings, text: str, message: str) -> None:
    assert any(message in line for line in findings(text))


@pytest.mark.scenario("S41")
def test_no_finding_quotes_a_value(findings: Findings) -> None:
    found = findings(
        GOOD.replace("labels: [linux]", "labels: {hunter2: 1}\n        image: 'u:hunter2@h/x'")
        + "    maxConcurrentSpawns: hunter2\n    orchestratorUrl: 'http://u:hunter2@h'\n    platform: hunter2\n"
        "    registryAuth: [{registry: 'u:hunter2@h', tokenSecret: hunter2}]\n    name: hunter2\n"
    )

    assert len(found) >= 5
    # a key that was meant as a value is the operator's own spelling, and is shown to be found again
    assert not any("hunter2" in text.replace("labels.hunter2", "") for text in found)


def test_scalers_d_adds_its_scalers_in_the_order_of_the_names(file: Path) -> None:
    file.write_text(GOOD)
    directory = file.parent / "scalers.d"
    directory.mkdir()
    for name in ("20-b", "10-a"):
        (directory / f"{name}.yaml").write_text(
            GOOD.removeprefix("version: 1\n").replace("metal\n", f"{name}\n", 1).replace("linux", name)
        )
    (directory / ".10-a.yaml.swp").write_text("not read")
    (directory / ".hidden.yaml").write_text("not: read")
    (directory / "README.md").write_text("not read")

    assert [scaler.name for scaler in load(file).scalers] == ["metal", "10-a", "20-b"]


def test_the_main_file_may_leave_all_scalers_to_scalers_d(file: Path) -> None:
    file.write_text("version: 1\nglobalMaxAgents: 5\n")
    (file.parent / "scalers.d").mkdir()
    (file.parent / "scalers.d" / "a.yaml").write_text(GOOD.removeprefix("version: 1\n"))

    assert [scaler.name for scaler in load(file).scalers] == ["metal"]


def test_a_finding_in_scalers_d_names_its_own_file_line_and_index(file: Path, findings: Findings) -> None:
    directory = file.parent / "scalers.d"
    directory.mkdir()
    (directory / "a.yaml").write_text(GOOD.removeprefix("version: 1\n") + "    host: x\n")
    (directory / "b.yaml").write_text("version: 1\nscalers: {}\n")
    (directory / "c.yaml").write_text("- x\n")
    (directory / "d.yaml").write_text("scalers:\n\t- x\n")

    assert findings(GOOD.replace("maxAgents: 2", "maxAgents: two")) == [
        "hatchway.yaml:5:5: scalers[0].maxAgents: must be a whole number",
        "scalers.d/a.yaml:2:5: scalers[0].name: is the name of an earlier scaler too; names know no case",
        "scalers.d/a.yaml:6:9: scalers[0].labelSets[0].labels: are those of an earlier set of the scaler metal, with "
        "the same gates and excludes: no job could tell the two apart",
        "scalers.d/a.yaml:7:5: scalers[0].host: belongs to a container scaler",
        "scalers.d/b.yaml:1:1: version: belongs into the main file: scalers.d only adds scalers",
        "scalers.d/b.yaml:2:1: scalers: must be a list",
        "scalers.d/c.yaml:1:1: must be a mapping with the one key `scalers`",
        "scalers.d/d.yaml:2:1: a tab cannot indent YAML; use spaces",
    ]


def test_a_missing_file_is_said_to_be_missing(file: Path) -> None:
    with pytest.raises(ConfigError, match=r"hatchway\.yaml: does not exist"):
        load(file)


def test_a_file_of_thousands_of_faults_is_told_them_all_and_holds_nobody_up(findings: Findings) -> None:
    """A worker reads its file on SIGHUP while its agents run: the time may not grow with the square of the faults."""
    began = time.monotonic()

    found = findings("version: 1\nscalers:\n" + "  - {}\n" * 6000)

    assert len(found) == 4 * 6000
    assert time.monotonic() - began < 15
