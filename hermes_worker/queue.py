"""The only publisher: an effect becomes one named Celery message of a few ids.

Publishing happens after the commit and is best effort. A message that could not be sent is not an error: its row says
that it is due, and the sweeper sends it again.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any, assert_never

import redis
from celery import Celery
from celery.canvas import group
from kombu import Queue as KombuQueue
from kombu.exceptions import OperationalError

from hermes_worker import transport
from hermes_worker.core.effects import AskModel, Effect, RunTool
from hermes_worker.observe import count, log
from hermes_worker.setting_kinds import socket_url
from hermes_worker.store.rows import Hint

KEY_PREFIX = "hermes:"
"""In front of every Redis key of ours."""
CONTROL_CHANNEL = f"{KEY_PREFIX}control"
"""Pub/sub: nudges to whichever worker holds a claim. Losing one costs time, never correctness."""
_SOCKET_TIMEOUT_S = 5.0
_CONNECT_TIMEOUT_S = 2.0
_BATCH = 100


class QueueName(StrEnum):
    MODEL = "model"
    TOOLS = "tools"
    SYSTEM = "system"


class TaskName(StrEnum):
    ITERATE = "hermes.iterate"
    CALL_TOOL = "hermes.call_tool"
    MAINTAIN = "hermes.maintain"


def celery_app(broker_url: str) -> Celery:
    """The Celery application, configured and without tasks: whoever only publishes needs no more than this."""
    transport.install()
    app = Celery("hermes_worker", broker=_with_our_transport(broker_url), set_as_current=False)
    app.conf.update(
        accept_content=["json"],
        task_serializer="json",
        result_backend=None,
        task_ignore_result=True,
        task_store_errors_even_if_ignored=False,
        task_acks_late=False,
        task_publish_retry=False,
        task_default_queue=QueueName.SYSTEM.value,
        task_queues=[KombuQueue(name.value) for name in QueueName],
        task_create_missing_queues=False,
        task_routes={
            TaskName.ITERATE.value: {"queue": QueueName.MODEL.value},
            TaskName.CALL_TOOL.value: {"queue": QueueName.TOOLS.value},
            TaskName.MAINTAIN.value: {"queue": QueueName.SYSTEM.value},
        },
        task_remote_tracebacks=False,
        worker_prefetch_multiplier=1,
        worker_hijack_root_logger=False,
        worker_redirect_stdouts=False,
        worker_send_task_events=False,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        broker_transport_options={
            "socket_timeout": _SOCKET_TIMEOUT_S,
            "socket_connect_timeout": _CONNECT_TIMEOUT_S,
            "socket_keepalive": True,
            "health_check_interval": 10,
            "global_keyprefix": KEY_PREFIX,
            "client_name": "hermes-worker",
        },
        timezone="UTC",
        enable_utc=True,
    )
    return app


def _with_our_transport(broker_url: str) -> str:
    """``redis://`` becomes our own scheme; TLS and socket URLs keep kombu's transport, which knows their forms."""
    url = socket_url(broker_url, "redis+socket", "virtual_host")
    scheme, _, rest = url.partition("://")
    return f"{transport.ALIAS}://{rest}" if scheme == "redis" else url


def redis_client(broker_url: str) -> redis.Redis:
    """A client for everything that is not a Celery message. Thread-safe; connects when first used."""
    return redis.Redis.from_url(
        socket_url(broker_url, "unix", "db"),
        socket_timeout=_SOCKET_TIMEOUT_S,
        socket_connect_timeout=_CONNECT_TIMEOUT_S,
        socket_keepalive=True,
        health_check_interval=10,
        client_name="hermes-worker",
        decode_responses=True,
    )


def message_of(hint: Hint) -> tuple[TaskName, QueueName, list[Any]]:
    """The name, the queue and the arguments of the message for a hint: ids, numbers and its time, never state (I1)."""
    effect: Effect = hint.effect
    match effect:
        case AskModel():
            return TaskName.ITERATE, QueueName.MODEL, [effect.run_id, effect.iteration, effect.attempt, hint.at]
        case RunTool():
            arguments = [effect.run_id, effect.iteration, effect.position, effect.attempt, hint.at]
            return TaskName.CALL_TOOL, QueueName.TOOLS, arguments
        case _:
            assert_never(effect)


class Publisher:
    """Sends hints. Thread-safe."""

    def __init__(self, app: Celery, client: redis.Redis) -> None:
        self._app = app
        self._client = client

    def send(self, hints: Sequence[Hint]) -> int:
        """Publish, best effort; returns how many were handed to the broker. Never raises for a broker that is away."""
        if not hints:
            return 0
        try:
            with self._app.producer_or_acquire() as producer:
                if len(hints) == 1:
                    _publish(producer, hints[0])
                else:
                    self._publish_many(producer, hints)
        except (OperationalError, redis.RedisError, OSError) as error:
            count("hint.failed", len(hints))
            log.warning("hint.failed", hints=len(hints), error=type(error).__name__)
            return 0
        count("hint.sent", len(hints))
        return len(hints)

    def _publish_many(self, producer: Any, hints: Sequence[Hint]) -> None:
        """One round trip for the lot; the calls of one run go out as a Celery group."""
        with producer.batch(max_size=_BATCH) as batch:
            for fan_out in _fan_outs(hints):
                if len(fan_out) == 1:
                    _publish(producer, fan_out[0])
                else:
                    group(self._signature(hint) for hint in fan_out).apply_async(producer=producer)
            del batch

    def _signature(self, hint: Hint) -> Any:
        name, queue, arguments = message_of(hint)
        return self._app.signature(name.value, args=arguments, queue=queue.value, immutable=True)

    def depths(self) -> Mapping[str, int] | None:
        """Messages waiting in each queue; ``None`` when the broker cannot be reached."""
        try:
            pipe = self._client.pipeline(transaction=False)
            for name in QueueName:
                pipe.llen(f"{KEY_PREFIX}{name.value}")
            lengths = pipe.execute()
        except (redis.RedisError, OSError) as error:
            log.warning("broker.unreachable", error=type(error).__name__)
            return None
        return {name.value: int(length) for name, length in zip(QueueName, lengths, strict=True)}

    def nudge(self, verb: str, run_id: str) -> None:
        """Tell the workers at once what their next heartbeat would tell them: ``stop`` or ``watch`` a run."""
        try:
            self._client.publish(CONTROL_CHANNEL, f"{verb} {run_id}")
        except (redis.RedisError, OSError) as error:
            log.warning("broker.unreachable", error=type(error).__name__)


def _fan_outs(hints: Sequence[Hint]) -> Iterable[list[Hint]]:
    by_run: dict[tuple[str, str], list[Hint]] = {}
    for hint in hints:
        by_run.setdefault((hint.effect.kind, hint.effect.run_id), []).append(hint)
    return by_run.values()


def _publish(producer: Any, hint: Hint) -> None:
    """One message of Celery's protocol 2, by hand: ``apply_async`` costs half as much again and adds nothing we use."""
    name, queue, arguments = message_of(hint)
    message_id = str(uuid.uuid4())
    producer.publish(
        (arguments, {}, _NO_CANVAS),
        routing_key=queue.value,
        exchange="",
        serializer="json",
        correlation_id=message_id,
        delivery_mode=1,
        headers={
            "lang": "py",
            "task": name.value,
            "id": message_id,
            "root_id": message_id,
            "parent_id": None,
            "group": None,
            "argsrepr": effect_label(hint.effect),
            "kwargsrepr": "",
            "retries": 0,
            "eta": None,
            "expires": None,
            "timelimit": [None, None],
            "ignore_result": True,
            "origin": "hermes-worker",
        },
    )


_NO_CANVAS: dict[str, None] = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}


def effect_label(effect: Effect) -> str:
    """What Flower and the worker's log show for a message."""
    where = f".{effect.position}" if isinstance(effect, RunTool) else ""
    return f"{effect.run_id}:{effect.iteration}{where} attempt {effect.attempt}"
