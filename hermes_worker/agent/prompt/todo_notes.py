"""The agent's own to-do list, beside a summary that hides the result in which it stood. Pure.

The list itself is a document of the session and is never lost; but an agent that no longer sees it forgets to go on
with it. So the newest list that the transcript holds is written below the notes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hermes_worker.agent.tools.builtin import TODO_LIST, TodoStatus
from hermes_worker.core.json_values import parse_object, read_text
from hermes_worker.core.messages import Message, Role
from hermes_worker.core.pruning import list_calls

_OPEN = {TodoStatus.PENDING.value: " ", TodoStatus.IN_PROGRESS.value: ">"}
_ITEMS_MAX, _CONTENT_CHARS = 50, 400


def render_todo_notes(rows: Sequence[Message], *, through: int) -> str:
    """The open items of the newest list; empty where there are none, or where a row behind ``through`` shows the
    list.
    """
    calls = list_calls(rows)
    for row in reversed(rows):
        if row.role is not Role.TOOL:
            continue
        body = json.loads(row.body)
        if calls.get(str(body.get("tool_call_id")), ("", ""))[0] != TODO_LIST.name:
            continue
        if (listed := _parse_items(body.get("content"))) is not None:
            return "" if row.seq > through else _render_items(listed)
    return ""


def _parse_items(content: object) -> Sequence[Mapping[str, Any]] | None:
    """The items of a result; ``None`` for a result that is no list, such as an error."""
    items = parse_object(read_text(content)).get("todos")
    return [item for item in items if isinstance(item, dict)] if isinstance(items, list) else None


def _render_items(items: Sequence[Mapping[str, Any]]) -> str:
    lines = list(_render_lines(items))
    if not lines:
        return ""
    more = [f"- {len(lines) - _ITEMS_MAX} more; {TODO_LIST.name} shows them all"] if len(lines) > _ITEMS_MAX else []
    return "\n".join([f"What is open in your list ({TODO_LIST.name}):", *lines[:_ITEMS_MAX], *more])


def _render_lines(items: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for item in items:
        mark = _OPEN.get(str(item.get("status")))
        if mark is not None:
            said = " ".join(str(item.get("content", "")).split())
            yield f"- [{mark}] {str(item.get('id', ''))[:80]}: {said[:_CONTENT_CHARS]} ({item['status']})"
