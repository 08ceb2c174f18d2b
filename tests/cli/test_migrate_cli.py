"""``hermes-worker data migrate``: upgrade, gate, and a database that is ahead."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import sqlalchemy as sa
from support.commandline import CommandLine
from support.migrated import template

from hermes_worker.store.engine.database import Database
from hermes_worker.store.migrate import migrate
from hermes_worker.store.revisions import find_newest


@pytest.fixture
def hermes(tmp_path: Path) -> CommandLine:
    return CommandLine(tmp_path / "home", {"HERMES_DATABASE_URL": f"sqlite:///{tmp_path / 'x.db'}"})


def _set_ahead(path: Path, works_with: str) -> None:
    path.write_bytes(template().read_bytes())
    engine = sa.create_engine(f"sqlite:///{path}")
    with engine.begin() as connection:
        connection.exec_driver_sql("update alembic_version set version_num = '9999'")
        connection.exec_driver_sql(f"insert into schema_revisions values ('9999', '{works_with}', 1.0)")
    engine.dispose()


REFUSED = {
    "migrate": ("data", "migrate"),
    "gate": ("data", "migrate", "--check"),
    "doctor": ("doctor", "--fix"),
    "up": ("up",),
}


@pytest.mark.parametrize("command", REFUSED.values(), ids=REFUSED)
def test_a_database_of_a_version_between_releases_is_refused_and_left_alone(
    hermes: CommandLine, tmp_path: Path, command: tuple[str, ...]
) -> None:
    path = tmp_path / "x.db"
    path.write_bytes(template().read_bytes())
    engine = sa.create_engine(f"sqlite:///{path}")
    with engine.begin() as connection:
        connection.exec_driver_sql("update alembic_version set version_num = '0182'")
    engine.dispose()
    before = path.read_bytes()

    refused = hermes(*command)

    assert refused.code != 0
    assert "0182" in refused.said and "run 'hermes-worker migrate' once with the sources of commit" in refused.said
    assert path.read_bytes() == before


def _migrate(url: str) -> None:
    database = Database(url)
    migrate(database)
    database.close()


def test_check_says_what_is_missing_and_changes_nothing(hermes: CommandLine, tmp_path: Path) -> None:
    early = hermes.inline("data", "migrate", "--check")

    assert early.code == 1
    assert "run 'hermes-worker data migrate'" in early.err
    assert hermes.inline("data", "migrate").code == 0
    assert hermes.inline("data", "migrate", "--check").code == 0


def test_the_gate_opens_when_somebody_else_has_migrated(hermes: CommandLine, tmp_path: Path) -> None:
    later = threading.Timer(0.7, _migrate, [f"sqlite:///{tmp_path / 'x.db'}"])
    later.start()

    waited = hermes.inline("data", "migrate", "--check", "--wait-s", "30")

    later.join()
    assert waited.code == 0, waited.said
    assert find_newest() in waited.out


def test_a_database_that_is_ahead_is_left_alone(hermes: CommandLine, tmp_path: Path) -> None:
    _set_ahead(tmp_path / "x.db", find_newest())

    migrated = hermes.inline("data", "migrate")

    assert migrated.code == 0, migrated.said
    assert "9999, which is newer" in migrated.out
    assert hermes.inline("runs", "list").code == 0


def test_a_database_that_is_too_far_ahead_is_refused(hermes: CommandLine, tmp_path: Path) -> None:
    _set_ahead(tmp_path / "x.db", "9999")

    for arguments in (
        (
            "data",
            "migrate",
        ),
        ("runs", "list"),
        ("data", "migrate", "--check"),
    ):
        refused = hermes.inline(*arguments)
        assert refused.code != 0
        assert "written for 9999 or later" in refused.err
