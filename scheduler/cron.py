"""Cron expressions as sets of wall-clock values: parse them, and find the next wall time that matches.

Nothing here knows about time zones; ``schedule`` turns wall times into instants. The matcher is our own because the
libraries decide for themselves what happens when the clocks change, and differently from what we promise there.

Parsed are five fields (minute hour day month weekday) or six (a trailing seconds field, as croniter has it), names of
months and days, ``?`` for ``*`` in the day fields, ranges that wrap (``fri-mon``, ``22-2``), steps, ``L`` for the last
day of the month, ``5L`` for the last Friday and ``1#2`` for the second Monday. When neither day field begins with ``*``
a date that satisfies either of them counts (crontab(5)).
"""

from __future__ import annotations

import re
from bisect import bisect_right
from calendar import monthrange
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta
from functools import lru_cache
from itertools import pairwise

HORIZON_YEARS = 41
"""How far ahead a match is looked for. 29 February falls on a given weekday every 28 years, 40 across 2100."""

MONTH_NAMES = {
    name: number
    for number, name in enumerate(
        ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"], start=1
    )
}
WEEKDAY_NAMES = {name: number for number, name in enumerate(["sun", "mon", "tue", "wed", "thu", "fri", "sat"])}


class CronFieldError(ValueError):
    """A field of a cron expression cannot be parsed. ``part`` is the offending text, ``why`` what it should be."""

    def __init__(self, part: str, why: str) -> None:
        super().__init__(f"{part!r}: {why}")
        self.part = part
        self.why = why


@dataclass(frozen=True, slots=True, kw_only=True)
class CronFields:
    """The wall times that a cron expression allows. Weekdays count from Sunday = 0."""

    seconds: tuple[int, ...]
    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: frozenset[int]
    """Days of the month; 0 stands for the last one (``L``)."""
    months: tuple[int, ...]
    weekdays: frozenset[int]
    nth_weekdays: frozenset[tuple[int, int]] = field(default_factory=frozenset)
    """(weekday, n): the n-th such weekday of the month; n = 0 is the last one."""
    is_either_day: bool = False
    """Whether both day fields are restricted: then a date that satisfies one of them is enough."""

    @property
    def is_every_hour(self) -> bool:
        return len(self.hours) == 24

    @property
    def longest_idle_minutes(self) -> int:
        """The longest stretch without a match while every hour matches, in minutes; at most 60."""
        minutes = (*self.minutes, self.minutes[0] + 60)
        return max(after - before for before, after in pairwise(minutes))

    def matches_date(self, day: date) -> bool:
        is_day = day.day in self.days or (0 in self.days and _is_last_of_month(day))
        is_weekday = self._matches_weekday(day)
        return is_day or is_weekday if self.is_either_day else is_day and is_weekday

    def _matches_weekday(self, day: date) -> bool:
        weekday = day.isoweekday() % 7
        if weekday in self.weekdays:
            return True
        if not self.nth_weekdays:
            return False
        nth = (day.day - 1) // 7 + 1
        is_last = day.day + 7 > monthrange(day.year, day.month)[1]
        return (weekday, nth) in self.nth_weekdays or (is_last and (weekday, 0) in self.nth_weekdays)


def find_next_wall_time(fields: CronFields, wall: datetime) -> datetime | None:
    """Find the first matching wall time strictly after ``wall`` (naive); ``None`` when there is none within the
    horizon."""
    if wall.month in fields.months and fields.matches_date(wall.date()):
        moment = _find_next_time(fields, wall.time())
        if moment is not None:
            return datetime.combine(wall.date(), moment)
    first = time(fields.hours[0], fields.minutes[0], fields.seconds[0])
    for day in _list_dates_after(fields, wall.date()):
        return datetime.combine(day, first)
    return None


def _find_next_time(fields: CronFields, after: time) -> time | None:
    """Find the first matching time of day after ``after``; ``None`` when the day has no more."""
    hour, minute, second = after.hour, after.minute, after.second
    if hour in fields.hours:
        if minute in fields.minutes:
            later_second = _find_first_after(fields.seconds, second)
            if later_second is not None:
                return time(hour, minute, later_second)
        later_minute = _find_first_after(fields.minutes, minute)
        if later_minute is not None:
            return time(hour, later_minute, fields.seconds[0])
    later_hour = _find_first_after(fields.hours, hour)
    return None if later_hour is None else time(later_hour, fields.minutes[0], fields.seconds[0])


def _find_first_after(values: tuple[int, ...], value: int) -> int | None:
    index = bisect_right(values, value)
    return values[index] if index < len(values) else None


def _list_dates_after(fields: CronFields, after: date) -> Iterator[date]:
    for year in range(after.year, min(after.year + HORIZON_YEARS, 9998) + 1):
        for month in fields.months:
            if (year, month) < (after.year, after.month):
                continue
            for number in range(1, monthrange(year, month)[1] + 1):
                day = date(year, month, number)
                if day > after and fields.matches_date(day):
                    yield day


def _is_last_of_month(day: date) -> bool:
    return (day + timedelta(days=1)).day == 1


# --- reading ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _FieldSpec:
    name: str
    low: int
    high: int
    names: Mapping[str, int] = field(default_factory=dict)
    alias: int | None = None
    """A value above ``high`` that means ``low``: 7 is Sunday too."""

    @property
    def width(self) -> int:
        return self.high - self.low + 1

    @property
    def accepted_text(self) -> str:
        named = f" or {next(iter(self.names))}-{list(self.names)[-1]}" if self.names else ""
        return f"the {self.name} field takes {self.low}-{self.alias or self.high}{named}, '*', lists, ranges and steps"


_MINUTE = _FieldSpec(name="minute", low=0, high=59)
_HOUR = _FieldSpec(name="hour", low=0, high=23)
_DAY = _FieldSpec(name="day-of-month", low=1, high=31)
_MONTH = _FieldSpec(name="month", low=1, high=12, names=MONTH_NAMES)
_WEEKDAY = _FieldSpec(name="day-of-week", low=0, high=6, names=WEEKDAY_NAMES, alias=7)
_SECOND = _FieldSpec(name="second", low=0, high=59)

_NTH = re.compile(r"(?P<weekday>[a-z]+|[0-9])#(?P<nth>[1-5])")
_LAST = re.compile(r"(?P<weekday>[a-z]{3}|[0-7])l")


@lru_cache(maxsize=4096)
def parse_cron(expression: str) -> CronFields:
    """Parse five or six fields. Raises ``CronFieldError`` that names the part which cannot be parsed."""
    texts = expression.lower().split()
    if len(texts) not in (5, 6):
        raise CronFieldError(expression, f"a cron expression has five fields, or six with seconds, not {len(texts)}")
    minute, hour, day, month, weekday = texts[:5]
    weekdays, nth_weekdays = _parse_weekdays(weekday)
    return CronFields(
        seconds=_sort_values(_parse_values(texts[5], _SECOND)) if len(texts) == 6 else (0,),
        minutes=_sort_values(_parse_values(minute, _MINUTE)),
        hours=_sort_values(_parse_values(hour, _HOUR)),
        days=_parse_days(day),
        months=_sort_values(_parse_values(month, _MONTH)),
        weekdays=weekdays,
        nth_weekdays=nth_weekdays,
        is_either_day=day[0] not in "*?" and weekday[0] not in "*?",
    )


def parse_weekday_list(text: str) -> frozenset[int]:
    """Parse plain weekdays, as in the fifth field. Raises ``CronFieldError``."""
    return _parse_values(text.lower(), _WEEKDAY)


def _sort_values(values: frozenset[int]) -> tuple[int, ...]:
    return tuple(sorted(values))


def _parse_days(text: str) -> frozenset[int]:
    items = text.split(",")
    plain = [item for item in items if item != "l"]
    last = frozenset({0}) if len(plain) < len(items) else frozenset()
    return last | (_parse_values(_replace_question_mark(",".join(plain)), _DAY) if plain else frozenset())


def _parse_weekdays(text: str) -> tuple[frozenset[int], frozenset[tuple[int, int]]]:
    plain: list[str] = []
    nth_weekdays: set[tuple[int, int]] = set()
    for item in text.split(","):
        if match := _NTH.fullmatch(item):
            nth_weekdays.add((_parse_value(match["weekday"], _WEEKDAY), int(match["nth"])))
        elif match := _LAST.fullmatch(item):
            nth_weekdays.add((_parse_value(match["weekday"], _WEEKDAY), 0))
        else:
            plain.append(item)
    weekdays = _parse_values(_replace_question_mark(",".join(plain)), _WEEKDAY) if plain else frozenset()
    return weekdays, frozenset(nth_weekdays)


def _replace_question_mark(text: str) -> str:
    return "*" if text == "?" else text


def _parse_values(text: str, spec: _FieldSpec) -> frozenset[int]:
    items = text.split(",")
    if "" in items:
        raise CronFieldError(text, spec.accepted_text)
    return frozenset().union(*(_parse_item(item, spec) for item in items))


def _parse_item(item: str, spec: _FieldSpec) -> frozenset[int]:
    span, slash, step_text = item.partition("/")
    step = _parse_step(step_text, item, spec) if slash else 1
    if span == "*":
        return frozenset(range(spec.low, spec.high + 1, step))
    first_text, dash, last_text = span.partition("-")
    first = _parse_value(first_text, spec, item)
    if dash:
        return _list_values_between(first, _parse_value(last_text, spec, item), step, spec)
    return frozenset(range(first, spec.high + 1, step)) if slash else frozenset({first})


def _list_values_between(first: int, last: int, step: int, spec: _FieldSpec) -> frozenset[int]:
    """List ``first`` to ``last``; past the end of the field it continues at the beginning (``fri-mon``, ``5-7``)."""
    unwrapped_last = last if last >= first else last + spec.width
    return frozenset(spec.low + (value - spec.low) % spec.width for value in range(first, unwrapped_last + 1, step))


def _parse_step(text: str, item: str, spec: _FieldSpec) -> int:
    if not text.isascii() or not text.isdigit() or int(text) == 0:
        raise CronFieldError(item, f"a step is a whole number from 1; {spec.accepted_text}")
    return int(text)


def _parse_value(text: str, spec: _FieldSpec, item: str | None = None) -> int:
    number: int | None = None
    if text.isascii() and text.isdigit() and len(text) <= 2:
        number = int(text)
    elif text in spec.names or (text in _LONG_NAMES and text[:3] in spec.names):
        number = spec.names[text[:3]]
    if number is not None and number == spec.alias:
        return spec.low
    if number is None or not spec.low <= number <= spec.high:
        raise CronFieldError(item or text, spec.accepted_text)
    return number


_LONG_NAMES = frozenset(
    [
        "january",
        "february",
        "march",
        "april",
        "june",
        "july",
        "august",
        "september",
        "october",
        "november",
        "december",
        "sunday",
        "monday",
        "tuesday",
        "tues",
        "wednesday",
        "thursday",
        "thur",
        "thurs",
        "friday",
        "saturday",
    ]
)
