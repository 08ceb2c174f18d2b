"""Keys without money and servers that are down, through the real task body: nothing starts that would only fail,
nothing is lost, and one call at a time finds out when it is over."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
import redis
from support.fault_server import FaultServer, Received, Reply, finish_chunk, text_chunk
from support.store import Store, check
from support.turns import Turns

from hermes_worker.core.key_states import KeyRules
from hermes_worker.core.run import RunStatus
from hermes_worker.core.run_events import RunEventName
from hermes_worker.models.chain import ModelChoice
from hermes_worker.models.credentials import CredentialPool, KeyPool
from hermes_worker.models.key_watch import KeyWatch
from hermes_worker.store.key_states import KeyStates
from hermes_worker.tasks.iteration.requests import ModelOptions

pytestmark = pytest.mark.usefixtures("no_time_for_short_waits")

BROKE = (402, {"error": {"message": "Insufficient credits", "code": 402}})
SICK = (500, {"error": {"message": "internal error"}})
BAD = (400, {"error": {"message": "messages[0] is nonsense", "type": "invalid_request_error"}})


@dataclass(slots=True)
class Provider:
    """Answers each key as it is told to."""

    refusals: dict[str, tuple[int, object]] = field(default_factory=dict)
    asked: Counter[str] = field(default_factory=Counter)

    def __call__(self, request: Received, reply: Reply) -> None:
        key = (request.header("authorization") or "").removeprefix("Bearer ")
        self.asked[key] += 1
        if key in self.refusals:
            reply.document(*self.refusals[key])
        else:
            reply.sse(text_chunk("fine"), finish_chunk(), "[DONE]")


@pytest.fixture
def provider() -> Provider:
    return Provider()


@pytest.fixture
def server(provider: Provider) -> Iterator[FaultServer]:
    with FaultServer(provider) as server:
        yield server


@dataclass(slots=True)
class Fleet:
    turns: Turns
    watch: KeyWatch

    def begun(self) -> str:
        """A run whose model call was due, and done."""
        self.watch.poll_once()
        run_id = self.turns.submit()
        self.turns.step(run_id)
        return run_id

    def again(self, run_id: str) -> RunStatus:
        """Once more, if the sweeper lets it."""
        for _ in range(2):
            self.turns.store.sweep()
        self.watch.poll_once()
        self.turns.step(run_id)
        return self.turns.store.status(run_id)


def fleet(
    store: Store,
    server: FaultServer,
    *,
    fallback: str = "",
    more_keys: tuple[str, ...] = (),
    pool: KeyPool | None = None,
) -> Fleet:
    rules = KeyRules(runs_needed=2, span_s=0.0, probe_first_s=10.0, probe_max_s=100.0)
    watch = KeyWatch(KeyStates(store.database, rules))
    choice = ModelChoice(base_url=server.base_url, api_key="k1", model="m", more_keys=more_keys)
    other = ModelChoice(base_url=f"{server.base_url}/other", api_key=fallback, model="m")
    turns = Turns.over(
        store,
        choice=choice,
        fallbacks=(other,) if fallback else (),
        keys=watch,
        pool=pool,
        options=ModelOptions(attempts_max=2),
    )
    return Fleet(turns, watch)


def waits_because(store: Store, run_id: str) -> str:
    told = [
        event.data.get("reason")
        for event in store.views.list_events_after(run_id, 0)
        if event.name == RunEventName.WAITING
    ]
    return str(told[-1])


def test_runs_park_while_the_key_has_no_money_and_go_on_afterwards(
    store: Store, provider: Provider, server: FaultServer
) -> None:
    provider.refusals["k1"] = BROKE
    fleet_ = fleet(store, server)
    runs = [fleet_.begun() for _ in range(4)]
    assert provider.asked["k1"] == 1, "nothing else was begun"
    assert {store.status(run_id) for run_id in runs} == {RunStatus.WAITING_FOR_CAPACITY}
    assert "has no money" in waits_because(store, runs[3])
    assert fleet_.again(runs[0]) is RunStatus.WAITING_FOR_CAPACITY
    assert provider.asked["k1"] == 1

    store.let_pass(15)
    assert fleet_.again(runs[0]) is RunStatus.WAITING_FOR_CAPACITY
    assert provider.asked["k1"] == 2, "one run tried"
    provider.refusals.clear()
    store.let_pass(15)
    assert [fleet_.again(run_id) for run_id in runs[:2]] == [RunStatus.WAITING_FOR_CAPACITY] * 2, "too early"
    store.let_pass(15)
    for run_id in runs:
        fleet_.again(run_id)
    assert [fleet_.again(run_id) for run_id in runs] == [RunStatus.COMPLETED] * 4
    assert provider.asked["k1"] == 6
    check(store)


def test_another_key_and_another_provider_are_used_while_they_are_open(
    store: Store, provider: Provider, server: FaultServer, broker_url: str
) -> None:
    provider.refusals["k1"] = BROKE
    pool = CredentialPool(redis.Redis.from_url(broker_url, decode_responses=True))
    fleet_ = fleet(store, server, fallback="f1", more_keys=("k2",), pool=pool)
    first = fleet_.begun()
    assert store.status(first) is RunStatus.COMPLETED
    assert store.status(fleet_.begun()) is RunStatus.COMPLETED
    assert provider.asked == {"k1": 1, "k2": 2}
    provider.refusals["k2"] = BROKE
    assert store.status(fleet_.begun()) is RunStatus.COMPLETED
    assert store.status(fleet_.begun()) is RunStatus.COMPLETED
    assert provider.asked == {"k1": 1, "k2": 3, "f1": 2}
    provider.refusals["f1"] = BROKE
    last = fleet_.begun()
    assert store.status(last) is RunStatus.WAITING_FOR_CAPACITY
    del provider.refusals["k2"]
    store.let_pass(15)
    while fleet_.again(last) is not RunStatus.COMPLETED:
        store.let_pass(15)
    assert provider.asked["k2"] == 4
    check(store)


def test_the_first_provider_is_tried_though_the_fallback_answers(
    store: Store, provider: Provider, server: FaultServer
) -> None:
    provider.refusals["k1"] = BROKE
    fleet_ = fleet(store, server, fallback="f1")
    fleet_.begun()
    store.let_pass(15)
    assert store.status(fleet_.begun()) is RunStatus.COMPLETED
    assert provider.asked == {"k1": 2, "f1": 2}, "the probe failed, and its run fell back"
    provider.refusals.clear()
    store.let_pass(30)
    for _ in range(2):
        assert store.status(fleet_.begun()) is RunStatus.COMPLETED
    assert provider.asked == {"k1": 4, "f1": 2}


def test_a_run_goes_back_to_a_provider_whose_key_is_open_again(
    store: Store, provider: Provider, server: FaultServer
) -> None:
    provider.refusals |= {"k1": BROKE, "f1": BROKE}
    fleet_ = fleet(store, server, fallback="f1")
    run_id = fleet_.begun()
    assert store.status(run_id) is RunStatus.WAITING_FOR_CAPACITY
    del provider.refusals["k1"]
    store.let_pass(15)
    assert fleet_.again(run_id) is RunStatus.COMPLETED
    assert provider.asked["k1"] == 2


def test_a_server_that_is_down_costs_no_run_its_attempts(store: Store, provider: Provider, server: FaultServer) -> None:
    provider.refusals["k1"] = SICK
    fleet_ = fleet(store, server)
    lonely = fleet_.turns.submit()
    fleet_.turns.step(lonely)
    assert store.status(lonely) is RunStatus.FAILED, "one run's failures close nothing, however many they are"
    runs = [fleet_.begun() for _ in range(3)]
    assert {store.status(run_id) for run_id in runs} == {RunStatus.WAITING_FOR_CAPACITY}
    asked = provider.asked["k1"]
    assert "out of order" in waits_because(store, runs[2])
    provider.refusals["k1"] = BAD
    store.let_pass(15)
    assert fleet_.again(runs[0]) is RunStatus.FAILED, "it is answered, and that it is nonsense"
    assert provider.asked["k1"] == asked + 1
    provider.refusals.clear()
    fleet_.again(runs[1])
    assert [fleet_.again(run_id) for run_id in runs[1:]] == [RunStatus.COMPLETED] * 2


def test_bad_requests_of_one_run_close_no_key(store: Store, provider: Provider, server: FaultServer) -> None:
    provider.refusals["k1"] = BAD
    fleet_ = fleet(store, server)
    for _ in range(4):
        assert store.status(fleet_.begun()) is RunStatus.FAILED
    assert KeyStates(store.database).list_keys() == []


def test_the_deadline_of_a_parked_run_holds(store: Store, provider: Provider, server: FaultServer) -> None:
    provider.refusals["k1"] = BROKE
    fleet_ = fleet(store, server)
    run_id = fleet_.begun()
    store.let_pass(100_000)
    store.sweep()
    assert store.status(run_id) is RunStatus.EXPIRED
    assert provider.asked["k1"] == 1


def test_a_run_parks_while_another_makes_the_probe(store: Store, provider: Provider, server: FaultServer) -> None:
    provider.refusals["k1"] = BROKE
    fleet_ = fleet(store, server)
    run_id = fleet_.begun()
    store.let_pass(15)
    [row] = KeyStates(store.database).list_keys()
    probe = KeyStates(store.database).claim_probe(row.credential, store.owner)
    assert probe is not None
    assert fleet_.again(run_id) is RunStatus.WAITING_FOR_CAPACITY
    assert provider.asked["k1"] == 1, "somebody else is trying"
    fleet_.watch.release_probe(probe)
    assert not KeyStates(store.database).list_keys()[0].is_probed


def test_nothing_is_written_while_nothing_is_wrong(store: Store, provider: Provider, server: FaultServer) -> None:
    fleet_ = fleet(store, server)
    assert store.status(fleet_.begun()) is RunStatus.COMPLETED
    assert fleet_.watch.are_all_open
    assert KeyStates(store.database).list_keys() == []
