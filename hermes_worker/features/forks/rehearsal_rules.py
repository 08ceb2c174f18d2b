"""Rehearsals of an upgrade: what two versions do with the same rows, how that differs, and the verdict. Pure.

A version's doing is a document of *facts*: for each kind (tools, prices, exit reasons, prompts, replays, runs at work)
a value by subject. The version before records its facts, the new one finds its own on a migrated copy, and every fact
that is gone or different is a reason against the upgrade.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

_SHOWN_CHARS = 160
_SHOWN_MAX = 50


class FactKind(StrEnum):
    """What is compared. A rehearsal can be told to accept differences of a kind."""

    SCHEMA = "schema"
    """The tables, columns and indexes that the migration leaves."""
    ROW = "row"
    """Whatever stood in a column before the migration."""
    TOOL = "tool"
    """What models are told of a tool, and whether a call of it may be repeated."""
    PRICE = "price"
    EXIT_REASON = "exit_reason"
    EVENT = "event"
    PROMPT = "prompt"
    """The bytes with which the next request of a conversation begins."""
    REPLAY = "replay"
    """How a recorded run ends when the same model says the same, and the bytes of its requests."""
    RUN_AT_WORK = "run_at_work"
    """What becomes of a run that was at work."""


_OF_RUNS = frozenset({FactKind.PROMPT, FactKind.REPLAY, FactKind.RUN_AT_WORK})
Facts = Mapping[str, Mapping[str, str]]
"""Values by kind and subject."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A reason against an upgrade."""

    kind: FactKind
    subject: str
    before: str
    after: str | None
    """``None``: it is gone."""

    def __str__(self) -> str:
        after = "gone" if self.after is None else _cut_around(self.after, self.before)
        return f"{self.kind.value} {self.subject}: {_cut_around(self.before, self.after or '')} -> {after}"


def compare_facts(before: Facts, after: Facts) -> list[Difference]:
    """List the facts of ``before`` that are gone or different. What is new is no reason, and neither is a run that was
    not looked at again: a fleet goes on between two looks."""
    found = []
    for kind in FactKind:
        now = after.get(kind, {})
        for subject, value in before.get(kind, {}).items():
            is_gone = subject not in now
            if (is_gone and kind not in _OF_RUNS) or (not is_gone and now[subject] != value):
                found.append(Difference(kind=kind, subject=subject, before=value, after=now.get(subject)))
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class GoingBack:
    """The revisions of an upgrade, and how to go back from it."""

    found: str
    """The revision of the database."""
    newest: str
    works_with: str
    """The oldest revision whose code works on the migrated schema."""

    @property
    def advice(self) -> str:
        if self.found == self.newest:
            return "The schema stays as it is: to go back, start the version before."
        if self.found.isdigit() and self.works_with.isdigit() and int(self.found) >= int(self.works_with):
            return (
                f"The version before (written for {self.found}) works on the schema {self.newest}: to go back, start "
                "it and leave the schema."
            )
        return (
            f"The version before (written for {self.found}) does not work on the schema {self.newest}: make a backup "
            "right before the upgrade ('hermes-worker data backup' or pg_dump); to go back, restore it with that "
            "version."
        )


def build_verdict(
    going_back: GoingBack, differences: Sequence[Difference], accepted: Collection[FactKind], counts: Mapping[str, int]
) -> dict[str, Any]:
    """Build the report of a rehearsal as a JSON document."""
    reasons = [each for each in differences if each.kind not in accepted]
    return {
        "is_safe": not reasons,
        "from": going_back.found,
        "to": going_back.newest,
        "going_back": going_back.advice,
        **counts,
        "reasons": [{**asdict(each), "kind": each.kind.value} for each in reasons],
        "accepted": [str(each) for each in differences if each.kind in accepted],
    }


def render_verdict(report: Mapping[str, Any]) -> str:
    """Render a report for people. Reasons beyond the first ones are counted."""
    reasons = [Difference(**{**each, "kind": FactKind(each["kind"])}) for each in report["reasons"]]
    more = [f"- and {len(reasons) - _SHOWN_MAX} more"] if len(reasons) > _SHOWN_MAX else []
    return "\n".join(
        (
            f"{'yes' if report['is_safe'] else 'no'}: from schema {report['from']} to {report['to']}, "
            f"{report['replayed']} recorded runs replayed, {report['taken_over']} runs at work taken over, "
            f"{report['prompts']} prompts compared, {len(reasons)} reasons against it",
            *(f"- {each}" for each in reasons[:_SHOWN_MAX]),
            *more,
            *(f"- accepted: {each}" for each in report["accepted"]),
            report["going_back"],
        )
    )


def parse_facts(text: str) -> Facts:
    """Parse what a version recorded. Raises ``ValueError``."""
    try:
        facts = json.loads(text)["facts"]
        is_good = all(isinstance(value, str) for kind in facts.values() for value in kind.values())
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        is_good = False
    if not is_good:
        raise ValueError("it is nothing that 'hermes-worker data rehearse --record' wrote")
    return {str(kind): dict(values) for kind, values in facts.items()}


def _cut_around(text: str, other: str) -> str:
    """Cut a text to the surroundings of its first character that differs from another."""
    at = next((place for place, (one, two) in enumerate(zip(text, other, strict=False)) if one != two), 0)
    first = max(0, at - _SHOWN_CHARS // 2)
    shown = text[first : first + _SHOWN_CHARS]
    return f"{'...' if first else ''}{shown}{'...' if len(text) > first + _SHOWN_CHARS else ''}"
