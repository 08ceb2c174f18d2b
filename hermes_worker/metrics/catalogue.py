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


def _rows(name: str, meaning: str, *labels: str) -> Metric:
    return Metric(
        name=f"hermes_{name}", kind=MetricKind.COUNTER, scope=MetricScope.FLEET, meaning=meaning, labels=labels
    )


def _state(name: str, meaning: str, *labels: str) -> Metric:
    return Metric(name=f"hermes_{name}", kind=MetricKind.GAUGE, scope=MetricScope.FLEET, meaning=meaning, labels=labels)


def _here(name: str, meaning: str, *labels: str, kind: MetricKind = MetricKind.GAUGE) -> Metric:
    return Metric(name=f"hermes_{name}", kind=kind, scope=MetricScope.PROCESS, meaning=meaning, labels=labels)


def _timed(name: str, meaning: str, *labels: str) -> Metric:
    return _here(name, meaning, *labels, kind=MetricKind.HISTOGRAM)


METRICS: tuple[Metric, ...] = (
    _rows("runs_accepted", "Runs that were accepted and stored."),
    _rows("runs_ended", "Runs that ended.", "status", "exit_reason"),
    _rows("iterations", "Model calls of conversations whose reply was committed or discarded.", "model"),
    _rows(
        "model_attempts_failed",
        "Requests to models that brought no reply: `refused` ones cost nothing; nobody knows whether those of "
        "`unknown` outcome were billed.",
        "model",
        "outcome",
    ),
    _rows(
        "tokens",
        "Tokens by kind. `unknown_input` and `unknown_output` are estimates of requests whose outcome nobody knows; "
        "`reasoning` is part of `output`, and `estimated` says how many of the others were estimated.",
        "model",
        "kind",
    ),
    _rows(
        "cost_usd",
        "US dollars: `certain`, or `doubtful` for what may have been billed beside it.",
        "model",
        "certainty",
    ),
    _rows("unpriced_model_calls", "Model calls whose price nobody knows.", "model"),
    _rows(
        "tool_calls",
        "Settled tool calls. `unknown` is the outcome of a `once` call whose worker vanished.",
        "status",
        "replay",
    ),
    _rows("steps_retried", "Takeovers: steps whose worker vanished and that were begun again.", "step"),
    _rows("budget_denials", "Runs that used up a limit, by what ran out.", "dimension"),
    _rows("deliveries", "Settled deliveries.", "state", "platform"),
    _rows("deliveries_in_doubt", "Settled deliveries that may have arrived more often than once.", "platform"),
    _rows("firings", "Slots of jobs that were settled.", "outcome"),
    _state(
        "fleet_readable",
        "1 when the rows could be read for this answer; without it all other fleet metrics are absent.",
    ),
    _state("runs", "Open runs.", "status"),
    _state("queue_due", "Steps that a worker could take now.", "queue"),
    _state("queue_claimed", "Steps at work.", "queue"),
    _state(
        "queue_oldest_due_seconds",
        "How long the oldest due step has waited since its latest hint; 0 when none is due.",
        "queue",
    ),
    _state(
        "queue_capacity_needed",
        "How many steps should be at work at once, so that all that is due begins within a minute.",
        "queue",
    ),
    _state(
        "workers",
        "Worker processes. `dead` ones fell silent, `crashed` ones are lanes seen to end; both for a day.",
        "state",
    ),
    _state("waits", "Open questions to people.", "kind"),
    _state(
        "provider_keys",
        "Keys of providers that are closed: without money, refused, or of a server that is down.",
        "condition",
    ),
    _state(
        "gateway_accounts",
        "Accounts that gateways listen to: `failing` where the last look or connection failed, `unheld` where no "
        "gateway listens any more, for a day.",
        "state",
    ),
    _state("places", "Runs that may be at work at once, where tenants share the fleet."),
    _state(
        "place_runs",
        "Runs of a fleet that tenants share: `held` ones wait for a place, those `at_work` have one, and `parked` ones "
        "wait for their provider and use none. `share` says whether their tenants have the `usual` weight of 1, "
        "`less` or `more`.",
        "share",
        "state",
    ),
    _state(
        "place_oldest_held_seconds",
        "How long ago the held run was submitted that was submitted first; 0 when none is held.",
        "share",
    ),
    _state("deliveries_put_off", "Deliveries whose next attempt has its time."),
    _state("jobs", "Scheduled jobs.", "state"),
    _state(
        "job_overdue_seconds", "How long the job that is due the longest waits for a scheduler; 0 when none is due."
    ),
    _here("build_info", "1, with the version of the code and of the schema it knows.", "version", "schema", "role"),
    _here(
        "process_events",
        "Events of this process (`observe.COUNTED`), some by kind, as in `model.failed` by `rate_limit`.",
        "event",
        "kind",
        kind=MetricKind.COUNTER,
    ),
    _here("process_in_flight", "Tasks of this worker that have begun and not ended."),
    _here("process_slots", "Tasks that this worker may do at once."),
    _here("process_followers", "Readers who follow a run over this API."),
    _here("process_database_connections", "Connections of this process to the database.", "state"),
    _timed("hint_wait_seconds", "From when the message of a step was sent to when this worker began with it.", "queue"),
    _timed("step_duration_seconds", "From the claim of a step to its end.", "queue"),
    _timed(
        "governor_wait_seconds",
        "How long model calls were told to wait because their credential is used as much as it may be.",
    ),
    _timed("pool_wait_seconds", "How long statements waited for a connection to the database, where none was idle."),
    _timed("sweep_duration_seconds", "One look of the sweeper."),
    _timed(
        "event_lag_seconds",
        "From when an event of a run was written to when it was sent to a reader who follows the run.",
    ),
)

BY_NAME: Mapping[str, Metric] = MappingProxyType({metric.name: metric for metric in METRICS})
