"""The settings of MCP servers of tenants, and of processes of servers."""

from __future__ import annotations

from dataclasses import dataclass

from hermes_worker.settings.declaring import declare_setting
from hermes_worker.settings.kinds import HOST, SWITCH, command_lines, integer, number


@dataclass(frozen=True, slots=True, kw_only=True)
class McpSettings:
    """MCP servers of tenants, and processes of servers that have a command (docs/mcp.md)."""

    has_rows: bool = declare_setting(
        "mcp.rows",
        "HERMES_MCP_ROWS",
        SWITCH,
        False,
        audience="operator",
        reason="tenants should have MCP servers of their own; only those of the file are used without it.",
    )
    """Whether tenants have MCP servers of their own in the database, kept by their administrators. What models say
    goes to the addresses that they choose."""
    row_commands: tuple[str, ...] = declare_setting(
        "mcp.row_commands",
        "HERMES_MCP_ROW_COMMANDS",
        command_lines(),
        (),
        audience="security",
        reason="servers of tenants are commands; none may be started without it.",
    )
    """Commands that such a server may have, each with all of its arguments, quoted as for a shell. Not set: none, so
    that they have addresses only."""

    processes_max: int = declare_setting(
        "mcp.max",
        "HERMES_MCP_MAX",
        integer(1, 1_000),
        16,
        audience="operator",
        reason="a host has little or much memory; sixteen processes run at a time without it.",
    )
    """Processes of one host at a time: one for each session and server that it calls."""
    idle_s: float = declare_setting(
        "mcp.idle_s",
        "HERMES_MCP_IDLE_S",
        number(5, 86_400, "seconds"),
        900.0,
        audience="operator",
        reason="memory is short, or servers forget too early; processes stay for 15 minutes without it.",
    )
    """Seconds after which a process that nobody calls is ended. What it remembered of its session is gone then."""
    host: str = declare_setting(
        "mcp.host",
        "HERMES_MCP_HOST",
        HOST,
        "127.0.0.1",
        audience="operator",
        reason="workers are on other machines than MCP processes; they cannot connect without it.",
    )
    """Address on which a host lets workers in. What they say to each other is not encrypted."""
    address: str | None = declare_setting(
        "mcp.address",
        "HERMES_MCP_ADDRESS",
        HOST,
        audience="operator",
        reason="a host is known by another name than it has; workers cannot find it without it.",
    )
    """What workers call this host. Not set: as `mcp.host`, and the name of the machine if that is a wildcard."""
