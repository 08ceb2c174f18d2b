"""Schedule text to ``Schedule`` and back to records.

Read, in this order:

========================  =============================================================================
``@daily``                and ``@hourly``, ``@midnight``, ``@weekly``, ``@monthly``, ``@yearly``, ``@annually``
``every 1h30m``           an interval of days, hours and minutes
``every monday 08:30``    a weekday, ``day``, ``weekday``, ``weekend``, lists and ranges of days; one or more times
``0 9 * * mon-fri``       five cron fields, or six with seconds (see ``cron``)
``2026-02-03T14:00``      one run; without an offset it is read in the job's time zone
``30m``, ``in 2 hours``   one run, that long from now
========================  =============================================================================
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from functools import lru_cache
from typing import Any, assert_never
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from hermes_worker.core.errors import HermesError
from scheduler.cron import CronFieldError, CronFields, find_next_wall_time, parse_cron, parse_weekday_list
from scheduler.schedule import Cron, Every, Once, Schedule, Timing, find_first_slot, find_local_instant

ACCEPTED = (
    "'30m' or 'in 2 hours' (once), 'every 1h30m', 'every weekday at 18:00', 'every monday 08:30', "
    "'0 9 * * mon-fri' (cron), '@daily' or '2026-02-03T14:00' (once)"
)
TEXT_CHARS_MAX = 200
DURATION_MAX = timedelta(days=3660)
JITTER_S_MAX = 86_400

MACROS: Mapping[str, str] = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}


class ScheduleError(HermesError):
    """A schedule cannot be parsed or would never run; the message is one sentence for the person who wrote it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleOptions:
    """The options that a job adds to the text of its schedule."""

    timezone: str = "UTC"
    """IANA name."""
    starts_at: datetime | None = None
    ends_at: datetime | None = None
    jitter_s: int = 0
    """0 to 86,400."""


def parse_schedule(text: str, *, now: datetime, options: ScheduleOptions | None = None) -> Schedule:
    """Parse the text of a schedule. Raises ``ScheduleError``.

    A timestamp in the past is accepted here; ``require_future`` is the check for jobs that are created.
    """
    options = options or ScheduleOptions()
    _check_options(options)
    words = " ".join(text[: TEXT_CHARS_MAX + 1].split())
    if len(words) > TEXT_CHARS_MAX:
        raise _build_refusal(f"A schedule has at most {TEXT_CHARS_MAX} characters")
    if not words:
        raise _build_refusal("The schedule is empty")
    timing, display = _read(words, now.astimezone(UTC), options)
    return _build_schedule(timing, display, options)


def require_future(schedule: Schedule, now: datetime) -> datetime:
    """Find the slot that a new or resumed job waits for. Raises ``ScheduleError`` when it would never run."""
    slot = find_first_slot(schedule, now)
    if slot is not None:
        return slot
    if isinstance(schedule.timing, Once):
        raise ScheduleError(
            f"'{schedule.display}' is in the past, so the job would never run; "
            f"give a time after {_format_minute(now)} UTC."
        )
    raise ScheduleError(f"'{schedule.display}' has no run left between its start and its end date; change the dates.")


def parse_duration(text: str) -> timedelta:
    """Parse days, hours and minutes: ``30m``, ``2 hours``, ``1d12h``. Raises ``ScheduleError``."""
    units = _parse_duration_units(text.strip().lower())
    if units is None:
        raise _build_refusal(f"'{text}' is not a duration of days, hours and minutes such as '30m' or '1h30m'")
    return _build_duration(units, text)


def parse_timestamp(text: str, timezone: str) -> datetime:
    """Parse an ISO timestamp into UTC; without an offset it is on the clock of ``timezone``. Raises
    ``ScheduleError``."""
    try:
        stamp = datetime.fromisoformat(text)
        if stamp.tzinfo is None:
            return find_local_instant(stamp.replace(microsecond=0, fold=0), load_zone(timezone))
        return stamp.replace(microsecond=0).astimezone(UTC)
    except (ValueError, OverflowError):
        problem = f"'{text}' is not a timestamp such as '2026-02-03T14:00' or '2026-02-03T14:00+01:00'"
        raise _build_refusal(problem) from None


@lru_cache(maxsize=1024)
def load_zone(name: str) -> ZoneInfo:
    """Load the zone of an IANA name. Raises ``ScheduleError``."""
    try:
        # 'localtime' differs between machines and 'right/' counts leap seconds: neither means the same everywhere.
        if _ZONE_NAME.fullmatch(name) and not name.startswith(("localtime", "posix", "right/")):
            return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        pass
    raise ScheduleError(f"{name[:80]!r} is not a time zone; write an IANA name such as 'Europe/Berlin' or 'UTC'.")


# --- records ---------------------------------------------------------------------------------------------------------


def write_record(schedule: Schedule) -> dict[str, Any]:
    """Write a schedule as the JSON that is stored and shown: Hermes Agent's keys, and ours where they are set."""
    record: dict[str, Any]
    match schedule.timing:
        case Once(at=at):
            record = {"kind": "once", "run_at": at.isoformat()}
        case Every(first_at=first_at, period=period):
            minutes = period // timedelta(minutes=1)
            record = {"kind": "interval", "minutes": minutes, "first_at": first_at.isoformat()}
        case Cron(expression=expression):
            record = {"kind": "cron", "expr": expression}
        case _:
            assert_never(schedule.timing)
    record |= {"display": schedule.display, "timezone": schedule.timezone}
    if schedule.starts_at is not None:
        record["starts_at"] = schedule.starts_at.isoformat()
    if schedule.ends_at is not None:
        record["ends_at"] = schedule.ends_at.isoformat()
    if schedule.jitter_s:
        record["jitter_s"] = schedule.jitter_s
    return record


def read_record(record: Mapping[str, Any], *, now: datetime, timezone: str = "UTC") -> Schedule:
    """Read a stored record, or one of Hermes Agent's (which has no time zone: ``timezone`` is used, and an interval
    without ``first_at`` starts to count at ``now``). Raises ``ScheduleError``."""
    zone = str(record.get("timezone") or timezone)
    options = ScheduleOptions(
        timezone=zone,
        starts_at=_parse_optional_timestamp(record.get("starts_at"), zone),
        ends_at=_parse_optional_timestamp(record.get("ends_at"), zone),
        jitter_s=_require_whole_number(record.get("jitter_s", 0), "jitter_s"),
    )
    _check_options(options)
    timing, display = _parse_record_timing(record, now.astimezone(UTC), options)
    return _build_schedule(timing, str(record.get("display") or display), options)


def _parse_record_timing(record: Mapping[str, Any], now: datetime, options: ScheduleOptions) -> tuple[Timing, str]:
    match record.get("kind"):
        case "once":
            at = parse_timestamp(str(record.get("run_at")), options.timezone)
            return Once(at=at), _format_once(at, options.timezone)
        case "interval":
            minutes = _require_whole_number(record.get("minutes"), "minutes")
            return _build_interval(_build_duration({"m": minutes}, f"{minutes}m"), now, options, record.get("first_at"))
        case "cron":
            return _parse_cron(str(record.get("expr")))
        case kind:
            raise _build_refusal(f"A schedule record has the kind 'once', 'interval' or 'cron', not {kind!r}")


def _parse_optional_timestamp(value: object, timezone: str) -> datetime | None:
    return None if value is None else parse_timestamp(str(value), timezone)


def _require_whole_number(value: object, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise _build_refusal(f"'{name}' of a schedule record is a whole number, not {value!r}")
    return value


# --- the forms -------------------------------------------------------------------------------------------------------

_ZONE_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_+-]*(/[A-Za-z0-9_+-]+){0,2}")
_DATE = re.compile(r"[0-9]{4}-?[0-9]{2}-?[0-9]{2}(?![0-9])")
_CRON_START = re.compile(r"[0-9*?/,-]+")
_DURATION = re.compile(
    r"(?:(?P<d>[0-9]{1,7})\s*(?:days|day|d))?\s*"
    r"(?:(?P<h>[0-9]{1,7})\s*(?:hours|hour|hrs|hr|h))?\s*"
    r"(?:(?P<m>[0-9]{1,7})\s*(?:minutes|minute|mins|min|m))?"
)
_TIME = re.compile(r"(?P<hour>[0-9]{1,2})(?::(?P<minute>[0-9]{2}))?\s?(?P<half>am|pm)?")
_NAMED_TIMES = {"midnight": time(0, 0), "noon": time(12, 0)}
_NAMED_DAYS = {"day": "*", "weekday": "1-5", "weekdays": "1-5", "weekend": "0,6", "weekends": "0,6"}


def _read(words: str, now: datetime, options: ScheduleOptions) -> tuple[Timing, str]:
    lowered = words.lower()
    if lowered.startswith("@"):
        return _read_macro(lowered, now, options)
    if lowered == "every" or lowered.startswith("every "):
        return _read_every(lowered[len("every") :].strip(), now, options)
    if _DATE.match(words):
        at = parse_timestamp(words, options.timezone)
        return Once(at=at), _format_once(at, options.timezone)
    delay = lowered.removeprefix("in ")
    if (units := _parse_duration_units(delay)) is not None:
        return Once(at=now + _build_duration(units, delay)), f"once in {delay}"
    if _CRON_START.fullmatch(words.split()[0]) and " " in words:
        return _parse_cron(words)
    raise _build_refusal(f"'{words}' is not a schedule{_suggest_form(lowered)}")


def _read_macro(word: str, now: datetime, options: ScheduleOptions) -> tuple[Timing, str]:
    if word.startswith("@every "):
        return _read_every(word.removeprefix("@every "), now, options)
    if word not in MACROS:
        raise _build_refusal(f"'{word}' is not one of {', '.join(MACROS)}")
    timing, _ = _parse_cron(MACROS[word])
    return timing, word


def _read_every(rest: str, now: datetime, options: ScheduleOptions) -> tuple[Timing, str]:
    if not rest:
        raise _build_refusal("'every' needs an interval or a day after it")
    if rest in ("minute", "hour"):
        rest = f"1 {rest}"
    if (units := _parse_duration_units(rest)) is not None:
        return _build_interval(_build_duration(units, rest), now, options)
    return _read_days(rest)


def _build_interval(
    period: timedelta, now: datetime, options: ScheduleOptions, first_at: object = None
) -> tuple[Timing, str]:
    """Build an interval: its first run comes one period from now, or at the start date."""
    first = _parse_optional_timestamp(first_at, options.timezone) or options.starts_at or now + period
    return Every(first_at=first, period=period), f"every {period // timedelta(minutes=1)}m"


def _read_days(rest: str) -> tuple[Timing, str]:
    """Parse ``monday 08:30``, ``weekday at 18:00``, ``mon, wed and fri at 9am and 5pm``."""
    days_text, at, times_text = rest.partition(" at ")
    if not at:
        days_text, times_text = _split_before_time(rest)
    weekdays = _read_day_names(days_text.strip(), rest)
    if not times_text:
        raise _build_refusal(f"'every {rest}' needs a time, as in 'every {rest} at 9am'")
    times = [_read_time(part, rest) for part in _list_items(times_text)]
    minutes = {moment.minute for moment in times}
    if len(minutes) > 1:
        raise _build_refusal(f"'{times_text}' names times with different minutes, which takes one job for each")
    hours = ",".join(str(moment.hour) for moment in sorted(set(times)))
    timing, _ = _parse_cron(f"{minutes.pop()} {hours} * * {weekdays}")
    shown = " and ".join(f"{moment:%H:%M}" for moment in sorted(set(times)))
    return timing, f"every {days_text.strip()} at {shown}"


def _split_before_time(rest: str) -> tuple[str, str]:
    days, _, last = rest.rpartition(" ")
    if last in ("am", "pm"):
        days, _, hour = days.rpartition(" ")
        last = f"{hour}{last}"
    return (days, last) if days and (last[0].isdigit() or last in _NAMED_TIMES) else (rest, "")


def _read_day_names(text: str, rest: str) -> str:
    """Parse names of days into the weekday field of cron."""
    if text in _NAMED_DAYS:
        return _NAMED_DAYS[text]
    weekdays: set[int] = set()
    for item in _list_items(text):
        named = _parse_weekday_names(item)
        if not named:
            raise _build_refusal(f"'{item}' in 'every {rest}' is neither a duration nor a day{_suggest_form(item)}")
        weekdays |= named
    return ",".join(str(weekday) for weekday in sorted(weekdays))


def _parse_weekday_names(item: str) -> frozenset[int]:
    """Parse the days of ``fri``, ``mondays`` or ``mon-fri``; empty when the text is no name of days."""
    singular = item.removesuffix("s") if len(item) > len("thurs") else item
    try:
        return parse_weekday_list(singular) if singular[:1].isalpha() else frozenset()
    except CronFieldError:
        return frozenset()


def _list_items(text: str) -> list[str]:
    return [item.strip() for item in re.split(r",\s*and\s|,|\sand\s|&", text)]


def _read_time(text: str, rest: str) -> time:
    if text in _NAMED_TIMES:
        return _NAMED_TIMES[text]
    match = _TIME.fullmatch(text)
    hour = int(match["hour"]) if match else -1
    minute = int(match["minute"] or 0) if match else -1
    half = match["half"] if match else None
    is_valid = 1 <= hour <= 12 if half else 0 <= hour <= 23
    if not is_valid or not 0 <= minute <= 59:
        raise _build_refusal(f"'{text}' in 'every {rest}' is not a time of day such as '9am' or '18:00'")
    return time(hour % 12 + (12 if half == "pm" else 0) if half else hour, minute)


def _parse_cron(expression: str) -> tuple[Timing, str]:
    try:
        fields = parse_cron(expression)
    except CronFieldError as error:
        problem = f"'{error.part}' in the cron expression '{expression}' cannot be read: {error.why}"
        raise _build_refusal(problem) from None
    _check_comes(fields, expression)
    return Cron(expression=expression, fields=fields), expression


def _check_comes(fields: CronFields, expression: str) -> None:
    # The search reaches from here over every combination of leap day and weekday, so any start will do.
    if find_next_wall_time(fields, datetime(2000, 1, 1)) is None:
        raise _build_refusal(f"'{expression}' names a date that never comes")


def _parse_duration_units(text: str) -> dict[str, int] | None:
    match = _DURATION.fullmatch(text)
    if match is None or not text:
        return None
    return {unit: int(number) for unit, number in match.groupdict().items() if number is not None}


def _build_duration(units: Mapping[str, int], text: str) -> timedelta:
    duration = timedelta(days=units.get("d", 0), hours=units.get("h", 0), minutes=units.get("m", 0))
    if duration < timedelta(minutes=1):
        raise _build_refusal(f"'{text}' is too short, the least is one minute")
    if duration > DURATION_MAX:
        raise _build_refusal(f"'{text}' is too long, the most is {DURATION_MAX.days} days")
    return duration


# --- the whole -------------------------------------------------------------------------------------------------------


def _build_schedule(timing: Timing, display: str, options: ScheduleOptions) -> Schedule:
    return Schedule(
        timing=timing,
        timezone=options.timezone,
        display=display,
        starts_at=options.starts_at,
        ends_at=options.ends_at,
        jitter_s=options.jitter_s,
    )


def _check_options(options: ScheduleOptions) -> None:
    load_zone(options.timezone)
    if not 0 <= options.jitter_s <= JITTER_S_MAX:
        raise ScheduleError(f"A jitter of {options.jitter_s} s is not possible; write 0 to {JITTER_S_MAX} seconds.")
    if options.starts_at and options.ends_at and options.ends_at < options.starts_at:
        raise ScheduleError(
            f"The end date {_format_minute(options.ends_at)} lies before the start date "
            f"{_format_minute(options.starts_at)} (UTC)."
        )


def _format_once(at: datetime, timezone: str) -> str:
    return f"once at {at.astimezone(load_zone(timezone)):%Y-%m-%d %H:%M}"


def _format_minute(instant: datetime) -> str:
    return f"{instant.astimezone(UTC):%Y-%m-%d %H:%M}"


def _suggest_form(text: str) -> str:
    if re.search(r"[0-9]\s*(s|sec|secs|seconds?)\b", text):
        return " (seconds are not supported)"
    if re.search(r"[0-9]\s*(w|weeks?)\b", text):
        return " (write weeks as days)"
    return ""


def _build_refusal(problem: str) -> ScheduleError:
    return ScheduleError(f"{problem}; write {ACCEPTED}.")
