"""The migrations on disk agree with what the code says of them."""

from __future__ import annotations

from pathlib import Path

from alembic.config import Config
from alembic.script import ScriptDirectory

from hatchway.store import migrate
from hatchway.store.config_versions import digest

MIGRATIONS = Path(migrate.__file__).parent / "migrations"


def test_head_is_the_newest_revision_on_disk() -> None:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    config.set_main_option("path_separator", "os")

    assert ScriptDirectory.from_config(config).get_heads() == [migrate.HEAD]


def test_every_sql_file_is_run_by_a_revision() -> None:
    revisions = "\n".join(p.read_text() for p in (MIGRATIONS / "versions").glob("*.py"))

    for file in MIGRATIONS.glob("*.sql"):
        assert f'"{file.stem.split("_", 1)[1]}"' in revisions


def test_a_configs_digest_does_not_depend_on_the_order_of_its_keys() -> None:
    assert digest({"a": 1, "b": {"c": 2, "d": 3}}) == digest({"b": {"d": 3, "c": 2}, "a": 1})
    assert digest({"a": 1}) != digest({"a": 2})
