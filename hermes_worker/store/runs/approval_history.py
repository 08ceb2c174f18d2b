"""The history of approvals and questions: what people were asked, and what became of it, the newest first."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

import sqlalchemy as sa

from hermes_worker.core.run import WaitKind
from hermes_worker.core.sources import SessionLabel
from hermes_worker.safety.approvals import ApprovalChoice
from hermes_worker.store.engine.database import Database
from hermes_worker.store.engine.prepared import fetch_views
from hermes_worker.store.owners import is_of_tenant
from hermes_worker.store.rows import CALL_OF_WAIT
from hermes_worker.store.runs.runs import SESSION_LABEL
from hermes_worker.store.tables import run_inputs, runs, sessions, tool_calls, waits


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedQuestion:
    """A question that is closed. Times are epoch seconds."""

    wait_id: int
    run_id: str
    tenant: str
    session: SessionLabel
    kind: WaitKind
    iteration: int
    position: int
    tool: str
    request: dict[str, Any]
    opened_at: float
    closed_at: float
    outcome: str
    """The choice, ``answered``, ``expired``, or another reason why it was closed."""
    by: str | None
    """The principal who answered; ``None`` when the run ended before an answer came."""
    reason: str | None
    title: str | None
    """The title of its run."""
    changed_arguments: str | None
    """The call's arguments as JSON that the answer put in place of those that were asked about."""


_CLOSED = (
    sa.select(
        waits.c.pk.label("wait_id"),
        runs.c.run_id,
        runs.c.tenant,
        *SESSION_LABEL,
        waits.c.kind,
        waits.c.iteration,
        waits.c.position,
        tool_calls.c.name.label("tool"),
        waits.c.request,
        waits.c.opened_at,
        waits.c.closed_at,
        waits.c.outcome,
        waits.c.answered_by.label("by"),
        waits.c.reason,
        run_inputs.c.title,
        tool_calls.c.approved_arguments.label("changed_arguments"),
    )
    .select_from(
        waits.join(runs, runs.c.pk == waits.c.run_pk)
        .join(sessions, sessions.c.pk == runs.c.session_pk)
        .join(tool_calls, CALL_OF_WAIT)
        .outerjoin(run_inputs, run_inputs.c.run_pk == runs.c.pk)
    )
    .where(waits.c.closed_at.is_not(None), waits.c.kind.in_((WaitKind.APPROVAL.value, WaitKind.INPUT.value)))
    .order_by(waits.c.pk.desc())
)


def load_decisions(
    database: Database,
    *,
    tenant: str | None,
    kind: WaitKind | None = None,
    before: int | None = None,
    limit: int = 100,
) -> list[ClosedQuestion]:
    """List closed questions of ``tenant``, or of all tenants when it is ``None``, newest first. ``before`` is a wait's
    number: only questions asked before it are returned. Raises ``UnavailableError``."""
    wanted = _CLOSED.limit(limit)
    if tenant is not None:
        wanted = wanted.where(is_of_tenant(tenant, runs))
    if kind is not None:
        wanted = wanted.where(waits.c.kind == kind.value)
    if before is not None:
        wanted = wanted.where(waits.c.pk < before)
    found = fetch_views(database.select(wanted), ClosedQuestion, request=json.loads)
    return [each if _has_other_arguments(each) else replace(each, changed_arguments=None) for each in found]


def _has_other_arguments(each: ClosedQuestion) -> bool:
    return each.outcome == ApprovalChoice.ONCE.value and each.changed_arguments != each.request.get("arguments")
