"""Named places where a test may kill, freeze or fail this process. A no-op unless a test arms them.

A plan is text, so that it can travel in one environment variable (``HERMES_FAULTS``, read by ``settings``)::

    iterate.after_claim=kill@3;call_tool.after_run=stall:5@1;submit.after_commit=stop!/tmp/once

``point=action``, then optionally ``:seconds`` (for ``stall``), ``@n`` (only the n-th time this process passes the
point; every time when left out), ``?text`` (only for work whose name contains it: runs whose id contains the text) and
``!path`` (a latch: only the first process of the fleet that creates the file acts). The point names are a closed list,
so that a renamed point breaks its tests instead of disarming them.
"""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections import Counter
from dataclasses import dataclass
from enum import StrEnum

from hermes_worker.core.errors import ConfigurationError, HermesError

__all__ = [
    "Fault",
    "FaultAction",
    "FaultInjected",
    "FaultPoint",
    "arm_faults",
    "disarm_faults",
    "parse_faults",
    "pass_point",
]


class FaultPoint(StrEnum):
    """Every place that can be armed, named by the work and the moment."""

    ITERATE_AFTER_CLAIM = "iterate.after_claim"
    ITERATE_AFTER_REPLY = "iterate.after_reply"
    ITERATE_AFTER_COMMIT = "iterate.after_commit"
    """The reply is stored, the messages for what comes next are not sent yet."""
    PREPARE_AFTER_CLAIM = "prepare.after_claim"
    PREPARE_AFTER_READ = "prepare.after_read"
    """The workspace was read, and what it says is not stored yet."""
    PREPARE_AFTER_COMMIT = "prepare.after_commit"
    CALL_TOOL_AFTER_CLAIM = "call_tool.after_claim"
    CALL_TOOL_BEFORE_BEGIN = "call_tool.before_begin"
    """A ``once`` call is about to count as begun. Passed by such calls alone."""
    CALL_TOOL_AFTER_BEGIN = "call_tool.after_begin"
    """A ``once`` call counts as begun, and its tool has not started. Passed by such calls alone."""
    CALL_TOOL_AFTER_RUN = "call_tool.after_run"
    """The tool has acted, its result is not stored yet."""
    CALL_TOOL_AFTER_SETTLE = "call_tool.after_settle"
    ASK_AUXILIARY_AFTER_CLAIM = "ask_auxiliary.after_claim"
    ASK_AUXILIARY_AFTER_REPLY = "ask_auxiliary.after_reply"
    """A model has answered, its answer is not stored yet."""
    ASK_AUXILIARY_AFTER_COMMIT = "ask_auxiliary.after_commit"
    DELIVER_AFTER_CLAIM = "deliver.after_claim"
    DELIVER_AFTER_SEND = "deliver.after_send"
    """The message is out, and that it is out is not stored yet."""
    COLLECT_AFTER_CLAIM = "collect.after_claim"
    CALL_HOOK_AFTER_CLAIM = "call_hook.after_claim"
    CALL_HOOK_AFTER_CALL = "call_hook.after_call"
    """The hook has acted, and that it did is not stored yet."""
    GATHER_AFTER_CLAIM = "gather.after_claim"
    GATHER_AFTER_KEEP = "gather.after_keep"
    """The contents are kept, and that they are the run's is not stored yet."""
    SNAPSHOT_DURING_UPLOAD = "snapshot.during_upload"
    """Some objects of a workspace's snapshot are in object storage."""
    SNAPSHOT_AFTER_UPLOAD = "snapshot.after_upload"
    """All objects of a snapshot are in object storage, and its row names the one before."""
    SNAPSHOT_AFTER_HEAD = "snapshot.after_head"
    """The row names the snapshot, and this machine does not remember that."""
    SNAPSHOT_BETWEEN_FILES = "snapshot.between_files"
    """Some files of a snapshot are on this machine."""
    LOGIN_AFTER_CLAIM = "login.after_claim"
    LOGIN_AFTER_EXCHANGE = "login.after_exchange"
    """The refresh token is spent, and what it gave is not stored yet."""
    SWEEP_AFTER_RELEASE = "sweep.after_release"
    SUBMIT_AFTER_COMMIT = "submit.after_commit"
    RESTORE_BETWEEN_FILES = "restore.between_files"
    """A restore has taken effect, and not all of it is in its place yet."""


class FaultAction(StrEnum):
    KILL = "kill"
    """SIGKILL this process."""
    STOP = "stop"
    """SIGSTOP this process; the test sends SIGCONT."""
    STALL = "stall"
    """Sleep for the given seconds."""
    RAISE = "raise"
    """Raise ``FaultInjected``."""


class FaultInjected(HermesError):
    """An armed fault point asked for an exception."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One armed point."""

    point: FaultPoint
    action: FaultAction
    seconds: float = 0.0
    """How many seconds ``stall`` sleeps."""
    hit: int | None = None
    """Act on this pass only, counted from 1 in this process; ``None`` acts on every pass."""
    only: str | None = None
    """Act for work only whose name contains this."""
    latch: str | None = None
    """Act only in the process that creates this file; the file then holds its pid."""


_SYNTAX = re.compile(
    r"(?P<point>[a-z_.]+)=(?P<action>[a-z]+)(?::(?P<seconds>\d+(?:\.\d+)?))?(?:@(?P<hit>[1-9]\d*))?"
    r"(?:\?(?P<only>[^;!]+))?(?:!(?P<latch>[^;]+))?"
)


def parse_faults(plan: str) -> tuple[Fault, ...]:
    """The faults a plan names. Raises ``ConfigurationError`` for anything it does not understand: a fault that is
    silently not armed makes a test pass for the wrong reason."""
    return tuple(_parse_fault(part.strip()) for part in plan.split(";") if part.strip())


def _parse_fault(text: str) -> Fault:
    match = _SYNTAX.fullmatch(text)
    if match is None:
        raise ConfigurationError(f"fault {text!r} must have the form point=action[:seconds][@n][?text][!file].")
    if match["point"] not in set(FaultPoint):
        raise ConfigurationError(f"fault {text!r} names no fault point; the points are {', '.join(FaultPoint)}.")
    if match["action"] not in set(FaultAction):
        raise ConfigurationError(f"fault {text!r} names no action; the actions are {', '.join(FaultAction)}.")
    action = FaultAction(match["action"])
    if (match["seconds"] is not None) != (action is FaultAction.STALL):
        raise ConfigurationError(f"fault {text!r}: stall takes seconds (stall:5), the other actions take none.")
    return Fault(
        point=FaultPoint(match["point"]),
        action=action,
        seconds=float(match["seconds"] or 0),
        hit=int(match["hit"]) if match["hit"] else None,
        only=match["only"],
        latch=match["latch"],
    )


class _Plan:
    def __init__(self, faults: tuple[Fault, ...]) -> None:
        self._faults = faults
        self._hits: Counter[FaultPoint] = Counter()
        self._lock = threading.Lock()

    def pass_through(self, name: FaultPoint, work: str) -> None:
        with self._lock:
            self._hits[name] += 1
            hit = self._hits[name]
        for fault in self._faults:
            is_meant = fault.point is name and fault.hit in (None, hit) and (fault.only or "") in work
            if is_meant and _takes_latch(fault.latch):
                _do_fault(fault)


_plan: _Plan | None = None


def arm_faults(plan: str) -> None:
    """Arm the points that ``plan`` names, in place of all armed before, with all counts at zero."""
    global _plan
    faults = parse_faults(plan)
    _plan = _Plan(faults) if faults else None


def disarm_faults() -> None:
    """Make every point a no-op again."""
    global _plan
    _plan = None


def pass_point(name: FaultPoint, work: str = "") -> None:
    """Pass a fault point on behalf of ``work``. Costs one comparison when nothing is armed."""
    if _plan is not None:
        _plan.pass_through(name, work)


def _takes_latch(path: str | None) -> bool:
    if path is None:
        return True
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    except FileExistsError:
        return False
    with os.fdopen(descriptor, "w") as latch:
        latch.write(str(os.getpid()))
    return True


def _do_fault(fault: Fault) -> None:
    match fault.action:
        case FaultAction.KILL:
            os.kill(os.getpid(), signal.SIGKILL)
        case FaultAction.STOP:
            # To this thread: one that goes to the process lets it run on until another thread has taken it.
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
        case FaultAction.STALL:
            time.sleep(fault.seconds)
        case FaultAction.RAISE:
            raise FaultInjected(f"fault point {fault.point.value!r} was armed to raise")
