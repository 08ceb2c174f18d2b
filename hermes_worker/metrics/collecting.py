"""Collect metrics for Prometheus from the counters of a process and from the rows.

A collector is asked at every scrape and keeps no numbers of its own. The rows are read at most once in
``_READ_EVERY_S``, however many ask.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from hermes_worker.core.budget import Dimension
from hermes_worker.core.errors import FailureKind, UnavailableError
from hermes_worker.core.key_states import KeyCondition
from hermes_worker.core.replay import Replay
from hermes_worker.core.run import OPEN_STATUSES, CallStatus, ExitReason, RunStatus, WaitKind
from hermes_worker.metrics.catalogue import BY_NAME, METRICS, MetricKind, MetricScope
from hermes_worker.metrics.labels import LabelValues
from hermes_worker.observe import DURATIONS_S, EVENTS, Durations, copy_counters, copy_durations, log
from hermes_worker.store.engine.database import Database
from hermes_worker.store.fleet import FleetReading, load_fleet
from hermes_worker.store.revisions import find_newest

_READ_EVERY_S = 5.0
Sample = tuple[str, tuple[str, ...], float]
"""The name of a metric, the values of its labels, its value."""
Gauges = Mapping[str, Callable[[], float]]
"""Functions that read a value, by the name of a metric, or its name and the value of its only label after a dot."""

_TIMERS: Mapping[str, str] = {
    "hint.waited": "hermes_hint_wait_seconds",
    "step.held": "hermes_step_duration_seconds",
    "model.waited": "hermes_governor_wait_seconds",
    "pool.waited": "hermes_pool_wait_seconds",
    "sweep.took": "hermes_sweep_duration_seconds",
    "event.lagged": "hermes_event_lag_seconds",
}
_ALERTING = ("lease.lost", "model.key_rested", "sweep.completed")
"""Events that an alert reads, so they are served before the first one: ``rate`` does not see what a new series begins
with."""
_TOKENS = {
    "input_tokens": "input",
    "output_tokens": "output",
    "cache_read_tokens": "cache_read",
    "cache_write_tokens": "cache_write",
    "reasoning_tokens": "reasoning",
    "estimated_tokens": "estimated",
    "unknown_input_tokens": "unknown_input",
    "unknown_output_tokens": "unknown_output",
}


# --- a process -------------------------------------------------------------------------------------------------------


class ProcessCollector(Collector):
    """The counters, timers and gauges of this process."""

    def __init__(self, role: str, gauges: Gauges) -> None:
        self._role = role
        self._gauges = gauges

    def collect(self) -> Iterable[Family]:
        yield from _build_families([*self._collect_samples()], MetricScope.PROCESS)
        yield from _build_histograms(copy_durations())

    def describe(self) -> Iterable[Family]:
        """Empty, so that nothing is asked when the collector is registered."""
        return []

    def _collect_samples(self) -> Iterator[Sample]:
        yield "hermes_build_info", (version("hermes-worker"), find_newest(), self._role), 1.0
        for failure in FailureKind:
            yield "hermes_process_events", ("model.failed", failure.value), 0
        for event in _ALERTING:
            yield "hermes_process_events", (event, ""), 0
        for name, number in copy_counters().items():
            event, _, kind = (name, "", "") if name in EVENTS else name.rpartition(".")
            if number:
                yield "hermes_process_events", (event, kind), number
        for name, read in self._gauges.items():
            metric, _, label = name.partition(".")
            yield metric, (label,) if label else (), read()


def _build_histograms(timed: Mapping[str, Durations]) -> Iterator[Family]:
    families: dict[str, HistogramMetricFamily] = {}
    for name, found in sorted(timed.items()):
        timer, label = (name, "") if name in _TIMERS else (name.rpartition(".")[0], name.rpartition(".")[2])
        metric = BY_NAME[_TIMERS[timer]]
        family = families.setdefault(
            metric.name, HistogramMetricFamily(metric.name, metric.meaning, labels=list(metric.labels))
        )
        bounds = [*(str(bound) for bound in DURATIONS_S), "+Inf"]
        below, buckets = 0, []
        for bound, number in zip(bounds, found.classes, strict=True):
            below += number
            buckets.append((bound, float(below)))
        family.add_metric([label] if metric.labels else [], buckets=buckets, sum_value=found.sum_s)
    yield from families.values()


# --- the rows --------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _LastReading:
    at: float
    state: FleetReading | None


class FleetCollector(Collector):
    """The state of the rows of all tenants. While the database is away it reports only that."""

    def __init__(self, database: Database, values: LabelValues) -> None:
        self._database = database
        self._values = values
        self._lock = threading.Lock()
        self._look = _LastReading(at=-_READ_EVERY_S, state=None)

    def collect(self) -> Iterable[Family]:
        state = self._get_recent_reading()
        readable: Sample = ("hermes_fleet_readable", (), float(state is not None))
        found = () if state is None else (*_iterate_zero_samples(self._values), *_iterate_fleet_samples(state))
        samples = [readable, *found]
        yield from _build_families([self._restrict_labels(sample) for sample in samples], MetricScope.FLEET)

    def describe(self) -> Iterable[Family]:
        """Empty, so that nothing is asked when the collector is registered."""
        return []

    def _get_recent_reading(self) -> FleetReading | None:
        with self._lock:
            if time.monotonic() - self._look.at >= _READ_EVERY_S:
                self._look = _LastReading(at=time.monotonic(), state=self._read())
            return self._look.state

    def _read(self) -> FleetReading | None:
        try:
            return load_fleet(self._database)
        except UnavailableError as error:
            log.warning("database.unreachable", doing="metrics", error=str(error))
            return None

    def _restrict_labels(self, sample: Sample) -> Sample:
        name, values, number = sample
        labels = BY_NAME[name].labels
        return name, tuple(map(self._values.restrict_value, labels, values)), number


def _iterate_fleet_samples(state: FleetReading) -> Iterator[Sample]:
    for (measure, labels), amount in state.totals.items():
        yield _build_sample(measure, labels, amount)
    for queue in state.backlog:
        yield "hermes_queue_due", (queue.queue,), queue.due
        yield "hermes_queue_claimed", (queue.queue,), queue.claimed
        yield "hermes_queue_oldest_due_seconds", (queue.queue,), queue.oldest_age_s
        yield "hermes_queue_capacity_needed", (queue.queue,), queue.capacity_needed
    for name, numbers in (
        ("hermes_runs", {**_NO_RUNS, **state.runs}),
        ("hermes_workers", {**_NO_WORKERS, **state.workers}),
        ("hermes_waits", {**_NO_WAITS, **state.waits}),
        ("hermes_jobs", {**_NO_JOBS, **state.jobs}),
        ("hermes_gateway_accounts", {**_NO_ACCOUNTS, **state.gateway_accounts}),
        ("hermes_provider_keys", {name: state.keys.get(name, 0) for name in _CLOSED_KEYS}),
    ):
        for value, number in numbers.items():
            yield name, (value,), number
    yield "hermes_places", (), state.places.places
    for share, reading in state.places.shares.items():
        for value, number in (("held", reading.held), ("at_work", reading.at_work), ("parked", reading.parked)):
            yield "hermes_place_runs", (share.value, value), number
        yield "hermes_place_oldest_held_seconds", (share.value,), reading.oldest_held_s
    yield "hermes_deliveries_put_off", (), state.deliveries_put_off
    yield "hermes_job_overdue_seconds", (), state.job_overdue_s


_NO_RUNS = {status.value: 0 for status in OPEN_STATUSES}
_NO_WORKERS = dict.fromkeys(("alive", "dead", "crashed"), 0)
_CLOSED_KEYS = tuple(condition.value for condition in KeyCondition if condition is not KeyCondition.OPEN)
_NO_WAITS = {kind.value: 0 for kind in (WaitKind.APPROVAL, WaitKind.INPUT)}
_NO_ACCOUNTS = dict.fromkeys(("listening", "failing", "unheld"), 0)
_NO_JOBS = dict.fromkeys(("scheduled", "paused", "completed", "error"), 0)
_NANO = 1e-9


def _build_sample(measure: str, labels: tuple[str, ...], amount: int) -> Sample:
    if measure in _TOKENS:
        return "hermes_tokens", (*labels, _TOKENS[measure]), amount
    match measure:
        case "refused_attempts" | "unknown_attempts":
            return "hermes_model_attempts_failed", (*labels, measure.removesuffix("_attempts")), amount
        case "cost_nano_usd":
            return "hermes_cost_usd", (*labels, "certain"), amount * _NANO
        case "doubtful_nano_usd":
            return "hermes_cost_usd", (*labels, "doubtful"), amount * _NANO
        case "unpriced_calls":
            return "hermes_unpriced_model_calls", labels, amount
        case _:
            return f"hermes_{measure}", labels, amount


_NOT_STARTED = ("missed", "failed_to_start")
_DELIVERY_ENDS = ("delivered", "failed", "abandoned")


def _iterate_zero_samples(values: LabelValues) -> Iterator[Sample]:
    """List zeros for counters that have counted nothing yet and that an alert reads: ``rate`` does not see the first
    thing that a new one counts."""
    yield "hermes_tool_calls", (CallStatus.UNKNOWN.value, Replay.ONCE.value), 0
    for reason in ExitReason:
        yield "hermes_runs_ended", (RunStatus.FAILED.value, reason.value), 0
    for step in ("model", "tool", "auxiliary"):
        yield "hermes_steps_retried", (step,), 0
    for dimension in Dimension:
        yield "hermes_budget_denials", (dimension.value,), 0
    for outcome in _NOT_STARTED:
        yield "hermes_firings", (outcome,), 0
    for platform in values.list_known("platform"):
        yield "hermes_deliveries_in_doubt", (platform,), 0
        for state in _DELIVERY_ENDS:
            yield "hermes_deliveries", (state, platform), 0
    for model in values.list_known("model"):
        yield "hermes_unpriced_model_calls", (model,), 0
        for certainty in ("certain", "doubtful"):
            yield "hermes_cost_usd", (model, certainty), 0


def _build_families(samples: list[Sample], scope: MetricScope) -> Iterator[Family]:
    """One family for each metric that has samples. Samples that agree in all labels are added."""
    sums: dict[str, dict[tuple[str, ...], float]] = {}
    for name, values, number in samples:
        of_metric = sums.setdefault(name, {})
        of_metric[values] = of_metric.get(values, 0.0) + number
    for metric in METRICS:
        if metric.scope is not scope or metric.name not in sums:
            continue
        make = CounterMetricFamily if metric.kind is MetricKind.COUNTER else GaugeMetricFamily
        family = make(metric.name, metric.meaning, labels=list(metric.labels))
        for values, number in sums[metric.name].items():
            family.add_metric(list(values), number)
        yield family
