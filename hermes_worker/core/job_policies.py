"""What a job's slots do beside earlier runs of the job, and after a time in which no scheduler ran."""

from __future__ import annotations

from enum import StrEnum


class Overlap(StrEnum):
    """What a slot does while an earlier run of the job is still going."""

    SKIP = "skip"
    QUEUE_ONE = "queue_one"
    """Wait for it, unless another slot is waiting already."""
    QUEUE_ALL = "queue_all"
    """Wait for it, behind whatever is waiting (up to a limit)."""
    CANCEL_OTHER = "cancel_other"
    """Stop it and start."""
    ALLOW = "allow"
    """Start beside it."""


class CatchUp(StrEnum):
    """What happens with slots that came due while no scheduler ran for longer than the grace."""

    ONE = "one"
    """One run now, whatever the number of slots (Hermes Agent's rule)."""
    NONE = "none"
    """No run; the job waits for its next slot."""
