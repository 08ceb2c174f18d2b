"""How a worker process begins and how it leaves.

It leaves in order: take no new work, finish what it does for as long as the drain period allows, hand over what another
worker can take over, and then go, whatever still runs. Celery's own warm shutdown cannot be bounded with the threads
pool, and does not tell the children of the prefork pool that it began; hence the thread and the pipe here.
"""

from __future__ import annotations

import os
import threading
import time
from dataclasses import replace
from typing import Any

from celery import signals

from hermes_worker import settings as settings_module
from hermes_worker.observe import log
from hermes_worker.settings import LeaseSettings, Settings
from hermes_worker.tasks.build import WorkerOptions
from hermes_worker.tasks.maintenance import remove_left_on_machine
from hermes_worker.wiring import WorkerProcess, start_worker_process
from hermes_worker.worker import lanes as lanes_module
from hermes_worker.worker.lanes import LanePool
from hermes_worker.workspaces.sandbox.groups import groups

HAND_OVER_S = 3.0
"""After the drain period, steps that can be handed over get this long to notice and be given back."""

_LANES_PATIENCE_S = HAND_OVER_S + 2.0
"""How many seconds lanes get to end once the worker has: they were told to leave when it was, and take no longer."""

_process: WorkerProcess | None = None
_lanes: LanePool | None = None
_options = WorkerOptions()
_process_lock = threading.Lock()
_hurry = threading.Event()


def get_process(settings: Settings | None = None) -> WorkerProcess:
    """The parts of this operating-system process, built once and after any fork.

    Raises ``ConfigurationError``, ``UnavailableError``.
    """
    global _process
    with _process_lock:
        if _process is None or _process.pid != os.getpid():
            _process = start_worker_process(settings or settings_module.load_settings(), _options)
        return _process


def open_lanes(settings: Settings, options: WorkerOptions) -> WorkerOptions:
    """``options`` with lanes, made now unless they were made before. Only while this process has no threads."""
    global _lanes
    if _lanes is None and not options.is_lane:
        _lanes = lanes_module.open_lanes(settings, options)
    return replace(options, lanes=_lanes)


def is_lane() -> bool:
    """Whether this process does suspects, and nothing else."""
    return _options.is_lane


def connect_signals(settings: Settings, options: WorkerOptions | None = None) -> None:
    """Start this process's parts with the worker, and leave in order."""
    global _options
    _options = options or _options
    drain_line = _DrainLine()

    def begin(sender: Any = None, **_: Any) -> None:
        global _options
        groups.find_parent()  # while this process is as alone in its control group as it will ever be
        remove_left_on_machine(settings.home)
        _options = open_lanes(settings, _options)
        if _uses_prefork(sender):
            drain_line.open()  # the children work; this process only looks after them and needs no parts
            return
        get_process(settings)

    def begin_child(**_: Any) -> None:
        here = get_process(settings)
        here.keeper.join_pool(os.getppid())
        drain_line.listen(here, settings.lease)

    def drain(**_: Any) -> None:
        if _lanes is not None:
            _lanes.drain_lanes()
        if drain_line.is_open:
            drain_line.say_drain()
            threading.Thread(target=_end_after, args=(_compute_patience_s(settings.lease),), daemon=True).start()
            return
        start_draining(get_process(settings), settings.lease)

    def leave(**_: Any) -> None:
        if not drain_line.is_open:
            get_process(settings).close()
        if _lanes is not None:
            _lanes.wait(_LANES_PATIENCE_S)
        if not drain_line.is_open:
            log.info("worker.stopped")

    def serve(sender: Any = None, **_: Any) -> None:
        # Not before a prefork pool has its children: the first of them would inherit the socket.
        if settings.metrics.port is not None and not _options.is_lane:
            controller = getattr(sender, "controller", None)
            slots = int(getattr(controller, "concurrency", 0) or 0)
            _serve_metrics(settings, slots, None if drain_line.is_open else get_process(settings))

    signals.worker_init.connect(begin, weak=False)
    signals.worker_ready.connect(serve, weak=False)
    signals.worker_process_init.connect(begin_child, weak=False)
    signals.worker_shutting_down.connect(drain, weak=False)
    signals.worker_shutdown.connect(leave, weak=False)
    signals.worker_process_shutdown.connect(leave, weak=False)


def _serve_metrics(settings: Settings, slots: int, here: WorkerProcess | None) -> None:
    """Serve the metrics. ``here`` is ``None`` in the parent of a prefork pool, which does nothing itself."""
    from hermes_worker.metrics.serving import build_connection_gauges, serve_metrics  # loaded where they are wanted

    gauges = {"hermes_process_slots": lambda: float(slots)}
    if here is not None:
        gauges |= {"hermes_process_in_flight": lambda: float(here.parts.leases.in_flight)}
        gauges |= build_connection_gauges(here.database)
    serve_metrics(settings, "worker", gauges, fleet=here.database if here and _options.has_beat else None)


def compute_leave_s(lease: LeaseSettings) -> float:
    """The longest that a worker takes to leave after SIGTERM, its lanes included, in seconds."""
    return _compute_patience_s(lease) + _LANES_PATIENCE_S


def _compute_patience_s(lease: LeaseSettings) -> float:
    """The longest that leaving in order can take."""
    return lease.drain_s + lease.drain_once_s + 2 * HAND_OVER_S


def start_draining(here: WorkerProcess, lease: LeaseSettings) -> None:
    """Take no new work from now on, and end this process when the drain period is over. Idempotent; returns at once."""
    if here.parts.leases.is_draining:
        return
    here.parts.leases.drain()
    log.info("worker.draining", in_flight=here.parts.leases.in_flight, drain_s=lease.drain_s)
    threading.Thread(target=_drain_and_exit, args=(here, lease), name="hermes_drain", daemon=True).start()


def end_drain() -> None:
    """End the drain period: the process was asked to leave a second time."""
    _hurry.set()


def _drain_and_exit(here: WorkerProcess, lease: LeaseSettings) -> None:
    leases = here.parts.leases
    if _is_idle_within(here, lease.drain_s, can_hurry=True):
        return
    handed = leases.hand_over()
    if _is_idle_within(here, HAND_OVER_S, can_hurry=False):
        log.info("worker.draining", handed_over=handed, in_flight=0)
        return
    # What is left must not run twice, so only this process can learn how it ends.
    log.info("worker.draining", handed_over=handed, in_flight=leases.in_flight, drain_once_s=lease.drain_once_s)
    if _is_idle_within(here, lease.drain_once_s, can_hurry=True):
        return
    # It outlasted our patience. Its outcome is recorded as unknown, which is the truth.
    log.warning("worker.draining", handed_over=handed, abandoned=leases.in_flight)
    here.close()
    os._exit(0)


def _is_idle_within(here: WorkerProcess, seconds: float, *, can_hurry: bool) -> bool:
    deadline = time.monotonic() + seconds
    while here.parts.leases.in_flight:
        if time.monotonic() > deadline or (can_hurry and _hurry.is_set()):
            return False
        time.sleep(0.05)
    return True


def _end_after(seconds: float) -> None:
    _hurry.wait(seconds)
    time.sleep(HAND_OVER_S if _hurry.is_set() else 0)
    os._exit(0)


def _uses_prefork(worker: Any) -> bool:
    return "prefork" in str(getattr(worker, "pool_cls", ""))


class _DrainLine:
    """A pipe from a prefork parent to its children. The parent alone holds the end for writing, so its closing, or
    the parent's death, reaches every child as the end of the file."""

    def __init__(self) -> None:
        self._ends: tuple[int, int] | None = None
        self._said = False

    @property
    def is_open(self) -> bool:
        """Whether the pipe is open: in the parent, once there may be children."""
        return self._ends is not None

    def open(self) -> None:
        self._ends = os.pipe()

    def say_drain(self) -> None:
        """Tell the children to drain. Idempotent."""
        if self._ends is not None and not self._said:
            self._said = True
            os.close(self._ends[1])

    def listen(self, here: WorkerProcess, lease: LeaseSettings) -> None:
        """Listen, in a child, for the parent's order to drain. Does nothing without a parent that forked."""
        if self._ends is None:
            return
        read_end, write_end = self._ends
        self._ends = None
        os.close(write_end)
        heard = (read_end, os.getppid(), here, lease)
        threading.Thread(target=_await_drain, args=heard, name="hermes_drain_line", daemon=True).start()


def _await_drain(read_end: int, parent: int, here: WorkerProcess, lease: LeaseSettings) -> None:
    os.read(read_end, 1)
    if os.getppid() == parent:
        start_draining(here, lease)
        return
    log.error("worker.draining", reason="the parent process died")
    here.parts.leases.hand_over()
    here.close()
    os._exit(1)
