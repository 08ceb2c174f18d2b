"""The settings of what processes say about themselves."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from hermes_worker.settings.declaring import declare_setting
from hermes_worker.settings.kinds import WEB_URL, one_of


class LogFormat(StrEnum):
    JSON = "json"
    CONSOLE = "console"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """What the process says about itself."""

    level: str = declare_setting(
        "logging.level",
        "HERMES_LOG_LEVEL",
        one_of("DEBUG", "INFO", "WARNING", "ERROR", fold=str.upper),
        "INFO",
        audience="anyone",
        reason="a problem needs more detail, or logs are too long; INFO is written without it.",
    )
    """Least severe lines to write."""
    format: str = declare_setting(
        "logging.format",
        "HERMES_LOG_FORMAT",
        one_of(*(form.value for form in LogFormat)),
        LogFormat.CONSOLE.value,
        audience="operator",
        reason="a collector reads the logs; it gets lines for people without it.",
    )
    """`console` for people, `json` for log collectors."""
    endpoint: str | None = declare_setting(
        "logging.endpoint",
        "HERMES_LOG_ENDPOINT",
        WEB_URL,
        audience="operator",
        reason="a collector of OpenTelemetry shows logs beside traces; lines go to stderr alone without it.",
    )
    """Where a collector of OpenTelemetry takes logs by OTLP over HTTP, such as `http://collector:4318/v1/logs`: the
    lines that go to stderr, with the ids of their traces. Not set: none are sent. Needs the extra `otel`."""
