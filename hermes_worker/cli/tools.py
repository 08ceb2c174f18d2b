"""``hermes-worker tools list``: list the tools, and why some are unavailable."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from hermes_worker import installed, plugins
from hermes_worker.agent.tools.catalog import declared_catalog
from hermes_worker.cli.layout import table
from hermes_worker.cli.options import common, load_settings, of_tenant
from hermes_worker.cli.screen import one_line
from hermes_worker.core.tool_schemas import UnfitDefinition, fitted_schema
from hermes_worker.local.paths import has_no_rows
from hermes_worker.settings import Settings

if TYPE_CHECKING:
    from hermes_worker.features.mcp_servers.schema import McpServerObject

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


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def tools() -> None:
    """See which tools agents can have here."""


@tools.command("list", epilog="Which of them a run has is decided by its toolsets: 'hermes-worker submit --help'.")
@common
@of_tenant
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
def list_tools(home: Path | None, as_json: bool) -> None:
    """Every tool: whether it is available, and what is missing where it is not."""
    settings = load_settings(home)
    found = [*standings(settings), *_of_rows(settings)]
    if as_json:
        for one in found:
            click.echo(json.dumps(asdict(one)))
        return
    rows = [(one.name, one.toolset, "yes" if one.is_available else "no", one.note) for one in found]
    click.echo(table(rows, ("TOOL", "TOOLSET", "THERE", "NOTE"), ids=(0,), whole=(3,)))


def standings(settings: Settings) -> list[ToolStanding]:
    """List every tool that this version knows, by name."""
    found = {one.name: one for one in (*_absent(settings), *_in_force(settings))}
    return [found[name] for name in sorted(found)]


def _of_rows(settings: Settings) -> Iterator[ToolStanding]:
    """List the tools of MCP servers that the tenant keeps as rows. Asks no server. Raises ``HermesError``."""
    if not settings.mcp.has_rows or has_no_rows(settings):
        return
    from hermes_worker.cli.reaching import home_client

    for one in home_client(settings).mcp_servers():
        yield ToolStanding(
            name=f"{one.toolset}:*", toolset=one.toolset, is_available=one.approved > 0, note=_row_note(one)
        )


def _row_note(one: McpServerObject) -> str:
    if one.state == "unasked":
        return "an MCP server of the tenant; nobody has asked it yet what it offers"
    said = [f"{one.approved} of {len(one.tools)} tools of an MCP server of the tenant are approved"]
    if one.waiting:
        said.append(f"hermes-worker mcp approve {one.name} --row")
    if one.problem is not None:
        said.append(f"it did not answer: {one_line(one.problem, 200)}")
    return "; ".join(said)


def _in_force(settings: Settings) -> Iterator[ToolStanding]:
    catalog = declared_catalog()
    for name in sorted(catalog.names):
        lacking = _lacking(name, catalog.spec(name).toolset, settings)
        yield ToolStanding(
            name=name,
            toolset=catalog.spec(name).toolset,
            is_available=not lacking,
            note=lacking or _does_without(name, settings),
            unfit=_why_unfit(catalog.spec(name).parameters),
        )
    for source in sorted(installed.current().tool_sources):
        yield ToolStanding(
            name=f"{source}:*", toolset=source, is_available=True, note="tools of a source, which workers ask for them"
        )


def _why_unfit(parameters: object) -> str:
    try:
        fitted_schema(parameters)
    except UnfitDefinition as error:
        return str(error)
    return ""


def _lacking(name: str, toolset: str, settings: Settings) -> str:
    if toolset == _BROWSER:
        from hermes_worker.browser.chromium import missing_extra

        return missing_extra() or ""
    if name == "execute_code" and settings.terminal.workspace != "local":
        return f"scripts run in local workspaces only, and terminal.workspace is {settings.terminal.workspace}"
    return ""


def _does_without(name: str, settings: Settings) -> str:
    if name != "read_file":
        return ""
    if settings.terminal.workspace != "local":
        return f"no text of documents: terminal.workspace is {settings.terminal.workspace}"
    return documents_note()


def documents_note() -> str:
    """Write which documents cannot be read here, and how they could be; empty when all can."""
    from hermes_worker.agent.tools.documents import HOW_TO_INSTALL, missing_libraries

    missing = missing_libraries()
    return f"no text of {', '.join(missing)} documents: {HOW_TO_INSTALL}" if missing else ""


def _absent(settings: Settings) -> Iterator[ToolStanding]:
    """List the tools of extensions that come with the product or were installed, and are not enabled."""
    for one in plugins.available(settings.home):
        brought = one.manifest.brings if one.manifest is not None else {}
        needed = ", ".join(brought.get("settings", ()))
        how = f"hermes-worker extensions enable {one.name}" + (f"; it is set by {needed}" if needed else "")
        for name in brought.get("tools", ()):
            yield ToolStanding(name=name, toolset=one.name, is_available=False, note=one.problem or how)
    if not settings.browser.is_enabled:
        from hermes_worker.browser.chromium import missing_extra
        from hermes_worker.browser.declarations import browser_extension

        how = "; ".join(filter(None, ("switched off: HERMES_BROWSER=true", missing_extra())))
        for tool in browser_extension(has_cdp=True).tools:
            yield ToolStanding(name=tool.name, toolset=_BROWSER, is_available=False, note=how)
