"""Answers of a host about a background process that are cut or that no daemon of ours writes."""

from __future__ import annotations

import pytest

from hermes_worker.workspaces.base import ScriptAnswer, WorkspaceError
from hermes_worker.workspaces.processes import ProcessState
from hermes_worker.workspaces.remote.processes import RemoteProcesses


def look_at(errors: bytes) -> ProcessState:
    processes = RemoteProcesses(
        run=lambda words, data: ScriptAnswer(code=0, output=b"", errors=errors),
        host="the host",
        wall="none",
        network=None,
        root="/root",
        quota_kb=0,
        umask="",
        limits="",
    )
    return processes.read_look("proc_0123456789ab", 100).state


@pytest.mark.parametrize(
    "errors", [b"", b"\0", b"  0 \0", b"running 1\0", b"running - x\0", b"odd 0 0\0", b"\xff\xfe\xfd\0"]
)
def test_an_answer_that_cannot_be_read_is_told_in_a_sentence(errors: bytes) -> None:
    with pytest.raises(WorkspaceError, match="the answer about the process proc_0123456789ab cannot be read"):
        look_at(errors)


def test_an_answer_of_a_daemon_is_read() -> None:
    assert look_at(b"exited 3 0\0") is ProcessState.EXITED
