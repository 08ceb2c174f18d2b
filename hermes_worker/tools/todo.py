"""The session's task list (reference, loop §12.1)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from hermes_worker.core.messages import canonical_json
from hermes_worker.core.replay import Replay
from hermes_worker.tools.base import ToolContext, ToolResult, ToolSpec

SESSION_KEY: Final = "todo"
_ITEMS_MAX: Final = 256
_CONTENT_CHARS_MAX: Final = 4_000
_CUT: Final = "… [truncated]"


class TodoStatus(StrEnum):
    PENDING = "pending"
    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Item:
    id: str
    content: str
    status: TodoStatus

    def as_document(self) -> dict[str, str]:
        return {"id": self.id, "content": self.content, "status": self.status.value}


_SPEC = ToolSpec(
    name="todo",
    description=(
        "Keep a task list for work of three steps or more, or when the user asks for several things. Without arguments "
        "it returns the list. With 'todos' it replaces the list; with merge=true it changes the items whose id is "
        "already there and appends the others. The order is the priority. Have one item in_progress at a time, mark an "
        "item completed as soon as it is done, and cancel what turned out to be unnecessary. Returns the whole list."
    ),
    parameters={
        "type": "object",
        "properties": {
            "todos": {
                "type": "array",
                "description": "The items. Leave it out to read the list.",
                "items": {
                    "type": "object",
                    "properties": {
                        "id": {"type": "string", "description": "Short and unique, for example '1'."},
                        "content": {"type": "string", "description": "What is to be done."},
                        "status": {"type": "string", "enum": [status.value for status in TodoStatus]},
                    },
                    "required": ["id"],
                },
            },
            "merge": {
                "type": "boolean",
                "description": "true: change and append by id. false: replace the list.",
                "default": False,
            },
        },
        "required": [],
    },
    toolset="todo",
    # The list is written by the transaction that settles the call, so running it again changes nothing more.
    is_untrusted=False,
    replay=Replay.PURE,
    timeout_s=10,
    session_keys=(SESSION_KEY,),
)


class TodoTool:
    """``todo``: reads and writes the session document of the same name."""

    @property
    def spec(self) -> ToolSpec:
        return _SPEC

    def run(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        current = _stored(context.session.get(SESSION_KEY))
        wanted: Sequence[Mapping[str, Any]] | None = arguments.get("todos")
        if wanted is None:
            return ToolResult(text=_summary(current))
        items = _merged(current, wanted) if arguments.get("merge") else _merged((), wanted)
        kept = items[:_ITEMS_MAX]
        document = [item.as_document() for item in kept]
        return ToolResult(
            text=_summary(kept, dropped=len(items) - len(kept)), session_updates={SESSION_KEY: document or None}
        )


def _stored(document: object) -> tuple[_Item, ...]:
    """The items of the session document, which may come from a client's history and is therefore not trusted."""
    if not isinstance(document, list):
        return ()
    return _merged((), [entry for entry in document if isinstance(entry, dict)])[:_ITEMS_MAX]


def _merged(current: Iterable[_Item], changes: Sequence[Mapping[str, Any]]) -> tuple[_Item, ...]:
    """``current`` with the changes applied by id: later ones win, new items go to the end, fields that are not given
    stay as they are."""
    items = {item.id: item for item in current}
    for position, change in enumerate(changes, start=1):
        item_id = str(change.get("id") or "").strip() or f"item-{position}"
        before = items.get(item_id)
        items[item_id] = _Item(
            id=item_id,
            content=_content(change.get("content")) or (before.content if before else "(no description)"),
            status=_status(change.get("status")) or (before.status if before else TodoStatus.PENDING),
        )
    return tuple(items.values())


def _content(value: object) -> str:
    text = str(value or "").strip()
    return text if len(text) <= _CONTENT_CHARS_MAX else text[: _CONTENT_CHARS_MAX - len(_CUT)] + _CUT


def _status(value: object) -> TodoStatus | None:
    try:
        return TodoStatus(str(value))
    except ValueError:
        return None


def _summary(items: Sequence[_Item], *, dropped: int = 0) -> str:
    counts = {status.value: sum(item.status is status for item in items) for status in TodoStatus}
    document: dict[str, object] = {
        "todos": [item.as_document() for item in items],
        "summary": {"total": len(items), **counts},
    }
    if dropped:
        document["note"] = f"the list holds at most {_ITEMS_MAX} items; the last {dropped} were not kept"
    return canonical_json(document)
