"""Dashboards, rules and their pages agree with each other, without a Prometheus; tests/machine asks a real one."""

from __future__ import annotations

import json
import re
import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
import yaml
from support.alert_cases import CASES
from support.prometheus import OBSERVE, rules
from support.store import Store, asks, opened, settlement

from hermes_worker.core.replay import Replay
from hermes_worker.metrics.catalogue import METRICS, MetricKind
from hermes_worker.observe import EVENTS
from hermes_worker.store.engine.database import Database

ROOT = OBSERVE.parents[1]
DASHBOARDS = sorted((OBSERVE / "grafana" / "dashboards").glob("*.json"))
SERVED = {metric.served_name for metric in METRICS if metric.kind is not MetricKind.HISTOGRAM} | {
    f"{metric.name}_{suffix}"
    for metric in METRICS
    if metric.kind is MetricKind.HISTOGRAM
    for suffix in ("bucket", "sum", "count")
}


def queries(path: Path) -> list[dict[str, Any]]:
    document = json.loads(path.read_text(encoding="utf-8"))
    return [target for panel in document["panels"] for target in panel["targets"]]


def test_the_dashboards_are_those_that_are_made() -> None:
    made = runpy.run_path(str(OBSERVE / "make_dashboards.py"))
    assert {path.name for path in DASHBOARDS} == set(made["ALL"])
    for path in DASHBOARDS:
        assert path.read_text(encoding="utf-8") == made["text_of"](path.name), "run compose/observe/make_dashboards.py"


def test_queries_and_rules_name_metrics_that_there_are() -> None:
    texts = [target["expr"] for path in DASHBOARDS for target in queries(path) if "expr" in target]
    texts += [rule["expr"] for rule in rules().values()]
    assert len(texts) > 60
    named = {name for text in texts for name in re.findall(r"\bhermes_[a-z_]+", text)}
    assert named - SERVED == set()


def test_queries_and_rules_name_events_that_are_counted() -> None:
    texts = [target["expr"] for path in DASHBOARDS for target in queries(path) if "expr" in target]
    texts += [rule["expr"] for rule in rules().values()]
    patterns = {pattern for text in texts for pattern in re.findall(r'\bevent=~?"([^"]+)"', text)}
    assert len(patterns) > 5
    assert {pattern for pattern in patterns if not any(re.fullmatch(pattern, name) for name in EVENTS)} == set()


def test_every_alert_has_a_page_a_severity_and_a_case() -> None:
    page = (ROOT / "docs" / "alerts.md").read_text(encoding="utf-8")
    headings = set(re.findall(r"^## (\w+)$", page, re.MULTILINE))
    assert headings == set(rules()) == set(CASES)
    for name, rule in rules().items():
        assert rule["annotations"]["runbook"] == f"docs/alerts.md#{name.lower()}"
        assert rule["annotations"]["summary"].endswith(".")
        assert rule["labels"]["severity"] in ("critical", "warning", "info")


def test_the_operator_gets_the_same_rules() -> None:
    program = OBSERVE / "print_prometheus_rule.py"
    printed = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, check=True, timeout=60)
    rule = yaml.safe_load(printed.stdout)
    assert (rule["apiVersion"], rule["kind"]) == ("monitoring.coreos.com/v1", "PrometheusRule")
    assert {each["alert"]: each for group in rule["spec"]["groups"] for each in group["rules"]} == rules()
    files = runpy.run_path(str(program))["FILES"]
    assert len(files) == 2
    for path in files:
        assert path.read_text(encoding="utf-8") == printed.stdout, f"run {program.name} --write"


def test_whoever_scrapes_gives_the_job_the_name_that_the_alerts_know() -> None:
    named = {job for rule in rules().values() for job in re.findall(r'job="(\w+)"', rule["expr"])}
    config = yaml.safe_load((OBSERVE / "prometheus" / "prometheus.yml").read_text(encoding="utf-8"))
    assert [each["job_name"] for each in config["scrape_configs"]] == ["hermes"] == list(named)
    monitors = (ROOT / "k8s" / "components" / "monitoring" / "monitors.yaml").read_text(encoding="utf-8")
    for monitor in yaml.safe_load_all(monitors):
        # The operator names a job after the object; these are applied to that.
        for endpoint in [*monitor["spec"].get("endpoints", ()), *monitor["spec"].get("podMetricsEndpoints", ())]:
            [relabeling] = endpoint["relabelings"]
            assert relabeling == {"action": "replace", "targetLabel": "job", "replacement": "hermes"}
    # What the operator adds to every series: a label of ours with such a name would become "exported_...".
    added = {"job", "instance", "namespace", "pod", "container", "endpoint", "service"}
    assert {label for metric in METRICS for label in metric.labels} & added == set()


def rows_of_the_run_dashboard(database: Database, run_id: str) -> dict[str, list[dict[str, Any]]]:
    """What each panel shows, by its title."""
    document = json.loads((OBSERVE / "grafana" / "dashboards" / "run.json").read_text(encoding="utf-8"))
    [variable] = document["templating"]["list"]
    with database.engine.connect() as connection:
        connection.exec_driver_sql("set role grafana")
        offered = connection.exec_driver_sql(variable["query"]).scalars().all()
        assert run_id in offered
        return {
            panel["title"]: [
                dict(row)
                for target in panel["targets"]
                for row in connection.exec_driver_sql(target["rawSql"].replace("$run_id", run_id)).mappings()
            ]
            for panel in document["panels"]
        }


@pytest.fixture
def watched(postgres_url: str) -> Iterator[Store]:
    """A database in which Grafana has the role of docs/alerts.md, which sees no text that anybody wrote."""
    page = (ROOT / "docs" / "alerts.md").read_text(encoding="utf-8")
    grants = re.findall(r"```sql\n(.*?)```", page, re.DOTALL)[0].replace("login password 'another'", "")
    with opened(postgres_url) as store:
        with store.database.engine.begin() as connection:
            connection.exec_driver_sql("drop role if exists grafana")
            connection.exec_driver_sql(grants)
        try:
            yield store
        finally:
            with store.database.engine.begin() as connection:
                connection.exec_driver_sql("drop owned by grafana")
                connection.exec_driver_sql("drop role grafana")


def test_grafana_may_read_no_text(watched: Store) -> None:
    with watched.database.engine.connect() as connection:
        connection.exec_driver_sql("set role grafana")
        with pytest.raises(sa.exc.ProgrammingError, match="permission denied"):
            connection.exec_driver_sql("select body from messages")
        connection.rollback()


def test_every_panel_of_the_dashboard_of_one_run_shows_its_rows(watched: Store) -> None:
    run_id = watched.submit(deliver=("local",)).run_id
    watched.ask_tools(run_id, asks(Replay.ONCE, Replay.PURE))
    for position in range(2):
        watched.calls.settle(watched.call(run_id, position), settlement("found"))
    watched.ask_tools(run_id, asks(Replay.ONCE))
    [child] = watched.delegate(run_id, 1)
    watched.answer(child)
    watched.answer(run_id)

    shown = rows_of_the_run_dashboard(watched.database, run_id)

    [run] = shown["The run"]
    assert (run["status"], run["iteration"], run["model"]) == ("completed", 3, "scripted")
    assert run["accepted"] <= run["started"] <= run["finished"]
    events = [row["event"] for row in shown["What happened"]]
    assert (events[0], events[-1]) == ("message.completed", "run.completed")
    assert [row["seq"] for row in shown["What happened"]] == sorted(row["seq"] for row in shown["What happened"])
    calls = [(row["iteration"], row["position"], row["status"]) for row in shown["Tool calls"]]
    assert calls[:2] == [(1, 0, "succeeded"), (1, 1, "succeeded")]
    assert all(row["seconds"] >= 0 for row in shown["Tool calls"][:2])
    assert [(row["run_id"], row["depth"]) for row in shown["Its tree"]] == [(run_id, 0), (child, 1)]
    assert [(row["platform"], row["state"]) for row in shown["Its deliveries"]] == [("local", "pending")]
