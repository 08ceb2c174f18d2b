"""Every metric there is, as rows of one table: ``docs/reference/metrics.md`` is made of it, and no other is served.

Names follow https://prometheus.io/docs/practices/naming/ (read in November 2026). The values of a label are bounded:
they come from closed lists of the product, from the settings, or are ``other``. Nothing that a caller or a model wrote
becomes a label, and neither does an id or a tenant.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType


class MetricKind(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class MetricScope(StrEnum):
    """The origin of a metric's numbers, and what a kill does to them."""

    FLEET = "fleet"
    """Numbers of the rows of all tenants. Counters are exact, whatever was killed. Every API and every scheduler serves
    the same numbers, so take the largest of them and not the sum.
    """
    PROCESS = "process"
    """Numbers of the process that serves them, since it began. A process that is killed takes them with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One metric. ``name`` is without ``_total``, which counters get when they are served."""

    name: str
    kind: MetricKind
    scope: MetricScope
    meaning: str
    labels: tuple[str, ...] = ()

    @property
    def served_name(self) -> str:
        return f"{self.name}_total" if self.kind is MetricKind.COUNTER else self.name


def _fleet_counter(name: str, meaning: str, *labels: str) -> Metric:
    return Metric(
        name=f"hermes_{name}", kind=MetricKind.COUNTER, scope=MetricScope.FLEET, meaning=meaning, labels=labels
    )


def _fleet_gauge(name: str, meaning: str, *labels: str) -> Metric:
    return Metric(name=f"hermes_{name}", kind=MetricKind.GAUGE, scope=MetricScope.FLEET, meaning=meaning, labels=labels)


def _process_metric(name: str, meaning: str, *labels: str, kind: MetricKind = MetricKind.GAUGE) -> Metric:
    return Metric(name=f"hermes_{name}", kind=kind, scope=MetricScope.PROCESS, meaning=meaning, labels=labels)


def _process_histogram(name: str, meaning: str, *labels: str) -> Metric:
    return _process_metric(name, meaning, *labels, kind=MetricKind.HISTOGRAM)


METRICS: tuple[Metric, ...] = (
    _fleet_counter("runs_accepted", "Runs that were accepted and stored."),
    _fleet_counter("runs_ended", "Runs that ended.", "status", "exit_reason"),
    _fleet_counter("iterations", "Model calls of conversations whose reply was committed or discarded.", "model"),
    _fleet_counter(
        "model_attempts_failed",
        "Requests to models that brought no reply: `refused` ones cost nothing; nobody knows whether those of "
        "`unknown` outcome were billed.",
        "model",
        "outcome",
    ),
    _fleet_counter(
        "tokens",
        "Tokens by kind. `unknown_input` and `unknown_output` are estimates of requests whose outcome nobody knows; "
        "`reasoning` is part of `output`, and `estimated` says how many of the others were estimated.",
        "model",
        "kind",
    ),
    _fleet_counter(
        "cost_usd",
        "US dollars: `certain`, or `doubtful` for what may have been billed beside it.",
        "model",
        "certainty",
    ),
    _fleet_counter("unpriced_model_calls", "Model calls whose price nobody knows.", "model"),
    _fleet_counter(
        "tool_calls",
        "Settled tool calls. `unknown` is the outcome of a `once` call whose worker vanished.",
        "status",
        "replay",
    ),
    _fleet_counter("steps_retried", "Takeovers: steps whose worker vanished and that were begun again.", "step"),
    _fleet_counter("budget_denials", "Runs that used up a limit, by what ran out.", "dimension"),
    _fleet_counter("deliveries", "Settled deliveries.", "state", "platform"),
    _fleet_counter("deliveries_in_doubt", "Settled deliveries that may have arrived more often than once.", "platform"),
    _fleet_counter("firings", "Slots of jobs that were settled.", "outcome"),
    _fleet_gauge(
        "fleet_readable",
        "1 when the rows could be read for this answer; without it all other fleet metrics are absent.",
    ),
    _fleet_gauge("runs", "Open runs.", "status"),
    _fleet_gauge("queue_due", "Steps that a worker could take now.", "queue"),
    _fleet_gauge("queue_claimed", "Steps at work.", "queue"),
    _fleet_gauge(
        "queue_oldest_due_seconds",
        "How long the oldest due step has waited since its latest hint; 0 when none is due.",
        "queue",
    ),
    _fleet_gauge(
        "queue_capacity_needed",
        "How many steps should be at work at once, so that all that is due begins within a minute.",
        "queue",
    ),
    _fleet_gauge(
        "workers",
        "Worker processes. `dead` ones fell silent, `crashed` ones are lanes seen to end; both for a day.",
        "state",
    ),
    _fleet_gauge("waits", "Open questions to people.", "kind"),
    _fleet_gauge(
        "provider_keys",
        "Keys of providers that are closed: without money, refused, or of a server that is down.",
        "condition",
    ),
    _fleet_gauge(
        "gateway_accounts",
        "Accounts that gateways listen to: `failing` where the last look or connection failed, `unheld` where no "
        "gateway listens any more, for a day.",
        "state",
    ),
    _fleet_gauge("places", "Runs that may be at work at once, where tenants share the fleet."),
    _fleet_gauge(
        "place_runs",
        "Runs of a fleet that tenants share: `held` ones wait for a place, those `at_work` have one, and `parked` ones "
        "wait for their provider and use none. `share` says whether their tenants have the `usual` weight of 1, "
        "`less` or `more`.",
        "share",
        "state",
    ),
    _fleet_gauge(
        "place_oldest_held_seconds",
        "How long ago the held run was submitted that was submitted first; 0 when none is held.",
        "share",
    ),
    _fleet_gauge("deliveries_put_off", "Deliveries whose next attempt has its time."),
    _fleet_gauge("jobs", "Scheduled jobs.", "state"),
    _fleet_gauge(
        "job_overdue_seconds", "How long the job that is due the longest waits for a scheduler; 0 when none is due."
    ),
    _process_metric(
        "build_info", "1, with the version of the code and of the schema it knows.", "version", "schema", "role"
    ),
    _process_metric(
        "process_events",
        "Events of this process (`observe.COUNTED`), some by kind, as in `model.failed` by `rate_limit`.",
        "event",
        "kind",
        kind=MetricKind.COUNTER,
    ),
    _process_metric("process_in_flight", "Tasks of this worker that have begun and not ended."),
    _process_metric("process_slots", "Tasks that this worker may do at once."),
    _process_metric("process_followers", "Readers who follow a run over this API."),
    _process_metric("process_database_connections", "Connections of this process to the database.", "state"),
    _process_histogram(
        "hint_wait_seconds", "From when the message of a step was sent to when this worker began with it.", "queue"
    ),
    _process_histogram("step_duration_seconds", "From the claim of a step to its end.", "queue"),
    _process_histogram(
        "governor_wait_seconds",
        "How long model calls were told to wait because their credential is used as much as it may be.",
    ),
    _process_histogram(
        "pool_wait_seconds", "How long statements waited for a connection to the database, where none was idle."
    ),
    _process_histogram("sweep_duration_seconds", "One look of the sweeper."),
    _process_histogram(
        "event_lag_seconds",
        "From when an event of a run was written to when it was sent to a reader who follows the run.",
    ),
)

BY_NAME: Mapping[str, Metric] = MappingProxyType({metric.name: metric for metric in METRICS})
