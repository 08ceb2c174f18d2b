"""The configured Celery application. Only processes that consume need it; whoever publishes uses ``queue``."""

from __future__ import annotations

import logging
from typing import Any

from celery import Celery
from celery.app.amqp import AMQP
from kombu import Connection
from kombu import Queue as KombuQueue

from hermes_worker import transport
from hermes_worker.observe import broker_outage
from hermes_worker.queue import CONNECT_TIMEOUT_S, KEY_PREFIX, SOCKET_TIMEOUT_S, QueueName, TaskName
from hermes_worker.setting_kinds import socket_url
from hermes_worker.settings import RemoteControl
from hermes_worker.tasks.monitoring import EventSwitch, guard_control

_RECONNECT_FIRST_S = 0.25
_RECONNECT_MAX_S = 2.0
"""A consumer finds its broker again so soon after it is back. Celery's own waits grow to 30 s."""
_CONSUMER_LOGGER = "celery.worker.consumer.consumer"
_CONSUMER_NEWS = ("consumer: Cannot connect to", "consumer: Connection to broker lost")


def celery_app(broker_url: str, *, sends_events: bool = False) -> Celery:
    """The application, configured and without tasks, over the transport that every tool of Celery's knows.

    A worker that starts takes our own transport instead (``prepare_worker``).
    """
    logging.getLogger(_CONSUMER_LOGGER).addFilter(_is_no_outage)
    app = Celery("hermes_worker", broker=broker_url, set_as_current=False, amqp=_Amqp)
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
            TaskName.DELIVER.value: {"queue": QueueName.DELIVERY.value},
            TaskName.COLLECT.value: {"queue": QueueName.TOOLS.value},
            TaskName.MAINTAIN.value: {"queue": QueueName.SYSTEM.value},
        },
        task_remote_tracebacks=False,
        worker_prefetch_multiplier=1,
        worker_hijack_root_logger=False,
        worker_redirect_stdouts=False,
        worker_send_task_events=sends_events,
        beat_scheduler="scheduler.beat:Scheduler",
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        broker_transport_options={
            "socket_timeout": SOCKET_TIMEOUT_S,
            "socket_connect_timeout": CONNECT_TIMEOUT_S,
            "socket_keepalive": True,
            "health_check_interval": 10,
            "global_keyprefix": KEY_PREFIX,
            "client_name": "hermes-worker",
        },
        timezone="UTC",
        enable_utc=True,
    )
    app.steps["consumer"].add(EventSwitch)
    return app


def prepare_worker(app: Celery, remote_control: RemoteControl) -> None:
    """Let workers of ``app``, of which there is none yet, read their queues by ``transport`` and answer commands as
    ``remote_control`` says. Idempotent."""
    transport.install()
    guard_control(remote_control)
    app.conf.broker_url = _with_our_transport(app.conf.broker_url)


def _with_our_transport(broker_url: str) -> str:
    """``redis://`` becomes our own scheme; TLS and socket URLs keep kombu's transport, which knows their forms."""
    url = socket_url(broker_url, "redis+socket", "virtual_host")
    scheme, _, rest = url.partition("://")
    return f"{transport.ALIAS}://{rest}" if scheme == "redis" else url


class _Connection(Connection):  # type: ignore[misc]
    """A connection that is tried again soon, however long its broker is away."""

    def _ensure_connection(self, errback: Any = None, max_retries: Any = None, **options: Any) -> Any:
        waits = {
            "interval_start": _RECONNECT_FIRST_S,
            "interval_step": _RECONNECT_FIRST_S,
            "interval_max": _RECONNECT_MAX_S,
        }
        return super()._ensure_connection(errback, max_retries, **{**options, **waits})


class _Amqp(AMQP):  # type: ignore[misc]
    Connection = _Connection
    BrokerConnection = _Connection


def _is_no_outage(record: logging.LogRecord) -> bool:
    """Whether a line of Celery's consumer is about anything but a broker that is away; that is said as everywhere."""
    text = record.getMessage()
    if not any(news in text for news in _CONSUMER_NEWS):
        return True
    broker_outage.failed(doing="consume")
    return False
