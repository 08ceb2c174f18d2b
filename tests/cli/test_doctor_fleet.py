"""What the doctor says of a fleet's rows, and what it puts right."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import sqlalchemy as sa
from support.commandline import CommandLine
from support.store import Store, new_run

from hermes_worker.cli import doctor_fleet
from hermes_worker.cli.doctor_findings import Grade
from hermes_worker.cli.doctor_repairs import REPAIRS
from hermes_worker.settings import Settings, load_settings
from hermes_worker.store import whole_database
from hermes_worker.store.configurations import Configurations
from hermes_worker.store.engine.database import Database
from hermes_worker.store.jobs.jobs import Jobs
from hermes_worker.store.revisions import find_newest, load_state
from hermes_worker.store.tables import hook_calls, jobs, maintenance, runs


@pytest.fixture
def home(tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch) -> Path:
    """That of the store, whose broker is elsewhere and does not answer."""
    monkeypatch.setenv("HERMES_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HERMES_BROKER_URL", "redis://127.0.0.1:1/0")
    return tmp_path / "home"


def said(examine: Callable[[Settings], tuple[Grade, str]]) -> tuple[str, str]:
    grade, text = examine(load_settings())
    return grade.value, text


def repaired() -> dict[str, str]:
    """What was put right, by its subject; without the folders that killed processes of tests beside this one left."""
    done = {subject: repair(load_settings()) for subject, repair in REPAIRS}
    return {subject: text for subject, text in done.items() if text is not None and subject != "left"}


@pytest.mark.parametrize(
    ("age_s", "grade", "words"),
    [
        (5, "ok", "1 step due"),
        (120, "note", "start more workers for 'model'"),
        (2_000, "broken", "start more workers for 'model'"),
    ],
)
def test_the_oldest_step_of_a_queue_says_whether_there_are_workers_enough(
    home: Path, store: Store, age_s: int, grade: str, words: str
) -> None:
    assert said(doctor_fleet.check_queues) == ("ok", "nothing waits")
    store.runs.create(new_run())
    with store.database.write() as connection:
        connection.execute(sa.update(runs).values(hinted_at=runs.c.hinted_at - age_s))
    found = said(doctor_fleet.check_queues)
    assert found[0] == grade
    assert words in found[1]


def test_a_job_that_nobody_begins_says_that_there_is_no_scheduler(
    home: Path, hermes: CommandLine, store: Store
) -> None:
    assert said(doctor_fleet.check_beat) == ("ok", "no job is scheduled")
    made = hermes.inline("cron", "create", "every 1h", "Look around.", "--name", "look")
    assert made.code == 0, made.said
    assert "No scheduler is at work, so no job begins. 'hermes-worker up'" in made.err
    assert said(doctor_fleet.check_beat) == ("ok", "1 scheduled, none overdue")
    with store.database.write() as connection:
        connection.execute(sa.update(jobs).values(next_fire_at=jobs.c.next_fire_at - 3_600 - 300))
    grade, text = said(doctor_fleet.check_beat)
    assert grade == "broken"
    assert "start one with 'hermes-worker start beat'" in text


def test_where_a_scheduler_was_at_work_a_moment_ago_a_new_job_is_told_nothing(
    home: Path, hermes: CommandLine, store: Store
) -> None:
    Jobs(store.database).record_scheduler()
    made = hermes.inline("cron", "create", "every 1h", "Look around.", "--json")
    assert made.code == 0 and made.err == ""
    with store.database.write() as connection:
        connection.execute(sa.update(maintenance).values(ran_at=maintenance.c.ran_at - 121))
    assert "No scheduler is at work" in hermes.inline("cron", "create", "every 1h", "Look again.", "--json").err


def test_a_configuration_that_cannot_be_used_is_named_and_the_last_good_one_counts(home: Path, store: Store) -> None:
    assert said(doctor_fleet.check_configuration) == ("ok", "none in the database")
    rows = Configurations(store.database)
    for version, text in enumerate(("agent: {max_turns: 5}", "agent: {max_turns: five}")):
        rows.write(None, text, expected=version, written_by="me")
    grade, words = said(doctor_fleet.check_configuration)
    assert grade == "broken"
    assert "version 2 of the configuration of the fleet cannot be used: agent.max_turns must be" in words
    rows.write(None, "agent: {max_turns: 6}", expected=2, written_by="me")
    assert said(doctor_fleet.check_configuration) == ("ok", "can be used (fleet 3)")


def test_pages_that_hold_nothing_are_told_and_given_back(
    home: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert said(doctor_fleet.check_size)[0] == "ok"
    with store.database.write() as connection:
        connection.execute(sa.text("create table ballast (words text)"))
        connection.execute(sa.text("insert into ballast values (:words)"), {"words": "x" * 4_000_000})
    with store.database.write() as connection:
        connection.execute(sa.text("drop table ballast"))
    monkeypatch.setattr(whole_database, "_FREE_BYTES_NOTED", 1_000_000)
    grade, text = said(doctor_fleet.check_size)
    assert grade == "note"
    assert "hold nothing; 'doctor --fix' gives them back" in text
    assert repaired()["size"].startswith("gave back ")
    assert said(doctor_fleet.check_size)[0] == "ok"
    assert whole_database.measure_size(store.database).free_bytes == 0
    assert repaired() == {}


def test_what_can_be_put_right_is_when_it_is_asked_for(home: Path, hermes: CommandLine) -> None:
    key, unread = home / "api.key", home / "valkey" / "dump.rdb.unreadable-1"
    key.write_text("k" * 40)
    key.chmod(0o644)
    unread.parent.mkdir()
    unread.write_text("?")
    found = [json.loads(line) for line in hermes.inline("doctor", "--json").out.splitlines()]
    assert "fixed" not in {row["grade"] for row in found}
    assert {"configuration", "queues", "beat", "size"} <= {row["subject"] for row in found}
    assert unread.exists()
    key.chmod(0o644)  # who asks an API with the key closes it
    found = [json.loads(line) for line in hermes.inline("doctor", "--json", "--fix").out.splitlines()]
    # What killed processes of tests beside this one left on the disk is put right as well.
    assert [row["subject"] for row in found if row["grade"] == "fixed" and row["subject"] != "left"] == [
        "API",
        "broker",
    ]
    assert key.stat().st_mode & 0o077 == 0
    assert not unread.exists()


def test_an_older_schema_is_brought_up_to_date(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HERMES_DATABASE_URL", f"sqlite:///{tmp_path / 'empty.db'}")
    assert repaired() == {"database": f"its schema was nothing and is {find_newest()}"}
    assert repaired() == {}
    database = Database(f"sqlite:///{tmp_path / 'empty.db'}")
    assert load_state(database).is_usable
    database.close()


def test_a_memory_provider_is_judged_by_its_latest_calls(
    home: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not doctor_fleet.has_memory_provider(load_settings())
    monkeypatch.setenv("HERMES_EXTENSIONS", "memory_http")
    monkeypatch.setenv("HERMES_MEMORY_URL", "http://127.0.0.1:1")
    assert doctor_fleet.has_memory_provider(load_settings())
    assert said(doctor_fleet.check_memory)[0] == "ok"
    store.runs.create(new_run())
    call = {"tenant": "default", "hook": "http-sync", "event": "post_llm_call", "event_seq": 1, "created_at": 1.0}
    with store.database.write() as connection:
        run_pk = connection.execute(sa.select(runs.c.pk)).scalar_one()
        for number, how in enumerate(("failed", "done")):
            settled = {"state": how, "reason": "HTTP 503", "settled_at": 2.0, "event_id": f"e{number}"}
            connection.execute(sa.insert(hook_calls).values(**call, **settled, run_pk=run_pk))
    grade, text = said(doctor_fleet.check_memory)
    assert grade == "note"
    assert "http of memory_http (unverified live); 1 of its 2 latest calls failed: HTTP 503" in text


def test_a_home_without_rows_has_nothing_to_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HERMES_HOME", str(tmp_path))
    for examine in (doctor_fleet.check_queues, doctor_fleet.check_beat, doctor_fleet.check_size):
        assert examine(load_settings())[0] == "ok"
