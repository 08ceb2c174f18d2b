"""``hermes-worker data audit``: what was done at the command line and what is exported of it."""

from __future__ import annotations

import json

from support.commandline import CommandLine
from support.store import Store

from hermes_worker.cli.options import find_this_user


def test_what_is_done_at_the_command_line_is_listed_and_exported(hermes: CommandLine, store: Store) -> None:
    run_id = store.submit().run_id
    hermes.inline("tenants", "create", "acme")
    hermes.inline("tenants", "keys", "create", "ci", "--tenant", "acme")
    hermes.inline("runs", "stop", run_id)
    listed = hermes.inline("data", "audit", "list").out
    assert "run.stop" in listed
    assert run_id in listed
    assert "key.create" not in listed
    rows = [
        json.loads(line)
        for line in hermes.inline("data", "audit", "list", "--json", "--tenant", "acme").out.splitlines()
    ]
    assert [row["act"] for row in rows] == ["key.create", "tenant.create"]
    newest = hermes.inline("data", "audit", "list", "--json", "--tenant", "acme", "--limit", "1").out
    assert json.loads(newest) == rows[0]
    assert {row["actor"] for row in rows} == {find_this_user()}
    assert (
        hermes.inline("data", "audit", "list", "--act", "job.remove").err == "nothing was recorded in the last 7 days\n"
    )


def test_an_export_goes_on_behind_the_last_number(hermes: CommandLine, store: Store) -> None:
    with store.database.write() as connection:
        row = "(1.0, 'acme', 'cli:ann', 'tenant.create', 'acme', '{}')"
        connection.exec_driver_sql(
            f"insert into audit_log (at, tenant, actor, act, subject, facts) values {row}, {row}, {row}"
        )
    exported = [json.loads(line) for line in hermes.inline("data", "audit", "export", "--all-tenants").out.splitlines()]
    assert len(exported) == 3
    last = str(exported[1]["number"])
    rest = hermes.inline("data", "audit", "export", "--all-tenants", "--after", last).out.splitlines()
    assert [json.loads(line) for line in rest] == exported[2:]
    assert hermes.inline("data", "audit", "export").out == ""
