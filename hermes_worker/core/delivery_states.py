"""The states of a delivery."""

from __future__ import annotations

from enum import StrEnum


class DeliveryState(StrEnum):
    PENDING = "pending"
    ATTEMPTING = "attempting"
    DELIVERED = "delivered"
    FAILED = "failed"
    """It was refused: sending it again would be refused again."""
    ABANDONED = "abandoned"
    """Given up on after many attempts; a replay may succeed."""
