"""``clarify``: put a question to the user (reference, loop §10.7). The call waits; the answer is its result."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from hermes_worker.core.questions import CHOICES_MAX, Question
from hermes_worker.core.replay import Replay
from hermes_worker.core.run import WaitKind
from hermes_worker.tools.base import ToolContext, ToolResult, ToolSpec
from hermes_worker.tools.results import error_result

_EXPIRES_S: Final = 3_600.0
"""How long the user may take."""
_QUESTION_CHARS_MAX: Final = 10_000
_CHOICE_CHARS_MAX: Final = 1_000


class ClarifyTool:
    """``clarify``."""

    spec: Final = ToolSpec(
        name="clarify",
        description=(
            "Ask the user a question when you cannot go on sensibly without the answer. Offer up to "
            f"{CHOICES_MAX} choices if the answer is one of a few; the user may always answer in words instead. Do not "
            "ask for permission to run commands, and do not ask what you can find out yourself."
        ),
        parameters={
            "type": "object",
            "properties": {
                "question": {"type": "string", "description": "The question."},
                "choices": {
                    "type": "array",
                    "items": {"type": "string"},
                    "description": f"Up to {CHOICES_MAX} answers to choose from.",
                },
            },
            "required": ["question"],
        },
        toolset="clarify",
        is_untrusted=False,
        replay=Replay.PURE,
        timeout_s=30.0,
    )

    def run(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        question = arguments["question"].strip()
        if not question:
            return error_result("the question is empty")
        offered = [choice.strip()[:_CHOICE_CHARS_MAX] for choice in arguments.get("choices") or ()]
        choices = tuple(choice for choice in offered if choice)[:CHOICES_MAX]
        asked = Question(
            kind=WaitKind.INPUT,
            request={"question": question[:_QUESTION_CHARS_MAX]},
            choices=choices,
            expires_s=_EXPIRES_S,
        )
        return ToolResult(text="", question=asked)
