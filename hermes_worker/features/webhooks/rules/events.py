"""Read the event that a verified request reports, and decide what is done about it."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl

from hermes_worker.channels.targets import ChatRef, TargetError, format_reference, parse_targets
from hermes_worker.features.webhooks.rules.filters import EventFacts, does_match
from hermes_worker.features.webhooks.rules.route import Route
from hermes_worker.features.webhooks.rules.template import (
    PLACEHOLDER,
    build_default_template,
    list_missing_fields,
    render,
    render_for_model,
)
from hermes_worker.safety.untrusted import WrappedText

FIELDS_MAX = 1_000
EVENT_CHARS_MAX = 100

_SAFE_ID = re.compile(r"(?!.*\.\.)[A-Za-z0-9._-]{1,100}")
_CHAT_PART = re.compile(r"[A-Za-z0-9_@.+=/-]{1,128}")
_ID_HEADERS = ("x-github-delivery", "svix-id", "webhook-id", "x-request-id")
_EVENT_HEADERS = ("x-github-event", "x-gitlab-event")


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """An event that starts a run or a delivery."""

    event: str
    event_id: str | None
    """The sender's name for this delivery of the event: the same when it is repeated. ``None`` when it gave none."""
    prompt: str = field(repr=False)
    deliver: Sequence[str] = ()
    threats: Sequence[str] = ()
    """What looks like an attack in the payload's part of the prompt (``safety.threats``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ignored:
    """An event that the route does not accept."""

    event: str
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadableEvent:
    """A request that is no event; the reason is for its sender."""

    reason: str


def read_event(
    route: Route, headers: Mapping[str, str], body: bytes, lists: Mapping[str, Collection[str]] | None = None
) -> Accepted | Ignored | UnreadableEvent:
    """Decide what ``body`` means to ``route``. Names of headers are lower case; ``lists`` are the files that filters
    name."""
    payload = _parse_payload(body, headers.get("content-type", ""))
    if payload is None:
        return UnreadableEvent(reason="The body is neither a JSON object nor a form.")
    event = _read_event_type(headers, payload)
    if route.events and event not in route.events:
        return Ignored(event=event)
    facts = EventFacts(payload=payload, event=event, headers=headers, lists=lists or {})
    if not all(does_match(spec, facts) for spec in route.filters):
        return Ignored(event=event, reason="filter")
    deliver = [_render_target(target, payload, event) for target in route.deliver]
    if not all(deliver):
        return UnreadableEvent(reason=_find_missing_chat(route, payload, event))
    template = route.prompt if route.prompt.strip() else build_default_template(route.name)
    # A person who gets the text is told what it says; a model also learns who says it.
    prompt = (
        WrappedText(text=render(template, payload, event))
        if route.deliver_only
        else render_for_model(template, payload, event, route.name)
    )
    return Accepted(
        event=event,
        event_id=_read_event_id(headers),
        prompt=prompt.text,
        threats=prompt.threats,
        deliver=[target for target in deliver if target],
    )


def _find_missing_chat(route: Route, payload: Mapping[str, Any], event: str) -> str:
    """Say why the event leads to no chat: what its payload lacks, or has in a field that must name a chat; empty for
    none."""
    templates = [target for target in route.deliver if _render_target(target, payload, event) is None]
    if missing := list_missing_fields(" ".join(templates), payload):
        return f"This route delivers to {', '.join(templates)}, and the payload has no {', '.join(missing)}."
    fields = dict.fromkeys(match["path"] for template in templates for match in PLACEHOLDER.finditer(template))
    return (
        f"This route delivers to {', '.join(templates)}, and what the payload has as {', '.join(fields)} does not make "
        "a chat of that platform."
    )


def _parse_payload(body: bytes, content_type: str) -> Mapping[str, Any] | None:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return _form(body, content_type)
    return value if isinstance(value, dict) else None


def _form(body: bytes, content_type: str) -> Mapping[str, Any] | None:
    if content_type.partition(";")[0].strip().lower() != "application/x-www-form-urlencoded":
        return None
    try:
        fields = dict(parse_qsl(body.decode("utf-8"), keep_blank_values=True, max_num_fields=FIELDS_MAX))
        # GitHub's form has the JSON in one field.
        inner = json.loads(fields["payload"]) if list(fields) == ["payload"] else None
    except (ValueError, RecursionError):
        return None
    return inner if isinstance(inner, dict) else fields


def _read_event_type(headers: Mapping[str, str], payload: Mapping[str, Any]) -> str:
    named = (headers.get(name) for name in _EVENT_HEADERS)
    said = (payload.get(name) for name in ("event_type", "type"))
    found = next((value for value in (*named, *said) if isinstance(value, str) and value.strip()), "unknown")
    return "".join(character for character in found.strip() if character.isprintable())[:EVENT_CHARS_MAX]


def _read_event_id(headers: Mapping[str, str]) -> str | None:
    given = next((headers[name] for name in _ID_HEADERS if headers.get(name, "").strip()), None)
    if given is None:
        return None
    given = given.strip()
    return given if _SAFE_ID.fullmatch(given) else hashlib.sha256(given.encode("utf-8", "replace")).hexdigest()[:32]


def _render_target(target: str, payload: Mapping[str, Any], event: str) -> str | None:
    """Write a target with the parts that the payload gives; ``None`` when they do not make one chat of its platform."""
    if not PLACEHOLDER.search(target):
        return target
    platform, _, chat = target.partition(":")
    values = [render(match[0], payload, event) for match in PLACEHOLDER.finditer(chat)]
    if not all(_CHAT_PART.fullmatch(value) for value in values):
        return None
    try:
        references = parse_targets(f"{platform}:{render(chat, payload, event)}")
    except TargetError:
        return None
    return format_reference(references[0]) if len(references) == 1 and isinstance(references[0], ChatRef) else None
