"""Debian's Prometheus for tests, and what it says of our rules."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from support.alert_cases import CASES, HEALTHY, QUIET_AT, Series

OBSERVE = Path(__file__).parents[2] / "compose" / "observe"
RULES = OBSERVE / "prometheus" / "alerts.yml"


def program(name: str) -> str:
    """``prometheus`` or ``promtool``."""
    found = shutil.which(name)
    assert found, "install Debian's prometheus: apt-get install prometheus"
    return found


def promtool(*arguments: str, stdin: str | None = None, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [program("promtool"), *arguments], input=stdin, cwd=cwd, capture_output=True, text=True, timeout=60, check=False
    )


def rules() -> dict[str, Mapping[str, Any]]:
    """Every alert of the file, by name."""
    document = yaml.safe_load(RULES.read_text(encoding="utf-8"))
    return {rule["alert"]: rule for group in document["groups"] for rule in group["rules"]}


def document_of_rule_tests(rules_file: Path, known: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The document for ``promtool test rules``: each alert fires on its fault, and none while nothing is wrong."""
    quiet = [{"alertname": name, "eval_time": at, "exp_alerts": []} for name in known for at in QUIET_AT]
    faults = []
    for name, case in CASES.items():
        rule = known[name]
        labels = {**rule["labels"], **case.labels}
        expected = {"exp_labels": labels, "exp_annotations": rule["annotations"]}
        fires = {"alertname": name, "eval_time": case.at, "exp_alerts": [expected]}
        faults.append({"name": name, **_test({**HEALTHY, **case.differs}, [fires])})
    return {"rule_files": [str(rules_file)], "tests": [{"name": "healthy", **_test(HEALTHY, quiet)}, *faults]}


def _test(series: Series | Mapping[str, str | None], expected: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    given = [{"series": name, "values": values} for name, values in series.items() if values is not None]
    return {"interval": "1m", "input_series": given, "alert_rule_test": list(expected)}
