"""The settings of the limits of a run that names none of its own."""

from __future__ import annotations

from dataclasses import dataclass

from hermes_worker.settings.declaring import declare_setting
from hermes_worker.settings.kinds import SWITCH, integer, list_of_names, number, optional_number


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings:
    """Limits of a run that names none of its own."""

    iterations_max: int = declare_setting(
        "agent.max_turns",
        "HERMES_MAX_ITERATIONS",
        integer(1, 100_000),
        90,
        audience="anyone",
        reason="tasks are long, or money is short; a run ends after ninety model calls without it.",
    )
    """Model calls per run."""
    wall_s_max: float = declare_setting(
        "agent.max_wall_s",
        "HERMES_MAX_WALL_S",
        number(1, 31 * 86_400, "seconds"),
        86_400.0,
        audience="operator",
        reason="runs wait for people for days, or must be short; a run ends after a day without it.",
    )
    """Seconds from submission to the end, waiting included."""
    idle_s_max: float | None = declare_setting(
        "agent.gateway_timeout",
        "HERMES_MAX_IDLE_S HERMES_AGENT_TIMEOUT",
        optional_number(1, 31 * 86_400, "seconds"),
        1800.0,
        audience="operator",
        reason="tools are silent for longer than half an hour; their runs are given up without it.",
    )
    """Seconds without any sign of progress before a run is given up; 0 for no limit."""
    allow_private_urls: bool = declare_setting(
        "agent.allow_private_urls",
        "HERMES_ALLOW_PRIVATE_URLS",
        SWITCH,
        False,
        audience="security",
        reason="agents should read pages of the intranet; tools refuse its addresses without it.",
    )
    """Whether tools may fetch from addresses of the local network and of this machine. Metadata services are never
    asked."""
    redact_secrets: bool = declare_setting(
        "security.redact_secrets",
        "HERMES_REDACT_SECRETS",
        SWITCH,
        True,
        audience="security",
        reason="results are wrongly taken for secrets; they are hidden from the model without it.",
    )
    """Whether secrets are hidden in what tools return, before it is stored or shown to a model. Logs and error messages
    never contain them, whatever is set here."""
    toolsets: tuple[str, ...] = declare_setting(
        "agent.toolsets",
        "HERMES_TOOLSETS",
        list_of_names(r"[\w.:-]{1,64}", "toolset names"),
        (),
        audience="operator",
        reason="agents should have fewer or other tools; they have the usual ones without it.",
    )
    """Toolsets of runs that name none. Empty: the usual ones."""
    context_files: bool = declare_setting(
        "agent.context_files",
        "HERMES_CONTEXT_FILES",
        SWITCH,
        True,
        audience="security",
        reason="projects of strangers must not instruct agents; their files are read without it.",
    )
    """Whether the prompt of a session that works in a given directory says what the project's file for agents says
    (`.hermes.md`, `AGENTS.md`, `CLAUDE.md`, `.cursorrules`)."""
    client_tools_s: float = declare_setting(
        "client_tools.timeout_s",
        "HERMES_CLIENT_TOOLS_TIMEOUT_S",
        number(1, 31 * 86_400, "seconds"),
        600.0,
        audience="operator",
        reason="a client's tool asks a person; the run is given up after ten minutes without it.",
    )
    """Seconds that a client has to bring the result of its own tool, before the run is given up."""
