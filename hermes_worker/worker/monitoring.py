"""What Celery's own tools (``celery events|inspect|control``, Flower) see of a worker, and what they may change.

*Events* are off until a setting, ``-E`` or the command ``enable_events`` switches them on; Flower sends that command by
itself, every few seconds. While they are off there is an event dispatcher that sends nothing: no heartbeat is published
and no task looks at it. (Celery's own worker, told to send neither heartbeats nor events, has no dispatcher, and the
command answers "event dispatcher unavailable".)

*Commands* that read are always answered. Those that change a fleet stop runs or starve a queue for all of it; they are
answered with a sentence unless ``worker.remote_control`` allows them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from celery.bootsteps import StartStopStep
from celery.worker import control
from celery.worker.consumer.events import Events
from kombu.utils.url import maybe_sanitize_url

from hermes_worker.observe import log
from hermes_worker.settings import RemoteControl

_READING = frozenset({"enable_events", "disable_events", "heartbeat", "election"})
"""Commands that Celery counts as control and that change nothing about what a worker does."""
_MORE_THAN_READING = frozenset({"hello", "objgraph"})
"""Commands that Celery counts as reading: the first revokes the tasks that it names, the second writes files."""

_Handler = Callable[..., Any]
_CELERYS: Mapping[str, _Handler] = dict(control.Panel.data)


class EventSwitch(StartStopStep):  # type: ignore[misc]
    """Switches Celery's event dispatcher off at the start, and after a lost connection to what it was before."""

    requires: ClassVar = (Events,)

    def __init__(self, c: Any, task_events: bool = False, **kwargs: Any) -> None:
        super().__init__(c, **kwargs)
        self._is_on = bool(task_events)

    def start(self, c: Any) -> None:
        if c.event_dispatcher is not None and not self._is_on:
            c.event_dispatcher.disable()

    def stop(self, c: Any) -> None:
        if c.event_dispatcher is not None:
            self._is_on = c.event_dispatcher.enabled


def guard_control(allowed: RemoteControl) -> None:
    """Let the workers of this process answer commands as ``allowed`` says. Before a worker is made; idempotent."""
    control.Panel.data = build_handlers(allowed)


def build_handlers(allowed: RemoteControl) -> dict[str, _Handler]:
    """The commands of remote control, by name."""
    found: dict[str, _Handler] = {}
    for name, handler in _CELERYS.items():
        if name in _REPLACED:
            found[name] = _REPLACED[name]
        elif allowed is RemoteControl.ALL or _is_reading(name):
            found[name] = _make_explaining_handler(name, handler)
        else:
            found[name] = _make_refusing_handler(name)
    return found


def _is_reading(name: str) -> bool:
    info = control.Panel.meta.get(name)
    return info is None or (info.type == "inspect" and name not in _MORE_THAN_READING) or name in _READING


def _make_refusing_handler(name: str) -> _Handler:
    def answer(_state: Any, **_: Any) -> Mapping[str, str]:
        log.warning("control.refused", command=name)
        return control.nok(  # type: ignore[no-any-return]
            f"{name!r} changes the fleet and is not allowed; set worker.remote_control "
            "(HERMES_REMOTE_CONTROL) to 'all' and start the workers again"
        )

    return answer


def _make_explaining_handler(name: str, handler: _Handler) -> _Handler:
    def answer(state: Any, **arguments: Any) -> Any:
        try:
            return handler(state, **arguments)
        except Exception as error:
            log.warning("control.failed", command=name, error=f"{type(error).__name__}: {error}")
            return control.nok(f"{name!r} cannot be done by this worker: {type(error).__name__}: {error}")

    return answer


def _enable_events(state: Any) -> Mapping[str, str]:
    """Switch events on. Idempotent."""
    dispatcher = state.consumer.event_dispatcher
    if dispatcher is None:
        return control.nok("the worker has no connection to the broker just now")  # type: ignore[no-any-return]
    if dispatcher.enabled:
        return control.ok("task events already enabled")  # type: ignore[no-any-return]
    if dispatcher.groups:
        dispatcher.groups.add("task")
    dispatcher.enable()
    _refresh_strategies(state.consumer)
    log.info("events.enabled")
    return control.ok("task events enabled")  # type: ignore[no-any-return]


def _disable_events(state: Any) -> Mapping[str, str]:
    """Switch events off. Idempotent."""
    dispatcher = state.consumer.event_dispatcher
    if dispatcher is None or not dispatcher.enabled:
        return control.ok("task events already disabled")  # type: ignore[no-any-return]
    dispatcher.disable()
    _refresh_strategies(state.consumer)
    log.info("events.disabled")
    return control.ok("task events disabled")  # type: ignore[no-any-return]


def _refresh_strategies(consumer: Any) -> None:
    """Make the tasks notice the switch: a task's strategy looks once at whether events are sent."""
    consumer.update_strategies()


def _report_stats(state: Any, **arguments: Any) -> Mapping[str, Any]:
    """Celery's figures of this worker, without the passwords of the broker: Celery shows that of a broker on a socket,
    and those of Sentinels.
    """
    told: dict[str, Any] = _CELERYS["stats"](state, **arguments)
    broker = told["broker"]
    shown = {
        "hostname": maybe_sanitize_url(broker["hostname"]),
        "alternates": [maybe_sanitize_url(url) for url in broker.get("alternates") or ()],
        "transport_options": {
            name: value for name, value in broker["transport_options"].items() if name != "sentinel_kwargs"
        },
    }
    return {**told, "broker": {**broker, **shown}}


_REPLACED: Mapping[str, _Handler] = {
    "enable_events": _enable_events,
    "disable_events": _disable_events,
    "stats": _report_stats,
}
