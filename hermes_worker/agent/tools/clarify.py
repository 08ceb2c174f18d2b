"""``clarify``: put a question to the user. The call waits; the answer is its
result."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from hermes_worker.agent.tools.base import ToolContext, ToolResult
from hermes_worker.agent.tools.builtin import CLARIFY
from hermes_worker.agent.tools.results import build_error_result
from hermes_worker.core.questions import CHOICES_MAX, Question
from hermes_worker.core.run import WaitKind

_EXPIRES_S: Final = 3_600.0
"""How many seconds the user may take."""
_QUESTION_CHARS_MAX: Final = 10_000
_CHOICE_CHARS_MAX: Final = 1_000


class ClarifyTool:
    """``clarify``."""

    spec: Final = CLARIFY

    def run(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        question = arguments["question"].strip()
        if not question:
            return build_error_result("the question is empty")
        offered = [choice.strip()[:_CHOICE_CHARS_MAX] for choice in arguments.get("choices") or ()]
        choices = tuple(choice for choice in offered if choice)[:CHOICES_MAX]
        asked = Question(
            kind=WaitKind.INPUT,
            request={"question": question[:_QUESTION_CHARS_MAX]},
            choices=choices,
            expires_s=_EXPIRES_S,
        )
        return ToolResult(text="", question=asked)
