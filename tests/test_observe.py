"""What is logged, that nothing secret is, and what it costs."""

from __future__ import annotations

import ast
import io
import json
import logging
import os
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.logs import kept_log

import hermes_worker
from hermes_worker.observe import (
    EVENTS,
    OutageLog,
    bind_facts,
    configure_logging,
    copy_counters,
    count,
    log,
    reset_counters,
)
from hermes_worker.settings import LogSettings, Secret

PACKAGE = Path(hermes_worker.__file__).parent
SOURCES = [*PACKAGE.rglob("*.py"), *(PACKAGE.parent / "scheduler").rglob("*.py")]
KEY = "sk-" + "abcdefghijklmnopqrstuvwx"


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    with kept_log():
        yield


@pytest.fixture
def stream() -> io.StringIO:
    return io.StringIO()


def lines(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_the_fields_of_json_lines_that_belong_to_no_event_are_in_the_reference(stream: io.StringIO) -> None:
    configure_logging(LogSettings(format="json"), "worker", stream=stream)
    try:
        raise KeyError("lost")
    except KeyError:
        log.exception("task.failed", run_id="run_1")
    logging.getLogger("somebody.else").warning("hello")

    table = (Path(__file__).parents[1] / "docs/reference/events.md").read_text(encoding="utf-8")
    table = table.partition("## Events of the log")[2].partition("| Event |")[0]
    named = set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE))
    assert {name for line in lines(stream) for name in line} <= named
    assert {"trace_id", "span_id", "iteration", "attempt", "call"} <= named


def test_a_json_line_holds_the_event_its_facts_and_its_origin(stream: io.StringIO) -> None:
    configure_logging(LogSettings(format="json"), "worker", stream=stream)

    log.info("tool_call.settled", tool="terminal", duration_s=0.25, ok=True, none=None)

    (line,) = lines(stream)
    assert str(line.pop("timestamp")).endswith("Z")
    assert line == {
        "level": "info",
        "role": "worker",
        "event": "tool_call.settled",
        "tool": "terminal",
        "duration_s": 0.25,
        "ok": True,
        "none": None,
        "pid": os.getpid(),
    }


def test_a_console_line_is_for_people(stream: io.StringIO) -> None:
    configure_logging(LogSettings(), "api", stream=stream)

    log.warning("run.finished", run_id="7f3a", reason="a b", n=3, tags=["x"])

    assert re.fullmatch(
        r'\d\d:\d\d:\d\d\.\d{3} warning api    run\.finished  run_id=7f3a reason="a b" n=3 tags=\["x"\]\n',
        stream.getvalue(),
    )


def test_bound_facts_are_in_every_line_inside_and_in_none_after(stream: io.StringIO) -> None:
    configure_logging(LogSettings(format="json"), "worker", stream=stream)

    with bind_facts(run_id="r", iteration=1):
        with bind_facts(iteration=2):
            log.info("iteration.claimed")
        log.info("iteration.committed")
    log.info("sweep.completed")

    assert [(line.get("run_id"), line.get("iteration")) for line in lines(stream)] == [("r", 2), ("r", 1), (None, None)]


def test_bound_facts_stay_in_their_thread(stream: io.StringIO) -> None:
    configure_logging(LogSettings(format="json"), "worker", stream=stream)

    with bind_facts(run_id="r"):
        other = threading.Thread(target=log.info, args=("sweep.completed",))
        other.start()
        other.join()

    assert "run_id" not in lines(stream)[0]


@pytest.mark.parametrize("form", ["json", "console"])
def test_no_field_of_any_type_shows_a_secret(stream: io.StringIO, form: str) -> None:
    configure_logging(LogSettings(format=form), "worker", stream=stream, secrets=[Secret("correct horse")])

    log.info(
        "model.failed",
        text=f"key {KEY}",
        raw=KEY.encode(),
        nested={"a": [{"b": f"Bearer {KEY}"}], "api_key": "hunter2"},
        password="hunter2",
        error=ValueError(f"postgres://u:hunter2@h/d {KEY}"),
        wrapped=Secret("hunter2"),
        plain="so correct horse it is",
        deep=[[[[[[KEY]]]]]],
    )

    assert KEY not in stream.getvalue()
    assert "hunter2" not in stream.getvalue()
    assert "correct horse" not in stream.getvalue()


def test_counts_of_tokens_are_not_secrets(stream: io.StringIO) -> None:
    configure_logging(LogSettings(format="json"), "worker", stream=stream)

    log.info("iteration.committed", tokens=12, token_count=3, output_tokens=4.5)

    assert (lines(stream)[0]["tokens"], lines(stream)[0]["output_tokens"]) == (12, 4.5)


def test_a_key_of_one_letter_does_not_chew_up_lines(stream: io.StringIO) -> None:
    configure_logging(LogSettings(format="json"), "worker", secrets=(Secret("k"), Secret("")), stream=stream)

    log.warning("hint.failed", error="check the key")

    assert lines(stream)[0]["error"] == "check the key"


@pytest.mark.parametrize("form", ["json", "console"])
def test_a_traceback_is_redacted_and_shows_no_local_variables(stream: io.StringIO, form: str) -> None:
    configure_logging(LogSettings(format=form), "worker", stream=stream)
    only_a_local = "correct horse battery"

    try:
        raise ValueError(f"no {KEY}")
    except ValueError:
        log.exception("run.broken", length=len(only_a_local))

    assert "ValueError: no sk-abc...uvwx" in stream.getvalue()
    assert "Traceback" in stream.getvalue()
    assert KEY not in stream.getvalue()
    assert only_a_local not in stream.getvalue().replace('only_a_local = "', "")


@pytest.mark.parametrize("form", ["json", "console"])
def test_a_value_cannot_forge_a_line_or_paint_the_terminal(stream: io.StringIO, form: str) -> None:
    configure_logging(LogSettings(format=form), "worker", stream=stream)

    log.info(
        "hint.failed\n", error="x\n12:00:00.000 info    worker run.finished", colour="\x1b[31m", nul="\0", odd="\ud800"
    )
    logging.getLogger("lib").warning("one\ntwo\x1b[0m")

    assert len(stream.getvalue().splitlines()) == 2
    assert "\x1b" not in stream.getvalue()


def test_odd_values_become_valid_json(stream: io.StringIO) -> None:
    configure_logging(LogSettings(format="json"), "worker", stream=stream)

    log.info("sweep.completed", inf=float("inf"), path=Path("/x"), raw=b"\xff", items={3}, huge="x" * 100_000)

    (line,) = lines(stream)
    assert (line["inf"], line["path"], line["raw"], line["items"]) == ("inf", "/x", "�", [3])
    assert str(line["huge"]).endswith("(92000 characters more)")


def test_other_libraries_take_the_same_way(stream: io.StringIO) -> None:
    configure_logging(LogSettings(format="json"), "worker", stream=stream)

    with bind_facts(run_id="r"):
        logging.getLogger("some.library").warning("got %s", KEY)
        logging.getLogger("httpx").info("GET https://h")
        logging.getLogger("some.library").debug("nothing")

    (line,) = lines(stream)
    assert (line["event"], line["logger"], line["level"], line["role"], line["run_id"]) == (
        "got sk-abc...uvwx",
        "some.library",
        "warning",
        "worker",
        "r",
    )


def test_secrets_are_listed_for_the_first_line_and_masked_in_it(stream: io.StringIO) -> None:
    listed: list[str] = []

    class Secrets:
        def __iter__(self) -> Iterator[Secret]:
            listed.append("now")
            return iter([Secret("correct-horse-battery")])

    configure_logging(LogSettings(format="json"), "cli", secrets=Secrets(), stream=stream)
    assert listed == []
    for _ in range(2):
        log.warning("home.closed", path="/correct-horse-battery/home", mode="0700")
    assert listed == ["now"]
    assert "correct-horse-battery" not in stream.getvalue()
    assert "home.closed" in stream.getvalue()


def test_the_last_configuration_wins(stream: io.StringIO) -> None:
    configure_logging(LogSettings(level="ERROR"), "worker", stream=io.StringIO())
    configure_logging(LogSettings(level="DEBUG", format="json"), "worker", stream=stream)

    log.debug("hint.sent")

    assert len(lines(stream)) == 1


def test_a_reader_that_went_away_does_not_stop_the_work() -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    with os.fdopen(write_end, "w") as gone:
        configure_logging(LogSettings(), "worker", stream=gone)

        log.info("sweep.completed", filler="x" * 100_000)

        os.dup2(os.open(os.devnull, os.O_WRONLY), gone.fileno())


def test_a_line_below_the_level_costs_next_to_nothing(stream: io.StringIO) -> None:
    configure_logging(LogSettings(level="WARNING"), "worker", stream=stream)
    started = time.thread_time()
    for _ in range(10_000):
        log.info("tool_call.settled", tool="terminal", duration_s=0.25)

    # Measured: 0.2 us of processor time each.
    assert (time.thread_time() - started) / 10_000 < 5e-6
    assert stream.getvalue() == ""


# --- the catalogue ---------------------------------------------------------------------------------------------------


def _events_used(path: Path) -> Iterator[tuple[str, str]]:
    text = path.read_text(encoding="utf-8")
    # Most files use none, and to parse them all takes seconds.
    if "hermes_worker.observe" not in text and "poll_forever(" not in text:
        return
    tree = ast.parse(text)
    ours = set(_names_from_observe(tree))
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name)), args=[ast.Constant(value=str(event)), *_]):
                if name == "log" and name in ours:
                    yield path.name, event
            case ast.Call(func=ast.Name(id=name), args=[ast.Constant(value=str(event)), *_]):
                if name == "count" and name in ours:
                    yield path.name, event
            case ast.Call(
                func=ast.Name(id="poll_forever"),
                keywords=[ast.keyword(arg="event", value=ast.Constant(value=str(event)))],
            ):
                yield path.name, event


def _events_emitted(path: Path) -> Iterator[str]:
    """Names of events, or what stands before their kind, in arguments of calls that log or count."""
    text = path.read_text(encoding="utf-8")
    if not any(f'"{event}' in text for event in EVENTS):
        return
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Call):
            continue
        for argument in [*node.args, *(keyword.value for keyword in node.keywords)]:
            match argument:
                case ast.Constant(value=str(text)):
                    yield text
                case ast.JoinedStr(values=[ast.Constant(value=str(text)), *_]):
                    yield text.rstrip(".")


def _names_from_observe(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "hermes_worker.observe":
            yield from (alias.name for alias in node.names)


def test_every_event_in_the_sources_is_in_the_catalogue() -> None:
    used = [use for path in SOURCES for use in _events_used(path)]

    assert ("children.py", "child.started") in used
    assert ("remote_tasks.py", "remote_task.unwatched") in used
    assert [(path, event) for path, event in used if event not in EVENTS] == []


def test_every_event_of_the_catalogue_is_emitted_somewhere() -> None:
    emitted = {event for path in SOURCES for event in _events_emitted(path)}

    assert sorted(EVENTS.keys() - emitted) == []


def test_events_are_dotted_and_explained() -> None:
    assert all(re.fullmatch(r"[a-z_]+\.[a-z_]+", event) for event in EVENTS)
    assert all(meaning.endswith(".") for meaning in EVENTS.values())


# --- outages ---------------------------------------------------------------------------------------------------------


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def outage_on(clock: Clock, stream: io.StringIO) -> OutageLog:
    configure_logging(LogSettings(format="json", level="INFO"), "worker", stream=stream)
    return OutageLog("broker.unreachable", "broker.reachable", clock=clock)


def test_an_outage_is_told_at_growing_intervals_and_when_it_is_over() -> None:
    clock, stream = Clock(), io.StringIO()
    outage = outage_on(clock, stream)
    for quarter in range(4 * 300):
        clock.now = 100.0 + quarter / 4
        outage.note_failure(doing="sweep")
    clock.now = 400.0
    outage.note_success()
    outage.note_success()

    *gone, back = lines(stream)
    assert [line["away_s"] for line in gone] == [0, 1, 3, 7, 15, 31, 63, 123, 183, 243]
    assert gone[1] == gone[1] | {"event": "broker.unreachable", "doing": "sweep", "more_failures": 3}
    assert back == back | {"event": "broker.reachable", "away_s": 300.0}


def test_a_server_that_comes_and_goes_is_not_told_of_each_time() -> None:
    clock, stream = Clock(), io.StringIO()
    outage = outage_on(clock, stream)
    for _ in range(1_000):
        clock.now += 0.1
        outage.note_failure()
        outage.note_success()

    assert sum(line["event"] == "broker.unreachable" for line in lines(stream)) == 7
    assert sum(line["event"] == "broker.reachable" for line in lines(stream)) == 7


def test_a_new_outage_is_told_at_once() -> None:
    clock, stream = Clock(), io.StringIO()
    outage = outage_on(clock, stream)
    for _ in range(2):
        for _ in range(30):
            clock.now += 1
            outage.note_failure()
        outage.note_success()
        clock.now += 61

    assert [line["away_s"] for line in lines(stream) if line["event"] == "broker.unreachable"] == [
        *(0, 1, 3, 7, 15),
        *(0, 1, 3, 7, 15),
    ]


# --- counters --------------------------------------------------------------------------------------------------------


@pytest.fixture
def _counters_at_zero() -> Iterator[None]:
    reset_counters()
    yield
    reset_counters()


@pytest.mark.usefixtures("_counters_at_zero")
def test_counters_add_up_over_threads() -> None:
    def settle_many() -> None:
        for _ in range(1000):
            count("tool_call.settled")

    threads = [threading.Thread(target=settle_many) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    count("hint.sent", 7)
    count("model.failed.rate_limit")

    values = copy_counters()
    assert (values["tool_call.settled"], values["hint.sent"], values["model.failed.rate_limit"]) == (4000, 7, 1)
    assert values["lease.lost"] == 0


def test_a_misspelt_counter_is_an_error() -> None:
    with pytest.raises(KeyError, match=r"not in observe\.EVENTS"):
        count("tool_call.setled")


@pytest.mark.usefixtures("_counters_at_zero")
def test_a_forked_child_counts_for_itself() -> None:
    count("hint.sent", 5)
    child = os.fork()
    if child == 0:
        os._exit(copy_counters()["hint.sent"])

    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert copy_counters()["hint.sent"] == 5
