"""Questions that a call puts to people, and the results that the model reads when they are answered or not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from hermes_worker.core.client_tools import IS_CLIENTS
from hermes_worker.core.messages import dump_canonical_json
from hermes_worker.core.run import WaitKind

APPROVED_KEY = "approved_patterns"
"""The key of the session document with the command patterns that were allowed for the session."""
CHOICES_MAX = 4
ANSWER_CHARS_MAX = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A question to people, for which a call waits. While it waits the call is a row, and no worker holds it."""

    kind: WaitKind
    request: Mapping[str, Any] = field(default_factory=dict)
    """The text for the person who answers. An approval has ``command``, ``description``, ``pattern_key`` and
    ``pattern_keys``; a question has ``question``."""
    choices: Sequence[str] = ()
    expires_s: float | None = None
    """Seconds until the question counts as refused, or as not answered; ``None`` for never."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedCall:
    """What is said about calls of a tool that a person must allow one by one."""

    remark: str
    """What a call does, for the person who is asked."""
    refusal: str
    """The reason that the model gets where nobody can be asked."""


class RefusedBy(StrEnum):
    """The cause of a refusal."""

    RULES = "rules"
    """The rules of the installation, or the source of the run."""
    PERSON = "person"
    TIMEOUT = "timeout"
    """The time for an answer was over."""
    HOOK = "hook"
    """Code that the operator enabled (docs/hooks.md)."""


_REASON_CHARS_MAX = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why a call was not allowed to run."""

    by: RefusedBy
    reason: str

    def build_event_fields(self) -> dict[str, str]:
        """Build the fields for the event that ends the call."""
        return {"refused_by": self.by.value, "reason": self.reason[:_REASON_CHARS_MAX]}


def build_denied_result(description: str, reason: str | None) -> str:
    """The result of a call that a person refused."""
    said = f" They said: {reason}" if reason else ""
    return dump_canonical_json(
        {
            "status": "denied",
            "error": f"The user denied this command ({description}). It was not run. Do not try it again in any "
            f"form.{said}",
        }
    )


def build_timeout_result(description: str) -> str:
    """The result of a call that was not approved in time."""
    return dump_canonical_json(
        {
            "status": "denied",
            "error": f"Nobody approved this command ({description}) in time. It was not run. Do not try it again; "
            "find another way, or leave it out and say so.",
        }
    )


def build_answer_result(request: Mapping[str, Any], choices: Sequence[str], answer: str) -> str:
    """The result of a question that was answered. The number of a choice stands for its text. What a client brings is
    the result unchanged."""
    if request.get(IS_CLIENTS):
        return answer
    number = answer.strip()
    if number.isdecimal() and len(number) < 4 and 1 <= int(number) <= len(choices):
        answer = choices[int(number) - 1]
    document = {"question": request.get("question", ""), "choices_offered": list(choices), "user_response": answer}
    return dump_canonical_json(document)


def build_unanswered_result(request: Mapping[str, Any], choices: Sequence[str]) -> str:
    """The result of a question that was not answered in time."""
    return dump_canonical_json(
        {
            "question": request.get("question", ""),
            "choices_offered": list(choices),
            "user_response": None,
            "error": "Nobody answered in time. Decide yourself with what you know, and say what you assumed.",
        }
    )
