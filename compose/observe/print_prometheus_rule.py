"""The alerts as a ``PrometheusRule`` for the operator of Prometheus.

``python compose/observe/print_prometheus_rule.py | kubectl apply -n hermes -f -`` applies it by itself; with
``--write`` it goes into the files of ``k8s``, which a test compares. Needs PyYAML.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import yaml

RULES = Path(__file__).parent / "prometheus" / "alerts.yml"
K8S = Path(__file__).parents[2] / "k8s"
FILES = (K8S / "components" / "monitoring" / "alerts.yaml", K8S / "helm" / "hermes-worker" / "files" / "alerts.yaml")
"""Of kustomize and of the chart, which can read only what is in its directory."""
_HEAD = "# Made by compose/observe/print_prometheus_rule.py --write.\n"


def prometheus_rule() -> dict[str, Any]:
    """The object, with the groups of the file as they are."""
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "hermes-worker", "labels": {"app.kubernetes.io/name": "hermes-worker"}},
        "spec": yaml.safe_load(RULES.read_text(encoding="utf-8")),
    }


def text() -> str:
    """What stands in the files."""
    return _HEAD + yaml.safe_dump(prometheus_rule(), sort_keys=False, width=120)


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        for path in FILES:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text(), encoding="utf-8")
    else:
        sys.stdout.write(text())
