"""Calls that a server made a task of (extension Tasks, SEP-2663): one look at it, by any worker, and what follows.

A look is one request. It ends the call, parks it until the next look, or asks a person what the server asks of us. A
look that brings nothing is made again, later each time; a task that the server does not know any more has an unknown
outcome.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from hermes_worker.agent.tools.base import ToolContext, ToolResult
from hermes_worker.agent.tools.results import build_error_result
from hermes_worker.core.json_values import parse_json
from hermes_worker.core.questions import Question
from hermes_worker.core.remote_tasks import AGE_S_MAX, FAILURES_MAX, IS_TASKS, RemoteTask
from hermes_worker.core.run import WaitKind
from hermes_worker.mcp.protocol import McpError, McpRefusal, TaskView, parse_answer
from hermes_worker.mcp.requests import McpExchange, look_at_task, send_task_message
from hermes_worker.mcp.results import render_result

_QUESTION_CHARS_MAX: Final = 4_000
_CHOICES_MAX: Final = 20
_UNKNOWN_TASK: Final = -32602


def begin_task(source: str, tool: str, view: TaskView) -> ToolResult:
    """The result of a call that was answered with a task."""
    task = RemoteTask(source=source, task_id=view.task_id, tool=tool, begun_at=time.time(), wished_s=view.wished_s)
    return ToolResult(text="", task=task)


def poll_task(asking: McpExchange, task: RemoteTask, context: ToolContext) -> ToolResult:
    """Look at a task once and return the result for its call. Raises nothing of ``McpError``."""
    try:
        if task.answer is not None and task.asked is not None:
            responses = build_responses(task.asked, task.answer)
            send_task_message(asking, "tasks/update", {"taskId": task.task_id, "inputResponses": responses})
            task = replace(task, answer=None, asked=None)
        view = look_at_task(asking, task.task_id, context.cancelled)
    except McpError as error:
        return _retry_look(task, error)
    task = replace(task, looks=task.looks + 1, failures=0, wished_s=view.wished_s or task.wished_s)
    match view.status:
        case "completed":
            try:
                answer = parse_answer(view.result or {})
            except McpError as error:
                return build_error_result(f"the task has ended, and {error}")
            return render_result(answer, context)
        case "failed":
            return build_error_result(
                f"the server says that the task failed: {view.error or view.message or 'no reason'}"
            )
        case "cancelled":
            return build_error_result(f"the server says that the task was cancelled. {view.message}".strip())
        case "input_required":
            return _ask_person(asking, task, view)
        case _:
            return _require_young(task)


def cancel_task(asking: McpExchange, task: RemoteTask) -> None:
    """Tell the server that the task's result is not wanted any more. Raises ``McpError``; a server that does not know
    it is content.
    """
    if not task.task_id:
        if asking.server.keeps_sessions:
            asking.cancel_call(task.server_state)
        return  # any other one only asked something, and waits for nothing
    try:
        send_task_message(asking, "tasks/cancel", {"taskId": task.task_id})
    except McpRefusal as error:
        if error.code is None:
            raise


def _retry_look(task: RemoteTask, error: McpError) -> ToolResult:
    is_unknown_there = isinstance(error, McpRefusal) and error.code == _UNKNOWN_TASK
    if is_unknown_there or task.failures + 1 >= FAILURES_MAX:
        said = build_error_result(f"the task that the server began is lost: {error}. It may have acted all the same")
        return replace(said, is_unknown=True)
    return ToolResult(text="", task=replace(task, failures=task.failures + 1))


def _require_young(task: RemoteTask) -> ToolResult:
    if time.time() - task.begun_at > AGE_S_MAX:
        return replace(
            build_error_result("the task did not end within a week; nobody waits for it any more"), is_unknown=True
        )
    return ToolResult(text="", task=task)


def _ask_person(asking: McpExchange, task: RemoteTask, view: TaskView) -> ToolResult:
    """The result with the first question that a person can answer; questions of other kinds are declined at once."""
    requests = {str(key)[:200]: one for key, one in list(view.asked.items())[:20]}
    for key, one in requests.items():
        if (question := parse_question(task, one)) is not None:
            return ToolResult(text="", task=replace(task, asked={"key": key, "request": one}), question=question)
    if requests:
        declined = {key: {"action": "decline"} for key in requests}
        try:
            send_task_message(asking, "tasks/update", {"taskId": task.task_id, "inputResponses": declined})
        except McpError as error:
            return _retry_look(task, error)
    return _require_young(task)


def parse_question(task: RemoteTask, request: object) -> Question | None:
    """The question for a person; ``None`` for a request that is no form."""
    match request:
        case {"method": "elicitation/create", "params": {"message": str(message)} as params}:
            if params.get("mode", "form") != "form":
                return None
        case _:
            return None
    fields = _parse_fields(params.get("requestedSchema"))
    words = f"{task.tool} asks: {message[:_QUESTION_CHARS_MAX]}"
    if len(fields) > 1:
        named = ", ".join(f"{name} ({one.get('type', 'string')})" for name, one in list(fields.items())[:50])
        words += f"\nAnswer with a JSON object of: {named[:_QUESTION_CHARS_MAX]}"
    choices: tuple[str, ...] = ()
    if len(fields) == 1:
        [only] = fields.values()
        enum = only.get("enum")
        if isinstance(enum, list) and all(isinstance(one, str) for one in enum):
            choices = tuple(one[:200] for one in enum[:_CHOICES_MAX])
        elif only.get("type") == "boolean":
            choices = ("yes", "no")
    request_said = {"question": words, IS_TASKS: True}
    return Question(kind=WaitKind.INPUT, request=request_said, choices=choices)


def _parse_fields(schema: object) -> dict[str, Mapping[str, Any]]:
    properties = schema.get("properties") if isinstance(schema, dict) else None
    if not isinstance(properties, dict):
        return {}
    return {str(name): one for name, one in properties.items() if isinstance(one, dict)}


def build_responses(asked: Mapping[str, Any], answer: str) -> Mapping[str, Any]:
    """Build a person's answer in the shape of the form that was ``asked`` for."""
    params = asked["request"].get("params") or {}
    content = _fill_form(_parse_fields(params.get("requestedSchema")), answer)
    response = {"action": "decline"} if content is None else {"action": "accept", "content": content}
    return {asked["key"]: response}


def _fill_form(fields: Mapping[str, Mapping[str, Any]], answer: str) -> Mapping[str, Any] | None:
    """The values of the fields; ``None`` when the answer fits nothing, so that the server is told nothing that was not
    said.
    """
    if not fields:
        return {}
    if len(fields) == 1:
        [(name, schema)] = fields.items()
        value = _parse_value(schema, answer)
        return None if value is None else {name: value}
    given = parse_json(answer)
    return {name: given[name] for name in fields if name in given} if isinstance(given, dict) else None


def _parse_value(schema: Mapping[str, Any], answer: str) -> Any:
    text = answer.strip()
    enum = schema.get("enum")
    if isinstance(enum, list) and text.isdecimal() and len(text) < 4 and 1 <= int(text) <= len(enum):
        return enum[int(text) - 1]
    match schema.get("type"):
        case "boolean":
            return {"yes": True, "true": True, "1": True, "no": False, "false": False, "2": False}.get(text.lower())
        case "integer" | "number":
            try:
                return int(text) if schema["type"] == "integer" else float(text)
            except ValueError:
                return None
        case _:
            return answer
