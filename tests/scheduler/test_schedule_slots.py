"""Which instants a schedule names, on ordinary days and when the clocks change."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.cron import parse_cron
from scheduler.grammar import ScheduleOptions, parse_schedule
from scheduler.schedule import (
    Schedule,
    compute_fire_time,
    compute_grace,
    find_first_slot,
    find_next_slot,
    list_slots_between,
)

NOW = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)


def cron(expression: str, timezone: str = "UTC", **options: object) -> Schedule:
    return parse_schedule(expression, now=NOW, options=ScheduleOptions(timezone=timezone, **options))


def local_slots(expression: str, timezone: str, date: str, hours: tuple[str, str] = ("00:00", "23:59")) -> list[str]:
    """The slots of a local day as wall times with their offsets."""
    zone = ZoneInfo(timezone)
    start, end = (datetime.fromisoformat(f"{date}T{hour}").replace(tzinfo=zone) for hour in hours)
    slots = list_slots_between(cron(expression, timezone), start.astimezone(UTC) - timedelta(seconds=1), end, 2000)
    return [f"{slot.astimezone(zone):%H:%M%z}" for slot in slots]


SPRING = {"Europe/Berlin": "2026-03-29", "America/New_York": "2026-03-08", "Australia/Lord_Howe": "2026-10-04"}
AUTUMN = {"Europe/Berlin": "2026-10-25", "America/New_York": "2026-11-01", "Australia/Lord_Howe": "2026-04-05"}
ZONES = sorted(SPRING)


@pytest.mark.parametrize(
    ("zone", "expected"),
    [("Europe/Berlin", "03:00+0200"), ("America/New_York", "03:00-0400"), ("Australia/Lord_Howe", "02:30+1100")],
)
@pytest.mark.parametrize("expression", ["0 2 * * *", "15 2 * * *"])
def test_a_daily_job_in_the_gap_runs_at_the_first_instant_after_it(zone, expected, expression):
    assert local_slots(expression, zone, SPRING[zone]) == [expected]


@pytest.mark.parametrize(
    ("zone", "expected"),
    [("Europe/Berlin", "03:00+0200"), ("America/New_York", "03:00-0400"), ("Australia/Lord_Howe", "02:30+1100")],
)
def test_a_daily_half_past_two_job_runs_once_on_the_short_day(zone, expected):
    assert local_slots("30 2 * * *", zone, SPRING[zone]) == [expected]


@pytest.mark.parametrize(
    ("zone", "expected"),
    [("Europe/Berlin", "02:30+0200"), ("America/New_York", "02:30-0500"), ("Australia/Lord_Howe", "02:30+1030")],
)
def test_a_daily_half_past_two_job_runs_once_on_the_long_day(zone, expected):
    assert local_slots("30 2 * * *", zone, AUTUMN[zone]) == [expected]


@pytest.mark.parametrize(
    ("zone", "expression", "expected"),
    [
        ("Europe/Berlin", "30 2 * * *", "02:30+0200"),
        ("America/New_York", "30 1 * * *", "01:30-0400"),
        ("Australia/Lord_Howe", "45 1 * * *", "01:45+1100"),
    ],
)
def test_a_time_that_comes_twice_runs_the_first_time(zone, expression, expected):
    assert local_slots(expression, zone, AUTUMN[zone]) == [expected]


@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/New_York"])
@pytest.mark.parametrize("expression", ["0 * * * *", "5 * * * *", "59 * * * *", "*/15 * * * *", "*/20 * * * *"])
@pytest.mark.parametrize("nights", [SPRING, AUTUMN])
def test_an_hourly_rhythm_is_even_in_elapsed_time(zone, expression, nights):
    start = datetime.fromisoformat(f"{nights[zone]}T00:00").replace(tzinfo=ZoneInfo(zone))
    slots = list_slots_between(cron(expression, zone), start, start + timedelta(hours=30), 1000)
    gaps = {later - earlier for earlier, later in pairwise(slots)}
    minutes = parse_cron(expression).longest_idle_minutes
    assert gaps == {timedelta(minutes=minutes)}


@pytest.mark.parametrize(("nights", "count"), [(SPRING, 23), (AUTUMN, 25)])
def test_an_hourly_job_runs_as_often_as_the_day_has_hours(nights, count):
    assert len(local_slots("0 * * * *", "Europe/Berlin", nights["Europe/Berlin"])) == count


@pytest.mark.parametrize("nights", [SPRING, AUTUMN])
@pytest.mark.parametrize("expression", ["0 * * * *", "10 * * * *", "45 * * * *"])
def test_an_hourly_job_on_lord_howe_runs_once_for_each_of_24_hours(nights, expression):
    zone = "Australia/Lord_Howe"
    slots = local_slots(expression, zone, nights[zone])
    assert len(slots) == 24
    assert len({slot[:2] for slot in slots}) == 24


@pytest.mark.parametrize("nights", [SPRING, AUTUMN])
@pytest.mark.parametrize("expression", ["*/15 * * * *", "*/30 * * * *"])
def test_a_rhythm_that_fits_the_half_hour_jump_is_even_on_lord_howe(nights, expression):
    start = datetime.fromisoformat(f"{nights['Australia/Lord_Howe']}T00:00").replace(
        tzinfo=ZoneInfo("Australia/Lord_Howe")
    )
    slots = list_slots_between(cron(expression, "Australia/Lord_Howe"), start, start + timedelta(hours=12), 1000)
    assert len({later - earlier for earlier, later in pairwise(slots)}) == 1


def test_times_that_share_the_gap_share_one_run():
    assert local_slots("0,30 2,3 * * *", "Europe/Berlin", SPRING["Europe/Berlin"]) == ["03:00+0200", "03:30+0200"]


def test_a_day_that_a_country_skipped_is_made_up_for_at_its_end():
    # Samoa went from 29 to 31 December 2011.
    assert local_slots("0 9 30 12 *", "Pacific/Apia", "2011-12-31") == ["00:00+1400"]


def test_clocks_that_go_back_over_midnight_keep_the_order():
    # Until 2011 Newfoundland changed at 00:01, back to 23:01 of the day before.
    slots = list_slots_between(
        cron("*/30 * * * *", "America/St_Johns"),
        datetime(2010, 11, 7, 1, 0, tzinfo=UTC),
        datetime(2010, 11, 7, 5, 0, tzinfo=UTC),
        100,
    )
    assert [f"{slot:%H:%M}" for slot in slots] == [
        "01:30",
        "02:00",
        "02:30",
        "03:00",
        "03:30",
        "04:00",
        "04:30",
        "05:00",
    ]


def test_an_interval_goes_by_elapsed_time():
    schedule = parse_schedule(
        "every 1d",
        now=NOW,
        options=ScheduleOptions(timezone="Europe/Berlin", starts_at=datetime(2026, 3, 28, 1, 30, tzinfo=UTC)),
    )
    assert [slot.day for slot in list_slots_between(schedule, NOW, NOW + timedelta(days=60), 3)] == [28, 29, 30]
    assert {slot.hour for slot in list_slots_between(schedule, NOW, NOW + timedelta(days=90), 50)} == {1}


def test_an_interval_does_not_drift():
    schedule = parse_schedule("every 45m", now=NOW)
    late = NOW + timedelta(minutes=45 * 7, seconds=12)
    assert find_next_slot(schedule, late) == NOW + timedelta(minutes=45 * 8)


def test_a_one_shot_has_one_slot():
    schedule = parse_schedule("30m", now=NOW)
    slot = NOW + timedelta(minutes=30)
    assert find_next_slot(schedule, NOW) == slot
    assert find_next_slot(schedule, slot) is None


def test_a_start_date_is_itself_a_slot_when_it_matches():
    schedule = cron("0 9 * * *", starts_at=datetime(2026, 5, 1, 9, 0, tzinfo=UTC))
    assert find_next_slot(schedule, NOW) == datetime(2026, 5, 1, 9, 0, tzinfo=UTC)


def test_an_end_date_is_itself_a_slot_when_it_matches():
    end = datetime(2026, 2, 2, 9, 0, tzinfo=UTC)
    assert list_slots_between(cron("0 9 * * *", ends_at=end), NOW, NOW + timedelta(days=9), 9)[-1] == end


def test_the_limit_is_kept():
    assert len(list_slots_between(cron("* * * * *"), NOW, NOW + timedelta(days=1), 7)) == 7


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("every 1m", 120),
        ("every 30m", 900),
        ("every 600m", 7200),
        ("0 9 * * *", 7200),
        ("*/5 * * * *", 150),
        ("30m", 120),
    ],
)
def test_the_grace_is_half_the_period_between_two_minutes_and_two_hours(text, seconds):
    schedule = parse_schedule(text, now=NOW)
    slot = find_first_slot(schedule, NOW)
    assert slot is not None
    assert compute_grace(schedule, slot) == timedelta(seconds=seconds)


# Jitter.


def test_jitter_delays_without_changing_the_slot():
    schedule = cron("0 9 * * *", jitter_s=600)
    slot = find_first_slot(schedule, NOW)
    delays = {compute_fire_time(schedule, slot, f"job{number}") - slot for number in range(200)}
    assert min(delays) >= timedelta()
    assert max(delays) <= timedelta(seconds=600)
    assert len(delays) > 100


def test_jitter_is_the_same_for_every_replica():
    schedule = cron("0 9 * * *", jitter_s=600)
    slot = find_first_slot(schedule, NOW)
    berlin = slot.astimezone(ZoneInfo("Europe/Berlin"))
    assert compute_fire_time(schedule, slot, "job") == compute_fire_time(schedule, berlin, "job")


def test_jitter_never_reaches_the_next_slot():
    schedule = cron("* * * * *", jitter_s=3600)
    slots = list_slots_between(schedule, NOW, NOW + timedelta(hours=2), 100)
    fires = [compute_fire_time(schedule, slot, "job") for slot in slots]
    assert fires == sorted(set(fires))


# Laws.

ZONE_NAMES = [*ZONES, "UTC", "Asia/Kolkata", "Pacific/Apia", "America/St_Johns", "Africa/Casablanca", "Asia/Beirut"]


def _field(low: int, high: int) -> st.SearchStrategy[str]:
    number = st.integers(low, high)
    listed = st.lists(number, min_size=1, max_size=3).map(lambda values: ",".join(str(value) for value in values))
    return st.one_of(st.just("*"), listed, st.integers(2, high).map(lambda step: f"*/{step}"))


schedules = st.builds(
    lambda minute, hour, weekday, zone: cron(f"{minute} {hour} * * {weekday}", zone),
    _field(0, 59),
    _field(0, 23),
    st.sampled_from(["*", "*", "0", "1-5", "sat,sun"]),
    st.sampled_from(ZONE_NAMES),
)
instants = st.datetimes(datetime(2005, 1, 1), datetime(2035, 1, 1)).map(lambda value: value.replace(tzinfo=UTC))
# Most instants are far from a change of the clocks, where nothing can go wrong.
change_nights = st.builds(
    lambda night, minutes: datetime.fromisoformat(night).replace(tzinfo=UTC) + timedelta(minutes=minutes),
    st.sampled_from([*SPRING.values(), *AUTUMN.values(), "2010-11-07", "2011-12-30"]),
    st.integers(-1000, 2000),
)


@settings(max_examples=300, deadline=None)
@given(schedules, instants | change_nights)
def test_slots_increase_and_asking_again_changes_nothing(schedule, instant):
    slot = find_next_slot(schedule, instant)
    assert slot is not None
    assert slot > instant
    assert find_next_slot(schedule, slot - timedelta(microseconds=1)) == slot
    assert find_next_slot(schedule, instant) == slot
    between = instant + (slot - instant) / 2
    assert find_next_slot(schedule, between) == slot


@settings(max_examples=300, deadline=None)
@given(schedules, change_nights)
def test_every_slot_lies_on_the_wall_clock_or_right_after_a_gap(schedule, instant):
    fields, zone = schedule.timing.fields, ZoneInfo(schedule.timezone)
    for slot in list_slots_between(schedule, instant, instant + timedelta(days=2), 20):
        wall = slot.astimezone(zone)
        is_match = wall.minute in fields.minutes and wall.hour in fields.hours and fields.matches_date(wall.date())
        is_after_gap = (slot - timedelta(seconds=1)).astimezone(zone).utcoffset() < wall.utcoffset()
        assert is_match or is_after_gap


@settings(max_examples=80, deadline=None)
@given(schedules, change_nights)
def test_every_matching_wall_time_has_its_slot(schedule, instant):
    """The other direction, by brute force: walking real time, the first reading of every matching wall time is a slot;
    a repeated reading is one only for a rhythm."""
    fields, zone = schedule.timing.fields, ZoneInfo(schedule.timezone)
    end = instant + timedelta(hours=30)
    slots = set(list_slots_between(schedule, instant, end, 5000))
    moment = instant.replace(second=0, microsecond=0) + timedelta(minutes=1)
    while moment <= end:
        wall = moment.astimezone(zone)
        if (
            wall.fold == 0
            and wall.minute in fields.minutes
            and wall.hour in fields.hours
            and fields.matches_date(wall.date())
        ):
            assert moment in slots
        moment += timedelta(minutes=1)


@settings(max_examples=200, deadline=None)
@given(schedules, instants, st.integers(0, 400), st.integers(0, 400))
def test_no_slot_before_the_start_or_after_the_end(schedule, instant, start_hours, length_hours):
    start = instant + timedelta(hours=start_hours)
    end = start + timedelta(hours=length_hours)
    bounded = Schedule(timing=schedule.timing, timezone=schedule.timezone, display="", starts_at=start, ends_at=end)
    slots = list_slots_between(bounded, instant - timedelta(hours=1), end + timedelta(days=3), 200)
    assert all(start <= slot <= end for slot in slots)
    free = list_slots_between(schedule, start - timedelta(microseconds=1), end, 200)
    assert slots == free


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 5000), instants)
def test_an_interval_keeps_its_grid(minutes, instant):
    schedule = parse_schedule(f"every {minutes}m", now=NOW)
    slot = find_next_slot(schedule, instant)
    assert slot is not None
    assert slot > instant
    assert (slot - NOW) % timedelta(minutes=minutes) == timedelta()
