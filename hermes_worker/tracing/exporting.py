"""Export spans to a collector, by OTLP over HTTP, in the background. Needs the extra ``otel``."""

from __future__ import annotations

import logging
import os
import threading

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags, get_current_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from hermes_worker.core.errors import ConfigurationError
from hermes_worker.safety.redaction import Redactor
from hermes_worker.settings import Settings
from hermes_worker.store.engine.database import Database
from hermes_worker.system.service_facts import describe_service
from hermes_worker.tracing import names
from hermes_worker.tracing.recording import CallersSpan, SpanRecord, SpanRecorder, record_with

_SENT_EVERY_MS = 1000.0
_PATIENCE_S = 5.0
_FLUSH_MS = 5_000
_SCOPE = InstrumentationScope("hermes-worker")
_begun = threading.Lock()
_pid: int | None = None


class SpanExporter:
    """Sends spans in batches. A collector that is away costs a step nothing; spans that do not fit the queue are
    lost.
    """

    def __init__(self, endpoint: str, role: str) -> None:
        """``endpoint`` is the address at which the collector takes traces: ``http://collector:4318/v1/traces``."""
        # It logs what it cannot send, at each try; of a collector that is away one line a minute would be too many.
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
        self._resource = Resource(describe_service(role))
        sender = OTLPSpanExporter(endpoint=endpoint, timeout=_PATIENCE_S)
        self._processor = BatchSpanProcessor(sender, schedule_delay_millis=_SENT_EVERY_MS)

    def put(self, record: SpanRecord) -> None:
        self._processor.on_end(self._convert_record(record))

    def flush(self) -> None:
        """Send what waits; returns after 5 s at the latest."""
        self._processor.force_flush(_FLUSH_MS)

    def _convert_record(self, record: SpanRecord) -> ReadableSpan:
        parent = None if record.parent is None else _build_span_context(record.trace, record.parent)
        error = {} if record.error is None else {names.ERROR: record.error}
        return ReadableSpan(
            record.name,
            context=_build_span_context(record.trace, record.span),
            parent=parent,
            resource=self._resource,
            attributes={**record.attributes, **error},
            links=() if record.link is None else _build_links(record.link),
            kind=SpanKind.CLIENT if record.name.startswith(names.CHAT) else SpanKind.INTERNAL,
            status=Status(StatusCode.ERROR) if record.error else Status(StatusCode.UNSET),
            start_time=int(record.began_at * 1e9),
            end_time=int(record.ended_at * 1e9),
            instrumentation_scope=_SCOPE,
        )


def _build_span_context(trace: int, span: int) -> SpanContext:
    return SpanContext(trace, span, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))


def _build_links(caller: CallersSpan) -> tuple[Link, ...]:
    """The link to a caller's span; empty for one that is not written as W3C Trace Context wants it."""
    carrier = {"traceparent": caller.traceparent, "tracestate": caller.tracestate}
    found = get_current_span(TraceContextTextMapPropagator().extract(carrier)).get_span_context()
    # The exporter sends no state of links, so it goes as an attribute as well.
    state = {names.TRACESTATE: found.trace_state.to_header()} if found.trace_state else {}
    return (Link(found, state),) if found.is_valid else ()


def begin_tracing(settings: Settings, role: str, database: Database) -> None:
    """Record in this process from now on, once, however often it is called in it. Raises ``ConfigurationError`` when
    the settings name no collector."""
    global _pid
    if settings.tracing.endpoint is None:
        raise ConfigurationError("HERMES_TRACING_ENDPOINT names no collector")
    with _begun:
        if _pid != os.getpid():
            _pid = os.getpid()
            known = tuple(secret.reveal() for secret in settings.secrets)
            redactor = Redactor(known=known) if settings.tracing.texts else None
            record_with(SpanRecorder(database, SpanExporter(settings.tracing.endpoint, role), redactor=redactor))
