"""The rows of a transcript that a model is shown, after a compaction or with text that hooks added. Pure.

A row of ours, in the user's role, holds the decision: ``head`` and ``through`` name the rows that a summary replaces,
``pruned`` the row up to which tool results are shortened. The newest such row counts. Another kind of row of ours is a
person's request for a summary, or its outcome; no model is shown it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

from hermes_worker.core.messages import Message, Role, build_user_body, dump_canonical_json
from hermes_worker.core.pruning import shorten_results

_MARK = '{"_compacted":'
"""The beginning of the body of our rows, and of no other: keys are sorted, and rows from outside lose private
fields."""
_ASKED_MARK = '{"_compacted":{"asked":'
CONTEXT_FIELD = "_context"
"""Field of the first reply of a turn: the text that hooks added to the row before it in the requests of that turn."""
_CONTEXT_MARK = f'{{"{CONTEXT_FIELD}":'
_MARKS = (_MARK, _CONTEXT_MARK)
FUTILE_MAX = 2
"""Compactions in a row without gain after which none is made automatically."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionFacts:
    """The decision of a compaction."""

    head: int = 0
    """``seq`` of the last row before the summary that is shown."""
    through: int = 0
    """``seq`` of the last row that the summary stands for; 0 when there is none."""
    summary: str | None = None
    pruned: int = 0
    """``seq`` of the last row whose result is shortened."""
    futile: int = 0
    """How many compactions in a row, up to this one, gained nothing."""


def parse_facts(row: Message | None) -> CompactionFacts:
    """Parse the decision of a compaction row; an empty decision for ``None``."""
    if row is None:
        return CompactionFacts()
    found = json.loads(row.body)["_compacted"]
    return CompactionFacts(**{name: found[name] for name in CompactionFacts.__slots__ if name in found})


def build_document(facts: CompactionFacts) -> dict[str, object]:
    """Build the JSON object that is stored for a decision."""
    found: dict[str, object] = {"head": facts.head, "through": facts.through, "summary": facts.summary}
    return found | {name: value for name in ("pruned", "futile") if (value := getattr(facts, name))}


def select_visible(rows: Sequence[Message]) -> Sequence[Message]:
    """Select the rows of a transcript that a model is shown; ``rows`` begin with number 1 and have no gaps."""
    # Look at the beginning of the body first: this runs over every row of every request.
    marked = [row for row in rows if row.body.startswith(_MARKS)]
    if not marked:
        return rows
    for row in marked:
        if row.role is Role.ASSISTANT and row.body.startswith(_CONTEXT_MARK):
            rows = _restore_context(rows, row)
    newest = find_newest_compaction(rows)
    if newest is None:
        return [row for row in rows if not is_compaction(row)]
    facts = parse_facts(newest)
    left = [row for row in rows if not is_compaction(row)]
    shown = [row for row in left if row.seq <= facts.head or row.seq > facts.through]
    shown = list(shorten_results(shown, facts.pruned))
    if not facts.through:
        return shown
    said = Message(seq=newest.seq, role=Role.USER, body=build_user_body(json.loads(newest.body)["content"]))
    at = sum(row.seq <= facts.head for row in shown)
    return [*shown[:at], said, *shown[at:]]


def append_context(rows: Sequence[Message], context: str) -> Sequence[Message]:
    """Append a text to the last row that is no compaction."""
    at = next((n for n in reversed(range(len(rows))) if not is_compaction(rows[n])), None)
    if not context or at is None:
        return rows
    body = json.loads(rows[at].body)
    said = body.get("content")
    more = {"type": "text", "text": context}
    body["content"] = [*said, more] if isinstance(said, list) else f"{said or ''}\n\n{context}".strip()
    return [*rows[:at], replace(rows[at], body=dump_canonical_json(body)), *rows[at + 1 :]]


def _restore_context(rows: Sequence[Message], reply: Message) -> Sequence[Message]:
    """Return the row before ``reply`` as it was sent, and ``reply`` without its private field."""
    body = json.loads(reply.body)
    context = str(body.pop(CONTEXT_FIELD))
    before = append_context(rows[: reply.seq - 1], context)
    return [*before, replace(reply, body=dump_canonical_json(body)), *rows[reply.seq :]]


def read_kept_context(reply: Message) -> str:
    """The text that hooks added to the row before ``reply`` in the request that it answers; empty for none."""
    if reply.role is not Role.ASSISTANT or not reply.body.startswith(_CONTEXT_MARK):
        return ""
    return str(json.loads(reply.body)[CONTEXT_FIELD])


def is_compaction(row: Message) -> bool:
    """Whether the row is ours, and no part of the conversation."""
    return row.role is Role.USER and row.body.startswith(_MARK)


def find_newest_compaction(rows: Sequence[Message]) -> Message | None:
    """Find the row that decides what is shown; ``None`` when everything is."""
    # Look at the beginning of the body first: this runs over every row of every request.
    return next((row for row in reversed(rows) if row.body.startswith(_MARK) and _is_decision(row)), None)


def _is_decision(row: Message) -> bool:
    return row.role is Role.USER and not row.body.startswith(_ASKED_MARK)


# --- on request ------------------------------------------------------------------------------------------------------


def build_request_body(focus: str) -> str:
    """Build the row with which a person asks for a summary, with special attention to ``focus``."""
    content = f"/compress {focus}".strip()
    return dump_canonical_json({"_compacted": {"asked": True, "focus": focus}, "content": content, "role": "user"})


def build_outcome_body(text: str) -> str:
    """Build the row that says why such a request changed nothing."""
    return dump_canonical_json({"_compacted": {"asked": False}, "content": text, "role": "user"})


def parse_requested_focus(rows: Sequence[Message]) -> str | None:
    """The focus of a requested summary, from the newest row; ``None`` when that is no such request."""
    if not rows or not (is_compaction(rows[-1]) and rows[-1].body.startswith(_ASKED_MARK)):
        return None
    found = json.loads(rows[-1].body)["_compacted"]
    return str(found.get("focus", "")) if found["asked"] else None
