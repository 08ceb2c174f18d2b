"""Approvals and questions of runs, as the API answers them, the client returns them and commands print them."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from hermes_worker.core.run import WaitKind
from hermes_worker.resource import PageOf, Resource


class AnsweredQuestion(Resource):
    """The answer was accepted: it was the first."""

    object: str
    run_id: str
    choice: str | None = None
    by: str
    """The recorded name of who answered: the key that was sent."""
    resolved: int = 1


class WaitObject(Resource):
    """Something a run waits for."""

    id: int
    code: str
    """The code by which people name it in chats: no other question has the same code."""
    run_id: str
    title: str | None = None
    """The title of its run: what was asked of it."""
    tenant: str
    session_id: str
    kind: WaitKind
    tool: str
    iteration: int
    position: int
    command: str | None = None
    directory: str | None = None
    """The directory in which the command would run."""
    description: str | None = None
    pattern_key: str | None = None
    """The first of its danger patterns."""
    pattern_keys: list[str] = Field([])
    """All its danger patterns; what is chosen counts for all of them."""
    question: str | None = None
    choices: list[str]
    created_at: float
    expires_at: float | None = None


class WaitList(Resource):
    """Open approvals and questions, oldest first."""

    object: str = "list"
    data: list[WaitObject]


class DecisionObject(Resource):
    """A question that is closed. Times are epoch seconds."""

    object: Literal["hermes.decision"] = "hermes.decision"
    id: int
    run_id: str
    title: str | None = None
    """The title of its run: what was asked of it."""
    tenant: str
    session_id: str
    kind: WaitKind
    tool: str
    call: str
    """The place of the call that asked, ``3.0``."""
    command: str | None
    description: str | None
    question: str | None
    created_at: float
    closed_at: float
    outcome: str
    """``once``, ``session``, ``always`` or ``deny``; ``answered``; ``expired``; or what else closed it."""
    by: str | None
    """Who answered; ``null`` where nothing did."""
    reason: str | None
    changed_arguments: str | None = None
    """The arguments that the call ran with, where whoever allowed it changed them."""
    permits: str | None
    """The patterns of commands that are not asked about any more, separated by ``;``: in its session after
    ``session``, in its tenant after ``always``; ``null`` where nothing follows."""


class DecisionList(PageOf[DecisionObject]):
    """Closed questions, the newest first."""
