"""The agent and its tools, tested without a key, a server or a second process."""

from __future__ import annotations

from pathlib import Path

import pytest
from refunds import EXTENSION, SHOP, Shop

from hermes_worker.testing import FaultPoint, ScriptedModel, call


@pytest.fixture(autouse=True)
def new_shop() -> None:
    vars(SHOP).update(vars(Shop()))


@pytest.fixture
def stack(hermes_stack):
    script = [
        call("order_price", order=17),
        [call("refund", order=17), call("write_to_customer", order=17, text="Sorry!")],
        "Order 17 is refunded.",
    ]
    return hermes_stack(script, extensions=[EXTENSION])


def test_an_order_is_refunded_and_its_customer_told(stack):
    run = stack.run("Refund order 17, it arrived broken.").require_completed()

    assert run.output == "Order 17 is refunded."
    assert run.require_call("order_price", order=17).result == "4200"
    assert list(SHOP.refunds.values()) == [17]
    assert SHOP.letters == ["17: Sorry!"]
    assert run.cost_usd < 0.05


def test_nothing_is_paid_twice_when_the_worker_dies_behind_the_payment(stack):
    with stack.killed_at(FaultPoint.CALL_TOOL_AFTER_RUN, hit=2):
        run = stack.run("Refund order 17.").require_completed()

    assert run.require_call("refund").attempt == 2
    assert list(SHOP.refunds.values()) == [17]


def test_no_letter_is_sent_twice_when_the_worker_dies_behind_it(stack):
    with stack.killed_at(FaultPoint.CALL_TOOL_AFTER_RUN, hit=3):
        run = stack.run("Refund order 17.").require_completed()

    assert SHOP.letters == ["17: Sorry!"]
    assert run.require_call("write_to_customer").status == "unknown"


def test_the_model_is_told_of_an_order_that_is_not_there(stack):
    stack.use_model([call("refund", order=99), "There is no such order."])

    run = stack.run("Refund order 99.").require_completed()

    assert "there is no order 99" in run.require_call("refund").result
    assert SHOP.refunds == {}


def test_the_recorded_replies_still_refund_an_order(hermes_stack):
    """``refund.yaml`` was recorded with ``hermes-worker dev scripted-model --record-from``: bytes of a provider."""
    stack = hermes_stack(ScriptedModel.of_cassette(Path(__file__).with_name("refund.yaml")), extensions=[EXTENSION])

    run = stack.run("Refund order 17, it arrived broken.").require_completed()

    assert run.output == "Order 17 is refunded."
    assert list(SHOP.refunds.values()) == [17]
    assert len(SHOP.letters) == 1
