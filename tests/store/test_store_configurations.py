"""Configurations as rows: versions, compare-and-set, and what is said for a session."""

from __future__ import annotations

import pytest
from support.store import Store, new_run

from hermes_worker.live_settings import add_fleet_configuration
from hermes_worker.settings import load_settings
from hermes_worker.store.access.audit import Actor, AuditLog, set_actor
from hermes_worker.store.access.principals import TenantNotFound, Tenants
from hermes_worker.store.configurations import VERSIONS_KEPT, ConfigurationMoved, Configurations
from hermes_worker.store.runs.runs import SessionNotFound


@pytest.fixture
def rows(store: Store) -> Configurations:
    return Configurations(store.database)


def write(rows: Configurations, tenant: str | None, text: str, expected: int) -> int:
    return rows.write(tenant, text, expected=expected, written_by="me", changed=["agent.max_turns"]).version


def test_whoever_read_an_older_version_writes_nothing(rows: Configurations, store: Store) -> None:
    assert (rows.load_newest_number(), rows.find(None), rows.list_current()) == (0, None, [])
    with set_actor(Actor(tenant="default", name="me")):
        assert write(rows, None, "agent: {max_turns: 5}", 0) == 1
    for expected in (0, 2):
        with pytest.raises(ConfigurationMoved, match="version 1 of this configuration is the newest"):
            write(rows, None, "agent: {max_turns: 6}", expected)
    seen = rows.load_newest_number()
    assert write(rows, None, "agent: {max_turns: 7}", 1) == 2
    assert rows.load_newest_number() > seen > 0
    assert [(row.version, row.text) for row in rows.list_current()] == [(2, "agent: {max_turns: 7}")]
    first = rows.find(None, 1)
    assert first is not None and (first.text, first.written_by) == ("agent: {max_turns: 5}", "me")
    [deed] = [row for row in AuditLog(store.database).list_actions("default") if row.act == "configuration.write"]
    assert (deed.subject, dict(deed.after)) == ("fleet", {"version": 1, "changed": ["agent.max_turns"]})


def test_tenants_have_versions_of_their_own(rows: Configurations, store: Store) -> None:
    Tenants(store.database).create_tenant("acme")
    assert [write(rows, tenant, "agent: {max_turns: 5}", 0) for tenant in (None, "acme", "default")] == [1, 1, 1]
    assert sorted(row.of_tenant for row in rows.list_current()) == ["", "acme", "default"]
    with pytest.raises(TenantNotFound):
        write(rows, "nobody", "", 0)


def test_old_versions_are_deleted(rows: Configurations) -> None:
    for number in range(VERSIONS_KEPT + 3):
        write(rows, None, str(number), number)
    kept = rows.list_versions(None, 1_000)
    assert [kept[0].version, kept[-1].version, len(kept)] == [VERSIONS_KEPT + 3, 4, VERSIONS_KEPT]


def test_what_is_said_for_a_session_is_its_tenants(rows: Configurations, store: Store) -> None:
    created = store.runs.create(new_run())
    session = created.session_id
    assert rows.update_overrides("default", session, {"agent.max_turns": "5", "model.default": "m"}) == {
        "agent.max_turns": "5",
        "model.default": "m",
    }
    assert rows.update_overrides("default", session, {"agent.max_turns": None}) == {"model.default": "m"}
    assert rows.load_overrides("default", "api", session) == {"model.default": "m"}
    assert rows.load_overrides("acme", "api", session) == {}
    assert rows.require_overrides_of_any(session) == ("default", {"model.default": "m"})
    for ask in (
        lambda: rows.update_overrides("acme", session, {"model.default": "x"}),
        lambda: rows.require_overrides("acme", session),
        lambda: rows.require_overrides_of_any("run_of_nobody"),
    ):
        with pytest.raises(SessionNotFound):
            ask()


def test_a_process_starts_with_what_is_not_looked_up_while_it_runs(rows: Configurations, store: Store) -> None:
    given = load_settings({"HERMES_LOG_LEVEL": "ERROR"})
    assert add_fleet_configuration(given, store.database, {}) is given
    write(rows, None, "lease: {ttl_s: 33}\nagent: {max_turns: 5}", 0)
    write(rows, None, "lease: {ttl_s: never}", 1)
    started = add_fleet_configuration(given, store.database, {})
    assert (started.lease.ttl_s, started.agent.iterations_max) == (33.0, 90), "the newest version that can be used"
    assert started.origins["lease.ttl_s"].layer == "fleet"
