"""Decide what may be deleted, and when. Pure: the store gathers the facts and acts on the answer.

Runs are deleted by the *chain*: a run and everything that followed from it. So a parent is never deleted before its
children, nor a budget before the runs that draw from it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from hermes_worker.core.retention_rules import FLOOR_S, RetentionRule

USED_BY_JOBS_S = 2 * 86_400.0
"""Seconds for which a firing and its run are kept, whatever the rules say: a job's budget is counted by days, in its
time zone."""


def compute_cutoff(rule: RetentionRule, now: float, newest_beyond_count: float | None) -> float | None:
    """The time (epoch seconds) such that rows which ended earlier may be deleted by ``rule``; ``None`` keeps all.
    ``newest_beyond_count`` is the time of the newest row that exceeds the rule's count."""
    cuts = [] if rule.age_s is None else [now - rule.age_s]
    if newest_beyond_count is not None:
        # Bounds are exclusive, and this row is to be deleted too.
        cuts.append(newest_beyond_count + 1e-6)
    return min(max(cuts), now - FLOOR_S) if cuts else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainFacts:
    """The facts about a chain on which its deletion depends."""

    root_pk: int
    open_runs: int
    ended_at: float | None
    """When its last run ended, in epoch seconds; ``None`` while one is open."""
    sessions: frozenset[int]
    """The sessions of its runs."""
    is_held: bool
    """A legal hold keeps one of its runs or sessions."""
    is_needed: bool
    """A delivery is not settled, a request may still be repeated under its key, or a job still reads from it."""


def may_delete_chain(facts: ChainFacts, ended_before: float | None, over: Collection[int], now: float) -> bool:
    """Whether a chain may be deleted: by the rule for runs (``ended_before``), or together with its sessions, when all
    of them are in ``over``."""
    if facts.is_held or facts.is_needed or facts.open_runs or facts.ended_at is None:
        return False
    if facts.ended_at >= now - FLOOR_S:
        return False
    by_rule = ended_before is not None and facts.ended_at < ended_before
    return by_rule or (bool(facts.sessions) and facts.sessions <= set(over))


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionFacts:
    """The facts about a session on which its deletion depends."""

    session_pk: int
    is_at_work: bool
    """A run is its active one, or waits for it."""
    runs: frozenset[int]
    """The chains, by the numbers of their roots, that have a run in it."""
    quiet_since: float
    """When its last message was written, or it was opened, in epoch seconds."""
    is_held: bool
    is_needed: bool
    """A job writes its answers into it."""


def is_session_expired(facts: SessionFacts, quiet_before: float | None) -> bool:
    """Whether a session has been quiet for so long that it is deleted, with its runs."""
    is_free = not (facts.is_at_work or facts.is_held or facts.is_needed)
    return is_free and quiet_before is not None and facts.quiet_since < quiet_before
