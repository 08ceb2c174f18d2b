"""MCP servers in rows of a tenant: a real one of the reference SDK, kept, looked at, approved, called and removed."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from support.mcp_servers import answer, misbehaving, saying
from support.mcp_stand import sandbox
from support.store import Store, opened
from test_mcp_client import url as url

from hermes_worker import installed
from hermes_worker.agent.source_tools import parse_definition
from hermes_worker.agent.tools.base import ToolContext
from hermes_worker.agent.tools.catalog import build_default_catalog, build_sourced_catalog
from hermes_worker.agent.tools.dispatch import run_tool
from hermes_worker.agent.tools.sources import ToolGone
from hermes_worker.cli import roles
from hermes_worker.core.replay import Replay
from hermes_worker.features.mcp_servers.rows import McpServerExists, McpServers
from hermes_worker.features.mcp_servers.schema import McpServerObject
from hermes_worker.features.mcp_servers.service import (
    McpOfferChanged,
    McpRowsOff,
    McpServerDraft,
    McpServerInvalid,
    approve_mcp_server,
    ask_mcp_server_again,
    build_mcp_server_view,
    store_mcp_server,
)
from hermes_worker.features.mcp_servers.work import (
    RowServers,
    ServerLister,
    find_row_process,
    make_address_asker,
    make_process_asker,
)
from hermes_worker.hosting.program import NotStarted
from hermes_worker.net.urls import UrlPolicy
from hermes_worker.services.submission import list_sourced_tools
from hermes_worker.settings import McpSettings, load_settings
from hermes_worker.store.access.principals import Tenants
from hermes_worker.store.engine.database import Database
from hermes_worker.store.engine.sealing import CLEAR
from hermes_worker.store.resources import ResourceKind, Resources
from hermes_worker.store.tool_sources import ToolSources
from hermes_worker.workspaces.sandbox.network import RunOrigin

ON = McpSettings(has_rows=True)
HERE = UrlPolicy(allows_private=True)
SUPPORT = Path(__file__).parents[1] / "support"


class Tenant:
    """What an administrator of ``acme`` and a worker do."""

    def __init__(self, store: Store, policy: UrlPolicy = HERE, settings: McpSettings = ON) -> None:
        self.rows = McpServers(store.database)
        self.settings = settings
        self.sources, self.allows = ToolSources(store.database), True
        taken = installed.get_installed().tools
        self.looker = ServerLister(self.rows, make_address_asker(policy), taken, is_process=False)
        services = {"row_sources": RowServers(self.rows, Resources(store.database), policy)}
        self.catalog = build_default_catalog(services=services)

    def keep(self, name: str = "desk", **wanted: Any) -> McpServerObject:
        return store_mcp_server(self.rows, self.settings, "acme", name, McpServerDraft(**wanted))

    def look(self) -> McpServerObject:
        for thread in self.looker.poll_once():
            thread.join()
        return build_mcp_server_view(self.rows.require("acme", "desk"))

    def approve(self, offer: str | None) -> McpServerObject:
        assert offer is not None
        return approve_mcp_server(self.rows, self.settings, "acme", "desk", offer)

    def offered(self, tenant: str = "acme") -> list[str]:
        return list(list_sourced_tools(self.sources, tenant, has_rows=self.allows))

    def frozen(self) -> Any:
        """The catalogue of a session that begins now."""
        return self.catalog.for_session(f"[{','.join(self.offered())}]")


@pytest.fixture
def tenant(tmp_path: Path) -> Iterator[Tenant]:
    with opened(f"sqlite:///{tmp_path / 'x.db'}") as store:
        Tenants(store.database).create_tenant("acme")
        yield Tenant(store)


@pytest.fixture
def theirs(context: ToolContext) -> ToolContext:
    return replace(context, origin=RunOrigin(source="api", tenant="acme"))


def test_a_server_is_kept_looked_at_approved_called_and_removed_without_a_restart(
    tenant: Tenant, url: str, theirs: ToolContext, context: ToolContext
) -> None:
    assert tenant.keep(url=url).state == "unasked"
    seen = tenant.look()
    assert (seen.state, seen.waiting, tenant.offered()) == ("waiting", ["keep", "look", "sell"], [])
    tenant.approve(seen.offer)
    assert tenant.look().state == "ready"
    assert tenant.offered("default") == [], "of another tenant"

    catalog = build_sourced_catalog(tenant.offered())
    assert {"mcp_desk_look", "mcp_desk_sell"} <= set(catalog.resolve(["hermes-cli"])), "in the usual toolsets"
    assert catalog.resolve(["mcp:desk"]) == ("mcp_desk_keep", "mcp_desk_look", "mcp_desk_sell")
    frozen = tenant.frozen()
    told = run_tool(frozen.get("mcp_desk_look"), '{"what": "the door"}', theirs)
    assert not told.is_error and "untrusted_tool_result" in told.text and "the door" in told.text

    other = run_tool(frozen.get("mcp_desk_look"), '{"what": "the door"}', context)
    assert other.is_error and "not there any more" in other.text, "another tenant has no such server"
    tenant.rows.remove("acme", "desk")
    gone = run_tool(frozen.get("mcp_desk_look"), '{"what": "the door"}', theirs)
    assert gone.is_error and "its server was removed" in gone.text
    assert tenant.offered() == []


def test_tools_that_agents_cannot_have_are_told_with_the_reason(tenant: Tenant) -> None:
    fits = {"type": "object", "properties": {}}
    tools = [
        {"name": "sell", "inputSchema": fits},
        {"name": "say", "inputSchema": {"type": "string"}},
        {"inputSchema": fits},
    ]
    with misbehaving(saying(200, answer({"tools": tools}))) as (url, _):
        tenant.keep(url=url)
        seen = tenant.look()
    reason = "takes a value of type 'string' and no object of arguments"
    assert [(one.name, one.reason) for one in seen.left_out] == [("say", reason), ("", "has no name")]
    assert tenant.approve(seen.offer).left_out == seen.left_out
    told = seen.model_dump(mode="json")
    assert told["left_out"] == [{"name": "say", "reason": reason}, {"name": "", "reason": "has no name"}]
    assert McpServerObject.model_validate(told) == seen, "as the command reads it"
    stays = {"url": url, "replaces": True}
    assert tenant.keep(**stays).left_out == [], "what is kept anew was not asked yet"


def test_what_was_not_looked_at_is_not_approved(tenant: Tenant, url: str) -> None:
    tenant.keep(url=url)
    with pytest.raises(McpOfferChanged, match="nobody has asked"):
        tenant.approve("0" * 16)
    seen = tenant.look()
    with pytest.raises(McpOfferChanged, match="something else"):
        tenant.approve("0" * 16)
    approved, again = tenant.approve(seen.offer), tenant.approve(seen.offer)
    assert approved == again.model_copy(update={"changed_at": pytest.approx(seen.changed_at, abs=60)})


def test_another_address_has_nothing_of_the_one_before(tenant: Tenant, url: str) -> None:
    tenant.keep(url=url, trusted=True)
    tenant.approve(tenant.look().offer)
    tenant.look()
    [_, looked, _] = tenant.offered()
    assert '"replay":"pure"' in looked, "a trusted server says how its tools may be repeated"
    with pytest.raises(McpServerExists):
        tenant.keep(url=url)
    assert tenant.keep(url=url, replaces=True).state == "ready", "the same address stays approved"
    tenant.look()
    assert {parse_definition(json.loads(one))[1].replay for one in tenant.offered()} == {Replay.ONCE}
    moved = tenant.keep(url=url.replace("/mcp", "/elsewhere"), replaces=True)
    assert (moved.state, moved.tools, tenant.offered()) == ("unasked", [], [])


def test_a_row_may_not_lead_into_the_network_of_the_installation(tenant: Tenant, url: str, theirs: ToolContext) -> None:
    tenant.keep(url=url)
    tenant.approve(tenant.look().offer)
    tenant.look()
    frozen = tenant.frozen()
    strict = ServerLister(tenant.rows, make_address_asker(UrlPolicy()), (), is_process=False)
    ask_mcp_server_again(tenant.rows, ON, "acme", "desk")
    for thread in strict.poll_once():
        thread.join()
    found = build_mcp_server_view(tenant.rows.require("acme", "desk"))
    assert found.state == "failing" and "address cannot be used" in str(found.problem)
    services = {"row_sources": RowServers(tenant.rows, cast(Any, None), UrlPolicy())}
    refused = build_default_catalog(services=services).for_session(f"[{','.join(tenant.offered())}]")
    told = run_tool(refused.get("mcp_desk_look"), '{"what": "x"}', theirs)
    assert told.is_error and "address cannot be used" in told.text
    assert not run_tool(frozen.get("mcp_desk_look"), '{"what": "x"}', theirs).is_error


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "a command": ("desk", {"command": ("sh", "-c", "id")}, "allows no such command"),
    "a command with more behind it": ("desk", {"command": ("desk-server", "--all", "-c")}, "allows no such command"),
    "both": ("desk", {"url": "https://a.example/", "command": ("desk-server", "--all")}, "either"),
    "neither": ("desk", {}, "either"),
    "no address": ("desk", {"url": "file:///etc/passwd"}, "http"),
    "a password": ("desk", {"url": "https://u:p@a.example/"}, "password"),
    "a name": ("De_sk", {"url": "https://a.example/"}, "cannot be the name"),
    "a variable": (
        "desk",
        {"command": ("desk-server", "--all"), "token_as": "LD_PRELOAD", "token": "x"},
        "has a name that ends",
    ),
    "a variable of an address": ("desk", {"url": "https://a.example/", "token_as": "A_TOKEN"}, "only a server with"),
    "a token": ("desk", {"url": "https://a.example/", "token": "a\r\nHost: b"}, "printable"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_tenant_may_not_keep_is_refused(tenant: Tenant, name: str) -> None:
    called, wanted, said = REFUSED[name]
    tenant.settings = McpSettings(has_rows=True, row_commands=("desk-server --all",))
    with pytest.raises(McpServerInvalid, match=said):
        tenant.keep(called, **wanted)
    assert tenant.rows.list_of_tenant("acme") == []


def test_where_the_operator_allows_no_rows_there_are_none(tenant: Tenant, url: str) -> None:
    tenant.keep(url=url)
    tenant.approve(tenant.look().offer)
    tenant.look()
    assert tenant.offered()
    tenant.allows = False
    assert tenant.offered() == []
    tenant.settings = McpSettings()
    with pytest.raises(McpRowsOff):
        tenant.keep("other", url=url)
    with pytest.raises(McpRowsOff):
        ask_mcp_server_again(tenant.rows, tenant.settings, "acme", "desk")
    with pytest.raises(Exception, match="cannot be used any more"):
        build_default_catalog().get_source("mcp:desk")


def test_a_host_starts_a_command_of_a_row_only_while_the_operator_allows_it(tenant: Tenant, tmp_path: Path) -> None:
    command = (sys.executable, str(SUPPORT / "mcp_desk.py"))
    line = shlex.join(command)
    tenant.settings = McpSettings(has_rows=True, row_commands=(line,))
    assert tenant.keep(command=command, timeout_s=20.0).state == "unasked"
    assert tenant.looker.poll_once() == [], "a worker asks no process"

    def looked(allowed: tuple[str, ...]) -> McpServerObject:
        ask = make_process_asker(sandbox().show_path(str(SUPPORT), writable=str(tmp_path)), allowed)
        looker = ServerLister(tenant.rows, ask, (), is_process=True)
        ask_mcp_server_again(tenant.rows, tenant.settings, "acme", "desk")
        for thread in looker.poll_once():
            thread.join()
        return build_mcp_server_view(tenant.rows.require("acme", "desk"))

    refused = looked(())
    assert refused.state == "failing" and "mcp.row_commands" in str(refused.problem)
    seen = looked((line,))
    assert (seen.state, len(seen.waiting)) == ("waiting", 5)
    approve_mcp_server(tenant.rows, tenant.settings, "acme", "desk", str(seen.offer))
    assert looked((line,)).state == "ready"
    assert len(tenant.offered()) == 5

    wanted = cast(Any, SimpleNamespace(name="mcp:desk", tenant="acme", kind=ResourceKind.MCP_STDIO))
    found = find_row_process(tenant.rows, wanted, (line,))
    assert found is not None and found[0].command == command
    with pytest.raises(NotStarted, match=r"mcp\.row_commands"):
        find_row_process(tenant.rows, wanted, ("desk-server",))
    wanted.tenant = "default"
    assert find_row_process(tenant.rows, wanted, (line,)) is None, "the name is another tenant's"


def test_a_source_that_is_gone_says_so(tenant: Tenant, theirs: ToolContext) -> None:
    source = tenant.catalog.get_source("mcp:nobody")
    assert source.list_tools() == ()
    with pytest.raises(ToolGone):
        source.call("mcp_nobody_x", {}, theirs)


@pytest.mark.parametrize(
    ("command", "made"), [("mcp_processes", "wiring.build_mcp_host"), ("browser", "browser.build.build_browser_host")]
)
def test_a_host_reads_rows_that_are_encrypted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, made: str
) -> None:
    """A token, and where a browser was."""
    told = {"HERMES_HOME": str(tmp_path), "HERMES_PROVIDER": "scripted", "HERMES_ENCRYPTION_KEYS": "hwt_" + "k" * 40}
    seals: list[bool] = []

    def host_of(_settings: object, database: Database, **_: object) -> None:
        seals.append(database.sealer.keys.first != CLEAR)

    def run_role(_home: object, _role: object, _name: object, runner_of: Any, _alive_file: object) -> int:
        with ExitStack() as stack:
            runner_of(load_settings(told), "h", stack)
        return 0

    monkeypatch.setattr(f"hermes_worker.{made}", host_of)
    monkeypatch.setattr(roles, "run_role", run_role)
    assert getattr(roles, command).callback(None, None, None) == 0
    assert seals == [True]
