"""Questions that runs of the tests ask."""

from __future__ import annotations

from hermes_worker.core.questions import Question
from hermes_worker.core.run import WaitKind

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
