"""Tenants and keys, and that nothing of one tenant is found by another, on both databases."""

from __future__ import annotations

import pytest
import sqlalchemy as sa
from support.store import Store

from hermes_worker.core.principals import InvalidName, KeyScope
from hermes_worker.core.questions import Question
from hermes_worker.core.replay import Replay
from hermes_worker.core.run import WaitKind
from hermes_worker.features.webhooks.rows import Webhooks
from hermes_worker.safety.approvals import ApprovalChoice
from hermes_worker.store.access.principals import (
    DefaultTenantStays,
    KeyNotFound,
    TenantDisabled,
    TenantExists,
    TenantNotFound,
    Tenants,
)
from hermes_worker.store.jobs.job_rows import JobProgress
from hermes_worker.store.jobs.jobs import JobNotFound, Jobs
from hermes_worker.store.outbox.deliveries import Deliveries
from hermes_worker.store.runs.waits import Waits
from hermes_worker.store.tables import api_keys, runs, sessions
from hermes_worker.store.whole_schema import load_schema

INSTALLATION = {"workers", "blobs", "maintenance", "logins", "statistics", "tenants", "schema_revisions", "text_keys"}
INSTALLATION |= {"key_states", "configurations"}
"""Tables whose rows nobody owns. A blob is found by the hash of what somebody has already. Operators alone write and
read configurations, a tenant's as well."""
DRAWN = {"pk", "run_id", "session_id", "job_id", "delivery_id", "receipt_id", "key_id", "hash"}
DRAWN |= {"run_pk", "session_pk", "job_pk", "artifact_id", "resource_id", "process_id", "entry_id"}
"""Columns whose values the product draws, or that name a row which has an owner."""
SET_UP = {"account"}
"""Columns whose values stand in the installation's settings, which are the operator's."""


def test_every_table_has_an_owner_and_every_key_that_callers_choose_includes_it() -> None:
    for table in load_schema().tables.values():
        owners = {"tenant"} & set(table.c.keys()) or _parents(table)
        assert owners or table.name in INSTALLATION, f"{table.name}: whose are its rows?"
        uniques = [
            constraint
            for constraint in table.constraints
            if isinstance(constraint, sa.UniqueConstraint | sa.PrimaryKeyConstraint)
        ]
        if "tenant" in table.c:
            for constraint in uniques:
                names = {column.name for column in constraint.columns}
                assert "tenant" in names or names & (DRAWN | SET_UP), f"{table.name}: {sorted(names)} lacks the tenant"
            for index in table.indexes:
                names = {column.name for column in index.columns}
                assert not index.unique or "tenant" in names or names <= DRAWN | SET_UP | _CHILD, (
                    f"{index.name} lacks the tenant"
                )


_CHILD = {"parent_pk", "parent_iteration", "parent_position", "child_index"}


def _parents(table: sa.Table) -> set[str]:
    """The tables whose rows own those of ``table``."""
    return {key.column.table.name for key in table.foreign_keys} | (
        {"runs"} if {"run_pk", "root_pk"} & set(table.c.keys()) else set()
    )


# --- tenants and keys ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", "Acme", "a_b", "-a", "a-", "a/b", "..", "a" * 41, "ä"])
def test_a_name_that_could_be_a_path_is_no_tenants(store: Store, name: str) -> None:
    with pytest.raises(InvalidName):
        Tenants(store.database).create_tenant(name)


def test_tenants_are_made_once_and_must_be_there(store: Store) -> None:
    tenants = Tenants(store.database)
    assert [view.name for view in tenants.list_tenants()] == ["default"]
    assert not tenants.has_others()
    tenants.create_tenant("acme")
    for name in ("acme", "default"):
        with pytest.raises(TenantExists):
            tenants.create_tenant(name)
        assert tenants.require_tenant(name) == name
    assert tenants.has_others()
    for wrong in (tenants.require_tenant, lambda name: tenants.create_key(name, "ci", [])):
        with pytest.raises(TenantNotFound, match="hermes-worker tenants create other"):
            wrong("other")
    store.submit(tenant="acme")
    assert [(view.name, view.runs) for view in tenants.list_tenants()] == [("default", 0), ("acme", 1)]


def test_a_disabled_tenant_has_no_key_until_it_is_enabled(store: Store) -> None:
    tenants = Tenants(store.database)
    tenants.create_tenant("acme")
    made = tenants.create_key("acme", "ci", [KeyScope.ADMIN])
    for _ in range(2):
        tenants.disable_tenant("acme")
    [_, view] = tenants.list_tenants()
    assert view.disabled_at is not None
    for refused in (lambda: tenants.find_principal(made.token), lambda: tenants.require_enabled("acme")):
        with pytest.raises(TenantDisabled, match="'acme' is disabled"):
            refused()
    assert tenants.find_principal("hwk_of_nobody") is None
    assert tenants.require_tenant("acme") == "acme"
    tenants.enable_tenant("acme")
    principal = tenants.find_principal(made.token)
    assert principal is not None
    assert principal.tenant == tenants.require_enabled("acme") == "acme"
    for wrong in (tenants.disable_tenant, tenants.enable_tenant, tenants.require_enabled):
        with pytest.raises(TenantNotFound):
            wrong("other")
    with pytest.raises(DefaultTenantStays):
        tenants.disable_tenant("default")
    assert tenants.require_enabled("default") == "default"


def test_the_schedule_of_a_disabled_tenant_holds(store: Store) -> None:
    tenants, jobs = Tenants(store.database), Jobs(store.database)
    tenants.create_tenant("acme")
    due = JobProgress(state="scheduled", next_slot=1.0, next_fire_at=1.0)
    theirs, ours = (each.create("job", "{}", lambda _id, _now: due).pk for each in (jobs.for_tenant("acme"), jobs))
    tenants.disable_tenant("acme")
    assert list(jobs.list_due()) == [ours]
    tenants.enable_tenant("acme")
    assert sorted(jobs.list_due()) == [theirs, ours]


def test_a_key_says_whose_it_is_until_it_ends(store: Store) -> None:
    tenants = Tenants(store.database)
    tenants.create_tenant("acme")
    made = tenants.create_key("acme", "ci", [KeyScope.RUNS_READ], expires_in_s=60)
    who = tenants.find_principal(made.token)
    assert who is not None
    assert (who.tenant, who.name, who.scopes) == ("acme", f"api:ci/{made.view.key_id}", {KeyScope.RUNS_READ})
    assert tenants.find_principal(made.token + "x") is None
    assert tenants.list_keys("default") == []
    store.let_pass(61)
    assert tenants.find_principal(made.token) is None


def test_a_rotated_key_opens_for_the_overlap_and_the_new_one_lasts_as_long(store: Store) -> None:
    tenants = Tenants(store.database)
    old = tenants.create_key("default", "ci", [KeyScope.JOBS], expires_in_s=1_000)
    new = tenants.rotate_key("default", old.view.key_id, overlap_s=100)
    assert tenants.find_principal(old.token) is not None
    assert tenants.find_principal(new.token) is not None
    assert (new.view.holder, new.view.scopes) == ("ci", ("jobs",))
    assert new.view.expires_at is not None
    assert new.view.expires_at - new.view.created_at == pytest.approx(1_000, abs=1)
    store.let_pass(101)
    assert tenants.find_principal(old.token) is None
    assert tenants.find_principal(new.token) is not None
    kept, _ = tenants.list_keys("default")
    assert kept.replaced_by == new.view.key_id
    again = tenants.rotate_key("default", new.view.key_id, overlap_s=10**6)
    assert again.view.expires_at is not None
    store.let_pass(1_000)
    assert tenants.find_principal(new.token) is None  # a long overlap does not prolong it


def test_a_key_of_another_tenant_is_neither_rotated_nor_revoked(store: Store) -> None:
    tenants = Tenants(store.database)
    tenants.create_tenant("acme")
    made = tenants.create_key("default", "ci", [])
    for wrong in (tenants.revoke_key, lambda tenant, key: tenants.rotate_key(tenant, key, overlap_s=0)):
        with pytest.raises(KeyNotFound):
            wrong("acme", made.view.key_id)
    tenants.revoke_key("default", made.view.key_id)
    tenants.revoke_key("default", made.view.key_id)
    assert tenants.find_principal(made.token) is None


def test_the_last_use_is_written_once_a_minute(store: Store) -> None:
    tenants = Tenants(store.database)
    made = tenants.create_key("default", "ci", [])

    def used_at() -> float:
        tenants.find_principal(made.token)
        [view] = tenants.list_keys("default")
        assert view.last_used_at is not None
        return view.last_used_at

    first = used_at()
    assert used_at() == first
    with store.database.write() as connection:
        connection.execute(sa.update(api_keys).values(last_used_at=api_keys.c.last_used_at - 61))
    assert used_at() >= first


# --- whose rows are --------------------------------------------------------------------------------------------------


def owners(store: Store, run_ids: list[str]) -> set[tuple[str, str]]:
    """The tenants of runs and of their sessions."""
    wanted = sa.select(runs.c.tenant, sessions.c.tenant).join(sessions, sessions.c.pk == runs.c.session_pk)
    with store.database.read() as connection:
        return {(row[0], row[1]) for row in connection.execute(wanted.where(runs.c.run_id.in_(run_ids)))}


@pytest.mark.parametrize("count", [1, 3])
def test_what_a_run_causes_is_its_tenants(store: Store, count: int) -> None:
    run_id = store.with_tools(Replay.PURE, tenant="acme", principal="api:ci/key_1", deliver=["local"])
    children = store.delegate(run_id, count, note="they work in the background")
    assert owners(store, [run_id, *children]) == {("acme", "acme")}
    store.answer(run_id)
    for child in children:
        store.answer(child)
    every = store.views.list_runs(tenant="acme")
    assert len(every) == count + 2  # with the turn that they began
    assert owners(store, [view.run_id for view in every]) == {("acme", "acme")}
    assert store.views.list_runs() == []
    assert len(Deliveries(store.database).list(tenant="acme")) == 1
    assert Deliveries(store.database).list() == []


def test_names_mean_something_within_a_tenant(store: Store) -> None:
    made = [store.submit(tenant=tenant, session_id="s", idempotency_key="k") for tenant in ("default", "acme")]
    assert made[0].run_id != made[1].run_id
    assert not any(each.was_replayed for each in made)
    assert store.submit(tenant="acme", session_id="s", idempotency_key="k").run_id == made[1].run_id
    found = [store.views.list_runs(tenant=tenant, session_id="s") for tenant in ("default", "acme")]
    assert [[view.run_id for view in each] for each in found] == [[each.run_id] for each in made]


def test_the_beginning_of_an_id_is_completed_among_the_tenants_own(store: Store) -> None:
    mine, theirs = (store.submit(tenant=tenant).run_id for tenant in ("default", "acme"))
    assert store.views.complete_id(mine[:12]) == mine
    assert store.views.complete_id(theirs[:12]) == theirs[:12]
    assert store.views.complete_id(theirs[:12], tenant="acme") == theirs


def test_a_pattern_that_is_allowed_for_good_is_allowed_for_a_tenant(store: Store) -> None:
    waits = Waits(store.database)
    run_id = store.with_tools(Replay.ONCE, tenant="acme")
    request = {"command": "rm -r x", "pattern_key": "rm"}
    question = Question(
        kind=WaitKind.APPROVAL, request=request, choices=[c.value for c in ApprovalChoice], expires_s=None
    )
    waits.ask(store.call(run_id), question)
    assert [view.run_id for view in waits.list_open(tenant="acme")] == [run_id]
    assert waits.list_open(tenant="default") == []
    waits.approve(run_id, ApprovalChoice.ALWAYS, by="api:ci")
    for tenant, allowed in (("acme", {"rm"}), ("default", set())):
        claim = store.call(store.with_tools(Replay.ONCE, tenant=tenant))
        assert waits.load_terms(claim.run_pk).allowed == allowed


def test_jobs_and_routes_are_found_by_their_tenant_alone(store: Store) -> None:
    of_default, of_acme = Jobs(store.database), Jobs(store.database, "acme")
    place = JobProgress(state="scheduled", next_slot=None, next_fire_at=None)
    mine, theirs = (jobs.create("news", "{}", lambda job_id, now: place) for jobs in (of_default, of_acme))
    assert of_default.get("news").job_id == mine.job_id
    assert of_acme.get("news").job_id == theirs.job_id
    for refused in (
        of_default.get,
        of_default.remove,
        lambda job: of_default.change(job, lambda row, now: pytest.fail()),
    ):
        with pytest.raises(JobNotFound):
            refused(theirs.job_id)
    assert [row.job_id for row in of_default.list_jobs()] == [mine.job_id]
    routes = [Webhooks(store.database, tenant) for tenant in ("default", "acme")]
    for each in routes:
        each.add("r", "secret", "{}")
    routes[0].remove("r")
    assert [row.full_name for row in routes[1].list_routes()] == ["acme/r"]
    assert [row.full_name for row in routes[0].list_all_tenants()] == ["acme/r"]
