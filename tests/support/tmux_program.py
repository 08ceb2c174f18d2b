"""A terminal that a test looks at: tmux, with a program in it."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.commandline import PATIENCE_S, wait_for

COLUMNS, LINES = 100, 40


class TmuxTerminal:
    """One program in a terminal of its own."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket

    def tmux(self, *arguments: str) -> str:
        command = ["tmux", "-S", str(self._socket), "-f", "/dev/null", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout

    @property
    def text(self) -> str:
        """All that was shown, with what has scrolled away; a line that the terminal broke is one line."""
        return self.tmux("capture-pane", "-p", "-J", "-S", "-5000")

    @property
    def escapes(self) -> str:
        """The same with its colours."""
        return self.tmux("capture-pane", "-p", "-e", "-S", "-5000")

    def type(self, text: str) -> None:
        """Characters, as a person types them."""
        self.tmux("send-keys", "-l", text)

    def key(self, *names: str) -> None:
        """Keys by tmux's names: ``Enter``, ``C-c``, ``Tab``."""
        self.tmux("send-keys", *names)

    def say(self, line: str) -> None:
        self.type(line)
        self.key("Enter")

    def paste(self, text: str) -> None:
        """As a terminal pastes: in brackets, where the program asked for them."""
        self.tmux("set-buffer", text)
        self.tmux("paste-buffer", "-p")

    def wait_for(self, text: str, *, within_s: float = PATIENCE_S) -> str:
        """Until it is shown; everything that is shown then."""

        def shown() -> str | None:
            now = self.text
            return now if text in now else None

        try:
            return wait_for(shown, within_s=within_s)
        except AssertionError:
            raise AssertionError(f"{text!r} is not shown:\n{self.text}") from None

    def wait_for_end(self) -> int:
        """The exit code of the program, which a shell around it wrote down: tmux does not always hear of it."""
        told = self._socket.with_name("status")
        return int(wait_for(lambda: (told.exists() and told.read_text()) or None, saying="for the program to end"))


@contextmanager
def tmux_terminal(directory: Path, command: Sequence[str], environ: Mapping[str, str]) -> Iterator[TmuxTerminal]:
    """``command`` in a terminal of 100 columns, with nothing in its environment but ``environ``."""
    if shutil.which("tmux") is None:
        pytest.skip("tmux is not here: apt-get install tmux")
    directory.mkdir(parents=True, exist_ok=True)
    terminal = TmuxTerminal(directory / "tmux")
    around = f'trap : INT; "$@"; echo $? > {shlex.quote(str(directory / "status"))}'
    inside = ["env", "-i", *(f"{name}={value}" for name, value in environ.items()), "sh", "-c", around, "sh", *command]
    try:
        terminal.tmux(
            *("new-session", "-d", "-x", str(COLUMNS), "-y", str(LINES), "-s", "t", "sleep 600"),
            *(";", "set-option", "-g", "remain-on-exit", "on"),
            *(";", "set-option", "-g", "history-limit", "5000"),
            *(";", "respawn-pane", "-k", "-t", "t", *inside),
        )
        yield terminal
    finally:
        subprocess.run(["tmux", "-S", str(directory / "tmux"), "kill-server"], capture_output=True, timeout=30)
