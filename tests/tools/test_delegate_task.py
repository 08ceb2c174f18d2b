"""The tool only says what is asked for; see ``tests/store/test_store_children.py`` for what becomes of it."""

from __future__ import annotations

import json
from typing import Any, cast

from hermes_worker.agent.prompt.children import build_child_prompt
from hermes_worker.agent.tools.base import ToolContext
from hermes_worker.agent.tools.catalog import build_default_catalog
from hermes_worker.agent.tools.dispatch import run_tool
from hermes_worker.core.delegation import ChildRole, DelegationPolicy, select_child_tools


class _Quiet:
    def is_set(self) -> bool:
        return False

    def wait(self, timeout: float | None = None) -> bool:
        return False


def run(arguments: object) -> Any:
    context = ToolContext(
        run_id="r",
        session_id="s",
        idempotency_key="r.1.0",
        attempt=1,
        workspace=cast(Any, None),
        session={},
        cancelled=_Quiet(),
    )
    return run_tool(build_default_catalog().get("delegate_task"), json.dumps(arguments), context)


def test_tasks_leave_the_tool_as_values() -> None:
    result = run({"tasks": [{"goal": "a"}, {"goal": "b", "role": "orchestrator"}]})
    assert [(task.goal, task.role) for task in result.delegated] == [
        ("a", ChildRole.LEAF),
        ("b", ChildRole.ORCHESTRATOR),
    ]
    assert not result.is_error


def test_arguments_that_make_no_sense_are_answered_and_nothing_is_delegated() -> None:
    for arguments in ({}, {"tasks": "all of it"}, {"tasks": [{}]}, {"goal": "a", "role": "king"}):
        result = run(arguments)
        assert result.is_error and not result.delegated
        assert "error" in json.loads(result.text)


def test_children_of_a_session_share_their_system_prompt() -> None:
    names = select_child_tools(build_default_catalog().names, DelegationPolicy(), ChildRole.LEAF, depth=1)
    workspace = '{"kind":"local","root":"/work"}'
    assert build_child_prompt(workspace, names) == build_child_prompt(workspace, set(names))
    assert "/work" in build_child_prompt(workspace, names)
    assert "delegate_task" not in build_child_prompt(workspace, names)
