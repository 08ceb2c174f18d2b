"""Presses of Mattermost's buttons, which prove themselves by what we put into them."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest
from support.inbound_cases import AT, CASES, MATTERMOST_CHAT, mattermost_press, posted

from hermes_worker.channels.inbound.declaration import InboundMode
from hermes_worker.channels.inbound.receiving import Forged, WebhookRequest
from hermes_worker.channels.receivers import Receiver, find_webhook_account, load_receivers
from hermes_worker.core.inbound import ChatKind, InboundButton

SECRET = "actions-secret"
VALUES = CASES["mattermost"].values


def receiver() -> Receiver:
    return load_receivers()["mattermost"]


def request(body: Any) -> WebhookRequest:
    return posted("mattermost", body if isinstance(body, bytes) else json.dumps(body).encode())


def received(body: Any, values: Any = VALUES) -> tuple[Any, ...]:
    return receiver().receive(request(body), receiver().build_credentials(values), AT)


def test_a_press_is_read_and_may_be_in_any_kind_of_chat() -> None:
    [press] = received(mattermost_press("7:once", secret=SECRET))
    assert isinstance(press, InboundButton)
    assert (press.value, press.chat.id, press.sender.id, press.sender.alt_id) == (
        "7:once",
        MATTERMOST_CHAT,
        "u" * 26,
        "ada",
    )
    assert set(press.may_be) == {ChatKind.DIRECT, ChatKind.GROUP, ChatKind.CHANNEL}
    [again] = received(mattermost_press("7:once", secret=SECRET))
    assert again.event_key == press.event_key
    [other] = received(mattermost_press("7:once", secret=SECRET, trigger_id="another"))
    assert other.event_key != press.event_key


def test_200_forged_presses_are_refused() -> None:
    random = Random(23)
    whole = mattermost_press("7:once", secret=SECRET)

    def forged() -> Any:
        context = dict(whole["context"])
        proof = context["proof"]
        place = random.randrange(len(proof))
        return random.choice(
            [
                mattermost_press("7:once", secret=random.choice(["", SECRET + "x", SECRET[:-1], "0"]) or "x"),
                {**whole, "channel_id": random.choice(["d" * 26, "", None, 7, [MATTERMOST_CHAT]])},
                {**whole, "context": {**context, "value": random.choice(["7:always", "8:once", "", None, 7])}},
                {**whole, "context": {**context, "thread": "t" * 26}},
                {**whole, "context": {**context, "proof": proof[:place] + "g" + proof[place + 1 :]}},
                {**whole, "context": {**context, "proof": random.choice(["", None, proof.upper(), [proof], True])}},
                {**whole, "context": {name: said for name, said in context.items() if name != "proof"}},
                {**whole, "context": random.choice([None, [], proof])},
                random.choice([b"", b"[]", b"null", b"{", b"\xff\xfe", b"[" * 100_000]),
            ]
        )

    for _ in range(200):
        with pytest.raises(Forged):
            received(forged())


def test_an_account_without_a_secret_takes_no_press() -> None:
    values = {name: said for name, said in VALUES.items() if name != "MATTERMOST_ACTIONS_SECRET"}
    assert find_webhook_account(values, (), "mattermost") is None
    with pytest.raises(Forged):
        received(mattermost_press("7:once", secret="x"), values)


def test_the_api_takes_presses_with_nothing_but_the_secret_and_of_each_account_by_its_own() -> None:
    found = find_webhook_account({"MATTERMOST_ACTIONS_SECRET": SECRET}, (), "mattermost")
    assert found is not None
    assert found.mode is InboundMode.SOCKET
    named = {"MATTERMOST_ACTIONS_SECRET__OPS": "another"}
    assert find_webhook_account(named, ("mattermost:ops",), "mattermost") is None
    ops = find_webhook_account(named, ("mattermost:ops",), "mattermost@ops")
    assert ops is not None
    with pytest.raises(Forged):
        ops.receiver.receive(
            request(mattermost_press("7:once", secret=SECRET)), ops.receiver.build_credentials(ops.values), AT
        )
    assert find_webhook_account(named, (), "mattermost@ops") is None
