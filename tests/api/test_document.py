"""The OpenAPI document is true: what it allows is taken, and what comes back is what it says. schemathesis asks."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import hypothesis
import pytest
import schemathesis
from schemathesis import Case, GenerationMode
from schemathesis.schemas import APIOperation
from serving import PATIENCE_S, Served
from support.store import Store, asks
from test_webhooks_api import add

from hermes_worker.channels.webhooks.route import NO_AUTH
from hermes_worker.core.replay import Replay

SEED = 14
JSON = {"content-type": "application/json"}
METHODS = {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"}
SAMPLES: dict[str, Any] = {
    # Texts with a grammar of their own, and names of what there is, which no document can spell out.
    "schedule": "every 5m",
    "timezone": "Europe/Vienna",
    "starts_at": "2020-01-01T09:00",
    "ends_at": "2999-01-01T09:00",
    "deliver": ["telegram:123"],
    "origin": "telegram:123",
    "base_url": "https://example.org/v1",
    "script": "check.sh",
    "webhook": "https://example.org/hook",
    "toolsets": ["file"],
}
LEFT_OUT = {"context_from", "max_cost_usd", "model", "arguments"}
"""Fields whose values depend on what there is: other jobs, prices, models, the schema of a tool."""
ABSENT = {"run_not_found", "delivery_not_found"}
"""Errors that are about what there is, not about the form of the request."""


def possible(case: Case) -> None:
    """Replace what only fits by its form."""
    if isinstance(case.query, dict):
        case.query.pop("before", None)
    body = case.body
    if not isinstance(body, dict):
        return
    for name in [name for name in body if name in LEFT_OUT]:
        del body[name]
    for name in [name for name, value in body.items() if name in SAMPLES and value is not None]:
        body[name] = SAMPLES[name]
    if isinstance(body.get("input"), list):
        body["input"].append("hello")  # the last message is the user's
    if body.get("no_agent"):
        body["script"] = SAMPLES["script"]
    if case.path.startswith("/api/jobs"):
        body |= {"prompt": "look"} | ({"provider": "openai"} if body.get("base_url") else {})


class World:
    """An installation in which there is one of everything."""

    def __init__(self, api: Served, store: Store) -> None:
        self.api = api
        self.store = store
        self.headers = {"Authorization": api.authorization}
        add(store, "open", secret=NO_AUTH, rate_per_min=10_000)

    def names(self, operation: APIOperation) -> dict[str, str]:
        """What to put into the path of an operation: new ones each time, because some are used up."""
        path = operation.path
        found: dict[str, str] = {}
        if "{run_id}" in path:
            found["run_id"] = self._ended() if path.endswith("events") else self._waiting()
        if "{job_id}" in path:
            job = {"name": "n", "schedule": "every 1h", "prompt": "x"}
            found["job_id"] = self.api.http.post("/api/jobs", json=job).json()["job"]["id"]
        if "{delivery_id}" in path:
            self._ended()
            found["delivery_id"] = self.api.http.get("/v1/deliveries").json()["data"][0]["delivery_id"]
        if "{name}" in path:
            found["name"] = "open"
        return found

    def _ended(self) -> str:
        run_id = self.api.submit(deliver="telegram:1")
        self.store.answer(run_id)
        return run_id

    def _waiting(self) -> str:
        run_id = self.api.submit()
        self.store.ask_tools(run_id, asks(Replay.ONCE, Replay.PURE))
        return run_id


@pytest.fixture
def world(api: Served, store: Store) -> World:
    return World(api, store)


def operations(api: Served) -> Iterator[APIOperation]:
    schema = schemathesis.openapi.from_url(f"{api.url}/openapi.json", headers=api.http.headers)
    schema.config.base_url = api.url
    for result in schema.get_all_operations():
        yield result.ok()


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


def allowed(world: World, case: Case) -> None:
    possible(case)
    # A form has to be signed, and nobody signs here.
    hypothesis.assume(not (case.path.startswith("/webhooks/") and case.media_type != JSON["content-type"]))
    response = case.call(headers=world.headers, timeout=PATIENCE_S)
    is_absent = response.status_code == 400 and any(f'"{code}"' in response.text for code in ABSENT)
    excluded = [schemathesis.checks.positive_data_acceptance] if is_absent else []
    case.validate_response(response, excluded_checks=excluded)


def forbidden(world: World, case: Case) -> None:
    declared = {parameter.name for parameter in case.operation.query}
    # A name in an address that no route knows is passed over by some; the document says nothing of such names.
    hypothesis.assume(case.operation.body or not case.query or declared & set(case.query))
    response = case.call(headers=world.headers, timeout=PATIENCE_S)
    excluded = [schemathesis.checks.negative_data_rejection] if response.status_code == 413 else []
    case.validate_response(response, excluded_checks=excluded)


@pytest.mark.timeout(400)
def test_a_sample_of_every_operation(world: World, subtests: Any) -> None:
    every_operation(world, subtests, times=3)


@pytest.mark.slow
@pytest.mark.timeout(7_200)
def test_every_operation_at_length(world: World, subtests: Any) -> None:
    every_operation(world, subtests, times=300)


def every_operation(world: World, subtests: Any, *, times: int) -> None:
    for operation in operations(world.api):
        with subtests.test(operation.label, asked="of what there is"):
            if "{" in operation.path:

                def one(case: Case, operation: APIOperation = operation) -> None:
                    case.path_parameters = world.names(operation)
                    allowed(world, case)

                ask(operation, GenerationMode.POSITIVE, one, times=times)
        with subtests.test(operation.label, asked="of anything"):
            ask(operation, GenerationMode.POSITIVE, partial(allowed, world), times=times)
        with subtests.test(operation.label, asked="wrongly"):
            ask(operation, GenerationMode.NEGATIVE, partial(forbidden, world), times=times)


def test_every_path_says_which_methods_it_takes(api: Served) -> None:
    document = api.http.get("/openapi.json").json()
    for path, described in document["paths"].items():
        place = re.sub(r"\{\w+\}", "x", path)
        taken = {method.upper() for method in described}
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
