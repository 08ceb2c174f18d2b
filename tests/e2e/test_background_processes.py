"""A background process under real workers: the one that started it is killed, and another one sees to it."""

from __future__ import annotations

import json
import signal
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from support.commandline import CommandLine, call, script, wait_for

pytestmark = pytest.mark.e2e

WORK = "echo begun > begun; until [ -e go ]; do sleep 0.1; done; echo finished-$((40 + 2))"


def test_a_process_outlives_its_worker_and_its_end_begins_a_turn(hermes: CommandLine, project: Path) -> None:
    start = script(call("terminal", command=WORK, background=True, notify_on_complete=True), final="Started.")
    given = ("--workspace", str(project), "--session", "talk")
    with hermes.up() as up:
        first = hermes.inline("submit", start, *given, "--watch")
        assert "Started." in first.out, first.said + up.output
        wait_for(lambda: (project / "begun").exists())
        up.child("tools").send_signal(signal.SIGKILL)
        up.wait_for_line(r"child\.exited +child=tools")
        listed = hermes.inline("submit", script(call("process", action="list"), final="Looked."), *given, "--watch")
        assert "Looked." in listed.out, listed.said + up.output
        assert any('"status":"running"' in text.replace(" ", "") for text in said(hermes)), said(hermes)
        (project / "go").touch()
        told = wait_for(lambda: [text for text in said(hermes) if "[BACKGROUND PROCESS" in text], saying=up.output)
        assert len(told) == 1 and "has ended by itself with exit code 0" in told[0] and "finished-42" in told[0]
        wait_for(lambda: len(listed_runs(hermes)) == 3, saying=up.output)


def said(hermes: CommandLine) -> list[str]:
    """What stands in the transcripts of the home."""
    with closing(sqlite3.connect(f"file:{hermes.home / 'hermes-worker.db'}?mode=ro", uri=True)) as connection:
        rows = connection.execute(
            "select coalesce(m.body, b.body) from messages m left join blobs b on b.hash = m.blob_hash"
        )
        return [str(json.loads(body).get("content")) for (body,) in rows]


def listed_runs(hermes: CommandLine) -> list[str]:
    """The ids of all runs, the newest first."""
    lines = hermes.inline("runs", "list").out.splitlines()
    return [word for line in lines for word in line.split() if word.startswith("run_")]
