"""The system prompt of a child run: no identity, no memory, no project files, but a
job.

All children of a session with the same tools share it to the byte; what is their own stands in their first message.
"""

from __future__ import annotations

import json
from collections.abc import Set

from hermes_worker.agent.prompt.sources import describe_workspace

_RULES = (
    "You are a subagent: another agent has handed you one task, which is your first message. Nobody can answer "
    "questions, so decide for yourself what is sensible and say what you assumed. Do what was asked and nothing beyond "
    "it. When you are done, answer with a report for the agent that sent you: what you did, what you found, which "
    "files you made or changed (with their paths), and what is open or went wrong. That answer is all it will see."
)
_DELEGATING = "You may split the task and hand parts of it on with delegate_task; what comes back is yours to judge."


def build_child_prompt(workspace: str, tools: Set[str]) -> str:
    """``workspace`` is the stored description of the parent's workspace, in which the child works too."""
    sections = [_RULES]
    if "delegate_task" in tools:
        sections.append(_DELEGATING)
    root = json.loads(workspace).get("root") if tools else None
    if root:
        sections.append(f"{describe_workspace(root)} The agent that sent you, and its other subagents, work there too.")
    return "\n\n".join(sections)
