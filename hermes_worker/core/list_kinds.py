"""The lists of which it is told that they changed."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum


class ListKind(StrEnum):
    """Lists that change together, by the names that the API has for them."""

    RUNS = "runs"
    """And the trees and the spending that they are part of."""
    APPROVALS = "approvals"
    """Questions to people, the open ones and the closed ones."""
    SESSIONS = "sessions"
    JOBS = "jobs"
    """And their slots."""
    DELIVERIES = "deliveries"
    FLEET = "fleet"
    """Workers, alerts, and the states of providers' keys. What workers hold changes with ``runs``."""
    AUDIT = "audit"
    GATEWAY = "gateway"
    """Accounts of chats, who was let in there with a code, and who asks to be."""


Marks = Mapping[ListKind, str]
"""Of each kind twelve hexadecimal digits."""
