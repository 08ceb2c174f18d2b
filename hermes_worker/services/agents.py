"""Agents that extensions and the operator's modules define: a submission names one as its model, ``agent:NAME``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, TypeVar

from hermes_worker import installed
from hermes_worker.extension import Agent
from hermes_worker.services.submission_rules import InvalidSubmission, Submission, make_fingerprint

PREFIX: Final = "agent:"
_Number = TypeVar("_Number", int, float)


def list_agent_names() -> Sequence[str]:
    """List the agents as submissions name them."""
    return [f"{PREFIX}{name}" for name in installed.get_installed().agents]


def apply_agent(submission: Submission) -> Submission:
    """Replace the name of an agent by what it stands for now; other submissions stay as they are. Raises
    ``InvalidSubmission``."""
    if submission.model is None or not submission.model.startswith(PREFIX):
        return submission
    agents = installed.get_installed().agents
    agent = agents.get(submission.model.removeprefix(PREFIX))
    if agent is None:
        there = ", ".join(list_agent_names()) or "none: see HERMES_TOOLS"
        raise InvalidSubmission("model", f"there is no agent {submission.model[:80]!r}; there are {there}")
    return _replace_agent(submission, agent)


def _replace_agent(submission: Submission, agent: Agent) -> Submission:
    budget = agent.budget
    said = [text for text in (agent.prompt, submission.instructions or "") if text.strip()]
    return replace(
        submission,
        model=agent.model,
        instructions="\n\n".join(said) or None,
        toolsets=submission.toolsets or agent.tool_names or None,
        iterations_max=_choose_lower(submission.iterations_max, budget.iterations),
        tokens_max=_choose_lower(submission.tokens_max, budget.tokens),
        tool_calls_max=_choose_lower(submission.tool_calls_max, budget.tool_calls),
        cost_usd_max=_choose_lower(submission.cost_usd_max, budget.cost_usd),
        wall_s_max=_choose_lower(submission.wall_s_max, budget.wall_s),
        # What was asked for is the agent by its name: a repetition after a change of it is the same request.
        request=submission.request or make_fingerprint(submission) or None,
    )


def _choose_lower(asked: _Number | None, limit: _Number | None) -> _Number | None:
    given = [one for one in (asked, limit) if one is not None]
    return min(given) if given else None
