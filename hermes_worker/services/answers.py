"""Answer approvals and questions of runs, with the same checks for the API and the command line."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from hermes_worker.agent.tools.arguments import coerce, find_violations
from hermes_worker.agent.tools.schema_time_limit import UnusableSchema
from hermes_worker.core.errors import HermesError
from hermes_worker.core.messages import dump_canonical_json
from hermes_worker.core.questions import ANSWER_CHARS_MAX
from hermes_worker.core.run import WaitKind
from hermes_worker.core.run_views import WaitView
from hermes_worker.safety.approvals import ApprovalChoice, is_hardline
from hermes_worker.store.rows import Hint
from hermes_worker.store.runs.waits import NothingAsked, NotOffered, NotWaiting, Waits

__all__ = ["InvalidAnswer", "approve", "approve_all", "reply"]


class InvalidAnswer(HermesError):
    """The answer cannot be accepted; the message says why."""


def approve(
    waits: Waits,
    run_id: str,
    choice: ApprovalChoice,
    *,
    wait_id: int,
    by: str,
    reason: str | None = None,
    arguments: Mapping[str, Any] | None = None,
) -> list[Hint]:
    """Answer the open approval ``wait_id`` of a run. Returns the hints to send.

    ``by`` is the recorded name of who answers (``core.principals``). ``arguments`` replace the call's own and must fit
    the tool. Raises ``InvalidAnswer``, ``RunNotFound``, ``NotWaiting`` and ``NothingAsked``.
    """
    if reason is not None and len(reason) > ANSWER_CHARS_MAX:
        raise InvalidAnswer(f"the reason has more than {ANSWER_CHARS_MAX} characters")
    if arguments is None:
        return waits.approve(run_id, choice, by=by, reason=reason, wait_id=wait_id)
    if choice is not ApprovalChoice.ONCE:
        raise InvalidAnswer("changed arguments can only be allowed once")
    open_ones = waits.list_open(run_id=run_id, kind=WaitKind.APPROVAL)
    asked = next((view for view in open_ones if view.wait_id == wait_id), None)
    # Where it is not open, the store's error says what is wrong.
    fitting = None if asked is None else _check_arguments(arguments, asked)
    return waits.approve(run_id, choice, by=by, reason=reason, arguments=fitting, wait_id=wait_id)


def approve_all(
    waits: Waits, run_id: str, choice: ApprovalChoice, *, wait_ids: Sequence[int], by: str, reason: str | None = None
) -> tuple[int, list[Hint]]:
    """Answer those of the approvals ``wait_ids`` that are open and offer ``choice``. Returns how many those were, and
    the hints to send. What the run asked since is left open. Raises ``InvalidAnswer`` for a reason that is too long;
    when there was none to answer also ``RunNotFound``, ``NotWaiting``, ``NotOffered`` and ``NothingAsked``."""
    resolved, hints = 0, list[Hint]()
    for wait_id in dict.fromkeys(wait_ids):
        with suppress(NothingAsked, NotOffered, NotWaiting):
            hints += approve(waits, run_id, choice, wait_id=wait_id, by=by, reason=reason)
            resolved += 1
    if not resolved:
        return 1, approve(waits, run_id, choice, wait_id=wait_ids[0], by=by, reason=reason)
    return resolved, hints


def reply(waits: Waits, run_id: str, text: str, *, wait_id: int, by: str) -> list[Hint]:
    """Answer the open question ``wait_id`` of a run. Returns the hints to send. Raises ``InvalidAnswer`` for an empty
    or very long text, ``RunNotFound``, ``NotWaiting`` and ``NothingAsked``."""
    if not text.strip():
        raise InvalidAnswer("the answer is empty")
    if len(text) > ANSWER_CHARS_MAX:
        raise InvalidAnswer(f"the answer has more than {ANSWER_CHARS_MAX} characters")
    return waits.reply(run_id, text, by=by, wait_id=wait_id)


def _check_arguments(arguments: Mapping[str, Any], asked: WaitView) -> str:
    """Check changed arguments and write them as they are stored. Raises ``InvalidAnswer`` when they do not fit the tool
    of the call."""
    functions = [definition["function"] for definition in json.loads(asked.tools)]
    schema: Mapping[str, Any] = next((f["parameters"] for f in functions if f["name"] == asked.tool), {})
    try:
        wanted = coerce(arguments, schema)
        problems = find_violations(wanted, schema)
    except UnusableSchema as error:
        raise InvalidAnswer(f"the arguments cannot be checked: the schema of {asked.tool} {error}") from error
    unknown = sorted(wanted.keys() - schema.get("properties", {}).keys())
    problems = (*problems, *(f"{name!r} is not an argument" for name in unknown))
    if problems:
        raise InvalidAnswer(f"the arguments do not fit {asked.tool}: {'; '.join(problems)}")
    command = wanted.get("command")
    if isinstance(command, str) and is_hardline(command):
        raise InvalidAnswer("this command is never run here, whoever asks")
    return dump_canonical_json(wanted)
