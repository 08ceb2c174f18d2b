"""The configured Celery application. Only processes that consume need it; other publishers use ``broker.queue``."""

from __future__ import annotations

import logging
import math
import time
from typing import Any

from celery import Celery
from celery.app.amqp import AMQP
from celery.worker import state
from celery.worker.consumer import Consumer
from kombu import Connection
from kombu import Queue as KombuQueue

from hermes_worker.broker import transport
from hermes_worker.broker.queue import (
    CONNECT_TIMEOUT_S,
    KEY_PREFIX,
    SOCKET_TIMEOUT_S,
    QueueName,
    TaskName,
    build_sentinel_options,
    explain_outage,
    is_protocol_error,
    log_broker_failure,
)
from hermes_worker.local.readiness import readiness
from hermes_worker.settings.kinds import convert_socket_url
from hermes_worker.settings.sentinels import SentinelAddresses, parse_sentinels
from hermes_worker.worker.monitoring import EventSwitch

_RECONNECT_FIRST_S = 0.25
_RECONNECT_MAX_S = 2.0
"""A consumer finds its broker again so soon after it is back. Celery's own waits grow to 30 s."""
_STOP_LOOK_S = 0.05
_CONSUMER_LOGGER = "celery.worker.consumer.consumer"
_CONSUMER_NEWS = ("consumer: Cannot connect to", "consumer: Connection to broker lost")


def build_celery_app(broker_url: str, *, sends_events: bool = False) -> Celery:
    """The application, configured and without tasks, over our own transport (``transport``)."""
    logging.getLogger(_CONSUMER_LOGGER).addFilter(_is_no_outage)
    transport.install_transports()
    sentinels = parse_sentinels(broker_url)
    url = (
        sentinels.kombu_url
        if sentinels
        else _require_verification(convert_socket_url(broker_url, "redis+socket", "virtual_host"))
    )
    app = Celery("hermes_worker", broker=url, set_as_current=False, amqp=_Amqp)
    app.conf.update(
        accept_content=["json"],
        task_serializer="json",
        result_backend=None,
        task_ignore_result=True,
        task_store_errors_even_if_ignored=False,
        task_acks_late=False,
        task_publish_retry=False,
        task_default_queue=QueueName.SYSTEM.value,
        task_queues=[KombuQueue(name.value, routing_key=name.value) for name in QueueName],
        task_create_missing_queues=False,
        task_routes={
            TaskName.ITERATE.value: {"queue": QueueName.MODEL.value},
            TaskName.PREPARE.value: {"queue": QueueName.TOOLS.value},
            TaskName.CALL_TOOL.value: {"queue": QueueName.TOOLS.value},
            TaskName.ASK_AUXILIARY.value: {"queue": QueueName.MODEL.value},
            TaskName.DELIVER.value: {"queue": QueueName.DELIVERY.value},
            TaskName.COLLECT.value: {"queue": QueueName.TOOLS.value},
            TaskName.CALL_HOOK.value: {"queue": QueueName.TOOLS.value},
            TaskName.GATHER_ARTIFACTS.value: {"queue": QueueName.TOOLS.value},
            TaskName.FETCH_FILE.value: {"queue": QueueName.DELIVERY.value},
            TaskName.MAINTAIN.value: {"queue": QueueName.SYSTEM.value},
        },
        task_remote_tracebacks=False,
        worker_prefetch_multiplier=1,
        worker_hijack_root_logger=False,
        worker_redirect_stdouts=False,
        worker_send_task_events=sends_events,
        beat_scheduler="scheduler.beat:Scheduler",
        worker_consumer=f"{__name__}:{PatientConsumer.__name__}",
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        broker_transport_options={
            "socket_timeout": SOCKET_TIMEOUT_S,
            "socket_connect_timeout": CONNECT_TIMEOUT_S,
            "socket_keepalive": True,
            "health_check_interval": 10,
            "global_keyprefix": KEY_PREFIX,
            "client_name": "hermes-worker",
            **_build_sentinel_options(sentinels),
        },
        timezone="UTC",
        enable_utc=True,
    )
    app.steps["consumer"].add(EventSwitch)
    return app


def _build_sentinel_options(sentinels: SentinelAddresses | None) -> dict[str, Any]:
    if sentinels is None:
        return {}
    return {"master_name": sentinels.service, "sentinel_kwargs": build_sentinel_options(sentinels)}


def _require_verification(url: str) -> str:
    """The URL with verification of certificates unless it says otherwise, as redis-py does; kombu would not verify."""
    if url.startswith("rediss://") and "ssl_cert_reqs=" not in url:
        return f"{url}{'&' if '?' in url else '?'}ssl_cert_reqs=required"
    return url


class PatientConsumer(Consumer):  # type: ignore[misc]
    """Celery's consumer, which waits for a broker that refuses it instead of ending the worker or asking at once."""

    _failed_at = -math.inf
    _pause_s = _RECONNECT_FIRST_S

    def on_ready(self) -> None:
        """Declare the worker ready each time that it begins to consume; Celery calls the worker's own
        ``on_consumer_ready`` the first time.
        """
        super().on_ready()
        readiness.declare_ready()

    def on_connection_error_before_connected(self, exc: Exception) -> None:
        super().on_connection_error_before_connected(exc)
        self._pause(exc)

    def on_connection_error_after_connected(self, exc: Exception) -> None:
        super().on_connection_error_after_connected(exc)
        self._pause(exc)

    def _pause(self, error: Exception) -> None:
        """Pause after an error: a broker that takes connections and refuses what is done on them would be asked without
        end.
        """
        _note_outage(error)
        now = time.monotonic()
        is_again = now - self._failed_at < 2 * _RECONNECT_MAX_S
        self._pause_s = min(2 * self._pause_s, _RECONNECT_MAX_S) if is_again else _RECONNECT_FIRST_S
        self._failed_at = until = now + self._pause_s
        while state.should_stop is None and time.monotonic() < until:
            time.sleep(_STOP_LOOK_S)


def _note_outage(error: Exception) -> None:
    """Declare the worker not ready for this reason; raises ``error`` when no waiting mends it."""
    if is_protocol_error(error):
        raise error
    readiness.declare_waiting(explain_outage(error))


class _BrokerConnection(Connection):  # type: ignore[misc]
    """A connection that is tried again soon, however long its broker is away."""

    def _ensure_connection(self, errback: Any = None, max_retries: Any = None, **options: Any) -> Any:
        def note(error: Exception, interval: float) -> None:
            _note_outage(error)
            if errback is not None:
                errback(error, interval)

        waits = {
            "interval_start": _RECONNECT_FIRST_S,
            "interval_step": _RECONNECT_FIRST_S,
            "interval_max": _RECONNECT_MAX_S,
        }
        return super()._ensure_connection(note, max_retries, **{**options, **waits})


class _Amqp(AMQP):  # type: ignore[misc]
    Connection = _BrokerConnection
    BrokerConnection = _BrokerConnection


def _is_no_outage(record: logging.LogRecord) -> bool:
    """Whether a line of Celery's consumer is about anything but a broker that is away; that is said as everywhere."""
    text = record.getMessage()
    if not any(news in text for news in _CONSUMER_NEWS):
        return True
    args = record.args if isinstance(record.args, tuple) else ()
    error = next((arg for arg in args if isinstance(arg, Exception)), None) or (record.exc_info or (None, None))[1]
    log_broker_failure("consume", error if isinstance(error, Exception) else ConnectionError())
    return False
