"""Decide which alerts are raised and which are over. Pure.

*Troubles* are read from rows. An alert about a trouble is sent once, however long it stands, and its end is sent once,
when it has been gone for a while: a trouble that comes and goes within that time counts as one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from hermes_worker.core.principals import DEFAULT_TENANT

SETTLED_S = 60.0
"""Seconds without the trouble after which its alert is over."""
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
    """Four fifths of a budget or limit of a chain, a tenant or a key are spent. Its end is not reported."""
    BUDGET_SPENT = "budget_100"
    """A budget or limit is spent, or nothing more fits into it. For a limit by day or month, the end is reported."""

    @property
    def has_end(self) -> bool:
        """Whether the end of such an alert is sent."""
        return self is not AlertKind.BUDGET_NEAR


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """Something that is wrong now. ``epoch`` distinguishes it from an earlier trouble with the same subject; 0 when
    only its alerts do."""

    kind: AlertKind
    subject: str
    epoch: int
    text: str
    tenant: str = DEFAULT_TENANT
    """The tenant concerned, which is alerted beside the operators."""

    @property
    def about(self) -> tuple[str, str]:
        return self.kind.value, self.subject


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenAlert:
    """An alert whose end was not sent. Times are epoch seconds."""

    pk: int
    kind: str
    subject: str
    clear_since: float | None
    """When its trouble went away; ``None`` while it stands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertSteps:
    """The alerts to raise, to clear, to restore and to end."""

    raised: tuple[Trouble, ...] = ()
    cleared: tuple[int, ...] = ()
    """Alerts whose troubles have just gone."""
    returned: tuple[int, ...] = ()
    """Alerts whose troubles are back, or never were away for long."""
    ended: tuple[int, ...] = ()
    """Alerts whose end has to be sent."""


def decide_alert_steps(troubles: Iterable[Trouble], alerts: Iterable[OpenAlert], now: float) -> AlertSteps:
    """Compare the present troubles with the open alerts. Total; applying the result twice changes nothing."""
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
"""The divisor of the part that is left when a budget is near its end: one fifth."""
BUDGET_KINDS = {NEAR: AlertKind.BUDGET_NEAR, SPENT: AlertKind.BUDGET_SPENT}


def compute_budget_level(used: int, limit: int, *, holds_runs: bool = False) -> int:
    """The level (0, ``NEAR``, ``SPENT``) for ``used`` of ``limit``. ``holds_runs``: runs wait because nothing more
    fits, so the rest will not be used."""
    if used >= limit:
        return SPENT
    if used < limit - limit // NEAR_LEFT_PART:
        return 0
    return SPENT if holds_runs else NEAR


def remove_target(targets: Iterable[str], dead: str | None) -> tuple[str, ...]:
    """Remove from the targets of an alert the dead target it is about, and names that may mean it. ``dead`` is
    ``platform:chat``; ``None`` for other alerts."""
    if dead is None:
        return tuple(dict.fromkeys(targets))
    platform = dead.partition(":")[0].lower()
    named = {platform, "all", "origin", dead.lower()}

    def may_be_it(target: str) -> bool:
        said = target.strip().lower()
        return said in named or said.startswith(f"{dead.lower()}:")

    return tuple(dict.fromkeys(target for target in targets if not may_be_it(target)))
