"""Which rows of a transcript a model is shown, once its older part was summarised or hooks added to it. Pure.

A row of ours, in the user's role, holds what was decided: ``head`` and ``through`` name the rows that a summary stands
for, ``pruned`` the row up to which results of tools are shown in short. The newest such row counts. Another kind of
row of ours is a person's request for a summary, or what came of it; no model is shown it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

from hermes_worker.core.messages import Message, Role, canonical_json, user_body
from hermes_worker.core.pruning import pruned

_MARK = '{"_compacted":'
"""How the body of a row of ours begins, and no other: keys are sorted, and rows from outside lose private fields."""
_ASKED_MARK = '{"_compacted":{"asked":'
CONTEXT_FIELD = "_context"
"""Of the first reply of a turn: what hooks had added to the row before it in the requests of that turn."""
_CONTEXT_MARK = f'{{"{CONTEXT_FIELD}":'
_MARKS = (_MARK, _CONTEXT_MARK)
FUTILE_MAX = 2
"""Compactions that gained nothing, in a row, after which none is made by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionFacts:
    """What a compaction decided."""

    head: int = 0
    """``seq`` of the last row before the summary that is shown."""
    through: int = 0
    """``seq`` of the last row that the summary stands for; 0 when there is none."""
    summary: str | None = None
    pruned: int = 0
    """``seq`` of the last row whose result is shown in short."""
    futile: int = 0
    """How many compactions up to this one gained nothing, in a row."""


def facts_of(row: Message | None) -> CompactionFacts:
    """Those of a compaction; ``None`` for none, which decided nothing."""
    if row is None:
        return CompactionFacts()
    found = json.loads(row.body)["_compacted"]
    return CompactionFacts(**{name: found[name] for name in CompactionFacts.__slots__ if name in found})


def facts_document(facts: CompactionFacts) -> dict[str, object]:
    """As it is stored."""
    found: dict[str, object] = {"head": facts.head, "through": facts.through, "summary": facts.summary}
    return found | {name: value for name in ("pruned", "futile") if (value := getattr(facts, name))}


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
        return [row for row in rows if not is_compaction(row)]
    facts = facts_of(newest)
    left = [row for row in rows if not is_compaction(row)]
    shown = [row for row in left if row.seq <= facts.head or row.seq > facts.through]
    shown = list(pruned(shown, facts.pruned))
    if not facts.through:
        return shown
    said = Message(seq=newest.seq, role=Role.USER, body=user_body(json.loads(newest.body)["content"]))
    at = sum(row.seq <= facts.head for row in shown)
    return [*shown[:at], said, *shown[at:]]


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


def context_kept_in(reply: Message) -> str:
    """What had been added to the row before ``reply`` in the request that it answers; empty for nothing."""
    if reply.role is not Role.ASSISTANT or not reply.body.startswith(_CONTEXT_MARK):
        return ""
    return str(json.loads(reply.body)[CONTEXT_FIELD])


def is_compaction(row: Message) -> bool:
    """The row is ours, and not a part of the conversation."""
    return row.role is Role.USER and row.body.startswith(_MARK)


def newest_compaction(rows: Sequence[Message]) -> Message | None:
    """The row that says what is shown; ``None`` when everything is."""
    # The beginning is looked at first: this goes over every row of every request.
    return next((row for row in reversed(rows) if row.body.startswith(_MARK) and _decides(row)), None)


def _decides(row: Message) -> bool:
    return row.role is Role.USER and not row.body.startswith(_ASKED_MARK)


# --- on request ------------------------------------------------------------------------------------------------------


def request_body(focus: str) -> str:
    """The row with which a person asks for a summary, most of all of ``focus``."""
    content = f"/compress {focus}".strip()
    return canonical_json({"_compacted": {"asked": True, "focus": focus}, "content": content, "role": "user"})


def outcome_body(text: str) -> str:
    """The row that says why such a request changed nothing."""
    return canonical_json({"_compacted": {"asked": False}, "content": text, "role": "user"})


def requested_focus(rows: Sequence[Message]) -> str | None:
    """What a summary was asked for by the newest row; ``None`` when that is no such request."""
    if not rows or not (is_compaction(rows[-1]) and rows[-1].body.startswith(_ASKED_MARK)):
        return None
    found = json.loads(rows[-1].body)["_compacted"]
    return str(found.get("focus", "")) if found["asked"] else None
