"""``up --detach``, ``status``, ``logs`` and ``down`` on a real stack; and what stands of one that is gone."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from support.commandline import CommandLine, wait_for

from hermes_worker.local import background_stack as detached
from hermes_worker.local.background_stack import (
    LOG_BYTES_MAX,
    NoStack,
    RunningStack,
    StackLog,
    follow_lines,
    read_log_end,
)
from hermes_worker.local.paths import StackNote, find_left_note, find_running_stack, hold_home

NOTE = StackNote(
    pid=os.getpid(), command="up", started_at=0.0, broker_url="redis://x", model="m", model_key="k", api_url=None
)


@pytest.fixture
def hermes(tmp_path: Path) -> Iterator[CommandLine]:
    hermes = CommandLine(tmp_path / "home", {"HERMES_PROVIDER": "scripted"})
    yield hermes
    note = find_running_stack(hermes.home)
    if note is not None and note.pid != os.getpid():
        os.kill(note.pid, signal.SIGKILL)


def began_at() -> float:
    return psutil.Process().create_time()


# --- a real one ------------------------------------------------------------------------------------------------------


def grow(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(0o600)
    os.truncate(path, LOG_BYTES_MAX)


def test_a_stack_in_the_background_is_there_until_down_drains_it(hermes: CommandLine) -> None:
    """And the log of its broker is kept small, at the start and while it runs."""
    brokers = hermes.home / "logs" / "valkey.log"
    grow(brokers)
    started = hermes("up", "--detach", "--port", "0")
    assert started.code == 0, started.said
    note = find_running_stack(hermes.home)
    assert note is not None
    assert f"pid {note.pid}" in started.out and str(note.api_url) in started.out
    assert os.getsid(note.pid) == note.pid, "a terminal that is closed does not end it"

    assert brokers.with_name("valkey.log.1").stat().st_size == LOG_BYTES_MAX
    assert 0 < brokers.stat().st_size < LOG_BYTES_MAX, "the broker goes on writing"
    grow(brokers)

    second = hermes("up", "--detach", "--port", "0")
    assert (second.code, "already runs" in second.err) == (2, True), second.said
    told = json.loads(hermes("status", "--json").out)
    assert (told["running"], told["pid"], told["problem"]) == (True, note.pid, None)
    assert {"api", "beat"} <= {part.split()[0] for part in told["parts"]}, told["parts"]

    with hermes.started("logs", "-f") as following:
        following.wait_for_line(r"Hermes worker is up")
        stopped = hermes("down")
        assert stopped.code == 0, stopped.said
        assert following.wait() == 0, "it ends with what it reads"
    assert brokers.with_name("valkey.log.2").stat().st_size == LOG_BYTES_MAX
    assert brokers.stat().st_size < LOG_BYTES_MAX
    assert not psutil.pid_exists(note.pid) or psutil.Process(note.pid).status() == psutil.STATUS_ZOMBIE
    ended = hermes.inline("status")
    assert (ended.code, "no hermes-worker runs" in ended.out) == (1, True)
    assert hermes.inline("down").code == 0, "there is nothing left to do"


def test_a_start_that_fails_in_the_background_is_told_in_a_sentence(hermes: CommandLine) -> None:
    hermes.environ["HERMES_BROKER_URL"] = "redis://127.0.0.1:1/0"
    hermes.environ["HERMES_DATABASE_URL"] = "postgresql://nobody@127.0.0.1:1/none"
    failed = hermes("up", "--detach", "--port", "0")
    assert failed.code != 0
    assert len(failed.err.strip().splitlines()) <= 2, failed.err
    assert "Connection refused" in failed.err
    assert find_running_stack(hermes.home) is None


# --- who is meant ----------------------------------------------------------------------------------------------------


def test_a_number_that_another_process_has_now_is_never_signalled(hermes: CommandLine) -> None:
    """The stack was killed, and its number went to another process, which is this one."""
    with hold_home(hermes.home) as held:
        held.announce(replace(NOTE, started_at=began_at() - 3600.0))
        with pytest.raises(NoStack):  # the lock is held, but by no process that is as old as the note
            RunningStack(hermes.home)
    with pytest.raises(NoStack):
        RunningStack(hermes.home)
    told = hermes.inline("status")
    assert (told.code, "ended without a word" in told.out) == (1, True), told.said
    refused = hermes.inline("down")
    assert (refused.code, f"pid {os.getpid()}" in refused.err) == (0, True), refused.said
    with hold_home(hermes.home):
        assert find_left_note(hermes.home) is None, "the next one takes the note away"


def test_the_holder_of_a_home_is_held_until_it_gives_it_back(hermes: CommandLine) -> None:
    with hold_home(hermes.home) as held:
        held.announce(replace(NOTE, started_at=began_at() + 1.0))
        stack = RunningStack(hermes.home)
        assert stack.is_running
    with stack:
        assert not stack.is_running


# --- the log ---------------------------------------------------------------------------------------------------------


def test_a_log_that_has_grown_is_put_aside_and_so_many_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "up.log"
    log = StackLog(path, bytes_max=40, kept=2)
    output = log.open()
    for number in range(17):
        os.write(output, f"line {number:02}\n".encode())
        log.keep_small()
    os.close(output)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["up.log", "up.log.1", "up.log.2"]
    whole = b"".join((tmp_path / name).read_bytes() for name in ("up.log.2", "up.log.1", "up.log"))
    assert whole.decode().splitlines() == [f"line {number:02}" for number in range(5, 17)]
    assert {each.stat().st_mode & 0o777 for each in tmp_path.iterdir()} == {0o600}
    assert read_log_end(path, 3) == ([b"line 14", b"line 15", b"line 16"], path.stat().st_size)


def test_a_reader_loses_nothing_while_logs_are_put_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detached, "_LOOK_EVERY_S", 0.0)
    path = tmp_path / "up.log"
    log = StackLog(path, bytes_max=30, kept=2)
    output = log.open()
    seen: list[bytes] = []
    is_over = threading.Event()
    reader = threading.Thread(target=lambda: seen.extend(follow_lines(path, 0, is_over.is_set)))
    reader.start()
    wanted = [f"line {number}".encode() for number in range(14)]
    for number, line in enumerate(wanted):
        os.write(output, line + b"\n")
        wait_for(lambda count=number + 1: len(seen) >= count or not reader.is_alive())  # type: ignore[misc]
        log.keep_small()
    os.close(output)
    is_over.set()
    reader.join()
    assert seen == wanted
    assert (tmp_path / "up.log.2").exists()
