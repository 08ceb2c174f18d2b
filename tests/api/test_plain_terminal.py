"""``chat`` and ``top`` in a terminal that only takes lines, as behind a screen reader: nothing moves its cursor."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from remote_lines import at_server, keyed_file
from serving import Served, until
from support.commandline import COMMAND, PATIENCE_S
from support.store import Store, asks

from hermes_worker.core.messages import ModelReply
from hermes_worker.core.replay import Replay

DRAWS = re.compile(rb"[^\r\n\t\x20-\xff]|\r(?!\n)")
"""Whatever is no text and no end of a line: escapes, backspaces, a return to the beginning of the line."""


class LineTerminal:
    """One program in a terminal, and all bytes that it wrote."""

    def __init__(self, process: subprocess.Popen[bytes], end: int) -> None:
        self.process = process
        self.seen = b""
        self._end = end

    def _read(self, within_s: float) -> bool:
        if not select.select([self._end], [], [], within_s)[0]:
            return False
        try:
            self.seen += os.read(self._end, 65_536)
        except OSError:
            return False  # nobody holds the other end any more
        return True

    def wait_for(self, text: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while text.encode() not in self.seen:
            assert time.monotonic() < deadline, (text, self.seen)
            self._read(0.1)

    def say(self, line: str) -> None:
        os.write(self._end, line.encode())

    def end(self) -> int:
        while self.process.poll() is None:
            self._read(0.1)
        while self._read(0.1):
            pass
        return self.process.returncode


@contextmanager
def line_terminal(api: Served, folder: Path, words: Sequence[str], **environ: str) -> Iterator[LineTerminal]:
    line = at_server(api.url, folder, keyed_file(folder / "key", api.key))
    ours, theirs = pty.openpty()
    program = subprocess.Popen(
        [COMMAND, *words], stdin=theirs, stdout=theirs, stderr=theirs, env={**line.environ, **environ},
        start_new_session=True,
    )  # fmt: skip
    os.close(theirs)
    try:
        yield LineTerminal(program, ours)
    finally:
        program.kill()
        program.wait()
        os.close(ours)


@pytest.mark.parametrize(("words", "term"), [(["chat", "--plain"], "xterm-256color"), (["chat"], "dumb")])
def test_a_chat_is_written_in_whole_lines(
    api: Served, store: Store, tmp_path: Path, words: list[str], term: str
) -> None:
    with line_terminal(api, tmp_path, words, TERM=term) as terminal:
        terminal.wait_for("/help shows the commands")
        terminal.say("count the files\n")
        run_id = until(lambda: [run["run_id"] for run in api.http.get("/v1/runs").json()["data"]], "the run")[0]
        store.ask_tools(run_id, asks(Replay.PURE))
        store.settle(run_id, 0, "12 files")
        terminal.wait_for("✓ tool0")
        assert "→ tool0" in terminal.seen.decode()
        store.answer(run_id, ModelReply(text="# Found\n\nThere are **12** files."))
        terminal.wait_for("completed, ")
        terminal.say("\x04")
        assert terminal.end() == 0
    assert DRAWS.findall(terminal.seen) == []
    assert "There are **12** files." in terminal.seen.decode().splitlines(), "as it was written"


def test_top_prints_one_look_where_nothing_can_be_drawn(api: Served, store: Store, tmp_path: Path) -> None:
    run_id = store.submit().run_id
    with line_terminal(api, tmp_path, ["top"], TERM="dumb") as terminal:
        assert terminal.end() == 0
    assert DRAWS.findall(terminal.seen) == []
    assert run_id in terminal.seen.decode()
