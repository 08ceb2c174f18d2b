"""Which alerts are raised and which are over. Pure.

What is wrong is read from rows, as *troubles*. A trouble is said once, however long it stands, and its end is said
once, when it has been gone for a while: what comes and goes within that time is one trouble.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """What is wrong now. ``epoch`` tells it from an earlier one of the same subject; 0 when only its alerts do."""

    kind: AlertKind
    subject: str
    epoch: int
    text: str

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
