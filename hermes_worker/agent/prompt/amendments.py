"""Requests without what their provider refused: images, large ones or all, or keywords of a tool's schema.

Applied to a request only; the transcript keeps everything. Pure: the same request gives the same bytes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from hermes_worker.agent.images import shrink_data_url
from hermes_worker.core.messages import dump_canonical_json
from hermes_worker.core.recovery_state import Amendment

IMAGE_LEFT_OUT = "[an image stood here; the model in use cannot see images]"
_MARKS = ('"image_url"', '"input_image"', '"type":"image"')
"""Substrings by which a row that may hold an image is found without parsing all rows."""
_GRAMMAR_KEYWORDS = frozenset({"pattern", "format"})


def amend_messages(
    messages: Sequence[str], amendments: frozenset[Amendment], *, image_side_px_max: int = 0
) -> Sequence[str]:
    """The messages (canonical JSON) as they are sent under ``amendments``. ``image_side_px_max`` belongs to
    ``SMALL_IMAGES``."""
    if Amendment.NO_IMAGES in amendments:
        return [_drop_images(row) for row in messages]
    if Amendment.NO_TOOL_IMAGES in amendments:
        messages = [_drop_images(row) if '"role":"tool"' in row else row for row in messages]
    if Amendment.SMALL_IMAGES in amendments:
        messages = [_shrink_images(row, image_side_px_max) for row in messages]
    return messages


def has_images(messages: Sequence[str], *, role: str | None = None) -> bool:
    """Whether any row, or any of that ``role``, may hold an image."""
    return any(_may_hold_image(row) and (role is None or f'"role":"{role}"' in row) for row in messages)


def has_inline_images(messages: Sequence[str]) -> bool:
    """Whether any row may hold an image as data, and not just its address."""
    return any(_may_hold_image(row) and "data:image/" in row for row in messages)


def amend_tools(tools: Sequence[str], amendments: frozenset[Amendment]) -> Sequence[str]:
    """The tool definitions (canonical JSON) as they are sent under ``amendments``."""
    return _simplify_tools(tuple(tools)) if Amendment.PLAIN_TOOL_SCHEMAS in amendments else tools


def _may_hold_image(row: str) -> bool:
    return any(mark in row for mark in _MARKS)


def _drop_images(row: str) -> str:
    if not _may_hold_image(row):
        return row
    message: dict[str, Any] = json.loads(row)
    content = message.get("content")
    if not isinstance(content, list):
        return row
    parts = [{"type": "text", "text": IMAGE_LEFT_OUT} if _is_image(part) else part for part in content]
    if message.get("role") != "tool":
        return dump_canonical_json({**message, "content": parts})
    # A provider that takes no images in a result often takes no list there either.
    return dump_canonical_json({**message, "content": "\n".join(_iterate_texts(parts))})


def _shrink_images(row: str, side_px_max: int) -> str:
    """A row with its images made small. An image that cannot be made small is sent unchanged: another provider may
    accept what this one refused.
    """
    if not has_inline_images([row]):
        return row
    message: dict[str, Any] = json.loads(row)
    content = message.get("content")
    if not isinstance(content, list):
        return row
    return dump_canonical_json({**message, "content": [_shrink_part(part, side_px_max) for part in content]})


def _shrink_part(part: object, side_px_max: int) -> object:
    if not isinstance(part, Mapping) or not _is_image(part):
        return part
    image = part.get("image_url")
    url = image.get("url") if isinstance(image, Mapping) else image
    small = shrink_data_url(url, side_px_max) if isinstance(url, str) else None
    if small is None:
        return part
    return {**part, "image_url": {**image, "url": small} if isinstance(image, Mapping) else small}


def _is_image(part: object) -> bool:
    return isinstance(part, Mapping) and part.get("type") in ("image_url", "input_image", "image")


def _iterate_texts(parts: Sequence[object]) -> Iterator[str]:
    for part in parts:
        if isinstance(part, str):
            yield part
        elif isinstance(part, Mapping) and isinstance(part.get("text"), str):
            yield part["text"]


@lru_cache(maxsize=64)
def _simplify_tools(tools: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dump_canonical_json(_drop_keywords(json.loads(tool), is_schema=True)) for tool in tools)


def _drop_keywords(value: object, *, is_schema: bool) -> object:
    """A value without the keywords. A *property* may well be called ``format``, so names of properties are left
    alone.
    """
    if isinstance(value, list):
        return [_drop_keywords(item, is_schema=is_schema) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        key: _drop_keywords(item, is_schema=not (is_schema and key == "properties"))
        for key, item in value.items()
        if not (is_schema and key in _GRAMMAR_KEYWORDS and isinstance(item, str))
    }
