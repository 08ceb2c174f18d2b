"""Questions that runs of the tests ask."""

from __future__ import annotations

from hermes_worker.core.questions import Question
from hermes_worker.core.run import WaitKind
from hermes_worker.store.engine.database import Database
from hermes_worker.store.runs.waits import Waits

DANGER = Question(
    kind=WaitKind.APPROVAL,
    request={
        "command": "rm -r build",
        "description": "recursive delete",
        "pattern_key": "recursive delete",
        "arguments": '{"command":"rm -r build"}',
    },
    choices=["once", "session", "always", "deny"],
    expires_s=60,
)
QUESTION = Question(kind=WaitKind.INPUT, request={"question": "Which?"}, choices=["red", "blue"], expires_s=3_600)


def open_wait(database: Database, run_id: str) -> int:
    """The number of the oldest question of a run that is open."""
    return Waits(database).list_open(run_id=run_id)[0].wait_id
