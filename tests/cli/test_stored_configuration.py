"""``hermes-worker config`` on rows: the fleet's, a tenant's, a session's, and what a run was accepted with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.commandline import CommandLine
from support.store import Store, new_run

from hermes_worker.store.access.audit import AuditLog
from hermes_worker.store.access.principals import Tenants
from hermes_worker.store.configurations import Configurations


@pytest.fixture(autouse=True)
def home(tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch) -> Path:
    """That of the store, whose broker is elsewhere and does not answer."""
    monkeypatch.setenv("HERMES_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HERMES_BROKER_URL", "redis://127.0.0.1:1/0")
    return tmp_path / "home"


def told(hermes: CommandLine, *about: str) -> dict[str, tuple[str, str]]:
    """Value and layer, by key."""
    done = hermes.inline("config", "show", "--json", *about)
    assert done.code == 0, done.said
    rows = [json.loads(line) for line in done.out.splitlines()]
    return {row["key"]: (row["value"], row["layer"]) for row in rows}


def test_the_fleets_configuration_is_set_listed_and_shown(hermes: CommandLine, store: Store) -> None:
    assert hermes.inline("config", "set", "--fleet", "agent.max_turns", "50", "--dry-run").code == 0
    assert Configurations(store.database).find(None) is None
    done = hermes.inline("config", "set", "--fleet", "agent.max_turns", "50")
    assert (done.code, "version 1" in done.err, "+  max_turns: 50" in done.out) == (0, True, True), done.said
    assert hermes.inline("config", "set", "--fleet", "agent.reasoning_effort", "low").code == 0
    assert told(hermes, "agent", "--fleet")["agent.max_turns"] == ("50", "fleet")
    assert told(hermes, "agent")["agent.max_turns"] == ("90", "default"), "what this process was started with"
    listed = hermes.inline("config", "versions").out.splitlines()
    assert [line.split()[0] for line in listed] == ["VERSION", "2", "1"]
    assert hermes.inline("config", "versions", "--text", "1").out == "agent:\n  max_turns: 50\n"
    assert "has no version 9" in hermes.inline("config", "versions", "--text", "9").err
    [first, *_] = AuditLog(store.database).list_actions("default")
    assert (first.act, first.subject) == ("configuration.write", "fleet")


def test_what_cannot_be_used_is_not_written_and_found_where_it_is(hermes: CommandLine, store: Store) -> None:
    for key, value in (("agent.max_turns", "many"), ("broker.url", "redis://x"), ("no.such", "1")):
        assert hermes.inline("config", "set", "--fleet", key, value).code != 0
    rows = Configurations(store.database)
    assert rows.find(None) is None
    assert hermes.inline("config", "check", "--fleet").code == 0
    rows.write(None, "agent: {max_turns: many}", expected=0, written_by="by hand")
    checked = hermes.inline("config", "check", "--fleet")
    assert (checked.code, "version 1 of the configuration of the fleet cannot be used" in checked.out) == (1, True)


def test_an_editor_changes_a_tenants(
    hermes: CommandLine, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Tenants(store.database).create_tenant("acme")
    editor = tmp_path / "editor.sh"
    editor.write_text("#!/bin/sh\nsleep 1\necho 'agent: {max_turns: 20}' > \"$1\"\n")
    editor.chmod(0o755)
    monkeypatch.setitem(hermes.environ, "VISUAL", str(editor))
    done = hermes.inline("config", "edit", "--tenant", "acme")
    assert done.code == 0, done.said
    assert told(hermes, "agent.max", "--tenant", "acme")["agent.max_turns"] == ("20", "tenant")
    assert told(hermes, "agent.max", "--fleet")["agent.max_turns"] == ("90", "default")
    refused = hermes.inline("config", "set", "--tenant", "acme", "lease.ttl_s", "1")
    assert "cannot be overridden for a tenant" in refused.err
    assert "give one of" in hermes.inline("config", "set", "--tenant", "acme", "--fleet", "agent.max_turns", "1").err


def test_a_session_says_less_and_a_run_shows_what_it_was_accepted_with(hermes: CommandLine, store: Store) -> None:
    overrides = {"agent.max_turns": "30"}
    created = store.runs.create(new_run(overrides=overrides, overridden_by={"agent.max_turns": "run"}))
    assert hermes.inline("config", "set", "--session", created.session_id, "agent.max_turns", "10").code == 0
    refused = hermes.inline("config", "set", "--session", created.session_id, "agent.max_turns", "1000")
    assert "may not allow more than what stands above: '90'" in refused.err
    assert told(hermes, "agent.max", "--session", created.session_id)["agent.max_turns"] == ("10", "session")
    assert told(hermes, "agent.max", "--run", created.run_id)["agent.max_turns"] == ("30", "run")
    assert hermes.inline("config", "set", "--session", created.session_id, "agent.max_turns", "").code == 0
    assert told(hermes, "agent.max", "--session", created.session_id)["agent.max_turns"] == ("90", "default")
