"""The lists whose changes are published."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum


class ListKind(StrEnum):
    """Lists, by their names in the API. Lists that change together share a kind."""

    RUNS = "runs"
    """Runs, with the trees and the spending that they are part of."""
    APPROVALS = "approvals"
    """Questions to people, the open ones and the closed ones."""
    SESSIONS = "sessions"
    JOBS = "jobs"
    """Jobs and their slots."""
    DELIVERIES = "deliveries"
    FLEET = "fleet"
    """Workers, alerts, and the states of provider keys. What workers hold changes with ``runs``."""
    AUDIT = "audit"
    GATEWAY = "gateway"
    """Accounts of chats, people who were admitted with a code, and people who asked for one."""


Marks = Mapping[ListKind, str]
"""By kind, a mark of twelve hexadecimal digits."""
