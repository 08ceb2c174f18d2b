"""The OpenAPI document is true: what it allows is taken, what it does not allow is refused, and what comes back is what
it says. schemathesis asks, in process, on both databases.

A usual run asks 150 times in each dialect, and as often at night; each operation on one of the databases. At length:

    pytest -m slow -n 2 tests/api/test_document.py -k dialect --dialect-cases 10000
    pytest -m slow -n 0 tests/api/test_document.py -k operation --cases 300

What no document can say is put right in ``World``, and nowhere else:

* names of what there is: the ids in paths, ``before``, ``context_from``, ``attach_to_session``, a ``session_id`` that
  begins like an id;
* ``arguments`` of a call, whose form its tool says, which differs from call to call;
* ``skills`` of a run, which there have to be;
* ``max_cost_usd``, which needs a model whose price this installation knows;
* times: ``not_before`` is at most a year ahead, ``deadline`` ahead of it, and neither goes with some other fields;
* ``timeout_s``, which is waited for, and ``run_ids``;
* ``cursor``, which the page before gives;
* an end that lies behind the start, and a delay from now that lies before it: dates that depend on one another;
* ``rules`` of retention and ``filters`` of a route, which have grammars of their own;
* what a change leaves a job with, which depends on what the job was.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import requests
import schemathesis
from answering import answering
from fastapi import FastAPI
from schemathesis import Case, GenerationMode
from schemathesis.core.parameters import ParameterLocation
from schemathesis.python import asgi
from schemathesis.schemas import APIOperation
from serving import FAST, KEY, PATIENCE_S, Served
from support import grammars
from support.migrated import bring_up
from support.store import Store, asks
from support.valkey import emptied
from test_webhooks_api import add, signed

from hermes_worker import installed
from hermes_worker.api.app import create_app
from hermes_worker.api.formats import TextFormat
from hermes_worker.api.operations import is_path_of
from hermes_worker.core.key_states import Finding, KeyCondition
from hermes_worker.core.principals import KeyScope
from hermes_worker.core.replay import Replay
from hermes_worker.extension import load_reference
from hermes_worker.features.mcp_servers.rows import McpServers, NewMcpServer
from hermes_worker.mcp.servers import McpServer
from hermes_worker.services import submission
from hermes_worker.settings import (
    BrokerSettings,
    DatabaseSettings,
    GatewaySettings,
    ModelSettings,
    Secret,
    ServerSettings,
    Settings,
)
from hermes_worker.store.access.principals import Tenants
from hermes_worker.store.key_states import KeyStates
from hermes_worker.store.runs.limits import TenantLimits
from hermes_worker.wiring import open_client

SEED = 14
JSON = {"content-type": "application/json"}
METHODS = {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"}
DATABASES = ("sqlite", "postgresql")
DIALECT_CASES = 340
"""Some operations take nothing and are asked once; about 300 are left."""
OPENAI = ("openai_models", "openai_chat", "openai_responses", "openai_conversations")
DIALECTS = {
    "openai": {*OPENAI, "responses_compacting", "embeddings", "files"},
    "original": {"runs", "events", "approvals", "sessions", "session_turns", "jobs", "capabilities", "health"},
    "webhooks": {"webhooks", "inbound"},
}
"""By names of routers. All others are ``queue``: what a queue API adds."""
OPERATIONS = {
    f"{method} {route.path}": next((dialect for dialect, names in DIALECTS.items() if declared.name in names), "queue")
    for declared in installed.get_installed().routers.values()
    for route in load_reference(declared.implementation).routes
    for method in route.methods
}
"""The dialect of each."""
PRICED = "priced-model"
LISTENED = {"TELEGRAM_WEBHOOK_SECRET": "s3cret_of-webhook"}
TOOLS = (
    '[{"type":"function","function":{"name":"tool0","description":"","parameters":'
    '{"type":"object","properties":{"n":{"type":"integer"}}}}}]'
)
ANSWERED = {
    "/v1/chat/completions",
    "/v1/responses",
    "/v1/responses/compact",
    "/api/sessions/{session_id}/chat",
    "/api/sessions/{session_id}/chat/stream",
}
"""Requests that wait until somebody has worked for them."""
ABSENT = {"run_not_found", "delivery_not_found"}
STREAM_S = 5.0


class Signed(requests.auth.AuthBase):
    """Signs what is sent as the holder of the webhook route's secret."""

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        body = request.body or b""
        request.headers.update(signed(body.encode() if isinstance(body, str) else bytes(body)))
        request.headers["x-telegram-bot-api-secret-token"] = LISTENED["TELEGRAM_WEBHOOK_SECRET"]
        return request


Worlds = Callable[[str], "World"]
"""By the kind of database."""


class World:
    """An installation in which there is one of everything."""

    def __init__(self, app: FastAPI, store: Store, session: Any) -> None:
        self.app = app
        self.store = store
        self._numbers = itertools.count()
        self.session = session
        self.session.auth = Signed()
        self.session.headers["Authorization"] = f"Bearer {KEY}"
        for tenant in ("default", "acme"):
            add(store, "open", tenant=tenant, rate_per_min=10_000)
        # One whose limits are nobody's concern; the fleet has a place for every run.
        Tenants(store.database).create_tenant("limited")
        TenantLimits(store.database).set_places(1_000_000)
        schema = schemathesis.openapi.from_dict(app.openapi())
        schema.app = app
        schema.config.update(headers={"Authorization": f"Bearer {KEY}"})
        # A body that is longer than any may be is refused before anybody reads what is in it.
        refused = schema.config.checks.negative_data_rejection
        refused.expected_statuses = [*refused.expected_statuses, "413"]
        submission.warm_up()  # as a process does before it serves: the first schema would take seconds under load
        self.operations = {operation.ok().label: operation.ok() for operation in schema.get_all_operations()}

    def send(self, case: Case) -> Any:
        with answering(self.store) if case.path in ANSWERED else nullcontext():
            return self._sent(case)

    def _sent(self, case: Case) -> Any:
        # What lasts for as long as somebody reads is read for a while.
        timeout_s = STREAM_S if case.path == "/v1/changes" else PATIENCE_S
        return case.call(session=self.session, app=self.app, timeout=timeout_s)

    def post(self, path: str, **document: Any) -> Any:
        answer = self.session.post(path, json=document)
        assert answer.status_code < 300, answer.text
        return answer.json()

    def names(self, path: str) -> dict[str, str]:
        """What to put into the path of an operation: new ones each time, because some are used up."""
        found: dict[str, str] = {}
        if "{run_id}" in path:
            found["run_id"] = self.ended() if path.endswith("events") else self.waiting()
        if "{job_id}" in path:
            found["job_id"] = self.job()
        if "{delivery_id}" in path:
            self.ended()
            found["delivery_id"] = self.session.get("/v1/deliveries").json()["data"][0]["delivery_id"]
        if "{session_id}" in path:
            found["session_id"] = self.talked()
        if "{name}" in path:
            found["name"] = "open" if path.startswith("/webhooks") else self.route()
        if "{mcp_server}" in path:
            found["mcp_server"] = self.mcp_server()
        if "{replay}" in path:
            found["replay"] = "nightly"
            self.post(f"/v1/runs/{self.ended()}/fork", at=0, tools="offline", replay="nightly")
        if "{skill}" in path:
            found["skill"] = self.skill()
        if "{receipt_id}" in path:
            found["receipt_id"] = self.erasure()
            if "receipts" in path:
                self.post(f"/v1/erasures/{found['receipt_id']}/work", stop=False)
        if "{platform}" in path:
            found["platform"] = "telegram"
        if "{target}" in path:
            found["target"] = "user"
        if "{number}" in path:
            found["number"] = str(self.post("/v1/holds", reason="x", run_id=self.ended())["number"])
        if "{credential}" in path:
            found["credential"] = self.credential()
        if "{tenant}" in path:
            found["tenant"] = "limited" if path.startswith("/v1/tenants") else "acme"
        if "{artifact_id}" in path:
            found["artifact_id"] = "art_of_nobody"  # who has no signed address sees nothing else
        if "{file_id}" in path:
            form = {"file": ("a.txt", b"x")}
            found["file_id"] = self.session.post("/v1/files", data={"purpose": "user_data"}, files=form).json()["id"]
        if "{key_id}" in path:
            found["key_id"] = self.key("default")
        if "{provider_key_id}" in path:
            found["provider_key_id"] = "pkey_000000000000"  # none is taken in while texts are in clear
        if "{response_id}" in path:
            found["response_id"] = self.ended().replace("run_", "resp_")
        if "{conversation_id}" in path:
            talk = self.post("/v1/conversations", items=[{"role": "user", "content": "hello"}])["id"]
            found["conversation_id"] = talk
        if "{item_id}" in path:
            found["item_id"] = self.session.get(f"/v1/conversations/{talk}/items").json()["data"][0]["id"]
        if "{call}" in path:
            found["call"] = self.session.get(f"/v1/runs/{found['run_id']}/calls").json()["data"][0]["call"]
        if "{worker_id}" in path:
            found["worker_id"] = self.store.worker("leaves").worker_id
        if "{model}" in path:
            found["model"] = PRICED
        return found

    def route(self) -> str:
        """For events of others."""
        name = f"route{next(self._numbers)}"
        self.post("/v1/webhook-routes", name=name, secret="0123456789abcdef")
        return name

    def mcp_server(self) -> str:
        """In a row, the same until it is removed; the API here lets nobody keep one."""
        rows = McpServers(self.store.database)
        if rows.find("default", "server") is None:
            new = NewMcpServer(server=McpServer(url="http://127.0.0.1:1/mcp").model_dump_json(), is_process=False)
            rows.write_server("default", "server", new, before=None, facts={})
        return "server"

    def skill(self) -> str:
        name = f"skill{next(self._numbers)}"
        text = f"---\nname: {name}\ndescription: Tidy up.\n---\nPut things away.\n"
        kept = self.session.put(f"/v1/skills/{name}", json={"files": [{"path": "SKILL.md", "text": text}]})
        assert kept.status_code == 200, kept.text
        return name

    def somebody(self) -> dict[str, list[str]]:
        """A session in which nothing was said."""
        name = f"gone{next(self._numbers)}"
        self.post("/api/sessions", id=name)
        return {"sessions": [name]}

    def erasure(self) -> str:
        """One that has begun."""
        return str(self.post("/v1/erasures", whom=self.somebody())["receipt_id"])

    def receipt(self) -> str:
        return json.dumps(self.post(f"/v1/erasures/{self.erasure()}/work", stop=False)["receipt"])

    def credential(self) -> str:
        """Of a provider, closed."""
        found = Finding(condition=KeyCondition.NO_MONEY)
        KeyStates(self.store.database).record_failure(("openai", "key1"), found, run_id="run_1", reason="pay first")
        return "key1"

    def key(self, tenant: str) -> str:
        return Tenants(self.store.database).create_key(tenant, "somebody", [KeyScope.RUNS_READ]).view.key_id

    def job(self) -> str:
        return str(self.post("/api/jobs", name="n", schedule="every 1h", prompt="x")["job"]["id"])

    def talked(self) -> str:
        """A session with a turn that is over."""
        name = f"talk_{next(self._numbers)}"
        self.store.answer(str(self.post("/v1/runs", input="hello", session_id=name)["run_id"]))
        return name

    def ended(self) -> str:
        run_id = str(self.post("/v1/runs", input="hello", deliver="telegram:1")["run_id"])
        self.store.answer(run_id)
        return run_id

    def waiting(self) -> str:
        run_id = self.store.submit(tools=TOOLS, source="api").run_id
        self.store.ask_tools(run_id, asks(Replay.ONCE, Replay.PURE))
        return run_id

    def older(self, path: str) -> str:
        """For ``before`` of a list."""
        if "sessions" in path:
            return self.talked()
        return self.names("{delivery_id}")["delivery_id"] if "deliveries" in path else self.ended()

    def put_right(self, case: Case) -> None:
        """Replace what no document can say."""
        path = case.operation.path
        if (
            isinstance(case.query, dict)
            and case.query.get("before")
            and not path.startswith(("/api/jobs", "/v1/approvals"))
        ):
            case.query["before"] = self.older(path)
        if path.endswith("/wait") and case.method == "GET":
            case.query = dict(case.query or {})
        if isinstance(case.query, dict):
            if case.query.get("tenant"):
                # ``before`` names a run of the tenant ``default``.
                is_default = "{key_id}" in path or path.endswith("replayed") or case.query.get("before")
                case.query["tenant"] = "default" if is_default else "limited"
            if case.query.get("key_id"):
                case.query["key_id"] = self.key("limited")
            case.query.pop("cursor", None)
            if path == "/v1/slots" and "schedule" in case.query:
                case.query |= {"schedule": "@daily", "timezone": "UTC"}  # with grammars of their own
            if path.endswith("{run_id}/wait"):
                case.query["timeout_s"] = 0
            if path == "/v1/files" and case.query.get("after"):
                case.query["after"] = self.names("{file_id}")["file_id"]
        body = case.body
        if not isinstance(body, dict):
            return
        replaced: dict[str, Callable[[], Any]] = {
            "context_from": lambda: [self.job()],
            "attach_to_session": self.ended,
            "arguments": lambda: {"n": 1},
            "settings": lambda: {"agent.max_turns": "5"},
        }
        for name in replaced.keys() & body.keys():
            if body[name]:
                body[name] = replaced[name]()
        if str(body.get("session_id")).startswith("run_"):
            del body["session_id"]
        if path == "/api/sessions" and {"id", "session_id"} <= body.keys():
            body["id"] = body["session_id"]
        if path.endswith("/configuration") and isinstance(body.get("text"), str):
            body["text"] = "agent: {max_turns: 5}"
            body["version"] = self.session.get(case.formatted_path).json().get("version", 0)
        if "message_id" in body:
            body["message_id"] = 1
        if body.get("output_schema") is not None and body.get("multitask") == "steer":
            del body["multitask"]
        if body.get("not_before") is not None or body.get("delay_s") is not None:
            body.pop("multitask", None)
            if body.get("delay_s") is not None or body["not_before"] > 1.8e9:
                body.pop("not_before", None)
        if body.get("deadline") is not None:
            body["deadline"] = 4e9
        if body.get("previous_response_id") is not None:
            body["previous_response_id"] = self.ended().replace("run_", "resp_")
            body.pop("conversation", None)
        conversation = body.get("conversation")
        if str(conversation.get("id") if isinstance(conversation, dict) else conversation).startswith(
            ("run_", "conv_")
        ):
            del body["conversation"]
        if body.get("background"):
            body.pop("store", None)
        if path == "/v1/batch/wait":
            body |= {"run_ids": [self.ended()], "timeout_s": 0}
        if path == "/v1/alerts/targets":
            body["targets"] = ["local"]  # a tenant may not send everywhere
            case.query = {"tenant": "limited"}  # those of the installation are settings
        if path == "/v1/deliveries":
            body["target"] = "telegram:123"  # with a grammar of its own
        if path == "/v1/places":
            body["places"] = 1_000_000
        if path.startswith(("/v1/exports", "/v1/erasures")) and path != "/v1/erasures/{receipt_id}/work":
            body.clear()
            body |= {"whom": self.somebody()} if path == "/v1/erasures" else self.somebody()
            if path.endswith("replayed"):
                body.clear()
                body["receipt"] = self.receipt()
        if path == "/v1/files" and not {"expires_after[anchor]", "expires_after[seconds]"} <= body.keys():
            body.pop("expires_after[anchor]", None)  # one needs the other
            body.pop("expires_after[seconds]", None)
        if path == "/v1/tenants":
            body["name"] = f"tenant-{next(self._numbers)}"
        if path == "/v1/webhook-routes":
            body |= {"name": f"added{next(self._numbers)}", "secret": "0123456789abcdef"}
            body |= {"filters": [], "deliver": [], "deliver_only": False}  # with grammars of their own
        if path == "/v1/retention":
            body["rules"] = {kind: None if rule is None else "900d" for kind, rule in body["rules"].items()}
        if path == "/v1/holds":
            body["run_id"] = self.ended()  # everything of a tenant would stay
            body.pop("session_id", None)
        if path == "/v1/prunes" and body.get("after"):
            del body["after"]
        if path == "/v1/runs" and body.get("skills"):
            body["skills"] = []
        if body.get("max_cost_usd"):
            body["model"] = PRICED
        if path == "/v1/chat/completions" and (body.get("n") or 1) > 1:  # choices are answers without all of these
            for name in ("stream", "stream_options", "tools", "tool_choice"):
                body.pop(name, None)
            for name in [name for name in case.headers if name.lower().startswith("x-hermes-session")]:
                del case.headers[name]
        if body.get("tools"):  # the schemas of the client's tools have rules of their own
            function = {"name": "of_the_client", "parameters": {"type": "object"}}
            is_chat = "chat" in path
            body["tools"] = [
                {"type": "function", "function": function} if is_chat else {"type": "function", **function}
            ]
            body.pop("tool_choice", None)
            for name in [name for name in case.headers if name.lower().startswith("x-hermes-session")]:
                del case.headers[name]  # a session that there is began with other tools
            body.pop("conversation", None)  # as may one of this name
            body.pop("previous_response_id", None)
        if isinstance(body.get("input"), list) and "sessions" not in path:
            body["input"].append({"role": "user", "content": "hello"})  # the last message is the user's
        for name in ("message", "input"):
            if isinstance(body.get(name), list) and "chat" in path:
                body[name].append("hello")  # some of it is said
        if case.headers.get("Last-Event-ID") and case.method == "POST":
            case.headers["Idempotency-Key"] = "k"  # by which the stream is known
        if isinstance(body.get("messages"), list):
            body["messages"].append({"role": "user", "content": "hello"})
        if path.startswith("/api/jobs"):
            _agree(body, is_new=case.method == "POST")


def _agree(body: dict[str, Any], *, is_new: bool) -> None:
    is_delay = str(body.get("schedule", "every")).startswith(("in ", *"0123456789")) and "*" not in body["schedule"]
    if is_delay or not (body.get("starts_at") and body.get("ends_at")):
        body.pop("starts_at", None)
    if body.get("starts_at") and body.get("ends_at"):
        body["ends_at"] = "2999-01-01T09:00"
    # Now and then the generator forgets the format of a text that may also be empty or null.
    if body.get("base_url") and "://" not in body["base_url"]:
        body["base_url"] = "https://models.example.org/v1"
    if isinstance(body.get("origin"), str) and body["origin"] and ":" not in body["origin"]:
        body["origin"] = "telegram:123"
    if not is_new:
        body |= {"prompt": "look"}
        if body.get("no_agent"):
            body["script"] = "check.sh"
        if body.get("base_url"):
            body["provider"] = "openai"


@pytest.fixture(scope="module")
def worlds(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worlds]:
    """A world on each database, made when it is first asked for."""
    found: dict[str, World] = {}
    broker_url = emptied(request.getfixturevalue("shared_valkey"))
    grammars.register()

    def world_on(kind: str) -> World:
        if kind not in found:
            home = tmp_path_factory.mktemp(kind)
            url = f"sqlite:///{home / 'test.db'}"
            if kind == "postgresql":
                url = stack.enter_context(request.getfixturevalue("shared_postgres_farm").database())
            found[kind] = stack.enter_context(_opened(home, url, broker_url))
        return found[kind]

    with ExitStack() as stack:
        yield world_on


@contextmanager
def _opened(home: Path, database_url: str, broker_url: str) -> Iterator[World]:
    bring_up(database_url)
    settings = Settings(
        home=home,
        database=DatabaseSettings(url=database_url),
        broker=BrokerSettings(url=broker_url),
        model=ModelSettings(provider="openai", name=PRICED, prices=(f"openai:{PRICED}=1/1",)),
        server=ServerSettings(port=0, key=Secret(KEY)),
        gateway=GatewaySettings(is_enabled=True),
        environ=LISTENED,
    )
    client = open_client(settings)
    try:
        app = create_app(client, FAST)
        with asgi.get_client(app) as session:
            yield World(app, Store.over(client.database), session)
            asgi.shutdown_lifespans()
    finally:
        client.close()


# --- asking ----------------------------------------------------------------------------------------------------------


def ask(operation: APIOperation, mode: GenerationMode, check: Callable[[Case], None], *, times: int) -> None:
    """Send some requests that the document allows, or does not."""

    @hypothesis.seed(SEED)
    @hypothesis.settings(
        max_examples=times,
        database=None,
        deadline=None,
        phases=[hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(case=operation.as_strategy(generation_mode=mode))
    def send(case: Case) -> None:
        check(case)

    try:
        send()
    except hypothesis.errors.Unsatisfiable:
        pass  # there is nothing that the document forbids


def ask_rightly(world: World, operation: APIOperation, *, times: int) -> None:
    def check(case: Case) -> None:
        if "{" in operation.path:
            case.path_parameters = world.names(operation.path)
        world.put_right(case)
        case.validate_response(world.send(case))

    ask(operation, GenerationMode.POSITIVE, check, times=times)


def ask_of_anything(world: World, operation: APIOperation, *, times: int) -> None:
    """With names in the path that are most often nobody's."""

    def check(case: Case) -> None:
        world.put_right(case)
        case.validate_response(world.send(case))

    ask(operation, GenerationMode.POSITIVE, check, times=times)


def ask_wrongly(world: World, operation: APIOperation, *, times: int) -> None:
    def check(case: Case) -> None:
        wrong = {place for place, part in case.meta.components.items() if part.mode.is_negative}
        if "{" in operation.path and ParameterLocation.PATH not in wrong:
            # Otherwise all that is wrong would be hidden behind a name that is nobody's.
            case.path_parameters = world.names(operation.path)
        case.validate_response(world.send(case))

    ask(operation, GenerationMode.NEGATIVE, check, times=times)


ASKED = {"rightly": ask_rightly, "of anything": ask_of_anything, "wrongly": ask_wrongly}
ALL = [(label, how) for label in sorted(OPERATIONS) for how in ASKED if "{" in label or how != "of anything"]
SHARES = Counter(OPERATIONS[label] for label, _ in ALL)
"""In how many parts the cases of a dialect are asked."""


PARTS = [(DATABASES[n // 2 % 2], *asked) for n, asked in enumerate(ALL)]
WAYS = {label: [how for one, how in ALL if one == label] for label in OPERATIONS}
TURNS = {label: WAYS[label][n % len(WAYS[label])] for n, label in enumerate(sorted(OPERATIONS))}
"""How each operation is asked by day: in one of its two or three ways, which take turns."""
BY_DAY = [
    pytest.param(kind, label, how, marks=[] if TURNS[label] == how else [pytest.mark.nightly])
    for kind, label, how in PARTS
]


@pytest.mark.parametrize(("database", "label", "how"), BY_DAY)
def test_a_sample_of_every_operation(worlds: Worlds, database: str, label: str, how: str) -> None:
    world = worlds(database)
    ASKED[how](world, world.operations[label], times=math.ceil(DIALECT_CASES / SHARES[OPERATIONS[label]]))


@pytest.mark.slow
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize(("database", "label", "how"), PARTS)
def test_every_dialect_at_length(
    worlds: Worlds, database: str, label: str, how: str, pytestconfig: pytest.Config
) -> None:
    world = worlds(database)
    times = math.ceil(pytestconfig.getoption("dialect_cases") / SHARES[OPERATIONS[label]])
    ASKED[how](world, world.operations[label], times=times)


@pytest.mark.slow
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("database", DATABASES)
@pytest.mark.parametrize(("label", "how"), ALL)
def test_every_operation_at_length(
    worlds: Worlds, database: str, label: str, how: str, pytestconfig: pytest.Config
) -> None:
    world = worlds(database)
    ASKED[how](world, world.operations[label], times=pytestconfig.getoption("cases"))


# --- facts -----------------------------------------------------------------------------------------------------------


def test_every_grammar_of_the_document_is_known_here(api: Served) -> None:
    """Else schemathesis would send anything for it, and only what is refused could be seen."""
    text = api.http.get("/openapi.json").text
    named = set(re.findall(r'"format":"([^"]+)"', text)) - {"date-time", "binary"}  # any bytes are a file
    assert named == {*TextFormat} == {*grammars.VALID}


def test_every_id_in_a_path_is_linked_from_where_it_comes(api: Served) -> None:
    document = api.http.get("/openapi.json").json()
    linked: set[tuple[str, str]] = set()
    named: set[tuple[str, str]] = set()
    for path, described in document["paths"].items():
        for operation in described.values():
            named |= {(operation["operationId"], name) for name in re.findall(r"\{(\w+)\}", path)}
            for answer in operation["responses"].values():
                for link in answer.get("links", {}).values():
                    linked |= {(link["operationId"], name.removeprefix("path.")) for name in link["parameters"]}
    given = {
        "name",
        "tenant",
        "key_id",
        "credential",
        "number",
        "receipt_id",
        "provider_key_id",
        "target",
        "skill",
        "mcp_server",
        "platform",
        "replay",
    }  # by an operator, or by whoever made it
    assert {(asked, name) for asked, name in named if name not in given} == linked


WRONG = [
    ("schedule", "every now and then"),
    ("timezone", "Vienna"),
    ("starts_at", "tomorrow"),
    ("ends_at", "2027-13-01"),
    ("deliver", "pigeon:1"),
    ("deliver", ["telegram:1", "webhook:ftp://example.org"]),
    ("origin", "local"),
    ("origin", {"platform": "telegram", "chat_id": "1,2"}),
    ("base_url", "https://user@example.org"),
    ("script", "../x.sh"),
    ("prompt", "a\u200bb"),
]


@pytest.mark.parametrize(("field", "value"), WRONG)
def test_a_text_that_does_not_follow_its_grammar_is_refused(api: Served, field: str, value: Any) -> None:
    job = {"name": "n", "schedule": "every 1h", "prompt": "x", "provider": "openai", field: value}
    answer = api.http.post("/api/jobs", json=job)
    assert answer.status_code == 400, answer.text
    assert len(answer.json()["error"]) > 20


def test_every_path_says_which_methods_it_takes(api: Served) -> None:
    document = api.http.get("/openapi.json").json()
    for path, described in document["paths"].items():
        place = re.sub(r"\{\w+\}", "x", path)
        # "/api/sessions/search" may also be a session that somebody called so.
        fitting = [its for each, its in document["paths"].items() if is_path_of(each, place)]
        taken = {method.upper() for its in fitting for method in its}
        assert described in fitting
        for method in METHODS - taken:
            answer = api.http.request(method, place)
            allowed = set(answer.headers.get("Allow", "").split(", "))
            assert (answer.status_code, allowed) == (405, taken), (method, path)


def test_a_whole_number_may_be_written_with_a_fraction(api: Served) -> None:
    """JSON knows one kind of number."""
    run = api.http.post("/v1/runs", content=b'{"input": "x", "max_iterations": 5.0}', headers=JSON)
    assert run.status_code == 202, run.text
    job = b'{"name": "n", "schedule": "every 1h", "prompt": "x", "repeat": 2.0, "tokens_max": 1e3}'
    kept = api.http.post("/api/jobs", content=job, headers=JSON)
    assert kept.status_code == 200, kept.text
    assert (kept.json()["job"]["repeat"]["times"], kept.json()["job"]["tokens_max"]) == (2, 1000)
    for wrong in (b"5.5", b'"5"', b"true"):
        answer = api.http.post("/v1/runs", content=b'{"input": "x", "max_iterations": ' + wrong + b"}", headers=JSON)
        assert answer.status_code == 400
