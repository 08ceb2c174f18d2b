"""Provider keys of tenants over HTTP: operators add, list and remove them, and nobody is shown one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import httpx
import pytest
from serving import Served
from support.patience import PATIENCE_S
from support.store import Store

from hermes_worker.core.principals import KeyScope
from hermes_worker.features.provider_keys.rows import ProviderKeys
from hermes_worker.settings import EncryptionSettings, Secret, Settings
from hermes_worker.store.access.audit import AuditLog
from hermes_worker.store.access.principals import Tenants

KEY = "sk-acme-0123456789"
PLACE = "/v1/tenants/acme/provider-keys"


@pytest.fixture
def sealed(settings: Settings, serve: Callable[..., Served]) -> Served:
    chosen = replace(settings, encryption=EncryptionSettings(keys=(Secret("hwt_" + "k" * 40),)))
    served = serve(chosen)
    Tenants(served.client.database).create_tenant("acme")
    return served


def test_an_operator_adds_lists_and_removes_a_key(sealed: Served) -> None:
    http = sealed.http
    made = http.post(PLACE, json={"provider": "claude", "key": KEY})
    assert made.status_code == 201
    view = made.json()
    assert (view["tenant"], view["provider"]) == ("acme", "anthropic")
    again = http.post(PLACE, json={"provider": "anthropic", "key": KEY})
    assert again.json() == view
    listed = http.get(PLACE)
    assert listed.json()["data"] == [view]
    [held] = ProviderKeys(sealed.client.database).list_keys()
    assert held.key == KEY
    gone = http.delete(f"{PLACE}/{view['key_id']}")
    assert gone.json() == view and http.get(PLACE).json()["data"] == []
    assert http.delete(f"{PLACE}/{view['key_id']}").status_code == 404
    rows = [row for row in AuditLog(sealed.client.database).list_actions("acme") if row.act.startswith("provider_key")]
    assert [(row.act, row.subject, row.address) for row in rows] == [
        ("provider_key.add", view["key_id"], "127.0.0.1"),
        ("provider_key.remove", view["key_id"], "127.0.0.1"),
    ]
    assert KEY not in made.text + again.text + listed.text + gone.text + str(rows)


def test_keys_at_rest_are_named_and_not_shown(sealed: Served) -> None:
    said = sealed.http.get("/v1/encryption/keys")
    [key] = said.json()["data"]
    assert said.json()["is_on"] is True
    assert (key["is_current"], key["is_here"], key["is_needed"]) == (True, True, True)
    assert "hwt_" not in said.text


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"provider": "nobodys", "key": KEY}, "provider_unknown"),
        ({"provider": "openai", "key": f"{KEY} {KEY}"}, "key_invalid"),
        ({"provider": "openai", "key": KEY * 400}, None),
        ({"provider": 5, "key": KEY}, None),
        ({"provider": "openai", "key": [KEY]}, None),
        ({"provider": "openai", "key": KEY, "more": KEY}, None),
        ({"provider": "openai", KEY: KEY}, None),
    ],
)
def test_what_is_refused_does_not_come_back(sealed: Served, body: dict[str, object], code: str | None) -> None:
    refused = sealed.http.post(PLACE, json=body)
    assert refused.status_code == (404 if code == "provider_unknown" else 400) and KEY not in refused.text
    assert code is None or refused.json()["error"]["code"] == code


def test_no_key_is_taken_in_while_texts_are_in_clear(http: httpx.Client, store: Store) -> None:
    Tenants(store.database).create_tenant("acme")
    refused = http.post(PLACE, json={"provider": "openai", "key": KEY})
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "texts_in_clear")


def test_a_tenants_own_administrator_is_refused(sealed: Served) -> None:
    token = Tenants(sealed.client.database).create_key("acme", "boss", [KeyScope.ADMIN]).token
    headers = {"Authorization": f"Bearer {token}"}
    assert httpx.get(f"{sealed.url}{PLACE}", headers=headers, verify=False, timeout=PATIENCE_S).status_code == 403
    body = {"provider": "openai", "key": KEY}
    assert (
        httpx.post(f"{sealed.url}{PLACE}", headers=headers, json=body, verify=False, timeout=PATIENCE_S).status_code
        == 403
    )
