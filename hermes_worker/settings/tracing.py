"""The settings of where traces go."""

from __future__ import annotations

from dataclasses import dataclass

from hermes_worker.settings.declaring import declare_setting
from hermes_worker.settings.kinds import SWITCH, WEB_URL


@dataclass(frozen=True, slots=True, kw_only=True)
class TracingSettings:
    """Where traces go."""

    endpoint: str | None = declare_setting(
        "tracing.endpoint",
        "HERMES_TRACING_ENDPOINT",
        WEB_URL,
        audience="operator",
        reason="traces should show where time goes; none are made without it.",
    )
    """Where a collector of OpenTelemetry takes traces by OTLP over HTTP, such as `http://collector:4318/v1/traces`. Not
    set: none are made. Needs the extra `otel`."""
    texts: bool = declare_setting(
        "tracing.texts",
        "HERMES_TRACING_TEXTS",
        SWITCH,
        False,
        audience="developer",
        reason="a trace should show what was said; spans hold numbers and names alone without it.",
    )
    """Whether what people, models and tools wrote is in the spans as well: messages, replies, arguments and results,
    without secrets and cut to 16,000 characters each. Whoever reads the traces then reads all that."""
