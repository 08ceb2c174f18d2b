"""Every error that the document declares of an operation can be had of it, in the shape that it declares."""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import jsonschema_rs
import pytest
import sqlalchemy as sa
from fastapi import FastAPI
from serving import FAST, KEY
from support.inbound_cases import telegram_update
from support.migrated import bring_up
from support.samples import sample_seeds
from support.store import Store, asks
from test_webhooks_api import add, signed

from hermes_worker.api.app import create_app
from hermes_worker.api.limits import BODY_BYTES_MAX, BodyLimit
from hermes_worker.api.openai import chat, compacting, embeddings, models
from hermes_worker.api.openai.embeddings import EmbeddingsService
from hermes_worker.api.routes import capabilities, health, session_turns
from hermes_worker.core.effects import GatherArtifacts
from hermes_worker.core.errors import UnavailableError
from hermes_worker.core.limits import Limit, LimitName
from hermes_worker.core.replay import Replay
from hermes_worker.core.run import RunStatus
from hermes_worker.core.run_views import RunView
from hermes_worker.features.mcp_servers.rows import McpServers, NewMcpServer
from hermes_worker.features.retention.hold_rows import Retention
from hermes_worker.features.webhooks import event_routes as inbound
from hermes_worker.mcp.servers import McpServer
from hermes_worker.net.http import HttpResponse
from hermes_worker.settings import DatabaseSettings, GatewaySettings, Settings
from hermes_worker.store.access import saved_filters
from hermes_worker.store.artifacts.gatherings import Gatherings, KeptFile
from hermes_worker.store.runs.limits import TenantLimits
from hermes_worker.store.runs.runs import SESSION_QUEUE_MAX
from hermes_worker.store.tables import deleted_runs, runs
from hermes_worker.stream import changes
from hermes_worker.wiring import open_client
from hermes_worker.workspaces.ref import WorkspaceRef

JSON = {"content-type": "application/json"}
HOLDER = {"authorization": f"Bearer {KEY}", "host": "localhost"}
FLEETING = {
    "run_id": "run_x",
    "session_id": "nobody",
    "job_id": "0" * 12,
    "delivery_id": "dlv_x",
    "name": "nobody",
    "skill": "nobody",
    "mcp_server": "nobody",
    "tenant": "default",
    "model": "nothing",
    "response_id": "resp_x",
    "conversation_id": "conv_x",
    "item_id": "msg_x",
    "key_id": "key_000000000000",
    "artifact_id": "art_x",
    "file_id": "file-x",
    "credential": "nobody",
    "provider_key_id": "pkey_000000000000",
    "number": "999999",
    "receipt_id": "era_x",
    "target": "user",
    "call": "1.0",
    "worker_id": "nobody",
    "platform": "telegram",
    "replay": "nobody",
}
"""Names of nothing."""
VERIFIES = "verify-me"
LISTENED = {
    "TELEGRAM_WEBHOOK_SECRET": "s3cret_of-webhook",
    "WHATSAPP_CLOUD_APP_SECRET": "s3cret",
    "WHATSAPP_CLOUD_VERIFY_TOKEN": VERIFIES,
}
PROOF = "x-telegram-bot-api-secret-token"
SIGNED = f"?expires=1&signature={'0' * 8}.{'0' * 64}"
"""What the address of a file ends with."""


@dataclass
class Asked:
    """A request, made without sockets."""

    path: str
    headers: Mapping[str, str] = field(default_factory=lambda: HOLDER)
    body: bytes = b""
    is_endless: bool = False
    """The body does not come to its end."""

    def json(self, **document: Any) -> Asked:
        return replace(self, headers={**self.headers, **JSON}, body=json.dumps(document).encode())


@dataclass
class Answer:
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""


class Place:
    """An application, and what has to be there to be refused something."""

    def __init__(self, app: FastAPI, store: Store) -> None:
        self.app = app
        self.store = store
        self.document = app.openapi()
        self._validators: dict[str, jsonschema_rs.Draft202012Validator] = {}
        add(store, "open", rate_per_min=10_000)
        add(store, "busy", rate_per_min=1)

    def validator(self, schema: Mapping[str, Any]) -> jsonschema_rs.Draft202012Validator:
        """Made once for each schema; errors of most operations have the same few."""
        named = json.dumps(schema)
        if named not in self._validators:
            whole = {**schema, "components": self.document["components"]}
            self._validators[named] = jsonschema_rs.Draft202012Validator(whole)
        return self._validators[named]

    def ask(self, method: str, asked: Asked) -> Answer:
        return asyncio.run(self._ask(method, asked))

    async def _ask(self, method: str, asked: Asked) -> Answer:
        answer = Answer()
        is_sent = False

        async def receive() -> dict[str, Any]:
            nonlocal is_sent
            if is_sent:
                await asyncio.sleep(3_600)
            is_sent = True
            return {"type": "http.request", "body": asked.body, "more_body": asked.is_endless}

        async def send(message: Mapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                answer.status = message["status"]
                answer.headers = {name.decode(): value.decode() for name, value in message["headers"]}
            else:
                answer.body += message.get("body", b"")

        path, _, query = asked.path.partition("?")
        length = {"content-length": str(len(asked.body))} if asked.body else {}
        scope = {
            "type": "http",
            "http_version": "1.1",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "scheme": "http",
            "headers": [(name.encode(), value.encode()) for name, value in {**length, **asked.headers}.items()],
            "client": ("127.0.0.1", 1),
            "server": ("localhost", 80),
            "state": {},
        }
        await self.app(scope, receive, send)
        return answer

    def run(self, **more: Any) -> str:
        answer = self.ask("POST", Asked("/v1/runs").json(input="hello", **more))
        return str(json.loads(answer.body)["run_id"])

    def session(self) -> str:
        """One of its own, so that none is ever full."""
        return str(json.loads(self.ask("POST", Asked("/api/sessions").json()).body)["session"]["id"])

    def conversation(self) -> str:
        return str(json.loads(self.ask("POST", Asked("/v1/conversations").json()).body)["id"])

    def ended(self) -> str:
        run_id = self.run(deliver="telegram:1")
        self.store.answer(run_id)
        return run_id

    def waiting(self) -> str:
        run_id = self.run()
        self.store.ask_tools(run_id, asks(Replay.PURE))
        return run_id


@pytest.fixture
def place(keyed: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    monkeypatch.setattr(BodyLimit, "patience_s", 0.05)
    client = open_client(replace(keyed, gateway=GatewaySettings(is_enabled=True), environ=LISTENED))
    try:
        # Nobody may read streams here.
        yield Place(create_app(client, replace(FAST, readers_of_run_max=0)), Store.over(client.database))
    finally:
        client.close()


class _Broken:
    """Takes the place of what the routes work with: everything they do raises ``error``."""

    def __init__(self, context: Any, error: Exception) -> None:
        self._context = context
        self._error = error

    def __getattr__(self, name: str) -> Any:
        if name not in ("call_store", "probe"):
            return getattr(self._context, name)

        async def fail(*_args: object, **_more: object) -> None:
            raise self._error

        return fail


def with_context(place: Place, error: Exception, method: str, asked: Asked) -> Answer:
    context = place.app.state.context
    place.app.state.context = _Broken(context, error)
    try:
        return place.ask(method, asked)
    finally:
        place.app.state.context = context


# --- what brings about each answer -----------------------------------------------------------------------------------

BODIES: Mapping[str, dict[str, Any]] = {
    "POST /v1/runs": {"input": "x"},
    "POST /v1/chat/completions": {"messages": [{"role": "user", "content": "x"}]},
    "POST /v1/responses": {"input": "x"},
    "POST /v1/responses/compact": {"input": "x"},
    "POST /v1/responses/input_tokens": {"input": "x"},
    "POST /v1/embeddings": {"input": "x", "model": "m"},
    "POST /api/jobs": {"name": "n", "schedule": "every 1h", "prompt": "x"},
    "PATCH /api/jobs/{job_id}": {"prompt": "x"},
    "POST /api/sessions": {"title": "x"},
    "PATCH /api/sessions/{session_id}": {"title": "x"},
    "POST /api/sessions/{session_id}/fork": {"title": "x"},
    "POST /v1/runs/{run_id}/fork": {"at": 0},
    "PUT /v1/replays/{replay}/grades": {"grades": {}},
    "POST /api/sessions/{session_id}/chat": {"message": "x"},
    "POST /api/sessions/{session_id}/compress": {"focus": "x"},
    "POST /api/sessions/import": {"session": {"id": "imported", "messages": []}},
    "POST /api/sessions/{session_id}/chat/stream": {"message": "x"},
    "POST /v1/batch/runs": {"runs": [{"input": "x"}]},
    "POST /v1/batch/stop": {"tag": ["x"]},
    "POST /v1/batch/wait": {"run_ids": ["run_x"], "timeout_s": 0},
    "POST /v1/runs/{run_id}/steer": {"text": "x"},
    "POST /v1/runs/{run_id}/restore": {"checkpoint_id": "abcd"},
    "POST /v1/runs/{run_id}/approval": {"choice": "once", "wait_id": 1},
    "POST /v1/runs/{run_id}/input": {"text": "x", "wait_id": 1},
    "PUT /v1/configuration": {"text": "", "version": 7},
    "PUT /v1/tenants/{tenant}/configuration": {"text": "", "version": 7},
    "PUT /v1/sessions/{session_id}/settings": {"settings": {"agent.max_turns": "5"}},
    "PUT /v1/limits/keys/{key_id}": {"limits": {}},
    "PUT /v1/tenants/{tenant}/limits": {"limits": {}},
    "POST /v1/tenants/{tenant}/provider-keys": {"provider": "openai", "key": "sk-0123456789"},
    "PATCH /v1/tenants/{tenant}/limits": {"limits": {}},
    "POST /v1/memory/{target}": {"operations": [{"action": "remove", "old_text": "x"}]},
    "POST /v1/memory/{target}/undo": {},
    "PUT /v1/skills/{skill}": {"files": [{"path": "SKILL.md", "text": "no skill"}], "expects": "0" * 64},
    "POST /v1/memory/{target}/settle": {"staged_id": "mst_0123456789ab", "approve": True},
    "POST /v1/memory/{target}/redact": {"entry_id": "mem_0123456789ab", "version": 1},
    "PUT /v1/places": {"places": None},
    "PUT /v1/alerts/targets": {"targets": []},
    "POST /v1/deliveries": {"target": "telegram:1", "text": "x"},
    "POST /v1/tenants": {"name": "default"},
    "POST /v1/tenants/{tenant}/disable": {"stop": False},
    "POST /v1/keys": {"holder": "x"},
    "POST /v1/keys/{key_id}/rotate": {"overlap_s": 1},
    "POST /v1/mcp-servers": {"name": "open", "url": "https://mcp.example.org/mcp"},
    "POST /v1/mcp-servers/{mcp_server}/approve": {"offer": "0" * 16},
    "POST /v1/webhook-routes": {"name": "open", "secret": "0123456789abcdef"},
    "POST /v1/webhook-routes/{name}/signature": {"payload": "{}"},
    "PATCH /v1/retention": {"rules": {}},
    "POST /v1/exports": {"principals": ["cli:nobody"]},
    "POST /v1/erasures": {"whom": {"principals": ["cli:nobody"]}},
    "POST /v1/erasures/foretold": {"principals": ["cli:nobody"]},
    "POST /v1/erasures/replayed": {"receipt": "x"},
    "POST /v1/erasures/{receipt_id}/work": {"stop": False},
    "POST /v1/holds": {"reason": "x", "run_id": "run_x"},
    "POST /v1/prunes": {"dry_run": True},
    "POST /v1/conversations": {"metadata": {"a": "b"}},
    "POST /v1/conversations/{conversation_id}": {"metadata": {"a": "b"}},
    "POST /mcp": {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "tools/call",
        "params": {"name": "get_run", "arguments": {"run_id": "run_x"}},
    },
    "POST /v1/conversations/{conversation_id}/items": {"items": [{"role": "user", "content": "x"}]},
    "PUT /v1/page/login": {},
    "PUT /v1/page/filters": {"name": "x", "query": "tag=x"},
    "POST /v1/gateway/pairings": {"account": "telegram:default", "code": "WRONGONE"},
    "POST /webhooks/{name}": {"text": "x"},
    "POST /webhooks/{tenant}/{name}": {"text": "x"},
    "POST /inbound/{platform}": telegram_update(1, "x"),
}
"""A body that each operation takes that reads one."""


MCP_SAID: Mapping[str, Any] = {"protocolVersion": "2026-07-28", "clientCapabilities": {}}
OF_A_TENANT = {
    *("GET /v1/runs", "GET /v1/settings", "GET /v1/sheets", "GET /v1/alerts/targets", "PUT /v1/alerts/targets"),
    *("GET /v1/keys", "POST /v1/keys", "POST /v1/exports", "GET /v1/erasures", "POST /v1/erasures"),
    "GET /v1/erasure-receipts",
    *("POST /v1/erasures/foretold", "POST /v1/erasures/replayed"),
}
"""Without a name in the path: only a tenant can be absent."""


FORM = b"".join(
    b'--x\r\nContent-Disposition: form-data; name="%s"\r\n\r\n%s\r\n' % (name, value)
    for name, value in ((b'file"; filename="a.txt', b"x"), (b"purpose", b"user_data"))
)


def usual(label: str, **names: str) -> Asked:
    """What the operation would take, of nothing that there is."""
    asked = Asked(label.partition(" ")[2].format_map({**FLEETING, **names}))
    if label == "GET /v1/artifacts/{artifact_id}/content":
        return replace(asked, path=f"{asked.path}{SIGNED}")
    if label == "POST /v1/files":
        form = {"content-type": "multipart/form-data; boundary=x"}
        return replace(asked, headers={**asked.headers, **form}, body=FORM + b"--x--\r\n")
    if label == "GET /api/sessions/search":
        return replace(asked, path=f"{asked.path}?q=x")
    if label == "GET /v1/ids":
        return replace(asked, path=f"{asked.path}?kind=run&begins={'0' * 32}")
    if label == "DELETE /v1/gateway/codes":
        return replace(asked, path=f"{asked.path}?account=telegram:default")
    if label == "DELETE /v1/page/filters":
        return replace(asked, path=f"{asked.path}?name=nobodys")
    if label == "DELETE /v1/gateway/people":
        return replace(asked, path=f"{asked.path}?account=telegram:default&person=nobody")
    if label == "GET /inbound/{platform}":
        platform = names.get("platform", "whatsapp_cloud")
        asked = replace(asked, path=f"/inbound/{platform}?hub.verify_token={VERIFIES}&hub.challenge=1")
    if label == "POST /inbound/{platform}":
        asked = replace(asked, headers={**asked.headers, PROOF: LISTENED["TELEGRAM_WEBHOOK_SECRET"]})
    return asked.json(**BODIES[label]) if label in BODIES else asked


def _absent(label: str) -> Asked:
    if label == "POST /mcp":
        said = {f"io.modelcontextprotocol/{name}": value for name, value in MCP_SAID.items()}
        asked = usual(label).json(jsonrpc="2.0", id=1, method="nothing", params={"_meta": said})
        routed = {"mcp-protocol-version": MCP_SAID["protocolVersion"], "mcp-method": "nothing"}
        return replace(asked, headers={**asked.headers, **routed})
    asked = usual(label, platform="nowhere", **({"tenant": "nobody"} if "/tenants/" in label else {}))
    if label == "GET /api/sessions/search":
        return replace(asked, path=f"{asked.path}&session_id=nobody")
    if label in OF_A_TENANT:
        return replace(asked, path=f"{asked.path}?tenant=nobody")
    follows = label in ("POST /v1/responses", "POST /v1/responses/compact", "POST /v1/responses/input_tokens")
    return asked.json(input="x", previous_response_id="resp_x") if follows else asked


def _event(place: Place, name: str, delivery: str, text: str) -> Asked:
    asked = usual("POST /webhooks/{name}", name=name).json(text=text)
    return replace(asked, headers={**asked.headers, **signed(asked.body), "x-github-delivery": delivery})


def _conflict(place: Place, label: str) -> Answer:
    found = _in_the_way(place, label)
    if found.status == 409:
        return found
    # Another request came under this key.
    keyed = {**HOLDER, "idempotency-key": "k"}
    place.ask("POST", Asked("/api/sessions", keyed).json(title="kept under the key"))
    asked = usual(label)
    return place.ask("POST", replace(asked, headers={**asked.headers, **keyed}))


def _by_cookie(place: Place, label: str) -> Asked:
    """As the page asks, that was let in: only then anybody reads a row of its login."""
    asked = usual(label)
    let_in = place.ask("PUT", usual("PUT /v1/page/login"))
    cookie = let_in.headers["set-cookie"].partition(";")[0]
    headers = {name: value for name, value in asked.headers.items() if name != "authorization"}
    return replace(asked, headers={**headers, "cookie": cookie, "origin": f"http://{HOLDER['host']}"})


def _reading(place: Place, label: str) -> Asked:
    """A request that asks the store."""
    is_of_page = label in ("GET /v1/page/login", "DELETE /v1/page/login")
    return _by_cookie(place, label) if is_of_page else usual(label)


def _in_the_way(place: Place, label: str) -> Answer:
    method = label.partition(" ")[0]
    if label == "POST /v1/runs":
        name = place.session()
        place.run(session_id=name)
        return place.ask(method, Asked("/v1/runs").json(input="x", session_id=name, multitask="reject"))
    if label == "DELETE /v1/conversations/{conversation_id}/items/{item_id}":
        name = place.session()
        run_id = place.run(session_id=name)
        place.store.answer(run_id)
        item = json.loads(place.ask("GET", Asked(f"/v1/conversations/{name}/items")).body)["data"][0]["id"]
        return place.ask(method, usual(label, conversation_id=name, item_id=item))
    if label == "PUT /v1/page/login":
        return place.ask(method, _by_cookie(place, label))
    if label == "PUT /v1/page/filters":
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(saved_filters, "SAVED_MAX", 0)
            return place.ask(method, usual(label))
    if label == "PUT /v1/skills/{skill}":
        return place.ask(method, usual(label).json(files=[{"path": "SKILL.md", "text": "no skill"}]))
    if label == "DELETE /v1/skills/{skill}":
        asked = usual(label, skill="tidy")
        text = "---\nname: tidy\ndescription: Tidy up.\n---\nPut things away.\n"
        place.ask("PUT", asked.json(files=[{"path": "SKILL.md", "text": text}]))
        return place.ask(method, replace(asked, path=f"{asked.path}?expects={'0' * 64}"))
    if label.startswith("POST /v1/mcp-servers/"):  # tenants may have none here
        new = NewMcpServer(server=McpServer(url="http://127.0.0.1:1/mcp").model_dump_json(), is_process=False)
        name = f"door-{label.rpartition('/')[2]}"
        McpServers(place.store.database).write_server("default", name, new, before=None, facts={})
        return place.ask(method, usual(label, mcp_server=name))
    if label == "DELETE /v1/files/{file_id}":
        kept = json.loads(place.ask("POST", usual("POST /v1/files")).body)["id"]
        holds = Retention(place.store.database, {})
        held = holds.place_hold("default", reason="court", by="test")
        try:
            return place.ask(method, usual(label, file_id=kept))
        finally:
            holds.release("default", held.number)
    if label == "GET /v1/ids":
        for last in "01":
            this = runs.c.run_id == place.run()
            with place.store.database.write() as connection:
                connection.execute(sa.update(runs).where(this).values(run_id=f"run_{'ab' * 15}{last}0"))
        return place.ask(method, replace(usual(label), path=f"/v1/ids?kind=run&begins={'ab' * 15}"))
    if label.endswith("/retry"):
        return place.ask(method, usual(label, run_id=place.waiting()))
    if label == "POST /v1/runs/{run_id}/fork":
        return place.ask(method, usual(label, run_id=place.ended()).json(at=9))  # it has no such step
    if label.endswith(("/chat/completions", "/chat", "/stream", "/compress")) or label == "POST /v1/responses":
        asked = usual(label, session_id=place.session())
        asked = replace(asked, headers={**asked.headers, "idempotency-key": "k"})
        place.ask(method, asked)
        said = {"messages": [{"role": "user", "content": "y"}], "input": "y"}
        other = {"focus": "y"} if "compress" in label else {"message": "y"} if "sessions" in label else said
        return place.ask(method, asked.json(**other))
    if "webhooks" in label:
        place.ask(method, _event(place, "open", "g-1", "this"))
        return place.ask(method, _event(place, "open", "g-1", "that"))
    if label.endswith(("/checkpoints", "/diff", "/restore")):
        ref = WorkspaceRef(kind="of-an-extension", root="/elsewhere").to_json()
        return place.ask(method, usual(label, run_id=place.store.submit(workspace=ref).run_id))
    if "sessions" in label:
        name = place.session()
        place.run(session_id=name)
        asked = usual(label, session_id=name)
        return place.ask(method, asked if label.endswith("/{session_id}") else asked.json(id=name))
    if "{delivery_id}" in label:
        place.ended()
        found = json.loads(place.ask("GET", Asked("/v1/deliveries")).body)["data"][0]["delivery_id"]
        return place.ask(method, usual(label, delivery_id=found))
    return place.ask(method, usual(label, run_id=place.ended()))


def _too_many(place: Place, label: str) -> Answer:
    method = label.partition(" ")[0]
    if "webhooks" in label:
        place.ask(method, _event(place, "busy", "g-1", "this"))
        return place.ask(method, _event(place, "busy", "g-2", "that"))
    if label.endswith("/compress"):
        name = place.session()
        for _ in range(SESSION_QUEUE_MAX + 1):  # one of them is at work
            place.run(session_id=name)
        return place.ask(method, usual(label, session_id=name))
    if label == "GET /v1/changes":
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(changes, "READERS_OF_TENANT_MAX", 0)
            return place.ask(method, usual(label))
    if label == "POST /v1/embeddings":
        return _of_embeddings(place, label, 429)
    if "chat" in label or label in ("POST /v1/responses", "POST /v1/responses/compact"):
        return place.ask(method, usual(label, session_id=place.session()))  # nobody may follow its run
    if label == "GET /v1/responses/{response_id}":
        response = place.waiting().replace("run_", "resp_")
        return place.ask(method, Asked(f"/v1/responses/{response}?stream=true"))
    if label == "DELETE /v1/conversations/{conversation_id}/items/{item_id}":
        name = place.session()
        run_id = place.run(session_id=name)
        place.store.answer(run_id)
        item = json.loads(place.ask("GET", Asked(f"/v1/conversations/{name}/items")).body)["data"][0]["id"]
        return place.ask(method, usual(label, conversation_id=name, item_id=item))
    if label.endswith("/retry"):
        run_id = place.ended()
        for _ in range(SESSION_QUEUE_MAX + 1):
            place.run(session_id=run_id)
        return place.ask(method, usual(label, run_id=run_id))
    if label == "POST /v1/runs/{run_id}/fork":
        asked, kept = usual(label, run_id=place.ended()), TenantLimits(place.store.database)
        kept.set_limit("default", Limit(name=LimitName.SUBMITS_PER_MIN, value=1))
        try:
            place.ask(method, asked)
            return place.ask(method, asked)
        finally:
            kept.unset_limit("default", LimitName.SUBMITS_PER_MIN)
    if label == "POST /v1/runs":
        for _ in range(SESSION_QUEUE_MAX + 1):  # one of them is at work
            place.run(session_id="full")
        return place.ask(method, Asked("/v1/runs").json(input="x", session_id="full"))
    return place.ask(method, usual(label, run_id=place.waiting()))


def _without_key(place: Place, label: str) -> Answer:
    asked = usual(label, name="open")
    headers = {**asked.headers, "authorization": "", PROOF: ""}
    asked = replace(asked, path=asked.path.replace(VERIFIES, "x"), headers=headers)
    return place.ask(label.partition(" ")[0], asked)


def _defect(place: Place, label: str) -> Answer:
    method = label.partition(" ")[0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(health, "Health", None)
        patch.setattr(health.schema, "Ready", None)
        patch.setattr(capabilities, "AuthObject", None)
        patch.setattr(capabilities, "SkillList", None)
        patch.setattr(models, "list_model_names", None)
        patch.setattr(embeddings, "find_service", None)
        patch.setattr(inbound, "find_webhook_account", None)
        return with_context(place, RuntimeError("a defect"), method, _reading(place, label))


def _with(**headers: str) -> Callable[[Place, str], Answer]:
    given = {name.replace("_", "-"): value for name, value in headers.items()}

    def ask(place: Place, label: str) -> Answer:
        asked = usual(label)
        return place.ask(label.partition(" ")[0], replace(asked, headers={**asked.headers, **given}))

    return ask


def _unavailable(place: Place, label: str) -> Answer:
    if label == "GET /health/ready":
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(place.app.state.context.leaving, "is_set", lambda: True)
            return place.ask("GET", usual(label))
    return with_context(place, UnavailableError("away"), label.partition(" ")[0], _reading(place, label))


def _of_embeddings(place: Place, label: str, status: int) -> Answer:
    """What is made of this answer of the service."""
    with pytest.MonkeyPatch.context() as patch:
        service = EmbeddingsService(url="https://embed.example.org/v1/embeddings", headers={})
        patch.setattr(embeddings, "find_service", lambda _: service)
        patch.setattr(embeddings, "send", lambda *_, **__: HttpResponse(status=status))
        return place.ask("POST", usual(label))


def _incomplete(place: Place, label: str) -> Answer:
    if label == "POST /v1/embeddings":
        return _of_embeddings(place, label, 500)
    view = replace(place.store.views.load_run(place.ended()), status=RunStatus.FAILED, output=None, error="no money")

    async def failed(*_: object) -> RunView:
        return view

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chat, "wait_for_end", failed)
        patch.setattr(session_turns, "wait_for_end", failed)
        patch.setattr(compacting, "wait_for_end", failed)
        return place.ask(label.partition(" ")[0], usual(label, session_id=place.session()))


def _slow(place: Place, label: str) -> Answer:
    there = {"name": "open", "session_id": place.session(), "conversation_id": place.conversation()}
    asked = replace(usual(label, **there), body=b"-", is_endless=True)
    return place.ask(label.partition(" ")[0], replace(asked, headers={**asked.headers, "content-length": "9"}))


def _address(place: Place, expires_at: int) -> Asked:
    """Of a file that is there."""
    run_id = place.run(artifacts=["**"])
    place.store.answer(run_id)
    gatherings = Gatherings(place.store.database)
    claim = gatherings.claim(GatherArtifacts(run_id=run_id, attempt=1), place.store.owner)
    assert claim is not None
    digest = hashlib.sha256(b"x").hexdigest()
    kept = KeptFile(
        path="a.txt",
        sha256=digest,
        size=1,
        media_type="text/plain",
        modified_at=1.0,
        blob_hash=gatherings.store_content(b"x"),
    )
    gatherings.settle(claim, [kept])
    [file] = json.loads(place.ask("GET", Asked(f"/v1/runs/{run_id}/artifacts")).body)["data"]
    signature = place.app.state.context.keyring.sign(f"artifact\ndefault\n{file['id']}\n{digest}\n{expires_at}")
    return Asked(f"/v1/artifacts/{file['id']}/content?expires={expires_at}&signature={signature}")


def _behind_the_end(place: Place, label: str) -> Answer:
    return place.ask("GET", replace(_address(place, 2**33), headers={"range": "bytes=1-"}))


def _deleted(place: Place, label: str) -> Answer:
    if "{artifact_id}" in label:
        return place.ask("GET", _address(place, 1))
    run_id = place.ended()
    with place.store.database.write() as connection:
        connection.execute(sa.insert(deleted_runs).values(run_id=run_id, tenant="default", deleted_at=1.0))
        hidden = sa.update(runs).where(runs.c.run_id == run_id)
        connection.execute(hidden.values(run_id=f"{run_id[:-1]}x"))
    return place.ask(label.partition(" ")[0], usual(label, run_id=run_id))


BROUGHT_ABOUT: Mapping[str, Callable[[Place, str], Answer]] = {
    "400": _with(content_length="1", transfer_encoding="chunked"),
    "401": _without_key,
    "403": _with(origin="https://example.org"),
    "404": lambda place, label: place.ask(label.partition(" ")[0], _absent(label)),
    "408": _slow,
    "409": _conflict,
    "410": _deleted,
    "413": _with(content_length=str(BODY_BYTES_MAX + 1)),
    "415": _with(content_length="1", content_type="text/plain"),
    "416": _behind_the_end,
    "429": _too_many,
    "500": _defect,
    "502": _incomplete,
    "503": _unavailable,
}


@pytest.mark.parametrize("turn", sample_seeds(1, 4))
def test_every_declared_error_can_be_had(place: Place, turn: int) -> None:
    """Of each fourth path by day, of the others at night."""
    asked = 0
    for path, operations in list(place.document["paths"].items())[turn::4]:
        for method, operation in operations.items():
            label = f"{method.upper()} {path}"
            for status, declared in operation["responses"].items():
                if status < "400":
                    continue
                answer = BROUGHT_ABOUT[status](place, label)
                assert answer.status == int(status), (label, status, answer)
                assert fits(place, declared, answer) == [], (label, status)
                asked += 1
    assert asked > 50


def fits(place: Place, declared: Mapping[str, Any], answer: Answer) -> list[str]:
    """What of an answer is not as declared."""
    wrong = [
        f"lacks {name}"
        for name, header in declared.get("headers", {}).items()
        if header.get("required") and name.lower() not in answer.headers
    ]
    ((media_type, described),) = declared["content"].items()
    if answer.headers["content-type"] != media_type:
        return [*wrong, f"is {answer.headers['content-type']}"]
    errors = place.validator(described["schema"]).iter_errors(json.loads(answer.body))
    return [*wrong, *(str(error) for error in errors)]


def test_a_method_that_no_operation_takes_is_answered_as_the_document_says(place: Place) -> None:
    declared = place.document["components"]["responses"]["MethodNotAllowed"]
    for path in place.document["paths"]:
        answer = place.ask("TRACE", Asked(path.format_map(FLEETING)))
        assert answer.status == 405, path
        assert fits(place, declared, answer) == [], path


@pytest.mark.parametrize("path", ["/v1/runs", "/v1/approvals", "/api/jobs", "/v1/deliveries", "/v1/runs/run_x"])
def test_a_parameter_that_nobody_knows_is_refused(place: Place, path: str) -> None:
    answer = place.ask("GET", Asked(f"{path}?limti=5"))
    error = json.loads(answer.body)["error"]
    assert (answer.status, error["code"], error["param"]) == (400, "unknown_parameter", "limti")


_NO_NUMBERS = ("%205", "5%09", "1_0", "nan", "-inf", "0x5", "%D9%A5", "")


@pytest.mark.parametrize("turn", sample_seeds(1, len(_NO_NUMBERS)))
def test_a_number_in_a_query_is_written_as_in_json(place: Place, turn: int) -> None:
    """The values take turns: by day each parameter is asked with one of them, at night with all others."""
    asked = 0
    for path, operations in place.document["paths"].items():
        for parameter in operations.get("get", {}).get("parameters", ()):
            if parameter["in"] == "query" and parameter["schema"].get("type") in ("integer", "number"):
                value = _NO_NUMBERS[(asked + turn) % len(_NO_NUMBERS)]
                answer = place.ask("GET", Asked(f"{path.format_map(FLEETING)}?{parameter['name']}={value}"))
                assert answer.status == 400, (path, parameter["name"], value, answer)
                asked += 1
    assert asked > 10


def test_a_number_in_a_query_may_have_a_fraction_where_it_is_one(place: Place) -> None:
    for query in ("limit=5", "limit=5.0", "created_after=1.5", "created_after=1e3&created_before=-0"):
        assert place.ask("GET", Asked(f"/v1/runs?{query}")).status == 200, query


def test_a_value_of_another_type_is_refused_wherever_a_body_is_read(place: Place) -> None:
    """A text that looks like a number is none, and ``"dry_run": "no"`` must stop nothing."""
    asked = 0
    job = json.loads(place.ask("POST", Asked("/api/jobs").json(**BODIES["POST /api/jobs"])).body)["job"]["id"]
    names = {"run_id": place.waiting(), "session_id": place.session(), "job_id": job}
    for label, document in BODIES.items():
        method, _, path = label.partition(" ")
        content = place.document["paths"][path][method.lower()]["requestBody"]["content"]
        described = content["application/json"]["schema"]
        if "$ref" in described:
            described = place.document["components"]["schemas"][described["$ref"].rpartition("/")[2]]
        for name, field_schema in described.get("properties", {}).items():
            if not _kinds(field_schema) & {"integer", "number", "boolean"}:
                continue
            answer = place.ask(method, usual(label, **names).json(**{**document, name: "7"}))
            assert answer.status == 400, (label, name, answer)
            asked += 1
    assert asked > 20


def _kinds(described: Mapping[str, Any]) -> set[str]:
    """The types that a field may have, where no text is among them."""
    told = described.get("type", [])
    kinds = {told} if isinstance(told, str) else set(told)
    for choice in described.get("anyOf", ()):
        kinds |= {str(choice.get("type", "string"))}
    return set() if "string" in kinds else kinds


@pytest.mark.parametrize("detail", [0, False, [], {}, "", "lots"])
def test_the_detail_of_an_image_is_one_of_those_that_are_known(place: Place, detail: object) -> None:
    url = "https://example.org/cat.png"
    for part in (
        {"type": "image_url", "image_url": {"url": url, "detail": detail}},
        {"type": "image_url", "image_url": {"url": url}, "detail": detail},
        {"type": "input_image", "image_url": url, "detail": detail},
    ):
        answer = place.ask("POST", Asked("/v1/runs").json(input=[{"role": "user", "content": [part]}]))
        assert answer.status == 400, (part, answer)


def test_what_is_no_object_is_no_run_of_a_batch(place: Place) -> None:
    answer = place.ask("POST", Asked("/v1/batch/runs").json(runs=[{"input": "x"}, "y"]))
    refused = json.loads(answer.body)["data"][1]["error"]
    assert (refused["code"], refused["message"]) == ("invalid_type", "A run must be a JSON object.")


@pytest.mark.parametrize("path", ["/health", "/v1/health", "/health/ready", "/health/detailed"])
def test_a_probe_may_add_parameters(place: Place, path: str) -> None:
    assert place.ask("GET", Asked(f"{path}?nocache=5")).status < 300


def test_a_number_that_json_does_not_know_is_refused_wherever_a_body_is_read(place: Place) -> None:
    place.run(session_id=FLEETING["session_id"])
    for label, document in BODIES.items():
        if "webhooks" in label or "inbound" in label:
            continue
        body = json.dumps({**document, "x": math.nan})
        asked = replace(usual(label, conversation_id=place.conversation()), body=body.encode())
        answer = place.ask(label.partition(" ")[0], asked)
        assert answer.status == 400, label
        assert b"NaN is not a JSON value" in answer.body, label


def test_a_character_that_postgresql_cannot_hold_is_no_defect(keyed: Settings, postgres_url: str) -> None:
    bring_up(postgres_url)
    client = open_client(replace(keyed, database=DatabaseSettings(url=postgres_url)))
    try:
        place = Place(create_app(client, FAST), Store.over(client.database))
        begun = place.ask("POST", Asked("/v1/runs").json(input="a\0b", instructions="c\0d"))
        assert begun.status == 202, begun
        for query in ("/v1/runs?session_id=a\0b", "/v1/runs?before=a\0b", "/v1/deliveries?run_id=a\0b"):
            assert place.ask("GET", Asked(query.replace("\0", "%00"))).status == 400, query
        for path in ("/v1/runs/a\0b", "/v1/deliveries/a\0b", "/v1/runs/a\0b/events"):
            assert place.ask("GET", Asked(path)).status == 404, path
        assert place.ask("POST", _event(place, "a\0b", "g", "x")).status == 404
    finally:
        client.close()
