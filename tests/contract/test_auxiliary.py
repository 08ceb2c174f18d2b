"""Calls beside the conversation: who is asked, how long anybody waits, and what is left when nobody answers."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pytest
import redis
from dialects import Said
from strict_server import Fault, StrictServer, silence, status

from hermes_worker.core.abort import AbortSignal
from hermes_worker.core.auxiliary import AuxTask
from hermes_worker.core.errors import Classification, FailureKind, ModelCallError
from hermes_worker.core.messages import ModelRequest, build_user_body
from hermes_worker.core.pricing import CostStatus
from hermes_worker.core.recovery import retry
from hermes_worker.models.chain import ModelChoice, ProviderChain
from hermes_worker.models.credentials import CredentialPool
from hermes_worker.models.governor import CallGovernor, ConfiguredLimits, CredentialRef, Governor, NoGovernor
from hermes_worker.models.key_watch import NoKeyStates
from hermes_worker.store.key_states import Probe
from hermes_worker.tasks.calls.auxiliary import Auxiliary, AuxiliaryReply
from hermes_worker.tasks.iteration.spending import Bill

REQUEST = ModelRequest(model="main-model", messages=(build_user_body("sum up"),))


@pytest.fixture
def servers() -> Iterator[list[StrictServer]]:
    with StrictServer() as one, StrictServer() as two, StrictServer() as three:
        for number, server in enumerate((one, two, three), start=1):
            server.says(Said(text=f"<think>hm</think>answer {number}"))
        yield [one, two, three]


def choice(server: StrictServer, model: str = "m", *, more_keys: Sequence[str] = ()) -> ModelChoice:
    return ModelChoice(base_url=server.base_url, api_key="k", model=model, more_keys=tuple(more_keys))


def ask(
    servers: list[StrictServer],
    *,
    abort: AbortSignal | None = None,
    governor: CallGovernor | None = None,
    bill: Bill | None = None,
) -> AuxiliaryReply:
    """The first server is the task's own, the others are the chain of the conversation."""
    own = {AuxTask.COMPRESSION: ProviderChain(choice(servers[0]))}
    main = ProviderChain(choice(servers[1]), [choice(servers[2], "other")])
    calls = Auxiliary(main=main, governor=governor or NoGovernor(), own=own)
    return calls.ask(AuxTask.COMPRESSION, REQUEST, abort or AbortSignal(), ticket="run:1", bill=bill or Bill())


def test_the_tasks_own_provider_is_asked_first_and_thinking_is_left_out(servers: list[StrictServer]) -> None:
    bill = Bill()
    asked = ask(servers, bill=bill)
    assert asked.text == "answer 1"
    assert bill.cost is not None
    assert bill.cost.status is CostStatus.UNKNOWN
    assert bill.usage == asked.reply.usage
    assert bill.usage.total > 0
    assert [len(server.accepted) for server in servers] == [1, 0, 0]


@pytest.mark.parametrize(
    "fault",
    [
        status(401, "bad key"),
        status(402, "insufficient credits"),
        status(404, "no such model", "model_not_found"),
        status(429, "slow", None, "Retry-After: 60"),
        status(400, "prompt is too long: 210000 tokens > 200000 maximum"),
    ],
)
def test_the_chain_of_the_conversation_stands_in(servers: list[StrictServer], fault: Fault) -> None:
    servers[0].faults(*[fault] * 9)
    servers[1].faults(*[fault] * 9)

    assert ask(servers).text == "answer 3"

    assert [server.accepted[-1]["model"] for server in servers] == ["m", "main-model", "other"]
    assert max(len(server.accepted) for server in servers) <= 1


def test_passing_trouble_is_tried_again_with_the_same_provider(
    servers: list[StrictServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retry, "compute_backoff_s", lambda *_, **__: 0.01)
    servers[0].faults(status(500), status(502))
    assert ask(servers).text == "answer 1"
    assert len(servers[0].accepted) == 3


def test_when_nobody_answers_the_last_failure_is_told(servers: list[StrictServer]) -> None:
    for server in servers:
        server.faults(*[status(401, "bad key")] * 9)
    with pytest.raises(ModelCallError) as raised:
        ask(servers)
    assert raised.value.kind is FailureKind.AUTH


def test_an_answer_that_does_not_come_is_not_waited_for(
    servers: list[StrictServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(AuxTask, "timeout_s", 0.3)
    servers[0].faults(silence)
    with pytest.raises(ModelCallError) as raised:
        ask(servers)
    assert raised.value.kind is FailureKind.TIMEOUT


def test_an_abort_ends_it(servers: list[StrictServer]) -> None:
    abort = AbortSignal()
    servers[0].faults(silence)
    threading.Timer(0.2, abort.set, ["stop"]).start()
    with pytest.raises(ModelCallError) as raised:
        ask(servers, abort=abort)
    assert raised.value.kind is FailureKind.INTERRUPTED
    assert [len(server.accepted) for server in servers[1:]] == [0, 0]


def test_a_provider_that_may_not_be_asked_soon_is_passed_over(servers: list[StrictServer], broker_url: str) -> None:
    client = redis.Redis.from_url(broker_url, decode_responses=True)
    governor = Governor(client, ConfiguredLimits(requests_per_min=1))
    assert ask(servers, governor=governor).text == "answer 1"
    assert ask(servers, governor=governor).text == "answer 2"


@dataclass
class Noted(NoKeyStates):
    """What calls say of keys."""

    said: list[str] = field(default_factory=list)
    closes: bool = False

    def report_failure(
        self, place: CredentialRef, failure: Classification, *, run_id: str, probe: Probe | None, is_renewable: bool
    ) -> bool:
        self.said.append(f"{run_id} {failure.kind.value}")
        return self.closes

    def report_answer(self, place: CredentialRef, probe: Probe | None) -> None:
        self.said.append("answered")


def test_what_a_call_beside_the_conversation_finds_out_counts_for_its_key(servers: list[StrictServer]) -> None:
    servers[0].faults(*[status(402, "insufficient credits")] * 9)
    keys = Noted()
    calls = Auxiliary(
        main=ProviderChain(choice(servers[0]), [choice(servers[1])]), governor=NoGovernor(), keys=keys, run_id="run_1"
    )
    calls.ask(AuxTask.COMPRESSION, REQUEST, AbortSignal(), ticket="run:1", bill=Bill())
    assert keys.said == [f"run_1 {FailureKind.BILLING.value}", "answered"]


def test_a_key_that_is_closed_by_a_failure_is_not_tried_again(
    servers: list[StrictServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retry, "compute_backoff_s", lambda *_, **__: 0.01)
    servers[0].faults(*[status(500, "down")] * 20)
    main = ProviderChain(choice(servers[0]), [choice(servers[1])])
    for closes, tries in ((True, 1), (False, AuxTask.COMPRESSION.tries_max)):
        before = len(servers[0].requests)
        calls = Auxiliary(main=main, governor=NoGovernor(), keys=Noted(closes=closes))
        assert calls.ask(AuxTask.COMPRESSION, REQUEST, AbortSignal(), ticket="run:1", bill=Bill()).text == "answer 2"
        assert len(servers[0].requests) - before == tries


def test_a_call_that_was_aborted_says_nothing_of_its_key(servers: list[StrictServer]) -> None:
    servers[0].faults(silence)
    keys, abort = Noted(), AbortSignal()
    threading.Timer(0.2, abort.set, ["stop"]).start()
    calls = Auxiliary(main=ProviderChain(choice(servers[0])), governor=NoGovernor(), keys=keys)
    with pytest.raises(ModelCallError):
        calls.ask(AuxTask.COMPRESSION, REQUEST, abort, ticket="run:1", bill=Bill())
    assert keys.said == []


def test_a_key_that_rests_is_not_used_here_either(servers: list[StrictServer], broker_url: str) -> None:
    pool = CredentialPool(redis.Redis.from_url(broker_url, decode_responses=True))
    main = ProviderChain(choice(servers[0], more_keys=["k2"]))
    pool.rest_key(main.list_credentials("m", 0)[0], 60)
    calls = Auxiliary(main=main, governor=NoGovernor(), pool=pool)
    calls.ask(AuxTask.COMPRESSION, REQUEST, AbortSignal(), ticket="run:1", bill=Bill())
    assert servers[0].requests[-1].header("authorization") == "Bearer k2"
