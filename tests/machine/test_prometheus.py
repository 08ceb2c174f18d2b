"""What Debian's Prometheus says of our metrics, rules and dashboards, scraping a stack at work."""

from __future__ import annotations

import json
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.commandline import CommandLine, wait_for
from support.patience import PATIENCE_S
from support.prometheus import OBSERVE, RULES, document_of_rule_tests, program, promtool, rules

pytestmark = pytest.mark.machine

ROLES = {"api": 0, "model": 2, "tools": 3}
"""The roles of a stack that serve metrics, and how far their ports are from the one of the settings."""
MAY_BE_EMPTY = {
    "hermes_governor_wait_seconds_bucket": "nobody waits where no limit is set",
    "hermes_pool_wait_seconds_sum": "nobody waits where connections are idle",
    "hermes_event_lag_seconds_bucket": "nobody follows a run",
    "hermes_model_attempts_failed_total": "no call of the model fails",
    "hermes_process_events_total": "what was never counted is not served",
}
"""Metrics that a healthy stack without such work does not have, and why."""


def test_promtool_takes_the_rules_and_the_configuration() -> None:
    for arguments in (("check", "rules", str(RULES)), ("check", "config", str(OBSERVE / "prometheus/prometheus.yml"))):
        checked = promtool(*arguments)
        assert checked.returncode == 0, checked.stdout + checked.stderr


def test_each_alert_fires_on_its_fault_and_none_otherwise(tmp_path: Path) -> None:
    written = tmp_path / "tests.yml"
    written.write_text(json.dumps(document_of_rule_tests(RULES, rules())), encoding="utf-8")
    tested = promtool("test", "rules", str(written))
    assert tested.returncode == 0, tested.stdout + tested.stderr


def test_an_alert_that_is_late_or_loud_is_noticed(tmp_path: Path) -> None:
    """The rules' tests can fail."""
    for number, (before, after) in enumerate((("> 300", "> 30000"), ("> 120", "> 0.5"))):
        broken = tmp_path / f"alerts{number}.yml"
        broken.write_text(RULES.read_text(encoding="utf-8").replace(before, after), encoding="utf-8")
        written = tmp_path / f"tests{number}.yml"
        written.write_text(json.dumps(document_of_rule_tests(broken, rules())), encoding="utf-8")
        assert promtool("test", "rules", str(written)).returncode != 0


# --- a stack at work -------------------------------------------------------------------------------------------------


def free_ports(number: int) -> int:
    """The first of so many neighbouring ports on which nobody listens."""
    for first in range(21_000, 29_000, number):
        with contextmanager(_listening)(range(first, first + number)) as are_free:
            if are_free:
                return first
    raise AssertionError("no free ports")


def _listening(ports: range) -> Iterator[bool]:
    sockets = [socket.socket() for _ in ports]
    try:
        for each, port in zip(sockets, ports, strict=True):
            each.bind(("127.0.0.1", port))
        yield True
    except OSError:
        yield False
    finally:
        for each in sockets:
            each.close()


def read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return str(answer.read().decode())


class Prometheus:
    """One that scrapes the roles every second, and evaluates the rules."""

    def __init__(self, directory: Path, first: int) -> None:
        self.port = free_ports(1)
        targets = [
            {"targets": [f"127.0.0.1:{first + place}"], "labels": {"role": role}} for role, place in ROLES.items()
        ]
        config = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(RULES)],
            "scrape_configs": [{"job_name": "hermes", "static_configs": [{"targets": t["targets"]} for t in targets]}],
        }
        (directory / "prometheus.yml").write_text(yaml.safe_dump(config), encoding="utf-8")
        self._log = (directory / "prometheus.log").open("w")
        self._process = subprocess.Popen(
            [
                program("prometheus"),
                f"--config.file={directory / 'prometheus.yml'}",
                f"--storage.tsdb.path={directory / 'tsdb'}",
                f"--web.listen-address=127.0.0.1:{self.port}",
            ],
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )

    def ask(self, expression: str) -> list[Any]:
        """The samples of an instant query."""
        query = urllib.parse.urlencode({"query": expression})
        return list(self._get(f"query?{query}")["result"])

    def firing(self) -> set[str]:
        """Alerts that fire or would soon."""
        return {alert["labels"]["alertname"] for alert in self._get("alerts")["alerts"]}

    def _get(self, path: str) -> Any:
        answer = json.loads(read(f"http://127.0.0.1:{self.port}/api/v1/{path}"))
        assert answer["status"] == "success", answer
        return answer["data"]

    def is_up(self) -> bool:
        try:
            return len(self.ask('up{job="hermes"} == 1')) == len(ROLES)
        except OSError:
            return False

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(30)
        self._log.close()


def dashboard_queries() -> list[str]:
    found = []
    for path in sorted((OBSERVE / "grafana" / "dashboards").glob("*.json")):
        for panel in json.loads(path.read_text(encoding="utf-8"))["panels"]:
            found += [target["expr"] for target in panel["targets"] if "expr" in target]
    return found


def test_a_real_prometheus_answers_every_query_about_a_stack_at_work(tmp_path: Path) -> None:
    first = free_ports(max(ROLES.values()) + 1)
    hermes = CommandLine(tmp_path / "home", {"HERMES_METRICS_PORT": str(first)})
    with hermes.up():
        prometheus = Prometheus(tmp_path, first)
        try:
            wait_for(prometheus.is_up, saying="for Prometheus to scrape every role")
            for _ in range(2):
                hermes("submit", "Say hello", "--watch")
            ended = 'max(hermes_runs_ended_total{status="completed"}) == 2'
            wait_for(lambda: prometheus.ask(ended), saying="for the runs to be counted")
            for place in ROLES.values():
                checked = promtool("check", "metrics", stdin=read(f"http://127.0.0.1:{first + place}/metrics"))
                assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")
            _every_query_answers(prometheus)
            # What is wrong at the start (nobody swept yet) is over; nothing of a healthy stack is worth an alert.
            assert prometheus.firing() - {"HermesSweepsMissing"} == set()
        finally:
            prometheus.close()


def _every_query_answers(prometheus: Prometheus) -> None:
    queries = dashboard_queries()
    assert len(queries) > 35
    empty = []
    deadline = time.monotonic() + PATIENCE_S
    for query in queries:
        text = query.replace("$__rate_interval", "1m").replace("$__range", "5m")
        while not (found := prometheus.ask(text)) and time.monotonic() < deadline and not _may_be_empty(query):
            time.sleep(1)
        if not found and not _may_be_empty(query):
            empty.append(query)
    assert empty == []


def _may_be_empty(query: str) -> bool:
    return any(name in query for name in MAY_BE_EMPTY)
