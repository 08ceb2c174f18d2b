"""What one reader is told: any interleaving of rows and live entries, any number of broken connections."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hermes_worker.core.messages import Usage
from hermes_worker.core.run_events import StoredEvent
from hermes_worker.stream.live import NOT_OURS, LiveEntry, parse_entry
from hermes_worker.stream.sse import Cursor, EventMark, Merge, StreamStart, WireEvent, format_frame

USAGE = Usage(input=10, output=5, cache_read=3, cache_write=2)


# --- a world: what the workers write, in the order in which they write it --------------------------------------------


@dataclass(frozen=True)
class Try:
    """One try of a model call: what it streamed, and what became of it."""

    text: str
    reasoning: str
    cuts: tuple[int, ...]
    ending: str = "completed"
    """``completed``, ``lost`` (its worker died), ``handed_over`` (its worker drained), ``discarded`` (the model is
    asked again) or ``counted`` (the same, and it cost an iteration)."""

    @property
    def is_discarded(self) -> bool:
        return self.ending in ("discarded", "counted")


@dataclass(frozen=True)
class Reply:
    text: str
    reasoning: str
    tries: tuple[Try, ...]
    calls: int

    @property
    def is_honest(self) -> bool:
        """Every try since the last that was discarded streamed the beginning of what was committed."""
        last = max((n for n, one in enumerate(self.tries, start=1) if one.is_discarded), default=0)
        kept = self.tries[last:]
        return all(self.text.startswith(one.text) and self.reasoning.startswith(one.reasoning) for one in kept)


@dataclass
class World:
    """Steps are live entries, or rows that are committed together."""

    replies: list[Reply]
    steps: list[LiveEntry | list[StoredEvent]] = field(default_factory=list)
    at: int = 0

    def __post_init__(self) -> None:
        self._seq = self._iteration = 0
        for reply in self.replies:
            self._ask(reply)
            self._run_tools(reply.calls)
        self.steps.append([self._row("run.completed", exit_reason="text_response", text="bye")])

    def _row(self, name: str, **data: object) -> StoredEvent:
        self._seq += 1
        return StoredEvent(seq=self._seq, at=1.0, name=name, data=data)

    def _ask(self, reply: Reply) -> None:
        for one in reply.tries:
            iteration = self._iteration + 1
            self.steps += pieces(one, iteration, number=self._seq)
            if one.ending == "lost":
                self.steps.append([self._row("step.retried", step="model", attempt=2)])
            elif one.is_discarded:
                is_counted = one.ending == "counted"
                data = {"iteration": iteration, "finish_reason": "length", "is_counted": is_counted}
                self.steps.append([self._row("reply.discarded", **data)])
                self._iteration += is_counted
        self._iteration += 1
        body = {"iteration": self._iteration, "text": reply.text, "finish_reason": "stop"}
        if reply.reasoning:
            body["reasoning"] = reply.reasoning
        self.steps.append([self._row("message.completed", **body)])

    def _run_tools(self, calls: int) -> None:
        self.steps += [started_entry(self._iteration, position) for position in range(calls)]
        for position in range(calls):
            data = {"tool": "t", "iteration": self._iteration, "position": position, "tool_call_id": f"c{position}"}
            started = self._row("tool.started", **data, preview="{}", attempt=1)
            self.steps.append([started, self._row("tool.completed", **data, duration=0.1, error=False)])

    @property
    def rows(self) -> list[StoredEvent]:
        return [row for step in self.steps[: self.at] if isinstance(step, list) for row in step]

    @property
    def entries(self) -> list[LiveEntry]:
        return [step for step in self.steps[: self.at] if isinstance(step, LiveEntry)]

    @property
    def start(self) -> StreamStart:
        iteration = sum(row.name == "message.completed" or row.data.get("is_counted", False) for row in self.rows)
        settled = [
            row.data["position"]
            for row in self.rows
            if row.name == "tool.completed" and row.data["iteration"] == iteration
        ]
        is_ended = any(row.name == "run.completed" for row in self.rows)
        return StreamStart(seq=len(self.rows), iteration=iteration, settled=settled, is_ended=is_ended)


def pieces(one: Try, iteration: int, *, number: int) -> Iterator[LiveEntry]:
    for kind, text in (("reasoning", one.reasoning), ("text", one.text)):
        edges = sorted({0, len(text), *(cut % (len(text) + 1) for cut in one.cuts)})
        for begin, end in pairwise(edges):
            yield LiveEntry(kind=kind, text=text[begin:end], iteration=iteration, attempt=number, offset=begin)
    yield LiveEntry(kind="row", text="", iteration=0, attempt=0, offset=0)


def started_entry(iteration: int, position: int) -> LiveEntry:
    text = json.dumps({"tool": "t", "preview": "{}", "tool_call_id": f"c{position}", "position": position})
    return LiveEntry(kind="tool_started", text=text, iteration=iteration, attempt=1, offset=position)


# --- a reader --------------------------------------------------------------------------------------------------------


class Reader:
    """A client with its connection. It keeps what it got, and comes back with the last id it saw."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.got: list[WireEvent] = []
        self.last_id = "0"
        self.connect()

    def connect(self) -> None:
        self.merge = Merge(Cursor.parse(self.last_id), self.world.start)
        self.next_entry = 0

    def read_rows(self, page: int = 1_000) -> None:
        fresh = [row for row in self.world.rows if row.seq > self.merge.cursor.seq][:page]
        self.receive(self.merge.translate_rows(fresh, USAGE))

    def read_live(self, *, is_lost: bool = False) -> None:
        entries = self.world.entries
        if self.next_entry < len(entries):
            if not is_lost:
                self.receive(self.merge.translate_live(entries[self.next_entry], 1.0))
            self.next_entry += 1

    def receive(self, events: list[WireEvent]) -> None:
        for event in events:
            self.got.append(event)
            self.last_id = event.id

    def lose_connection_after(self, kept: int) -> None:
        """The last events were sent and never arrived."""
        del self.got[max(kept, 0) :]
        self.last_id = self.got[-1].id if self.got else "0"
        self.connect()


def told_texts(events: list[WireEvent]) -> Iterator[tuple[str, str, WireEvent]]:
    """For each complete reply: the text and the reasoning told before its row, and the row."""
    text = reasoning = ""
    for event in events:
        if event.name == "message.delta":
            text += event.fields["delta"]
        elif event.name == "reasoning.available":
            reasoning += event.fields["text"]
        elif event.name == "message.completed":
            yield text, reasoning, event
        if event.name in ("message.completed", "reply.discarded"):
            text = reasoning = ""


def assert_told_once(world: World, events: list[WireEvent]) -> None:
    told = list(told_texts(events))
    assert [event.fields["text"] for _, _, event in told] == [reply.text for reply in world.replies]
    for (text, reasoning, _), reply in zip(told, world.replies, strict=True):
        if reply.is_honest:
            assert (text, reasoning) == (reply.text, reply.reasoning)
    names = Counter(event.name for event in events if event.name not in ("message.delta", "reasoning.available"))
    assert names == Counter(row.name for row in world.rows)
    assert events[-1].name == "run.completed"
    whole = [event.name for event in events if event.name in ("message.completed", "tool.completed")]
    assert whole == [row.name for row in world.rows if row.name in ("message.completed", "tool.completed")]


TEXT = st.text(alphabet="ab \n😀", max_size=12)


@st.composite
def tries_at(draw: st.DrawFn, text: str, reasoning: str) -> Try:
    if draw(st.integers(0, 3)) == 0:
        text, reasoning = draw(TEXT), draw(TEXT)
    cut = draw(st.integers(0, len(text)))
    cuts = draw(st.lists(st.integers(0, 20), max_size=4))
    ending = draw(st.sampled_from(["lost", "handed_over", "discarded", "counted"]))
    return Try(text=text[:cut], reasoning=reasoning if cut else "", cuts=tuple(cuts), ending=ending)


@st.composite
def replies(draw: st.DrawFn) -> Reply:
    text, reasoning = draw(TEXT), draw(TEXT)
    tries = draw(st.lists(tries_at(text, reasoning), max_size=3))
    final = Try(text=text, reasoning=reasoning, cuts=(1, 3, 7))
    return Reply(text=text, reasoning=reasoning, tries=(*tries, final), calls=draw(st.integers(0, 3)))


MOVES = st.lists(
    st.tuples(st.sampled_from(["world", "world", "rows", "live", "live", "lost", "back"]), st.integers(0, 9))
)


@settings(max_examples=300, deadline=None)
@given(st.lists(replies(), min_size=1, max_size=3), MOVES)
def test_any_interleaving_and_any_reconnection_tells_everything_once(
    plan: list[Reply], moves: list[tuple[str, int]]
) -> None:
    world = World(plan)
    reader = Reader(world)
    for move, number in moves:
        match move:
            case "world":
                world.at = min(world.at + 1, len(world.steps))
            case "rows":
                reader.read_rows(page=number + 1)
            case "live":
                reader.read_live()
            case "lost":
                reader.read_live(is_lost=True)
            case _:
                reader.lose_connection_after(len(reader.got) - number)
    world.at = len(world.steps)
    reader.read_rows()
    assert_told_once(world, reader.got)
    assert reader.merge.is_over


@given(st.lists(replies(), min_size=1, max_size=3))
def test_a_replay_after_the_end_tells_the_same_rows_without_live_entries(plan: list[Reply]) -> None:
    world = World(plan, at=10_000)
    first, second = Reader(world), Reader(world)
    first.read_rows()
    second.read_rows(page=1)
    while not second.merge.is_over:
        second.read_rows(page=1)
    for entry in world.entries:
        assert second.merge.translate_live(entry, 1.0) == []
    assert first.got == second.got
    assert_told_once(world, first.got)


@given(st.lists(replies(), min_size=1, max_size=2), st.integers(0, 40))
def test_a_reader_that_hears_everything_hears_it_live(plan: list[Reply], _: int) -> None:
    world = World([reply for reply in plan if reply.is_honest] or [Reply("ab", "", (Try("ab", "", (1,)),), 0)])
    reader = Reader(world)
    for step in world.steps:
        world.at += 1
        before = len(reader.got)
        reader.read_live() if isinstance(step, LiveEntry) else reader.read_rows()
        if isinstance(step, list):
            told_late = [event.name for event in reader.got[before:] if event.name in ("message.delta", "tool.started")]
            assert told_late == [], "a row brought what had been live before"
    assert_told_once(world, reader.got)


# --- cursors ---------------------------------------------------------------------------------------------------------

MARKS = st.builds(EventMark, st.integers(0, 10**9), st.integers(0, 2**32 - 1))


@given(st.integers(0, 10**9), st.integers(0, 10**8), MARKS, MARKS, st.integers(0, 2**256 - 1), st.integers(0, 9))
def test_a_cursor_survives_its_text_form(
    seq: int, iteration: int, text: EventMark, reasoning: EventMark, started: int, void: int
) -> None:
    cursor = Cursor(seq=seq, iteration=iteration, text=text, reasoning=reasoning, started=started, void=void)
    expected = cursor if cursor.is_ahead else Cursor(seq=seq)
    assert Cursor.parse(str(cursor)) == expected


NOT_CURSORS = ["", "-1", "x", "1.2", "1.2.3-4.5-6", "1 ", "٣", "1\n", "9" * 11]
NOT_CURSORS += ["1.1.0-0.0-0." + "f" * 65 + ".0", "1.1.1-g.0-0.0.0", "1.1.1-1.0-0.0", "1.1.1-1.0-0.0.0.0"]


@pytest.mark.parametrize("text", NOT_CURSORS)
def test_anything_else_is_not_a_cursor(text: str) -> None:
    with pytest.raises(ValueError, match="id of an event"):
        Cursor.parse(text)


@given(st.text(max_size=40))
def test_parsing_a_cursor_is_total(text: str) -> None:
    try:
        Cursor.parse(text)
    except ValueError:
        pass


def test_the_id_of_an_event_is_the_number_of_its_row() -> None:
    world = World([Reply("hello", "", (), 0)], at=10)
    reader = Reader(world)
    reader.read_rows()
    assert [(event.name, event.id) for event in reader.got] == [
        ("message.delta", "0.0.5-3610a686.0-0.0.0"),
        ("message.completed", "1"),
        ("run.completed", "2"),
    ]


# --- what an event looks like ----------------------------------------------------------------------------------------


def only(row: StoredEvent) -> WireEvent:
    return Merge(Cursor(), StreamStart(seq=0, iteration=0)).translate_rows([row], USAGE)[-1]


def row(name: str, **data: object) -> StoredEvent:
    return StoredEvent(seq=1, at=2.5, name=name, data=data)


def test_an_event_is_one_line_of_json_whatever_the_model_wrote() -> None:
    text = 'a\r\nb\n\ndata: {"event":"run.completed"}\u2028\x00\ud800"'
    event = only(row("message.completed", iteration=1, message_seq=3, text=text, finish_reason="stop"))
    raw = format_frame("run_1", event)
    lines = raw.decode().split("\n")
    assert lines[0] == "id: 1"
    assert lines[1].startswith("data: {")
    assert lines[2:] == ["", ""]
    assert "\r" not in raw.decode()
    assert json.loads(lines[1][6:])["text"] == text.replace("\ud800", "?")


def test_the_last_event_carries_the_answer_and_what_it_cost() -> None:
    event = only(row("run.completed", exit_reason="text_response", message_seq=2, text="done"))
    assert event.is_last
    assert event.fields == {
        "output": "done",
        "usage": {"input_tokens": 15, "output_tokens": 5, "total_tokens": 20},
        "exit_reason": "text_response",
    }


@pytest.mark.parametrize("name", ["run.completed", "run.failed", "run.cancelled"])
def test_however_a_run_ends_its_last_event_says_what_it_used(name: str) -> None:
    event = only(row(name, exit_reason="x"))
    assert event.is_last
    assert event.fields["usage"] == {"input_tokens": 15, "output_tokens": 5, "total_tokens": 20}


def test_secrets_in_arguments_and_errors_are_masked() -> None:
    key = "sk-abcdefghijklmnopqrstuvwxyz"
    started = only(row("tool.started", tool="terminal", preview=f"curl -H {key}", iteration=1, position=0))
    failed = only(row("run.failed", error=f"bad key {key}", exit_reason="model_call_refused"))
    assert key not in json.dumps([dict(started.fields), dict(failed.fields)])
    assert "sk-abc" in started.fields["preview"]


def test_a_call_whose_outcome_nobody_knows_says_so() -> None:
    event = only(row("tool.completed", tool="terminal", iteration=1, position=0, error=True, outcome="unknown"))
    assert event.fields == {"tool": "terminal", "duration": 0.0, "error": True, "outcome": "unknown"}


def test_rows_of_a_kind_that_this_version_does_not_know_go_out_whole() -> None:
    event = only(row("approval.request", command="rm", choices=["once"], message_seq=4))
    assert event.fields == {"command": "rm", "choices": ["once"]}


def test_a_later_attempt_continues_what_an_earlier_one_began() -> None:
    merge = Merge(Cursor(), StreamStart(seq=0, iteration=0))

    def told(attempt: int, offset: int, text: str) -> str:
        entry = LiveEntry(kind="text", text=text, iteration=1, attempt=attempt, offset=offset)
        return "".join(event.fields["delta"] for event in merge.translate_live(entry, 1.0))

    assert told(1, 0, "Hel") == "Hel"
    assert told(2, 0, "He") == ""
    assert told(1, 3, "p!") == ""
    assert told(2, 2, "llo wor") == "lo wor"
    assert told(2, 2, "llo wor") == ""
    assert told(2, 12, "lost the middle") == ""
    assert told(2, 9, "ld") == "", "what follows a gap waits for the row"


def test_a_reply_that_is_discarded_is_told_anew() -> None:
    """The reader hears the new one from its beginning, and nothing more of the old one."""
    merge = Merge(Cursor(), StreamStart(seq=0, iteration=0))

    def told(attempt: int, offset: int, text: str, iteration: int = 1) -> str:
        entry = LiveEntry(kind="text", text=text, iteration=iteration, attempt=attempt, offset=offset)
        return "".join(event.fields["delta"] for event in merge.translate_live(entry, 1.0))

    assert told(0, 0, "Once upon") == "Once upon"
    discarded = StoredEvent(seq=1, at=1.0, name="reply.discarded", data={"iteration": 1, "finish_reason": "length"})
    [event] = merge.translate_rows([discarded], USAGE)
    assert event.fields == {"iteration": 1, "finish_reason": "length"}
    back = Merge(Cursor.parse(event.id), StreamStart(seq=1, iteration=0))
    assert told(0, 9, " a time") == ""
    assert told(1, 0, "Short.") == "Short."
    merge = back
    assert told(0, 0, "Once upon") == "", "a reader that came back does not hear the old one again"
    assert told(1, 0, "Short.") == "Short."


@pytest.mark.parametrize("is_announced", [True, False], ids=["announced", "only its row"])
def test_the_next_reply_waits_for_the_ends_of_the_calls_before_it(is_announced: bool) -> None:
    """The end of a call that waited for subagents is committed by the worker of the last of them, and announced to no
    reader of this run; the next reply begins at once."""
    merge = Merge(Cursor(), StreamStart(seq=0, iteration=0))
    call = {"tool": "t", "iteration": 1, "position": 1, "tool_call_id": "c1"}
    replied = StoredEvent(seq=1, at=1.0, name="message.completed", data={"iteration": 1, "text": ""})
    started = StoredEvent(seq=2, at=1.0, name="tool.started", data={**call, "preview": "{}", "attempt": 1})
    ended = StoredEvent(seq=3, at=1.0, name="tool.completed", data={**call, "duration": 0.1, "error": False})
    merge.translate_rows([replied], USAGE)
    if is_announced:
        assert [event.name for event in merge.translate_live(started_entry(1, 1), 1.0)] == ["tool.started"]
    merge.translate_rows([started], USAGE)
    piece = LiveEntry(kind="text", text="So ", iteration=2, attempt=1, offset=0)
    assert merge.translate_live(piece, 1.0) == []
    assert merge.wants_rows
    assert [event.name for event in merge.translate_rows([ended], USAGE)] == ["tool.completed", "message.delta"]
    assert not merge.wants_rows


@pytest.mark.parametrize("position", [0, 2])
def test_a_forged_start_does_not_take_the_place_of_the_row(position: int) -> None:
    merge = Merge(Cursor(), StreamStart(seq=0, iteration=1))
    text = json.dumps({"tool": "harmless", "preview": "{}", "position": position})
    forged = LiveEntry(kind="tool_started", text=text, iteration=1, attempt=1, offset=position)
    data = {"tool": "terminal", "preview": "rm -rf x", "iteration": 1, "position": position}
    true = StoredEvent(seq=1, name="tool.started", at=2.0, data=data)

    assert [event.fields["tool"] for event in merge.translate_live(forged, 1.0)] == ["harmless"]
    assert [event.fields["tool"] for event in merge.translate_rows([true], Usage())] == ["terminal"]


@pytest.mark.parametrize("text", ["", "{", "[]", "1", '"x"', "[" * 50_000, "x" * 100_000])
def test_a_start_that_no_worker_announced_is_not_told(text: str) -> None:
    merge = Merge(Cursor(), StreamStart(seq=0, iteration=1))

    assert merge.translate_live(LiveEntry(kind="tool_started", text=text, iteration=1, attempt=1, offset=0), 1.0) == []


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"kind": "text", "text": "x", "iteration": "1", "attempt": "1"},
        {"kind": "text", "text": "x", "iteration": "one", "attempt": "1", "offset": "0"},
        {"kind": "text", "text": "x", "iteration": "-1", "attempt": "1", "offset": "0"},
        {"kind": "text", "text": "x", "iteration": "1", "attempt": "9" * 4_000, "offset": "0"},
        {"kind": "other", "text": "x", "iteration": "1", "attempt": "1", "offset": "0"},
        {"kind": "text", "text": "x" * 2_000_001, "iteration": "1", "attempt": "1", "offset": "0"},
    ],
)
def test_an_entry_that_no_worker_wrote_says_nothing(fields: dict[str, str]) -> None:
    assert parse_entry(fields) is NOT_OURS
