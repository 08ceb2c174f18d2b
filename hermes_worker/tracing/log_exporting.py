"""Send the log lines of a process to a collector as well, by OTLP over HTTP. Needs the extra ``otel``.

The lines are those that are written, redacted in the same way. Lines of a step carry the ids of its trace and span.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
from opentelemetry.sdk.resources import Resource
from opentelemetry.trace import TraceFlags

from hermes_worker.system.service_facts import describe_service

_PATIENCE_S = 5.0
_SENT_EVERY_MS = 1000.0
_SEVERITIES = {
    "debug": SeverityNumber.DEBUG,
    "info": SeverityNumber.INFO,
    "warning": SeverityNumber.WARN,
    "error": SeverityNumber.ERROR,
    "critical": SeverityNumber.FATAL,
}
_OF_RECORD = frozenset({"timestamp", "level", "event", "trace_id", "span_id"})


class LineExporter:
    """Takes log lines. A collector that is away costs a line nothing; lines that do not fit the queue are lost."""

    def __init__(self, endpoint: str, role: str) -> None:
        """``endpoint`` is the address at which the collector takes logs: ``http://collector:4318/v1/logs``."""
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
        sender = OTLPLogExporter(endpoint=endpoint, timeout=_PATIENCE_S)
        provider = LoggerProvider(Resource(describe_service(role)))
        provider.add_log_record_processor(BatchLogRecordProcessor(sender, schedule_delay_millis=_SENT_EVERY_MS))
        self._provider = provider
        self._logger = provider.get_logger("hermes-worker")

    def put(self, line: Mapping[str, object]) -> None:
        """Take a line, redacted."""
        level = str(line.get("level", "info"))
        trace, span = line.get("trace_id"), line.get("span_id")
        record = LogRecord(
            severity_text=level.upper(),
            severity_number=_SEVERITIES.get(level, SeverityNumber.INFO),
            body=str(line.get("event", "")),
            trace_id=int(str(trace), 16) if trace else 0,
            span_id=int(str(span), 16) if span else 0,
            trace_flags=TraceFlags(TraceFlags.SAMPLED) if trace else TraceFlags(TraceFlags.DEFAULT),
            attributes={name: _flatten_value(value) for name, value in line.items() if name not in _OF_RECORD},
        )
        self._logger.emit(record)

    def flush(self) -> None:
        """Send what waits."""
        self._provider.force_flush()


def _flatten_value(value: object) -> str | bool | int | float:
    return value if isinstance(value, str | bool | int | float) else str(value)
