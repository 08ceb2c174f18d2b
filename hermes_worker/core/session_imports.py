"""Import a conversation as a session: from our own export, or from the original's. Pure.

The writer of the file is a stranger. Its system prompt, its messages of the role ``system`` and every field that is not
named here are left out; texts stay what they are, data that somebody said. ``agent.prompt.pipeline.import_history``
puts the rows into an order that every provider accepts.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from hermes_worker.core.errors import HermesError
from hermes_worker.core.json_values import parse_json
from hermes_worker.core.sources import is_session_id
from hermes_worker.core.titles import clean_title

SESSIONS_MAX: Final = 500
MESSAGES_MAX: Final = 10_000
"""The most messages of a session."""
MESSAGES_OF_FILE_MAX: Final = 50_000
SESSION_BYTES_MAX: Final = 5 * 1024 * 1024
FILE_BYTES_MAX: Final = 25 * 1024 * 1024
"""All five are the original's."""
_NAME: Final = re.compile(r"(?!.*\.\.)[!-.0-\[\]-~]{1,240}")
_MODEL: Final = re.compile(r"[!-~]{1,200}")
_REASON_CHARS_MAX = 40
_SAID = frozenset({"user", "assistant", "tool"})


class InvalidImport(HermesError):
    """A document is no session, or too large; the message says what is wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedSession:
    """A conversation that is to become a session."""

    name: str
    """The name of the new session: the id of the imported one where that may be a name."""
    title: str | None
    model: str | None
    parent: str | None
    """The name of the session that it was forked from."""
    ended_at: float | None
    end_reason: str | None
    rows: Sequence[Mapping[str, Any]]
    """Messages in chat-completions form, as far as they could be read."""
    moments: Sequence[float | None]
    """When each row was written, in epoch seconds; ``None`` where that is unknown."""


def parse_session(document: object, *, now: float) -> ImportedSession:
    """Parse a document as a session. Raises ``InvalidImport``."""
    if not isinstance(document, Mapping):
        raise InvalidImport("a session must be an object")
    rows = document.get("messages")
    if not isinstance(rows, list):
        raise InvalidImport("a session must have a list of messages")
    if len(rows) > MESSAGES_MAX:
        raise InvalidImport(f"a session may have {MESSAGES_MAX} messages, and this one has {len(rows)}")
    said = [row for row in rows if isinstance(row, Mapping) and _parse_text(row.get("role")) in _SAID]
    ended_at = _parse_moment(document.get("ended_at"), now)
    parent = document.get("parent_session_id")
    return ImportedSession(
        name=_choose_name(document.get("id") or document.get("session_id")),
        title=clean_title(_parse_text(document.get("title"))) or None,
        model=_parse_model(document.get("model")),
        parent=_choose_name(parent) if isinstance(parent, str) and parent else None,
        ended_at=ended_at,
        end_reason=(clean_title(_parse_text(document.get("end_reason")))[:_REASON_CHARS_MAX] or None)
        if ended_at
        else None,
        rows=[_parse_row(row) for row in said],
        moments=[_parse_moment(row.get("timestamp"), now) for row in said],
    )


def _choose_name(identifier: object) -> str:
    """Choose a name by the session's id in the other installation: names must not look like ids of ours."""
    if not isinstance(identifier, str) or not identifier:
        raise InvalidImport("a session must have an id")
    name = f"import_{identifier}" if is_session_id(identifier) else identifier
    if _NAME.fullmatch(name):
        return name
    return f"import_{hashlib.sha256(identifier.encode('utf-8', 'surrogatepass')).hexdigest()[:32]}"


def _parse_row(row: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {"role": row["role"], "content": _parse_content(row.get("content"))}
    if row["role"] == "tool":
        found["tool_call_id"] = _parse_text(row.get("tool_call_id"))
    if row["role"] == "assistant" and (calls := _parse_calls(row.get("tool_calls"))):
        found["tool_calls"] = calls
    return found


def _parse_content(content: object) -> object:
    """Parse a text or a list of parts, of which those with texts are kept: an image may be an address of anything."""
    if isinstance(content, list):
        texts = [_parse_text(part.get("text")) for part in content if isinstance(part, Mapping)]
        return "\n".join(text for text in texts if text)
    return _parse_text(content)


def _parse_calls(calls: object) -> list[dict[str, Any]]:
    """Parse tool calls. The original stores them as JSON text in its database, and as a list in its export."""
    if isinstance(calls, str):
        calls = parse_json(calls)
    found = []
    for call in calls if isinstance(calls, list) else ():
        function = call.get("function") if isinstance(call, Mapping) else None
        if isinstance(function, Mapping) and _parse_text(function.get("name")):
            arguments = function.get("arguments")
            named = {"name": _parse_text(function["name"]), "arguments": _parse_text(arguments) or "{}"}
            found.append({"id": _parse_text(call.get("id")), "type": "function", "function": named})
    return found


def _parse_text(value: object) -> str:
    """Read a text without what no database accepts: NUL, and lone surrogates."""
    if not isinstance(value, str):
        return ""
    return value.replace("\x00", "\ufffd").encode("utf-8", "replace").decode("utf-8")


def _parse_model(value: object) -> str | None:
    return value if isinstance(value, str) and _MODEL.fullmatch(value) else None


def _parse_moment(value: object, now: float) -> float | None:
    """Epoch seconds that are past; ``None`` for anything else."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return float(value) if math.isfinite(value) and 0 < value <= now else None
