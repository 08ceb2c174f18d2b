"""What ``doctor`` and ``extensions tools`` say of MCP servers that tenants keep as rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.commandline import CommandLine
from support.store import Store

from hermes_worker.features.mcp_servers import checks
from hermes_worker.features.mcp_servers.rows import McpServers, NewMcpServer
from hermes_worker.mcp.servers import McpServer, approve_tools, make_server
from hermes_worker.settings import load_settings

TOOL = {"name": "read", "inputSchema": {"type": "object"}}
OTHER = {"name": "write", "inputSchema": {"type": "object"}}


@pytest.fixture
def home(tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch) -> Path:
    """That of the store."""
    monkeypatch.setenv("HERMES_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HERMES_BROKER_URL", "redis://127.0.0.1:1/0")
    monkeypatch.setenv("HERMES_MCP_ROWS", "true")
    return tmp_path / "home"


def kept(store: Store, name: str, server: McpServer, offered: list[Any] | None, problem: str = "") -> None:
    rows = McpServers(store.database)
    new = NewMcpServer(server=server.model_dump_json(), is_process=server.is_process)
    rows.write_server("default", name, new, before=None, facts={})
    row = rows.require("default", name)
    if offered is not None:
        rows.record_offer(row, offered=json.dumps(offered), server=row.server, definitions=[], again_s=300.0)
    if problem:
        rows.record_problem(rows.require("default", name), problem, again_s=300.0)


def said() -> list[tuple[str, str]]:
    return [(grade.value, text) for _, examine in checks.list_checks(load_settings()) for grade, text in [examine()]]


ADDRESS = make_server(url="https://mcp.example.org/mcp")
READY = approve_tools(ADDRESS, [TOOL])


def test_the_doctor_counts_the_servers_and_names_those_that_wait_for_somebody(home: Path, store: Store) -> None:
    assert said() == [("ok", "tenants may keep servers of their own, and none does")]
    kept(store, "ready", READY, [TOOL])
    assert said() == [("ok", "1 server of 1 tenant, 1 of them ready")]
    kept(store, "waits", READY, [TOOL, OTHER])
    kept(store, "fails", READY, [TOOL], problem="it is away")
    kept(store, "fresh", ADDRESS, None)
    kept(store, "program", make_server(command=("mcp-files", "/srv")), [])
    [(grade, text)] = said()
    assert grade == "note"
    assert text.startswith("5 servers of 1 tenant, 1 of them ready; default/program is not started: the command")
    for words in ("default/fails is not answering", "default/fresh is not asked yet", "default/waits is waiting for"):
        assert words in text


def test_servers_that_nobody_uses_are_told_and_where_there_are_none_nothing_is(
    home: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HERMES_MCP_ROWS", "false")
    assert said() == []
    kept(store, "ready", READY, [TOOL])
    [(grade, text)] = said()
    assert (grade, text) == (
        "note",
        "1 server of 1 tenant, whose tools no agent has: HERMES_MCP_ROWS (mcp.rows) is not set here",
    )


def test_tools_of_rows_are_listed_for_their_tenant_alone(home: Path, store: Store, hermes: CommandLine) -> None:
    kept(store, "waits", READY, [TOOL, OTHER], problem="it is\naway")
    kept(store, "fresh", ADDRESS, None)
    hermes.environ |= {"HERMES_HOME": str(home), "HERMES_MCP_ROWS": "true"}

    def listed(*more: str) -> dict[str, tuple[bool, str]]:
        out = hermes.inline("extensions", "tools", "--json", *more).out
        found = [json.loads(line) for line in out.splitlines()]
        return {one["name"]: (one["is_available"], one["note"]) for one in found if one["name"].startswith("mcp:")}

    assert listed() == {
        "mcp:fresh:*": (False, "an MCP server of the tenant; nobody has asked it yet what it offers"),
        "mcp:waits:*": (
            True,
            "1 of 2 tools of an MCP server of the tenant are approved; hermes-worker mcp approve waits --row; "
            "it did not answer: it is away",
        ),
    }
    assert listed("--tenant", "acme") == {}
