"""The settings of scheduled jobs."""

from __future__ import annotations

from dataclasses import dataclass

from hermes_worker.settings.declaring import declare_setting
from hermes_worker.settings.kinds import SWITCH, integer, number


@dataclass(frozen=True, slots=True, kw_only=True)
class CronSettings:
    """Scheduled jobs."""

    idle_s_max: float = declare_setting(
        "cron.inactivity_timeout",
        "HERMES_CRON_IDLE_S_MAX HERMES_CRON_TIMEOUT",
        number(0, 31 * 86_400, "seconds"),
        600.0,
        audience="operator",
        reason="jobs are silent for longer than ten minutes; their runs are given up without it.",
    )
    """Seconds without any sign of progress before a job's run is given up, unless the job has its own limit; 0 for
    no limit."""
    script_timeout_s: float = declare_setting(
        "cron.script_timeout_seconds",
        "HERMES_CRON_SCRIPT_TIMEOUT_S HERMES_CRON_SCRIPT_TIMEOUT",
        number(1, 86_400, "seconds"),
        3600.0,
        audience="operator",
        reason="scripts of jobs take longer than an hour; they are ended without it.",
    )
    """Seconds a job's script may take."""
    outputs_kept: int = declare_setting(
        "cron.output_retention",
        "HERMES_CRON_OUTPUTS_KEPT",
        integer(0, 1_000_000),
        50,
        audience="operator",
        reason="documents of jobs are read later, or the disk is small; fifty of each job stay without it.",
    )
    """How many documents of each job's runs are kept below `cron/output`; 0 keeps all."""
    wraps: bool = declare_setting(
        "cron.wrap_response",
        "HERMES_CRON_WRAP",
        SWITCH,
        True,
        audience="anyone",
        reason="a chat should get the bare answer of a job; its name and a hint stand around it without it.",
    )
    """Whether what a job delivers names the job and says how to stop it."""
