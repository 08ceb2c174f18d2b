"""What a schedule is, and which instants it names. Everything here is a function of its arguments; time is passed in.

A *slot* is an instant at which a schedule wants a run. Slots are a property of the schedule alone, so any number of
beat replicas agree on them; jitter delays the firing of a slot and never changes which slot it is.

**When the clocks change.** A cron expression names wall-clock times, and two nights a year some of them do not exist
or exist twice. What people mean depends on the expression:

* It names moments of the day (``30 2 * * *``). Every named moment happens once: one that falls into the gap runs at
  the first instant after the gap, one that comes twice runs the first time.
* It names a rhythm: every hour, at intervals no longer than the jump (``0 * * * *`` where clocks jump an hour,
  ``*/15 * * * *``). A rhythm goes by elapsed time: the gap drops nothing that had time to happen, and both passes of
  a repeated hour count. So an hourly job has 23 runs on the short day and 25 on the long one, an hour apart each.

Where clocks jump by half an hour (Lord Howe Island) an hourly job is of the first kind: a rhythm of sixty minutes does
not survive a jump of thirty, and each of the day's 24 named hours gets its one run.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import assert_never
from zoneinfo import ZoneInfo

from scheduler.cron import CronFields, find_next_wall_time

ONE_SHOT_GRACE = timedelta(seconds=120)
"""How far in the past a one-shot may lie when it is created, and the least grace of any slot."""

GRACE_MAX = timedelta(seconds=7200)

_SECOND = timedelta(seconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Once:
    """A single slot."""

    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Every:
    """``first_at`` and every ``period`` after it. Runs do not shift it, however long they take."""

    first_at: datetime
    period: timedelta
    """At least one minute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cron:
    """The instants whose wall-clock time in the schedule's time zone matches ``fields``."""

    expression: str
    fields: CronFields


Timing = Once | Every | Cron


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """When a job runs. Instants are aware and in UTC; build one with ``grammar.parse_schedule``."""

    timing: Timing
    timezone: str
    """IANA name; the clock that cron fields and naive timestamps are read on."""
    display: str
    """For people, in Hermes Agent's form: ``every 120m``, ``0 9 * * *``, ``once in 30m``."""
    starts_at: datetime | None = None
    """No slot before this instant."""
    ends_at: datetime | None = None
    """No slot after this instant."""
    jitter_s: int = 0
    """A slot fires up to this many seconds late; see ``compute_fire_time``."""

    @property
    def is_recurring(self) -> bool:
        return not isinstance(self.timing, Once)


def find_next_slot(schedule: Schedule, instant: datetime) -> datetime | None:
    """Find the first slot strictly after ``instant``, in UTC; ``None`` when there is none."""
    after = instant.astimezone(UTC)
    if schedule.starts_at is not None:
        # One microsecond earlier, so that a slot exactly at the start is the first one.
        after = max(after, schedule.starts_at.astimezone(UTC) - timedelta(microseconds=1))
    slot = _find_next(schedule.timing, after, schedule.timezone)
    if slot is None or (schedule.ends_at is not None and slot > schedule.ends_at):
        return None
    return slot


def find_first_slot(schedule: Schedule, now: datetime) -> datetime | None:
    """Find the slot that a job waits for when it is created or resumed at ``now``.

    ``None`` means that the job would never run: a one-shot more than 120 s in the past, or an end date gone by.
    """
    if isinstance(schedule.timing, Once):
        return find_next_slot(schedule, now - ONE_SHOT_GRACE - timedelta(microseconds=1))
    return find_next_slot(schedule, now)


def iterate_slots(schedule: Schedule, after: datetime) -> Iterator[datetime]:
    """Yield every slot strictly after ``after``, in order; endless for a schedule without an end."""
    slot = find_next_slot(schedule, after)
    while slot is not None:
        yield slot
        slot = find_next_slot(schedule, slot)


def list_slots_between(schedule: Schedule, after: datetime, until: datetime, limit: int) -> tuple[datetime, ...]:
    """List the slots in ``(after, until]``, oldest first, at most ``limit`` of them."""
    found = []
    for slot in islice(iterate_slots(schedule, after), limit):
        if slot > until:
            break
        found.append(slot)
    return tuple(found)


def compute_grace(schedule: Schedule, slot: datetime) -> timedelta:
    """Compute how late ``slot`` may fire and still count as an ordinary run: half the wait for the next slot, between 2
    minutes and 2 hours."""
    following = find_next_slot(schedule, slot)
    if following is None:
        return ONE_SHOT_GRACE
    half = timedelta(seconds=(following - slot) // _SECOND // 2)
    return max(ONE_SHOT_GRACE, min(half, GRACE_MAX))


def compute_fire_time(schedule: Schedule, slot: datetime, job_id: str) -> datetime:
    """Compute when ``slot`` fires: the slot plus the job's share of the jitter.

    The delay is computed from job and slot, so replicas agree and a restart does not draw again. It stays below half
    the wait for the next slot, so that slots fire in order.
    """
    if schedule.jitter_s == 0:
        return slot
    width_s = schedule.jitter_s
    following = find_next_slot(schedule, slot)
    if following is not None:
        width_s = min(width_s, (following - slot) // _SECOND // 2)
    digest = hashlib.sha256(f"{job_id}|{slot.astimezone(UTC).isoformat()}".encode()).digest()
    return slot + timedelta(seconds=int.from_bytes(digest[:8], "big") % (width_s + 1))


def find_local_instant(wall: datetime, zone: ZoneInfo) -> datetime:
    """Find the instant of a naive wall time: the first valid one after a gap, the first of two in a fold."""
    before, after = _read_both_offsets(wall, zone)
    if before.offset < after.offset:
        return _find_transition(after.instant, before.instant, zone)
    return before.instant


# --- one timing at a time --------------------------------------------------------------------------------------------


def _find_next(timing: Timing, after: datetime, timezone: str) -> datetime | None:
    match timing:
        case Once():
            return timing.at if timing.at > after else None
        case Every():
            return _find_next_interval(timing, after)
        case Cron():
            return _find_next_cron(timing.fields, after, ZoneInfo(timezone))
        case _:
            assert_never(timing)


def _find_next_interval(timing: Every, after: datetime) -> datetime:
    if after < timing.first_at:
        return timing.first_at
    return timing.first_at + ((after - timing.first_at) // timing.period + 1) * timing.period


def _find_next_cron(fields: CronFields, after: datetime, zone: ZoneInfo) -> datetime | None:
    """Walk the matching wall times upwards from the wall time of ``after``; each names at most two instants."""
    local = after.astimezone(zone)
    second_pass = _find_next_in_second_pass(fields, local, zone)
    wall: datetime | None = local.replace(tzinfo=None, fold=0)
    while wall is not None:
        wall = find_next_wall_time(fields, wall)
        if wall is None:
            break
        for instant in _list_instants(fields, wall, zone):
            if instant > after:
                return min(instant, second_pass) if second_pass else instant
    return second_pass


def _find_next_in_second_pass(fields: CronFields, local: datetime, zone: ZoneInfo) -> datetime | None:
    """Find the first match of the second pass while ``local`` is in the first pass of a repeated hour; ``None``
    otherwise. It has an earlier wall time than ``local`` and would be missed by walking upwards."""
    first, second = _read_both_offsets(local.replace(tzinfo=None, fold=0, microsecond=0), zone)
    if local.fold == 1 or not _runs_twice(fields, first, second):
        return None
    transition = _find_transition(first.instant, second.instant, zone)
    window_start = (transition + second.offset).replace(tzinfo=None)
    window_end = (transition + first.offset).replace(tzinfo=None)
    match = find_next_wall_time(fields, window_start - _SECOND)
    if match is None or match >= window_end:
        return None
    return match.replace(tzinfo=UTC) - second.offset


def _list_instants(fields: CronFields, wall: datetime, zone: ZoneInfo) -> tuple[datetime, ...]:
    """List the instants that a matching wall time stands for, in order; none, one or two."""
    before, after = _read_both_offsets(wall, zone)
    if before.offset < after.offset:  # the wall time is skipped
        if _is_rhythm(fields, after.offset - before.offset):
            return ()
        return (_find_transition(after.instant, before.instant, zone),)
    if _runs_twice(fields, before, after):
        return (before.instant, after.instant)
    return (before.instant,)


@dataclass(frozen=True, slots=True)
class _Reading:
    """A wall time read with one of the offsets in force around it."""

    instant: datetime
    offset: timedelta


def _read_both_offsets(wall: datetime, zone: ZoneInfo) -> tuple[_Reading, _Reading]:
    """Read the wall time with the offset before and the one after a change (PEP 495). The two are equal on ordinary
    days; the offset grows over a gap and shrinks over a fold."""
    return _read_offset(wall, zone, fold=0), _read_offset(wall, zone, fold=1)


def _read_offset(wall: datetime, zone: ZoneInfo, *, fold: int) -> _Reading:
    offset = wall.replace(tzinfo=zone, fold=fold).utcoffset() or timedelta()
    return _Reading(wall.replace(tzinfo=UTC) - offset, offset)


def _runs_twice(fields: CronFields, first: _Reading, second: _Reading) -> bool:
    return first.offset > second.offset and _is_rhythm(fields, first.offset - second.offset)


def _is_rhythm(fields: CronFields, jump: timedelta) -> bool:
    return fields.is_every_hour and timedelta(minutes=fields.longest_idle_minutes) <= jump


def _find_transition(early: datetime, late: datetime, zone: ZoneInfo) -> datetime:
    """Find the instant in ``(early, late]`` at which the zone's offset changes, to the second."""
    offset_before = early.astimezone(zone).utcoffset()
    while late - early > _SECOND:
        middle = early + (late - early) // _SECOND // 2 * _SECOND
        if middle.astimezone(zone).utcoffset() == offset_before:
            early = middle
        else:
            late = middle
    return late
