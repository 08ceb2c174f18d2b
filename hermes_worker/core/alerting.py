"""Which alerts are raised and which are over. Pure.

What is wrong is read from rows, as *troubles*. A trouble is said once, however long it stands, and its end is said
once, when it has been gone for a while: what comes and goes within that time is one trouble.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from hermes_worker.core.principals import DEFAULT_TENANT

SETTLED_S = 60.0
"""A trouble that has been gone for so long is over."""
TEXT_CHARS_MAX = 500


class AlertKind(StrEnum):
    PROVIDER = "provider"
    """A key of a provider is closed."""
    DEAD_TARGET = "dead_target"
    """A target refuses what is sent there, for good."""
    QUARANTINE = "quarantine"
    """A run took down worker after worker; it has no end that could be said."""
    BACKLOG = "backlog"
    """A step waits for a worker for too long."""
    BUDGET_NEAR = "budget_80"
    """Four fifths of what a chain, a tenant or a key may spend are spent. Its end is not said."""
    BUDGET_SPENT = "budget_100"
    """All of it is spent, or so much that nothing more fits. Of a limit for a day or a month, the end is said."""

    @property
    def has_end(self) -> bool:
        """Whether somebody is told that it is over."""
        return self is not AlertKind.BUDGET_NEAR


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """What is wrong now. ``epoch`` tells it from an earlier one of the same subject; 0 when only its alerts do."""

    kind: AlertKind
    subject: str
    epoch: int
    text: str
    tenant: str = DEFAULT_TENANT
    """Whose trouble it is: who is told of it beside the operators."""

    @property
    def about(self) -> tuple[str, str]:
        return self.kind.value, self.subject


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenAlert:
    """An alert whose end was not said. Times are epoch seconds."""

    pk: int
    kind: str
    subject: str
    clear_since: float | None
    """Since when its trouble is gone; ``None`` while it stands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertSteps:
    """What is to be done about alerts."""

    raised: tuple[Trouble, ...] = ()
    cleared: tuple[int, ...] = ()
    """Their troubles have just gone."""
    returned: tuple[int, ...] = ()
    """Their troubles are back, or never were away for long."""
    ended: tuple[int, ...] = ()
    """Their end is to be said."""


def steps(troubles: Iterable[Trouble], alerts: Iterable[OpenAlert], now: float) -> AlertSteps:
    """What the troubles of this moment mean for the alerts that stand. Total; doing it twice changes nothing."""
    standing = {trouble.about: trouble for trouble in troubles}
    known = {(alert.kind, alert.subject): alert for alert in alerts}
    gone = [alert for about, alert in known.items() if about not in standing]
    return AlertSteps(
        raised=tuple(trouble for about, trouble in standing.items() if about not in known),
        cleared=tuple(alert.pk for alert in gone if alert.clear_since is None),
        returned=tuple(
            alert.pk for about, alert in known.items() if about in standing and alert.clear_since is not None
        ),
        ended=tuple(
            alert.pk for alert in gone if alert.clear_since is not None and now - alert.clear_since >= SETTLED_S
        ),
    )


NEAR, SPENT = 1, 2
"""How much of a budget is spent: 80 % of it, and all of it. 0 below that."""
NEAR_LEFT_PART = 5
"""One part in so many is left when a budget is near its end."""
BUDGET_KINDS = {NEAR: AlertKind.BUDGET_NEAR, SPENT: AlertKind.BUDGET_SPENT}


def budget_level(used: int, limit: int, *, holds_runs: bool = False) -> int:
    """How much of a limit is used. ``holds_runs``: something waits because nothing more fits, so that what is left will
    not be used."""
    if used >= limit:
        return SPENT
    if used < limit - limit // NEAR_LEFT_PART:
        return 0
    return SPENT if holds_runs else NEAR


def without_target(targets: Iterable[str], dead: str | None) -> tuple[str, ...]:
    """Where an alert about a dead target goes: not there, and not to a name that may mean it. ``dead`` is
    ``platform:chat``; ``None`` for other alerts."""
    if dead is None:
        return tuple(dict.fromkeys(targets))
    platform = dead.partition(":")[0].lower()
    named = {platform, "all", "origin", dead.lower()}

    def may_be_it(target: str) -> bool:
        said = target.strip().lower()
        return said in named or said.startswith(f"{dead.lower()}:")

    return tuple(dict.fromkeys(target for target in targets if not may_be_it(target)))
