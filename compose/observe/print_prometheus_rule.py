"""Prints the alerts as a ``PrometheusRule`` for the operator of Prometheus:

``python compose/observe/print_prometheus_rule.py | kubectl apply -n hermes -f -``. Needs PyYAML.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import yaml

RULES = Path(__file__).parent / "prometheus" / "alerts.yml"


def prometheus_rule() -> dict[str, Any]:
    """The object, with the groups of the file as they are."""
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "hermes-worker", "labels": {"app.kubernetes.io/name": "hermes-worker"}},
        "spec": yaml.safe_load(RULES.read_text(encoding="utf-8")),
    }


if __name__ == "__main__":
    yaml.safe_dump(prometheus_rule(), sys.stdout, sort_keys=False)
