"""What may be deleted, and when. Pure: the store gathers the facts and acts on the answer.

The unit of deletion of runs is the *chain*: a run and everything that followed from it. So a parent never goes before
its children, and a budget not before the runs that draw from it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from hermes_worker.core.errors import HermesError

FLOOR_S = 3600.0
"""Nothing younger than this is deleted, whatever the rules say: late writes of a run's end, such as its title, find
their row."""
AUDIT_FLOOR_S = 30 * 86_400.0
"""The same for the audit log; its table refuses to delete anything younger."""
USED_BY_JOBS_S = 2 * 86_400.0
"""How long a firing and its run stay whatever the rules say: a job's budget is counted by days, in its time zone."""
_DAY_S = 86_400.0


class RetentionKind(StrEnum):
    """What rules are made for."""

    RUNS = "runs"
    """Chains of runs: their calls, events, inputs, budgets, deliveries and firings go with them."""
    TRANSCRIPTS = "transcripts"
    """Sessions: messages and documents. The runs of a session go with it."""
    EVENTS = "events"
    """Of runs that have ended. The last event stays, so that a stream of the run still ends."""
    DELIVERIES = "deliveries"
    FIRINGS = "firings"
    WEBHOOK_EVENTS = "webhook_events"
    IDEMPOTENCY_KEYS = "idempotency_keys"
    TOMBSTONES = "tombstones"
    """What is known of deleted runs: that they were there."""
    WORKSPACES = "workspaces"
    """Directories that sessions were given, of those that are quiet or gone."""
    OUTPUTS = "outputs"
    """Documents of jobs' runs, as files."""
    ARTIFACTS = "artifacts"
    """Files that runs left, as they were kept. The run stays."""
    MEMORY = "memory"
    """What agents remembered before it was changed or removed. What they remember stays."""
    INBOUND = "inbound"
    """Events that came from platforms, to know them again."""
    AUDIT = "audit"
    """What people did. The database itself keeps it for thirty days at least."""


COUNTABLE = frozenset({RetentionKind.RUNS, RetentionKind.DELIVERIES, RetentionKind.FIRINGS})
"""Kinds of which the newest so many can be kept: of a tenant, and of a job for firings."""


class InvalidRule(HermesError):
    """A rule cannot be read; the message says how rules are written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionRule:
    """When things of one kind go: when they are older than ``age_s``, or when ``count`` newer ones are there. ``None``
    in both keeps them for ever."""

    age_s: float | None = None
    count: int | None = None

    @property
    def is_for_ever(self) -> bool:
        return self.age_s is None and self.count is None

    def __str__(self) -> str:
        if self.is_for_ever:
            return "never"
        age = "" if self.age_s is None else f"{self.age_s / _DAY_S:g}d"
        return age if self.count is None else f"{age}/{self.count}"


FOR_EVER = RetentionRule()
_LONG = RetentionRule(age_s=90 * _DAY_S)
_SHORT = RetentionRule(age_s=_DAY_S)
DEFAULT_RULES: Mapping[RetentionKind, RetentionRule] = MappingProxyType(
    {
        RetentionKind.RUNS: FOR_EVER,
        RetentionKind.TRANSCRIPTS: FOR_EVER,
        RetentionKind.EVENTS: _LONG,
        RetentionKind.DELIVERIES: _LONG,
        RetentionKind.FIRINGS: _LONG,
        RetentionKind.WEBHOOK_EVENTS: _SHORT,
        RetentionKind.IDEMPOTENCY_KEYS: _SHORT,
        RetentionKind.TOMBSTONES: RetentionRule(age_s=365 * _DAY_S),
        RetentionKind.WORKSPACES: FOR_EVER,
        RetentionKind.OUTPUTS: FOR_EVER,
        RetentionKind.ARTIFACTS: RetentionRule(age_s=30 * _DAY_S),
        RetentionKind.MEMORY: _LONG,
        RetentionKind.INBOUND: RetentionRule(age_s=7 * _DAY_S),
        RetentionKind.AUDIT: RetentionRule(age_s=365 * _DAY_S),
    }
)
"""What people made stays until somebody says otherwise; what only we need goes when nobody looks at it any more."""

_RULE = re.compile(r"(?:(?P<age>\d+(?:\.\d+)?)(?P<unit>[dh]))?(?:/(?P<count>\d{1,9}))?")
_UNITS = {"d": _DAY_S, "h": 3600.0}
_AGE_S_MAX = 36_500 * _DAY_S


def rule_of(kind: RetentionKind, text: str) -> RetentionRule:
    """Read ``never``, ``30d``, ``12h``, ``/1000`` or ``30d/1000``. Raises ``InvalidRule``."""
    if text == "never":
        return FOR_EVER
    found = _RULE.fullmatch(text)
    if not text or found is None:
        raise InvalidRule(f"{kind.value}={text!r} is no rule; write 'never', '30d', '12h', '/1000' or '30d/1000'")
    age = None if found["age"] is None else float(found["age"]) * _UNITS[found["unit"]]
    count = None if found["count"] is None else int(found["count"])
    least, written = (AUDIT_FLOOR_S, "30d") if kind is RetentionKind.AUDIT else (FLOOR_S, "1h")
    if age is not None and not least <= age <= _AGE_S_MAX:
        raise InvalidRule(f"{kind.value}={text!r} is out of range: an age is from {written} to 36500d")
    if count is not None and kind not in COUNTABLE:
        raise InvalidRule(f"{kind.value}={text!r} counts; only {', '.join(sorted(COUNTABLE))} can be counted")
    return RetentionRule(age_s=age, count=count)


def rules_of(written: Collection[str]) -> dict[RetentionKind, RetentionRule]:
    """Read ``KIND=RULE`` texts. Raises ``InvalidRule``."""
    found: dict[RetentionKind, RetentionRule] = {}
    for text in written:
        name, _, rule = text.partition("=")
        found[kind_of(name.strip())] = rule_of(kind_of(name.strip()), rule.strip())
    return found


def kind_of(name: str) -> RetentionKind:
    """Raises ``InvalidRule``."""
    try:
        return RetentionKind(name)
    except ValueError:
        raise InvalidRule(f"{name!r} is no kind; there are {', '.join(RetentionKind)}") from None


def before(rule: RetentionRule, now: float, newest_beyond_count: float | None) -> float | None:
    """What ended earlier than this (epoch seconds) may go by ``rule``; ``None`` keeps all. ``newest_beyond_count`` is
    the time of the first thing, from the newest, that is one too many."""
    cuts = [] if rule.age_s is None else [now - rule.age_s]
    if newest_beyond_count is not None:
        # That one goes as well: bounds are exclusive.
        cuts.append(newest_beyond_count + 1e-6)
    return min(max(cuts), now - FLOOR_S) if cuts else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainFacts:
    """A chain of runs, as far as its deletion depends on it."""

    root_pk: int
    open_runs: int
    ended_at: float | None
    """Of the run that ended last; epoch seconds."""
    sessions: frozenset[int]
    """That its runs are in."""
    is_held: bool
    """By a legal hold on one of its runs or sessions."""
    is_needed: bool
    """A delivery is not settled, a request may still be repeated under its key, or a job still reads from it."""


def chain_may_go(facts: ChainFacts, ended_before: float | None, over: Collection[int], now: float) -> bool:
    """Whether a chain may be deleted: by the rule for runs (``ended_before``), or together with its sessions, when all
    of them are among those that are ``over``."""
    if facts.is_held or facts.is_needed or facts.open_runs or facts.ended_at is None:
        return False
    if facts.ended_at >= now - FLOOR_S:
        return False
    by_rule = ended_before is not None and facts.ended_at < ended_before
    return by_rule or (bool(facts.sessions) and facts.sessions <= set(over))


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionFacts:
    """A session, as far as its deletion depends on it."""

    session_pk: int
    is_at_work: bool
    """A run has its turn, or waits for it."""
    runs: frozenset[int]
    """The chains, by the numbers of their roots, that have a run in it."""
    quiet_since: float
    """Of its last message, or when it was opened; epoch seconds."""
    is_held: bool
    is_needed: bool
    """A job writes its answers into it."""


def is_over(facts: SessionFacts, quiet_before: float | None) -> bool:
    """Whether a session has been quiet for so long that it goes, with its runs."""
    is_free = not (facts.is_at_work or facts.is_held or facts.is_needed)
    return is_free and quiet_before is not None and facts.quiet_since < quiet_before
