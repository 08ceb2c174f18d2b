"""The settings of files that runs leave."""

from __future__ import annotations

from dataclasses import dataclass

from hermes_worker.settings.declaring import declare_setting
from hermes_worker.settings.kinds import ARTIFACT_PATTERNS, integer


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtifactSettings:
    """Files that runs leave."""

    patterns: tuple[str, ...] = declare_setting(
        "artifacts.patterns",
        "HERMES_ARTIFACTS",
        ARTIFACT_PATTERNS,
        (),
        audience="operator",
        reason="files of runs should be fetched later; only those that a run names are kept without it.",
    )
    """Which files are kept of a run that names none itself, such as `*.csv,reports/**`: see docs/runs.md."""
    file_mb_max: int = declare_setting(
        "artifacts.file_mb_max",
        "HERMES_ARTIFACT_FILE_MB",
        integer(1, 32),
        10,
        audience="operator",
        reason="results are larger, or the database is small; files above 10 MB are left out without it.",
    )
    """Megabytes of one file; a larger one is left out."""
    run_mb_max: int = declare_setting(
        "artifacts.run_mb_max",
        "HERMES_ARTIFACT_RUN_MB",
        integer(1, 1_000),
        50,
        audience="operator",
        reason="runs leave many files; those beyond 50 MB are left out without it.",
    )
    """Megabytes of all files of one run together."""
