from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.grammar import (
    ScheduleError,
    ScheduleOptions,
    load_zone,
    parse_duration,
    parse_schedule,
    parse_timestamp,
    read_record,
    require_future,
    write_record,
)
from scheduler.schedule import find_next_slot

NOW = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)
BERLIN = ScheduleOptions(timezone="Europe/Berlin")


def first(text: str, options: ScheduleOptions | None = None) -> str:
    return f"{find_next_slot(parse_schedule(text, now=NOW, options=options), NOW):%Y-%m-%d %H:%M}"


# Rows computed with Hermes Agent 0.19.0.


@pytest.mark.parametrize(("text", "minutes"), [("30m", 30), ("2 hours", 120), ("1d", 1440)])
def test_a_bare_duration_runs_once(text, minutes):
    record = write_record(parse_schedule(text, now=NOW))
    assert record["kind"] == "once"
    assert record["run_at"] == (NOW + timedelta(minutes=minutes)).isoformat()
    assert record["display"] == f"once in {text}"


@pytest.mark.parametrize(("text", "minutes"), [("every 30m", 30), ("Every 2h", 120), ("every 1 day", 1440)])
def test_every_with_a_duration_is_an_interval(text, minutes):
    record = write_record(parse_schedule(text, now=NOW))
    assert (record["kind"], record["minutes"], record["display"]) == ("interval", minutes, f"every {minutes}m")


@pytest.mark.parametrize("text", ["0 9 * * *", "*/15 9-17 * * 1-5", "0 9 * * * *"])
def test_cron_fields_are_kept_as_written(text):
    record = write_record(parse_schedule(text, now=NOW))
    assert (record["kind"], record["expr"], record["display"]) == ("cron", text, text)


@pytest.mark.parametrize(
    ("text", "instant"),
    [
        ("2026-02-03", "2026-02-03T00:00:00+00:00"),
        ("2026-02-03T14:00", "2026-02-03T14:00:00+00:00"),
        ("2026-02-03 14:00", "2026-02-03T14:00:00+00:00"),
        ("2026-02-03T14:00:00Z", "2026-02-03T14:00:00+00:00"),
        ("2026-02-03T14:00:00+08:00", "2026-02-03T06:00:00+00:00"),
        ("20260203T140000", "2026-02-03T14:00:00+00:00"),
    ],
)
def test_a_timestamp_runs_once(text, instant):
    assert write_record(parse_schedule(text, now=NOW))["run_at"] == instant


@pytest.mark.parametrize("text", ["90s", "1w", "every", "every day", "-5m", ""])
def test_what_the_reference_refuses_is_refused(text):
    with pytest.raises(ScheduleError):
        parse_schedule(text, now=NOW)


def test_a_field_out_of_range_is_pointed_at():
    with pytest.raises(ScheduleError, match=r"^'60' in the cron expression '60 9 \* \* \*' .* minute field takes 0-59"):
        parse_schedule("60 9 * * *", now=NOW)


# What the original gets wrong ([Q]) or lacks.


@pytest.mark.parametrize("text", ["0m", "every 0m", "every 0h0m"])
def test_an_interval_of_nothing_is_refused(text):
    with pytest.raises(ScheduleError, match="the least is one minute"):
        parse_schedule(text, now=NOW)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0 9 * * MON-FRI", "2026-02-02 09:00"),
        ("0 9 * * TUE", "2026-02-03 09:00"),
        ("@daily", "2026-02-01 00:00"),
        ("@hourly", "2026-01-31 13:00"),
        ("@weekly", "2026-02-01 00:00"),
        ("@monthly", "2026-02-01 00:00"),
        ("@yearly", "2027-01-01 00:00"),
        ("@every 1h30m", "2026-01-31 13:30"),
        ("every 1h30m", "2026-01-31 13:30"),
        ("every 1d 12h", "2026-02-02 00:00"),
        ("every 1 hour 5 minutes", "2026-01-31 13:05"),
        ("every hour", "2026-01-31 13:00"),
        ("every minute", "2026-01-31 12:01"),
        ("1h30m", "2026-01-31 13:30"),
        ("in 2 hours", "2026-01-31 14:00"),
        ("every day at 9am", "2026-02-01 09:00"),
        ("every day 9 am", "2026-02-01 09:00"),
        ("every day at 12am", "2026-02-01 00:00"),
        ("every day at 12:30pm", "2026-01-31 12:30"),
        ("every day at noon", "2026-02-01 12:00"),
        ("every day at 9am and 5pm", "2026-01-31 17:00"),
        ("every monday 08:30", "2026-02-02 08:30"),
        ("Every  Monday at 8:30", "2026-02-02 08:30"),
        ("every mondays at 08:30", "2026-02-02 08:30"),
        ("every weekday at 18:00", "2026-02-02 18:00"),
        ("every weekend at 7", "2026-02-01 07:00"),
        ("every tue, thu and fri at 21:15", "2026-02-03 21:15"),
        ("every mon-wed at 6am", "2026-02-02 06:00"),
    ],
)
def test_people_may_write(text, expected):
    assert first(text) == expected


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("every 90s", "'90s' in 'every 90s'"),
        ("every week", "'week' in 'every week'"),
        ("every monday", "'every monday' needs a time"),
        ("every day at 25:00", "'25:00' in"),
        ("every day at 13pm", "'13pm' in"),
        ("every day at 9:60", "'9:60' in"),
        ("every 1 at 9", "'1' in"),
        ("every mon,funday at 9", "'funday' in"),
        ("every monday at 9am and 5:30pm", "'9am and 5:30pm' names times with different minutes"),
        ("every day at", "'day at' in"),
        ("0 9 * *", "five fields, or six with seconds, not 4"),
        ("0 0 30 2 *", "'0 0 30 2 *' names a date that never comes"),
        ("@reboot", "'@reboot' is not one of @hourly"),
        ("2026-02-30T10:00", "'2026-02-30T10:00' is not a timestamp"),
        ("tomorrow", "'tomorrow' is not a schedule"),
        ("every 9999999d", "'9999999d' is too long"),
    ],
)
def test_the_offending_part_is_pointed_at(text, part):
    with pytest.raises(ScheduleError) as caught:
        parse_schedule(text, now=NOW)
    message = str(caught.value)
    assert part in message
    assert message.count("; write '30m' or 'in 2 hours' (once), 'every 1h30m'") == 1
    assert message.endswith(".")
    assert "\n" not in message


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused(text):
    try:
        schedule = parse_schedule(text, now=NOW)
    except ScheduleError:
        return
    assert read_record(write_record(schedule), now=NOW) == schedule


@given(st.from_regex(r"(every |in |@every )?([0-9]{1,12} ?[dhm] ?){1,3}( at [0-9:apm]{1,6})?", fullmatch=True))
def test_any_duration_like_text_is_read_or_refused(text):
    try:
        parse_schedule(text, now=NOW)
    except ScheduleError:
        pass


def test_a_very_long_text_is_refused():
    with pytest.raises(ScheduleError, match="at most 200 characters"):
        parse_schedule("0 9 * * " + "1," * 500 + "1", now=NOW)


# Time zones, dates, jitter.


def test_a_naive_timestamp_is_read_on_the_clock_of_the_job():
    assert first("2026-07-01T09:00", BERLIN) == "2026-07-01 07:00"


def test_a_timestamp_in_the_gap_becomes_the_first_instant_after_it():
    assert first("2026-03-29T02:30", BERLIN) == "2026-03-29 01:00"


def test_a_timestamp_that_comes_twice_is_the_first():
    assert first("2026-10-25T02:30", BERLIN) == "2026-10-25 00:30"


def test_the_display_of_a_timestamp_is_in_the_zone_of_the_job():
    schedule = parse_schedule("2026-07-01T07:00Z", now=NOW, options=BERLIN)
    assert schedule.display == "once at 2026-07-01 09:00"


@pytest.mark.parametrize(
    "name",
    [
        "Mars/Base",
        "",
        "localtime",
        "posixrules",
        "right/UTC",
        "Europe",
        "../../etc/passwd",
        "/etc/localtime",
        "a" * 5000,
        "UTC\x00",
    ],
)
def test_an_unknown_zone_is_refused(name):
    with pytest.raises(ScheduleError, match="is not a time zone; write an IANA name"):
        load_zone(name)


def test_a_zone_that_does_not_exist_refuses_the_schedule():
    with pytest.raises(ScheduleError, match="'Mars/Base' is not a time zone"):
        parse_schedule("@daily", now=NOW, options=ScheduleOptions(timezone="Mars/Base"))


def test_an_interval_counts_from_its_start_date():
    start = datetime(2026, 2, 10, 8, 0, tzinfo=UTC)
    schedule = parse_schedule("every 6h", now=NOW, options=ScheduleOptions(starts_at=start))
    assert find_next_slot(schedule, NOW) == start
    assert find_next_slot(schedule, start) == start + timedelta(hours=6)


def test_an_end_before_the_start_is_refused():
    options = ScheduleOptions(starts_at=NOW, ends_at=NOW - timedelta(days=1))
    with pytest.raises(ScheduleError, match="The end date 2026-01-30 12:00 lies before the start date"):
        parse_schedule("@daily", now=NOW, options=options)


@pytest.mark.parametrize("jitter_s", [-1, 86_401])
def test_a_jitter_out_of_range_is_refused(jitter_s):
    with pytest.raises(ScheduleError, match="jitter"):
        parse_schedule("@daily", now=NOW, options=ScheduleOptions(jitter_s=jitter_s))


def test_a_new_job_in_the_past_is_refused():
    schedule = parse_schedule("2026-01-31T11:57", now=NOW)
    with pytest.raises(ScheduleError, match="is in the past, so the job would never run"):
        require_future(schedule, NOW)


def test_a_new_job_up_to_two_minutes_in_the_past_is_accepted():
    schedule = parse_schedule("2026-01-31T11:58", now=NOW)
    assert require_future(schedule, NOW) == NOW - timedelta(minutes=2)


def test_a_new_job_whose_end_has_passed_is_refused():
    schedule = parse_schedule("@daily", now=NOW, options=ScheduleOptions(ends_at=NOW + timedelta(hours=1)))
    with pytest.raises(ScheduleError, match="no run left"):
        require_future(schedule, NOW)


# Records.


@pytest.mark.parametrize(
    ("record", "display"),
    [
        ({"kind": "interval", "minutes": 30, "display": "every 30m"}, "every 30m"),
        ({"kind": "interval", "minutes": 30}, "every 30m"),
        ({"kind": "cron", "expr": "0 9 * * *", "display": "0 9 * * *"}, "0 9 * * *"),
        (
            {"kind": "once", "run_at": "2026-02-03T14:00:00+08:00", "display": "once at 2026-02-03 14:00"},
            "once at 2026-02-03 14:00",
        ),
    ],
)
def test_a_record_of_the_reference_is_read(record, display):
    schedule = read_record(record, now=NOW)
    assert schedule.display == display
    assert find_next_slot(schedule, NOW) is not None


def test_a_record_keeps_everything():
    options = ScheduleOptions(timezone="Europe/Berlin", starts_at=NOW, ends_at=NOW + timedelta(days=400), jitter_s=90)
    schedule = parse_schedule("every weekday at 18:00", now=NOW, options=options)
    assert read_record(write_record(schedule), now=NOW + timedelta(days=7)) == schedule


@pytest.mark.parametrize(
    "record",
    [
        {},
        {"kind": "yearly"},
        {"kind": "interval"},
        {"kind": "interval", "minutes": "5"},
        {"kind": "interval", "minutes": True},
        {"kind": "interval", "minutes": 0},
        {"kind": "cron"},
        {"kind": "cron", "expr": "0 9 * *"},
        {"kind": "once"},
        {"kind": "once", "run_at": "soon"},
        {"kind": "cron", "expr": "0 9 * * *", "timezone": "Mars/Base"},
        {"kind": "cron", "expr": "0 9 * * *", "jitter_s": "much"},
    ],
)
def test_a_record_that_makes_no_sense_is_refused(record):
    with pytest.raises(ScheduleError):
        read_record(record, now=NOW)


def test_durations_are_read_alone():
    assert parse_duration(" 1d2h3m ") == timedelta(days=1, hours=2, minutes=3)
    with pytest.raises(ScheduleError):
        parse_duration("")


def test_a_timestamp_at_the_edge_of_the_calendar_is_refused():
    with pytest.raises(ScheduleError):
        parse_timestamp("0001-01-01T00:00:00+14:00", "UTC")
