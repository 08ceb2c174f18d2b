"""Forks: runs that go on from an earlier point of another run. The terms of one are a document of its session."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Final

from hermes_worker.core.messages import dump_canonical_json

FORK_KEY: Final = "fork"
"""The key of the session document that holds ``ForkTerms``."""

GRADES_KEY: Final = "grades"
"""The key of the session document that holds what graders found of the answer of a replayed run, by their names."""
FORK_TAG: Final = "fork"
"""The tag of an evaluation that is part of no replay: somebody made it to look at it."""
REPLAY_TAG: Final = "replay:"
"""The beginning of the tag that the runs of one replay bear; its name follows."""
REPLAY_FORM: Final = "^[A-Za-z0-9][A-Za-z0-9_.-]{0,55}$"
"""The names of replays, as a regular expression: with ``REPLAY_TAG`` they are tags."""


class ForkTools(StrEnum):
    """What answers the tool calls of a fork."""

    RECORDED = "recorded"
    """The rows of the original. Of what it did not do, only what has no effect is done."""
    LIVE = "live"
    """The tools, with permissions of its own."""
    DENY = "deny"
    """The tools that have no effect; all others are refused."""
    OFFLINE = "offline"
    """The rows of the original, and nothing else. For replays."""

    @property
    def is_evaluation(self) -> bool:
        return self is not ForkTools.LIVE

    @property
    def is_replay(self) -> bool:
        """Whether tool calls are answered from the rows of the original run. The fork's model is then not told what the
        original did later, so that its requests equal the original's."""
        return self in (ForkTools.RECORDED, ForkTools.OFFLINE)


class ForkMatch(StrEnum):
    """Which recorded call answers a call."""

    STRICT = "strict"
    """The one at the same position, if it is of the same tool with equal arguments."""
    ORDER = "order"
    """The next one of the same tool with equal arguments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkTerms:
    """The original of a fork, and what answers its calls."""

    run_id: str
    """The original."""
    step: int
    """The iterations of the original that stand before the fork."""
    rows: int
    """The rows at the beginning of the transcript that are read from the session that it was forked from; 0 once they
    were copied."""
    tools: ForkTools
    match: ForkMatch

    def to_json(self) -> str:
        return dump_canonical_json(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> ForkTerms:
        document = json.loads(text)
        return cls(
            **{**document, "tools": ForkTools(document["tools"]), "match": ForkMatch(document["match"])},
        )
