"""The settings of how long things are kept."""

from __future__ import annotations

from dataclasses import dataclass

from hermes_worker.settings.declaring import declare_setting
from hermes_worker.settings.kinds import RETENTION_RULES


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionSettings:
    """How long things are kept."""

    rules: tuple[str, ...] = declare_setting(
        "retention.rules",
        "HERMES_RETENTION",
        RETENTION_RULES,
        (),
        audience="operator",
        reason="rows must go earlier or stay longer; events, deliveries and firings go after 90 days without it.",
    )
    """Rules that differ from the usual ones, for tenants without rules of their own, such as `runs=365d` or
    `firings=30d/1000`: see docs/retention.md."""
