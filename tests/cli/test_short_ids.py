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


@pytest.fixture
def talk(store: Store) -> str:
    """The id of a session of the command line that is called by a name, and of its one run."""
    run_id = store.submit(input="Sort my mail", session_id="mail", source="cli").run_id
    store.answer(run_id)
    return run_id


@pytest.mark.parametrize("named", ["mail", "mai", "Sort my mail", "id"])
def test_a_session_is_named_by_the_beginning_of_its_id_its_name_or_its_title(
    hermes: CommandLine, talk: str, named: str
) -> None:
    written = talk[:16] if named == "id" else named
    for words in (
        ["show"],
        ["show", "--messages"],
        ["lineage"],
        ["export"],
        ["archive"],
        ["archive", "--undo"],
        ["end"],
    ):
        ended = hermes.inline("sessions", words[0], written, *words[1:])
        assert ended.code == 0, ended.said
    listed = hermes.inline("runs", "list", "--session", written, "-o", "name")
    assert (listed.code, listed.out) == (0, f"{talk}\n")
    assert hermes.inline("retention", "hold", "--session", written, "--reason", "x").code in (0, 2)
    assert hermes.inline("sessions", "fork", written).out.startswith("run_")


@pytest.mark.parametrize("named", ["digits", "beginning", "title"])
def test_a_run_joins_the_session_that_a_short_id_or_a_title_means(
    hermes: CommandLine, store: Store, talk: str, named: str
) -> None:
    first = store.submit(input="Feed the cat", source="cli").run_id
    store.answer(first)
    written = {"digits": first[4:10], "beginning": first[:10], "title": "Feed the cat"}[named]
    second = hermes.inline("submit", "And the dog", "--session", written)
    assert second.code == 0, second.said
    listed = hermes.inline("runs", "list", "--session", first, "-o", "name").out.split()
    assert listed == [second.out.strip(), first]
    assert hermes.inline("submit", "Go on", "--session", "20261130").code == 0, "a name of a new one"
    missing = hermes.inline("submit", "Go on", "--session", "Feed no cat")
    assert (missing.code, "there is no session 'Feed no cat'" in missing.err) == (2, True)


@pytest.mark.parametrize(
    ("words", "missing"),
    [
        (["runs", "list", "--job", "X"], "job"),
        (["runs", "list", "--session", "X"], "session"),
        (["runs", "stop", "--job", "X"], "job"),
        (["sessions", "show", "X"], "session"),
        (["sessions", "show", "run_0123"], "session"),
        (["sessions", "compress", "X"], "session"),
        (["cron", "show", "X"], "job"),
        (["cron", "history", "X"], "job"),
    ],
)
def test_what_is_unknown_is_told(hermes: CommandLine, talk: str, words: list[str], missing: str) -> None:
    ended = hermes.inline(*words)
    assert (ended.code, ended.out) == (2, "")
    where = {"job": "cron list", "session": "sessions list"}[missing]
    assert f"there is no {missing} {words[-1]!r}; 'hermes-worker {where}'" in ended.err


def test_what_may_mean_several_things_is_told_with_them(hermes: CommandLine, store: Store, talk: str) -> None:
    other = store.submit(input="Sort my mail", session_id="mailbox", source="cli").run_id
    for written in ("ma", "Sort my mail"):
        ended = hermes.inline("sessions", "show", written)
        assert ended.code == 2
        assert "mailbox ('Sort my mail'), mail ('Sort my mail')" in ended.err
    assert hermes.inline("sessions", "show", "mail").code == 0
    assert hermes.inline("sessions", "show", other[:20]).code == 0


def test_runs_of_a_job_are_listed_by_its_name_also_when_it_was_removed(hermes: CommandLine) -> None:
    made = json.loads(hermes.inline("cron", "create", "every 1h", "Look", "--name", "look", "--json").out)["job_id"]
    for written in ("look", "LOOK", made[:6], made):
        ended = hermes.inline("runs", "list", "--job", written)
        assert (ended.code, ended.err) == (0, "no runs\n")
    hermes.inline("cron", "remove", "look")
    assert hermes.inline("runs", "list", "--job", made).code == 0
    assert hermes.inline("runs", "list", "--job", "look").code == 2
    hermes.inline("cron", "create", "every 1h", "Look", "--name", "twice")
    hermes.inline("cron", "create", "every 1h", "Look", "--name", "twice")
    assert "several jobs are called 'twice'; name one of " in hermes.inline("runs", "list", "--job", "twice").err


def test_a_short_id_joins_a_conversation_and_begins_none(hermes: CommandLine, talk: str) -> None:
    joined = json.loads(hermes.inline("submit", "More", "--session", talk[:16], "--json").out)
    assert joined["session_id"] == "mail"
    assert "there is no session 'run_0123'" in hermes.inline("submit", "More", "--session", "run_0123").err
