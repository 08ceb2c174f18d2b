"""Revisions expand before they contract, so that a deployment may roll; full databases go through each of them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import sqlalchemy as sa
from support.store import Store, asks, opened
from support.upgrades import Rows, Upgrade, rows_of, steps

from hermes_worker.core.replay import Replay
from hermes_worker.features.object_storage.tables import workspace_heads
from hermes_worker.features.provider_keys.tables import provider_keys
from hermes_worker.features.retention.tables import erasures, retention_marks, retention_rules
from hermes_worker.features.skills.tables import skill_changes, skill_contents, skills
from hermes_worker.features.webhooks.tables import webhook_routes
from hermes_worker.store.revisions import MIGRATIONS, find_newest
from hermes_worker.store.tables import (
    alert_targets,
    alerts,
    allowed_patterns,
    api_keys,
    artifact_gatherings,
    artifacts,
    audit_log,
    auxiliary_calls,
    channels,
    chat_people,
    chats,
    configurations,
    dead_targets,
    deleted_responses,
    deleted_runs,
    deliveries,
    firings,
    hook_calls,
    inbound,
    inbound_files,
    jobs,
    kept_answers,
    key_states,
    known_chats,
    legal_holds,
    limits,
    logins,
    mcp_servers,
    memory_versions,
    page_logins,
    parked_on_keys,
    principals,
    processes,
    resources,
    run_tags,
    saved_filters,
    search_due,
    search_rows,
    session_documents,
    spending,
    statistics,
    steers,
    submit_rates,
    tenant_shares,
    tenants,
    text_keys,
    tool_sources,
    tree_events,
    waits,
    webhook_events,
)
from hermes_worker.store.whole_schema import load_schema

_OTHERS = {
    session_documents: {"session_pk": 1, "key": "cwd", "body": '"/x"'},
    hook_calls: {
        "tenant": "default",
        "event_id": "run_1.0.agent:start",
        "hook": "audit",
        "event": "agent:start",
        "run_pk": 1,
        "event_seq": 0,
        "state": "pending",
        "hinted_at": 1.0,
        "created_at": 1.0,
    },
    deleted_responses: {"run_pk": 1, "deleted_at": 1.0},
    artifact_gatherings: {
        "run_pk": 1,
        "tenant": "default",
        "state": "pending",
        "hinted_at": 1.0,
        "created_at": 1.0,
    },
    artifacts: {
        "artifact_id": "art_1",
        "run_pk": 1,
        "tenant": "default",
        "path": "a.csv",
        "sha256": "0",
        "size": 1,
        "media_type": "text/csv",
        "modified_at": 1.0,
        "blob_hash": "0",
        "created_at": 1.0,
    },
    channels: {"account": "telegram:default", "tenant": "default", "mode": "poll", "created_at": 1.0},
    inbound: {
        "tenant": "default",
        "account": "telegram:default",
        "event_key": "1",
        "outcome": "run",
        "received_at": 1.0,
    },
    inbound_files: {
        "run_pk": 1,
        "tenant": "default",
        "account": "telegram:default",
        "reference": "{}",
        "state": "pending",
        "gathers_until": 1.0,
        "hinted_at": 1.0,
        "created_at": 1.0,
    },
    chats: {
        "account": "telegram:default",
        "session_key": "agent:main:telegram:dm:1",
        "tenant": "default",
        "generation": 1,
        "updated_at": 1.0,
    },
    known_chats: {
        "account": "telegram:default",
        "chat": "-1",
        "tenant": "default",
        "platform": "telegram",
        "learnt_at": 1.0,
    },
    chat_people: {"account": "telegram:default", "person": "1", "tenant": "default", "asked_at": 1.0},
    memory_versions: {
        "tenant": "default",
        "profile": "default",
        "target": "user",
        "entry_id": "mem_1",
        "version": 1,
        "position": 1,
        "state": "current",
        "act": "add",
        "content": "likes tea",
        "author": "cli:ann",
        "at": 1.0,
    },
    processes: {
        "process_id": "proc_1",
        "session_pk": 1,
        "run_pk": 1,
        "tenant": "default",
        "command": "make",
        "state": "running",
        "started_at": 1.0,
        "deadline_at": 2.0,
        "next_look_at": 1.0,
    },
    skills: {
        "tenant": "default",
        "name": "tidy",
        "category": "",
        "hash": "0",
        "facts": "{}",
        "origin": "people",
        "changed_at": 1.0,
    },
    skill_contents: {"tenant": "default", "hash": "0", "is_set": 0, "body": "[]", "used_at": 1.0},
    skill_changes: {"run_pk": 1, "call_key": "k", "name": "tidy", "changed_at": 1.0},
    search_rows: {"session_pk": 1, "seq": 1},
    search_due: {"session_pk": 1},
    run_tags: {"run_pk": 1, "tag": "nightly", "tenant": "default"},
    tenant_shares: {"tenant": "acme"},
    limits: {"tenant": "acme", "key_id": "", "name": "runs", "value": 4},
    spending: {"tenant": "acme", "key_id": "", "period": "2026-11"},
    submit_rates: {"tenant": "acme", "key_id": "", "tokens": 1.0, "at": 1.0},
    erasures: {"receipt_id": "era_1", "tenant": "default", "began_at": 1.0, "plan": "{}"},
    steers: {"run_pk": 1, "text": "faster", "created_at": 1.0},
    waits: {"run_pk": 1, "iteration": 1, "position": 0, "kind": "input", "request": "{}", "opened_at": 1.0},
    auxiliary_calls: {
        "run_pk": 1,
        "iteration": 1,
        "position": 0,
        "number": 0,
        "task": "vision",
        "request": "{}",
        "asked_at": 1.0,
    },
    audit_log: {
        "at": 1.0,
        "tenant": "default",
        "actor": "api:ci/key_0123456789ab",
        "act": "run.stop",
        "subject": "run_1",
        "facts": "{}",
    },
    tool_sources: {
        "tenant": "*",
        "source": "s",
        "version": 1,
        "hash": "h",
        "definitions": "[]",
        "changed_at": 1.0,
        "listed_at": 1.0,
    },
    kept_answers: {
        "tenant": "default",
        "principal": "key-1",
        "key": "k",
        "operation": "POST /api/jobs",
        "fingerprint": "f",
        "status": 200,
        "headers": "{}",
        "body": "{}",
        "created_at": 1.0,
    },
    tree_events: {"root_pk": 1, "seq": 1, "run_pk": 1, "event_seq": 1},
    allowed_patterns: {"tenant": "default", "pattern_key": "rm", "created_at": 1.0},
    jobs: {
        "job_id": "0123456789ab",
        "tenant": "default",
        "name": "j",
        "definition": "{}",
        "state": "scheduled",
        "created_at": 1.0,
        "updated_at": 1.0,
    },
    firings: {"job_pk": 1, "slot": 1.0, "outcome": "missed", "reason": "late", "settled_at": 1.0},
    deliveries: {
        "delivery_id": "d1",
        "tenant": "default",
        "run_pk": 1,
        "target": "local",
        "state": "pending",
        "adjustments": "",
        "created_at": 1.0,
        "updated_at": 1.0,
    },
    dead_targets: {"tenant": "default", "key": "telegram:1", "reason": "blocked", "marked_at": 1.0},
    logins: {"name": "anthropic", "updated_at": 1.0},
    key_states: {
        "credential": "c",
        "provider": "openai",
        "condition": "open",
        "epoch": 0,
        "evidence": "[]",
        "probes": 0,
    },
    parked_on_keys: {"run_pk": 1, "credential": "c"},
    resources: {
        "resource_id": "res_1",
        "tenant": "default",
        "session_pk": 1,
        "kind": "browser",
        "name": "",
        "state": "wanted",
        "created_at": 1.0,
        "used_at": 1.0,
    },
    alert_targets: {"tenant": "acme", "target": "webhook:https://acme.test/x"},
    alerts: {"tenant": "default", "kind": "backlog", "subject": "model", "epoch": 1, "text": "t", "raised_at": 1.0},
    webhook_routes: {"tenant": "default", "name": "r", "secret": "s", "definition": "{}", "created_at": 1.0},
    webhook_events: {"tenant": "default", "route": "r", "received_at": 1.0},
    statistics: {"measure": "runs_ended", "labels": '["completed", "text_response"]', "amount": 3},
    tenants: {"name": "default", "created_at": 1.0},
    principals: {"tenant": "default", "name": "ci", "created_at": 1.0},
    retention_rules: {"tenant": "default", "kind": "runs", "rule": "30d"},
    retention_marks: {"tenant": "default", "kind": "runs", "at": 1.0, "pk": 1},
    legal_holds: {"tenant": "default", "root_pk": 1, "reason": "r", "placed_by": "p", "placed_at": 1.0},
    provider_keys: {
        "key_id": "pkey_1",
        "tenant": "default",
        "provider": "openai",
        "fingerprint": "f",
        "secret": "s",
        "created_at": 1.0,
    },
    workspace_heads: {"tenant": "default", "name": "run_0", "secret": "s", "changed_at": 1.0},
    configurations: {
        "of_tenant": "acme",
        "version": 1,
        "text": "agent: {max_turns: 5}",
        "written_by": "me",
        "created_at": 1.0,
    },
    text_keys: {"key_id": "clear", "first_used_at": 1.0, "last_used_at": 1.0},
    deleted_runs: {"run_id": "run_0", "tenant": "default", "deleted_at": 1.0},
    api_keys: {
        "key_id": "key_1",
        "tenant": "default",
        "principal_pk": 1,
        "hash": "h",
        "scopes": "admin",
        "created_at": 1.0,
    },
    mcp_servers: {
        "tenant": "default",
        "name": "desk",
        "version": 1,
        "is_process": False,
        "server": "{}",
        "created_at": 1.0,
        "changed_at": 1.0,
        "due_at": 1.0,
    },
    saved_filters: {"tenant": "default", "holder": "api:ada", "name": "n", "query": "tag=x", "changed_at": 1.0},
    page_logins: {"tenant": "default", "hash": "h", "key_id": "key_1", "created_at": 1.0, "expires_at": 2.0},
}
"""What the played runs below leave empty."""


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Rows:
    """A database in the middle of its work, with a row in each table."""
    with opened(f"sqlite:///{tmp_path_factory.mktemp('rows') / 'full.db'}") as store:
        _play(store)
        with store.database.write() as connection:
            for table, values in _OTHERS.items():
                connection.execute(sa.insert(table).values(values))
            found = rows_of(connection)
    assert [name for name in load_schema().tables if not found[name]] == [], "fill the new table in _OTHERS"
    return found


def _play(store: Store) -> None:
    ended = store.submit(tokens_max=10_000, idempotency_key="k", fingerprint="f").run_id
    store.ask_tools(ended, asks(Replay.PURE, Replay.ONCE))
    store.settle(ended, 0)
    store.call(ended, 1)
    store.submit()
    store.sweep()


@pytest.mark.parametrize("step", steps(MIGRATIONS), ids=lambda step: step.after)
def test_a_revision_leaves_the_version_before_at_work(empty_database_url: str, rows: Rows, step: Upgrade) -> None:
    assert step.problems(empty_database_url, rows) == [], "see docs/migrations.md"


ADDED = 'op.add_column("{}", sa.Column("tint", sa.String(9), nullable={}, server_default={}))'
ALLOWED = {
    "a column that may be null": ADDED.format("runs", True, None),
    "a column with a default": ADDED.format("messages", False, '"red"'),
    "a table": 'op.create_table("tints", sa.Column("tint", sa.String(9), primary_key=True))',
    "an index": 'op.create_index("ix_runs_model", "runs", ["model"])',
    "a longer column, for which SQLite makes a table anew that a view reads": (
        'with op.batch_alter_table("runs") as runs:\n        runs.alter_column("network", type_=sa.String(20))'
    ),
    "an optional column that nobody uses": 'op.drop_column("runs", "network")\n\nremoves = {"runs.network"}',
}
REFUSED = {
    "a needed column": (ADDED.format("jobs", False, None), "the upgrade fails where there are rows"),
    "a column that is used": ('op.drop_column("runs", "network")', "what the version before reads is not there"),
    "a column that is needed": (
        'op.drop_column("webhook_routes", "secret")\n\nremoves = {"webhook_routes.secret"}',
        "the schema before needs",
    ),
    "a row": ("op.execute(\"update runs set model = 'other'\")", "rows of runs changed"),
    "a rule": (
        "op.execute(\"create trigger no_steers before insert on steers begin select raise(abort, 'no'); end\")",
        "what the version before writes is refused",
    ),
}


def revised(tmp_path: Path, body: str) -> Upgrade:
    """The product's revisions and one more."""
    scripts = tmp_path / "scripts"
    shutil.copytree(MIGRATIONS, scripts, ignore=shutil.ignore_patterns("__pycache__"))
    (scripts / "versions" / "0999_sample.py").write_text(
        f'import sqlalchemy as sa\nfrom alembic import op\n\nrevision = "0999"\ndown_revision = "{find_newest()}"\n\n\n'
        f"def upgrade():\n    {body}\n"
    )
    return Upgrade(scripts, find_newest(), "0999")


@pytest.mark.parametrize("body", ALLOWED.values(), ids=ALLOWED)
def test_what_the_version_before_can_live_with_is_allowed(
    tmp_path: Path, empty_database_url: str, rows: Rows, body: str
) -> None:
    assert revised(tmp_path, body).problems(empty_database_url, rows) == []


@pytest.mark.parametrize(("body", "problem"), REFUSED.values(), ids=REFUSED)
def test_what_the_version_before_would_notice_is_refused(tmp_path: Path, rows: Rows, body: str, problem: str) -> None:
    found = revised(tmp_path, body).problems(f"sqlite:///{tmp_path / 'upgraded.db'}", rows)
    assert any(problem in each for each in found), found
