"""What background processes do in every kind of workspace. The kinds are those of the contract of workspaces."""

from __future__ import annotations

import json
import re
import secrets
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, cast

import psutil
import pytest
from support.patience import PATIENCE_S
from workspaces.test_workspace_contract import _OF_MACHINE, KINDS, Kind

from hermes_worker.workspaces.base import PathNotFound, TerminalSize, WorkspaceError
from hermes_worker.workspaces.processes import ProcessHost, ProcessLook, ProcessOrder, ProcessState


@pytest.fixture(
    params=[pytest.param(name, marks=[pytest.mark.machine] if name in _OF_MACHINE else []) for name in KINDS]
)
def kind(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Kind]:
    with ExitStack() as stack:
        yield KINDS[request.param](stack, tmp_path)


class Started:
    """A process, as one worker after the other sees it."""

    def __init__(self, kind: Kind, command: str, **order: Any) -> None:
        self.kind = kind
        self.name = f"proc_{secrets.token_hex(6)}"
        self.workspace.start_process(self.name, ProcessOrder(command=command, **{"lifetime_s": 60, **order}))

    @property
    def workspace(self) -> ProcessHost:
        """Opened by yet another worker."""
        return cast("ProcessHost", self.kind.open())

    def look(self) -> ProcessLook:
        return self.workspace.look_at_process(self.name)

    def until(self, is_so: Callable[[ProcessLook], bool]) -> ProcessLook:
        deadline = time.monotonic() + PATIENCE_S
        workspace = self.workspace
        while not is_so(found := workspace.look_at_process(self.name)):
            assert time.monotonic() < deadline, found
            time.sleep(0.05)
        return found

    def ended(self) -> ProcessLook:
        return self.until(lambda look: not look.is_running)


def test_another_worker_sees_what_it_wrote_and_how_it_ended(kind: Kind) -> None:
    process = Started(kind, "echo out $WHO; echo err >&2; exit 3", env={"WHO": "it's me"})
    found = process.ended()
    assert (found.state, found.exit_code, found.output, found.total) == (
        ProcessState.EXITED,
        3,
        b"out it's me\nerr\n",
        16,
    )


def test_it_reads_what_others_write_to_it_in_order_until_its_input_ends(kind: Kind) -> None:
    process = Started(kind, "while read -r line; do echo got:$line; done; echo over")
    for word in (b"a\n", b"b\n"):
        process.workspace.write_to_process(process.name, word)
    assert process.until(lambda look: b"got:b" in look.output).is_running
    process.workspace.write_to_process(process.name, b"c\n", is_last=True)
    assert process.ended().output == b"got:a\ngot:b\ngot:c\nover\n"
    with pytest.raises(WorkspaceError, match="reads nothing any more"):
        process.workspace.write_to_process(process.name, b"d\n")


def test_the_end_takes_everything_that_it_started(kind: Kind) -> None:
    mark = f"{1_000_000 + secrets.randbelow(1_000_000)}"
    process = Started(kind, f"trap '' TERM; setsid sleep {mark} & sleep {mark} & sleep {mark}; wait; sleep {mark}")
    process.until(lambda look: len(_running(mark)) >= 3)
    process.workspace.end_process(process.name)
    found = process.ended()
    assert (found.state, found.exit_code) == (ProcessState.KILLED, 130)
    assert _running(mark) == []
    process.workspace.end_process(process.name)  # again: nothing happens


def test_it_ends_when_its_time_is_over_though_nobody_looks(kind: Kind) -> None:
    mark = f"{1_000_000 + secrets.randbelow(1_000_000)}"
    process = Started(kind, f"sleep {mark}", lifetime_s=1)
    assert process.ended().state is ProcessState.TIMED_OUT
    assert _running(mark) == []


def test_what_it_leaves_running_ends_with_it(kind: Kind) -> None:
    mark = f"{1_000_000 + secrets.randbelow(1_000_000)}"
    process = Started(kind, f"sleep {mark} & echo done")
    assert process.ended().output == b"done\n"
    assert _running(mark) == []


def test_the_last_of_much_output_is_kept_and_the_rest_is_counted(kind: Kind) -> None:
    process = Started(kind, "yes 0123456 | head -c 4000000; echo THE-END; sleep 60")
    found = process.until(lambda look: b"THE-END" in look.output)
    assert found.total == 4_000_000 + len("THE-END\n")
    assert len(found.output) <= 200_000 and found.output.endswith(b"0123456\nTHE-END\n")
    process.workspace.remove_process(process.name)


def test_forgetting_it_ends_it(kind: Kind) -> None:
    mark = f"{1_000_000 + secrets.randbelow(1_000_000)}"
    process = Started(kind, f"sleep {mark}")
    process.until(lambda look: _running(mark) != [])
    process.workspace.remove_process(process.name)
    deadline = time.monotonic() + PATIENCE_S
    while _running(mark):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    with pytest.raises(PathNotFound):
        process.look()
    process.workspace.remove_process(process.name)


def test_when_its_minder_is_killed_it_says_that_it_died(kind: Kind, tmp_path: Path) -> None:
    mark = f"{1_000_000 + secrets.randbelow(1_000_000)}"
    process = Started(kind, f"sleep {mark}")
    process.until(lambda look: _running(mark) != [])
    for daemon in _daemons(process.name, tmp_path):
        daemon.send_signal(signal.SIGKILL)
    found = process.ended()
    assert (found.state, found.exit_code) == (ProcessState.LOST, None)
    assert found.note is not None
    for one in _running(mark):
        with suppress(psutil.NoSuchProcess):  # it may be about to end by itself
            one.kill()


def test_a_terminal_has_the_size_that_was_asked_for(kind: Kind) -> None:
    process = Started(
        kind,
        "stty size; test -t 0 && test -t 1 && echo terminal; read a; echo [$a]",
        terminal=TerminalSize(rows=17, columns=91),
    )
    process.until(lambda look: b"terminal" in look.output)
    process.workspace.write_to_process(process.name, b"yes\n")
    found = process.ended()
    assert re.fullmatch(rb"17 91\r\nterminal\r\n(yes\r\n)*\[yes\]\r\n", found.output), found.output
    assert found.exit_code == 0


def test_a_command_in_the_foreground_has_one_as_well(kind: Kind) -> None:
    result = kind.open().execute(
        "stty size; test -t 0 && test -t 1 && echo terminal; exit 5",
        cwd=None,
        env={},
        timeout_s=20,
        output_bytes_max=1000,
        should_stop=lambda: False,
        terminal=TerminalSize(rows=17, columns=91),
    )
    assert (result.output, result.exit_code) == (b"17 91\r\nterminal\r\n", 5)


def test_a_name_is_given_once_and_unknown_ones_are_not_found(kind: Kind) -> None:
    process = Started(kind, "true")
    with pytest.raises(WorkspaceError, match="called"):
        process.workspace.start_process(process.name, ProcessOrder(command="true", lifetime_s=5))
    for name in ("proc_000000000000", "../x", "proc_0; touch x"):
        with pytest.raises((PathNotFound, WorkspaceError)):
            process.workspace.look_at_process(name)


def test_what_cannot_be_started_leaves_nothing(kind: Kind) -> None:
    with pytest.raises(WorkspaceError):
        Started(kind, "true", cwd="missing")
    with pytest.raises(WorkspaceError, match="NUL"):
        Started(kind, "a\0b")


def _running(mark: str) -> list[psutil.Process]:
    return [one for one in psutil.process_iter() if _is(one, "sleep", mark)]


def _daemons(name: str, directory: Path) -> list[psutil.Process]:
    """A local one is named in what it says of the process, a remote one by its arguments."""
    states = [*directory.glob(f"**/{name}/state")]
    numbers = [json.loads(state.read_text())["pid"] for state in states if state.read_bytes().startswith(b"{")]
    numbers += [int(state.read_text().split()[1]) for state in states if state.read_bytes().startswith(b"running")]
    return [psutil.Process(number) for number in numbers]


def _is(process: psutil.Process, *words: str) -> bool:
    try:
        return process.cmdline() == list(words) and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
