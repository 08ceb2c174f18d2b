"""Calls that a server answers with questions before it does anything (multi round-trip requests, SEP-2322).

A person is asked one question after the other, with the call parked. When all are answered, the call is sent once more
with the responses, on whatever worker claims it then. That is a call like the first one: of a ``once`` tool it is sent
once, and its outcome is unknown when its worker vanishes.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hermes_worker.agent.tools.base import ToolResult
from hermes_worker.agent.tools.results import build_error_result
from hermes_worker.core.remote_tasks import ROUNDS_MAX, RemoteTask
from hermes_worker.mcp.protocol import InputWanted
from hermes_worker.mcp.tasks import build_responses, parse_question


def begin_questions(source: str, tool: str, wanted: InputWanted, before: RemoteTask | None) -> ToolResult:
    """The result of a call that was answered with questions; ``before`` is the state of the round before, if any."""
    rounds = 1 if before is None else before.looks + 1
    if rounds > ROUNDS_MAX:
        said = build_error_result(f"the server asked questions {ROUNDS_MAX} times and did not answer the call")
        return replace(said, is_unknown=True)
    return _ask_next(
        RemoteTask(
            source=source,
            task_id="",
            tool=tool,
            begun_at=time.time() if before is None else before.begun_at,
            looks=rounds,
            unasked=wanted.asked,
            responses={},
            server_state=wanted.server_state,
        )
    )


def begin_next_round(task: RemoteTask) -> ToolResult:
    """The result after a person's answer, or before any question was asked: the next question, or none any more."""
    if task.answer is not None and task.asked is not None:
        responses = {**(task.responses or {}), **build_responses(task.asked, task.answer)}
        task = replace(task, asked=None, answer=None, responses=responses)
    return _ask_next(task)


def build_repeat_params(task: RemoteTask) -> Mapping[str, Any]:
    """The parameters beside the arguments when the call is sent again."""
    state = {} if task.server_state is None else {"requestState": task.server_state}
    return {**({"inputResponses": task.responses} if task.responses else {}), **state}


def _ask_next(task: RemoteTask) -> ToolResult:
    """Ask the first question that a person can answer; any other than a form is declined."""
    unasked, responses = dict(task.unasked or {}), dict(task.responses or {})
    while unasked:
        key = next(iter(unasked))
        request = unasked.pop(key)
        task = replace(task, unasked=unasked, responses=responses)
        if (question := parse_question(task, request)) is not None:
            return ToolResult(text="", task=replace(task, asked={"key": key, "request": request}), question=question)
        responses[key] = {"action": "decline"}
    return ToolResult(text="", task=replace(task, unasked={}, responses=responses))
