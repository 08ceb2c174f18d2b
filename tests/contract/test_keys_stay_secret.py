"""Whatever a provider says, the key that was sent to it comes back nowhere; and what is wrong is named."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
import redis
from dialects import API_MODE, HELLO, RULES
from strict_server import Fault, StrictServer, body, instead_of_event, status
from support.dumps import texts_of
from support.samples import take_turns
from support.store import Store
from support.turns import KEY, Turns
from support.valkey import for_administrator

from hermes_worker.core.run import RunStatus
from hermes_worker.models.chain import ModelChoice
from hermes_worker.models.governor import Governor
from hermes_worker.observe import configure_logging, log
from hermes_worker.safety.redaction import redact
from hermes_worker.services.results import build_training_sample, build_turn_result
from hermes_worker.settings import LogSettings

pytestmark = pytest.mark.usefixtures("no_time_for_short_waits")

OTHER_KEY = "hunter2hunter2hunter2"
"""Looks like no key of anybody's, so that only knowing it helps."""

FAULTS: dict[str, Fault] = {
    "in a refusal": status(401, f"Incorrect API key provided: {KEY} ({OTHER_KEY})"),
    "in a bad request": status(400, f"unexpected header Authorization: Bearer {KEY} {OTHER_KEY}"),
    "in a rate limit": status(429, f"key {KEY} {OTHER_KEY} is limited", f"{OTHER_KEY}", f"X-Key: {KEY}"),
    "in a server error": status(500, f"trace: api_key={KEY!r} {OTHER_KEY}"),
    "in a web page": body(200, f"<html>{KEY} {OTHER_KEY}</html>".encode(), "text/html"),
    "in broken JSON": body(200, f'{{"{KEY} {OTHER_KEY}'.encode()),
    "in a redirect": body(302, f"{KEY}".encode()),
    "in a stream": instead_of_event(
        0, f'data: {{"error": {{"message": "bad {KEY} {OTHER_KEY}", "type": "x"}}}}\n\n'.encode()
    ),
}


def _content(client: redis.Redis, key: str) -> object:
    match client.type(key):
        case "hash":
            return key, client.hgetall(key)
        case "stream":
            return key, client.xrange(key)
        case "zset":
            return key, client.zrange(key, 0, -1)
        case _:
            return key


@pytest.mark.parametrize(("key", "wire"), take_turns([KEY, OTHER_KEY], list(RULES)))
def test_a_key_that_a_provider_repeats_reaches_nobody(
    store: Store,
    server: StrictServer,
    tmp_path: Path,
    broker_url: str,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    wire: str,
    key: str,
) -> None:
    lines = io.StringIO()
    for name in ("_level", "_emit"):
        monkeypatch.setattr(log, name, getattr(log, name))  # for the tests after this one
    configure_logging(LogSettings(), "worker", stream=lines)  # whatever the tests before this one made of it
    client = redis.Redis.from_url(for_administrator(broker_url), decode_responses=True)
    turns = Turns.over(
        store,
        server.base_url,
        api_key=key,
        api_mode=API_MODE[wire],
        governor=Governor(client),
        live=client,
    )
    told = []
    for name in FAULTS:
        client.flushall()
        server.faults(*[FAULTS[name]] * 9)
        run_id = turns.submit(session_id=name.replace(" ", "-"))
        store.runs.mark_watched(run_id, 60)
        turns.finish(run_id)
        told += [build_turn_result(store.views, run_id), build_training_sample(store.views, run_id)]
        told.append([(event.name, dict(event.data)) for event in store.views.list_events_after(run_id, 0)])
        told.append([_content(client, found) for found in client.keys("*")])
        assert store.views.load_run(run_id).status is RunStatus.FAILED, name

    database = texts_of(tmp_path / "store.db")
    logs = capfd.readouterr()
    for place in (json.dumps(told, default=str), database, logs.out, logs.err, lines.getvalue()):
        assert key not in place
    assert "model.failed" in lines.getvalue()


@pytest.mark.parametrize(
    ("fault", "named"),
    [
        (status(401, "Incorrect API key provided"), "HERMES_API_KEY"),
        (status(404, "The model `strict` does not exist", "model_not_found"), "HERMES_MODEL"),
        (body(404, b"404 page not found", "text/plain"), "HERMES_BASE_URL"),
        (body(302, b""), "HERMES_BASE_URL"),
    ],
)
@pytest.mark.parametrize("wire", RULES)
def test_a_run_that_fails_for_its_configuration_names_the_setting(
    store: Store, server: StrictServer, wire: str, fault: Fault, named: str
) -> None:
    turns = Turns.over(store, server.base_url, api_mode=API_MODE[wire])
    server.faults(*[fault] * 9)
    run_id = turns.submit()
    turns.finish(run_id)

    view = store.views.load_run(run_id)
    assert view.status is RunStatus.FAILED
    assert named in (view.error or "")


def test_a_vendors_own_variable_is_named_for_its_key(store: Store, server: StrictServer) -> None:
    turns = Turns.over(store, server.base_url, provider="groq")
    server.faults(status(401, "Invalid API Key"))
    run_id = turns.submit()
    turns.finish(run_id)

    assert "GROQ_API_KEY or HERMES_API_KEY" in (store.views.load_run(run_id).error or "")


@pytest.mark.parametrize(
    ("choice", "named"),
    [
        (ModelChoice(provider="openai", model="m"), "OPENAI_API_KEY"),
        (ModelChoice(provider="opnai", model="m"), "model.provider"),
        (ModelChoice(base_url="http://127.0.0.1:9/v1", model="m"), "HERMES_BASE_URL"),
        (ModelChoice(provider="azure", api_key="k", model="m"), "HERMES_BASE_URL"),
    ],
)
def test_a_run_without_a_key_a_provider_or_a_host_fails_and_names_the_setting(
    store: Store, choice: ModelChoice, named: str
) -> None:
    turns = Turns.over(store, choice=choice)
    run_id = turns.submit()
    turns.finish(run_id)

    view = store.views.load_run(run_id)
    assert view.status is RunStatus.FAILED
    assert named in (view.error or "")
    assert HELLO.text not in (view.output or "")


def test_the_key_of_these_tests_would_be_recognised_by_its_looks() -> None:
    assert KEY not in redact(KEY)
    assert OTHER_KEY in redact(OTHER_KEY)
