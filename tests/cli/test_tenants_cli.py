"""``tenants`` and ``keys``; and what is another tenant's is not there for any command that names a thing."""

from __future__ import annotations

import json
from collections.abc import Iterator

import click
import pytest
from support.commandline import CommandLine, list_commands
from support.store import Store

from hermes_worker.core.principals import KeyScope
from hermes_worker.store.access.principals import Tenants
from hermes_worker.store.outbox.deliveries import Deliveries

NAMED = {"run_id", "run_ids", "job", "delivery_id", "key_id"}
"""Arguments that name something which has an owner."""
MORE = {
    ("runs", "steer"): ["faster"],
    ("runs", "fork"): ["--at", "0"],
    ("runs", "compare"): ["run_of_nobody"],
    ("runs", "answer"): ["yes"],
    ("runs", "restore"): ["4f1a2b"],
    ("cron", "edit"): ["--prompt", "x"],
}


def named_commands() -> Iterator[tuple[str, str, str]]:
    """Every command that names such a thing: its group, its name and the name of its argument."""
    for path, command in list_commands():
        group, _, name = path.rpartition(" ")
        if group == "fleet providers keys":  # keys of another kind, which test_provider_keys_cli.py tries
            continue
        for parameter in command.params:
            if isinstance(parameter, click.Argument) and parameter.name in NAMED:
                yield group, name, str(parameter.name)


COMMANDS = list(named_commands())


@pytest.fixture
def theirs(hermes: CommandLine, store: Store) -> dict[str, str]:
    """One of each thing, of another tenant."""
    tenants = Tenants(store.database)
    tenants.create_tenant("acme")
    run_id = store.submit(tenant="acme", deliver=["webhook:https://example.org/hook"]).run_id
    store.answer(run_id)
    made = hermes.inline("cron", "create", "every 1h", "Look", "--json", "--tenant", "acme")
    [sent] = Deliveries(store.database).list(tenant="acme")
    return {
        "run_id": run_id,
        "run_ids": run_id,
        "job": json.loads(made.out)["job_id"],
        "delivery_id": sent.delivery_id,
        "key_id": tenants.create_key("acme", "ci", [KeyScope.ADMIN]).view.key_id,
    }


def test_every_group_that_names_things_is_tried() -> None:
    assert {group for group, _, _ in COMMANDS} == {"runs", "cron", "gateway deliveries", "tenants keys"}
    assert len(COMMANDS) > 20


def test_what_is_another_tenants_is_not_there_for_any_command(hermes: CommandLine, theirs: dict[str, str]) -> None:
    for group, name, argument in COMMANDS:
        foreign = theirs[argument]
        unknown = foreign[:-1] + ("0" if foreign[-1] != "0" else "1")
        more = MORE.get((group, name), [])
        answers = [hermes.inline(*group.split(), name, written, *more) for written in (foreign, unknown)]
        assert [answer.code for answer in answers] == [2, 2], (group, name, answers[0].said)
        said = [answer.said.replace(id_, "ID") for answer, id_ in zip(answers, (foreign, unknown), strict=True)]
        assert said[0] == said[1], (group, name)
        assert "there is no" in said[0], (group, name, said[0])


def test_what_is_a_tenants_own_is_there(hermes: CommandLine, theirs: dict[str, str]) -> None:
    for words in (
        ["runs", "show", theirs["run_id"]],
        ["runs", "export", theirs["run_id"][:10]],
        ["cron", "show", theirs["job"]],
        ["gateway", "deliveries", "show", theirs["delivery_id"]],
        ["tenants", "keys", "revoke", theirs["key_id"]],
    ):
        ended = hermes.inline(*words, "--tenant", "acme")
        assert ended.code == 0, ended.said


def test_the_backlog_is_that_of_all_tenants(hermes: CommandLine, theirs: dict[str, str], store: Store) -> None:
    store.submit()
    lines = hermes.inline("fleet", "backlog").out.splitlines()
    assert lines[0].split() == ["QUEUE", "DUE", "AT", "WORK", "OLDEST", "STEP", "PLACES"]
    found = {row["queue"]: row for row in map(json.loads, hermes.inline("fleet", "backlog", "--json").out.splitlines())}
    assert [line.split()[0] for line in lines[1:]] == list(found)
    assert (found["model"]["due"], found["delivery"]["due"]) == (1, 1)
    assert lines[1].split()[1] == "1"


@pytest.mark.parametrize(
    "words", [["runs", "list"], ["cron", "list"], ["gateway", "deliveries", "list"], ["tenants", "keys", "list"]]
)
def test_lists_show_what_is_the_tenants_own(hermes: CommandLine, theirs: dict[str, str], words: list[str]) -> None:
    assert not [value for value in theirs.values() if value in hermes.inline(*words).said]
    shown = hermes.inline(*words, "--tenant", "acme", "--json").out
    assert [value for value in theirs.values() if value in shown]


def test_a_tenant_that_there_is_not_is_refused_with_what_to_do(hermes: CommandLine) -> None:
    for words in (["runs", "list"], ["submit", "Hello"], ["tenants", "keys", "create", "ci"]):
        ended = hermes.inline(*words, "--tenant", "other")
        assert ended.code == 2
        assert "there is no tenant 'other'; make it with 'hermes-worker tenants create other'" in ended.err


def test_a_tenant_and_its_keys(hermes: CommandLine, store: Store) -> None:
    assert hermes.inline("tenants", "create", "acme").code == 0
    assert "there is a tenant 'acme' already" in hermes.inline("tenants", "create", "acme").err
    made = hermes.inline(
        "tenants", "keys", "create", "ci", "--tenant", "acme", "--scope", "approve", "--days", "30", "--json"
    )
    document = json.loads(made.out)
    assert (document["tenant"], document["holder"], document["scopes"]) == ("acme", "ci", ["approve"])
    rotated = hermes.inline("tenants", "keys", "rotate", document["key_id"], "--tenant", "acme", "--overlap-hours", "1")
    key_id, token = rotated.out.split()
    tenants = Tenants(store.database)
    assert tenants.find_principal(document["key"]) is not None
    assert tenants.find_principal(token) is not None
    assert hermes.inline("tenants", "keys", "revoke", key_id, "--tenant", "acme").code == 0
    assert tenants.find_principal(token) is None
    listed = hermes.inline("tenants", "keys", "list", "--tenant", "acme").out
    assert "revoked" in listed
    assert token not in listed
    rows = [json.loads(line) for line in hermes.inline("tenants", "list", "--json").out.splitlines()]
    assert [(row["name"], row["keys"]) for row in rows] == [("default", 0), ("acme", 1)]
    assert "acme" in hermes.inline("tenants", "list").out


def test_a_tenant_is_disabled_and_its_runs_stop_where_that_is_asked(hermes: CommandLine, store: Store) -> None:
    hermes.inline("tenants", "create", "acme")
    runs = [store.submit(tenant=tenant).run_id for tenant in ("acme", "acme", "default")]
    assert hermes.inline("tenants", "disable", "acme").out == "acme disabled\n"
    assert "the tenant 'acme' is disabled" in hermes.inline("submit", "Hello", "--tenant", "acme").err
    assert [store.views.load_run(run_id).status.is_terminal for run_id in runs] == [False, False, False]
    assert hermes.inline("tenants", "disable", "acme", "--stop").out == "acme disabled; 2 runs stopped\n"
    assert [store.views.load_run(run_id).status.is_terminal for run_id in runs] == [True, True, False]
    assert hermes.inline("tenants", "enable", "acme").out == "acme enabled\n"
    assert hermes.inline("submit", "Hello", "--tenant", "acme").code == 0
    assert "cannot be disabled" in hermes.inline("tenants", "disable", "default").err


def test_a_tenant_works_in_directories_of_its_own(hermes: CommandLine, store: Store) -> None:
    Tenants(store.database).create_tenant("acme")
    refused = hermes.inline("submit", "Hello", "--tenant", "acme", "--workspace", str(hermes.home.parent))
    assert "is not in a workspace of the tenant 'acme'" in refused.err
    of_others = hermes.home / "workspaces" / "tenants" / "acme" / "x"
    of_others.mkdir(parents=True)
    refused = hermes.inline("submit", "Hello", "--workspace", str(of_others))
    assert "holds the state of hermes-worker" in refused.err


def test_limits_are_set_shown_and_taken_away(hermes: CommandLine, store: Store) -> None:
    Tenants(store.database).create_tenant("acme")
    set_them = ("tenants", "limits", "acme", "--set", "runs=2", "--set", "usd_per_day=1.5", "--waits", "--weight", "3")

    shown = hermes.inline(*set_them).out
    hermes.inline("tenants", "limits", "acme", "--set", "runs=none")

    assert "weight 3" in shown and "1.5 USD" in shown and "waits" in shown
    left = json.loads(hermes.inline("tenants", "limits", "acme", "--json").out)
    assert left == {
        "weight": 3.0,
        "limits": [{"key_id": "", "name": "usd_per_day", "value": 1_500_000_000, "waits": 1}],
    }


@pytest.mark.parametrize("wrong", ["runs", "runs=-1", "speed=1", "runs=1.5", "usd_per_day=nan", "runs=1e30"])
def test_a_limit_that_cannot_be_is_refused(hermes: CommandLine, store: Store, wrong: str) -> None:
    Tenants(store.database).create_tenant("acme")

    refused = hermes.inline("tenants", "limits", "acme", "--set", wrong)

    assert (refused.code, "is no limit" in refused.err) == (2, True)


def test_the_places_of_a_fleet_are_set_and_left_to_it(hermes: CommandLine, store: Store) -> None:
    assert hermes.inline("tenants", "places", "64").out == "places: 64\n"
    assert hermes.inline("tenants", "places", "auto").out == "places: auto\n"
    assert hermes.inline("tenants", "places", "0").code == 2
