"""Work that a process does before it forks workers, so that none of them has to: their start takes a third of the
CPU.
"""

from __future__ import annotations

import importlib

from hermes_worker import installed
from hermes_worker.extension import load_reference
from hermes_worker.system import heap

_MODULES = (
    "hermes_worker.worker.main",
    "hermes_worker.tasks.fair_semaphore",
    "hermes_worker.models.wires.openai_chat",
    "hermes_worker.agent.tools.catalog",
    "hermes_worker.agent.fetching",
    "hermes_worker.workspaces.opening",
    "scheduler.agent_jobs",
    # By name, or not before a worker runs, is how Celery, kombu and SQLAlchemy import these.
    "celery.app.amqp",
    "celery.app.control",
    "celery.app.events",
    "celery.backends.base",
    "celery.concurrency.thread",
    "celery.fixups.django",
    "celery.worker.autoscale",
    "celery.worker.components",
    "celery.worker.consumer",
    "celery.worker.consumer.delayed_delivery",
    "celery.worker.strategy",
    "encodings.idna",
    "psycopg",
    "sqlalchemy.dialects.postgresql.psycopg",
    "sqlalchemy.dialects.sqlite.pysqlite",
    "sqlite3",
)


def warm_up() -> None:
    """Import what a worker needs and read the certificates it trusts. Opens no connection and starts no thread.

    Everything that is there by now is kept out of garbage collections: a child's would copy it, page by page, and find
    nothing.
    """
    heap.collect_rarely()
    for name in _MODULES:
        importlib.import_module(name)
    for tool in installed.get_installed().tools.values():
        load_reference(tool.implementation)
    _read_certificates()
    heap.freeze_objects()


def _read_certificates() -> None:
    from hermes_worker.models.connections import shared_ssl_context

    shared_ssl_context()
