"""For every alert: what Prometheus would have read while its fault lasts, and when the alert has to be there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

Series = Mapping[str, str]
"""A series, and its values once a minute as promtool writes them: ``0+2x30`` begins with 0 and grows by 2."""

HEALTHY: Series = {
    'up{job="hermes", instance="a"}': "1x60",
    'hermes_fleet_readable{instance="a"}': "1x60",
    'hermes_workers{instance="a", state="alive"}': "4x60",
    'hermes_workers{instance="a", state="crashed"}': "1x60",
    'hermes_build_info{instance="a", role="api", schema="0102", version="1"}': "1x60",
    'hermes_build_info{instance="b", role="worker", schema="0102", version="1"}': "1x60",
    'hermes_pool_wait_seconds_sum{instance="b"}': "0+1x60",
    'hermes_queue_oldest_due_seconds{instance="a", queue="model"}': "20x60",
    'hermes_queue_capacity_needed{instance="a", queue="model"}': "30x60",
    'hermes_process_slots{instance="b"}': "32x60",
    'hermes_runs_ended_total{instance="a", status="completed", exit_reason="text_response"}': "0+10x60",
    'hermes_runs_ended_total{instance="a", status="failed", exit_reason="model_call_refused"}': "0+1x60",
    'hermes_runs_ended_total{instance="a", status="failed", exit_reason="internal_error"}': "0x60",
    'hermes_steps_retried_total{instance="a", step="model"}': "0+0.2x60",
    'hermes_tool_calls_total{instance="a", status="unknown", replay="once"}': "3x60",
    'hermes_tool_calls_total{instance="a", status="succeeded", replay="once"}': "0+30x60",
    'hermes_process_events_total{instance="b", event="lease.lost", kind=""}': "0x60",
    'hermes_process_events_total{instance="b", event="sweep.completed", kind=""}': "0+60x60",
    'hermes_process_events_total{instance="b", event="model.failed", kind="rate_limit"}': "0+1x60",
    'hermes_process_events_total{instance="b", event="model.key_rested", kind=""}': "0x60",
    'hermes_sweep_duration_seconds_sum{instance="b"}': "0+3x60",
    'hermes_sweep_duration_seconds_count{instance="b"}': "0+60x60",
    'hermes_event_lag_seconds_bucket{instance="a", le="0.5"}': "0+30x60",
    'hermes_event_lag_seconds_bucket{instance="a", le="10.0"}': "0+30x60",
    'hermes_event_lag_seconds_bucket{instance="a", le="+Inf"}': "0+30x60",
    'hermes_governor_wait_seconds_bucket{instance="b", le="5.0"}': "0+30x60",
    'hermes_governor_wait_seconds_bucket{instance="b", le="120.0"}': "0+30x60",
    'hermes_governor_wait_seconds_bucket{instance="b", le="+Inf"}': "0+30x60",
    'hermes_cost_usd_total{instance="a", model="m", certainty="certain"}': "0+0.2x60",
    'hermes_unpriced_model_calls_total{instance="a", model="m"}': "7x60",
    'hermes_budget_denials_total{instance="a", dimension="tokens"}': "0+0.1x60",
    'hermes_deliveries_total{instance="a", state="delivered", platform="telegram"}': "0+5x60",
    'hermes_deliveries_total{instance="a", state="failed", platform="telegram"}': "0+0.1x60",
    'hermes_deliveries_in_doubt_total{instance="a", platform="telegram"}': "2x60",
    'hermes_firings_total{instance="a", outcome="fired"}': "0+1x60",
    'hermes_firings_total{instance="a", outcome="missed"}': "4x60",
    'hermes_job_overdue_seconds{instance="a"}': "1x60",
    'hermes_gateway_accounts{instance="a", state="listening"}': "2x60",
    'hermes_gateway_accounts{instance="a", state="failing"}': "0x20 1x5 0x35",
    'hermes_gateway_accounts{instance="a", state="unheld"}': "0x60",
}
"""A fleet at work in which nobody has to do anything."""


@dataclass(frozen=True)
class AlertCase:
    """What differs from ``HEALTHY`` while the fault lasts; ``None`` for a series that is not there."""

    differs: Mapping[str, str | None]
    labels: Mapping[str, str] = field(default_factory=dict)
    """Labels of the alert beside its severity."""
    at: str = "45m"


def _one(series: str, values: str | None, **labels: str) -> AlertCase:
    assert series in HEALTHY, series
    return AlertCase({series: values}, labels)


CASES: Mapping[str, AlertCase] = {
    "HermesFleetUnseen": _one('hermes_fleet_readable{instance="a"}', None),
    "HermesProcessDown": _one('up{job="hermes", instance="a"}', "0x60", job="hermes", instance="a"),
    "HermesDatabaseUnreadable": _one('hermes_fleet_readable{instance="a"}', "0x60"),
    "HermesNoWorkers": _one('hermes_workers{instance="a", state="alive"}', "0x60"),
    "HermesVersionSkew": AlertCase(
        {'hermes_build_info{instance="c", role="worker", schema="0103", version="2"}': "1x60"}, at="40m"
    ),
    "HermesPoolExhausted": _one('hermes_pool_wait_seconds_sum{instance="b"}', "0+90x60"),
    "HermesQueueStuck": _one('hermes_queue_oldest_due_seconds{instance="a", queue="model"}', "0+60x60", queue="model"),
    "HermesCapacityShort": _one('hermes_queue_capacity_needed{instance="a", queue="model"}', "90x60"),
    "HermesRunsFailing": _one(
        'hermes_runs_ended_total{instance="a", status="failed", exit_reason="model_call_refused"}', "0+8x60"
    ),
    "HermesDefect": _one(
        'hermes_runs_ended_total{instance="a", status="failed", exit_reason="internal_error"}', "0x30 1x30"
    ),
    "HermesTakeovers": _one('hermes_steps_retried_total{instance="a", step="model"}', "0+2x60"),
    "HermesOutcomeUnknown": _one('hermes_tool_calls_total{instance="a", status="unknown", replay="once"}', "3x30 4x30"),
    "HermesLanesCrashing": _one('hermes_workers{instance="a", state="crashed"}', "1x20 3x40"),
    "HermesLeasesLost": _one('hermes_process_events_total{instance="b", event="lease.lost", kind=""}', "0x40 2x20"),
    "HermesSweepsMissing": _one(
        'hermes_process_events_total{instance="b", event="sweep.completed", kind=""}', "0+60x30 1800x30"
    ),
    "HermesSweepSlow": _one('hermes_sweep_duration_seconds_sum{instance="b"}', "0+500x60"),
    "HermesEventLag": AlertCase({'hermes_event_lag_seconds_bucket{instance="a", le="0.5"}': "0x60"}),
    "HermesModelFailing": _one(
        'hermes_process_events_total{instance="b", event="model.failed", kind="rate_limit"}',
        "0+5x60",
        kind="rate_limit",
    ),
    "HermesKeyRested": _one(
        'hermes_process_events_total{instance="b", event="model.key_rested", kind=""}', "0x30 1x30"
    ),
    "HermesGovernorWaits": AlertCase({'hermes_governor_wait_seconds_bucket{instance="b", le="5.0"}': "0x60"}),
    "HermesSpending": _one('hermes_cost_usd_total{instance="a", model="m", certainty="certain"}', "0+2x60"),
    "HermesUnpriced": _one('hermes_unpriced_model_calls_total{instance="a", model="m"}', "7x30 8x30"),
    "HermesBudgetsUsedUp": _one(
        'hermes_budget_denials_total{instance="a", dimension="tokens"}', "0+1x60", dimension="tokens"
    ),
    "HermesDeliveriesFailing": _one(
        'hermes_deliveries_total{instance="a", state="failed", platform="telegram"}', "0+3x60"
    ),
    "HermesDeliveriesInDoubt": _one('hermes_deliveries_in_doubt_total{instance="a", platform="telegram"}', "2+1x60"),
    "HermesSlotsMissed": _one('hermes_firings_total{instance="a", outcome="missed"}', "4x30 5x30"),
    "HermesGatewayDeaf": _one('hermes_gateway_accounts{instance="a", state="unheld"}', "0x20 1x40", state="unheld"),
    "HermesSchedulerLate": _one('hermes_job_overdue_seconds{instance="a"}', "0+60x60"),
}
QUIET_AT = ("5m", "20m", "45m", "59m")
