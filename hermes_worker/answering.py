"""Answering what a run asked: the one way for the API and the command line, so that both check the same."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from hermes_worker.core.approvals import Choice, is_hardline
from hermes_worker.core.errors import HermesError
from hermes_worker.core.messages import canonical_json
from hermes_worker.core.questions import ANSWER_CHARS_MAX
from hermes_worker.core.run import WaitKind
from hermes_worker.store.rows import Hint
from hermes_worker.store.waits import Waits
from hermes_worker.tools.arguments import coerce, violations

__all__ = ["InvalidAnswer", "approve", "reply"]


class InvalidAnswer(HermesError):
    """The answer cannot be taken; the message says why."""


def approve(
    waits: Waits, run_id: str, choice: Choice, *, reason: str | None = None, arguments: Mapping[str, Any] | None = None
) -> list[Hint]:
    """Answer the oldest open approval of a run; returns what to send.

    ``arguments`` replace the call's own and must fit the tool. Raises ``InvalidAnswer``, ``RunNotFound``,
    ``NotWaiting`` and ``NothingAsked``.
    """
    if reason is not None and len(reason) > ANSWER_CHARS_MAX:
        raise InvalidAnswer(f"the reason has more than {ANSWER_CHARS_MAX} characters")
    if arguments is None:
        return waits.approve(run_id, choice, reason=reason)
    if choice is not Choice.ONCE:
        raise InvalidAnswer("changed arguments can only be allowed once")
    return waits.approve(run_id, choice, reason=reason, arguments=_checked(waits, run_id, arguments))


def reply(waits: Waits, run_id: str, text: str) -> list[Hint]:
    """Answer the oldest open question of a run. Raises as ``approve``."""
    if not text.strip():
        raise InvalidAnswer("the answer is empty")
    if len(text) > ANSWER_CHARS_MAX:
        raise InvalidAnswer(f"the answer has more than {ANSWER_CHARS_MAX} characters")
    return waits.reply(run_id, text)


def _checked(waits: Waits, run_id: str, arguments: Mapping[str, Any]) -> str:
    asked = waits.open(run_id=run_id, kind=WaitKind.APPROVAL, limit=1)
    if not asked:
        return canonical_json(dict(arguments))  # the store says what is the matter
    functions = [definition["function"] for definition in json.loads(asked[0].tools)]
    schema: Mapping[str, Any] = next((f["parameters"] for f in functions if f["name"] == asked[0].tool), {})
    wanted = coerce(arguments, schema)
    unknown = sorted(wanted.keys() - schema.get("properties", {}).keys())
    problems = [*violations(wanted, schema), *(f"{name!r} is not an argument" for name in unknown)]
    if problems:
        raise InvalidAnswer(f"the arguments do not fit {asked[0].tool}: {'; '.join(problems)}")
    command = wanted.get("command")
    if isinstance(command, str) and is_hardline(command):
        raise InvalidAnswer("this command is never run here, whoever asks")
    return canonical_json(wanted)
