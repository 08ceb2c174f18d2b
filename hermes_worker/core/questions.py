"""Questions that a call puts to people, and what the model reads when nobody or somebody answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from hermes_worker.core.client_tools import IS_CLIENTS
from hermes_worker.core.messages import canonical_json
from hermes_worker.core.run import WaitKind

APPROVED_KEY = "approved_patterns"
"""The session document with the patterns of commands that were allowed for the session."""
CHOICES_MAX = 4
ANSWER_CHARS_MAX = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What a call waits for. While it waits it is a row; no worker holds it."""

    kind: WaitKind
    request: Mapping[str, Any] = field(default_factory=dict)
    """For who answers. An approval has ``command``, ``description``, ``pattern_key`` and
    ``pattern_keys``; a question ``question``."""
    choices: Sequence[str] = ()
    expires_s: float | None = None
    """Seconds until the answer is taken as refused, or as not given; ``None`` for never."""


class RefusedBy(StrEnum):
    """Who kept a call from running."""

    RULES = "rules"
    """The rules of the installation, or where the run came from."""
    PERSON = "person"
    TIMEOUT = "timeout"
    """Nobody answered in time."""
    HOOK = "hook"
    """Code that the operator enabled (docs/hooks.md)."""


_REASON_CHARS_MAX = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """That a call did not run because it was not allowed to."""

    by: RefusedBy
    reason: str

    def fields(self) -> dict[str, str]:
        """For the event that ends the call."""
        return {"refused_by": self.by.value, "reason": self.reason[:_REASON_CHARS_MAX]}


def denied(description: str, reason: str | None) -> str:
    """The result of a call that somebody refused."""
    said = f" They said: {reason}" if reason else ""
    return canonical_json(
        {
            "status": "denied",
            "error": f"The user denied this command ({description}). It was not run. Do not try it again in any "
            f"form.{said}",
        }
    )


def denied_by_time(description: str) -> str:
    """The result of a call that nobody approved in time."""
    return canonical_json(
        {
            "status": "denied",
            "error": f"Nobody approved this command ({description}) in time. It was not run. Do not try it again; "
            "find another way, or leave it out and say so.",
        }
    )


def answered(request: Mapping[str, Any], choices: Sequence[str], answer: str) -> str:
    """The result of a question that was answered. The number of a choice stands for its text. What a client brings is
    the result as it is."""
    if request.get(IS_CLIENTS):
        return answer
    number = answer.strip()
    if number.isdecimal() and len(number) < 4 and 1 <= int(number) <= len(choices):
        answer = choices[int(number) - 1]
    document = {"question": request.get("question", ""), "choices_offered": list(choices), "user_response": answer}
    return canonical_json(document)


def unanswered(request: Mapping[str, Any], choices: Sequence[str]) -> str:
    """The result of a question that nobody answered in time."""
    return canonical_json(
        {
            "question": request.get("question", ""),
            "choices_offered": list(choices),
            "user_response": None,
            "error": "Nobody answered in time. Decide yourself with what you know, and say what you assumed.",
        }
    )
