"""Metrics and log lines reach a collector of OpenTelemetry as Prometheus and stderr have them."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from hermes_worker import observe
from hermes_worker.metrics.pushing import MetricPusher
from hermes_worker.tracing.log_exporting import LineExporter


@contextmanager
def listening() -> Iterator[tuple[str, list[bytes]]]:
    """The address of a collector, and the bodies that it is sent."""
    bodies: list[bytes] = []

    class Taking(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            bodies.append(gzip.decompress(body) if self.headers.get("content-encoding") == "gzip" else body)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Taking) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", bodies
        server.shutdown()


def test_metrics_are_pushed_under_their_names_with_their_labels() -> None:
    registry = CollectorRegistry()
    Counter("hermes_x", "c", ["a"], registry=registry).labels("1").inc(3)
    Gauge("hermes_g", "g", registry=registry).set(2)
    timed = Histogram("hermes_h", "h", ["queue"], registry=registry, buckets=[1, 2])
    for queue, value in (("model", 1.5), ("model", 9.0), ("tools", 0.5)):
        timed.labels(queue).observe(value)
    with listening() as (address, bodies):
        MetricPusher(f"{address}/v1/metrics", "tools", registry).push_once()
    [resource] = ExportMetricsServiceRequest.FromString(bodies[0]).resource_metrics
    assert "hermes-worker-tools" in {each.value.string_value for each in resource.resource.attributes}
    found = {each.name: each for each in resource.scope_metrics[0].metrics}
    [counted] = found["hermes_x_total"].sum.data_points
    assert (counted.as_double, counted.attributes[0].value.string_value) == (3, "1")
    assert found["hermes_x_total"].sum.is_monotonic and found["hermes_g"].gauge.data_points[0].as_double == 2
    points = {each.attributes[0].value.string_value: each for each in found["hermes_h"].histogram.data_points}
    assert list(points["model"].bucket_counts) == [0, 1, 1] and points["model"].sum == 10.5
    assert list(points["tools"].bucket_counts) == [1, 0, 0] and points["tools"].count == 1
    assert not points["tools"].HasField("max"), "what nobody kept is not told as 0"


def test_lines_are_sent_redacted_and_with_the_ids_of_their_trace() -> None:
    with listening() as (address, bodies):
        exporter = LineExporter(f"{address}/v1/logs", "tools")
        observe.send_lines(exporter.put)
        try:
            observe.log.warning(
                "run.finished", run_id="run_1", trace_id=f"{1:032x}", span_id=f"{2:016x}", password="x1y2z3"
            )
        finally:
            observe.send_lines(None)
        exporter.flush()
    assert b"x1y2z3" not in bodies[0]
    [line] = ExportLogsServiceRequest.FromString(bodies[0]).resource_logs[0].scope_logs[0].log_records
    assert (line.body.string_value, line.severity_text) == ("run.finished", "WARNING")
    assert (line.trace_id, line.span_id) == ((1).to_bytes(16), (2).to_bytes(8))
    assert {each.key for each in line.attributes} == {"run_id", "password"}


def test_a_collector_that_is_away_raises_nothing() -> None:
    registry = CollectorRegistry()
    Gauge("hermes_g", "g", registry=registry).set(2)
    MetricPusher("http://127.0.0.1:9/v1/metrics", "tools", registry).push_once()
