"""Which rows of a transcript a model is shown, once its older part was summarised. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence

from hermes_worker.core.messages import Message, Role, user_body

_MARK = '{"_compacted":'
"""How the body of a compaction begins, and no other: keys are sorted, and rows from outside lose private fields."""


def visible(rows: Sequence[Message]) -> Sequence[Message]:
    """The rows of a transcript that a model is shown; ``rows`` begin with number 1 and have no gaps."""
    newest = newest_compaction(rows)
    if newest is None:
        return rows
    facts = json.loads(newest.body)
    said = Message(seq=newest.seq, role=Role.USER, body=user_body(facts["content"]))
    head, through = facts["_compacted"]["head"], facts["_compacted"]["through"]
    return [*rows[:head], said, *(row for row in rows[through:] if not is_compaction(row))]


def is_compaction(row: Message) -> bool:
    return row.role is Role.USER and row.body.startswith(_MARK)


def newest_compaction(rows: Sequence[Message]) -> Message | None:
    # The beginning is looked at first: this goes over every row of every request.
    return next((row for row in reversed(rows) if row.body.startswith(_MARK) and is_compaction(row)), None)
