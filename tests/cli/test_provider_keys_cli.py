"""``hermes-worker fleet providers keys``, and the line of ``doctor``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import sqlalchemy as sa
from support.commandline import CommandLine
from support.store import Store

from hermes_worker.store.access.principals import Tenants

KEY = "sk-acme-0123456789"


@pytest.fixture
def secret(hermes: CommandLine, tmp_path: Path) -> str:
    file = tmp_path / "text-keys"
    file.write_text(hermes.inline("data", "encryption", "new-key").out)
    hermes.environ["HERMES_ENCRYPTION_KEYS_FILE"] = str(file)
    (tmp_path / "acme.key").write_text(f"{KEY}\n")
    return str(tmp_path / "acme.key")


def line_of_doctor(hermes: CommandLine) -> str | None:
    said = (json.loads(line) for line in hermes.inline("doctor", "--json").out.splitlines())
    return next((f"{each['grade']}: {each['text']}" for each in said if each["subject"] == "tenants"), None)


def test_an_operator_gives_a_tenant_a_key_and_takes_it_away(hermes: CommandLine, store: Store, secret: str) -> None:
    Tenants(store.database).create_tenant("acme")
    assert line_of_doctor(hermes) is None
    of_acme = ("--tenant", "acme")
    [made] = map(
        json.loads,
        hermes.inline(
            "fleet", "providers", "keys", "add", "claude", "--file", secret, *of_acme, "--json"
        ).out.splitlines(),
    )
    assert (made["tenant"], made["provider"]) == ("acme", "anthropic")
    listed = hermes.inline("fleet", "providers", "keys", "list", *of_acme)
    assert made["key_id"] in listed.out and made["fingerprint"] in listed.out
    assert "no provider keys" in hermes.inline("fleet", "providers", "keys", "list").err
    assert line_of_doctor(hermes) == "ok: 1 bring keys of providers; 1 keys in rows, encrypted"
    hermes.environ["HERMES_TENANT_KEYS"] = "acme/openai=sk-in-settings,beta/openai=sk-in-settings"
    assert str(line_of_doctor(hermes)).startswith("note: 2 bring keys of providers; 1 keys in rows; those of acme in")
    with store.database.write() as connection:
        connection.execute(sa.text("update provider_keys set secret = substr(secret, 1, 40)"))
    assert str(line_of_doctor(hermes)).startswith("broken: ") and made["key_id"] in str(line_of_doctor(hermes))

    refused = hermes.inline("fleet", "providers", "keys", "remove", made["key_id"])
    assert refused.code == 2 and "providers keys list" in refused.err
    removed = hermes.inline("fleet", "providers", "keys", "remove", made["key_id"], *of_acme)
    assert removed.code == 0 and "has no provider key in rows now" in removed.err
    acts = [
        json.loads(line)["act"] for line in hermes.inline("data", "audit", "list", "--json", *of_acme).out.splitlines()
    ]
    assert acts[:2] == ["provider_key.remove", "provider_key.add"]
    assert (
        KEY
        not in listed.out + removed.out + removed.err + hermes.inline("data", "audit", "list", "--json", *of_acme).out
    )


def test_a_key_is_refused_with_a_sentence_and_not_repeated(hermes: CommandLine, store: Store, secret: str) -> None:
    Tenants(store.database).create_tenant("acme")
    keys = hermes.environ.pop("HERMES_ENCRYPTION_KEYS_FILE")
    refused = hermes.inline("fleet", "providers", "keys", "add", "openai", "--file", secret, "--tenant", "acme")
    assert refused.code == 2 and "texts in the database are not encrypted" in refused.err
    hermes.environ["HERMES_ENCRYPTION_KEYS_FILE"] = keys
    cases = {
        ("nobodys", "acme"): "not in the catalogue",
        ("openai", "nobody"): "there is no tenant",
    }
    for (provider, tenant), said in cases.items():
        refused = hermes.inline("fleet", "providers", "keys", "add", provider, "--file", secret, "--tenant", tenant)
        assert refused.code == 2 and said in refused.err and KEY not in refused.err
