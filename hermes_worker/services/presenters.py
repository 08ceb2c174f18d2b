"""What people are shown of calls and questions: the same over HTTP and in the terminal. The names are those of
the API; in texts that agents or tools wrote secrets are hidden."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hermes_worker.core.answer_binding import format_question_code
from hermes_worker.core.consent import read_pattern_keys
from hermes_worker.core.invisible_characters import show_invisible
from hermes_worker.core.run import CallStatus, WaitKind
from hermes_worker.safety.approvals import ApprovalChoice
from hermes_worker.safety.redaction import redact
from hermes_worker.store.runs.approval_history import ClosedQuestion
from hermes_worker.store.runs.call_ledger import CallEntry, CallInFull
from hermes_worker.store.runs.waits import WaitView


@dataclass(frozen=True, slots=True, kw_only=True)
class CallLine:
    """A tool call, as in ``GET /v1/runs/{run_id}/calls``."""

    call: str
    tool: str
    effect: str
    status: CallStatus
    waits_for: str | None
    attempts: int
    takeovers: int
    deaths: int
    claimed_at: float | None
    settled_at: float | None
    worker: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CallTexts:
    """The texts of a call: its arguments and its result."""

    tool_call_id: str
    arguments: str
    changed_arguments: str | None
    result: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenLine:
    """A wait for a person, as in ``GET /v1/approvals``."""

    id: int
    code: str
    run_id: str
    tenant: str
    kind: WaitKind
    tool: str
    created_at: float
    expires_at: float | None = None
    command: str | None = None
    description: str | None = None
    pattern_keys: Sequence[str] = ()
    """The danger patterns of the command; what is chosen counts for all of them."""
    question: str | None = None
    choices: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedLine:
    """A closed question, as in ``GET /v1/approvals/history``."""

    id: int
    run_id: str
    tenant: str
    kind: WaitKind
    tool: str
    call: str
    command: str | None
    description: str | None
    question: str | None
    created_at: float
    closed_at: float
    outcome: str
    by: str | None
    reason: str | None
    permits: str | None


def build_call_line(entry: CallEntry) -> CallLine:
    return CallLine(
        call=_place(entry.iteration, entry.position),
        tool=entry.name,
        effect=entry.replay,
        status=entry.status,
        waits_for=entry.waits_for,
        attempts=entry.attempts,
        takeovers=max(0, entry.attempts - 1),
        deaths=entry.deaths,
        claimed_at=entry.claimed_at,
        settled_at=entry.settled_at,
        worker=entry.worker,
    )


def build_call_texts(found: CallInFull) -> CallTexts:
    changed, result = found.changed_arguments, found.result
    return CallTexts(
        tool_call_id=found.tool_call_id,
        arguments=redact(found.arguments),
        changed_arguments=None if changed is None else redact(changed),
        result=None if result is None else redact(result),
    )


def build_open_line(view: WaitView) -> OpenLine:
    return OpenLine(
        id=view.wait_id,
        code=format_question_code(view.wait_id),
        run_id=view.run_id,
        tenant=view.tenant,
        kind=view.kind,
        tool=view.tool,
        created_at=view.opened_at,
        expires_at=view.expires_at,
        command=_command(view.request),
        description=_text(view.request, "description"),
        pattern_keys=list(read_pattern_keys(view.request)),
        question=_text(view.request, "question"),
        choices=[show_invisible(choice) for choice in view.choices],
    )


def build_closed_line(each: ClosedQuestion) -> ClosedLine:
    lasts = each.outcome in (ApprovalChoice.SESSION.value, ApprovalChoice.ALWAYS.value)
    return ClosedLine(
        id=each.wait_id,
        run_id=each.run_id,
        tenant=each.tenant,
        kind=each.kind,
        tool=each.tool,
        call=_place(each.iteration, each.position),
        command=_command(each.request),
        description=_text(each.request, "description"),
        question=_text(each.request, "question"),
        created_at=each.opened_at,
        closed_at=each.closed_at,
        outcome=each.outcome,
        by=each.by,
        reason=each.reason,
        permits="; ".join(read_pattern_keys(each.request)) or None if lasts else None,
    )


def _place(iteration: int, position: int) -> str:
    return f"{iteration}.{position}"


def _command(request: Mapping[str, Any]) -> str | None:
    command = request.get("command")
    return show_invisible(redact(command)) if isinstance(command, str) else None


def _text(request: Mapping[str, Any], name: str) -> str | None:
    text = request.get(name)
    return show_invisible(text) if isinstance(text, str) else None
