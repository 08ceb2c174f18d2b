"""How long rows of each kind are kept: the kinds, and rules as the settings and tenants write them."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from hermes_worker.core.errors import HermesError

FLOOR_S = 3600.0
"""Nothing younger than this many seconds is deleted, whatever the rules say: late writes of a run's end, such as its
title, find their row."""
AUDIT_FLOOR_S = 30 * 86_400.0
"""Seconds for which the audit log is kept at least; its table refuses to delete anything younger."""
_DAY_S = 86_400.0


class RetentionKind(StrEnum):
    """The kinds of rows with rules."""

    RUNS = "runs"
    """Chains of runs: their calls, events, inputs, budgets, deliveries and firings go with them."""
    TRANSCRIPTS = "transcripts"
    """Sessions: messages and documents. The runs of a session go with it."""
    EVENTS = "events"
    """The events of runs that have ended. The last event is kept, so that a stream of the run still ends."""
    DELIVERIES = "deliveries"
    FIRINGS = "firings"
    WEBHOOK_EVENTS = "webhook_events"
    IDEMPOTENCY_KEYS = "idempotency_keys"
    TOMBSTONES = "tombstones"
    """The records that deleted runs existed."""
    WORKSPACES = "workspaces"
    """Directories of sessions that are quiet or deleted."""
    OUTPUTS = "outputs"
    """Documents of jobs' runs, as files."""
    ARTIFACTS = "artifacts"
    """Stored artifacts of runs. The run is kept."""
    MEMORY = "memory"
    """Former versions of what agents remember. Current entries are kept."""
    INBOUND = "inbound"
    """Events from platforms, which are kept to recognise repetitions."""
    AUDIT = "audit"
    """Actions of people. The database itself keeps them for thirty days at least."""


COUNTABLE = frozenset({RetentionKind.RUNS, RetentionKind.DELIVERIES, RetentionKind.FIRINGS})
"""Kinds for which a number of newest rows can be kept: per tenant, and per job for firings."""


class InvalidRule(HermesError):
    """A rule cannot be read; the message says how rules are written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionRule:
    """When rows of one kind may be deleted: when they are older than ``age_s``, or when there are ``count`` newer ones.
    ``None`` in both keeps them for ever."""

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
"""What people made is kept until a rule says otherwise; what only the product needs is deleted when it is not read any
more."""

_RULE = re.compile(r"(?:(?P<age>\d+(?:\.\d+)?)(?P<unit>[dh]))?(?:/(?P<count>\d{1,9}))?")
_UNITS = {"d": _DAY_S, "h": 3600.0}
_AGE_S_MAX = 36_500 * _DAY_S


def parse_rule(kind: RetentionKind, text: str) -> RetentionRule:
    """Parse ``never``, ``30d``, ``12h``, ``/1000`` or ``30d/1000``. Raises ``InvalidRule``."""
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


def parse_rules(written: Collection[str]) -> dict[RetentionKind, RetentionRule]:
    """Parse ``KIND=RULE`` texts. Raises ``InvalidRule``."""
    found: dict[RetentionKind, RetentionRule] = {}
    for text in written:
        name, _, rule = text.partition("=")
        found[parse_kind(name.strip())] = parse_rule(parse_kind(name.strip()), rule.strip())
    return found


def parse_kind(name: str) -> RetentionKind:
    """Parse the name of a kind. Raises ``InvalidRule``."""
    try:
        return RetentionKind(name)
    except ValueError:
        raise InvalidRule(f"{name!r} is no kind; there are {', '.join(RetentionKind)}") from None
