"""The installed command, driven as a user would: a subprocess, its environment, its output as it comes, its tree."""

from __future__ import annotations

import io
import json
import logging
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, TypeVar

import click
import psutil

from hermes_worker.cli.entry import commands, main
from hermes_worker.cli.invocation import Invocation
from hermes_worker.observe import log
from support.patience import PATIENCE_S
from support.warm_commands import WarmProcess

COMMAND = str(Path(sys.executable).parent / "hermes-worker")
_LAST_WORDS_S = 5.0
"""For the output of a command that has ended; what it left behind may hold the pipe open."""
_T = TypeVar("_T")
Process = WarmProcess | subprocess.Popen[bytes]


def wait_for(what: Callable[[], _T | None], *, within_s: float = PATIENCE_S, saying: str = "") -> _T:
    """The first true value of ``what``. Fails when there is none in time."""
    deadline = time.monotonic() + within_s
    while not (value := what()):
        # Looked at once more after the time is over: the machine may have stood still while we slept.
        assert time.monotonic() < deadline, f"nothing came within {within_s:g} s {saying}"
        time.sleep(0.05)
    return value


def find_command(words: Sequence[str]) -> tuple[click.Command, list[str]]:
    """The command that ``words`` name in their current spelling, and the words behind its name. Fails when there is
    none."""
    command: click.Command | None = commands
    rest = list(words)
    while rest and isinstance(command, click.Group):
        command = command.get_command(click.Context(command), rest.pop(0))
    assert command is not None, words
    return command, rest


def list_commands(group: click.Group = commands, path: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    """Every command that is no group, by the words that name it."""
    context = click.Context(group, obj=Invocation())
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from list_commands(command, (*path, name))
        elif command is not None:
            yield " ".join((*path, name)), command


class CommandLine:
    """``hermes-worker`` with a home and an environment of its own: no keys, nothing of the machine's configuration."""

    def __init__(
        self,
        home: Path,
        extra: Mapping[str, str] | None = None,
        *,
        is_installed: bool = False,
        program: Sequence[str] = (),
    ) -> None:
        """``is_installed`` starts the installed command, from nothing, where else a warm process forks it; ``program``
        is that of another environment."""
        self.home = home
        from_nothing = partial(_start_installed, program or (COMMAND,))
        self._start = from_nothing if is_installed or program else WarmProcess
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
        with ExitStack() as stack:
            source, out, err = (stack.enter_context(TemporaryFile("w+", encoding="utf-8")) for _ in range(3))
            source.write(stdin or "")
            source.seek(0)
            process = self._start(arguments, self.environ, cwd, (source, out, err))
            try:
                code = process.wait(PATIENCE_S)
            finally:
                process.kill()
            out.seek(0)
            err.seek(0)
            return Finished(code, out.read(), err.read())

    def inline(self, *arguments: str, stdin: str = "") -> Finished:
        """As a call, but in this process, which saves a second of imports: for commands that start nothing."""
        out, err = io.StringIO(), io.StringIO()
        before = dict(os.environ)
        os.environ.clear()
        os.environ.update(self.environ)
        source = sys.stdin
        sys.stdin = io.TextIOWrapper(io.BytesIO(stdin.encode()))
        root = logging.getLogger()
        handlers, level, ours = root.handlers[:], root.level, (log._level, log._emit)
        try:
            with redirect_stdout(out), redirect_stderr(err):
                main(arguments)
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        finally:
            # The next test's server is in this process as well, and says what a command for people would leave out.
            root.handlers[:] = handlers
            root.setLevel(level)
            log._level, log._emit = ours
            sys.stdin = source
            os.environ.clear()
            os.environ.update(before)
        return Finished(code, out.getvalue(), err.getvalue())

    @contextmanager
    def started(self, *arguments: str, cwd: Path | None = None) -> Iterator[Running]:
        """Run in the background; killed with everything below it at the end of the block, if it still runs."""
        running = Running(partial(self._start, arguments, self.environ, cwd))
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

    def __init__(self, start: Callable[[Sequence[IO[Any]]], Process]) -> None:
        reader, writer = os.pipe()
        with Path(os.devnull).open() as nothing, os.fdopen(writer) as output:
            self._process = start((nothing, output, output))
        self._output = os.fdopen(reader)
        self._lines: list[tuple[float, str]] = []
        self._seen: dict[int, psutil.Process] = {}
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

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

    def note_tree(self) -> list[psutil.Process]:
        """Every process below this one now; ``survivors`` looks for all that were ever noted."""
        try:
            tree = psutil.Process(self.pid).children(recursive=True)
        except psutil.NoSuchProcess:  # it has just ended, and what it started with it
            return []
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
        """For its end, and for what it wrote before; the exit status."""
        try:
            status = self._process.wait(within_s)
            self._reader.join(_LAST_WORDS_S)
            return status
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it runs on after {within_s} s; so far:\n{self.output}") from None

    def destroy(self) -> None:
        if self.is_running:
            self.note_tree()
            self._process.kill()
            self._process.wait()
        for process in self._seen.values():
            if process.is_running():
                process.kill()

    def _read(self) -> None:
        for line in self._output:
            self._lines.append((time.monotonic(), line))


def _start_installed(
    program: Sequence[str],
    arguments: Sequence[str],
    environ: Mapping[str, str],
    cwd: Path | None,
    streams: Sequence[IO[Any]],
) -> subprocess.Popen[bytes]:
    source, out, err = streams
    return subprocess.Popen(
        [*program, *arguments],
        env=dict(environ),
        cwd=cwd,
        stdin=source,
        stdout=out,
        stderr=err,
        start_new_session=True,
    )


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
