"""The shared part of adapters of memory services: the name of a tenant's user, and how long an iteration waits."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from hermes_worker.addons.http_json import parse_json, request_service
from hermes_worker.core.hooks import HookEvent
from hermes_worker.net.http import HttpRequest

RECALL_S: Final = 1.8
"""An iteration waits 2 s at most (``extension.PREFETCH_S_MAX``), and the rest is ours."""
SYNC_S: Final = 25.0
ANSWER_BYTES_MAX: Final = 200_000
"""Bytes of an answer. A longer one counts as none: no service recalls so much."""
_NO_ID: Final = re.compile(r"[^A-Za-z0-9_-]+")


def name_user(tenant: str, name: str) -> str:
    """The name under which a service knows the user of a tenant. Two tenants never share one.

    >>> whose("acme.eu", "ann")
    'ann-acme-eu'
    """
    return clean_id(f"{name}-{tenant}")


def clean_id(text: str) -> str:
    """``text`` as an id that services take."""
    return _NO_ID.sub("-", text).strip("-")[:200] or "-"


def request_json(service: str, request: HttpRequest, *, total_s: float) -> Any:
    """The document that a service answers with; ``None`` for an empty answer. Raises ``AddonFailed``."""
    answer = request_service(service, request, total_s=total_s, body_bytes_max=ANSWER_BYTES_MAX, allows_private=True)
    return parse_json(service, answer) if answer.body.strip() else None


def iterate_payload_texts(event: HookEvent, *names: str) -> Iterable[str]:
    """Texts of an event's payload, in order; those that are empty or missing are empty."""
    return (text if isinstance(text := event.payload.get(name), str) else "" for name in names)


def render_memories(lines: Iterable[str]) -> str | None:
    """Memories as a list for a model; ``None`` for none."""
    rows = [f"- {' '.join(line.split())}" for line in lines if line.strip()]
    return "\n".join(rows) or None


def read_text_setting(values: Mapping[str, Any], name: str, default: str = "") -> str:
    """A text among the settings of an extension."""
    found = values.get(name)
    return found if isinstance(found, str) and found else default
