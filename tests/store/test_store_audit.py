"""The audit log on both databases: every deed has its row, in its transaction, and no row is ever changed."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest
import sqlalchemy as sa
from support.store import Store, asks, new_run
from test_store_retention import pruned

import hermes_worker
from hermes_worker.core.chat_commands import ChatRole
from hermes_worker.core.forks import FORK_KEY, ForkMatch, ForkTerms, ForkTools
from hermes_worker.core.key_states import Finding, KeyCondition
from hermes_worker.core.limits import Limit, LimitName
from hermes_worker.core.principals import KeyScope, Principal
from hermes_worker.core.questions import Question
from hermes_worker.core.replay import Replay
from hermes_worker.core.retention_rules import DEFAULT_RULES, InvalidRule, RetentionKind, parse_rule
from hermes_worker.core.run import WaitKind
from hermes_worker.core.spec import Multitask
from hermes_worker.features.forks.rows import write_grades
from hermes_worker.features.mcp_servers.rows import McpServers, NewMcpServer
from hermes_worker.features.memory.rows import Memories
from hermes_worker.features.memory.rules import MemoryAction, MemoryAuthor, MemoryKey, MemoryOperation, MemoryRules
from hermes_worker.features.provider_keys.rows import ProviderKeys
from hermes_worker.features.retention.erasure_rows import Erasures
from hermes_worker.features.retention.erasure_rules import Person
from hermes_worker.features.retention.hold_rows import Retention
from hermes_worker.features.retention.rows import record_prune
from hermes_worker.features.skills.rows import NewSkillVersion, Skills
from hermes_worker.features.skills.rules import SkillFacts, SkillFile
from hermes_worker.features.webhooks.rows import RouteNotFound, Webhooks
from hermes_worker.safety.approvals import ApprovalChoice
from hermes_worker.store.access.audit import Act, Actor, AuditLog, AuditRow, record_action, set_actor
from hermes_worker.store.access.page_logins import PageLogins
from hermes_worker.store.access.principals import KeyNotFound, TenantExists, Tenants
from hermes_worker.store.access.saved_filters import SavedFilters
from hermes_worker.store.artifacts.uploads import NewUpload, Uploads
from hermes_worker.store.configurations import Configurations
from hermes_worker.store.engine.database import Database
from hermes_worker.store.engine.sealing import Sealer, build_text_keys
from hermes_worker.store.gateway import GatewayRows, KnownChats
from hermes_worker.store.jobs.job_rows import JobProgress
from hermes_worker.store.jobs.jobs import JobEdit, Jobs
from hermes_worker.store.key_states import KeyStates
from hermes_worker.store.outbox.alerts import AlertPolicy, send_test_alert, set_alert_targets
from hermes_worker.store.outbox.deliveries import Deliveries
from hermes_worker.store.rewinds import Rewind
from hermes_worker.store.runs.control import Control
from hermes_worker.store.runs.limits import TenantLimits
from hermes_worker.store.runs.responses import Responses
from hermes_worker.store.runs.runs import RunNotFound, SessionActive
from hermes_worker.store.runs.waits import Waits
from hermes_worker.store.runs.workspaces import RunWorkspaces
from hermes_worker.store.sessions import SessionChanges, Sessions
from hermes_worker.store.tables import audit_log, session_documents, sessions
from hermes_worker.store.workers import Workers

ANN = Actor(tenant="default", name="api:ann/key_1", address="192.0.2.7")
PLACE = JobProgress(state="scheduled", next_slot=1.0, next_fire_at=1.0)
SECRETIVE = "what nobody else may read"


def log(store: Store) -> list[AuditRow]:
    return list(AuditLog(store.database).list_actions(None, limit=1_000))


def ask(store: Store, kind: WaitKind) -> str:
    run_id = store.submit().run_id
    store.ask_tools(run_id, asks(Replay.ONCE))
    request = {"command": "rm -r x"} if kind is WaitKind.APPROVAL else {"question": "which?"}
    choices = ["once", "deny"] if kind is WaitKind.APPROVAL else []
    Waits(store.database).ask(store.call(run_id), Question(kind=kind, request=request, choices=choices, expires_s=None))
    return run_id


def do_everything(store: Store) -> None:
    """Each deed of ``Act`` once at least."""
    database = store.database
    run_id = store.submit(input=SECRETIVE, deliver=["webhook:https://example.org/hook"]).run_id
    Control(database).steer(run_id, SECRETIVE)
    Control(database).pause(run_id)
    Control(database).resume(run_id)
    RunWorkspaces(database).record_restore(run_id, "a" * 40, before="b" * 40, files=1, rewind=Rewind(calls=sa.false()))
    store.runs.stop_tree(run_id, by="somebody")
    Waits(database).approve(ask(store, WaitKind.APPROVAL), ApprovalChoice.DENY, by="somebody", reason=SECRETIVE)
    Waits(database).reply(ask(store, WaitKind.INPUT), SECRETIVE, by="somebody")
    conversations = Sessions(database)
    opened = conversations.open(new_run(), title=SECRETIVE, model=None).label.id
    conversations.change(opened, SessionChanges(title=f"{SECRETIVE} again"))
    conversations.fork(opened, name="copy")
    Responses(database).delete(run_id)
    jobs = Jobs(database)
    written = {"prompt": SECRETIVE, "schedule": {"kind": "interval"}, "deliver": [f"email:{SECRETIVE}"]}
    row = jobs.create(SECRETIVE, json.dumps(written), lambda _id, _now: PLACE)
    changed = json.dumps({**written, "prompt": f"{SECRETIVE} again", "model": "other"})
    jobs.change(row.job_id, lambda _row, _now: JobEdit(place=PLACE, definition=changed))
    jobs.remove(row.job_id)
    tenants = Tenants(database)
    tenants.create_tenant("acme")
    tenants.disable_tenant("acme")
    tenants.enable_tenant("acme")
    Configurations(database).write("acme", f"model:\n  default: {SECRETIVE}\n", expected=0, written_by="somebody")
    keys = KeyStates(database)
    broke = Finding(condition=KeyCondition.NO_MONEY)
    keys.record_failure(("openai", "key1"), broke, run_id=run_id, reason=SECRETIVE)
    keys.open("key1")
    set_alert_targets(database, "acme", [f"webhook:https://{SECRETIVE}"])
    send_test_alert(database, AlertPolicy(targets=("local",)))
    memories, author, place = Memories(database), MemoryAuthor(name="somebody"), MemoryKey(tenant="default")
    rules, wanted = MemoryRules(limit=1_000), [MemoryOperation(action=MemoryAction.ADD, content=SECRETIVE)]
    [(entry_id, _)] = memories.change(place, wanted, rules, author).changed
    memories.undo(place, rules, author)
    memories.redact("default", entry_id, 1)
    staged_id = str(memories.stage(place, wanted, rules, author).staged_id)
    memories.settle_staged("default", staged_id, lambda _target: rules, author, approves=False)
    sealing = Database(database.url.render_as_string(hide_password=False), sealer=Sealer(build_text_keys(["k" * 40])))
    theirs = ProviderKeys(sealing)
    theirs.remove("acme", theirs.add("acme", "openai", f"sk-{SECRETIVE}".replace(" ", "-")).key_id)
    sealing.close()
    kept = McpServers(database)
    asked = NewMcpServer(server=json.dumps({"url": f"https://{SECRETIVE}"}), is_process=False)
    kept.write_server("acme", "desk", asked, before=None, facts={"is_process": False})
    kept.approve(kept.require("acme", "desk"), asked.server, facts={"tools": 0})
    kept.mark_due("acme", "desk")
    kept.remove("acme", "desk")
    tidy = NewSkillVersion(
        facts=SkillFacts(name="tidy", description="Tidies."),
        files=(SkillFile(path="SKILL.md", body=SECRETIVE.encode()),),
    )
    Skills(database).write_skill(tidy, expects=None)
    Skills(database).remove("tidy")
    TenantLimits(database).set_limit("acme", Limit(name=LimitName.RUNS, value=3))
    key = tenants.create_key("acme", "ci", [KeyScope.RUNS_READ]).view
    tenants.revoke_key("acme", tenants.rotate_key("acme", key.key_id, overlap_s=60.0).view.key_id)
    Webhooks(database).add("door", SECRETIVE, SECRETIVE)
    Webhooks(database).remove("door")
    retention = Retention(database, DEFAULT_RULES)
    retention.set_rule("acme", RetentionKind.RUNS, parse_rule(RetentionKind.RUNS, "30d"))
    retention.unset_rule("acme", RetentionKind.RUNS)
    retention.release("acme", retention.place_hold("acme", reason=SECRETIVE, by="somebody").number)
    [sent] = Deliveries(database).list(run_id=run_id)
    with database.write() as connection:
        connection.exec_driver_sql("update deliveries set state = 'failed', settled_at = 1.0, hinted_at = null")
    Deliveries(database).retry(sent.delivery_id)
    chats = GatewayRows(database)
    chats.acquire_lease("telegram:default", mode="poll", token_hash="t", holder="gateway", lease_s=60.0)
    with database.write() as connection:
        code = chats.create_code(connection, "telegram:default", "42")
    chats.pair("telegram:default", str(code), ChatRole.OWNER)
    chats.revoke("telegram:default", "42")
    with database.write() as connection:
        chats.create_code(connection, "telegram:default", "43")
    chats.deny("telegram:default", "43")
    with database.write() as connection:
        chats.create_code(connection, "telegram:default", "44")
    chats.delete_codes("telegram:default")
    with database.write() as connection:
        KnownChats(database).set_home(connection, "telegram:default", "42", None)
    record_prune(database, "acme")
    store.workers.drain(store.worker("somewhere").worker_id)
    logins, somebody = PageLogins(database, "somebody"), Principal(tenant="default", name="somebody")
    logins.close(logins.open("a key", somebody).token, somebody)
    SavedFilters(database).save(somebody, "mine", "status=failed")
    SavedFilters(database).remove(somebody, "mine")
    fleet = Workers(database)
    fleet.drain(fleet.register(name="w", queues="model", ttl_s=60.0).worker_id)
    uploads = Uploads(database, "acme")
    new = NewUpload(
        tenant="acme", principal="x", name=SECRETIVE, purpose="user_data", media_type="text/plain", content=b"x"
    )
    uploads.delete(uploads.create(new, bytes_max=9).artifact_id)
    replayed = store.submit(tags=("replay:nightly",))
    terms = ForkTerms(run_id="run_x", step=0, rows=0, tools=ForkTools.OFFLINE, match=ForkMatch.STRICT)
    with database.write() as connection:
        pk = sa.select(sessions.c.pk).where(sessions.c.session_id == replayed.session_id).scalar_subquery()
        connection.execute(sa.insert(session_documents).values(session_pk=pk, key=FORK_KEY, body=terms.to_json()))
    write_grades(database, "default", "nightly", {replayed.run_id: {SECRETIVE: True}})
    Erasures(database).begin("acme", Person(is_everybody=True), by="somebody")


def test_every_deed_is_recorded_and_none_with_a_text(store: Store) -> None:
    with set_actor(ANN):
        do_everything(store)
    rows = log(store)
    assert {row.act for row in rows} == {act.value for act in Act}
    assert {row.actor for row in rows} == {ANN.name}
    assert {row.address for row in rows} == {ANN.address}
    assert SECRETIVE not in json.dumps([(row.subject, dict(row.before), dict(row.after)) for row in rows])
    assert [row.number for row in rows] == sorted(row.number for row in rows)
    [changed] = [row for row in rows if row.act == "job.change"]
    assert set(changed.before) == set(changed.after) == {"prompt", "model"}
    assert changed.after["model"] == "other"
    [rotated] = [row for row in rows if row.act == "key.rotate"]
    assert (rotated.tenant, rotated.after["holder"]) == ("acme", "ci")


def test_where_nobody_acts_nothing_is_recorded(store: Store) -> None:
    do_everything(store)
    assert log(store) == []


def test_a_deed_that_was_refused_leaves_no_row(store: Store) -> None:
    tenants = Tenants(store.database)
    session = store.submit().session_id
    with set_actor(ANN):
        refused = (
            (RunNotFound, lambda: store.runs.stop_tree("run_none")),
            (KeyNotFound, lambda: tenants.revoke_key("default", "key_none")),
            (TenantExists, lambda: tenants.create_tenant("default")),
            (RouteNotFound, lambda: Webhooks(store.database).remove("none")),
            (SessionActive, lambda: store.submit(session_id=session, multitask=Multitask.REJECT)),
        )
        for error, deed in refused:
            with pytest.raises(error):
                deed()
    assert log(store) == []


def test_a_repeated_submission_is_one_deed(store: Store) -> None:
    with set_actor(ANN):
        first = store.submit(idempotency_key="k", fingerprint="f")
        assert store.submit(idempotency_key="k", fingerprint="f").was_replayed
    assert [(row.act, row.subject) for row in log(store)] == [("run.submit", first.run_id)]


def test_a_row_is_never_changed_and_not_deleted_while_it_is_young(store: Store) -> None:
    with set_actor(ANN):
        store.submit()
    for forbidden in (sa.update(audit_log).values(actor="nobody"), sa.delete(audit_log)):
        with pytest.raises(sa.exc.DBAPIError, match="the audit log"), store.database.write() as connection:
            connection.execute(forbidden)
    old = {"tenant": "default", "actor": "api:bob/key_2", "act": "run.submit", "subject": "run_old", "facts": "{}"}
    with store.database.write() as connection:
        connection.execute(sa.insert(audit_log).values(at=store.database.read_clock() - 400 * 86_400.0, **old))
        connection.execute(sa.insert(audit_log).values(at=store.database.read_clock() - 40 * 86_400.0, **old))
    assert pruned(store, "audit=365d") == {"audit": 1}
    assert pruned(store, "audit=30d") == {"audit": 1}
    assert [row.actor for row in log(store)] == [ANN.name]


def test_a_rule_cannot_ask_for_what_the_database_refuses() -> None:
    with pytest.raises(InvalidRule, match="from 30d"):
        parse_rule(RetentionKind.AUDIT, "29d")


def test_values_are_bounded_and_foreign_text_breaks_nothing(store: Store) -> None:
    hostile = Actor(tenant="default", name="api:\x00\ud800/key", address="x" * 500)
    with set_actor(hostile), store.database.write() as connection:
        record_action(connection, Act.JOB_CREATE, "s" * 900, after={"list": ["y" * 9_000], "text": "\x00z" * 9_000})
    [row] = log(store)
    assert len(row.subject) == 200
    assert row.address is not None
    assert len(row.address) == 64
    assert all(len(str(value)) < 2_100 for value in row.after.values())


def test_a_page_is_of_one_tenant_and_goes_on_behind_a_number(store: Store) -> None:
    for tenant in ("default", "acme"):
        with set_actor(Actor(tenant=tenant, name=f"api:{tenant}/key")):
            for _ in range(3):
                store.submit(tenant=tenant)
    audit = AuditLog(store.database)
    first = audit.list_actions("acme", limit=2)
    rest = audit.list_actions("acme", limit=2, after=first[-1].number)
    assert [len(first), len(rest)] == [2, 1]
    assert {row.tenant for row in (*first, *rest)} == {"acme"}
    assert len(audit.list_actions(None)) == 6
    assert audit.list_actions("acme", subject=first[0].subject) == first[:1]
    assert audit.list_actions("acme", act="key.create") == audit.list_actions("acme", actor="nobody") == []
    assert audit.list_actions("acme", until=first[0].at) == []
    assert len(audit.list_actions("acme", since=first[0].at)) == 3


def test_whatever_a_person_can_do_records_it() -> None:
    """The places that call ``record`` are those that ``Act`` names, and each names one."""
    product = Path(hermes_worker.__file__).parent
    named = {
        node.attr
        for room in ("store", "features")
        for path in (product / room).rglob("*.py")
        if path.name != "audit.py"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "Act"
    }
    assert named == set(Act.__members__)
