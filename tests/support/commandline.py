"""The installed command, driven as a user would: a subprocess, its environment, its output as it comes, its tree."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, TypeVar

import psutil

from hermes_worker.cli.entry import main

COMMAND = str(Path(sys.executable).parent / "hermes-worker")
PATIENCE_S = 60.0
"""For anything that only has to happen some time; the machine may be busy."""
_T = TypeVar("_T")


def wait_for(what: Callable[[], _T | None], *, within_s: float = PATIENCE_S, saying: str = "") -> _T:
    """The first true value of ``what``. Fails when there is none in time."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if value := what():
            return value
        time.sleep(0.05)
    raise AssertionError(f"nothing came within {within_s:g} s {saying}")


class CommandLine:
    """``hermes-worker`` with a home and an environment of its own: no keys, nothing of the machine's configuration."""

    def __init__(self, home: Path, extra: Mapping[str, str] | None = None) -> None:
        self.home = home
        kept = {
            name: os.environ[name] for name in ("PATH", "LANG", "LC_ALL", "TMPDIR", "PYTHONPATH") if name in os.environ
        }
        self.environ = {
            **kept,
            "HOME": str(home.parent),
            "HERMES_HOME": str(home),
            "PYTHONUNBUFFERED": "1",
            # Recovery is under test, not the patience of the defaults.
            "HERMES_LEASE_TTL_S": "3",
            "HERMES_RESEND_GRACE_S": "1",
            **(extra or {}),
        }

    def __call__(self, *arguments: str, stdin: str | None = None, cwd: Path | None = None) -> Finished:
        """Run to the end."""
        ended = subprocess.run(
            [COMMAND, *arguments],
            env=self.environ,
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            text=True,
            cwd=cwd,
            timeout=PATIENCE_S,
            check=False,
        )
        return Finished(ended.returncode, ended.stdout, ended.stderr)

    def inline(self, *arguments: str, stdin: str = "") -> Finished:
        """As a call, but in this process, which saves a second of imports: for commands that start nothing."""
        out, err = io.StringIO(), io.StringIO()
        before = dict(os.environ)
        os.environ.clear()
        os.environ.update(self.environ)
        source = sys.stdin
        sys.stdin = io.TextIOWrapper(io.BytesIO(stdin.encode()))
        try:
            with redirect_stdout(out), redirect_stderr(err):
                main(arguments)
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        finally:
            sys.stdin = source
            os.environ.clear()
            os.environ.update(before)
        return Finished(code, out.getvalue(), err.getvalue())

    @contextmanager
    def started(self, *arguments: str, cwd: Path | None = None) -> Iterator[Running]:
        """Run in the background; killed with everything below it at the end of the block, if it still runs."""
        running = Running([COMMAND, *arguments], self.environ, cwd)
        try:
            yield running
        finally:
            running.destroy()

    @contextmanager
    def up(self, *arguments: str) -> Iterator[Running]:
        """``hermes-worker up`` on a free port, ready."""
        with self.started("up", "--port", "0", *arguments) as running:
            running.wait_for_line(r"Hermes worker is up")
            yield running
            if running.is_running:
                running.interrupt()
                assert running.wait() == 0, running.output

    def run_of(self, run_id: str) -> dict[str, Any]:
        """``runs show --json``."""
        shown = self.inline("runs", "show", run_id, "--json")
        assert shown.code == 0, shown.err
        document = json.loads(shown.out)
        assert isinstance(document, dict)
        return document


class Finished:
    """How a command ended."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code = code
        self.out = out
        self.err = err

    @property
    def said(self) -> str:
        return self.out + self.err


class Running:
    """A command in the background. It has a session of its own, as in a terminal of its own."""

    def __init__(self, argv: Sequence[str], environ: Mapping[str, str], cwd: Path | None) -> None:
        self.began = time.monotonic()
        self._process = subprocess.Popen(
            argv,
            env=dict(environ),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._lines: list[tuple[float, str]] = []
        self._seen: dict[int, psutil.Process] = {}
        threading.Thread(target=self._read, daemon=True).start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def output(self) -> str:
        return "".join(line for _, line in self._lines)

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def wait_for_line(self, pattern: str, *, within_s: float = PATIENCE_S) -> re.Match[str]:
        """The first line that matches, read already or still to come."""
        compiled = re.compile(pattern)

        def found() -> re.Match[str] | None:
            ended = not self.is_running
            match = next((m for _, line in list(self._lines) if (m := compiled.search(line))), None)
            assert match or not ended, f"it ended without saying {pattern!r}:\n{self.output}"
            return match

        return wait_for(found, within_s=within_s, saying=f"for {pattern!r}; so far:\n{self.output}")

    def seconds_until(self, pattern: str) -> float:
        """From the start of the command to the first line that matches."""
        compiled = re.compile(pattern)
        return next(at for at, line in self._lines if compiled.search(line)) - self.began

    def note_tree(self) -> list[psutil.Process]:
        """Every process below this one now; ``survivors`` looks for all that were ever noted."""
        tree = psutil.Process(self.pid).children(recursive=True)
        self._seen.update({process.pid: process for process in tree})
        return tree

    def child(self, role: str) -> psutil.Process:
        """The process below this one that plays a role of the stack: ``model``, ``tools``, ``api`` ..."""

        def found() -> psutil.Process | None:
            return next((p for p in self.note_tree() if _name_of(p) == f"hermes-{role}"), None)

        return wait_for(found, saying=f"for a child {role!r}")

    def survivors(self) -> list[str]:
        """Of the noted processes those that still run. A process number that was given to another does not count."""
        alive = [process for process in self._seen.values() if _is_alive(process)]
        return [f"{p.pid} {_name_of(p)} {_command_of(p)}" for p in alive]

    def interrupt(self) -> None:
        """Ctrl-C: the terminal sends it to the whole foreground group."""
        self.note_tree()
        os.killpg(self.pid, signal.SIGINT)

    def kill(self) -> None:
        """SIGKILL to this one process."""
        self.note_tree()
        self._process.kill()

    def wait(self, within_s: float = PATIENCE_S) -> int:
        return self._process.wait(within_s)

    def destroy(self) -> None:
        if self.is_running:
            self.note_tree()
            self._process.kill()
            self._process.wait()
        for process in self._seen.values():
            if process.is_running():
                process.kill()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.append((time.monotonic(), line))


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:  # it went between the two questions
        return False


def _name_of(process: psutil.Process) -> str:
    try:
        return process.name()
    except psutil.Error:
        return ""


def _command_of(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def script(*steps: Mapping[str, Any], final: str = "All done.", **pace: float) -> str:
    """A prompt that the scripted model follows."""
    return f"scripted: {json.dumps({'steps': steps, 'final': final, **pace})}"


def call(tool: str, **arguments: Any) -> dict[str, Any]:
    """A step with one tool call."""
    return {"calls": [{"name": tool, "arguments": arguments}]}
