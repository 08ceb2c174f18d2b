"""Alerts and their targets, as the API answers them, the client returns them and commands print them."""

from __future__ import annotations

from hermes_worker.resource import ListOf, Resource


class AlertObject(Resource):
    """What operators were told is wrong."""

    kind: str
    """``provider``, ``dead_target``, ``quarantine``, ``backlog``, ``budget_80`` or ``budget_100``."""
    subject: str
    """What it is about: the name of a key, a hash, the id of a run, the name of a queue or of a limit."""
    text: str
    raised_at: float
    """Epoch seconds, as ``recovered_at``."""
    recovered_at: float | None
    """When it was over; ``null`` while it is not."""


class AlertList(ListOf[AlertObject]):
    """Alerts, newest first."""


class TriedAlerts(Resource):
    """Deliveries that are owed to the targets of alerts."""

    owed: int


class AlertTargetsObject(Resource):
    """Where a tenant is told of alerts about itself, in the order of the alphabet."""

    tenant: str
    targets: list[str]
