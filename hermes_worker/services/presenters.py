"""Build the resources of calls and questions from their rows. Secrets are hidden in texts that agents or tools
wrote."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hermes_worker.core.answer_binding import format_question_code
from hermes_worker.core.call_descriptions import ABOUT_CHARS_MAX
from hermes_worker.core.consent import read_pattern_keys
from hermes_worker.core.invisible_characters import show_invisible
from hermes_worker.core.run import CallStatus
from hermes_worker.core.run_views import WaitView
from hermes_worker.safety.approvals import ApprovalChoice
from hermes_worker.safety.redaction import redact, redact_code
from hermes_worker.schemas.approvals import DecisionObject, WaitObject
from hermes_worker.schemas.runs import CallDetailObject, LedgerEntryObject
from hermes_worker.store.runs.approval_history import ClosedQuestion
from hermes_worker.store.runs.call_ledger import RecordedRequest


def build_entry_object(found: RecordedRequest) -> LedgerEntryObject:
    entry = found.row
    return LedgerEntryObject(
        call=_format_place(entry.iteration, entry.position),
        iteration=entry.iteration,
        position=entry.position,
        tool=entry.name,
        effect=entry.replay,  # type: ignore[arg-type]
        status=CallStatus(entry.status),
        waits_for=entry.waits_for,
        attempts=entry.attempt,
        takeovers=max(0, entry.attempt - 1),
        deaths=entry.deaths or 0,
        claimed_at=entry.claimed_at,
        settled_at=entry.settled_at,
        worker=entry.worker,
        denied=bool(entry.is_denied),
        about=redact_code(found.about)[:ABOUT_CHARS_MAX],
    )


def build_call_detail(found: RecordedRequest) -> CallDetailObject:
    changed, result = found.changed_arguments, found.result
    return CallDetailObject(
        **dict(build_entry_object(found)),
        tool_call_id=str(found.request.get("id", "")),
        arguments=redact(str(found.request.get("function", {}).get("arguments", ""))),
        changed_arguments=None if changed is None else redact(changed),
        result=None if result is None else redact(result),
    )


def build_wait_object(view: WaitView, source: str) -> WaitObject:
    """Build an open question, with its session as a caller from ``source`` names it."""
    return WaitObject.from_record(
        view,
        id=view.wait_id,
        code=format_question_code(view.wait_id),
        session_id=view.session.choose_reference(source),
        created_at=view.opened_at,
        command=_read_command(view.request),
        directory=_read_text(view.request, "directory"),
        description=_read_text(view.request, "description"),
        pattern_key=view.request.get("pattern_key"),
        pattern_keys=list(read_pattern_keys(view.request)),
        question=_read_text(view.request, "question"),
        choices=[show_invisible(choice) for choice in view.choices],
    )


def build_decision_object(each: ClosedQuestion, source: str) -> DecisionObject:
    """Build a closed question, with its session as a caller from ``source`` names it."""
    lasts = each.outcome in (ApprovalChoice.SESSION.value, ApprovalChoice.ALWAYS.value)
    return DecisionObject.from_record(
        each,
        id=each.wait_id,
        session_id=each.session.choose_reference(source),
        call=_format_place(each.iteration, each.position),
        command=_read_command(each.request),
        description=_read_text(each.request, "description"),
        question=_read_text(each.request, "question"),
        created_at=each.opened_at,
        changed_arguments=show_invisible(redact(each.changed_arguments)) if each.changed_arguments else None,
        permits="; ".join(read_pattern_keys(each.request)) or None if lasts else None,
    )


def _format_place(iteration: int, position: int) -> str:
    return f"{iteration}.{position}"


def _read_command(request: Mapping[str, Any]) -> str | None:
    command = request.get("command")
    return show_invisible(redact(command)) if isinstance(command, str) else None


def _read_text(request: Mapping[str, Any], name: str) -> str | None:
    text = request.get(name)
    return show_invisible(text) if isinstance(text, str) else None
