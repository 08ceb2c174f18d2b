"""Keeps child processes running: starts them in order, forwards what they print, restarts them, stops them.

One thread and one ``select``: children's output, signals and the end of the parent all arrive as readable descriptors,
and everything that happens later is a time in a child's record. ``supervisor`` runs this in a process of its own.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import subprocess
import time
from collections import deque
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from itertools import groupby
from pathlib import Path

import psutil

from hermes_worker.local.forking import ChildEntry, ChildPlan, ForkedProcess, Zygote, can_fork
from hermes_worker.local.process import die_with_parent_hook, list_child_processes
from hermes_worker.observe import log
from hermes_worker.settings.secret_transfer import SECRETS_FD, open_sealed

_READY_POLL_S = 0.02
_BACKOFF_FIRST_S = 0.5
_BACKOFF_MAX_S = 30.0
_HEALTHY_AFTER_S = 60.0
_ORPHANED_GRACE_S = 2.0
"""How many seconds children get to end when our parent is dead and an orderly end is not waited for any more."""
_BURIAL_PATIENCE_S = 1.0
_LINE_BYTES_MAX = 64 * 1024
"""A longer line is forwarded in pieces."""
_LAST_LINES = 6
_LAST_WORDS_CHARS_MAX = 1_000
_SENTENCE = "hermes-worker: "
"""The words in front of the one sentence that a role of ours ends with."""
_PROGRESS_FIRST_S = 5.0
"""After so many seconds, and then after twice as long each time, the children that are not ready are named."""
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

EXIT_START_FAILED = 1
EXIT_INTERRUPTED = 130
"""The exit status that shells report for a command that Ctrl-C ended."""


def _wait_for_nothing() -> None:
    """Say that a child waits for nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildSpec:
    """A process to keep running."""

    name: str
    """Stands in front of every line it prints."""
    argv: Sequence[str]
    env: Mapping[str, str]
    """Its whole environment, which others can read: nothing secret."""
    secrets: bytes | None = field(default=None, repr=False)
    """Bytes for the child to read behind the descriptor that ``handover.SECRETS_FD`` names in its environment."""
    ready: Callable[[], bool] | None = None
    """Returns whether the child does its work; quick, never raises. ``None``: as soon as it is started."""
    waits_for: Callable[[], str | None] = _wait_for_nothing
    """Returns what the child waits for, as a sentence; quick, never raises. One that never was ready is given up after
    ``waiting_timeout_s`` of it; one that was ready once may wait as long as it must.
    """
    waiting_timeout_s: float = 20.0
    ready_timeout_s: float = 30.0
    grace_s: float = 10.0
    """How many seconds it may take to end after SIGTERM, before SIGKILL."""
    group: str = ""
    """Neighbours of the same group start together and stop together."""
    pass_fds: tuple[int, ...] = ()
    """Descriptors it inherits beside the standard ones."""
    main: ChildEntry | None = None
    """Does the work of ``argv`` in a child that is forked; used where that is possible, see ``forked``."""
    after_exit: ChildEntry | None = None
    """Called when the child ended by itself, before it is started again: in a process of its own, with the environment
    and the secrets of the child, and its exit status (minus the signal) as one more argument."""
    log_path: Path | None = None
    """The file to which it writes its messages; ``None`` when it prints them."""
    recover: Callable[[str], bool] | None = None
    """Called with its last words when it ended before it was ready; quick, never raises. True when it removed the
    cause: then the child is started once more, at once."""


class ChildState(StrEnum):
    WAITING = "waiting"
    """Not running: not started yet, or to be started again at ``due_at``."""
    STARTING = "starting"
    """Running, not ready yet; given up at ``due_at``."""
    READY = "ready"
    STOPPED = "stopped"
    """Ended, and it stays so."""


def restart_delay_s(failures: int) -> float:
    """How many seconds to wait before the next start after ``failures`` early ends in a row, the first counted as 1."""
    return float(min(_BACKOFF_MAX_S, _BACKOFF_FIRST_S * 2 ** min(failures - 1, 16)))


class _ChildRecord:
    def __init__(self, spec: ChildSpec) -> None:
        self.spec = spec
        self.state = ChildState.WAITING
        self.due_at: float | None = None
        """When the child is next looked at if nothing else happens, by the monotonic clock."""
        self.failures = 0
        self.was_ready = False
        self.is_late = False
        """It was killed because it did not get ready in time."""
        self.waited_since: float | None = None
        self.cause: str | None = None
        """The child's own words for what it waits for; ``None`` for nothing."""
        self.has_recovered = False
        self._log_offset = 0
        self.started_at = 0.0
        self.process: subprocess.Popen[bytes] | ForkedProcess | None = None
        self.aftermath: subprocess.Popen[bytes] | ForkedProcess | None = None
        """The process of ``after_exit``; the next start waits for its end."""
        self.pipe: _OutputPipe | None = None

    @property
    def is_running(self) -> bool:
        return self.state in (ChildState.STARTING, ChildState.READY)

    def is_due(self, now: float) -> bool:
        """Whether its next start has come."""
        is_time = self.due_at is not None and now >= self.due_at
        return self.state is ChildState.WAITING and self.aftermath is None and is_time

    def begin(self, now: float) -> None:
        """Note that it is being started."""
        self.started_at = now
        self.is_late, self.waited_since, self.cause = False, None, None
        self.pipe = None
        path = self.spec.log_path
        self._log_offset = path.stat().st_size if path is not None and path.exists() else 0

    @property
    def patience_s(self) -> float:
        """How many seconds it may take to get ready."""
        return self.spec.ready_timeout_s if self.cause is None else self.spec.waiting_timeout_s

    def note_cause(self, now: float) -> None:
        """Note, while it gets ready, what it waits for, and when to give up because of that."""
        self.cause = self.spec.waits_for()
        if self.cause is None or self.due_at is None:
            self.waited_since = None
        elif self.was_ready:
            self.due_at = now + self.spec.ready_timeout_s
        elif self.waited_since is None:
            self.waited_since = now
            self.due_at = min(self.due_at, now + self.spec.waiting_timeout_s)

    def read_last_words(self) -> str:
        """The end of its output since it was started, as one line."""
        lines = list(self.pipe.last_lines) if self.pipe is not None else []
        return find_last_words(self._read_logged_lines() + lines)

    def _read_logged_lines(self) -> list[str]:
        if self.spec.log_path is None:
            return []
        try:
            with self.spec.log_path.open("rb") as file:
                end = file.seek(0, os.SEEK_END)
                begun = self._log_offset if self._log_offset <= end else 0  # it was put aside
                file.seek(max(begun, end - _LINE_BYTES_MAX))
                return file.read().decode(errors="replace").splitlines()
        except OSError:
            return []

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, not by ``Popen.send_signal``, which reaps a child that has just ended, behind the back of the
        loop.
        """
        if self.process is not None:
            os.kill(self.process.pid, number)


def find_last_words(lines: Sequence[str]) -> str:
    """The last words of a child: the sentence of a role of ours, else its last lines as one; may be empty."""
    said = [stripped for line in lines if (stripped := line.strip())]
    sentence = next((line for line in reversed(said) if line.startswith(_SENTENCE)), None)
    words = sentence.removeprefix(_SENTENCE) if sentence else " | ".join(said[-_LAST_LINES:])
    return words[-_LAST_WORDS_CHARS_MAX:]


class ChildLoop:
    """Runs children until a stop signal or the end of the parent. Once, on the main thread of its process."""

    def __init__(
        self,
        specs: Sequence[ChildSpec],
        *,
        lifeline: int,
        output: int = 2,
        has_prefixes: bool = True,
        on_output: Callable[[], None] | None = None,
        preload: ChildEntry | None = None,
    ) -> None:
        """``lifeline`` is a descriptor that becomes readable when the parent dies. ``on_output`` is called after lines
        that were forwarded; it must be quick and never raise. ``preload`` imports what the children that are forked
        have in common, in the process that forks them.
        """
        self._zygote = Zygote(preload, output=output)
        self._children = [_ChildRecord(spec) for spec in specs]
        self._name_width = max((len(spec.name) for spec in specs), default=0)
        self._lifeline = lifeline
        self._output = output
        self._has_prefixes = has_prefixes
        self._on_output = on_output
        self._selector = selectors.DefaultSelector()
        self._pipes: dict[int, _OutputPipe] = {}
        self._stop_requests = 0
        self._is_over = False
        self._must_kill = False
        self._is_orphaned = False
        self._progress_at: float | None = None
        self._progress_step_s = _PROGRESS_FIRST_S
        self.failure: str | None = None
        """Why the start failed, as a sentence with the child's last words; ``None`` while it has not."""

    def run(self, on_ready: Callable[[], None]) -> int:
        """Run the children; return the exit status: 0 after an orderly stop. ``on_ready`` is called once everything is
        ready.

        Stop signals that the caller has blocked are let in as soon as their handler is there.
        """
        with self._listening():
            signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
            if self._start_all():
                on_ready()
                self._run_until(self._is_stopping)
            status = 0 if self._is_stopping() else EXIT_START_FAILED
            self._stop_all()
            return EXIT_INTERRUPTED if self._must_kill else status

    # --- starting and stopping ---------------------------------------------------------------------------------------

    def _list_groups(self) -> list[list[_ChildRecord]]:
        """Children that start and stop together, in order of start. A child without a group is one by itself."""
        numbered = enumerate(self._children)
        return [[child for _, child in group] for _, group in groupby(numbered, lambda nc: nc[1].spec.group or nc[0])]

    def _start_all(self) -> bool:
        forked = next((child.spec for child in self._children if child.spec.main is not None), None)
        if forked is not None and can_fork():
            self._zygote.start(forked.env)  # it imports while others start
        for group in self._list_groups():
            self._progress_step_s = _PROGRESS_FIRST_S
            self._progress_at = time.monotonic() + _PROGRESS_FIRST_S
            for child in group:
                self._spawn(child)
            self._run_until(partial(self._is_settled, group))
            self._progress_at = None
            if self._is_stopping() or not all(child.was_ready for child in group):
                return False
        return True

    def _is_settled(self, group: list[_ChildRecord]) -> bool:
        """Whether all are ready; or one ended before it ever was, and starting on would only hide its complaint."""
        has_failed = any(child.state is ChildState.STOPPED for child in group)
        return has_failed or all(child.was_ready for child in group) or self._is_stopping()

    def _stop_all(self) -> None:
        self._is_over = True
        for group in reversed(self._list_groups()):
            self._stop_group(group)
        kill_descendants()
        # No writer is left, so what is in the pipes is all there will be.
        for pipe in list(self._pipes.values()):
            pipe.forward_all()

    def _stop_group(self, group: list[_ChildRecord]) -> None:
        for child in group:
            if not child.is_running:
                child.state = ChildState.STOPPED
            else:
                child.signal(signal.SIGTERM)
        ends = [(child, time.monotonic() + self._compute_grace_s(child)) for child in group]
        for child, kill_at in sorted(ends, key=lambda end: end[1]):
            self._run_until(partial(self._has_no_work, child), kill_at)
            if child.is_running:
                log.warning("child.killed", child=child.spec.name, after_s=self._compute_grace_s(child))
                child.signal(signal.SIGKILL)
                self._run_until(partial(_has_ended, child))

    def _has_no_work(self, child: _ChildRecord) -> bool:
        return self._must_kill or not child.is_running

    def _compute_grace_s(self, child: _ChildRecord) -> float:
        return min(child.spec.grace_s, _ORPHANED_GRACE_S) if self._is_orphaned else child.spec.grace_s

    def _is_stopping(self) -> bool:
        return self._is_over or self._stop_requests > 0

    def _spawn(self, child: _ChildRecord) -> None:
        child.begin(time.monotonic())
        try:
            child.process = self._start_with_secrets(child.spec)
        except OSError as error:
            self._on_failed_start(child, f"it could not be started ({error.strerror})")
            return
        self._forward_output(child.process, child)
        child.state = ChildState.STARTING
        child.due_at = child.started_at + child.spec.ready_timeout_s
        log.info("child.started", child=child.spec.name, child_pid=child.process.pid)

    def _start_with_secrets(self, spec: ChildSpec) -> subprocess.Popen[bytes] | ForkedProcess:
        if spec.secrets is None:
            return self._start_child(spec)
        with open_sealed(spec.secrets) as descriptor:
            env = {**spec.env, SECRETS_FD: str(descriptor)}
            return self._start_child(replace(spec, env=env, pass_fds=(*spec.pass_fds, descriptor)))

    def _start_child(self, spec: ChildSpec) -> subprocess.Popen[bytes] | ForkedProcess:
        if spec.main is None or not can_fork():
            return _start_process(spec)
        return self._zygote.fork(ChildPlan(f"hermes-{spec.name}", spec.main, spec.env), spec.pass_fds)

    # --- the loop ----------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _listening(self) -> Iterator[None]:
        """Turn signals and the parent's death into events of the selector while the block runs."""
        wake_reader, wake_writer = socket.socketpair()
        for end in (wake_reader, wake_writer):
            end.setblocking(False)
        self._selector.register(wake_reader, selectors.EVENT_READ, lambda: wake_reader.recv(4096))
        self._selector.register(self._lifeline, selectors.EVENT_READ, self._on_parent_death)
        before = {number: signal.signal(number, self._request_stop) for number in STOP_SIGNALS}
        # Python writes to the wake-up socket only for signals that have a handler.
        before[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(wake_writer.fileno(), warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(-1)
            for number, handler in before.items():
                signal.signal(number, handler)
            self._selector.close()
            wake_reader.close()
            wake_writer.close()

    def _request_stop(self, number: int, frame: object) -> None:
        self._must_kill = self._must_kill or (number == signal.SIGINT and self._stop_requests > 0)
        self._stop_requests += 1

    def _on_parent_death(self) -> None:
        self._selector.unregister(self._lifeline)
        self._is_orphaned = True
        self._stop_requests += 1

    def _run_until(self, is_over: Callable[[], bool], deadline: float | None = None) -> None:
        """Handle events and times until ``is_over`` or ``deadline``."""
        while not is_over():
            if deadline is not None and time.monotonic() >= deadline:
                return
            for key, _ in self._selector.select(self._compute_patience_s(deadline)):
                key.data()
            self._reap_ended()
            self._handle_due()

    def _compute_patience_s(self, deadline: float | None) -> float | None:
        """How many seconds until the next time is due; ``None`` for none."""
        now = time.monotonic()
        moments = (deadline, self._progress_at, *(each.due_at for each in self._children if each.aftermath is None))
        due = [at - now for at in moments if at is not None]
        if any(child.state is ChildState.STARTING for child in self._children):
            due.append(_READY_POLL_S)
        return max(0.0, min(due)) if due else None

    def _handle_due(self) -> None:
        now = time.monotonic()
        for child in self._children:
            if child.state is ChildState.STARTING:
                self._check_start(child, now)
            elif child.is_due(now) and not self._is_stopping():
                self._spawn(child)
        if self._progress_at is not None and now >= self._progress_at:
            self._report_progress(now)

    def _report_progress(self, now: float) -> None:
        """Name the children that are not ready yet, at growing intervals."""
        waiting = [child for child in self._children if child.is_running and not child.was_ready]
        if waiting:
            since = min(child.started_at for child in waiting)
            log.info("child.awaited", children=",".join(child.spec.name for child in waiting), for_s=round(now - since))
        self._progress_step_s *= 2
        self._progress_at = now + self._progress_step_s

    def _check_start(self, child: _ChildRecord, now: float) -> None:
        if child.spec.ready is None or child.spec.ready():
            child.state = ChildState.READY
            child.was_ready = True
            child.has_recovered = False
            child.due_at = None
            return
        child.note_cause(now)
        if child.due_at is not None and now >= child.due_at:
            log.error("child.killed", child=child.spec.name, not_ready_after_s=child.patience_s)
            child.due_at = None
            child.is_late = True
            child.signal(signal.SIGKILL)

    # --- ends --------------------------------------------------------------------------------------------------------

    def _reap_ended(self) -> None:
        """Reap all processes that have ended: our children, and orphans of theirs that the kernel gave to us."""
        for pid in _list_ended():  # each looked for anew: what follows one end may have ended by the next look
            for child in self._children:
                if child.process is not None and child.is_running and child.process.pid == pid:
                    self._reap_child(child, child.process)
                    break
                if child.aftermath is not None and child.aftermath.pid == pid:
                    child.aftermath.wait()
                    child.aftermath = None
                    break
            else:
                os.waitpid(pid, 0)

    def _reap_child(self, child: _ChildRecord, process: subprocess.Popen[bytes] | ForkedProcess) -> None:
        pid = process.pid
        # Its number is ours until it is reaped, so the group that is killed here cannot be another's.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
        status = process.wait()
        if child.pipe is not None:
            child.pipe.forward_all()
        if self._is_stopping():
            child.state = ChildState.STOPPED
            child.due_at = None
            return
        self._plan_next(child, status, pid)
        if child.spec.after_exit is not None and child.state is ChildState.WAITING:
            self._begin_aftermath(child, child.spec.after_exit, status)

    def _begin_aftermath(self, child: _ChildRecord, entry: ChildEntry, status: int) -> None:
        entry = replace(entry, arguments=[*entry.arguments, str(status)])
        try:
            child.aftermath = self._start_with_secrets(replace(child.spec, main=entry, argv=entry.argv))
        except OSError as error:
            log.warning("child.failed", child=child.spec.name, status=f"nothing was done after its end: {error}")
            return
        self._forward_output(child.aftermath, child)

    def _plan_next(self, child: _ChildRecord, status: int, pid: int) -> None:
        text = _format_status(status)
        if child.state is ChildState.READY:
            self._plan_restart(child, text, pid)
        elif child.is_late:
            self._on_failed_start(child, f"it was not ready after {child.patience_s:g} s", pid)
        else:
            self._on_failed_start(child, text, pid)

    def _on_failed_start(self, child: _ChildRecord, status: str, pid: int | None = None) -> None:
        """A child ended before it was ready: mend what stopped it, try again later, or give up and say why."""
        words = child.cause or child.read_last_words()
        recover = child.spec.recover
        if recover is not None and not child.has_recovered and recover(words):
            child.has_recovered = True
            child.state, child.due_at = ChildState.WAITING, time.monotonic()
        elif child.was_ready:
            self._plan_restart(child, status, pid, words)
        else:
            child.state, child.due_at = ChildState.STOPPED, None
            said = words or "it said nothing"
            self.failure = self.failure or f"{child.spec.name} could not be started: {status}: {said}"
            log.error("child.failed", child=child.spec.name, child_pid=pid, status=status, last_words=said)

    def _plan_restart(self, child: _ChildRecord, status: str, pid: int | None, words: str | None = None) -> None:
        now = time.monotonic()
        ran_s = now - child.started_at
        child.failures = 1 if ran_s >= _HEALTHY_AFTER_S else child.failures + 1
        delay_s = restart_delay_s(child.failures)
        child.state, child.due_at = ChildState.WAITING, now + delay_s
        said = {"last_words": words} if words else {}
        log.warning(
            "child.exited",
            child=child.spec.name,
            child_pid=pid,
            status=status,
            **said,
            ran_s=round(ran_s, 1),
            restart_in_s=delay_s,
        )

    # --- output ------------------------------------------------------------------------------------------------------

    def _forward_output(self, process: subprocess.Popen[bytes] | ForkedProcess, child: _ChildRecord) -> None:
        assert process.stdout is not None  # the library's type: ``_start_process`` asks for a pipe
        descriptor = os.dup(process.stdout.fileno())
        process.stdout.close()
        prefix = f"{child.spec.name:<{self._name_width}} | ".encode() if self._has_prefixes else b""
        pipe = _OutputPipe(descriptor, self._output, prefix)

        def forward() -> None:
            if not pipe.forward():
                self._selector.unregister(descriptor)
                del self._pipes[descriptor]
                pipe.close()
            if self._on_output is not None:
                self._on_output()

        # It may outlive the child: what the child started writes to the same pipe.
        child.pipe = self._pipes[descriptor] = pipe
        self._selector.register(descriptor, selectors.EVENT_READ, forward)


def _has_ended(child: _ChildRecord) -> bool:
    return not child.is_running


class _OutputPipe:
    """Forwards what arrives in a pipe, in whole lines with a prefix."""

    def __init__(self, descriptor: int, output: int, prefix: bytes) -> None:
        os.set_blocking(descriptor, False)
        self._descriptor = descriptor
        self._output = output
        self._prefix = prefix
        self._begun = b""
        self._is_closed = False
        self._last: deque[bytes] = deque(maxlen=_LAST_LINES)

    def forward(self) -> bool:
        """Forward what is there; false when nothing will come any more."""
        try:
            data = os.read(self._descriptor, _LINE_BYTES_MAX)
        except BlockingIOError:
            return True
        *lines, self._begun = (self._begun + data).split(b"\n")
        if self._begun and (not data or len(self._begun) >= _LINE_BYTES_MAX):
            lines.append(self._begun)
            self._begun = b""
        self._last.extend(lines)
        self._print(b"".join(self._prefix + line + b"\n" for line in lines))
        return bool(data)

    @property
    def last_lines(self) -> list[str]:
        """The last few lines that were forwarded."""
        return [line[:_LINE_BYTES_MAX].decode(errors="replace") for line in self._last]

    def forward_all(self) -> None:
        """Forward everything that has been written so far."""
        if self._is_closed:
            return
        with selectors.DefaultSelector() as selector:
            selector.register(self._descriptor, selectors.EVENT_READ)
            while selector.select(0) and self.forward():
                pass

    def close(self) -> None:
        self._is_closed = True
        os.close(self._descriptor)

    def _print(self, data: bytes) -> None:
        try:
            while data:
                data = data[os.write(self._output, data) :]
        except OSError:
            # The terminal is gone. The children are not.
            return


def _start_process(spec: ChildSpec) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        spec.argv,
        env=dict(spec.env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        bufsize=0,
        pass_fds=spec.pass_fds,
        # A session of its own, so that the terminal's Ctrl-C reaches it only through us, in order.
        start_new_session=True,
        preexec_fn=die_with_parent_hook(signal.SIGKILL),
    )


def _list_ended() -> Iterator[int]:
    """Children that have ended and are not reaped yet."""
    while True:
        try:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if ended is None:
            return
        yield ended.si_pid


def kill_descendants(spare: Container[int] = ()) -> None:
    """Kill everything below this process, except the processes in ``spare`` and what is below them.

    Again and again until nothing is left: what a process starts while it is killed is found the next time, because a
    subreaper inherits the orphans of its descendants.
    """
    while doomed := [child for child in list_child_processes() if child.pid not in spare]:
        for child in doomed:
            with contextlib.suppress(psutil.NoSuchProcess):
                for process in (child, *list_child_processes(child.pid, recursive=True)):
                    process.kill()
            with contextlib.suppress(psutil.TimeoutExpired, psutil.NoSuchProcess):
                child.wait(_BURIAL_PATIENCE_S)


def _format_status(status: int) -> str:
    return f"exit status {status}" if status >= 0 else f"killed by {signal.Signals(-status).name}"
