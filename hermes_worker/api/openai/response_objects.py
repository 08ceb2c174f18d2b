"""A run as an object of OpenAI's Responses API. Pure.

Items stand in the order in which they were said. A call of one of the agent's tools is an ``mcp_call``: a client shows
it and does nothing; it would have to execute a ``function_call``. Ids are made from the run's id and from places in the
output, so every replica gives the same ones.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hermes_worker.api.openai.outcome import RunOutcome, build_handover_outcome, build_outcome
from hermes_worker.core.client_tools import ClientCall, ClientCallId, ClientTool, HandedCall
from hermes_worker.core.messages import Role, Usage
from hermes_worker.core.run import RunStatus
from hermes_worker.core.run_views import RunView
from hermes_worker.safety.redaction import redact
from hermes_worker.services.client_tools import find_client_tools
from hermes_worker.services.submission import DEFAULT_MODEL_ALIAS
from hermes_worker.store.runs.responses import TurnRecord

SHOWN_CHARS_MAX = 1_000
"""Most characters shown of a tool's arguments and output; ``GET /v1/runs/{run_id}/result`` has all of them."""
_WORKING = {RunStatus.QUEUED: "queued", RunStatus.STOPPING: "cancelled"}
_REASONS = {"length": "max_output_tokens", "content_filter": "content_filter"}


def make_response_id(run_id: str, part: int = 0) -> str:
    """Make the id of a part of a run (``core.client_tools``)."""
    return f"resp_{run_id.removeprefix('run_')}{f'p{part}' if part else ''}"


def build_response(turn: TurnRecord, part: int = 0, *, is_handed_over: bool = False) -> dict[str, Any]:
    """Build the whole object of a part, as far as the run has come. ``is_handed_over``: the reader has seen the part
    end with calls for the client, whatever happened since."""
    view, echo = turn.view, turn.spec.echo
    outcome = _build_part_outcome(turn, part, is_handed_over=is_handed_over)
    return {
        "id": make_response_id(view.run_id, part),
        "object": "response",
        "created_at": int(view.created_at),
        "completed_at": int(view.finished_at) if view.finished_at and not _is_calls(outcome) else None,
        "status": name_status(view, outcome),
        "background": bool(echo.get("background")),
        "error": _describe_error(view, outcome),
        "incomplete_details": _explain_incomplete(outcome),
        "instructions": turn.spec.instructions,
        "max_output_tokens": None,
        "model": echo.get("model") or DEFAULT_MODEL_ALIAS,
        "output": _list_shown_items(turn, part, outcome),
        "parallel_tool_calls": True,
        "previous_response_id": make_response_id(view.run_id, part - 1) if part else echo.get("previous_response_id"),
        "conversation": _name_conversation(view, echo),
        "reasoning": {"effort": None, "summary": None},
        "store": bool(echo.get("store", True)),
        "temperature": None,
        "text": {"format": _format(turn.spec.output_schema)},
        "tool_choice": _describe_tool_choice(turn.spec.forced_tools) if not part else "auto",
        "tools": [_describe_tool(tool) for tool in find_client_tools(turn.tools)],
        "top_p": None,
        "truncation": "disabled",
        "usage": build_usage(view.usage) if outcome and not _is_calls(outcome) else None,
        "user": None,
        "metadata": dict(turn.spec.metadata),
    }


def _list_shown_items(turn: TurnRecord, part: int, outcome: RunOutcome | None) -> list[dict[str, Any]]:
    """List the output. A failed part has none that could be taken for an answer: clients would parse it."""
    items = list_output_items(turn, part)
    if outcome is None or name_status(turn.view, outcome) != "failed":
        return items
    return [item for item in items if item["type"] != "message"]


def _describe_tool_choice(forced: Sequence[str]) -> str | dict[str, str]:
    if len(forced) == 1:
        return {"type": "function", "name": forced[0]}
    return "required" if forced else "auto"


def _describe_tool(tool: ClientTool) -> dict[str, Any]:
    """Describe a client's tool. Its arguments are judged by the schema, and are not made to fit it."""
    named = {"type": "function", "name": tool.name, "description": tool.description or None}
    return {**named, "parameters": dict(tool.parameters), "strict": False}


def _build_part_outcome(turn: TurnRecord, part: int, *, is_handed_over: bool) -> RunOutcome | None:
    """Build the outcome of a part; ``None`` while it is at work."""
    is_waiting = turn.handovers.is_waiting and turn.view.status is RunStatus.WAITING_FOR_INPUT
    if is_handed_over or part < turn.handovers.newest or is_waiting:
        return build_handover_outcome("")
    return build_outcome(turn.view) if turn.view.status.is_terminal else None


def _is_calls(outcome: RunOutcome | None) -> bool:
    return outcome is not None and outcome.finish_reason == "tool_calls"


def _format(schema: Mapping[str, Any] | None) -> dict[str, Any]:
    if schema is None:
        return {"type": "text"}
    return {"type": "json_schema", "name": "answer", "schema": dict(schema), "strict": True}


def name_status(view: RunView, outcome: RunOutcome | None) -> str:
    """Name the status of a part in OpenAI's words."""
    if outcome is None:
        return _WORKING.get(view.status, "in_progress")
    if outcome.is_whole:
        return "completed"
    if view.status is RunStatus.CANCELLED:
        return "cancelled"
    return "incomplete" if outcome.finish_reason in _REASONS and outcome.text else "failed"


def _describe_error(view: RunView, outcome: RunOutcome | None) -> dict[str, str] | None:
    if outcome is None or name_status(view, outcome) != "failed":
        return None
    return {
        "code": "server_error",
        "type": "server_error",
        "message": outcome.error or "The run ended without an answer.",
    }


def _explain_incomplete(outcome: RunOutcome | None) -> dict[str, str] | None:
    if outcome is None or outcome.finish_reason not in _REASONS or not outcome.text:
        return None
    return {"reason": _REASONS[outcome.finish_reason]}


def _name_conversation(view: RunView, echo: Mapping[str, Any]) -> dict[str, str] | None:
    if not echo.get("conversation"):
        return None
    return {"id": view.session.name or f"conv_{view.session.id.removeprefix('run_')}"}


def build_usage(usage: Usage) -> dict[str, Any]:
    """Count tokens as responses do."""
    read = usage.input + usage.cache_read + usage.cache_write
    return {
        "input_tokens": read,
        "input_tokens_details": {"cached_tokens": usage.cache_read},
        "output_tokens": usage.output,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning},
        "total_tokens": read + usage.output,
    }


# --- items -----------------------------------------------------------------------------------------------------------


def list_output_items(turn: TurnRecord, part: int) -> list[dict[str, Any]]:
    """List what the agent said and did in a part, in order, and what it left to its client."""
    of = PartName(run_id=turn.view.run_id, part=part)
    results = {row.seq: json.loads(row.body) for row in turn.said if row.role is Role.TOOL}
    items: list[dict[str, Any]] = []
    for row in turn.said:
        if row.role is not Role.ASSISTANT or turn.handovers.find_part(row.seq) != part:
            continue
        body = json.loads(row.body)
        if text := read_body_text(body):
            items.append(build_message_item(of, len(items), text))
        for place, call in enumerate(body.get("tool_calls") or (), start=row.seq + 1):
            of_client = turn.handovers.find_call(place)
            if of_client is None:
                items.append(build_call_item(of, len(items), call, results.get(place)))
            else:
                items.append(
                    build_function_item(of, len(items), _build_handed_call(of_client, call), of_client.iteration)
                )
    return items


def _build_handed_call(of_client: ClientCall, call: Mapping[str, Any]) -> HandedCall:
    function = call.get("function") or {}
    arguments = str(function.get("arguments") or "")
    return HandedCall(position=of_client.position, name=of_client.tool, arguments=arguments)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartName:
    """A part of a run. Its items get their ids from it."""

    run_id: str
    part: int

    def build_item_id(self, kind: str, index: int) -> str:
        """Make the id of the item at a place of the output."""
        return f"{kind}_{self.run_id.removeprefix('run_')}{f'{self.part:06x}' if self.part else ''}{index:06x}"


def read_body_text(body: Mapping[str, Any]) -> str:
    content = body.get("content")
    return content if isinstance(content, str) else ""


def build_message_item(of: PartName, index: int, text: str | None) -> dict[str, Any]:
    """Build the message at a place of the output; ``text`` is ``None`` for a message that is being written."""
    part: dict[str, Any] = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    return {
        "id": of.build_item_id("msg", index),
        "type": "message",
        "status": "in_progress" if text is None else "completed",
        "role": "assistant",
        "content": [] if text is None else [part],
    }


def build_function_item(
    of: PartName, index: int, call: HandedCall, iteration: int, *, is_told: bool = True
) -> dict[str, Any]:
    """Build the item for a call that the client does, at a place of the output. Without ``is_told`` its arguments are
    still to come."""
    return {
        "id": of.build_item_id("fc", index),
        "type": "function_call",
        "status": "completed" if is_told else "in_progress",
        "call_id": str(ClientCallId(run_id=of.run_id, iteration=iteration, position=call.position)),
        "name": call.name,
        "arguments": call.arguments if is_told else "",
    }


def build_call_item(
    of: PartName, index: int, call: Mapping[str, Any], result: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Build the item for a call of the agent's tool, at a place of the output. ``result`` is ``None`` for a call that
    has not ended."""
    function = call.get("function") or {}
    return {
        "id": of.build_item_id("mcp", index),
        "type": "mcp_call",
        "status": "calling" if result is None else "completed",
        "server_label": "hermes",
        "name": str(function.get("name") or ""),
        "arguments": _redact_and_cut(str(function.get("arguments") or "")),
        "output": None if result is None else _redact_and_cut(str(result.get("content") or "")),
        "error": None,
        "approval_request_id": None,
    }


def _redact_and_cut(text: str) -> str:
    return redact(text if len(text) <= SHOWN_CHARS_MAX else f"{text[:SHOWN_CHARS_MAX]}...")


def build_input_items(turn: TurnRecord, part: int) -> list[dict[str, Any]]:
    """List the items that the request brought."""
    if (before := turn.handovers.find_reply_before(part)) is not None:
        return _build_brought_items(turn, before.iteration)
    said = [*turn.spec.history, {"role": "user", "content": turn.spec.input}]
    return [_build_input_item(turn.view.run_id, number, row) for number, row in enumerate(said)]


def _build_brought_items(turn: TurnRecord, iteration: int) -> list[dict[str, Any]]:
    results = {row.seq: json.loads(row.body) for row in turn.said if row.role is Role.TOOL}
    run_id = turn.view.run_id
    return [
        {
            "id": f"fco_{run_id.removeprefix('run_')}{call.seq:06x}",
            "type": "function_call_output",
            "status": "completed",
            "call_id": str(ClientCallId(run_id=run_id, iteration=iteration, position=call.position)),
            "output": str(results.get(call.seq, {}).get("content") or ""),
        }
        for call in turn.handovers.calls
        if call.iteration == iteration
    ]


def _build_input_item(run_id: str, number: int, row: Mapping[str, Any]) -> dict[str, Any]:
    content = row.get("content")
    kind = "output_text" if row.get("role") == "assistant" else "input_text"
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else list(content or ())
    return {
        "id": f"msg_{run_id.removeprefix('run_')}i{number:05x}",
        "type": "message",
        "status": "completed",
        "role": "user" if row.get("role") == "tool" else row.get("role"),
        "content": [build_input_part(kind, part) for part in parts],
    }


def build_input_part(kind: str, part: Mapping[str, Any]) -> dict[str, Any]:
    """Write a part of a stored message in OpenAI's form; ``kind`` is the type of its texts."""
    if part.get("type") == "image_url":
        image = part["image_url"]
        return {"type": "input_image", "image_url": image["url"], "detail": image.get("detail", "auto")}
    text = {"type": kind, "text": part.get("text", "")}
    return {**text, "annotations": []} if kind == "output_text" else text
