"""Auxiliary calls: model calls beside the conversation, their purposes, and what a tool call asks in them.

A tool call that needs a model does not ask it. It leaves a *consultation*, and goes on when that is answered, on any
worker: with the answers and with the *material* that it stored for then, and with nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from hermes_worker.core.messages import dump_canonical_json

REQUEST_CHARS_MAX = 6_000_000
"""The most characters of one question: an image of the largest size (``images.ENCODED_CHARS_MAX``) and the text beside
it."""
QUESTIONS_MAX = 8
"""The most questions of one consultation."""


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
        """The most tries of one provider."""
        return 1 if self is AuxTask.APPROVAL else 3  # a person is there to ask


TIMEOUT_S_MAX = max(task.timeout_s for task in AuxTask)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuxiliaryQuestion:
    """A question to a model. It goes to the run's model, or to the one configured for the task."""

    task: AuxTask
    messages: Sequence[str] = field(repr=False)
    """Messages as they are sent, as canonical JSON."""
    output_tokens_max: int | None = None
    """``None`` leaves the limit to the provider."""
    reasoning_effort: str | None = None
    """``None`` leaves it to the wire."""

    def to_json(self) -> str:
        """Dump everything except the task, which is stored in its own column."""
        return dump_canonical_json(
            {
                "messages": list(self.messages),
                "output_tokens_max": self.output_tokens_max,
                "reasoning_effort": self.reasoning_effort,
            }
        )

    @classmethod
    def from_json(cls, task: AuxTask, text: str) -> AuxiliaryQuestion:
        """Parse a stored question. Raises ``ValueError`` or ``KeyError`` for a text that ``to_json`` did not write."""
        stored = json.loads(text)
        return cls(
            task=task,
            messages=tuple(stored["messages"]),
            output_tokens_max=stored["output_tokens_max"],
            reasoning_effort=stored["reasoning_effort"],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Consultation:
    """The questions of a tool call to models. The call has had no effect so far."""

    questions: Sequence[AuxiliaryQuestion]
    """At least one; they are answered in order."""
    material: Mapping[str, Any] = field(default_factory=dict)
    """What is needed to go on, as JSON values: the worker that goes on gets nothing else of what was read or fetched
    before."""

    @property
    def is_too_large(self) -> bool:
        sizes = [sum(map(len, question.messages)) for question in self.questions]
        return len(sizes) > QUESTIONS_MAX or max(sizes, default=0) > REQUEST_CHARS_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class AuxiliaryAnswer:
    """The outcome of a question: a text, or why there is none."""

    text: str | None = None
    failure: str | None = None
    """``FailureKind`` of the last attempt, or ``budget_exhausted``; set exactly when there is no text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnsweredConsultation:
    """A consultation with its answers."""

    task: AuxTask
    """The task of its first question."""
    material: Mapping[str, Any]
    answers: Sequence[AuxiliaryAnswer]
    """One for each question, in their order."""
    asked_at: float
    """Epoch seconds by the database's clock."""
