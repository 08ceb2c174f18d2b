"""The clients of both kinds: the same conversation through a proxy that cuts, and what of the API they know."""

from __future__ import annotations

import ast
import asyncio
import inspect
import itertools
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from fastapi.routing import APIRoute
from pydantic import TypeAdapter
from serving import Served
from support.cutting import CuttingProxy
from support.store import Store, asks

from hermes_worker import installed
from hermes_worker.client import (
    AsyncHermesClient,
    Callbacks,
    Event,
    HermesClient,
    RefusedError,
    RunEnded,
    operations,
    parse_event,
)
from hermes_worker.client.address import build_address
from hermes_worker.client.exchange import Exchange, LostAnswer, Patience, run_exchange
from hermes_worker.client.streaming import LINE_BYTES_MAX, EventParser, Resumption, ToldEvent
from hermes_worker.core.delivery_states import DeliveryState
from hermes_worker.core.errors import ConfigurationError, UnavailableError
from hermes_worker.core.messages import ModelReply, Usage
from hermes_worker.core.replay import Replay
from hermes_worker.extension import load_reference
from hermes_worker.features.deliveries import operations as of_deliveries
from hermes_worker.operation import KEY_HEADER, ApiAnswer, ApiRequest
from hermes_worker.resource import Resource
from hermes_worker.schemas.sessions import SessionObject

REPLY = ModelReply(text="Hello world", usage=Usage(input=3, output=2))
CUTS = (7_000, 0, 300, 1_200, 2_500, 9_000)
"""After so many bytes a connection ends, in this order again and again."""
_IDS = re.compile(
    r"\b[0-9a-f]{64}\b|(run|dlv|key)_[0-9a-f]{8,}|client-[0-9a-f]{32}|\b[0-9a-f]{12}\b|_\d{10}_[0-9a-f]{8}"
)
_TIMES = re.compile(r"\b\d{10}(\.\d+)?\b|\d{4}-\d\d-\d\dT[0-9:.+Z]+")
_DURATIONS = re.compile(r"'duration_s': [0-9.e-]+|duration_s=[0-9.e-]+|\b\d+\.\d+\b")

ELSEWHERE: Mapping[str, str] = {
    "GET /v1/health": "the same as /health",
    "GET /health/ready": "for whoever sends requests to one of several servers",
    "GET /health/detailed": "for monitoring",
    "POST /mcp": "for clients of the Model Context Protocol",
    "POST /webhooks/{name}": "for others, who sign",
    "POST /webhooks/{tenant}/{name}": "for others, who sign",
    "GET /inbound/{platform}": "for platforms, which ask whether the address is ours",
    "POST /inbound/{platform}": "for platforms, which bring what people write",
    "POST /api/sessions/{session_id}/chat": "submit with session_id, and wait, say the same",
    "POST /api/sessions/{session_id}/chat/stream": "submit with session_id, and events, say the same",
}
"""Operations without a method, and why."""
_OF_OPENAI = re.compile(r"\w+ /v1/(models|chat|responses|conversations|embeddings|files)\b")
"""Its own SDK is the client."""


# -------------------------------------------------------------------------------------------------------- differential


def scripted(client: Any, store: Store, wait: Callable[[Any], Any], listed: Callable[[Any], Any]) -> list[Any]:
    """One conversation with every kind of operation that is sent again when its answer is lost; what was heard."""
    heard: list[Any] = []

    def say(what: Any) -> Any:
        heard.append(what)
        return what

    run_id = say(wait(client.submit("hello", tags=["t"], metadata={"a": "b"})))
    store.ask_tools(run_id, asks(Replay.PURE))
    store.settle(run_id)
    store.answer(run_id, REPLY)
    say(listed(client.events(run_id)))
    say([told.document["event"] for told in listed(client.told_events(run_id))])
    say(wait(client.result(run_id)))
    session_id = say(wait(client.run(run_id)))["session_id"]
    again = say(wait(client.retry(run_id)))
    say(wait(client.pause(again)))
    say(wait(client.resume(again)))
    say(wait(client.stop(again)))
    say(wait(client.explain(again)))
    say(wait(client.join([run_id, again], mode="any", timeout_s=20)))
    say(wait(client.wait(run_id)))
    made = say(wait(client.submit_all([{"input": f"n {n}"} for n in range(7)] + [{"input": ""}])))
    say(wait(client.stop_all(tag=["none"], dry_run=True)))
    say(sorted(one["status"] for one in listed(client.runs(limit=2, session_id=session_id))))
    say(len(made))
    job = say(wait(client.create_job("nightly", "every 1h", prompt="look")))
    say(wait(client.pause_job(job["id"])))
    say([one["name"] for one in [wait(client.job(job["id"]))]])
    say(wait(client.remove_job(job["id"])))
    session = say(wait(client.create_session(title="mine")))
    say(wait(client.remove_session(session["id"])))
    say([one["act"] for one in listed(client.audit(limit=1, subject=again))])
    say(sorted(wait(client.backlog())["queues"]))
    say(wait(client.capabilities()))
    for refused in (client.run("run_none"), client.submit("hello", model=5)):
        with pytest.raises(RefusedError) as raised:
            wait(refused)
        say((raised.value.status, raised.value.code, str(raised.value)))
    return heard


def comparable(heard: Any) -> str:
    """Without ids and times."""
    return _DURATIONS.sub("N", _TIMES.sub("T", _IDS.sub("ID", repr(heard))))


def blocking(url: str, key: str, store: Store) -> list[Any]:
    with HermesClient(url, api_key=key, patience_s=30.0) as client:
        return scripted(_Lazy(client), store, lambda call: call(), lambda call: list(call()))


class _Lazy:
    """Methods that are called when they are waited for, as coroutines are."""

    def __init__(self, client: HermesClient) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)
        return lambda *args, **kwargs: lambda: method(*args, **kwargs)


def awaiting(url: str, key: str, store: Store) -> list[Any]:
    with asyncio.Runner() as runner:
        client = AsyncHermesClient(url, api_key=key, patience_s=30.0)

        async def listed(stream: Any) -> list[Any]:
            return [each async for each in stream]

        try:
            return scripted(client, store, runner.run, lambda stream: runner.run(listed(stream)))
        finally:
            runner.run(client.close())


def test_both_clients_hear_the_same_through_a_proxy_that_cuts(api: Served, store: Store) -> None:
    port = int(api.url.rpartition(":")[2])
    plain = comparable(blocking(api.url, api.key, store))

    for talk in (blocking, awaiting):
        with CuttingProxy(port, lambda n: CUTS[n % len(CUTS)]) as proxy:
            cut = comparable(talk(proxy.url, api.key, store))
        assert cut.split(", ") == plain.split(", ")
        assert proxy.cuts >= 8


def test_deeds_are_listed_page_after_page_from_either_end(api: Served) -> None:
    with HermesClient(api.url, api_key=api.key) as client:
        run_id = client.submit("hello")
        client.pause(run_id)
        client.resume(run_id)
        acts = [deed["act"] for deed in client.audit(limit=1, subject=run_id)]
        assert acts == ["run.submit", "run.pause", "run.resume"]
        assert [deed["act"] for deed in client.audit(limit=1, subject=run_id, newest_first=True)] == acts[::-1]


def test_an_answer_that_is_lost_starts_no_second_run(api: Served) -> None:
    port = int(api.url.rpartition(":")[2])
    before = len(list(HermesClient(api.url, api_key=api.key).runs()))
    with CuttingProxy(port, lambda n: 0 if n < 3 else None) as proxy:
        HermesClient(proxy.url, api_key=api.key, patience_s=20.0).submit("once")
    assert proxy.cuts == 3
    assert len(list(HermesClient(api.url, api_key=api.key).runs())) == before + 1


def test_an_asynchronous_client_follows_and_answers_by_callbacks(api: Served, store: Store) -> None:
    async def talk() -> tuple[Any, list[str]]:
        told: list[str] = []
        async with AsyncHermesClient(api.url, api_key=api.key) as client:
            run_id = await client.submit("hello")
            store.answer(run_id, REPLY)
            return await client.follow(run_id, Callbacks(event_callback=lambda kind, _: told.append(kind))), told

    result, told = asyncio.run(talk())
    assert result["final_response"] == "Hello world"
    assert told[-1] == "ended"


# ------------------------------------------------------------------------------------------------------------ contract


ROOT = Path(__file__).resolve().parents[2]
FILE = {"id": "art_a", "url": "/v1/artifacts/art_a/content?expires=1&signature=x", "sha256": ""}


def _made() -> dict[str, tuple[str, ApiRequest[Any]]]:
    """Each request that ``operations`` can make, by method and path."""
    examples: dict[str, Any] = {
        "run_ids": ["run_a"],
        "limits": {},
        "submissions": [{}],
        "after": "0",
        "whom": {},
        "rules": {},
        "operations": [],
        "files": [],
    }
    made = {}
    features = [path.parent.name for path in (ROOT / "hermes_worker" / "features").glob("*/operations.py")]
    modules = [operations, *(import_module(f"hermes_worker.features.{name}.operations") for name in features)]
    for name, make in (each for module in modules for each in vars(module).items()):
        if name.startswith("_") or not inspect.isfunction(make) or not make.__module__.endswith(".operations"):
            continue
        needed = [p for p in inspect.signature(make).parameters.values() if p.default is p.empty]
        plain = [p for p in needed if p.kind is p.POSITIONAL_OR_KEYWORD]
        arguments = {p.name: examples.get(p.name, FILE if p.name == "found" else "x") for p in plain}
        request = make(**arguments, **({"wait_id": 1} if "wait_id" in {p.name for p in needed} else {}))
        made.setdefault(f"{request.method} {request.template}", (name, request))
    return made


def _document(api: Served) -> dict[str, Any]:
    found: dict[str, Any] = api.server.config.app.openapi()  # type: ignore[union-attr]
    return found


def test_every_operation_of_the_document_has_a_method_or_a_reason(api: Served) -> None:
    there = {
        f"{method.upper()} {path}"
        for path, operations_of in _document(api)["paths"].items()
        for method in operations_of
        if not _OF_OPENAI.match(f"{method.upper()} {path}")
    }
    made = _made()
    assert there - set(made) - set(ELSEWHERE) == set()
    assert set(made) <= there
    assert set(ELSEWHERE) <= there - set(made)


def test_both_clients_have_a_method_for_each_operation() -> None:
    streams = {"build_join": "join", "build_wait": "wait"}
    names = {streams.get(name, name) for name, _ in _made().values()} | {"submit", "start", "close", "follow", "send"}
    public = [{n for n in dir(kind) if not n.startswith("_")} for kind in (HermesClient, AsyncHermesClient)]
    assert public[0] == public[1]
    assert names <= public[0]
    for name in public[0]:
        ours, theirs = (inspect.signature(getattr(kind, name)) for kind in (HermesClient, AsyncHermesClient))
        assert [*ours.parameters] == [*theirs.parameters], name


def _null_but_required(shape: Any, shapes: Mapping[str, Any]) -> Iterator[str]:
    """The fields that must be there and may be null, in a JSON schema and all that it refers to."""
    for name, field in shape.get("properties", {}).items():
        may_be_null = any(each.get("type") == "null" for each in field.get("anyOf", ()))
        if may_be_null and name in shape.get("required", ()):
            yield f"{shape.get('title')}.{name}"
    for name in {one.rpartition("/")[2] for one in re.findall(r'"\$ref": "([^"]+)"', json.dumps(shape))}:
        if name in shapes:
            yield from _null_but_required(shapes[name], {other: shapes[other] for other in shapes if other != name})


def test_what_leaves_out_null_requires_nothing_that_may_be_null() -> None:
    """Or the answers were not as the document says, and no client could read them."""
    lean = 0
    for each in installed.get_installed().routers.values():
        for route in load_reference(each.implementation).routes:
            if isinstance(route, APIRoute) and route.response_model_exclude_none and route.response_model is not None:
                shape = TypeAdapter(route.response_model).json_schema(mode="serialization")
                assert list(_null_but_required(shape, shape.get("$defs", {}))) == [], route.path
                lean += 1
    assert lean > 10


# -------------------------------------------------------------------------------------------------------------- decide


def answered(status: int, document: Any = None, **headers: str) -> ApiAnswer:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return ApiAnswer(status=status, headers=named, body=json.dumps(document if document is not None else {}).encode())


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def played(
    request: ApiRequest[Any], *heard: Any, for_s: float = 60.0
) -> tuple[list[ApiRequest[Any]], list[float], Any]:
    """What was sent, how long was waited, and what came of it; the last of ``heard`` is heard again and again."""
    clock, sent, waits = Clock(), [], []
    asking: Exchange[Any] = run_exchange(request, Patience(for_s=for_s), clock, "the server")
    answers = itertools.chain(heard, itertools.repeat(heard[-1]))
    step = next(asking)
    while True:
        try:
            if step.after_s:
                waits.append(step.after_s)
                clock.now += step.after_s
            sent.append(step.request)
            step = asking.send(next(answers))
        except StopIteration as end:
            return sent, waits, end.value
        except (RefusedError, UnavailableError) as error:
            return sent, waits, error


LOST = LostAnswer(reason="reset")
NEVER = LostAnswer(reason="refused", was_sent=False)
UNTRUSTED = LostAnswer(reason="certificate verify failed", was_sent=False, may_pass=False)
STARTED = {"run_id": "run_1", "status": "started"}


def test_a_post_bears_one_key_over_all_attempts() -> None:
    sent, waits, got = played(operations.submit("hi"), LOST, answered(503), answered(202, STARTED))
    assert got == "run_1"
    assert len({each.headers[KEY_HEADER] for each in sent}) == 1
    assert len(sent) == 3
    assert waits == [0.25, 0.5]
    other, _, _ = played(operations.submit("hi"), answered(202, STARTED))
    assert other[0].headers[KEY_HEADER] != sent[0].headers[KEY_HEADER]
    chosen, _, _ = played(operations.submit("hi", idempotency_key="mine"), answered(202, STARTED))
    assert chosen[0].headers[KEY_HEADER] == "mine"


def test_what_is_not_idempotent_is_not_sent_again_once_it_may_have_arrived() -> None:
    change = operations.change_job("j", name="n")
    sent, _, error = played(change, LOST)
    assert len(sent) == 1 and "does not answer" in str(error)
    sent, _, _ = played(change, NEVER, NEVER, answered(200, {"job": {}}))
    assert len(sent) == 3
    sent, _, error = played(change, answered(503))
    assert len(sent) == 1


def test_a_server_whose_certificate_is_not_taken_is_not_asked_again() -> None:
    sent, waits, error = played(operations.submit("hi"), UNTRUSTED)
    assert (len(sent), waits) == (1, [])
    assert "certificate verify failed" in str(error)


def test_a_server_is_asked_again_when_it_says_and_not_beyond_the_time() -> None:
    busy = answered(429, {"error": {"message": "busy", "code": "rate_limit_exceeded"}}, retry_after="7")
    sent, waits, _ = played(operations.run("r"), busy, for_s=20)
    assert waits == [7.0, 7.0]
    assert len(sent) == 3
    late = answered(429, {"error": {"message": "busy", "code": "x"}}, retry_after="3600")
    sent, waits, error = played(operations.run("r"), late)
    assert (len(sent), waits, error.status) == (1, [], 429)
    _, waits, error = played(operations.run("r"), LOST)
    assert sum(waits) < 60 and max(waits) == 8.0
    assert isinstance(error, UnavailableError)
    assert played(operations.run("r"), LOST, for_s=0.0)[1] == []


def test_refusals_are_not_repeated_but_for_a_key_at_work() -> None:
    for status in (400, 401, 403, 404, 409, 410, 500):
        refused = answered(status, {"error": {"message": "no", "code": "c", "param": "p"}})
        sent, _, error = played(operations.submit("x"), refused)
        assert len(sent) == 1
        assert (error.status, error.code, error.param, str(error)) == (status, "c", "p", "no")
    at_work = answered(409, {"error": {"message": "at work", "code": "idempotency_key_in_progress"}})
    assert played(operations.submit("x"), at_work, answered(202, STARTED))[2] == "run_1"
    flat = answered(400, {"error": "flat words"})
    assert str(played(operations.jobs(), flat)[2]) == "flat words"


def test_what_was_removed_by_an_attempt_whose_answer_was_lost_is_removed() -> None:
    gone = answered(404, {"error": "Job not found"})
    assert played(operations.remove_job("j"), LOST, gone)[2] is None
    assert isinstance(played(operations.remove_job("j"), gone)[2], RefusedError)
    assert isinstance(played(operations.remove_job("j"), NEVER, gone)[2], RefusedError)


def test_a_path_that_a_server_does_not_have_names_both_versions() -> None:
    missing = answered(404, {"error": {"message": "There is nothing at this path.", "code": "not_found"}})
    sent, _, error = played(operations.skills(), missing, answered(200, {"status": "ok", "version": "0.0.9"}))
    assert [each.path for each in sent] == ["/v1/skills", "/health"]
    assert "0.0.9" in str(error) and "GET /v1/skills" in str(error) and "both sides" in str(error)
    _, _, error = played(operations.skills(), ApiAnswer(status=404, headers={}, body=b"<html>"))
    assert "is no Hermes worker API" in str(error)


def test_an_answer_of_somebody_else_is_told() -> None:
    for odd in (b"<html>", b"[]", b'{"run_id": 5}', b"[" * 100_000):
        error = played(operations.submit("x"), ApiAnswer(status=200, headers={}, body=odd))[2]
        assert isinstance(error, UnavailableError)


def test_a_word_that_a_later_server_added_to_a_list_is_read() -> None:
    known = {
        "delivery_id": "dlv_1",
        "target": "telegram:1",
        "state": "pending",
        "attempts": 0,
        "may_be_duplicate": False,
        "created_at": 1.0,
    }

    def read(**more: Any) -> Any:
        return played(of_deliveries.delivery("dlv_1"), answered(200, {**known, **more}))[2]

    assert read().state is DeliveryState.PENDING
    later = read(state="resting", object="hermes.later")
    assert isinstance(later.state, DeliveryState) and later.state == later.state.value == "resting"
    assert "resting" not in list(DeliveryState)
    assert (later.model_dump()["state"], later.model_dump()["object"]) == ("resting", "hermes.later")
    for wrong in (5, None):
        error = read(state=wrong)
        assert isinstance(error, UnavailableError) and "(state: " in str(error)


def test_a_resource_has_what_its_record_calls_so_and_what_it_is_given() -> None:
    class Shown(Resource):
        name: str
        size: int
        count: int = 0
        url: str | None = None

    class Row(NamedTuple):  # a tuple has a method "count"
        name: str
        size: int
        secret: str

    @dataclass(frozen=True, slots=True)
    class View:
        name: str
        size: int
        secret: str

    for record in (Row("a", 1, "s"), View("a", 1, "s")):
        shown = Shown.from_record(record, size=2, url="u")
        assert shown.model_dump() == {"name": "a", "size": 2, "count": 0, "url": "u"}


def test_fields_that_a_later_server_added_are_read() -> None:
    """Models keep them, at any depth; records that the server builds of rows leave them out."""
    one = {"id": "call_1", "later": {"a": 1}}
    kept = played(
        operations.submit_all([{}]), answered(200, {"data": [{"index": 0, **one}], "accepted": 1, "refused": 0})
    )
    assert kept[2][0]["later"] == {"a": 1} and kept[2][0].id == "call_1"
    call = {"event_id": "e", "hook": "h", "event": "on_session_end", "run_id": "run_1", "state": "resting"}
    times = {"attempts": 1, "reason": None, "created_at": 1.0, "settled_at": None}
    (found,) = played(operations.hook_calls("run_1"), answered(200, {"data": [{**call, **times, **one}]}))[2]
    assert (found.state, found.created_at, hasattr(found, "later")) == ("resting", 1.0, False)
    assert isinstance(played(operations.hook_calls("run_1"), answered(200, {"data": [call]}))[2], UnavailableError)


def test_ids_stay_in_their_part_of_the_path() -> None:
    assert operations.run("a/../b?c#d").path == "/v1/runs/a%2F..%2Fb%3Fc%23d"
    for odd in ("", ".", ".."):
        with pytest.raises(ValueError, match="no id"):
            _ = operations.run(odd).path


def test_a_key_is_in_no_error() -> None:
    for key in ("sec ret-5719", "secret\n5719"):
        with pytest.raises(ConfigurationError) as raised:
            build_address("http://h:1", key, None, None)
        assert "5719" not in str(raised.value)
    assert "5719" not in repr(build_address("http://h:1", "secret5719", None, None))
    with pytest.raises(ConfigurationError) as raised:
        build_address("http://me:secret5719@h:1", "key", None, None)
    assert "5719" not in str(raised.value)


def test_events_are_read_from_any_pieces() -> None:
    wire = b': keepalive\n\nid: 1\nevent: x\ndata: {"event": "tool.generating",\r\ndata: "tool": "\xc3\xa4"}\n\n'
    wire += b": stream closed\n\n"
    for size in (1, 2, 3, 7, 1_000):
        parser = EventParser()
        told = [t for at in range(0, len(wire), size) for t in parser.feed(wire[at : at + size])]
        assert told == [ToldEvent(id="1", document={"event": "tool.generating", "tool": "ä"})]
        assert parser.is_closed
    with pytest.raises(ValueError, match="no end"):
        list(EventParser().feed(b"x" * (LINE_BYTES_MAX + 1)))


def _parse(told: ToldEvent) -> Event:
    return parse_event(told.document)


def test_half_an_event_is_told_again_and_a_stream_without_events_is_given_up() -> None:
    clock = Clock()
    stream = Resumption(lambda after: operations.events("run_1", after), _parse, after="0", patience_s=5.0, clock=clock)
    assert stream.request.headers["Last-Event-ID"] == "0"
    list(stream.take(b'id: 4\ndata: {"event": "tool.generating", "tool": "t"}\n\nid: 5\ndata: {"event": "tool.gen'))
    assert stream.request.headers["Last-Event-ID"] == "4"
    [end] = stream.take(b'id: 9\ndata: {"event": "run.completed", "output": "x"}\n\n')
    assert isinstance(end, RunEnded) and stream.is_over
    clock.now = 4.9
    assert stream.note_end("cut") > 0
    clock.now = 5.1
    with pytest.raises(UnavailableError, match="cut"):
        stream.note_end("cut")
    assert stream.judge_refusal(answered(503))
    with pytest.raises(RefusedError):
        stream.judge_refusal(answered(404, {"error": {"message": "no", "code": "run_not_found"}}))


def test_a_field_is_found_by_its_name_in_json() -> None:
    answer = SessionObject.model_construct(lineage_root_id="ses_1", title=None)
    assert answer["_lineage_root_id"] == answer["lineage_root_id"] == answer.get("_lineage_root_id") == "ses_1"
    assert "_lineage_root_id" in answer
    assert answer.get("_lineage", 7) == 7
    with pytest.raises(KeyError):
        answer["_lineage"]


def test_every_parameter_that_an_operation_sends_is_one_of_the_api(api: Served) -> None:
    """``build_post`` takes any parameter, so a wrong name would only be refused when somebody asks."""
    paths = api.http.get("/openapi.json").json()["paths"]
    sources = [Path(import_module(name).__file__ or "") for name in list_operation_modules()]
    sent = {call for source in sources for call in find_built_requests(source)}
    assert len(sent) > 60
    wrong = [
        (method, path, name)
        for method, path, names in sorted(sent)
        for name in names
        if name not in {each["name"] for each in paths[path][method].get("parameters", ())}
    ]
    assert wrong == []


def list_operation_modules() -> list[str]:
    features = Path(import_module("hermes_worker.features").__path__[0])
    own = [f"hermes_worker.features.{path.parent.name}.operations" for path in sorted(features.glob("*/operations.py"))]
    return ["hermes_worker.client.operations", *own]


def find_built_requests(source: Path) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """The method, the path and the named parameters of each request that a module builds with a plain path."""
    for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args):
            continue
        method, path = node.func.id.removeprefix("build_"), node.args[0]
        if method in {"get", "post"} and isinstance(path, ast.Constant):
            own = {"get": {"names"}, "post": {"names", "body", "key"}}[method]
            yield method, path.value, tuple(each.arg for each in node.keywords if each.arg and each.arg not in own)
