"""Verbs of whoever administers an installation, over a server: tenants, keys, webhook routes, retention."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from remote_lines import at_server, fixed, keyed_file, local_line, played, said, same
from serving import Served
from support.commandline import CommandLine
from support.store import Store

from hermes_worker.core.principals import KeyScope
from hermes_worker.core.run import RunStatus
from hermes_worker.features.mcp_servers.rows import McpServers
from hermes_worker.features.mcp_servers.work import ServerLister
from hermes_worker.features.retention.build import build_pruner
from hermes_worker.mcp.protocol import OfferedTools
from hermes_worker.settings import EncryptionSettings, McpSettings, Secret, Settings
from hermes_worker.store.access.audit import AuditLog
from hermes_worker.store.access.principals import Tenants
from hermes_worker.store.tables import kept_answers


@pytest.fixture
def local(api: Served) -> CommandLine:
    return local_line(api)


@pytest.fixture
def remote(api: Served, tmp_path: Path) -> CommandLine:
    return at_server(api.url, tmp_path, keyed_file(tmp_path / "key", api.key))


def test_tenants_and_limits_are_changed_as_in_the_database(local: CommandLine, remote: CommandLine) -> None:
    def lines(name: str) -> list[list[str]]:
        of_it = ["tenants", "limits", name]
        return [
            ["tenants", "create", name],
            ["tenants", "create", name],
            ["tenants", "create", "Not a name"],
            ["tenants", "places", "64"],
            ["tenants", "places", "auto"],
            [*of_it, "--set", "runs=8", "--set", "usd_per_day=12.5", "--waits", "--weight", "2"],
            [*of_it, "--set", "runs=none", "--set", "queued=5"],
            [*of_it, "--json"],
            [*of_it, "--key", "key_000000000000", "--set", "runs=1"],
            ["tenants", "limits", "nobody"],
            ["tenants", "disable", name, "--stop"],
            ["tenants", "enable", name],
            ["tenants", "disable", "default"],
            ["tenants", "disable", "nobody"],
        ]

    def told(hermes: CommandLine, name: str) -> list[str]:
        return [repr(each).replace(name, "NAME") for each in played(hermes, lines(name))]

    assert told(remote, "acme") == told(local, "bolt")
    same(local, remote, [["tenants", "list"], ["tenants", "list", "--json"]])


def test_runs_of_a_disabled_tenant_are_stopped_in_several_requests(
    api: Served, remote: CommandLine, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hermes_worker.features.tenants.key_routes._STOPPED_AT_ONCE", 2)
    Tenants(api.client.database).create_tenant("acme")
    run_ids = [store.submit(tenant="acme").run_id for _ in range(5)]
    ended = remote.inline("tenants", "disable", "acme", "--stop")
    assert (ended.code, ended.out) == (0, "acme disabled; 5 runs stopped\n")
    assert {store.status(run_id) for run_id in run_ids} <= {RunStatus.STOPPING, RunStatus.CANCELLED}


def test_keys_are_made_shown_once_and_revoked_as_in_the_database(
    api: Served, local: CommandLine, remote: CommandLine, tmp_path: Path, store: Store
) -> None:
    Tenants(api.client.database).create_tenant("acme")

    def life(hermes: CommandLine) -> list[object]:
        made = json.loads(
            hermes.inline("tenants", "keys", "create", "ci", "--scope", "admin", "--days", "9", "--json").out
        )
        again = json.loads(
            hermes.inline("tenants", "keys", "rotate", made["key_id"], "--overlap-hours", "1", "--json").out
        )
        revoked = hermes.inline("tenants", "keys", "revoke", again["key_id"])
        theirs = hermes.inline("tenants", "keys", "create", "theirs", "--tenant", "acme")
        refused = [
            hermes.inline("tenants", "keys", "revoke", "key_000000000000"),
            hermes.inline("tenants", "keys", "create", "a/b"),
        ]
        return [sorted(made), sorted(again), fixed(revoked), fixed(theirs), [each.code for each in refused]]

    assert life(remote) == life(local)
    shown = [
        ["tenants", "keys", "list"],
        ["tenants", "keys", "list", "--json"],
        ["tenants", "keys", "list", "--tenant", "acme"],
    ]
    same(local, remote, shown)
    refused = remote.inline("tenants", "keys", "list", "--tenant", "nobody")
    assert (refused.code, "Tenant not found: nobody" in refused.err) == (2, True)
    with store.database.read() as connection:
        bodies = [row.body or "" for row in connection.execute(kept_answers.select())]
    assert not [body for body in bodies if "hwk_" in body]

    key = json.loads(
        remote.inline("tenants", "keys", "create", "boss", "--tenant", "acme", "--scope", "admin", "--json").out
    )
    guest = ["--key-file", str(keyed_file(tmp_path / "acme", key["key"]))]
    assert "theirs" in remote.inline("tenants", "keys", "list", *guest).out
    for words in (
        ["tenants", "keys", "create", "x", "--tenant", "default"],
        ["tenants", "list"],
        ["tenants", "create", "y"],
    ):
        assert remote.inline(*words, *guest).code == (2 if "default" not in words else 0)
    assert "whole installation" in remote.inline("tenants", "list", *guest).err
    assert Tenants(api.client.database).list_keys("acme")[-1].holder == "x"  # its own tenant is the default for a key


def test_webhook_routes_are_kept_listed_tried_and_removed(
    api: Served, local: CommandLine, remote: CommandLine, store: Store
) -> None:
    add = ["gateway", "webhooks", "add", "review", "--events", "push, pull_request", "--prompt", "Review {url}"]
    lines = [
        [*add, "--deliver", "telegram:1", "--filter", '{"path": "a", "equals": 1}'],
        [*add],
        [*add, "--replace"],
        [*add, "--replace", "--disabled"],
        [*add, "--filter", "no json"],
        ["gateway", "webhooks", "add", "Not a name"],
        ["gateway", "webhooks", "add", "bare", "--deliver-only"],
        ["gateway", "webhooks", "add", "mine", "--secret", "0123456789abcdef0"],
        ["gateway", "webhooks", "list"],
        ["gateway", "webhooks", "remove", "review"],
        ["gateway", "webhooks", "remove", "review"],
        ["gateway", "webhooks", "remove", "mine"],
        ["gateway", "webhooks", "list"],
    ]
    here, there = played(local, lines), played(remote, lines)
    assert [(words, code) for words, code, _ in there] == [(words, code) for words, code, _ in here]
    here, there = ([out for words, _, out in each if "add" not in words] for each in (here, there))
    assert there == here
    assert remote.inline("gateway", "webhooks", "add", "tried", "--prompt", "See {a}").out.startswith(
        f"url     {api.url}/webhooks/"
    )
    same(local, remote, [["gateway", "webhooks", "list"], ["gateway", "webhooks", "list", "--json"]])
    for payload in ('{"a": "b"}', '{"b": "ü"}'):
        tried = remote.inline("gateway", "webhooks", "test", "tried", "--payload", payload)
        assert (tried.code, tried.out.startswith("202 ")) == (0, True), tried.err
    assert "has no a" in tried.err
    assert remote.inline("gateway", "webhooks", "test", "nobody").code == 2


def test_rules_and_holds_are_changed_as_in_the_database(local: CommandLine, remote: CommandLine, store: Store) -> None:
    run_id = store.submit().run_id
    lines = [
        ["data", "retention", "set", "runs", "30d/100"],
        ["data", "retention", "show"],
        ["data", "retention", "unset", "runs"],
        ["data", "retention", "show", "--json"],
        ["data", "retention", "set", "runs", "sometimes"],
        ["data", "retention", "set", "cats", "1d"],
        ["data", "retention", "hold", "--run", run_id[:14], "--reason", "a court"],
        ["data", "retention", "hold", "--reason", "all of it"],
        ["data", "retention", "hold", "--run", f"run_{'0' * 32}", "--reason", "x"],
        ["data", "retention", "release", "77"],
    ]
    there = [
        (words, code, out.replace("1 holds", "N").replace("2 holds", "N")) for words, code, out in played(remote, lines)
    ]
    same(local, remote, [["data", "retention", "show", "--json"]])
    for number in ("1", "2"):
        assert remote.inline("data", "retention", "release", number).out == f"{number} released\n"
    same(local, remote, [["data", "retention", "holds"]])
    here = [
        (words, code, out.replace("3 holds", "N").replace("4 holds", "N")) for words, code, out in played(local, lines)
    ]
    assert [(code, out.replace("1 holds", "N").replace("2 holds", "N")) for _, code, out in here] == [
        (code, out) for _, code, out in there
    ]
    same(local, remote, [["data", "retention", "holds"], ["data", "retention", "holds", "--json"]])


DAY_S = 86_400.0


def test_pruning_goes_on_request_after_request(
    api: Served, local: CommandLine, remote: CommandLine, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = [store.submit().run_id for _ in range(3)]
    for run_id in old:
        store.answer(run_id)
    store.let_pass(40 * DAY_S)
    store.answer(store.submit().run_id)  # the newest stays
    assert local.inline("data", "retention", "set", "runs", "30d").code == 0
    same(
        local,
        remote,
        [
            ["data", "prune", "--dry-run"],
            ["data", "prune", "--dry-run", "--json"],
            ["data", "prune", "--dry-run", "--all-tenants"],
        ],
    )
    monkeypatch.setattr("hermes_worker.features.retention.routes._AT_IT_S", 0.0)  # one batch for each request
    done = json.loads(remote.inline("data", "prune", "--json").out)
    assert (done["deleted"]["runs"], done["interrupted"]) == (3, False)
    assert "was deleted" in remote.inline("runs", "show", old[0]).err
    counted = remote.inline("data", "prune", "--dry-run")
    assert "at least so many" in counted.err
    assert (
        sum(batch.count for batch in build_pruner(store.database, api.client.settings).prune_stepwise(acts=False)) == 0
    )


# ------------------------------------------------------------------------------------ what a tenant has of its own


TEXT_KEY = "hwt_" + "k" * 40


@pytest.fixture
def sealed(settings: Settings, serve: Callable[..., Served]) -> Served:
    served = serve(replace(settings, encryption=EncryptionSettings(keys=(Secret(TEXT_KEY),))))
    Tenants(served.client.database).create_tenant("acme")
    return served


def test_provider_keys_are_kept_as_in_the_database(sealed: Served, tmp_path: Path) -> None:
    here = local_line(sealed)
    here.environ["HERMES_ENCRYPTION_KEYS"] = TEXT_KEY
    there = at_server(sealed.url, tmp_path, keyed_file(tmp_path / "operator", sealed.key))
    secret = str(keyed_file(tmp_path / "theirs", "sk-acme-0123456789\n"))
    bad = str(keyed_file(tmp_path / "bad", "sk acme\n"))
    of_acme = ["--tenant", "acme"]
    keys = ["fleet", "providers", "keys"]

    def life(hermes: CommandLine) -> list[object]:
        add = [*keys, "add", "claude", "--file", secret]
        made = json.loads(hermes.inline(*add, *of_acme, "--json").out)
        lines = [
            [*add, *of_acme],
            [*keys, "list", *of_acme],
            [*keys, "list", *of_acme, "--json"],
            [*keys, "list"],
            [*keys, "remove", made["key_id"]],
            [*keys, "remove", made["key_id"], *of_acme],
            [*keys, "remove", made["key_id"], *of_acme],
            [*keys, "list", *of_acme],
            [*keys, "list", "--tenant", "nobody"],
            [*keys, "add", "nobodys", "--file", secret, *of_acme],
            [*keys, "add", "openai", "--file", bad, *of_acme],
            [*keys, "add", "openai", "--file", secret, "--tenant", "nobody"],
        ]
        ended = [hermes.inline(*words) for words in lines]
        assert not [each for each in ended if "sk-acme-0123456789" in each.out + each.err]
        assert "the tenant 'acme' has no provider key in rows now" in ended[5].err
        hidden = [re.sub(r"pkey_\w+", "PKEY", repr(fixed(each))) for each in ended]
        return [sorted(made), hidden]

    assert life(there) == life(here)
    acts = [row for row in AuditLog(sealed.client.database).list_actions("acme") if row.act.startswith("provider_key")]
    assert [row.act for row in acts] == ["provider_key.add", "provider_key.remove"] * 2
    assert [row.address for row in acts] == ["127.0.0.1", "127.0.0.1", None, None]
    boss = Tenants(sealed.client.database).create_key("acme", "boss", [KeyScope.ADMIN]).token
    guest = ["--key-file", str(keyed_file(tmp_path / "boss", boss))]
    refused = there.inline(*keys, "list", *of_acme, *guest)
    assert (refused.code, "whole installation" in refused.err) == (2, True)


def test_targets_of_alerts_are_set_as_in_the_database(
    api: Served, local: CommandLine, remote: CommandLine, tmp_path: Path
) -> None:
    tenants = Tenants(api.client.database)
    tenants.create_tenant("acme")
    tenants.create_tenant("bolt")
    targets = ["fleet", "alerts", "targets"]
    hook = "webhook:https://acme.example/ops"

    def life(hermes: CommandLine) -> list[object]:
        of_acme = [*targets, "--tenant", "acme"]
        return [
            said(hermes.inline(*words))
            for words in (
                of_acme,
                [*of_acme, "--set", hook, "--set", "local", "--set", "local"],
                of_acme,
                [*of_acme, "--set", "telegram:5"],
                [*of_acme, "--set", "pigeon:5"],
                [*of_acme, "--set", "local", "--none"],
                of_acme,
                [*of_acme, "--none"],
                [*targets, "--tenant", "nobody"],
                targets,
            )
        ]

    assert life(remote) == life(local)
    assert life(local)[2] == (0, f"local\n{hook}\n")
    mine = ["--key-file", str(keyed_file(tmp_path / "acme", tenants.create_key("acme", "a", [KeyScope.ADMIN]).token))]
    assert remote.inline(*targets, "--set", "local", *mine).out == "local\n"
    walled = remote.inline(*targets, "--tenant", "bolt", "--set", "local", *mine)
    assert (walled.code, "Tenant not found: bolt" in walled.err) == (2, True)
    weak = keyed_file(tmp_path / "weak", tenants.create_key("acme", "w", [KeyScope.RUNS_WRITE]).token)
    assert remote.inline(*targets, "--key-file", str(weak)).code == 2
    assert local.inline(*targets, "--tenant", "bolt").out == ""
    [last] = [row for row in AuditLog(api.client.database).list_actions("acme") if row.act == "alerts.targets"][-1:]
    assert last.address == "127.0.0.1" and "local" not in repr(last)


def test_mcp_servers_of_a_tenant_are_kept_as_in_the_database(
    settings: Settings, serve: Callable[..., Served], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = serve(replace(settings, mcp=McpSettings(has_rows=True)))
    here = local_line(served)
    here.environ["HERMES_MCP_ROWS"] = "true"
    there = at_server(served.url, tmp_path, keyed_file(tmp_path / "key", served.key))
    monkeypatch.setattr("hermes_worker.features.mcp_servers.work._LOOK_EVERY_S", 0.02)
    monkeypatch.setattr("hermes_worker.features.mcp_servers.verbs._LOOK_S", 0.02)
    offered = [{"name": "look", "description": "Look.", "inputSchema": {"type": "object"}}]
    rows = McpServers(served.client.database)
    looker = ServerLister(rows, lambda held, server: (server, OfferedTools(offered)), (), is_process=False)
    looker.start()

    def life(hermes: CommandLine, name: str) -> list[tuple[int, str]]:
        at = ["https://mcp.example.org/mcp", "--row"]
        lines = [
            ["mcp", "add", name, *at],  # nobody is here to approve
            ["mcp", "list", "--row"],
            ["mcp", "test", name, "--row"],
            ["mcp", "approve", name, "--row", "--yes"],
            ["mcp", "list", "--row"],
            ["mcp", "add", name, *at, "--yes"],  # there is one
            ["mcp", "add", name, *at, "--yes", "--replace", "--trust"],
            ["mcp", "add", f"{name}-sh", "--row", "--", "sh", "-c", "id"],  # the operator allows no command
            ["mcp", "list", "--row", "--json"],
            ["mcp", "remove", name, "--row"],
            ["mcp", "remove", name, "--row"],
        ]
        ended = [hermes.inline(*words) for words in lines]
        assert [each.code for each in ended] == [2, 0, 0, 0, 0, 2, 0, 2, 0, 0, 2], [each.err for each in ended]
        assert "1 tools are approved" in ended[3].out and "allows no such command" in ended[7].err
        return [(each.code, re.sub(r'"looked_at": [^,]*', "", each.out.replace(name, "NAME"))) for each in ended]

    try:
        assert life(there, "desk") == life(here, "shop")
    finally:
        looker.stop()
    acts = [
        row.act for row in AuditLog(served.client.database).list_actions("default") if row.act.startswith("mcp_server")
    ]
    once = ["keep", "test", "test", "approve", "keep", "approve", "remove"]
    assert acts == [f"mcp_server.{act}" for act in once * 2]
