"""A YAML file becomes plain data with the place of each value, or the reason why not."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest

from hatchway.config.document import MAX_FILE_BYTES, read_document, spell


def test_scalars_are_what_yaml_1_2_says_and_dates_and_words_stay_text(file: Path) -> None:
    file.write_text(
        "int: 12\noctal: 0o17\nhex: 0x1f\nzero: 010\nfloat: 2.5\nexp: 1e3\ninf: -.inf\nyes: yes\ntrue: True\n"
        "date: 2024-01-02\ntext: '12'\nnone: ~\nempty:\nlist: [a, 1]\nblock: |\n  x\n  y\n"
    )

    assert read_document(file).data == {
        "int": 12, "octal": 15, "hex": 31, "zero": 10, "float": 2.5, "exp": 1000.0, "inf": -math.inf, "yes": "yes",
        "true": True, "date": "2024-01-02", "text": "12", "none": None, "empty": None, "list": ["a", 1],
        "block": "x\ny\n",
    }  # fmt: skip


def test_anchors_and_merges_are_resolved_and_own_keys_win(file: Path) -> None:
    file.write_text("base: &base {a: 1, b: 2}\nmore: &more {b: 3, c: 4}\nx:\n  <<: [*base, *more]\n  a: 5\ny: *base\n")

    data = read_document(file).data

    assert data == {
        "base": {"a": 1, "b": 2}, "more": {"b": 3, "c": 4}, "x": {"a": 5, "b": 2, "c": 4}, "y": {"a": 1, "b": 2},
    }  # fmt: skip


def test_each_value_is_found_at_its_key_and_an_absent_one_at_what_lacks_it(file: Path) -> None:
    file.write_text("scalers:\n  - name: a\n    env: {X: 1}\n")
    document = read_document(file)

    places = [
        (found.line, found.column)
        for path in (("scalers", 0, "name"), ("scalers", 0, "env", "X"), ("scalers", 0, "image"), ("nothing",))
        for found in [document.finding(path, "x")]
    ]

    assert places == [(2, 5), (3, 11), (2, 5), (1, 1)]


def test_a_path_is_spelled_as_people_write_it() -> None:
    assert spell(("scalers", 0, "labelSets", 1, "image")) == "scalers[0].labelSets[1].image"


LAUGHS = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 10)}]\n" for before, name in zip("abcdef", "bcdefg", strict=True)
)
MERGED_LAUGHS = "a: &a {x: 1}\n" + "".join(
    f"{name}: &{name}\n  <<: [{', '.join([f'*{before}'] * 10)}]\n"
    for before, name in zip("abcdef", "bcdefg", strict=True)
)


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("", 0, "is empty"),
        ("# only words\n", 0, "is empty"),
        ("---\n", 0, "is empty"),
        ("a: 1\nb:\n\t- 1\n", 3, "tab"),
        ("a: [1, 2\n", 2, "expected"),
        ("a: 'never closed\n", 2, "end of stream"),
        ("a: *nobody\n", 1, "nobody"),
        ("a: 1\n---\nb: 2\n", 2, "second document"),
        ("a: 1\nb: \x01\n", 2, "control character"),
        ("a: 1\na: 2\n", 2, "first on line 1"),
        ("x:\n  a: 1\n  b: 2\n  a: 3\n", 4, "first on line 2"),
        ("[1, 2]: x\n", 1, "a key is a word"),
        ("a: !!python/object/apply:os.system ['true']\n", 1, "YAML tag"),
        ("a: !custom {b: 1}\n", 1, "YAML tag"),
        ("a: !!binary aGk=\n", 1, "YAML tag"),
        ("a: &a\n  b: *a\n", 1, "nested"),
        ("a: &a\n  <<: *a\n", 1, "nested"),
        ("x: {<<: [1]}\n", 1, "merges mappings only"),
        ("[" * 100 + "]" * 100, 1, "nested"),
        ("[" * 600, 0, "nested"),
        (LAUGHS, 1, "aliases"),
        (MERGED_LAUGHS, 1, "aliases"),
        ('a: 1\nb: "x\\0y"\n', 2, "NUL"),
        ('a: 1\nb: ["\\ud800"]\n', 2, "surrogate"),
        ('a: 1\n"b\\0": 1\n', 2, "NUL"),
        ("a: 1\nb: " + "9" * 5000 + "\n", 2, "more than 100 digits"),
        ("a: 1\nb: 0x" + "f" * 5000 + "\n", 2, "more than 100 digits"),
    ],
    ids=range(27),
)
def test_what_no_configuration_holds_is_found_with_its_line(file: Path, text: str, line: int, reason: str) -> None:
    file.write_text(text)

    found = read_document(file).findings

    assert len(found) == 1
    assert reason in str(found[0])
    assert found[0].line == line or (line and reason in ("nested", "aliases"))


def test_every_duplicate_key_is_found_and_no_value_is_quoted(file: Path) -> None:
    file.write_text("a: hunter2\na: hunter2\nb: {c: hunter2, c: hunter2}\n")

    found = [str(finding) for finding in read_document(file).findings]

    assert [text.removeprefix(str(file)) for text in found] == [
        ":2:1: a: is given twice, first on line 1",
        ":3:17: b.c: is given twice, first on line 3",
    ]


def test_a_byte_order_mark_is_no_part_of_the_first_key(file: Path) -> None:
    file.write_bytes(b"\xef\xbb\xbfversion: 1\n")

    assert read_document(file).data == {"version": 1}


def test_a_file_that_cannot_be_read_says_why(file: Path, tmp_path: Path) -> None:
    (tmp_path / "fifo").touch()
    (tmp_path / "fifo").unlink()
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "latin").write_bytes("a: 1\nb: café\n".encode("latin-1"))
    (tmp_path / "large").write_bytes(b"#" * (MAX_FILE_BYTES + 1))

    reasons = {
        name: str(read_document(tmp_path / name).findings[0]).removeprefix(str(tmp_path))
        for name in ("absent", "fifo", "latin", "large", ".")
    }

    assert reasons == {
        "absent": "/absent: does not exist",
        "fifo": "/fifo: is not a regular file",
        "latin": "/latin:2:7: is not UTF-8 text; save the file as UTF-8",
        "large": "/large: is larger than 1 MiB, which no configuration is",
        ".": ": is a directory, not a file",
    }
