"""Rows of tenants' MCP servers: a person's change and a look at a server never undo each other."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa
from support.store import Store

from hermes_worker.core.row_sources import (
    format_source,
    format_source_with_tenant,
    is_row_source,
    parse_source,
)
from hermes_worker.features.mcp_servers.rows import (
    SERVERS_MAX,
    McpServerChanged,
    McpServerNotFound,
    McpServerRow,
    McpServers,
    McpServersFull,
    NewMcpServer,
)
from hermes_worker.store.access.principals import TenantNotFound
from hermes_worker.store.engine.database import Database, TextsInClear
from hermes_worker.store.engine.sealing import Sealer, build_text_keys
from hermes_worker.store.resources import ResourceKind, Resources
from hermes_worker.store.tables import mcp_servers
from hermes_worker.store.tool_sources import ToolSources

ONE = ['{"function":{"name":"a"},"type":"function"}']


def kept(rows: McpServers, name: str = "desk", *, before: McpServerRow | None = None, **more: Any) -> McpServerRow:
    new = NewMcpServer(**{"server": "{}", "is_process": False, **more})
    rows.write_server("default", name, new, before=before, facts={})
    return rows.require("default", name)


def test_names_of_sources_say_the_server_and_whose_it_is() -> None:
    assert parse_source(format_source("desk")) == ("desk", None)
    assert parse_source(format_source_with_tenant("desk", "acme")) == ("desk", "acme")
    assert is_row_source(format_source("desk")) and not is_row_source("desk")


def test_a_look_that_a_change_overtook_writes_nothing(store: Store) -> None:
    rows, sources = McpServers(store.database), ToolSources(store.database)
    seen = kept(rows)
    assert rows.claim_due(is_process=False) == ("default", "desk")
    assert rows.claim_due(is_process=False) is None, "one looks at it"
    kept(rows, before=seen, is_elsewhere=True)
    assert not rows.record_offer(seen, offered="[]", server="{}", definitions=ONE, again_s=300.0)
    assert not rows.record_problem(seen, "late", again_s=300.0)
    assert sources.list_sources("default") == []
    assert rows.claim_due(is_process=False) == ("default", "desk"), "the change is looked at"
    assert rows.record_offer(rows.require("default", "desk"), offered="[]", server="{}", definitions=ONE, again_s=300.0)
    assert [row.definitions for row in sources.list_sources("default")] == [ONE]
    assert sources.list_sources("acme") == [], "it is its tenant's"
    assert rows.claim_due(is_process=False) is None
    rows.mark_due("default", "desk")
    assert rows.claim_due(is_process=True) is None and rows.claim_due(is_process=False) is not None


def test_a_look_at_a_row_that_was_removed_is_not_about_the_next_one_of_its_name(store: Store) -> None:
    rows = McpServers(store.database)
    seen = kept(rows)
    rows.remove("default", "desk")
    kept(rows)
    assert not rows.record_offer(seen, offered="[]", server="{}", definitions=ONE, again_s=300.0)
    with pytest.raises(McpServerChanged):
        rows.approve(seen, "{}", facts={})
    with pytest.raises(McpServerChanged):
        kept(rows, before=None)


def test_a_failed_look_keeps_what_sessions_have_and_says_why(store: Store) -> None:
    rows, sources = McpServers(store.database), ToolSources(store.database)
    row = kept(rows)
    rows.record_offer(row, offered="[]", server="{}", definitions=ONE, again_s=0.0)
    assert rows.record_problem(row, "it is away", again_s=300.0)
    found = rows.require("default", "desk")
    assert (found.problem, found.offered) == ("it is away", "[]")
    assert [each.definitions for each in sources.list_sources("default")] == [ONE]


def test_a_server_goes_with_its_tools_and_its_processes_and_nobody_elses(store: Store) -> None:
    rows, sources, resources = McpServers(store.database), ToolSources(store.database), Resources(store.database)
    session_id = store.submit().run_id
    for name in ("desk", "shop"):
        rows.record_offer(kept(rows, name), offered="[]", server="{}", definitions=ONE, again_s=300.0)
        resources.request_resource(session_id, ResourceKind.MCP_STDIO, format_source(name))
    resources.request_resource(session_id, ResourceKind.MCP_STDIO, "desk")
    with pytest.raises(McpServerNotFound):
        rows.remove("acme", "desk")
    rows.remove("default", "desk")
    assert [row.source for row in sources.list_sources("default")] == ["mcp:shop"]
    there = {
        name for name in ("mcp:desk", "mcp:shop", "desk") if resources.find(session_id, ResourceKind.MCP_STDIO, name)
    }
    assert there == {"mcp:shop", "desk"}
    assert [row.name for row in rows.list_of_tenant("default")] == ["shop"]


def test_a_token_is_sealed_and_never_kept_in_clear(store: Store) -> None:
    rows = McpServers(store.database)
    with pytest.raises(TextsInClear):
        kept(rows, token="s3cret-of-desk")
    assert rows.find("default", "desk") is None
    url = store.database.url.render_as_string(hide_password=False)
    sealing = Database(url, sealer=Sealer(build_text_keys(["k" * 40])))
    try:
        sealed = McpServers(sealing)
        first = kept(sealed, token="s3cret-of-desk")
        held = sealed.load_with_token("default", "desk")
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
        rows.write_server("nobody", "desk", NewMcpServer(server="{}", is_process=False), before=None, facts={})
    for number in range(SERVERS_MAX):
        kept(rows, f"desk{number}")
    with pytest.raises(McpServersFull):
        kept(rows, "more")
