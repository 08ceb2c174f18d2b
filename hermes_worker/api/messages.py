"""Parse the messages of clients into the one form that we store. Pure.

A message that cannot be taken is refused with its exact place; nothing is cut short or left out silently.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hermes_worker.api.errors import ApiError, invalid
from hermes_worker.services.submission_rules import TEXT_CHARS_MAX

ITEMS_MAX = 1_000
"""Most messages of a conversation, and most parts of a message."""

_TEXT_PARTS = frozenset({"text", "input_text", "output_text"})
_IMAGE_PARTS = frozenset({"image_url", "input_image"})
_FILE_PARTS = frozenset({"file", "input_file"})
_INSTRUCTING = frozenset({"system", "developer"})
_MESSAGE_FIELDS = frozenset({"role", "content", "type", "id", "status"})
"""Fields of a message. The last two were given by a server; they mean nothing here."""
_IMAGE_URL = re.compile(r"https?://[^\s\x00-\x20]{1,8000}|data:image/[a-z0-9.+-]{1,40};base64,[A-Za-z0-9+/=_-]+", re.I)
_DATA = re.compile(r"data:(?P<type>[a-z0-9.+-]{1,40}/[a-z0-9.+-]{1,100})(?:;[^;,]{1,100})*;base64,(?P<data>\S+)", re.I)
_FILE_NAME_CHARS_MAX = 200
_DETAILS = ("auto", "low", "high")

Content = str | Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """A conversation that a client sent."""

    input: Content
    """The user's message: text, or parts when there is more than text in it."""
    history: Sequence[Mapping[str, Any]] = ()
    """Earlier messages of user and assistant."""
    instructions: Sequence[str] = field(default=())
    """Texts of system messages, in order."""


def parse_conversation(given: object, history: object) -> Conversation:
    """Parse the fields ``input`` and ``conversation_history``. Raises ``ApiError``."""
    earlier = _parse_rows(history if history is not None else [], "conversation_history")
    if isinstance(given, str):
        return _build_conversation(earlier, _require_message(given, "input"))
    if not isinstance(given, list):
        raise invalid("input", "Invalid 'input': it must be a string or a list of messages.", "invalid_type")
    if not given:
        raise invalid("input", "Invalid 'input': the list has no message.")
    rows = _parse_rows(given, "input")
    last = rows.pop()
    where = f"input[{len(given) - 1}]"
    if last.role != "user":
        raise invalid(f"{where}.role", f"Invalid '{where}.role': the last message must be the user's.")
    return _build_conversation([*earlier, *rows], _require_message(last.content, where))


@dataclass(frozen=True, slots=True)
class _MessageRow:
    role: str
    content: Content


def _build_conversation(rows: Sequence[_MessageRow], spoken: Content) -> Conversation:
    return Conversation(
        input=spoken,
        history=[{"role": row.role, "content": row.content} for row in rows if row.role not in _INSTRUCTING],
        instructions=[str(row.content) for row in rows if row.role in _INSTRUCTING],
    )


def _require_message(content: Content, where: str) -> Content:
    """Require that the user's newest message is not empty. Raises ``ApiError``."""
    if isinstance(content, str) and not content.strip():
        raise invalid(where, f"Invalid '{where}': the message is empty.", "empty_message")
    return content if not isinstance(content, str) else require_text_length(content, where)


def _parse_rows(given: object, where: str) -> list[_MessageRow]:
    if not isinstance(given, list):
        raise invalid(where, f"Invalid '{where}': it must be a list of messages.", "invalid_type")
    if len(given) > ITEMS_MAX:
        raise invalid(where, f"Invalid '{where}': it has more than {ITEMS_MAX} messages.")
    return [_parse_row(item, f"{where}[{position}]") for position, item in enumerate(given)]


def _parse_row(item: object, where: str) -> _MessageRow:
    if isinstance(item, str):
        return _MessageRow("user", require_text_length(item, where))
    if not isinstance(item, dict):
        raise invalid(where, f"Invalid '{where}': it must be a message object or a string.", "invalid_type")
    role = item.get("role", "user")
    if role not in ("user", "assistant", *_INSTRUCTING):
        raise invalid(f"{where}.role", f"Invalid '{where}.role': it must be user, assistant or system.")
    if item.get("type", "message") != "message":
        raise invalid(f"{where}.type", f"Invalid '{where}.type': only messages can be sent.")
    unknown = sorted(set(item) - _MESSAGE_FIELDS)
    if unknown:
        name = f"{where}.{unknown[0][:80]}"
        raise invalid(name, f"Unknown parameter: {name!r}.", "unknown_parameter")
    if "content" not in item:
        raise invalid(
            f"{where}.content", f"Missing required parameter: '{where}.content'.", "missing_required_parameter"
        )
    content = parse_content(item["content"], f"{where}.content")
    if role != "user" and not isinstance(content, str):
        raise invalid(f"{where}.content", f"Invalid '{where}.content': only the user's messages may have images.")
    return _MessageRow(role, content)


def parse_content(given: object, where: str) -> Content:
    """Parse a content: text, or parts when one of them is not text. Raises ``ApiError``."""
    if isinstance(given, str):
        return require_text_length(given, where)
    if not isinstance(given, list):
        raise invalid(where, f"Invalid '{where}': it must be a string or a list of parts.", "invalid_type")
    if len(given) > ITEMS_MAX:
        raise invalid(where, f"Invalid '{where}': it has more than {ITEMS_MAX} parts.")
    parts = [_parse_part(part, f"{where}[{position}]") for position, part in enumerate(given)]
    texts = [part["text"] for part in parts if part["type"] == "text"]
    require_text_length("\n".join(texts), where)
    return "\n".join(texts) if len(texts) == len(parts) else parts


def _parse_part(given: object, where: str) -> dict[str, Any]:
    if isinstance(given, str):
        return {"type": "text", "text": given}
    kind = given.get("type") if isinstance(given, dict) else None
    if not isinstance(given, dict) or not isinstance(kind, str):
        raise invalid(where, f"Invalid '{where}': it must be a part with a type.", "invalid_content_part")
    if kind in _TEXT_PARTS:
        if not isinstance(given.get("text"), str):
            raise invalid(f"{where}.text", f"Invalid '{where}.text': it must be a string.", "invalid_content_part")
        return {"type": "text", "text": given["text"]}
    if kind in _IMAGE_PARTS:
        return {"type": "image_url", "image_url": _parse_image(given, where)}
    if kind in _FILE_PARTS:
        return _parse_file(given, where)
    raise invalid(f"{where}.type", f"Invalid '{where}.type': {kind[:40]!r} is not known.", "invalid_content_part")


def _parse_file(part: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Parse a file that is brought as data: a picture stays one, a text is shown with its name. Raises ``ApiError`` for
    any other."""
    file = part.get("file")
    given: Mapping[str, Any] = file if isinstance(file, dict) else part
    data = given.get("file_data")
    match = _DATA.fullmatch(data) if isinstance(data, str) else None
    if match is None:
        what = "a 'file_data' of the form data:TYPE;base64,DATA (files are not fetched from addresses)"
        raise ApiError(400, f"'{where}' is a file without {what}.", code="unsupported_content_type", param=where)
    if match["type"].startswith("image/"):
        return {"type": "image_url", "image_url": _parse_image({"image_url": data}, where)}
    try:
        text = base64.b64decode(match["data"], validate=True).decode("utf-8")
    except ValueError:
        message = f"'{where}' is a file of the type {match['type']!r}: only texts in UTF-8 and pictures can be brought."
        raise ApiError(400, message, code="unsupported_content_type", param=where) from None
    name = " ".join(str(given.get("filename") or "file").split())[:_FILE_NAME_CHARS_MAX]
    return {"type": "text", "text": f"[file {name}]\n{text}\n[end of {name}]"}


def _parse_image(part: Mapping[str, Any], where: str) -> dict[str, str]:
    """Parse an image part: chat completions put the address into an object, the Responses API beside the type."""
    given = part.get("image_url")
    source = {**part, **given} if isinstance(given, dict) else {**part, "url": given}
    url, detail = source.get("url"), source.get("detail")
    if not isinstance(url, str) or not _IMAGE_URL.fullmatch(url):
        message = f"Invalid '{where}.image_url': it must be an http(s) address or base64 data of an image."
        raise invalid(f"{where}.image_url", message, "invalid_image_url")
    if detail not in (None, *_DETAILS):
        raise invalid(f"{where}.detail", f"Invalid '{where}.detail': it must be one of {', '.join(_DETAILS)}.")
    return {"url": url} if detail in (None, "auto") else {"url": url, "detail": str(detail)}


def require_text_length(text: str, where: str) -> str:
    """Require that a text is not too long. Raises ``ApiError``."""
    if len(text) > TEXT_CHARS_MAX:
        raise invalid(where, f"Invalid '{where}': it has more than {TEXT_CHARS_MAX} characters.", "text_too_long")
    return text
