"""The operations of the API about alerts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hermes_worker.features.alerts.schema import AlertObject
from hermes_worker.operation import ApiRequest, build_get, build_post, make_reader


def alerts(*, limit: int | None = None) -> ApiRequest[list[AlertObject]]:
    """The newest alerts to operators."""
    return build_get("/v1/alerts", make_reader(list[AlertObject], "data"), limit=limit)


def try_alerts() -> ApiRequest[int]:
    """Send a text to every target of alerts, as deliveries. Returns how many these are; for operators."""
    return build_post("/v1/alerts/test", make_reader(int, "owed"))


def alert_targets(*, tenant: str | None = None) -> ApiRequest[list[str]]:
    """The targets of the tenant's alerts about itself; operators may name another ``tenant``."""
    return build_get("/v1/alerts/targets", make_reader(list[str], "targets"), tenant=tenant)


def set_alert_targets(targets: Sequence[str], *, tenant: str | None = None) -> ApiRequest[list[str]]:
    """Replace all targets of the tenant's alerts; an empty list ends the alerts. Returns the targets. Idempotent."""
    body = {"targets": list(targets)}
    asked = ApiRequest(method="PUT", template="/v1/alerts/targets", read=make_reader(list[str], "targets"), body=body)
    return replace(asked, params={"tenant": tenant})
