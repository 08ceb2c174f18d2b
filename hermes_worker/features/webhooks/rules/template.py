"""Templates of prompts with parts of a payload in them: ``{a.b.c}``.

A template has nothing but names: no expressions, no attributes, no formats. What is put in is not looked at again, so a
payload that contains ``{other.field}`` shows that text and no more.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from operator import itemgetter
from typing import Any

from hermes_worker.core.json_paths import find_at_path, is_missing
from hermes_worker.safety.untrusted import WRAPPED_CHARS_MIN, Provenance, WrappedText, wrap_untrusted

PLACEHOLDER = re.compile(r"\{(?P<path>[A-Za-z0-9_][A-Za-z0-9_.-]{0,199})\}")
NESTED_CHARS_MAX = 2_000
PAYLOAD_CHARS_MAX = 4_000

_OWN_NAMES = ("__raw__", "event_type")
"""Names that stand for the event itself."""


def render(template: str, payload: Mapping[str, Any], event: str) -> str:
    """Render ``template`` with its names replaced. ``{__raw__}`` is the whole payload,
    ``{event_type}`` the event; a name that the payload does not have stays as it is."""
    return "".join(text for _, text in _split_pieces(template, payload, event))


def render_for_model(template: str, payload: Mapping[str, Any], event: str, route: str) -> WrappedText:
    """Render ``template`` for a model: the payload's words are marked off from the route's. Short values stay in their
    line; neighbours count as one text, so that no attack can be assembled from parts."""
    text = ""
    threats: list[str] = []
    for is_theirs, piece in _join_pieces(_split_pieces(template, payload, event)):
        if not is_theirs:
            text += piece
            continue
        found = wrap_untrusted(piece, route, Provenance.WEBHOOK)
        threats += found.threats
        is_block = len(piece) >= WRAPPED_CHARS_MIN
        text += f"\n{found.text}\n" if is_block else found.text
    return WrappedText(text=text, threats=tuple(dict.fromkeys(threats)))


def _split_pieces(template: str, payload: Mapping[str, Any], event: str) -> Iterator[tuple[bool, str]]:
    """Yield the pieces of the result in order, each with whether the sender of the event wrote it."""
    after = 0
    for match in PLACEHOLDER.finditer(template):
        yield False, template[after : match.start()]
        path = match["path"]
        found = payload if path == "__raw__" else event if path == "event_type" else find_at_path(payload, path)
        if path == "__raw__":
            yield True, format_value(payload, PAYLOAD_CHARS_MAX)
        else:
            yield not is_missing(found), match[0] if is_missing(found) else _format_text(found)
        after = match.end()
    yield False, template[after:]


def _join_pieces(pieces: Iterable[tuple[bool, str]]) -> Iterator[tuple[bool, str]]:
    written = (piece for piece in pieces if piece[1])
    for is_theirs, group in groupby(written, key=itemgetter(0)):
        yield is_theirs, "".join(text for _, text in group)


def list_missing_fields(template: str, payload: Mapping[str, Any]) -> list[str]:
    """List the names in ``template`` that ``payload`` does not have, in order."""
    names = dict.fromkeys(match["path"] for match in PLACEHOLDER.finditer(template))
    return [name for name in names if name not in _OWN_NAMES and is_missing(find_at_path(payload, name))]


def build_default_template(route: str) -> str:
    """Build the template of a route that has no prompt."""
    return f"Webhook event '{{event_type}}' on route {route!r}:\n\n{{__raw__}}"


def format_value(value: Any, chars_max: int) -> str:
    """Write a value as JSON, cut after ``chars_max`` characters."""
    text = json.dumps(value, ensure_ascii=False, indent=2)
    return text if len(text) <= chars_max else text[: chars_max - 1] + "…"


def _format_text(value: Any) -> str:
    if isinstance(value, Mapping | list):
        return format_value(value, NESTED_CHARS_MAX)
    if isinstance(value, bool) or value is None:
        return json.dumps(value)
    return str(value)
