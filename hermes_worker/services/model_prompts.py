"""The prompt of a model call, read from rows (invariant I7: the rows hold what was sent).

It is the material of the request, in the form in which it is stored: a wire may spell it otherwise, and a compaction
shows as the model saw it. It lacks what no row keeps: a change for one attempt after an error, and the names of a
provider that stood in for another.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hermes_worker.core.compactions import select_visible
from hermes_worker.core.errors import HermesError
from hermes_worker.safety.redaction import redact
from hermes_worker.store.engine.database import Database
from hermes_worker.store.runs.prompts import PromptMaterial, load_prompt_material


class ReplyNotFound(HermesError):
    """The run has no such reply, and none is due that would be it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPrompt:
    """The prompt of a model call, without what looks like a credential."""

    model: str
    reply: int
    """Which reply of the run it led to, from 1; one more than there are for a call that is due."""
    replies: int
    system: str
    tools: Sequence[Mapping[str, Any]]
    messages: Sequence[Mapping[str, Any]]


def load_prompt(database: Database, run_id: str, reply: int | None = None) -> ModelPrompt:
    """Load the prompt of one reply; ``None`` means the newest: of a run that has not ended, the one that is due. Raises
    ``ReplyNotFound``, ``RunNotFound``, ``UnavailableError``."""
    parts = load_prompt_material(database, run_id)
    count = len(parts.replies)
    newest = count + 1 if parts.is_open or not count else count
    number = newest if reply is None else reply
    if not 1 <= number <= newest:
        raise ReplyNotFound(f"the run {run_id!r} has no reply {number}")
    return ModelPrompt(
        model=parts.model,
        reply=number,
        replies=count,
        system=redact(parts.system_prompt),
        tools=_redact_json(json.loads(parts.tools)),
        messages=[_redact_json(json.loads(body)) for body in list_prompt_rows(parts, number)],
    )


def list_prompt_rows(parts: PromptMaterial, reply: int) -> Sequence[str]:
    """List the messages of a prompt. What hooks added to a turn is stored in the reply to it, so that reply is read for
    it and left out."""
    if reply > len(parts.replies):
        return [row.body for row in select_visible(parts.rows)]
    at = parts.replies[reply - 1]
    rows = select_visible([row for row in parts.rows if row.seq <= at])
    return [row.body for row in rows if row.seq < at]


def _redact_json(value: Any) -> Any:
    """Redact every text in a JSON value."""
    match value:
        case str():
            return redact(value)
        case dict():
            return {name: _redact_json(each) for name, each in value.items()}
        case list():
            return [_redact_json(each) for each in value]
    return value
