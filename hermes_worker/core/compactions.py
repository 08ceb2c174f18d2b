"""Which rows of a transcript a model is shown, once its older part was summarised or hooks added to it. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

from hermes_worker.core.messages import Message, Role, canonical_json, user_body

_MARK = '{"_compacted":'
"""How the body of a compaction begins, and no other: keys are sorted, and rows from outside lose private fields."""
CONTEXT_FIELD = "_context"
"""Of the first reply of a turn: what hooks had added to the row before it in the requests of that turn."""
_CONTEXT_MARK = f'{{"{CONTEXT_FIELD}":'
_MARKS = (_MARK, _CONTEXT_MARK)


def visible(rows: Sequence[Message]) -> Sequence[Message]:
    """The rows of a transcript that a model is shown; ``rows`` begin with number 1 and have no gaps."""
    # The beginning is looked at first: this goes over every row of every request.
    marked = [row for row in rows if row.body.startswith(_MARKS)]
    if not marked:
        return rows
    for row in marked:
        if row.role is Role.ASSISTANT and row.body.startswith(_CONTEXT_MARK):
            rows = _with_context_before(rows, row)
    newest = newest_compaction(rows)
    if newest is None:
        return rows
    facts = json.loads(newest.body)
    said = Message(seq=newest.seq, role=Role.USER, body=user_body(facts["content"]))
    head, through = facts["_compacted"]["head"], facts["_compacted"]["through"]
    return [*rows[:head], said, *(row for row in rows[through:] if not is_compaction(row))]


def with_context(rows: Sequence[Message], context: str) -> Sequence[Message]:
    """``rows`` with a text below what the last of them says, a compaction aside."""
    at = next((n for n in reversed(range(len(rows))) if not is_compaction(rows[n])), None)
    if not context or at is None:
        return rows
    body = json.loads(rows[at].body)
    said = body.get("content")
    more = {"type": "text", "text": context}
    body["content"] = [*said, more] if isinstance(said, list) else f"{said or ''}\n\n{context}".strip()
    return [*rows[:at], replace(rows[at], body=canonical_json(body)), *rows[at + 1 :]]


def _with_context_before(rows: Sequence[Message], reply: Message) -> Sequence[Message]:
    """The row before ``reply`` as it was sent, and ``reply`` without its private field."""
    body = json.loads(reply.body)
    context = str(body.pop(CONTEXT_FIELD))
    before = with_context(rows[: reply.seq - 1], context)
    return [*before, replace(reply, body=canonical_json(body)), *rows[reply.seq :]]


def is_compaction(row: Message) -> bool:
    return row.role is Role.USER and row.body.startswith(_MARK)


def newest_compaction(rows: Sequence[Message]) -> Message | None:
    # The beginning is looked at first: this goes over every row of every request.
    return next((row for row in reversed(rows) if row.body.startswith(_MARK) and is_compaction(row)), None)
