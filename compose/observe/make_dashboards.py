"""Writes the dashboards in ``grafana/dashboards``: ``python compose/observe/make_dashboards.py``.

A dashboard is rows of panels, and a panel is a title, queries and a unit; where it stands and how it looks is the same
for all. A test compares the files with what this writes, and asks a Prometheus and a PostgreSQL every query.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DASHBOARDS = Path(__file__).parent / "grafana" / "dashboards"
_PROMETHEUS = {"type": "prometheus", "uid": "hermes-prometheus"}
_POSTGRES = {"type": "grafana-postgresql-datasource", "uid": "hermes-postgres"}
_WIDTH, _HEIGHT = 8, 8
_PER_LINE = 3


@dataclass(frozen=True)
class Panel:
    """``queries`` are pairs of an expression and a legend; of a table, the one statement."""

    title: str
    queries: Sequence[tuple[str, str]]
    unit: str = "short"
    kind: str = "timeseries"


def _rate(metric: str, by: str, labels: str = "") -> str:
    """Of a metric of the fleet: the same wherever it is served."""
    return f"max by ({by}) (rate({metric}{labels}[$__rate_interval]))"


def _p95(metric: str, by: str = "le") -> str:
    return f"histogram_quantile(0.95, sum by ({by}) (rate({metric}_bucket[$__rate_interval])))"


FLEET = [
    Panel("Open runs", [("max by (status) (hermes_runs)", "{{status}}")]),
    Panel(
        "Runs that end",
        [(_rate("hermes_runs_ended_total", "status, exit_reason"), "{{status}}: {{exit_reason}}")],
        "ops",
    ),
    Panel("Alive workers", [('max by (state) (hermes_workers{state=~"alive|dead|crashed"})', "{{state}}")]),
    Panel("Due steps", [("max by (queue) (hermes_queue_due)", "{{queue}}")]),
    Panel("Oldest due step", [("max by (queue) (hermes_queue_oldest_due_seconds)", "{{queue}}")], "s"),
    Panel(
        "Steps at work, places, capacity needed",
        [
            ("sum(max by (queue) (hermes_queue_claimed))", "at work"),
            ("sum(hermes_process_slots)", "places"),
            ("sum(max by (queue) (hermes_queue_capacity_needed))", "needed"),
        ],
    ),
    Panel("Wait for a worker, 95 %", [(_p95("hermes_hint_wait_seconds", "le, queue"), "{{queue}}")], "s"),
    Panel("Length of a step, 95 %", [(_p95("hermes_step_duration_seconds", "le, queue"), "{{queue}}")], "s"),
    Panel("Tool calls", [(_rate("hermes_tool_calls_total", "status, replay"), "{{status}} ({{replay}})")], "ops"),
    Panel("Takeovers", [(_rate("hermes_steps_retried_total", "step"), "{{step}}")], "ops"),
    Panel(
        "Trouble of models",
        [('sum by (kind) (rate(hermes_process_events_total{event="model.failed"}[$__rate_interval]))', "{{kind}}")],
        "ops",
    ),
    Panel("Wait for a credential, 95 %", [(_p95("hermes_governor_wait_seconds"), "wait")], "s"),
    Panel("Sweeps, 95 %", [(_p95("hermes_sweep_duration_seconds"), "length")], "s"),
    Panel(
        "Connections to the database",
        [
            ("sum by (state) (hermes_process_database_connections)", "{{state}}"),
            ("sum(rate(hermes_pool_wait_seconds_sum[$__rate_interval]))", "statements that wait"),
        ],
    ),
    Panel("Lag of events, 95 %", [(_p95("hermes_event_lag_seconds"), "lag")], "s"),
    Panel(
        "Places of tenants",
        [
            ("max by (share, state) (hermes_place_runs)", "{{share}}: {{state}}"),
            ("max(hermes_places)", "places"),
        ],
    ),
    Panel(
        "Places given",
        [('sum by (kind) (rate(hermes_process_events_total{event="places.given"}[$__rate_interval]))', "{{kind}}")],
        "ops",
    ),
    Panel("Oldest held run", [("max by (share) (hermes_place_oldest_held_seconds)", "{{share}}")], "s"),
    Panel("Readers", [("sum(hermes_process_followers)", "readers")]),
    Panel(
        "Memory",
        [
            (
                "sum by (role) (process_resident_memory_bytes * on (instance) group_left (role) hermes_build_info)",
                "{{role}}",
            )
        ],
        "bytes",
    ),
    Panel(
        "Versions",
        [("count by (version, schema, role) (hermes_build_info)", "{{role}} {{version}}, schema {{schema}}")],
    ),
]

MONEY = [
    Panel(
        "US dollars an hour",
        [(f"3600 * {_rate('hermes_cost_usd_total', 'model, certainty')}", "{{model}} {{certainty}}")],
        "currencyUSD",
    ),
    Panel(
        "US dollars in the time shown",
        [("sum(max by (model, certainty) (increase(hermes_cost_usd_total[$__range])))", "spent")],
        "currencyUSD",
        "stat",
    ),
    Panel("Tokens", [(_rate("hermes_tokens_total", "model, kind"), "{{model}} {{kind}}")], "ops"),
    Panel(
        "Input read from caches",
        [
            (
                'sum(max by (model) (rate(hermes_tokens_total{kind="cache_read"}[$__rate_interval]))) / '
                'sum(max by (model, kind) (rate(hermes_tokens_total{kind=~"input|cache_read"}[$__rate_interval])))',
                "share",
            )
        ],
        "percentunit",
    ),
    Panel("Model calls", [(_rate("hermes_iterations_total", "model"), "{{model}}")], "ops"),
    Panel(
        "Requests in vain",
        [(_rate("hermes_model_attempts_failed_total", "model, outcome"), "{{model}} {{outcome}}")],
        "ops",
    ),
    Panel("Calls without a price", [(_rate("hermes_unpriced_model_calls_total", "model"), "{{model}}")], "ops"),
    Panel("Runs at a limit", [(_rate("hermes_budget_denials_total", "dimension"), "{{dimension}}")], "ops"),
    Panel(
        "Calls held back",
        [('sum(rate(hermes_process_events_total{event="model.held_back"}[$__rate_interval]))', "held back")],
        "ops",
    ),
]

OUTSIDE = [
    Panel("Jobs", [("max by (state) (hermes_jobs)", "{{state}}")]),
    Panel("Slots", [(_rate("hermes_firings_total", "outcome"), "{{outcome}}")], "ops"),
    Panel("Longest overdue job", [("max(hermes_job_overdue_seconds)", "overdue")], "s"),
    Panel("Deliveries", [(_rate("hermes_deliveries_total", "state, platform"), "{{platform}} {{state}}")], "ops"),
    Panel("Deliveries put off", [("max(hermes_deliveries_put_off)", "put off")]),
    Panel("Deliveries in doubt", [(_rate("hermes_deliveries_in_doubt_total", "platform"), "{{platform}}")], "ops"),
    Panel("Questions to people", [("max by (kind) (hermes_waits)", "{{kind}}")]),
    Panel("Accounts of chats", [("max by (state) (hermes_gateway_accounts)", "{{state}}")]),
    Panel(
        "Messages of people",
        [('sum by (event) (rate(hermes_process_events_total{event=~"inbound.*"}[$__rate_interval]))', "{{event}}")],
        "ops",
    ),
    Panel(
        "Events of webhooks",
        [('sum by (event) (rate(hermes_process_events_total{event=~"webhook.*"}[$__rate_interval]))', "{{event}}")],
        "ops",
    ),
    Panel(
        "Attempts at deliveries",
        [('sum by (event) (rate(hermes_process_events_total{event=~"delivery.*"}[$__rate_interval]))', "{{event}}")],
        "ops",
    ),
]

_THE_RUN = "where runs.run_id = '$run_id'"
ONE_RUN = [
    Panel(
        "The run",
        [
            (
                "select status, exit_reason, model, iteration, to_timestamp(created_at) as accepted, "
                "to_timestamp(started_at) as started, to_timestamp(finished_at) as finished, input_tokens, "
                "output_tokens, "
                "cache_read_tokens, cost_nano_usd / 1e9 as usd, doubtful_nano_usd / 1e9 as doubtful_usd "
                f"from runs {_THE_RUN}",
                "",
            )
        ],
        kind="table",
    ),
    Panel(
        "What happened",
        [
            (
                "select to_timestamp(events.at) as time, events.seq, events.event from events "
                f"join runs on runs.pk = events.run_pk {_THE_RUN} order by events.seq",
                "",
            )
        ],
        kind="table",
    ),
    Panel(
        "Tool calls",
        [
            (
                "select tool_calls.iteration, tool_calls.position, tool_calls.name, tool_calls.status, "
                "tool_calls.attempt, "
                "tool_calls.settled_at - tool_calls.claimed_at as seconds from tool_calls "
                f"join runs on runs.pk = tool_calls.run_pk {_THE_RUN} order by 1, 2",
                "",
            )
        ],
        kind="table",
    ),
    Panel(
        "Its tree",
        [
            (
                "select child.run_id, child.depth, child.status, child.iteration, "
                "child.cost_nano_usd / 1e9 as usd from runs "
                "join runs child on child.pk = coalesce(runs.root_pk, runs.pk) or "
                f"child.root_pk = coalesce(runs.root_pk, runs.pk) {_THE_RUN} order by child.pk",
                "",
            )
        ],
        kind="table",
    ),
    Panel(
        "Its deliveries",
        [
            (
                "select deliveries.delivery_id, split_part(deliveries.target, ':', 1) as platform, deliveries.state, "
                "deliveries.attempts, deliveries.error_kind from deliveries "
                f"join runs on runs.pk = deliveries.run_pk {_THE_RUN} order by deliveries.pk",
                "",
            )
        ],
        kind="table",
    ),
]

_RUN_VARIABLE = {
    "name": "run_id",
    "label": "Run",
    "type": "query",
    "datasource": _POSTGRES,
    # Only ids come out of the list, so nothing that somebody typed gets into a statement.
    "query": "select run_id from runs order by pk desc limit 200",
    "refresh": 1,
    "includeAll": False,
    "multi": False,
}


def dashboard(
    uid: str, title: str, panels: Sequence[Panel], variables: Sequence[dict[str, Any]] = ()
) -> dict[str, Any]:
    """A document of Grafana's, as its export gives it."""
    return {
        "uid": uid,
        "title": title,
        "tags": ["hermes-worker"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {"list": list(variables)},
        "panels": [_panel(number, panel) for number, panel in enumerate(panels)],
    }


def _panel(number: int, panel: Panel) -> dict[str, Any]:
    is_table = panel.kind == "table"
    source = _POSTGRES if is_table else _PROMETHEUS
    width, per_line = (24, 1) if is_table else (_WIDTH, _PER_LINE)
    return {
        "id": number + 1,
        "type": panel.kind,
        "title": panel.title,
        "datasource": source,
        "gridPos": {"x": number % per_line * width, "y": number // per_line * _HEIGHT, "w": width, "h": _HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit}, "overrides": []},
        "targets": [_target(place, query, source, is_table) for place, query in enumerate(panel.queries)],
    }


def _target(place: int, query: tuple[str, str], source: dict[str, str], is_table: bool) -> dict[str, Any]:
    text, legend = query
    named = {"refId": chr(ord("A") + place), "datasource": source}
    if is_table:
        return {**named, "rawQuery": True, "rawSql": text, "format": "table", "editorMode": "code"}
    return {**named, "expr": text, "legendFormat": legend}


ALL = {
    "fleet.json": dashboard("hermes-fleet", "Hermes: fleet", FLEET),
    "money.json": dashboard("hermes-money", "Hermes: money", MONEY),
    "outside.json": dashboard("hermes-outside", "Hermes: schedules and deliveries", OUTSIDE),
    "run.json": dashboard("hermes-run", "Hermes: one run", ONE_RUN, [_RUN_VARIABLE]),
}


def text_of(name: str) -> str:
    """What stands in a file."""
    return json.dumps(ALL[name], indent=1) + "\n"


if __name__ == "__main__":
    for each in ALL:
        (DASHBOARDS / each).write_text(text_of(each), encoding="utf-8")
    sys.stdout.write(f"{len(ALL)} dashboards\n")
