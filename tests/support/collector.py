"""A collector of OpenTelemetry: takes OTLP over HTTP as protobuf, and keeps the spans."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)


class Collector:
    """The spans that came, by their id; the same id again is the same span."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.bodies: list[bytes] = []
        self._spans: dict[bytes, Any] = {}
        self._services: dict[bytes, str] = {}
        self._lock = threading.Lock()

    def take(self, body: bytes) -> None:
        request = ExportTraceServiceRequest()
        request.ParseFromString(body)
        with self._lock:
            self.bodies.append(body)
            for resource in request.resource_spans:
                service = next(
                    one.value.string_value for one in resource.resource.attributes if one.key == "service.name"
                )
                for span in (span for scope in resource.scope_spans for span in scope.spans):
                    self._spans[span.span_id] = span
                    self._services[span.span_id] = service

    def spans(self, name: str = "") -> list[Any]:
        """Those whose name begins so."""
        with self._lock:
            return [span for span in self._spans.values() if span.name.startswith(name)]

    def services(self) -> set[str]:
        with self._lock:
            return set(self._services.values())

    def orphans(self) -> list[Any]:
        """Spans whose parent never came."""
        found = self.spans()
        ids = {span.span_id for span in found}
        return [span for span in found if span.parent_span_id and span.parent_span_id not in ids]


@contextmanager
def collecting() -> Iterator[Collector]:
    """A collector on a free port."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            is_packed = self.headers.get("Content-Encoding") == "gzip"
            collector.take(gzip.decompress(body) if is_packed else body)
            answer = ExportTraceServiceResponse().SerializeToString()
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *arguments: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    collector = Collector(f"http://127.0.0.1:{server.server_port}/v1/traces")
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield collector
    finally:
        server.shutdown()
        server.server_close()
