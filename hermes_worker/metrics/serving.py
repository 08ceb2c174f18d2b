"""The address where Prometheus reads a process.

Every process of its own has a port of its own: in containers the same one everywhere. Lanes, and the children of a
prefork pool, have none. They live shortly or are many; what they do stands in rows, which the fleet's metrics count.
"""

from __future__ import annotations

import os
import threading

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector
from prometheus_client import ProcessCollector as ResourceCollector
from prometheus_client.exposition import start_http_server

from hermes_worker.metrics.collecting import FleetCollector, Gauges, ProcessCollector
from hermes_worker.metrics.labels import LabelValues
from hermes_worker.observe import log
from hermes_worker.settings import Settings
from hermes_worker.store.engine.database import Database

_lock = threading.Lock()
_served_by: int | None = None
"""The process that serves its metrics already: a worker begins anew whenever it finds its broker again."""


def serve_metrics(settings: Settings, role: str, gauges: Gauges, *, fleet: Database | None = None) -> None:
    """Serve what this process counts, in a thread, if the settings name a port, and push it, if they name a collector;
    once, however often it is called.

    ``fleet`` is the database whose rows are counted as well. A port that is taken stops no work: it is logged.
    """
    global _served_by
    port = settings.metrics.port
    if port is None and settings.metrics.endpoint is None:
        return
    with _lock:
        if _served_by == os.getpid():
            return
        _served_by = os.getpid()
    registry = build_registry(settings, role, gauges, fleet)
    if settings.metrics.endpoint is not None:
        from hermes_worker.metrics.pushing import MetricPusher

        MetricPusher(settings.metrics.endpoint, role, registry).start()
    if port is None:
        return
    try:
        server, _ = start_http_server(port, addr=settings.metrics.host, registry=registry)
    except OSError as error:
        log.error("metrics.not_served", host=settings.metrics.host, port=port, error=str(error))
        return
    log.info("metrics.served", host=settings.metrics.host, port=server.server_port)


def build_registry(settings: Settings, role: str, gauges: Gauges, fleet: Database | None) -> CollectorRegistry:
    """The registry of this process."""
    registry = CollectorRegistry(auto_describe=False)
    ResourceCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    registry.register(ProcessCollector(role, gauges))
    if fleet is not None:
        registry.register(FleetCollector(fleet, LabelValues(settings)))
    return registry


def build_connection_gauges(database: Database) -> Gauges:
    """Gauges of how many connections to ``database`` are open and in use."""
    return {
        "hermes_process_database_connections.open": lambda: float(database.count_connections()[0]),
        "hermes_process_database_connections.used": lambda: float(database.count_connections()[1]),
    }
