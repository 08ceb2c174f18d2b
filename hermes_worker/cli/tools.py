"""``hermes-worker extensions tools``: list the tools, and why some are unavailable."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import click

from hermes_worker import installed, plugins
from hermes_worker.agent.tools.catalog import get_declared_catalog
from hermes_worker.cli.list_output import print_entries
from hermes_worker.cli.options import common, load_settings, of_tenant
from hermes_worker.cli.screen import flatten_text
from hermes_worker.core.tool_schemas import UnfitDefinition, fit_schema
from hermes_worker.extension import explain_missing_extra
from hermes_worker.local.paths import has_no_rows
from hermes_worker.settings import Settings

_BROWSER: Final = "browser"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolStanding:
    """A tool and its state at this home."""

    name: str
    toolset: str
    is_available: bool
    note: str = ""
    """What is missing and how to get it; of an available tool, what it does without."""
    unfit: str = ""
    """Why no model can get it, for the end of a sentence; empty for a tool whose definition can be sent."""


@click.command("tools", epilog="Which of them a run has is decided by its toolsets: 'hermes-worker submit --help'.")
@common
@of_tenant
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
def list_tools(home: Path | None, as_json: bool) -> None:
    """See which tools agents can have here, and what others need."""
    settings = load_settings(home)
    found = [*list_tool_standings(settings), *_list_row_tools(settings)]
    print_entries(
        found,
        ("TOOL", "TOOLSET", "THERE", "NOTE"),
        lambda one: (one.name, one.toolset, "yes" if one.is_available else "no", one.note),
        document=asdict if as_json else None,
        ids=(0,),
        whole=(3,),
    )


def list_tool_standings(settings: Settings) -> list[ToolStanding]:
    """List every tool that this version knows, by name."""
    found = {one.name: one for one in (*_list_disabled_tools(settings), *_list_enabled_tools(settings))}
    return [found[name] for name in sorted(found)]


def _list_row_tools(settings: Settings) -> Iterator[ToolStanding]:
    """List the tools of MCP servers that the tenant keeps as rows. Asks no server. Raises ``HermesError``."""
    if not settings.mcp.has_rows or has_no_rows(settings):
        return
    from hermes_worker.cli.api_connection import open_home_client

    for one in open_home_client(settings).mcp_servers():
        if one.state == "unasked":
            said = ["an MCP server of the tenant; nobody has asked it yet what it offers"]
        else:
            said = [f"{one.approved_count} of {len(one.tools)} tools of an MCP server of the tenant are approved"]
            said += [f"hermes-worker mcp approve {one.name} --row"] if one.waiting else []
            said += [f"it did not answer: {flatten_text(one.problem, 200)}"] if one.problem is not None else []
        yield ToolStanding(
            name=f"{one.toolset}:*", toolset=one.toolset, is_available=one.approved_count > 0, note="; ".join(said)
        )


def _list_enabled_tools(settings: Settings) -> Iterator[ToolStanding]:
    catalog = get_declared_catalog()
    for name in sorted(catalog.names):
        lacking = _find_lacking(name, catalog.get_spec(name).toolset, settings)
        yield ToolStanding(
            name=name,
            toolset=catalog.get_spec(name).toolset,
            is_available=not lacking,
            note=lacking or _find_missing_part(name, settings),
            unfit=_find_unfitness(catalog.get_spec(name).parameters),
        )
    for source in sorted(installed.get_installed().tool_sources):
        yield ToolStanding(
            name=f"{source}:*", toolset=source, is_available=True, note="tools of a source, which workers ask for them"
        )


def _find_unfitness(parameters: object) -> str:
    try:
        fit_schema(parameters)
    except UnfitDefinition as error:
        return str(error)
    return ""


def _find_lacking(name: str, toolset: str, settings: Settings) -> str:
    if toolset == _BROWSER:
        return explain_missing_extra("browser") or ""
    if name == "execute_code" and settings.terminal.workspace != "local":
        return f"scripts run in local workspaces only, and terminal.workspace is {settings.terminal.workspace}"
    return ""


def _find_missing_part(name: str, settings: Settings) -> str:
    if name != "read_file":
        return ""
    if settings.terminal.workspace != "local":
        return f"no text of documents: terminal.workspace is {settings.terminal.workspace}"
    return find_documents_note()


def find_documents_note() -> str:
    """Write which documents cannot be read here, and how they could be; empty when all can."""
    from hermes_worker.agent.tools.documents import HOW_TO_INSTALL, list_missing_libraries

    missing = list_missing_libraries()
    return f"no text of {', '.join(missing)} documents: {HOW_TO_INSTALL}" if missing else ""


def _list_disabled_tools(settings: Settings) -> Iterator[ToolStanding]:
    """List the tools of extensions that come with the product or were installed, and are not enabled."""
    for one in plugins.list_available(settings.home):
        brought = one.manifest.brings if one.manifest is not None else {}
        needed = ", ".join(brought.get("settings", ()))
        how = f"hermes-worker extensions enable {one.name}" + (f"; it is set by {needed}" if needed else "")
        for name in brought.get("tools", ()):
            yield ToolStanding(name=name, toolset=one.name, is_available=False, note=one.problem or how)
    if not settings.browser.is_enabled:
        from hermes_worker.browser.declarations import build_browser_extension

        how = "; ".join(filter(None, ("switched off: HERMES_BROWSER=true", explain_missing_extra("browser"))))
        for tool in build_browser_extension(has_cdp=True).tools:
            yield ToolStanding(name=tool.name, toolset=_BROWSER, is_available=False, note=how)
