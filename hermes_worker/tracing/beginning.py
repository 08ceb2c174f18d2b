"""Begin recording in this process, if its settings say so."""

from __future__ import annotations

from hermes_worker.core.errors import ConfigurationError
from hermes_worker.settings import Settings
from hermes_worker.store.engine.database import Database


def trace_if_wanted(settings: Settings, role: str, database: Database) -> None:
    """Record what this process does, if the settings name a collector. Idempotent. Raises ``ConfigurationError`` when
    the packages are missing that this needs."""
    if settings.tracing.endpoint is None:
        return
    try:
        from hermes_worker.tracing.exporting import begin_tracing
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"HERMES_TRACING_ENDPOINT is set and {error.name!r} is missing: pip install 'hermes-worker[otel]'"
        ) from error
    begin_tracing(settings, role, database)
