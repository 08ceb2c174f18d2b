"""A run as MCP shows it: as the JSON of ``get_run``, and as a Task. Pure.

The task's id is the run's, so every server of the installation answers for it, and none keeps anything of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from hermes_worker.core.answer_binding import format_question_code
from hermes_worker.core.client_tools import IS_CLIENTS
from hermes_worker.core.invisible_characters import show_invisible
from hermes_worker.core.run import RunStatus, WaitKind
from hermes_worker.core.run_views import RunView, WaitView
from hermes_worker.safety.approvals import CHOICE_WORDS
from hermes_worker.safety.redaction import redact

POLL_MS: Final = 2_000
_KEY_BEGINS = "wait-"


def describe_run(view: RunView, waits: Sequence[WaitView]) -> dict[str, Any]:
    """Describe a run and its open questions as JSON."""
    found: dict[str, Any] = {
        "run_id": view.run_id,
        "session_id": view.session.choose_reference("api"),
        "status": view.status.value,
        "iteration": view.iteration,
        "output": view.output,
        "error": redact(view.error) if view.error else None,
        "exit_reason": view.exit_text,
        "cost_usd": None if view.cost_usd is None else float(view.cost_usd),
        "cost_status": None if view.cost_status is None else str(view.cost_status),
    }
    asked = [_describe_question(wait) for wait in waits if _is_for_people(wait)]
    return {name: value for name, value in found.items() if value is not None} | ({"asks": asked} if asked else {})


def describe_in_words(view: RunView, waits: Sequence[WaitView]) -> str:
    """Describe a run and its open questions in sentences, for a model."""
    if view.status.is_terminal:
        return _describe_end(view)
    lines = [f"The run {view.run_id} is {view.status.value.replace('_', ' ')} (model call {view.iteration})."]
    for wait in waits:
        if _is_for_people(wait):
            by = "choice" if wait.kind is WaitKind.APPROVAL else "text"
            code = format_question_code(wait.wait_id)
            lines.append(f"It asks (wait_id {wait.wait_id}, code {code}, answer with {by!r}): {_describe_wait(wait)}")
    return "\n".join(lines)


def build_task(view: RunView, waits: Sequence[WaitView], *, takes_questions: bool) -> dict[str, Any]:
    """Build the run as a ``DetailedTask``. A client that cannot ask its person sees a run at work, and why it waits."""
    found: dict[str, Any] = {
        "taskId": view.run_id,
        "status": "working",
        "createdAt": _format_instant(view.created_at),
        "lastUpdatedAt": _format_instant(view.updated_at),
        "ttlMs": None,
        "pollIntervalMs": POLL_MS,
    }
    if view.status is RunStatus.CANCELLED:
        return found | {"status": "cancelled", "statusMessage": _describe_end(view)[:500]}
    if view.status.is_terminal:
        return found | {
            "status": "completed",
            "result": build_result(_describe_end(view), describe_run(view, ()), view.is_failed),
        }
    asked = [wait for wait in waits if _is_for_people(wait)]
    if asked and takes_questions:
        requests = {f"{_KEY_BEGINS}{wait.wait_id}": _build_elicitation(wait) for wait in asked}
        return found | {"status": "input_required", "inputRequests": requests}
    return found | {"statusMessage": describe_in_words(view, waits)[:2_000]}


def build_result(text: str, document: Mapping[str, Any] | None = None, is_error: bool = False) -> dict[str, Any]:
    """Build a ``CallToolResult``."""
    found: dict[str, Any] = {
        "resultType": "complete",
        "content": [{"type": "text", "text": text}],
        "isError": is_error,
    }
    return found if document is None else found | {"structuredContent": dict(document)}


def wait_id_of(key: str) -> int | None:
    """Read the wait's id from the key of an input request; ``None`` for a key that is not ours."""
    number = key.removeprefix(_KEY_BEGINS)
    is_ours = key.startswith(_KEY_BEGINS) and number.isascii() and number.isdigit() and len(number) < 16
    return int(number) if is_ours else None


def _is_for_people(wait: WaitView) -> bool:
    return wait.kind in (WaitKind.APPROVAL, WaitKind.INPUT) and not wait.request.get(IS_CLIENTS)


def _describe_question(wait: WaitView) -> dict[str, Any]:
    return {
        "id": wait.wait_id,
        "code": format_question_code(wait.wait_id),
        "kind": wait.kind.value,
        "tool": wait.tool,
        "question": _describe_wait(wait),
        "choices": list(wait.choices) or list(CHOICE_WORDS if wait.kind is WaitKind.APPROVAL else ()),
    }


def _describe_wait(wait: WaitView) -> str:
    if wait.kind is WaitKind.INPUT:
        return show_invisible(str(wait.request.get("question") or ""))
    why = wait.request.get("description") or "it needs an approval"
    return show_invisible(redact(f"May {wait.tool} do this ({why}): {wait.request.get('command') or ''}"))


def _build_elicitation(wait: WaitView) -> dict[str, Any]:
    if wait.kind is WaitKind.APPROVAL:
        properties = {"choice": {"type": "string", "enum": list(wait.choices) or ["once", "deny"]}}
        schema = {"type": "object", "properties": properties, "required": ["choice"]}
    else:
        answer: dict[str, Any] = {"type": "string"} | ({"enum": list(wait.choices)} if wait.choices else {})
        schema = {"type": "object", "properties": {"text": answer}, "required": ["text"]}
    return {
        "method": "elicitation/create",
        "params": {"mode": "form", "message": _describe_wait(wait), "requestedSchema": schema},
    }


def _describe_end(view: RunView) -> str:
    if view.status is RunStatus.COMPLETED and view.output:
        return view.output
    why = f": {redact(view.error)}" if view.error else f" ({view.exit_text})" if view.exit_text else ""
    return f"The run {view.run_id} ended as {view.status.value}{why}" + (f"\n{view.output}" if view.output else "")


def _format_instant(epoch_s: float) -> str:
    return datetime.fromtimestamp(epoch_s, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
