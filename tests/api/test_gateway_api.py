"""Accounts and the people of their chats over the API: what operators see of them, and whom they let in."""

from __future__ import annotations

import httpx
import pytest
from serving import Served
from test_tenants import client, tenants  # noqa: F401  (fixtures)

from hermes_worker.core.gateway import FAILURES_MAX
from hermes_worker.store.access.audit import AuditLog
from hermes_worker.store.gateway import GatewayRows

ACCOUNT = "telegram:default"


@pytest.fixture
def chats(api: Served) -> GatewayRows:
    rows = GatewayRows(api.client.database)
    hold = rows.acquire_lease(ACCOUNT, mode="poll", token_hash="t", holder="host:1", lease_s=60)
    assert hold is not None
    rows.renew(hold, 60, error="it says Conflict")
    return rows


def asked(chats: GatewayRows, person: str) -> str:
    """The code that a stranger was given."""
    with chats.database.write() as connection:
        code = chats.create_code(connection, ACCOUNT, person)
    assert code is not None
    return code


def account(http: httpx.Client) -> dict[str, object]:
    [only] = http.get("/v1/gateway/accounts").json()["data"]
    return dict(only)


def test_an_operator_sees_accounts_and_lets_in_who_tells_the_code(api: Served, chats: GatewayRows) -> None:
    code = asked(chats, "42")
    seen = account(api.http)
    assert (seen["account"], seen["mode"], seen["holder"], seen["error"]) == (
        ACCOUNT, "poll", "host:1", "it says Conflict",
    )  # fmt: skip
    assert [each["person"] for each in seen["asking"]] == ["42"]  # type: ignore[attr-defined]
    assert code not in str(seen)
    body = {"account": ACCOUNT, "code": code, "role": "member"}
    assert api.http.post("/v1/gateway/pairings", json=body).json()["person"] == "42"
    seen = account(api.http)
    assert [(each["person"], each["role"]) for each in seen["people"]] == [("42", "member")]  # type: ignore[attr-defined]
    assert seen["asking"] == []
    again = api.http.post("/v1/gateway/pairings", json=body)
    assert (again.status_code, again.json()["error"]["code"]) == (409, "pairing_refused")
    params = {"account": ACCOUNT, "person": "42"}
    gone = [api.http.delete("/v1/gateway/people", params=params).status_code for _ in range(2)]
    assert gone == [204, 404]
    acts = [row.act for row in AuditLog(api.client.database).list_actions("default")]
    assert [act for act in acts if act.startswith("chat.")] == ["chat.pair", "chat.revoke"]


def test_who_is_refused_has_no_code_and_gets_none_sooner(api: Served, chats: GatewayRows) -> None:
    code = asked(chats, "42")
    params = {"account": ACCOUNT, "person": "42"}
    assert api.http.delete("/v1/gateway/people", params=params).status_code == 204
    assert account(api.http)["asking"] == []
    body = {"account": ACCOUNT, "code": code}
    assert api.http.post("/v1/gateway/pairings", json=body).status_code == 409
    with chats.database.write() as connection:
        assert chats.create_code(connection, ACCOUNT, "42") is None
    assert api.http.delete("/v1/gateway/people", params=params).status_code == 404
    assert [row.act for row in AuditLog(api.client.database).list_actions("default")][-1] == "chat.deny"


def test_wrong_codes_lock_the_account(api: Served, chats: GatewayRows) -> None:
    code = asked(chats, "42")
    for _ in range(FAILURES_MAX):
        wrong = {"account": ACCOUNT, "code": "WRONGONE"}
        assert api.http.post("/v1/gateway/pairings", json=wrong).status_code == 409
    assert account(api.http)["codes_locked_until"] is not None
    assert api.http.post("/v1/gateway/pairings", json={"account": ACCOUNT, "code": code}).status_code == 409


def test_codes_that_nobody_used_are_taken_back(api: Served, chats: GatewayRows) -> None:
    used, unused = asked(chats, "42"), asked(chats, "43")
    api.http.post("/v1/gateway/pairings", json={"account": ACCOUNT, "code": used}).raise_for_status()
    removed = [api.http.delete("/v1/gateway/codes", params={"account": ACCOUNT}).json()["removed"] for _ in range(2)]
    assert removed == [1, 0]
    seen = account(api.http)
    assert (len(seen["people"]), seen["asking"]) == (1, [])  # type: ignore[arg-type]
    assert api.http.post("/v1/gateway/pairings", json={"account": ACCOUNT, "code": unused}).status_code == 409
    assert asked(chats, "43"), "they may ask again at once"
