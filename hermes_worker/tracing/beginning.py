"""Begin recording in this process, if its settings say so."""

from __future__ import annotations

import os

from hermes_worker.core.errors import ConfigurationError
from hermes_worker.observe import send_lines
from hermes_worker.settings import Settings
from hermes_worker.store.engine.database import Database

_lines_sent_by: int | None = None
"""The process that sends its log lines already."""


def trace_if_wanted(settings: Settings, role: str, database: Database) -> None:
    """Record what this process does, and send its log lines, if the settings name a collector. Idempotent. Raises
    ``ConfigurationError`` when the packages are missing that this needs."""
    try:
        if settings.log.endpoint is not None:
            _send_lines(settings.log.endpoint, role)
        if settings.tracing.endpoint is not None:
            from hermes_worker.tracing.exporting import begin_tracing

            begin_tracing(settings, role, database)
    except ModuleNotFoundError as error:
        what = "HERMES_TRACING_ENDPOINT" if settings.tracing.endpoint else "HERMES_LOG_ENDPOINT"
        raise ConfigurationError(
            f"{what} is set and {error.name!r} is missing: pip install 'hermes-worker[otel]'"
        ) from error


def _send_lines(endpoint: str, role: str) -> None:
    global _lines_sent_by
    if _lines_sent_by != os.getpid():
        from hermes_worker.tracing.log_exporting import LineExporter

        _lines_sent_by = os.getpid()
        send_lines(LineExporter(endpoint, role).put)
