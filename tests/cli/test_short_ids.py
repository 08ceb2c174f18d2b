"""The beginning of an id stands for it, wherever a command takes an id."""

from __future__ import annotations

import json

import pytest
import sqlalchemy as sa
from support.commandline import CommandLine
from support.store import Store

from hermes_worker.store.tables import runs


@pytest.fixture
def run_ids(hermes: CommandLine, store: Store) -> list[str]:
    """Three runs; two of the ids begin alike."""
    ids = ["run_ab12" + "0" * 28, "run_ab34" + "0" * 28, "run_cd" + "0" * 30]
    for run_id in ids:
        made = store.submit().run_id
        with store.database.write() as connection:
            connection.execute(sa.update(runs).where(runs.c.run_id == made).values(run_id=run_id))
    return ids


@pytest.mark.parametrize("written", ["run_ab12", "ab12", "AB12", "run_ab12" + "0" * 28])
@pytest.mark.parametrize("command", ["show", "pause", "stop", "export"])
def test_the_beginning_of_an_id_names_a_run(
    hermes: CommandLine, run_ids: list[str], command: str, written: str
) -> None:
    ended = hermes.inline("runs", command, written)
    assert ended.code == 0, ended.said
    assert run_ids[0] in ended.out or command == "export"


@pytest.mark.parametrize("command", [["show"], ["watch"], ["steer", "x"], ["approve"], ["stop"]])
def test_an_id_that_is_too_short_lists_what_it_could_be(
    hermes: CommandLine, run_ids: list[str], command: list[str]
) -> None:
    ended = hermes.inline("runs", command[0], "ab", *command[1:])
    assert ended.code == 2
    assert ended.err == (
        f"hermes-worker: 'ab' is the beginning of several ids: {run_ids[0]}, {run_ids[1]}; write more of it\n"
    )


@pytest.mark.parametrize("written", ["run_", "", "ab9", "run_zz", "%"])
def test_what_begins_no_id_is_no_run(hermes: CommandLine, run_ids: list[str], written: str) -> None:
    ended = hermes.inline("runs", "show", written)
    assert ended.code == 2
    assert f"there is no run {written!r}" in ended.err


def test_jobs_are_named_by_the_beginning_of_their_ids(hermes: CommandLine) -> None:
    made = hermes.inline("cron", "create", "every 1h", "Look", "--name", "look", "--json")
    job_id = json.loads(made.out)["job_id"]
    for command in ("show", "pause", "resume", "run", "history", "next", "remove"):
        ended = hermes.inline("cron", command, job_id[:11])
        assert ended.code == 0, ended.said
    assert ended.out == "" or job_id in ended.out


def test_a_name_of_a_job_wins_over_the_beginning_of_an_id(hermes: CommandLine) -> None:
    first = json.loads(hermes.inline("cron", "create", "every 1h", "Look", "--json").out)["job_id"]
    hermes.inline("cron", "create", "every 1h", "Look", "--name", first[:5])
    shown = json.loads(hermes.inline("cron", "show", first[:5], "--json").out)
    assert shown["job_id"] != first
