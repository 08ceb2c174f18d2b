"""The settings of where Prometheus reads each process."""

from __future__ import annotations

from dataclasses import dataclass

from hermes_worker.settings.declaring import declare_setting
from hermes_worker.settings.kinds import HOST, WEB_URL, optional_integer


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsSettings:
    """Where Prometheus reads each process."""

    port: int | None = declare_setting(
        "metrics.port",
        "HERMES_METRICS_PORT",
        optional_integer(0, 65_535),
        audience="operator",
        reason="Prometheus watches the processes; nothing is served without it.",
    )
    """Port on which every role serves `/metrics`, by convention 9464; 0 takes a free one and logs it. Not set: nobody
    listens. `up` gives its roles this port and the next ones: API, scheduler, model worker, tools worker."""
    host: str = declare_setting(
        "metrics.host",
        "HERMES_METRICS_HOST",
        HOST,
        "127.0.0.1",
        audience="operator",
        reason="Prometheus is on another machine; it cannot connect without it.",
    )
    """Address to listen on. There is no key: all who reach it read how much is done and spent, but no ids, no
    names of tenants and nothing that anybody wrote."""
    endpoint: str | None = declare_setting(
        "metrics.endpoint",
        "HERMES_METRICS_ENDPOINT",
        WEB_URL,
        audience="operator",
        reason="metrics go to a collector that nothing reads from; Prometheus has to come for them without it.",
    )
    """Where a collector of OpenTelemetry takes metrics by OTLP over HTTP, such as `http://collector:4318/v1/metrics`:
    those of `/metrics`, every 15 seconds. Not set: none are pushed. Needs the extra `otel`."""
