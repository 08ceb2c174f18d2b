"""The settings of what the files of a workspace were before."""

from __future__ import annotations

from dataclasses import dataclass

from hermes_worker.settings.declaring import declare_setting
from hermes_worker.settings.kinds import SWITCH, integer


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSettings:
    """What the files of a workspace were before an agent changed them."""

    enabled: bool = declare_setting(
        "checkpoints.enabled",
        "HERMES_CHECKPOINTS",
        SWITCH,
        True,
        audience="operator",
        reason="disk or time is short, or a workspace is under git anyway; each change is saved without it.",
    )
    """Whether a checkpoint is made before a tool changes files of a workspace: see docs/checkpoints.md."""
    kept: int = declare_setting(
        "checkpoints.max_snapshots",
        "HERMES_CHECKPOINTS_KEPT",
        integer(1, 1_000),
        50,
        audience="operator",
        reason="work goes back further than fifty changes; older ones are gone without it.",
    )
    """Checkpoints of one workspace; the oldest go first."""
    mb_max: int = declare_setting(
        "checkpoints.max_total_size_mb",
        "HERMES_CHECKPOINTS_MB",
        integer(1, 1_000_000),
        500,
        audience="operator",
        reason="the disk is small, or projects are large; 500 MB are kept of each workspace without it.",
    )
    """Megabytes on the disk of all checkpoints of one workspace; the newest one stays whatever it takes."""
    file_mb_max: int = declare_setting(
        "checkpoints.max_file_size_mb",
        "HERMES_CHECKPOINT_FILE_MB",
        integer(1, 32),
        10,
        audience="operator",
        reason="larger files must be restorable; those above 10 MB stay as they are without it.",
    )
    """Megabytes of one file; a larger one is in no checkpoint, and a restore leaves it as it is."""
