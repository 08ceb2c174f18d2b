"""Rows of tenants' MCP servers: a person's change and a look at a server never undo each other."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa
from support.store import Store

from hermes_worker.features.mcp_servers.rows import (
    SERVERS_MAX,
    McpServerChanged,
    McpServerNotFound,
    McpServerRow,
    McpServers,
    McpServersFull,
    NewMcpServer,
)
from hermes_worker.features.mcp_servers.rules import is_row_source, server_of_source, source_of_row, source_with_tenant
from hermes_worker.features.provider_keys.rows import TextsInClear
from hermes_worker.store.access.principals import TenantNotFound
from hermes_worker.store.engine.database import Database
from hermes_worker.store.engine.sealing import Sealer, text_keys
from hermes_worker.store.resources import ResourceKind, Resources
from hermes_worker.store.tables import mcp_servers
from hermes_worker.store.tool_sources import ToolSources

ONE = ['{"function":{"name":"a"},"type":"function"}']


def kept(rows: McpServers, name: str = "desk", *, before: McpServerRow | None = None, **more: Any) -> McpServerRow:
    new = NewMcpServer(**{"server": "{}", "is_process": False, **more})
    rows.keep("default", name, new, before=before, facts={})
    return rows.require("default", name)


def test_names_of_sources_say_the_server_and_whose_it_is() -> None:
    assert server_of_source(source_of_row("desk")) == ("desk", None)
    assert server_of_source(source_with_tenant("desk", "acme")) == ("desk", "acme")
    assert is_row_source(source_of_row("desk")) and not is_row_source("desk")


def test_a_look_that_a_change_overtook_writes_nothing(store: Store) -> None:
    rows, sources = McpServers(store.database), ToolSources(store.database)
    seen = kept(rows)
    assert rows.take_due(is_process=False) == ("default", "desk")
    assert rows.take_due(is_process=False) is None, "one looks at it"
    kept(rows, before=seen, is_elsewhere=True)
    assert not rows.looked(seen, offered="[]", server="{}", definitions=ONE, again_s=300.0)
    assert not rows.failed(seen, "late", again_s=300.0)
    assert sources.rows("default") == []
    assert rows.take_due(is_process=False) == ("default", "desk"), "the change is looked at"
    assert rows.looked(rows.require("default", "desk"), offered="[]", server="{}", definitions=ONE, again_s=300.0)
    assert [row.definitions for row in sources.rows("default")] == [ONE]
    assert sources.rows("acme") == [], "it is its tenant's"
    assert rows.take_due(is_process=False) is None
    rows.ask_again("default", "desk")
    assert rows.take_due(is_process=True) is None and rows.take_due(is_process=False) is not None


def test_a_look_at_a_row_that_was_removed_is_not_about_the_next_one_of_its_name(store: Store) -> None:
    rows = McpServers(store.database)
    seen = kept(rows)
    rows.remove("default", "desk")
    kept(rows)
    assert not rows.looked(seen, offered="[]", server="{}", definitions=ONE, again_s=300.0)
    with pytest.raises(McpServerChanged):
        rows.approve(seen, "{}", facts={})
    with pytest.raises(McpServerChanged):
        kept(rows, before=None)


def test_a_failed_look_keeps_what_sessions_have_and_says_why(store: Store) -> None:
    rows, sources = McpServers(store.database), ToolSources(store.database)
    row = kept(rows)
    rows.looked(row, offered="[]", server="{}", definitions=ONE, again_s=0.0)
    assert rows.failed(row, "it is away", again_s=300.0)
    found = rows.require("default", "desk")
    assert (found.problem, found.offered) == ("it is away", "[]")
    assert [each.definitions for each in sources.rows("default")] == [ONE]


def test_a_server_goes_with_its_tools_and_its_processes_and_nobody_elses(store: Store) -> None:
    rows, sources, resources = McpServers(store.database), ToolSources(store.database), Resources(store.database)
    session_id = store.submit().run_id
    for name in ("desk", "shop"):
        rows.looked(kept(rows, name), offered="[]", server="{}", definitions=ONE, again_s=300.0)
        resources.want(session_id, ResourceKind.MCP_STDIO, source_of_row(name))
    resources.want(session_id, ResourceKind.MCP_STDIO, "desk")
    with pytest.raises(McpServerNotFound):
        rows.remove("acme", "desk")
    rows.remove("default", "desk")
    assert [row.source for row in sources.rows("default")] == ["mcp:shop"]
    there = {
        name for name in ("mcp:desk", "mcp:shop", "desk") if resources.find(session_id, ResourceKind.MCP_STDIO, name)
    }
    assert there == {"mcp:shop", "desk"}
    assert [row.name for row in rows.of_tenant("default")] == ["shop"]


def test_a_token_is_sealed_and_never_kept_in_clear(store: Store) -> None:
    rows = McpServers(store.database)
    with pytest.raises(TextsInClear):
        kept(rows, token="s3cret-of-desk")
    assert rows.find("default", "desk") is None
    url = store.database.url.render_as_string(hide_password=False)
    sealing = Database(url, sealer=Sealer(text_keys(["k" * 40])))
    try:
        sealed = McpServers(sealing)
        first = kept(sealed, token="s3cret-of-desk")
        held = sealed.held("default", "desk")
        assert held is not None and held.token == "s3cret-of-desk" and first.has_token
        assert "s3cret" not in repr(held)
        with store.database.read() as connection:
            stored = connection.execute(sa.select(sa.type_coerce(mcp_servers.c.token, sa.Text()))).scalar_one()
        assert "s3cret" not in stored
        again = kept(sealed, before=first, keeps_token=True)
        assert again.has_token
        assert not kept(sealed, before=again, is_elsewhere=True).has_token, "another address gets no token of before"
    finally:
        sealing.close()


def test_a_tenant_has_so_many_and_there_has_to_be_one(store: Store) -> None:
    rows = McpServers(store.database)
    with pytest.raises(TenantNotFound):
        rows.keep("nobody", "desk", NewMcpServer(server="{}", is_process=False), before=None, facts={})
    for number in range(SERVERS_MAX):
        kept(rows, f"desk{number}")
    with pytest.raises(McpServersFull):
        kept(rows, "more")
