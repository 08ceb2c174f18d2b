"""The result of a run for programs: Hermes Agent's result keys and training samples.

Both are read from rows, at any time, and are the same each time.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from hermes_worker.core.messages import Message, Role
from hermes_worker.core.pricing import CostStatus
from hermes_worker.core.trajectory import build_trajectory
from hermes_worker.safety.redaction import redact
from hermes_worker.schemas.runs import TurnResult
from hermes_worker.store.runs.views import Views

_COST_SOURCES = {
    CostStatus.KNOWN: "provider",
    CostStatus.ESTIMATED: "price_table",
    CostStatus.INCLUDED: "subscription",
    CostStatus.UNKNOWN: "none",
}


def build_turn_result(views: Views, run_id: str, source: str = "api") -> TurnResult:
    """Build the result of a run under Hermes Agent's names; ``source`` is the caller's, whose names of sessions are
    used. Raises ``RunNotFound``."""
    view = views.load_run(run_id)
    rows = views.load_transcript(run_id)
    usage = view.usage
    prompt_tokens = usage.input + usage.cache_read + usage.cache_write
    result = TurnResult(
        final_response=view.output,
        last_reasoning=_find_last_reasoning(rows),
        messages=[json.loads(row.body) for row in rows],
        api_calls=view.iteration,
        completed=view.is_completed,
        turn_exit_reason=view.exit_text,
        failed=view.is_failed,
        partial=view.is_partial,
        interrupted=view.is_interrupted,
        error=redact(view.error) if view.error else None,
        failure_reason=view.failure_kind,
        model=view.model,
        input_tokens=usage.input,
        output_tokens=usage.output,
        cache_read_tokens=usage.cache_read,
        cache_write_tokens=usage.cache_write,
        reasoning_tokens=usage.reasoning,
        prompt_tokens=prompt_tokens,
        completion_tokens=usage.output,
        total_tokens=usage.total,
        estimated_tokens=usage.estimated,
        refused_attempts=usage.refused_attempts,
        unknown_attempts=usage.unknown_attempts,
        unknown_input_tokens=usage.unknown_input,
        unknown_output_tokens=usage.unknown_output,
        estimated_cost_usd=None if view.cost_usd is None else float(view.cost_usd),
        cost_status=view.cost_status.value if view.cost_status else None,
        doubtful_cost_usd=float(view.doubtful_cost_usd),
        cost_source=_COST_SOURCES[view.cost_status] if view.cost_status else None,
        session_id=view.session.choose_reference(source),
    )
    if view.pending_steer:
        result.pending_steer = view.pending_steer
    return result


def build_training_sample(views: Views, run_id: str) -> dict[str, Any]:
    """Build a line of ``trajectory_samples.jsonl``, without what looks like a credential. Raises ``RunNotFound``."""
    view = views.load_run(run_id)
    turns = build_trajectory(views.load_transcript(run_id), json.loads(views.load_tools(run_id)))
    ended_at = datetime.fromtimestamp(view.finished_at or view.updated_at, UTC)
    return {
        "conversations": [{**turn, "value": redact(turn["value"])} for turn in turns],
        "timestamp": ended_at.isoformat(),
        "model": view.model,
        "completed": view.is_completed,
    }


def _find_last_reasoning(rows: list[Message]) -> str | None:
    """Find the newest thinking of this turn, that is behind the user's last message; ``None`` for none."""
    for row in reversed(rows):
        if row.role is Role.USER:
            return None
        reasoning = json.loads(row.body).get("reasoning") if row.role is Role.ASSISTANT else None
        if reasoning:
            return str(reasoning)
    return None
