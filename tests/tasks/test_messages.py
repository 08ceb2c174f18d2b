"""Our hand-made messages are the ones Celery would have sent."""

from __future__ import annotations

import base64
import json
import re
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import redis
from support.valkey import for_administrator

from hermes_worker.broker.queue import (
    KEY_PREFIX,
    HintPublisher,
    QueueName,
    TaskName,
    build_message,
    build_redis_client,
    render_envelope,
)
from hermes_worker.core.effects import Iterate, RunTool
from hermes_worker.store.rows import Hint
from hermes_worker.worker.celery import build_celery_app

ASK = Hint(effect=Iterate(run_id="run_1", iteration=2, attempt=1), at=12.5)
CALLS = [
    Hint(effect=RunTool(run_id="run_1", iteration=2, position=position, attempt=1), at=12.5) for position in range(3)
]


def opened(message: bytes | str) -> dict[str, Any]:
    """A message with its body decoded and everything that is random or names the machine taken out."""
    document: dict[str, Any] = json.loads(message)
    document["body"] = json.loads(base64.b64decode(document["body"]))
    for part, names in {
        "headers": ("id", "root_id", "origin", "argsrepr"),
        "properties": ("correlation_id", "reply_to", "delivery_tag"),
    }.items():
        for name in names:
            document[part].pop(name, None)
    return document


def test_an_envelope_equals_what_celery_publishes(broker_url: str) -> None:
    name, queue, arguments = build_message(ASK)
    app = build_celery_app(broker_url)
    app.send_task(name.value, args=arguments, queue=queue.value, ignore_result=True)
    client = redis.Redis.from_url(for_administrator(broker_url))
    theirs = opened(client.rpop(f"{KEY_PREFIX}{queue.value}"))  # type: ignore[arg-type]
    ours = opened(render_envelope(name, queue, arguments, "label"))
    assert ours == theirs


def test_what_a_label_contains_stays_inside_it() -> None:
    label = 'a "quoted" %s %(id)s \\ label\n'
    name, queue, arguments = build_message(ASK)
    message = json.loads(render_envelope(name, queue, [*arguments, "%(id)s"], label, group_id="g"))
    assert message["headers"]["argsrepr"] == label
    assert message["headers"]["group"] == "g"
    assert opened(json.dumps(message))["body"][0] == [*arguments, "%(id)s"]


def test_the_calls_of_one_run_are_one_celery_group(broker_url: str) -> None:
    client = build_redis_client(for_administrator(broker_url))
    assert HintPublisher(client).send(CALLS) == 3
    sent = [json.loads(message) for message in client.lrange(f"{KEY_PREFIX}tools", 0, -1)]
    assert len({message["headers"]["group"] for message in sent}) == 1
    assert len({message["headers"]["id"] for message in sent}) == 3
    assert {message["headers"]["task"] for message in sent} == {TaskName.CALL_TOOL.value}


def test_messages_leave_the_queue_in_the_order_they_were_sent(broker_url: str) -> None:
    client = build_redis_client(for_administrator(broker_url))
    publisher = HintPublisher(client)
    publisher.send(CALLS)
    publisher.send([ASK])
    positions = []
    while (message := client.rpop(f"{KEY_PREFIX}tools")) is not None:
        positions.append(opened(str(message))["body"][0][2])
    assert positions == [0, 1, 2]
    assert publisher.count_waiting() == {**dict.fromkeys(QueueName, 0), QueueName.MODEL: 1}


class HeldClient:
    """Holds the first push until it is let go, and fails each push whose number is in ``fails``."""

    def __init__(self, client: redis.Redis, fails: Sequence[int] = ()) -> None:
        self._client, self._fails = client, fails
        self.commands: list[int] = []
        self.is_pushing, self.may_go = threading.Event(), threading.Event()

    def lpush(self, key: str, *messages: str) -> None:
        self.commands.append(len(messages))
        self.is_pushing.set()
        assert self.may_go.wait(30)
        if len(self.commands) - 1 in self._fails:
            raise redis.ConnectionError
        self._client.lpush(key, *messages)


def send_while_pushing(held: HeldClient, others: int) -> tuple[int, list[int]]:
    """Send one hint, and ``others`` more while it is being pushed; what each ``send`` returned."""
    publisher = HintPublisher(held)  # type: ignore[arg-type]
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(publisher.send, [ASK])
        assert held.is_pushing.wait(30)
        then = [publisher.send([replace(ASK, at=float(number))]) for number in range(others)]
        held.may_go.set()
        return first.result(30), then


def test_hints_sent_while_others_are_being_pushed_share_the_next_command(broker_url: str) -> None:
    client = build_redis_client(for_administrator(broker_url))
    held = HeldClient(client)
    assert send_while_pushing(held, 3) == (1, [1, 1, 1])
    assert held.commands == [1, 3]
    sent = [opened(str(client.rpop(f"{KEY_PREFIX}model"))) for _ in range(4)]
    assert [message["body"][0][3] for message in sent] == [12.5, 0.0, 1.0, 2.0]
    assert not any("group" in message["headers"] and message["headers"]["group"] for message in sent)


def test_a_push_that_fails_keeps_no_thread_for_the_hints_of_others(broker_url: str) -> None:
    held = HeldClient(build_redis_client(for_administrator(broker_url)), fails=[0])
    assert send_while_pushing(held, 3) == (0, [1, 1, 1])
    assert held.commands == [1]


def test_the_page_of_celery_names_every_task_with_its_queue() -> None:
    page = (Path(__file__).parents[2] / "docs" / "celery.md").read_text(encoding="utf-8")
    routes = build_celery_app("redis://nowhere/0").conf.task_routes
    rows = {(name.value, routes[name.value]["queue"]) for name in TaskName}
    assert rows == set(re.findall(r"^\| `(hermes\.\w+)` \| `(\w+)` \|", page, re.MULTILINE))


def test_a_message_carries_ids_and_numbers_only() -> None:
    for hint in (ASK, *CALLS):
        _, _, arguments = build_message(hint)
        assert all(isinstance(argument, str | int | float) for argument in arguments)


def test_a_broker_that_is_away_is_no_error() -> None:
    nowhere = build_redis_client("redis://127.0.0.1:1/0")
    assert HintPublisher(nowhere).send([ASK]) == 0
    assert HintPublisher(nowhere).count_waiting() is None
