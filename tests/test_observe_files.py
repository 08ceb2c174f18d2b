"""Dashboards, rules and their pages agree with each other, without a Prometheus; tests/machine asks a real one."""

from __future__ import annotations

import json
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
import yaml
from support.alert_cases import CASES
from support.migrated import bring_up
from support.prometheus import OBSERVE, rules

from hermes_worker.metrics.catalogue import METRICS, MetricKind
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


def test_every_alert_has_a_page_a_severity_and_a_case() -> None:
    page = (ROOT / "docs" / "alerts.md").read_text(encoding="utf-8")
    headings = set(re.findall(r"^## (\w+)$", page, re.MULTILINE))
    assert headings == set(rules()) == set(CASES)
    for name, rule in rules().items():
        assert rule["annotations"]["runbook"] == f"docs/alerts.md#{name.lower()}"
        assert rule["annotations"]["summary"].endswith(".")
        assert rule["labels"]["severity"] in ("critical", "warning", "info")


def test_the_operator_gets_the_same_rules() -> None:
    printed = subprocess.run(
        [sys.executable, str(OBSERVE / "print_prometheus_rule.py")],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    rule = yaml.safe_load(printed.stdout)
    assert (rule["apiVersion"], rule["kind"]) == ("monitoring.coreos.com/v1", "PrometheusRule")
    assert {each["alert"]: each for group in rule["spec"]["groups"] for each in group["rules"]} == rules()


def test_the_dashboard_of_one_run_asks_what_grafana_may_read(postgres_url: str) -> None:
    """By the role of docs/alerts.md, which sees no text that anybody wrote."""
    bring_up(postgres_url)
    page = (ROOT / "docs" / "alerts.md").read_text(encoding="utf-8")
    grants = re.findall(r"```sql\n(.*?)```", page, re.DOTALL)[0].replace("login password 'another'", "")
    database = Database(postgres_url)
    try:
        with database.engine.begin() as connection:
            connection.exec_driver_sql("drop role if exists grafana")
            connection.exec_driver_sql(grants)
        with database.engine.connect() as connection:
            connection.exec_driver_sql("set role grafana")
            for target in queries(OBSERVE / "grafana" / "dashboards" / "run.json"):
                connection.exec_driver_sql(target["rawSql"].replace("$run_id", "run_1"))
            with pytest.raises(sa.exc.ProgrammingError, match="permission denied"):
                connection.exec_driver_sql("select body from messages")
            connection.rollback()
    finally:
        with database.engine.begin() as connection:
            connection.exec_driver_sql("drop owned by grafana")
            connection.exec_driver_sql("drop role grafana")
        database.close()
