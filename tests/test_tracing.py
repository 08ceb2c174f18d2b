"""Traces: ids that need nobody to carry them, names in one table, nothing at all when they are off."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.datastructures import Headers
from support.store import Store, opened

from hermes_worker import settings as settings_module
from hermes_worker.api.request_ids import _read_caller
from hermes_worker.broker.queue import STANDING_QUEUES, QueueName, TaskName, render_envelope
from hermes_worker.core.errors import ConfigurationError
from hermes_worker.core.messages import Message, ModelReply, Role, ToolRequest
from hermes_worker.core.replay import Replay
from hermes_worker.core.trace_ids import build_traceparent, derive_run_span_id, derive_trace_id
from hermes_worker.safety.redaction import Redactor
from hermes_worker.store.run_ends import RunChain, list_uncounted_ends, load_chain
from hermes_worker.store.statistics import count_ended_rows
from hermes_worker.tasks.build import WorkerOptions
from hermes_worker.tracing import names, recording, texts
from hermes_worker.tracing.beginning import trace_if_wanted
from hermes_worker.tracing.exporting import _build_links
from hermes_worker.tracing.recording import CallersSpan, SpanRecord, SpanRecorder, record_with

SOURCES = Path(__file__).parents[1] / "hermes_worker"


class Sink:
    def __init__(self) -> None:
        self.records: list[SpanRecord] = []
        self.flushed = 0

    def put(self, record: SpanRecord) -> None:
        self.records.append(record)

    def flush(self) -> None:
        self.flushed += 1


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with opened(f"sqlite:///{tmp_path / 'store.db'}") as found:
        yield found


@pytest.fixture
def sink(store: Store) -> Iterator[Sink]:
    found = Sink()
    record_with(SpanRecorder(store.database, found))
    yield found
    record_with(None)


def test_the_names_of_the_conventions_stand_in_one_table() -> None:
    holders = {path.name for path in SOURCES.rglob("*.py") if "gen_ai." in path.read_text(encoding="utf-8")}
    assert holders == {"names.py"}


def test_a_step_says_what_it_did_below_its_run(store: Store, sink: Sink) -> None:
    run_id = store.submit().run_id
    with recording.record_step(run_id, "token", {names.OPERATION: names.CHAT}):
        recording.add_attributes(request_model="scripted", input_tokens=7)
    (record,) = sink.records

    assert (record.name, record.trace, record.parent) == (
        "chat scripted",
        derive_trace_id(run_id),
        derive_run_span_id(run_id),
    )
    assert record.attributes[names.INPUT_TOKENS] == 7
    assert record.attributes[names.CONVERSATION] == load_chain(store.database, run_id).session_id
    assert record.error is None


def test_a_step_that_raises_is_a_span_with_an_error(store: Store, sink: Sink) -> None:
    with pytest.raises(KeyError), recording.record_step(store.submit().run_id, "token", {}):
        raise KeyError("secret text")
    assert sink.records[0].error == "KeyError"
    assert "secret" not in str(sink.records[0])


def test_a_run_that_is_over_is_told_before_it_is_counted_and_again_if_it_was_not(store: Store, sink: Sink) -> None:
    run_id = store.submit().run_id
    store.answer(run_id)
    for _ in range(2):  # as if a process had been killed after telling
        recording.record_ends(list_uncounted_ends(store.database))
    count_ended_rows(store.database, only=[])
    assert len(list_uncounted_ends(store.database)) == 1  # what was not told is not counted
    count_ended_rows(store.database)
    recording.record_ends(list_uncounted_ends(store.database))

    first, second = sink.records
    assert first == second
    assert (first.span, first.parent, first.trace) == (derive_run_span_id(run_id), None, derive_trace_id(run_id))
    assert sink.flushed == 2


def test_children_and_later_turns_are_in_the_trace_of_the_first_run(store: Store) -> None:
    root = store.with_tools(Replay.PURE)
    (child,) = store.delegate(root, 1)
    assert load_chain(store.database, child).root_id == root
    assert load_chain(store.database, root).root_id == root
    assert load_chain(store.database, "run_none") == RunChain("run_none", None)


def test_the_lines_of_a_step_have_the_ids_of_its_trace_and_span(store: Store, sink: Sink) -> None:
    run_id = store.submit().run_id

    facts = recording.list_log_facts(run_id, "token")
    with recording.record_step(run_id, "token", {names.OPERATION: names.CHAT}):
        pass

    (record,) = sink.records
    assert facts == {"trace_id": f"{record.trace:032x}", "span_id": f"{record.span:016x}"}
    record_with(None)
    assert recording.list_log_facts(run_id, "token") == {}


@pytest.mark.parametrize(
    ("queues", "role"),
    [
        (tuple(name.value for name in STANDING_QUEUES), "worker"),
        (("model", "delivery", "system"), "model"),
        (("tools",), "tools"),
        (("suspect_tools",), "tools"),
    ],
)
def test_a_service_is_named_for_its_role(queues: tuple[str, ...], role: str) -> None:
    assert WorkerOptions(queues=queues).role == role


def test_messages_carry_the_context_only_when_it_is_recorded() -> None:
    plain = render_envelope(TaskName.ITERATE, QueueName.MODEL, ["run_1", 1, 1, 0.0], '"stamps":{}')
    header = build_traceparent("run_1", "run_1")
    traced = render_envelope(TaskName.ITERATE, QueueName.MODEL, ["run_1", 1, 1, 0.0], '"stamps":{}', traceparent=header)
    assert "traceparent" not in plain
    assert f'"traceparent":"{header}"' in traced
    assert header.startswith("00-") and len(header) == 55


def test_nothing_is_loaded_when_they_are_off() -> None:
    ours = "hermes_worker.tracing.exporting"
    program = (
        "import sys, hermes_worker.worker.main, scheduler.beat, hermes_worker.api.server;"
        f"print([name for name in sys.modules if name.startswith(('opentelemetry.exporter', '{ours}'))])"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert said.stdout.strip() == "[]"
    assert recording.record_step("run_1", "token", {}) is recording.record_step("run_2", "token", {})


def test_the_extra_is_asked_for_when_it_is_missing(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_module.load_settings(
        {"HERMES_HOME": str(tmp_path), "HERMES_TRACING_ENDPOINT": "http://127.0.0.1:4318/v1/traces"}
    )
    monkeypatch.setitem(sys.modules, "hermes_worker.tracing.exporting", None)
    with pytest.raises(ConfigurationError, match=r"hermes-worker\[otel\]"):
        trace_if_wanted(settings, "worker", store.database)


# --- texts -----------------------------------------------------------------------------------------------------------

ROWS = (
    Message(seq=1, role=Role.USER, body='{"role":"user","content":"before"}'),
    Message(seq=2, role=Role.ASSISTANT, body='{"role":"assistant","content":"said"}'),
    Message(seq=3, role=Role.TOOL, body='{"role":"tool","tool_call_id":"c1","content":"token ghp_%s"}' % ("a1B2" * 9)),
    Message(
        seq=4,
        role=Role.USER,
        body='{"role":"user","content":[{"type":"text","text":"now"},{"type":"image_url","image_url":{"url":"x"}}]}',
    ),
)
REPLY = ModelReply(text="Done.", tool_requests=(ToolRequest(id="c2", name="terminal", arguments='{"command":"ls"}'),))


def noted(store: Store, *, redactor: Redactor | None) -> dict[str, object]:
    """The attributes of a span of a step that says what it was told and what it answered."""
    found = Sink()
    record_with(SpanRecorder(store.database, found, redactor=redactor))
    try:
        with recording.record_step(store.submit().run_id, "token", {}):
            recording.add_messages(ROWS, REPLY)
            recording.add_call('{"command":"ls"}', "x" * 100_000)
        return dict(found.records[0].attributes)
    finally:
        record_with(None)


def test_nothing_that_anybody_wrote_is_in_a_span_unless_it_is_asked_for(store: Store) -> None:
    assert set(noted(store, redactor=None)) == {names.RUN, names.CONVERSATION}


def test_texts_that_are_asked_for_are_new_whole_messages_without_secrets_and_bounded(store: Store) -> None:
    attributes = noted(store, redactor=Redactor(known=("a-secret-of-this-installation",)))
    told = json.loads(str(attributes[names.INPUT_MESSAGES]))
    assert [message["role"] for message in told] == ["tool", "user"]
    assert told[0]["parts"][0]["type"] == "tool_call_response"
    assert "a1B2a1B2" not in str(told)
    assert told[1]["parts"] == [{"type": "text", "content": "now"}, {"type": "image_url"}]
    [answer] = json.loads(str(attributes[names.OUTPUT_MESSAGES]))
    assert [part["type"] for part in answer["parts"]] == ["text", "tool_call"]
    assert attributes[names.TOOL_ARGUMENTS] == '{"command":"ls"}'
    assert len(str(attributes[names.TOOL_RESULT])) == texts.TEXT_CHARS_MAX + len("[...]")


@pytest.mark.parametrize("body", ['{"content":null}', '{"content":[]}', '{"content":"\\ud800"}', '{"tool_calls":[]}'])
def test_no_row_breaks_the_step_that_shows_it(body: str) -> None:
    json.loads(texts.render_told([Message(seq=1, role=Role.USER, body=body)], Redactor()))


def test_all_messages_together_are_bounded() -> None:
    rows = [Message(seq=n, role=Role.USER, body=json.dumps({"content": "y" * 900})) for n in range(100)]
    assert len(texts.render_told(rows, Redactor())) < texts.TEXT_CHARS_MAX + 100 * 60


# --- callers ---------------------------------------------------------------------------------------------------------

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_a_run_that_is_submitted_in_a_trace_is_linked_to_it(store: Store, sink: Sink) -> None:
    with recording.link_to_caller(CallersSpan(traceparent=PARENT, tracestate="vendor=1")):
        recording.record_submission(store.submit().run_id, "api")
    recording.record_submission(store.submit().run_id, "api", "req_1")
    first, second = sink.records
    assert [record.attributes.get(names.REQUEST) for record in (first, second)] == [None, "req_1"]
    assert first.link == CallersSpan(traceparent=PARENT, tracestate="vendor=1")
    assert second.link is None
    assert first.trace != int(PARENT[3:35], 16)


@pytest.mark.parametrize(
    ("caller", "is_linked"),
    [
        (CallersSpan(traceparent=PARENT, tracestate="a=1,b=2"), True),
        (CallersSpan(traceparent=PARENT, tracestate="not, a=state;;\x00"), True),
        (CallersSpan(traceparent=PARENT.replace("00-", "cc-") + "-more"), True),
        (CallersSpan(traceparent=PARENT.replace("00-", "ff-")), False),
        (CallersSpan(traceparent=f"00-{'0' * 32}-b7ad6b7169203331-01"), False),
        (CallersSpan(traceparent=f"00-0af7651916cd43dd8448eb211c80319c-{'0' * 16}-01"), False),
        (CallersSpan(traceparent="00-\ud800"), False),
        (CallersSpan(traceparent=""), False),
    ],
)
def test_a_link_is_made_of_what_the_specification_allows(caller: CallersSpan, is_linked: bool) -> None:
    assert bool(_build_links(caller)) is is_linked


@pytest.mark.parametrize(
    ("headers", "found"),
    [
        ({"traceparent": PARENT, "tracestate": "a=1"}, CallersSpan(traceparent=PARENT, tracestate="a=1")),
        ({"traceparent": PARENT, "tracestate": "a=" + "1" * 600}, CallersSpan(traceparent=PARENT)),
        ({"traceparent": "0" * 600}, None),
        ({"tracestate": "a=1"}, None),
    ],
)
def test_headers_of_a_caller_are_bounded(headers: dict[str, str], found: CallersSpan | None) -> None:
    assert _read_caller(Headers(headers)) == found
    assert _read_caller(Headers(raw=[(b"traceparent", PARENT.encode())] * 2)) is None
