"""The settings of how work is taken, kept and taken over."""

from __future__ import annotations

from dataclasses import dataclass

from hermes_worker.settings.declaring import declare_setting
from hermes_worker.settings.kinds import integer, number


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseSettings:
    """How work is taken, kept and taken over."""

    ttl_s: float = declare_setting(
        "lease.ttl_s",
        "HERMES_LEASE_TTL_S",
        number(0.5, 3600, "seconds"),
        15.0,
        audience="operator",
        reason="storage or network often stall for longer; living workers lose their work without it.",
    )
    """Seconds that a claim holds after its last renewal. Work of a dead worker starts again after this."""
    sweep_interval_s: float = declare_setting(
        "lease.sweep_interval_s",
        "HERMES_SWEEP_INTERVAL_S",
        number(0.05, 300, "seconds"),
        1.0,
        audience="developer",
        reason="tests cannot wait a second for each look; recovery takes longer in them without it.",
    )
    """Seconds between two looks for lapsed claims and unanswered hints."""
    resend_grace_s: float = declare_setting(
        "lease.resend_grace_s",
        "HERMES_RESEND_GRACE_S",
        number(0.1, 3600, "seconds"),
        3.0,
        audience="operator",
        reason="queues are long for a while; hints are sent again that were only late without it.",
    )
    """Seconds that work may stay unclaimed before its hint is sent again."""
    lanes_max: int = declare_setting(
        "lease.lanes_max",
        "HERMES_LANES_MAX",
        integer(1, 100),
        2,
        audience="operator",
        reason="memory is short; two lanes start at a time without it.",
    )
    """Lanes that one worker starts at the same time to try suspects: steps whose worker vanished."""
    lane_memory_mb: int = declare_setting(
        "lease.lane_memory_mb",
        "HERMES_LANE_MEMORY_MB",
        integer(0, 1_000_000),
        2048,
        audience="operator",
        reason="a container has less than 4 GB; a heavy step ends the container and not its lane without it.",
    )
    """Memory of a lane, in megabytes of data (Linux); 0 for no limit. In a container set less than half of the
    container's memory: a step that needs more must end the lane, not the container."""
    drain_s: float = declare_setting(
        "lease.drain_s",
        "HERMES_DRAIN_S",
        number(0, 3600, "seconds"),
        30.0,
        audience="operator",
        reason="the grace period of a pod is not 30 seconds; work is handed back too early or killed without it.",
    )
    """Seconds that a worker has to finish its work when it is told to stop; then it hands the rest back."""
    drain_once_s: float = declare_setting(
        "lease.drain_once_s",
        "HERMES_DRAIN_ONCE_S",
        number(0, 86_400, "seconds"),
        600.0,
        audience="operator",
        reason="calls that must not repeat take longer than ten minutes; their outcome is unknown without it.",
    )
    """Seconds that it waits after that for tool calls that must not run twice. If something kills it earlier (the grace
    period of a pod, for example), their outcome is unknown."""
