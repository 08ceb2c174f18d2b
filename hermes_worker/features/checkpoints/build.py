"""Build what keeps checkpoints from the settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hermes_worker.features.checkpoints.rules import CheckpointLimits
from hermes_worker.settings import Settings

if TYPE_CHECKING:
    from hermes_worker.features.checkpoints.work import Checkpointing


def build_checkpointing(settings: Settings) -> Checkpointing | None:
    from hermes_worker.features.checkpoints.work import Checkpointing

    if not settings.checkpoints.enabled:
        return None
    return Checkpointing(home=settings.home, limits=build_checkpoint_limits(settings))


def build_checkpoint_limits(settings: Settings) -> CheckpointLimits:
    """How many checkpoints, and how large ones, are kept of one workspace."""
    chosen = settings.checkpoints
    return CheckpointLimits(
        checkpoints=chosen.kept, file_bytes=chosen.file_mb_max * 1024**2, store_bytes=chosen.mb_max * 1024**2
    )
