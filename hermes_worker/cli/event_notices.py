"""Events of a run as they come, and between them notices about the waiting itself."""

from __future__ import annotations

import queue
import shlex
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from hermes_worker.cli.layout import format_clock
from hermes_worker.core.errors import UnavailableError, format_reason
from hermes_worker.core.status_reason import StandingReason, StatusReason
from hermes_worker.settings import Settings
from hermes_worker.stream.wire_events import WireEvent

_LOOK_EVERY_S = 1.0
_WORTH_SAYING_AFTER_S = {
    StandingReason.BEHIND_SESSION: 0.0,
    StandingReason.BEHIND_SIBLINGS: 0.0,
    StandingReason.WAITING_FOR_CHILDREN: 0.0,
    StandingReason.NO_WORKER: 1.0,
    StandingReason.DUE: 5.0,
    StandingReason.ASKING_MODEL: 10.0,
    StandingReason.CALLING_TOOLS: 10.0,
}
"""Seconds for which a run must be in a state before its watcher is told; other states have events."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """A notice about the following itself, for people: the database is away, no worker is at work on the run."""

    text: str


class _EventsOver:
    """Marks the end of the events."""


def add_notices(
    events: Iterator[WireEvent], notices: Callable[[], tuple[Sequence[str], str | None]]
) -> Iterator[WireEvent | Notice]:
    """Iterate over the ``events``, which are read in a thread, and about once a second over what ``notices`` returns:
    lines that are passed on, and one that is passed on when it changes. Raises what ``events`` raises."""
    heard: queue.SimpleQueue[WireEvent | BaseException | _EventsOver] = queue.SimpleQueue()
    threading.Thread(target=_read_events, args=(events, heard), name="follow", daemon=True).start()
    said: str | None = None
    look_at = time.monotonic() + _LOOK_EVERY_S
    while True:
        try:
            told = heard.get(timeout=max(0.0, look_at - time.monotonic()))
        except queue.Empty:
            told = None
        if isinstance(told, _EventsOver):
            return
        if isinstance(told, BaseException):
            raise told
        if told is not None:
            yield told
        if time.monotonic() < look_at:
            continue
        try:
            lines, notice = notices()
        except UnavailableError as error:
            lines, notice = (), f"{format_reason(error)}; waiting for it to come back"
        yield from (Notice(text=line) for line in lines)
        if notice is not None and notice != said:
            yield Notice(text=notice)
        said = notice
        look_at = time.monotonic() + _LOOK_EVERY_S


def _read_events(
    events: Iterator[WireEvent], heard: queue.SimpleQueue[WireEvent | BaseException | _EventsOver]
) -> None:
    try:
        for event in events:
            heard.put(event)
        heard.put(_EventsOver())
    except BaseException as error:  # raised in the thread that waits
        heard.put(error)


def find_standing_notice(found: StatusReason) -> str | None:
    """Write why a run does not move, once that has lasted long enough for its watcher to know; ``None`` before."""
    patience_s = _WORTH_SAYING_AFTER_S.get(found.reason)
    if patience_s is None or (found.lasts_s or 0.0) < patience_s:
        return None
    since = f", since {format_clock(found.since)}" if found.since is not None else ""
    return f"{found.text}{since}"


def describe_idle_fleet(settings: Settings, endpoint: str | None, model: str) -> str:
    """Write what to do where no worker is alive: ``up`` needs to know the model of a run at this home, where the
    settings name another one."""
    if settings.broker.url:
        return "no worker is running; start one with 'hermes-worker start worker'"
    from hermes_worker.models.identity import STAND_IN, identify_endpoint  # with every provider that there is

    is_usual = endpoint in (None, STAND_IN, identify_endpoint(settings.model))
    flags = "" if is_usual else f" --base-url {shlex.quote(str(endpoint))} --model {shlex.quote(model)}"
    return f"nothing runs on {str(settings.home)!r}; 'hermes-worker up{flags}' carries on from here"
