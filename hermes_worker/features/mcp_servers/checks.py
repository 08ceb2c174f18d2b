"""``doctor``'s findings about MCP servers that tenants keep as rows. None of the servers is asked: workers and hosts do
that."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial

from hermes_worker.cli.doctor_findings import Grade
from hermes_worker.core.errors import HermesError
from hermes_worker.features.mcp_servers.rows import McpServerRow, McpServers
from hermes_worker.local.paths import has_no_rows
from hermes_worker.settings import Settings

_NAMED_MAX = 5


def list_checks(settings: Settings) -> Iterator[tuple[str, Callable[[], tuple[Grade, str]]]]:
    """List the check, where tenants may keep servers, or keep some."""
    kept: Sequence[McpServerRow] | HermesError
    try:
        kept = _list_servers(settings)
    except HermesError as error:
        kept = error
    if settings.mcp.has_rows or (kept and not isinstance(kept, HermesError)):
        yield "mcp rows", partial(check_rows, settings, kept)


def _list_servers(settings: Settings) -> Sequence[McpServerRow]:
    from hermes_worker.wiring import open_database

    if has_no_rows(settings):
        return []
    with closing(open_database(settings)) as database:
        return McpServers(database).list_all()


def check_rows(settings: Settings, kept: Sequence[McpServerRow] | HermesError) -> tuple[Grade, str]:
    """Check the state of the servers, and say what a person must do. Raises ``HermesError``."""
    if isinstance(kept, HermesError):
        raise kept
    if not kept:
        return Grade.OK, "tenants may keep servers of their own, and none does"
    tenants = len({row.tenant for row in kept})
    total = f"{_format_count(len(kept), 'server')} of {_format_count(tenants, 'tenant')}"
    if not settings.mcp.has_rows:
        return Grade.NOTE, f"{total}, whose tools no agent has: HERMES_MCP_ROWS (mcp.rows) is not set here"
    found = _find_troubles(settings, kept)
    ready = len(kept) - len({name for names in found.values() for name in names})
    told = [
        f"{total}, {ready} of them ready",
        *(f"{_format_names(names)} {what}" for what, names in found.items() if names),
    ]
    return (Grade.NOTE if ready < len(kept) else Grade.OK), "; ".join(told)


def _find_troubles(settings: Settings, kept: Sequence[McpServerRow]) -> dict[str, list[str]]:
    from hermes_worker.features.mcp_servers.service import build_mcp_server_view
    from hermes_worker.mcp.servers import is_allowed  # takes long to import

    unasked = "not asked yet: is a worker for tools, or a host ('hermes-worker start mcp-host'), with mcp.rows at work?"
    refused = "not started: the command is none of HERMES_MCP_ROW_COMMANDS (mcp.row_commands)"
    failing = "not answering (hermes-worker mcp list --row)"
    waiting = "waiting for: hermes-worker mcp approve NAME --row"
    found: dict[str, list[str]] = {refused: [], failing: [], unasked: [], waiting: []}
    for row in kept:
        shown = build_mcp_server_view(row)
        name = f"{row.tenant}/{row.name}"
        if shown.command and not is_allowed(shown.command, settings.mcp.row_commands):
            found[refused].append(name)
        elif shown.state != "ready":
            found[{"failing": failing, "unasked": unasked, "waiting": waiting}[shown.state]].append(name)
    return found


def _format_names(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED_MAX} more" if len(names) > _NAMED_MAX else ""
    return f"{', '.join(names[:_NAMED_MAX])}{more} {'is' if len(names) == 1 else 'are'}"


def _format_count(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
