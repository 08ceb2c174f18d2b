"""Servers that do not count, and requests of which nobody knows whether they are billed: over every wire, through the
real task body, with a real database."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from dialects import API_MODE, HELLO, RULES, Said, ToolUse, WireRules
from strict_server import Fault, StrictServer, body, cut_after, hang_up, reset, send_stream, status
from support.fault_server import Received, Reply
from support.patience import PATIENCE_S
from support.store import Store, check
from support.turns import Turns, change_parts

from hermes_worker.api.schema import build_usage_object
from hermes_worker.cli.screen import format_summary
from hermes_worker.core.pricing import CostStatus, parse_own_price
from hermes_worker.core.run import RunStatus
from hermes_worker.core.run_views import RunView
from hermes_worker.services.results import build_turn_result
from hermes_worker.tasks.leases import AbortReason

pytestmark = pytest.mark.usefixtures("no_time_for_short_waits")

CALLS = [Said(calls=(ToolUse(id=f"call_{n}", name="todo", arguments='{"todos": []}'),)) for n in range(30)]
PRICED = dict([parse_own_price("custom:strict=1/10")])
DROPPED = object()


@pytest.fixture(params=RULES)
def wire(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def turns(store: Store, server: StrictServer, wire: str) -> Turns:
    return Turns.over(store, server.base_url, api_mode=API_MODE[wire])


def counting(change: Callable[[dict[str, Any]], Any], *, is_streamed: bool = True) -> Fault:
    """The model answers as always, but what it says of its usage is changed; ``DROPPED`` leaves it out."""

    def changed(value: Any) -> Any:
        if isinstance(value, list):
            return [changed(item) for item in value]
        if not isinstance(value, dict):
            return value
        kept = {name: changed(item) for name, item in value.items() if name != "usage"}
        if "usage" in value and (told := change(value["usage"])) is not DROPPED:
            kept["usage"] = told
        return kept

    def fault(server: StrictServer, rules: WireRules, _: Received, reply: Reply) -> None:
        said = server.next_reply()
        if is_streamed:
            send_stream(reply, rules, [changed(event) for event in rules.events(said)])
        else:
            reply.document(200, changed(rules.document(said)))

    return fault


def only(*names: str) -> Callable[[dict[str, Any]], Any]:
    return lambda told: {name: value for name, value in told.items() if name in names}


UNCOUNTED: dict[str, Fault] = {
    "no usage in the stream": counting(lambda told: DROPPED),
    "no usage in the document": counting(lambda told: DROPPED, is_streamed=False),
    "an empty object": counting(lambda told: {}),
    "null": counting(lambda told: None),
    "zeros": counting(lambda told: dict.fromkeys(told, 0)),
    "words": counting(lambda told: dict.fromkeys(told, "many")),
}


def finished(turns: Turns, server: StrictServer, **changes: object) -> RunView:
    run_id = turns.submit(**changes)
    turns.finish(run_id)
    check(turns.store)
    assert server.refusals == []
    return turns.store.views.load_run(run_id)


def priced(turns: Turns) -> Turns:
    return replace(turns, parts=change_parts(turns.parts, prices=PRICED))


@pytest.mark.parametrize("name", UNCOUNTED)
def test_a_server_that_does_not_count_is_counted_for_and_everybody_is_told(
    turns: Turns, server: StrictServer, name: str
) -> None:
    server.faults(UNCOUNTED[name])

    view = finished(turns, server, input="word " * 400)

    assert view.output == HELLO.text
    assert view.usage.input > 500
    assert view.usage.output == -(-len(HELLO.text) // 4)
    assert view.usage.estimated == view.usage.total
    assert (view.cost_usd, view.cost_status) == (0, CostStatus.UNKNOWN)
    told = build_usage_object(view)
    assert told is not None
    assert told["estimated_tokens"] == told["total_tokens"] == view.usage.total
    assert build_turn_result(turns.store.views, view.run_id)["estimated_tokens"] == view.usage.total
    assert "(partly estimated)" in format_summary(view, 0)


def test_a_count_of_one_half_is_taken_and_the_other_estimated(turns: Turns, server: StrictServer) -> None:
    server.faults(counting(only("completion_tokens", "output_tokens")))
    view = finished(turns, server)
    assert view.usage.output == 5
    assert 0 < view.usage.input == view.usage.estimated


def test_a_server_that_counts_is_believed(turns: Turns, server: StrictServer) -> None:
    view = finished(turns, server)
    assert (view.usage.total, view.usage.estimated, view.usage.unknown_attempts) == (25, 0, 0)
    told = build_usage_object(view)
    assert told is not None
    assert told.keys() == {"input_tokens", "output_tokens", "total_tokens"}
    assert "estimated" not in format_summary(view, 0)


def test_a_limit_in_dollars_holds_although_the_server_does_not_count(turns: Turns, server: StrictServer) -> None:
    server.says(*CALLS)
    server.faults(*[counting(lambda told: DROPPED)] * 30)

    view = finished(priced(turns), server, input="word " * 4_000, nano_usd_max=40_000_000)

    assert (view.status, view.exit_text) == (RunStatus.COMPLETED, "budget_exhausted(cost)")
    # 5,000 tokens a request at a dollar a million, with the margin of an estimate: five fit into 4 cents. Then the
    # summary is asked for, and because it is empty once more.
    assert len(server.accepted) == 5 + 2
    assert Decimal("0.03") < view.doubtful_cost_usd < Decimal("0.06")


def test_a_reply_of_unknown_price_ends_a_run_with_a_limit_in_dollars(turns: Turns, server: StrictServer) -> None:
    server.says(*CALLS)
    server.faults(*[counting(lambda told: DROPPED)] * 30)
    view = finished(turns, server, nano_usd_max=10**12)
    assert view.exit_text == "budget_exhausted(cost)"
    assert len(server.accepted) == 1 + 2, "one reply, and the summary, which is empty at first"


CUT = {
    "a hang-up": hang_up,
    "a reset": reset,
    "a cut before any text": cut_after(1),
    "a stream that ends at once": cut_after(0),
}


@pytest.mark.parametrize("name", CUT)
def test_a_request_that_was_sent_and_not_answered_is_an_attempt_of_unknown_outcome(
    turns: Turns, server: StrictServer, name: str
) -> None:
    server.faults(CUT[name], CUT[name])

    view = finished(priced(turns), server, input="word " * 400)

    assert (view.status, view.usage.total) == (RunStatus.COMPLETED, 25)
    assert view.usage.unknown_attempts == len(server.accepted) - 1 == 2
    assert view.usage.unknown_input > 2 * 500
    assert view.usage.unknown_output >= 2
    assert view.doubtful_cost_usd > 0
    assert view.cost_usd == Decimal(12 + 5 * 10 + 8) / 1_000_000
    told = build_usage_object(view)
    assert told is not None
    assert told["unknown_attempts"] == 2
    assert "2 attempts of unknown outcome" in format_summary(view, 0)


@pytest.mark.parametrize(
    "fault", [status(429), status(500), status(401), status(400, "no"), body(200, b"<html></html>", "text/html")]
)
def test_an_answer_that_refuses_is_not_billed(turns: Turns, server: StrictServer, fault: Fault) -> None:
    server.faults(fault)
    view = finished(turns, server)
    assert view.usage.unknown_attempts == 0


def test_a_server_that_is_not_there_bills_nothing(store: Store) -> None:
    turns = Turns.over(store, "http://127.0.0.1:9/v1")
    run_id = turns.submit()
    turns.finish(run_id)
    assert store.views.load_run(run_id).usage.unknown_attempts == 0


def test_an_error_after_part_of_the_reply_is_billed_and_one_before_it_is_not(
    store: Store, server: StrictServer
) -> None:
    error = b'data: {"error":{"message":"Internal server error","type":"server_error","code":500}}\n\n'

    def broken(position: int) -> Fault:
        def fault(server: StrictServer, rules: WireRules, _: Received, reply: Reply) -> None:
            reply.head()
            for event in rules.events(server.next_reply())[:position]:
                reply.piece(rules.encode(event))
            reply.piece(error)
            reply.end()

        return fault

    turns = Turns.over(store, server.base_url)
    server.faults(broken(0))
    assert finished(turns, server).usage.unknown_attempts == 0
    server.faults(broken(4))
    view = finished(turns, server)
    assert view.usage.unknown_attempts == 1


def test_a_stop_in_the_middle_of_a_reply_leaves_an_attempt_of_unknown_outcome(
    turns: Turns, server: StrictServer
) -> None:
    begun = threading.Event()

    def stalls(server: StrictServer, rules: WireRules, _: Received, reply: Reply) -> None:
        reply.head()
        for event in rules.events(server.next_reply())[:4]:
            reply.piece(rules.encode(event))
        begun.set()
        reply.block()

    server.faults(stalls)
    run_id = turns.submit()

    def stop() -> None:
        assert begun.wait(PATIENCE_S)
        turns.store.runs.request_stop(run_id)
        turns.parts.leases.abort_run(run_id, AbortReason.STOP)

    stopper = threading.Thread(target=stop)
    stopper.start()
    turns.step(run_id)
    stopper.join()

    view = turns.store.views.load_run(run_id)
    assert (view.status, view.usage.total, view.usage.unknown_attempts) == (RunStatus.CANCELLED, 0, 1)


def test_a_call_that_is_handed_over_counts_only_what_was_sent(turns: Turns, server: StrictServer) -> None:
    waiting = threading.Event()

    def waits(_: StrictServer, __: WireRules, ___: Received, reply: Reply) -> None:
        waiting.set()
        reply.block()

    def hand_over() -> None:
        assert waiting.wait(PATIENCE_S)
        turns.parts.leases.hand_over()

    server.faults(waits)
    run_id = turns.submit()
    leaving = threading.Thread(target=hand_over)
    leaving.start()
    turns.step(run_id)
    leaving.join()
    assert turns.store.views.load_run(run_id).usage.unknown_attempts == 1

    # This worker leaves: it takes the call once more, and gives it back before anything was sent.
    asked = len(server.accepted)
    turns.step(run_id)
    assert len(server.accepted) == asked
    view = turns.store.views.load_run(run_id)
    assert (view.status, view.usage.unknown_attempts) == (RunStatus.RUNNING, 1)


def test_a_call_that_is_given_up_and_parked_keeps_what_it_sent_in_vain(turns: Turns, server: StrictServer) -> None:
    server.faults(reset, status(429, "slow", None, "Retry-After: 600"))
    run_id = turns.submit()
    turns.step(run_id)
    view = turns.store.views.load_run(run_id)
    assert (view.status, view.usage.unknown_attempts) == (RunStatus.WAITING_FOR_CAPACITY, 1)
    turns.finish(run_id)
    assert turns.store.views.load_run(run_id).usage.unknown_attempts == 1


def test_a_failed_run_counts_the_requests_that_failed(turns: Turns, store: Store, server: StrictServer) -> None:
    server.faults(status(500), status(500), status(401))
    run_id = turns.submit()
    turns.finish(run_id)
    view = store.views.load_run(run_id)
    assert view.status is RunStatus.FAILED
    assert view.usage.refused_attempts == len(server.requests) == 3
    assert view.usage.chargeable == 0
    assert "0 model calls, 0 tool calls, 0 tokens in, 0 out, 3 attempts that failed" in format_summary(view, 0)
    assert build_turn_result(store.views, run_id)["refused_attempts"] == 3
