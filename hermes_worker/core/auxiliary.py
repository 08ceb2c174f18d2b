"""Model calls beside the conversation: for what they are made, and what a tool call asks by them.

A tool call that needs a model does not ask it. It leaves a *consultation*, and goes on when that is answered, in
whichever worker: with the answers and with the *material* that it put aside for then, and with nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from hermes_worker.core.messages import canonical_json

REQUEST_CHARS_MAX = 6_000_000
"""Of one question: an image as large as it may be (``images.ENCODED_CHARS_MAX``) and the text beside it."""
QUESTIONS_MAX = 8
"""Of one consultation."""


class AuxTask(StrEnum):
    COMPRESSION = "compression"
    TITLE = "title"
    APPROVAL = "approval"
    VISION = "vision"
    WEB_EXTRACT = "web_extract"

    @property
    def timeout_s(self) -> float:
        match self:
            case AuxTask.COMPRESSION:
                return 300.0
            case AuxTask.VISION | AuxTask.WEB_EXTRACT:
                return 120.0
            case AuxTask.TITLE | AuxTask.APPROVAL:
                return 30.0

    @property
    def tries_max(self) -> int:
        """Of one provider."""
        return 1 if self is AuxTask.APPROVAL else 3  # a person is there to ask


TIMEOUT_S_MAX = max(task.timeout_s for task in AuxTask)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuxiliaryQuestion:
    """What a model is asked. The model is that of the run, or one that is meant for the task."""

    task: AuxTask
    messages: Sequence[str] = field(repr=False)
    """Rows as they are sent."""
    output_tokens_max: int | None = None
    """``None`` leaves it to the provider."""
    reasoning_effort: str | None = None
    """``None`` leaves it to the wire."""

    def to_json(self) -> str:
        """What is stored beside the task."""
        return canonical_json(
            {
                "messages": list(self.messages),
                "output_tokens_max": self.output_tokens_max,
                "reasoning_effort": self.reasoning_effort,
            }
        )

    @classmethod
    def from_json(cls, task: AuxTask, text: str) -> AuxiliaryQuestion:
        """Raises ``ValueError`` or ``KeyError`` for a text that ``to_json`` did not write."""
        stored = json.loads(text)
        return cls(
            task=task,
            messages=tuple(stored["messages"]),
            output_tokens_max=stored["output_tokens_max"],
            reasoning_effort=stored["reasoning_effort"],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Consultation:
    """What a tool call asks of models before it goes on. Until then it has had no effect."""

    questions: Sequence[AuxiliaryQuestion]
    """At least one; they are answered in their order."""
    material: Mapping[str, Any] = field(default_factory=dict)
    """What is needed to go on, as JSON can hold it: whoever goes on gets nothing of what was read or fetched before."""

    @property
    def is_too_large(self) -> bool:
        sizes = [sum(map(len, question.messages)) for question in self.questions]
        return len(sizes) > QUESTIONS_MAX or max(sizes, default=0) > REQUEST_CHARS_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class AuxiliaryAnswer:
    """What came of a question: a text, or why there is none."""

    text: str | None = None
    failure: str | None = None
    """``FailureKind`` of the last attempt, or ``budget_exhausted``; set exactly when there is no text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Consulted:
    """A consultation and its answers."""

    task: AuxTask
    """Of its first question."""
    material: Mapping[str, Any]
    answers: Sequence[AuxiliaryAnswer]
    """One for each question, in their order."""
    asked_at: float
    """Epoch seconds by the database's clock."""
