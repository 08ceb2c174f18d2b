"""Kombu's Redis transport, without the work that our design makes superfluous.

Kombu builds a Redis client for every publish and two for every message consumed, a quarter to a third of the CPU of a
message; here a channel keeps one. And it copies each message into ``unacked`` before handing it over and deletes it
there afterwards: emulated acknowledgement, which neither closes the window between BRPOP and the copy nor knows how
long a task may take. Our guarantee is the sweeper, which finds an unclaimed row whatever became of its message, so the
emulation is off (``ack_emulation``) and a pop is all that a message costs: BLMPOP, which brings up to ``POPPED_MAX`` of
them when they wait already, and whose bytes are packed once. Priorities, for which kombu reads four lists instead of
one, are not used; and the sockets are handed to the event loop when they are new, not before every poll.

Anybody who reaches the broker can send anything. Celery acts on what it is sent: it would keep a place for a message
that is due in ten years, publish whatever a message wants called when it is done, and give a task a time limit that
ends its process. So of a message in a queue of ours only what our own messages say is handed on
(``_parse_own_message``): the name of one of our tasks and its arguments. Any other message is dropped, and costs time.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from queue import Empty
from time import monotonic, time
from typing import Any

from kombu.transport import TRANSPORT_ALIASES, _transport_cache, redis, virtual
from redis.exceptions import RedisError, ResponseError

from hermes_worker.broker.queue import QueueName, TaskName
from hermes_worker.observe import count, log

_MESSAGE_BYTES_MAX = 16_384
"""A message names ids and numbers: ours have about 1,100 bytes."""
_OURS = frozenset(QueueName)
POPPED_MAX = 4
"""Messages that one command may bring: saves most of a round trip, and leaves some for other workers."""


class QoS(virtual.QoS):  # type: ignore[misc]
    """Puts messages back that were not begun when a worker ends. Where that fails they are lost, which a hint may be:
    kombu would write them to a file that nothing reads, and log that it had to.
    """

    def restore_unacked(self) -> list[tuple[BaseException, Any]]:
        if unrestored := super().restore_unacked():
            log.info("hint.failed", count=len(unrestored), doing="give back")
        return []


class Channel(redis.Channel):  # type: ignore[misc]
    """A channel with one client for everything that is not a blocking read."""

    ack_emulation = False
    priority_steps = (0,)

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.QoS = QoS  # kombu chooses its own where there is no emulation

    _pops_many = True
    """Until the server turns out to be a Redis before 7, which has no BLMPOP."""

    @cached_property
    def _packed_commands(self) -> dict[tuple[tuple[str, ...], int], list[bytes]]:
        """Commands by queues and number of messages."""
        return {}

    @cached_property
    def _shared_client(self) -> Any:
        return self._create_client()

    @contextmanager
    def conn_or_acquire(self, client: Any = None) -> Iterator[Any]:
        yield client or self._shared_client

    def _brpop_start(self, timeout: float | None = None) -> None:
        queues = tuple(self._queue_cycle.consume(len(self.active_queues)))
        if not queues:
            return
        connection = self.client.connection
        packed = self._pop_command(queues, timeout or self.brpop_timeout or 0)
        self._in_poll = connection
        self._brpop_sent_at = monotonic()
        connection.send_packed_command(packed)

    def _pop_command(self, queues: tuple[str, ...], timeout: float) -> list[bytes]:
        """The command, packed: how many messages it may return is what the worker has room for."""
        room = self.qos.can_consume_max_estimate()
        count = POPPED_MAX if room is None else min(room, POPPED_MAX)
        packed = self._packed_commands.get((queues, count))
        if packed is None:
            keys = [f"{self.global_keyprefix}{queue}" for queue in queues]
            command = ("BLMPOP", timeout, len(keys), *keys, "RIGHT", "COUNT", count)
            if not self._pops_many:
                command = ("BRPOP", *keys, timeout)
            packed = self._packed_commands[queues, count] = self.client.connection.pack_command(*command)
        return packed

    def _brpop_read(self, **options: Any) -> bool:
        try:
            queue, messages = self._read_popped()
            self._queue_cycle.rotate(queue)
            self._deliver_all(messages, queue)
            return True
        finally:
            self._in_poll = None
            self._flush_brpop_reauth()

    def _read_popped(self) -> tuple[str, list[bytes]]:
        """The reply to the command. Raises ``Empty`` when nothing came in time."""
        connection = self.client.connection
        try:
            popped = connection.read_response(disable_decoding=True)
        except ResponseError as error:
            if not (self._pops_many and "unknown command" in str(error).lower()):
                connection.disconnect()
                raise
            self._pops_many = False
            self._packed_commands.clear()
            raise Empty from error
        except self.connection_errors:
            connection.disconnect()
            raise
        if not popped:
            raise Empty
        key, messages = popped
        return key.decode().removeprefix(self.global_keyprefix), messages if self._pops_many else [messages]

    def _deliver_all(self, messages: list[bytes], queue: str) -> None:
        """Deliver each message. One that cannot be handled must not take the ones behind it along: they are in no queue
        any more.
        """
        failure: Exception | None = None
        for message in messages:
            try:
                payload = _parse_own_message(message, queue) if queue in _OURS else json.loads(message)
            except (ValueError, TypeError, LookupError, RecursionError) as error:
                _dropped.note(queue=queue, bytes=len(message), error=type(error).__name__)
                continue
            try:
                self.connection._deliver(payload, queue)
            except Exception as error:
                failure = error
        if failure is not None:
            raise failure

    def _receive_one(self, c: Any) -> Any:
        """Receive a message to remote control. Kombu would end the worker because of one that is no message at all."""
        try:
            return super()._receive_one(c)
        except (ValueError, RecursionError) as error:  # a channel that is no text, or JSON that is too deep
            _dropped.note(queue="remote control", error=type(error).__name__)
            return None

    def _deliver_fanout_message(self, message: object, exchange: str) -> bool:
        """Deliver JSON that was published to remote control, and so may be anything; return whether it could be."""
        try:
            super()._deliver_fanout_message(message, exchange)
        except Exception as error:
            # A missing field is a lost connection in kombu's eyes (KeyError), and every worker would connect anew.
            if isinstance(error, self.connection_errors) and not isinstance(error, LookupError):
                raise
            _dropped.note(queue=exchange, error=type(error).__name__)
        return True


class _DropLog:
    """Says that messages were dropped: at most once in so many seconds, however many a stranger sends."""

    def __init__(self, every_s: float = 10.0) -> None:
        self._every_s = every_s
        self._say_at = 0.0
        self._unsaid = 0

    def note(self, **facts: object) -> None:
        count("message.dropped")
        now = monotonic()
        if now < self._say_at:
            self._unsaid += 1
            return
        log.warning("message.dropped", **facts, more=self._unsaid)
        self._say_at, self._unsaid = now + self._every_s, 0


_dropped = _DropLog()


def _parse_own_message(message: bytes, queue: str) -> dict[str, Any]:
    """The message of one of our tasks, without anything else that Celery might act on.

    Raises ``ValueError``, ``TypeError``, ``LookupError`` or ``RecursionError`` for anything else.
    """
    if len(message) > _MESSAGE_BYTES_MAX:
        raise ValueError("too long")
    payload = json.loads(message)
    headers = payload["headers"]
    task, known_as, tag = headers["task"], headers["id"], payload["properties"]["delivery_tag"]
    if not isinstance(known_as, str) or not isinstance(tag, str):
        raise TypeError("no id")
    if payload["content-type"] != "application/json" or queue not in _QUEUES[task]:
        raise ValueError("not one of our tasks here")
    label = headers.get("argsrepr")
    return {
        "body": _check_body(payload, _ARGUMENTS[task]),
        "content-encoding": "utf-8",
        "content-type": "application/json",
        "headers": {
            **_HEADERS,
            "task": task,
            "id": known_as,
            "root_id": known_as,
            "argsrepr": label if isinstance(label, str) else "",
        },
        "properties": {
            "correlation_id": known_as,
            "reply_to": "",
            "delivery_mode": 2,
            "delivery_info": {"exchange": "", "routing_key": queue},
            "priority": 0,
            "body_encoding": "base64",
            "delivery_tag": tag,
        },
    }


def _check_body(payload: Mapping[str, Any], takes: Sequence[Callable[[object], bool]]) -> str:
    body = payload["body"]
    if payload["properties"]["body_encoding"] != "base64" or not isinstance(body, str):
        raise ValueError("no body")
    arguments, more, canvas = json.loads(base64.b64decode(body, validate=True))
    if more != {} or canvas != _NO_CANVAS or not isinstance(arguments, list):
        raise ValueError("not only arguments")
    if not all(fits(argument) for fits, argument in zip(takes, arguments, strict=True)):
        raise ValueError("arguments that are no ids and numbers")
    return body


def _is_id(value: object) -> bool:
    return isinstance(value, str) and _ID.fullmatch(value) is not None


def _is_number(value: object) -> bool:
    return type(value) is int and 0 <= value <= _NUMBER_MAX


def _is_time(value: object) -> bool:
    """Whether a value is the time of a hint, in epoch seconds. One in the future would make the sweeper believe that
    the queue had come that far.
    """
    return type(value) in (int, float) and 0 <= value <= time() + _CLOCKS_APART_S  # type: ignore[operator]


_ID = re.compile(r"[\w.:-]{1,128}", re.ASCII)
_NUMBER_MAX = 2**53
_CLOCKS_APART_S = 86_400.0
"""Times of hints are the database's; the clocks of machines may differ."""
_ARGUMENTS: Mapping[str, Sequence[Callable[[object], bool]]] = {
    TaskName.ITERATE: (_is_id, _is_number, _is_number, _is_time),
    TaskName.PREPARE: (_is_id, _is_number, _is_time),
    TaskName.CALL_TOOL: (_is_id, _is_number, _is_number, _is_number, _is_time),
    TaskName.ASK_AUXILIARY: (_is_id, _is_number, _is_number, _is_number, _is_time),
    TaskName.DELIVER: (_is_id, _is_number, _is_time),
    TaskName.COLLECT: (_is_number, _is_time),
    TaskName.CALL_HOOK: (_is_id, _is_id, _is_number, _is_time),
    TaskName.GATHER_ARTIFACTS: (_is_id, _is_number, _is_time),
    TaskName.FETCH_FILE: (_is_number, _is_number, _is_time),
    TaskName.MAINTAIN: (),
}
_QUEUES: Mapping[str, frozenset[QueueName]] = {
    TaskName.ITERATE: frozenset({QueueName.MODEL, QueueName.SUSPECT_MODEL}),
    TaskName.PREPARE: frozenset({QueueName.TOOLS, QueueName.SUSPECT_TOOLS}),
    TaskName.CALL_TOOL: frozenset({QueueName.TOOLS, QueueName.SUSPECT_TOOLS}),
    TaskName.ASK_AUXILIARY: frozenset({QueueName.MODEL, QueueName.SUSPECT_MODEL}),
    TaskName.DELIVER: frozenset({QueueName.DELIVERY, QueueName.SUSPECT_DELIVERY}),
    TaskName.COLLECT: frozenset({QueueName.TOOLS}),
    TaskName.CALL_HOOK: frozenset({QueueName.TOOLS}),
    TaskName.GATHER_ARTIFACTS: frozenset({QueueName.TOOLS}),
    TaskName.FETCH_FILE: frozenset({QueueName.DELIVERY}),
    TaskName.MAINTAIN: frozenset({QueueName.SYSTEM}),
}
"""The queue of each task: a worker for tools may have no key for a model, and would fail a run that it is sent."""
_HEADERS: Mapping[str, Any] = {
    "lang": "py",
    "shadow": None,
    "eta": None,
    "expires": None,
    "group": None,
    "group_index": None,
    "retries": 0,
    "timelimit": [None, None],
    "parent_id": None,
    "kwargsrepr": "{}",
    "origin": "hermes-worker",
    "ignore_result": True,
    "replaced_task_nesting": 0,
    "stamped_headers": None,
    "stamps": {},
}
_NO_CANVAS: Mapping[str, None] = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}


class SentinelChannel(Channel, redis.SentinelChannel):  # type: ignore[misc]
    """A channel to whichever server the Sentinels call the primary."""


class Transport(redis.Transport):  # type: ignore[misc]
    """Our transport for a broker that is addressed itself; see the module's docstring."""

    Channel = Channel
    connection_errors = (*redis.Transport.connection_errors, RedisError)
    """Errors that count as an outage: all answers of a broker, since it may answer otherwise in a while. One that
    forbids what we need may allow it again, a full one may get room, a replica may be promoted. A worker waits for that
    as for one that is away. A protocol error, which no waiting mends, is known where it waits (``worker.celery``).
    """

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        before = set(loop.on_tick)
        super().register_with_event_loop(connection, loop)
        loop.on_tick -= loop.on_tick - before
        cycle, readers = self.cycle, loop.readers

        def on_poll_start() -> None:
            cycle.on_poll_start()
            for fd in cycle.fds:
                if fd not in readers:
                    loop.add_reader(fd, self.on_readable, fd)

        loop.on_tick.add(on_poll_start)


class SentinelTransport(Transport, redis.SentinelTransport):  # type: ignore[misc]
    """Our transport for a broker that is found through Redis Sentinel."""

    default_port = 26_379
    Channel = SentinelChannel


def install_transports() -> None:
    """Replace kombu's transports for ``redis://``, ``rediss://``, ``redis+socket://`` and ``sentinel://`` in this
    process. Idempotent.

    It keeps the usual names, because Celery's own tools look at the scheme of a URL.
    """
    for name, ours in {"redis": Transport, "rediss": Transport, "sentinel": SentinelTransport}.items():
        TRANSPORT_ALIASES[name] = f"{__name__}:{ours.__name__}"
        _transport_cache.pop(name, None)
