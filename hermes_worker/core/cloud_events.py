"""Events in the form of CloudEvents 1.0 (cloudevents.io), for brokers and functions that take nothing else. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

CLOUD_EVENTS: Final = "cloudevents"
CLOUD_EVENTS_TYPE: Final = "application/cloudevents+json"
"""The media type of one event as JSON, with its data inside (structured mode)."""
_TYPES_BEGIN: Final = "hermes_worker."
CLOUD_EVENT_SCHEMA: Final[dict[str, object]] = {
    "type": "object",
    "title": "CloudEvent",
    "required": ["specversion", "id", "source", "type", "datacontenttype", "data"],
    "properties": {
        "specversion": {"const": "1.0"},
        **{name: {"type": "string", "minLength": 1} for name in ("id", "source", "type", "datacontenttype")},
        "time": {"type": "string", "format": "date-time"},
        "data": {"type": "object"},
    },
}
"""JSON Schema of what ``wrap_in_cloud_event`` makes."""


def wrap_in_cloud_event(
    data: Mapping[str, object], name: str, event_id: str, run_id: str, at: float | None = None
) -> dict[str, object]:
    """Wrap an event in the attributes of CloudEvents; its type is ``hermes_worker.NAME``. Source and id together name
    it, so a repetition is known by them. ``run_id`` may be empty; ``at`` is in epoch seconds, ``None`` where the moment
    is not known."""
    event: dict[str, object] = {
        "specversion": "1.0",
        "id": event_id,
        "source": f"/v1/runs/{run_id}" if run_id else "/v1/runs",
        "type": f"{_TYPES_BEGIN}{name}",
        "datacontenttype": "application/json",
        "data": data,
    }
    return event if at is None else event | {"time": datetime.fromtimestamp(at, UTC).isoformat()}
