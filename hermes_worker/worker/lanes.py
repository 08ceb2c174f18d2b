"""Lanes: processes in which suspects are tried, one step at a time, with nothing else to harm or to blame.

Theory of operation. A step whose worker vanished is a suspect (``core.run.Run.deaths``). Its message goes to a queue of
its own, and only a claim made apart takes it, so a message that went astray runs it beside no other step. A worker
whose queues have suspects waiting asks the *parent of its lanes* for a lane. That is a process which the worker starts
when it asks for the first time, from nothing, because by then it has threads; it works on nothing, and starts lanes and
waits for their ends. A lane is a worker of its own, with a row and a heartbeat of its own; what brings it down is the
one step it does.

*Who says that a lane died of its step?* Only the parent, which saw it end by itself: it marks the lane's row crashed,
and the sweeper counts that against the step. Nothing else counts: a lane that leaves in order, that is told to leave,
that finds its row taken because it was frozen or cut off, or that goes down together with its parent, because then no
process reports it. A parent lives on after its worker until the lanes have left, so the death of a worker beside a lane
changes nothing.

A lane leaves when nothing was there for it for a while, and whenever it may hold a claim that it does not know of: what
it holds is then always the one step that it does.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import NoReturn

from hermes_worker.broker.queue import list_lane_queues
from hermes_worker.core.errors import UnavailableError
from hermes_worker.local.children import restart_delay_s
from hermes_worker.local.forking import can_fork
from hermes_worker.local.process import die_with_parent_hook, name_process, title_process
from hermes_worker.observe import configure_logging, log
from hermes_worker.settings import Settings, build_handover, load_settings
from hermes_worker.settings.role_secrets import ProcessRole
from hermes_worker.settings.secret_transfer import SECRETS_FD, begin_program, open_sealed
from hermes_worker.store.build import build_database
from hermes_worker.store.workers import Workers
from hermes_worker.tasks.build import WorkerOptions
from hermes_worker.workspaces.command_mark import build_worker_title

_START = b"+"
_LEAVE = b"q"
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_NAME_CHARS = 150
_REPORT_AGAIN_S = 0.2


class LanePool:
    """The lanes of a worker, as the worker sees them. Thread-safe, and shared with the children of a prefork pool."""

    def __init__(self, control: int, parent: int | None = None) -> None:
        """``control`` is the descriptor for orders, ``parent`` the process that reads them; ``None``: not yet."""
        self._control = control
        self._parent = parent
        self._owner = os.getpid()
        self._is_lost = False

    def start_when_asked(self, orders: int, start: Callable[[], int]) -> None:
        """Start the parent with the first request for a lane, which it finds in ``orders``, as every later one."""

        def await_request() -> None:
            try:
                if os.read(orders, 1) == _START:
                    os.write(self._control, _START)
                    self._parent = start()
            finally:
                os.close(orders)  # so that a worker whose lanes could not be started hears of it

        threading.Thread(target=await_request, name="hermes_lanes", daemon=True).start()

    def request_lane(self) -> None:
        """Request one lane more, unless there are as many as there may be. Returns at once.

        A worker without a parent of its lanes could not do its part any more, so it leaves, for its supervisor to start
        a whole one.
        """
        if not self._send_order(_START) and not self._is_lost:
            self._is_lost = True
            log.error("lane.failed", reason="the process that starts lanes is gone; this worker leaves")
            os.kill(os.getpid(), signal.SIGTERM)

    def drain_lanes(self) -> None:
        """Tell every lane to drain, and start none any more. Idempotent; returns at once."""
        self._send_order(_LEAVE)

    def wait(self, seconds: float) -> None:
        """Wait for the lanes and their parent to end, in the process that made them."""
        deadline = time.monotonic() + seconds
        while os.getpid() == self._owner and self._has_lanes() and time.monotonic() < deadline:
            time.sleep(0.02)

    def _has_lanes(self) -> bool:
        return self._parent is not None and not _has_ended(self._parent)

    def _send_order(self, order: bytes) -> bool:
        try:
            os.write(self._control, order)
        except OSError:
            return False
        return True


def _has_ended(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return True


def open_lanes(settings: Settings, options: WorkerOptions) -> LanePool | None:
    """Make the lanes of a worker; ``None`` when none of its queues has suspects. Only in a process that has no threads
    yet: tools that no other program could find are inherited by a parent that is forked now."""
    queues = list_lane_queues(options.queues)
    if not queues:
        return None
    reader, writer = os.pipe()
    base = (options.name or f"{socket.gethostname()}:{os.getpid()}")[:_NAME_CHARS]
    lane = replace(
        options, name=base, queues=tuple(queue.value for queue in queues), alive_file=None, ready_file=None, lanes=None
    )
    if options.more_tools and can_fork():
        pid = _fork(lambda: _run_parent(settings, lane, reader, writer))
        os.close(reader)
        return LanePool(writer, pid)
    pool = LanePool(writer)
    pool.start_when_asked(reader, partial(_spawn_parent, settings, lane, reader))
    return pool


def _spawn_parent(settings: Settings, lane: WorkerOptions, reader: int) -> int:
    os.set_inheritable(reader, True)
    return _spawn_python(settings, ["-P", "-m", __name__, str(reader), lane.name or "", ",".join(lane.queues)])


def _fork(body: Callable[[], object]) -> int:
    """Run ``body`` in a forked process, with the usual signals, which ends with what it returns; return its number."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    gc.freeze()  # a collection in the child would copy all that it looks through
    # Held back until the child heeds them: one that came at once would be lost on what the child inherits.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _STOP_SIGNALS)
    pid = os.fork()
    if pid:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return pid
    status = 1
    try:
        signal.set_wakeup_fd(-1)
        for number in (*_STOP_SIGNALS, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        status = int(body() or 0)  # type: ignore[call-overload]
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 1
    except BaseException:
        log.exception("lane.failed", reason="see the error")
    finally:
        os._exit(status)


def _run_parent(settings: Settings, lane: WorkerOptions, reader: int, writer: int | None = None) -> None:
    if writer is not None:
        os.close(writer)  # or the end of the worker would never be heard
    name_process("lanes")
    title_process(f"lane starter of {lane.name}")
    start: Callable[[str], int] = (
        _LaneForker(settings, lane, reader) if can_fork() else _make_spawner(settings, ",".join(lane.queues))
    )
    _LaneParent(settings, start, lane.name or "", reader).run()


class _LaneForker:
    """Starts lanes by forking this process, which for that imports all they need before the first."""

    def __init__(self, settings: Settings, lane: WorkerOptions, control: int) -> None:
        self._settings = settings
        self._lane = lane
        self._control = control
        self._is_warm = False

    def __call__(self, name: str) -> int:
        if not self._is_warm:
            self._is_warm = True
            for module in self._settings.database.driver_modules:
                importlib.import_module(module)
            importlib.import_module("hermes_worker.worker.warm").warm_up()
        ask_for_death_signal = die_with_parent_hook(signal.SIGKILL)

        def run_lane() -> int:
            if ask_for_death_signal is not None:
                ask_for_death_signal()
            os.close(self._control)
            name_process("lane")
            may_call_us = self._settings.terminal.allow_hermes_worker
            title_process(build_worker_title(f"lane {','.join(self._lane.queues)}", may_call_us=may_call_us))
            # By name: it is made of this module, and imports what only a worker at work needs.
            run_lane: Callable[[Settings, WorkerOptions], int] = importlib.import_module(_MAIN).run_lane
            return run_lane(self._settings, replace(self._lane, name=name))

        return _fork(run_lane)


_MAIN = "hermes_worker.worker.main"


def _make_spawner(settings: Settings, queues: str) -> Callable[[str], int]:
    """Starts lanes from nothing, where processes cannot be forked."""

    def start(name: str) -> int:
        arguments = ["start", "worker", "--queues", queues, "--concurrency", "1", "--name", name]
        default = [signal.SIGCHLD, *_STOP_SIGNALS]
        return _spawn_python(settings, ["-P", "-m", "hermes_worker.cli", *arguments], default)

    return start


def _spawn_python(settings: Settings, arguments: Sequence[str], default: Sequence[int] = ()) -> int:
    """Start Python with everything this process was given, the secrets by descriptor; return its number."""
    environ, secrets = build_handover(settings, *ProcessRole)
    with open_sealed(secrets.to_bytes()) as descriptor:
        os.set_inheritable(descriptor, True)
        environ[SECRETS_FD] = str(descriptor)
        return os.posix_spawn(sys.executable, [sys.executable, *arguments], environ, setsigdef=default)


class _LaneParent:
    """Starts lanes on request, and reports each that ended by itself."""

    def __init__(self, settings: Settings, start: Callable[[str], int], base: str, control: int) -> None:
        self._settings = settings
        self._start = start
        self._base = base
        self._control = control
        self._lanes: dict[int, str] = {}
        self._started = 0
        self._failures = 0
        self._may_start_at = 0.0
        self._is_leaving = False

    def run(self) -> None:
        """Run until the worker says leave, or is gone, and the last lane has ended."""
        for number in _STOP_SIGNALS:
            signal.signal(number, signal.SIG_IGN)  # a terminal's Ctrl-C goes to everybody; the worker tells us
        woken, wakes = os.pipe()
        os.set_blocking(wakes, False)
        signal.set_wakeup_fd(wakes)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        while self._lanes or not self._is_leaving:
            listening = select.poll()  # ``select`` takes no descriptor above 1,023, and a worker may hold more
            for descriptor in [woken] if self._is_leaving else [woken, self._control]:
                listening.register(descriptor, select.POLLIN)
            ready = {descriptor for descriptor, _ in listening.poll()}
            if woken in ready:
                os.read(woken, 100)
            if self._control in ready:
                self._handle_orders(os.read(self._control, 100))
            self._reap_lanes()

    def _handle_orders(self, orders: bytes) -> None:
        if not orders or _LEAVE in orders:
            self._is_leaving = True
            for pid in self._lanes:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM)
        elif len(self._lanes) < self._settings.lease.lanes_max and time.monotonic() >= self._may_start_at:
            self._started += 1
            name = f"{self._base}:lane-{os.getpid()}-{self._started}"
            self._lanes[self._start(name)] = name
            log.info("lane.started", lane=name)

    def _reap_lanes(self) -> None:
        for pid, name in list(self._lanes.items()):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                del self._lanes[pid]
                self._report_end(name, os.waitstatus_to_exitcode(status))

    def _report_end(self, name: str, status: int) -> None:
        """Report the end of a lane. A lane that was told to leave may have been killed for being slow, so its end says
        nothing.
        """
        if status == 0 or self._is_leaving:
            self._failures = 0
            return
        was_working = _mark_crashed(self._settings, name)
        log.warning("lane.crashed", lane=name, status=status, was_working=was_working)
        # One that never came to work would not, either, if it were started again at once.
        self._failures = 0 if was_working else self._failures + 1
        self._may_start_at = time.monotonic() + (restart_delay_s(self._failures) if self._failures else 0.0)


def _mark_crashed(settings: Settings, name: str) -> bool:
    """Mark the lane's row as crashed; return whether it had one. False as well when the database stays away for longer
    than the row lasts.
    """
    deadline = time.monotonic() + settings.lease.ttl_s
    while True:
        database = build_database(settings)
        try:
            return Workers(database).mark_crashed(name)
        except UnavailableError as error:
            log.warning("database.unreachable", doing="report a crash", error=str(error))
            if time.monotonic() > deadline:
                return False
        finally:
            database.close()
        time.sleep(_REPORT_AGAIN_S)


def main() -> NoReturn:
    """The parent of lanes as a program of its own: its arguments are a descriptor, a name and queues."""
    begin_program()
    control, base, queues = sys.argv[1:]
    settings = load_settings()
    os.set_inheritable(int(control), False)
    configure_logging(settings.log, "worker", secrets=settings.secrets)
    _run_parent(settings, WorkerOptions(name=base, queues=tuple(queues.split(","))), int(control))
    sys.exit(0)


if __name__ == "__main__":
    main()
