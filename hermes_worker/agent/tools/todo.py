"""The session's task list."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from hermes_worker.agent.tools.base import ToolContext, ToolResult
from hermes_worker.agent.tools.builtin import TODO_KEY, TODO_LIST, TodoStatus
from hermes_worker.core.messages import dump_canonical_json

_ITEMS_MAX: Final = 256
_CONTENT_CHARS_MAX: Final = 4_000
_CUT: Final = "… [truncated]"


@dataclass(frozen=True, slots=True, kw_only=True)
class _TodoItem:
    id: str
    content: str
    status: TodoStatus

    def as_document(self) -> dict[str, str]:
        return {"id": self.id, "content": self.content, "status": self.status.value}


class TodoTool:
    """``todo``: reads and writes the session document of the same name."""

    spec: Final = TODO_LIST

    def run(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        current = _read_stored(context.session.get(TODO_KEY))
        wanted: Sequence[Mapping[str, Any]] | None = arguments.get("todos")
        if wanted is None:
            return ToolResult(text=_render_summary(current))
        items = _merge_changes(current, wanted) if arguments.get("merge") else _merge_changes((), wanted)
        kept = items[:_ITEMS_MAX]
        document = [item.as_document() for item in kept]
        return ToolResult(
            text=_render_summary(kept, dropped=len(items) - len(kept)), session_updates={TODO_KEY: document or None}
        )


def _read_stored(document: object) -> tuple[_TodoItem, ...]:
    """The items of the session document, which may come from a client's history and is therefore not trusted."""
    if not isinstance(document, list):
        return ()
    return _merge_changes((), [entry for entry in document if isinstance(entry, dict)])[:_ITEMS_MAX]


def _merge_changes(current: Iterable[_TodoItem], changes: Sequence[Mapping[str, Any]]) -> tuple[_TodoItem, ...]:
    """``current`` with the changes applied by id: later ones win, new items go to the end, fields that are not given
    stay as they are."""
    items = {item.id: item for item in current}
    for position, change in enumerate(changes, start=1):
        item_id = str(change.get("id") or "").strip() or f"item-{position}"
        before = items.get(item_id)
        items[item_id] = _TodoItem(
            id=item_id,
            content=_parse_content(change.get("content")) or (before.content if before else "(no description)"),
            status=_parse_status(change.get("status")) or (before.status if before else TodoStatus.PENDING),
        )
    return tuple(items.values())


def _parse_content(value: object) -> str:
    text = str(value or "").strip()
    return text if len(text) <= _CONTENT_CHARS_MAX else text[: _CONTENT_CHARS_MAX - len(_CUT)] + _CUT


def _parse_status(value: object) -> TodoStatus | None:
    try:
        return TodoStatus(str(value))
    except ValueError:
        return None


def _render_summary(items: Sequence[_TodoItem], *, dropped: int = 0) -> str:
    counts = {status.value: sum(item.status is status for item in items) for status in TodoStatus}
    document: dict[str, object] = {
        "todos": [item.as_document() for item in items],
        "summary": {"total": len(items), **counts},
    }
    if dropped:
        document["note"] = f"the list holds at most {_ITEMS_MAX} items; the last {dropped} were not kept"
    return dump_canonical_json(document)
