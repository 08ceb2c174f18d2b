"""Push what a process serves for Prometheus to a collector, by OTLP over HTTP. Needs the extra ``otel``.

The same numbers under the same names: the families of the registry are converted at each push, and nothing is counted
twice. A collector that is away costs a push and nothing else; the counters go on.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from typing import cast

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.samples import Sample

from hermes_worker.observe import log
from hermes_worker.system.service_facts import describe_service

_EVERY_S = 15.0
_PATIENCE_S = 5.0
_UNKNOWN = cast(float, None)
"""Prometheus keeps no extremes; the message leaves them out for this value."""
_SINCE_START = AggregationTemporality.CUMULATIVE


class MetricPusher:
    """Pushes one registry again and again, in a thread of its own."""

    def __init__(self, endpoint: str, role: str, registry: CollectorRegistry) -> None:
        """``endpoint`` is the address at which the collector takes metrics: ``http://collector:4318/v1/metrics``."""
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
        self._exporter = OTLPMetricExporter(endpoint=endpoint, timeout=_PATIENCE_S)
        self._resource = Resource(describe_service(role))
        self._registry = registry
        self._began_ns = time.time_ns()

    def start(self) -> None:
        """Begin; the thread goes with the process."""
        threading.Thread(target=self._run, name="hermes_metrics", daemon=True).start()

    def push_once(self) -> None:
        """Push all metrics. Raises nothing for a collector that is away."""
        metrics = [found for family in self._registry.collect() for found in self._convert_family(family)]
        scope = ScopeMetrics(scope=InstrumentationScope("hermes-worker"), metrics=metrics, schema_url="")
        self._exporter.export(
            MetricsData(resource_metrics=[ResourceMetrics(self._resource, scope_metrics=[scope], schema_url="")])
        )

    def _run(self) -> None:
        while True:
            time.sleep(_EVERY_S)
            try:
                self.push_once()
            except Exception:
                log.exception("thread.failed", doing="metrics")

    def _convert_family(self, family: Family) -> Iterator[Metric]:
        now = time.time_ns()
        if family.type == "histogram":
            points = [self._build_histogram(samples, now) for samples in _group_buckets(family.samples)]
            histogram = Histogram(data_points=points, aggregation_temporality=_SINCE_START)
            yield Metric(name=family.name, description=family.documentation, unit=family.unit, data=histogram)
            return
        numbers = [
            NumberDataPoint(each.labels, self._began_ns, now, each.value)
            for each in family.samples
            if not each.name.endswith("_created")
        ]
        if not numbers:
            return
        is_sum = family.type == "counter"
        data = Sum(numbers, _SINCE_START, is_monotonic=True) if is_sum else Gauge(numbers)
        name = f"{family.name}_total" if is_sum else family.name
        yield Metric(name=name, description=family.documentation, unit=family.unit, data=data)

    def _build_histogram(self, samples: list[Sample], now: int) -> HistogramDataPoint:
        labels = {name: value for name, value in samples[0].labels.items() if name != "le"}
        below = [int(each.value) for each in samples if each.name.endswith("_bucket")]
        bounds = [float(each.labels["le"]) for each in samples if each.name.endswith("_bucket")]
        total = next((each.value for each in samples if each.name.endswith("_sum")), 0.0)
        return HistogramDataPoint(
            attributes=labels,
            start_time_unix_nano=self._began_ns,
            time_unix_nano=now,
            count=below[-1],
            sum=total,
            bucket_counts=[count - before for before, count in zip([0, *below], below, strict=False)],
            explicit_bounds=bounds[:-1],
            min=_UNKNOWN,
            max=_UNKNOWN,
        )


def _group_buckets(samples: list[Sample]) -> list[list[Sample]]:
    """The samples of each series of a histogram."""
    groups: dict[tuple[tuple[str, str], ...], list[Sample]] = {}
    for each in samples:
        labels = tuple(sorted((name, value) for name, value in each.labels.items() if name != "le"))
        groups.setdefault(labels, []).append(each)
    return list(groups.values())
