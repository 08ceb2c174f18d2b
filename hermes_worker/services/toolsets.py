"""The toolsets that a run can name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hermes_worker.agent.tools.catalog import build_sourced_catalog
from hermes_worker.services.submission import choose_default_toolsets, list_sourced_tools
from hermes_worker.wiring import Client


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolsetView:
    """A named group of tools."""

    name: str
    tools: Sequence[str]
    is_usual: bool
    """Whether a run of the API that names no toolsets has all of it."""


def list_tenant_toolsets(client: Client, tenant: str) -> list[ToolsetView]:
    """List the toolsets that a tenant's runs can name, by name. Raises ``UnavailableError``."""
    catalog = build_sourced_catalog(
        list_sourced_tools(client.tool_sources, tenant, has_rows=client.settings.mcp.has_rows)
    )
    usual = set(catalog.resolve(client.settings.agent.toolsets or choose_default_toolsets("api")))
    return [
        ToolsetView(name=name, tools=tools, is_usual=usual.issuperset(tools))
        for name, tools in catalog.toolsets.items()
    ]
