"""Record steps as spans while they are done, and runs by their rows when they are over.

Theory of operation. A step becomes a span when it ends, in the process that did it; the span of a killed attempt is
lost with its worker. So no span may be needed as a parent but that of a run, and that one is made from the run's row,
by the sweeper that is about to count the run, and handed to the collector before it is counted. If that process is
killed in between, the next sweeper makes the same span again. Hence every span that arrives has its parent.

When nothing is recorded, a step asks one variable whether it is.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Protocol

from hermes_worker.core import trace_ids
from hermes_worker.core.errors import UnavailableError
from hermes_worker.core.messages import Message, ModelReply
from hermes_worker.core.trace_ids import derive_run_span_id, derive_step_span_id, derive_trace_id
from hermes_worker.safety.redaction import Redactor
from hermes_worker.store.engine.database import Database
from hermes_worker.store.run_ends import RunChain, RunEnd, load_chain
from hermes_worker.tracing import names, texts

Value = str | int | float | bool | tuple[str, ...]
_CHAINS_KEPT = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class CallersSpan:
    """The span in which a caller called us, as W3C Trace Context writes it. Not trusted: the code that sends it on
    checks it.
    """

    traceparent: str
    tracestate: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanRecord:
    """A span that is over. Times are epoch seconds."""

    name: str
    trace: int
    span: int
    parent: int | None
    began_at: float
    ended_at: float
    attributes: dict[str, Value]
    error: str | None = None
    link: CallersSpan | None = None
    """A foreign span that caused this one; ``None`` for none."""


class SpanSink(Protocol):
    """Takes finished spans. Implemented by ``tracing.exporting.SpanExporter``."""

    def put(self, record: SpanRecord) -> None: ...

    def flush(self) -> None: ...


@dataclass(slots=True)
class _OpenSpan:
    attributes: dict[str, Value] = field(default_factory=dict)


_current: ContextVar[_OpenSpan | None] = ContextVar("hermes_step", default=None)
_caller: ContextVar[CallersSpan | None] = ContextVar("hermes_caller", default=None)
_NOTHING: AbstractContextManager[None] = nullcontext()


class SpanRecorder:
    """Makes spans of one process. Thread-safe."""

    def __init__(self, database: Database, sink: SpanSink, *, redactor: Redactor | None = None) -> None:
        """``redactor`` hides secrets in texts; ``None``: no text gets into a span."""
        self.redactor = redactor
        self._sink = sink
        self._chain = lru_cache(_CHAINS_KEPT)(lambda run_id: load_chain(database, run_id))

    @contextmanager
    def record_step(self, run_id: str, token: str, attributes: dict[str, Value]) -> Iterator[None]:
        opened = _OpenSpan(attributes={names.RUN: run_id, **attributes})
        reset, began_at, error = _current.set(opened), time.time(), None
        try:
            yield
        except BaseException as raised:
            error = type(raised).__name__
            raise
        finally:
            _current.reset(reset)
            self._put(
                _name_span(opened.attributes), run_id, derive_step_span_id(token), (began_at, opened.attributes, error)
            )

    def record_submission(self, run_id: str, source: str, request_id: str | None = None) -> None:
        """Record that a run was accepted, here and now; ``request_id`` names the HTTP request, if there was one."""
        attributes: dict[str, Value] = {names.RUN: run_id, names.SOURCE: source}
        if request_id is not None:
            attributes[names.REQUEST] = request_id
        made = (time.time(), attributes, None)
        self._put(names.SUBMIT, run_id, derive_step_span_id(f"submit:{run_id}"), made, link=_caller.get())

    def record_ends(self, ends: Sequence[RunEnd]) -> None:
        """Hand over the spans of runs that are over; when this returns they are out of this process, if the collector
        takes them. Safe to repeat: the same run gives the same span.
        """
        for end in ends:
            self._sink.put(_build_run_span(end))
        if ends:
            self._sink.flush()

    def find_traceparent(self, run_id: str) -> str | None:
        """The header of messages for a run; ``None`` when the database cannot say what it belongs to."""
        try:
            return trace_ids.build_traceparent(self._chain(run_id).root_id, run_id)
        except UnavailableError:
            return None

    def list_log_facts(self, run_id: str, token: str) -> dict[str, str]:
        """Render the ids of a step's trace and span for log lines; empty when the database cannot say which they
        are."""
        try:
            trace = derive_trace_id(self._chain(run_id).root_id)
        except UnavailableError:
            return {}
        return {"trace_id": f"{trace:032x}", "span_id": f"{derive_step_span_id(token):016x}"}

    def flush(self) -> None:
        self._sink.flush()

    def _put(
        self,
        name: str,
        run_id: str,
        span: int,
        made: tuple[float, dict[str, Value], str | None],
        *,
        link: CallersSpan | None = None,
    ) -> None:
        began_at, attributes, error = made
        try:
            chain = self._chain(run_id)
        except UnavailableError:
            return  # a span without a trace is not worth failing a step
        record = SpanRecord(
            name=name,
            trace=derive_trace_id(chain.root_id),
            span=span,
            parent=derive_run_span_id(run_id),
            began_at=began_at,
            ended_at=time.time(),
            attributes=_add_conversation(attributes, chain),
            error=error,
            link=link,
        )
        self._sink.put(record)


def _add_conversation(attributes: dict[str, Value], chain: RunChain) -> dict[str, Value]:
    return attributes if chain.session_id is None else {names.CONVERSATION: chain.session_id, **attributes}


def _name_span(attributes: dict[str, Value]) -> str:
    operation = str(attributes.get(names.OPERATION, names.DELIVER))
    what = attributes.get(names.TOOL) or attributes.get(names.REQUEST_MODEL) or attributes.get(names.PLATFORM)
    return f"{operation} {what}" if what else operation


def _build_run_span(end: RunEnd) -> SpanRecord:
    above = end.parent_id or end.cause_id
    return SpanRecord(
        name=f"{names.INVOKE_AGENT} {names.AGENT_NAME}",
        trace=derive_trace_id(end.root_id or end.run_id),
        span=derive_run_span_id(end.run_id),
        parent=derive_run_span_id(above) if above else None,
        began_at=end.created_at,
        ended_at=end.finished_at,
        attributes={
            names.OPERATION: names.INVOKE_AGENT,
            names.AGENT: names.AGENT_NAME,
            names.RUN: end.run_id,
            names.CONVERSATION: end.session_id,
            names.REQUEST_MODEL: end.model,
            names.STATUS: end.status,
            names.EXIT_REASON: end.exit_reason,
            names.ITERATION: end.iteration,
            names.INPUT_TOKENS: end.input_tokens,
            names.OUTPUT_TOKENS: end.output_tokens,
            names.COST_USD: end.cost_nano_usd / 1e9,
        },
        error=end.failure_kind or (end.exit_reason if end.status == "failed" else None),
    )


# --- of this process -------------------------------------------------------------------------------------------------

_recorder: SpanRecorder | None = None


def record_with(recorder: SpanRecorder | None) -> None:
    """Record with ``recorder`` in this process from now on; ``None`` for not at all."""
    global _recorder
    _recorder = recorder


def get_recorder() -> SpanRecorder | None:
    """The recorder of this process; ``None`` for none."""
    return _recorder


def record_step(run_id: str, token: str, attributes: dict[str, Value]) -> AbstractContextManager[None]:
    """Record a step that holds a claim, while the block runs."""
    return _NOTHING if _recorder is None else _recorder.record_step(run_id, token, attributes)


def record_submission(run_id: str, source: str | None, request_id: str | None = None) -> None:
    """Record that a run was accepted; ``request_id`` names the HTTP request, if there was one."""
    if _recorder is not None:
        _recorder.record_submission(run_id, source or "", request_id)


def flush_spans() -> None:
    """Send what waits to be sent, before this process ends; returns after a few seconds at the latest."""
    if _recorder is not None:
        _recorder.flush()


def record_ends(ends: Sequence[RunEnd]) -> None:
    """Record runs that are over and about to be counted."""
    if _recorder is not None:
        _recorder.record_ends(ends)


def find_traceparent(run_id: str) -> str | None:
    """The header of messages for a run; ``None`` when nothing is recorded."""
    return None if _recorder is None else _recorder.find_traceparent(run_id)


def list_log_facts(run_id: str, token: str) -> dict[str, str]:
    """Render the ids of a step's trace and span for its log lines; empty when nothing is recorded."""
    return {} if _recorder is None else _recorder.list_log_facts(run_id, token)


def add_attributes(**attributes: Value) -> None:
    """Add to the span of the step that this thread does, by the names of ``tracing.names`` in lower case."""
    if _recorder is None:
        return
    opened = _current.get()
    if opened is not None:
        opened.attributes.update({getattr(names, name.upper()): value for name, value in attributes.items()})


def add_messages(rows: Sequence[Message], reply: ModelReply) -> None:
    """Add the messages to a model and its answer to the span of the step that this thread does, if the settings want
    texts in spans.
    """
    if _recorder is not None and _recorder.redactor is not None:
        hides = _recorder.redactor
        add_attributes(input_messages=texts.render_told(rows, hides), output_messages=texts.render_reply(reply, hides))


def add_call(arguments: str, result: str) -> None:
    """Add a tool's arguments and result to the span of the step that this thread does, if the settings want texts in
    spans.
    """
    if _recorder is not None and _recorder.redactor is not None:
        hides = _recorder.redactor
        add_attributes(
            tool_arguments=texts.redact_and_cut(arguments, hides), tool_result=texts.redact_and_cut(result, hides)
        )


@contextmanager
def link_to_caller(caller: CallersSpan) -> Iterator[None]:
    """Link runs that are submitted in this block to ``caller``."""
    before = _caller.set(caller)
    try:
        yield
    finally:
        _caller.reset(before)
