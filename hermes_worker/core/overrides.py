"""The settings that may be overridden for a tenant, a session or a run, and how far. Pure.

An operator may set any of these for a tenant. Overrides by callers for a session or a run may only be narrower than the
value above: a number not larger, a switch not towards more, a policy not less strict. So callers cannot raise their own
limits, and no setting that holds a secret, an address or a path is listed here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

__all__ = ["LIVE", "OVERRIDABLE", "Overridable", "OverrideLevel", "Widening", "is_wider"]


class OverrideLevel(StrEnum):
    """The level of an override, from the widest to the narrowest."""

    TENANT = "tenant"
    SESSION = "session"
    RUN = "run"


class Widening(StrEnum):
    """The direction in which a caller may not change the value above."""

    NONE = "none"
    """Any value is allowed: it is a matter of taste."""
    MORE = "more"
    """A number may only become smaller; ``None`` stands for no limit."""
    ON = "on"
    """A switch may only be switched off."""
    OFF = "off"
    """A switch may only be switched on."""
    LAXER = "laxer"
    """A policy may only become stricter."""
    LONGER = "longer"
    """A list may only lose names, because each name allows something."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overridable:
    """One setting that may be overridden."""

    key: str
    forbidden: Widening = Widening.NONE
    strictest_first: tuple[str, ...] = ()
    """The values of a policy, for ``LAXER``."""
    for_callers: bool = True
    """Sessions and runs may override it; otherwise only operators, for a tenant."""
    at_start: bool = False
    """Processes use it beside runs, so what ``config.yaml`` and the fleet say about it counts at their start, and not
    while they run."""

    @property
    def levels(self) -> tuple[OverrideLevel, ...]:
        return tuple(OverrideLevel) if self.for_callers else (OverrideLevel.TENANT,)


_OUTCOMES = ("deny", "ask", "approve")
_GUARDRAILS = "tool_loop_guardrails"
_TABLE = (
    Overridable(key="model.default"),
    Overridable(key="model.max_tokens", forbidden=Widening.MORE),
    Overridable(key="agent.reasoning_effort"),
    Overridable(key="agent.max_turns", forbidden=Widening.MORE),
    Overridable(key="agent.max_wall_s", forbidden=Widening.MORE),
    Overridable(key="agent.gateway_timeout", forbidden=Widening.MORE),
    Overridable(key="agent.toolsets", for_callers=False),
    Overridable(key="agent.context_files", forbidden=Widening.ON),
    Overridable(key="client_tools.timeout_s", forbidden=Widening.MORE),
    Overridable(key="artifacts.patterns"),
    Overridable(key="compression.enabled"),
    Overridable(key="compression.threshold"),
    Overridable(key="compression.protect_first_n"),
    Overridable(key="compression.protect_last_n"),
    Overridable(key="compression.target_ratio"),
    Overridable(key="delegation.max_concurrent_children", forbidden=Widening.MORE),
    Overridable(key="delegation.max_spawn_depth", forbidden=Widening.MORE),
    Overridable(key="delegation.max_iterations", forbidden=Widening.MORE),
    Overridable(key="delegation.max_chained_turns", forbidden=Widening.MORE),
    Overridable(key="delegation.child_timeout_seconds", forbidden=Widening.MORE),
    Overridable(key="delegation.budget", for_callers=False),
    Overridable(key="delegation.model"),
    Overridable(key="approvals.mode", forbidden=Widening.LAXER, strictest_first=("manual", "smart", "off")),
    Overridable(key="approvals.timeout", forbidden=Widening.MORE),
    *(
        Overridable(key=f"approvals.{source}_mode", forbidden=Widening.LAXER, strictest_first=_OUTCOMES)
        for source in ("cli", "api", "cron", "webhook", "delegation")
    ),
    Overridable(key=f"{_GUARDRAILS}.warnings_enabled"),
    Overridable(key=f"{_GUARDRAILS}.hard_stop_enabled", forbidden=Widening.OFF),
    *(
        Overridable(key=f"{_GUARDRAILS}.{stage}.{what}", forbidden=Widening.MORE)
        for stage in ("warn_after", "hard_stop_after")
        for what in ("exact_failure", "same_tool_failure", "idempotent_no_progress")
    ),
    Overridable(key="memory.memory_enabled", forbidden=Widening.ON),
    Overridable(key="memory.user_profile_enabled", forbidden=Widening.ON),
    Overridable(key="memory.memory_char_limit", for_callers=False),
    Overridable(key="memory.user_char_limit", for_callers=False),
    Overridable(key="memory.write_approval", forbidden=Widening.OFF),
    Overridable(key="memory.writers", forbidden=Widening.LONGER),
    Overridable(key="memory.profile", for_callers=False),
    Overridable(key="memory.nudge_interval", for_callers=False),
    Overridable(key="skills.writes", forbidden=Widening.LAXER, strictest_first=("off", "ask", "allow")),
    Overridable(key="skills.writers", forbidden=Widening.LONGER),
    Overridable(key="skills.creation_nudge_interval", for_callers=False),
    Overridable(key="terminal.timeout", forbidden=Widening.MORE),
    Overridable(
        key="terminal.network", forbidden=Widening.LAXER, strictest_first=("none", "proxy", "open"), at_start=True
    ),
    *(
        Overridable(key=f"terminal.{what}_max", forbidden=Widening.MORE, at_start=True)
        for what in ("processes", "open_files", "file_mb", "memory_mb", "cpu_s")
    ),
)
OVERRIDABLE: Mapping[str, Overridable] = MappingProxyType({each.key: each for each in _TABLE})
"""The settings by key. A run reads them once, when it is accepted, so a change takes effect while processes run."""
LIVE: frozenset[str] = frozenset(each.key for each in _TABLE if not each.at_start)
"""Keys that are read again from the fleet's configuration and the file while a process runs."""


def is_wider(which: Overridable, above: object, wanted: object) -> bool:
    """Whether ``wanted`` allows more than ``above``, both as the setting holds them."""
    match which.forbidden:
        case Widening.NONE:
            return False
        case Widening.MORE:
            return isinstance(above, (int, float)) and not (isinstance(wanted, (int, float)) and wanted <= above)
        case Widening.ON:
            return bool(wanted) and not above
        case Widening.OFF:
            return not wanted and bool(above)
        case Widening.LAXER:
            order = which.strictest_first
            return order.index(str(wanted)) > order.index(str(above))
        case Widening.LONGER:
            return not _collect_names(wanted) <= _collect_names(above)


def _collect_names(value: object) -> frozenset[object]:
    return frozenset(value) if isinstance(value, (tuple, list)) else frozenset()
