"""Work that a process does before it forks workers, so that none of them has to: their start takes a third of the
CPU, and what is imported once is in memory once.
"""

from __future__ import annotations

import importlib

from hermes_worker import installed
from hermes_worker.extension import load_reference
from hermes_worker.observe import import_structlog
from hermes_worker.system import heap

_MODULES = (
    "hermes_worker.worker.main",
    "hermes_worker.tasks.fair_semaphore",
    "hermes_worker.models.wires.openai_chat",
    "hermes_worker.agent.tools.catalog",
    "hermes_worker.agent.fetching",
    "hermes_worker.workspaces.opening",
    "scheduler.agent_jobs",
    # What a process of a worker imports when it is put together.
    "hermes_worker.browser.build",
    "hermes_worker.channels.platform_rows",
    "hermes_worker.features.artifacts.build",
    "hermes_worker.features.checkpoints.build",
    "hermes_worker.features.checkpoints.work",
    "hermes_worker.features.forks.work",
    "hermes_worker.features.mcp_servers.build",
    "hermes_worker.features.memory.build",
    "hermes_worker.features.memory.review_work",
    "hermes_worker.features.memory.work",
    "hermes_worker.features.provider_keys.build",
    "hermes_worker.features.retention.build",
    "hermes_worker.features.retention.work",
    "hermes_worker.features.skills.work",
    "hermes_worker.models.provider_rows",
    "hermes_worker.models.tenant_watch",
    "hermes_worker.models.vendor_extensions",
    "hermes_worker.tasks.agent_messages",
    "hermes_worker.tasks.agent_sessions",
    "hermes_worker.tasks.processes",
    "hermes_worker.tasks.remote_tasks",
    "hermes_worker.tasks.tool_sources",
    "hermes_worker.tasks.workspace_gc",
    "hermes_worker.workspaces.remote.targets",
    # By name, or not before a worker runs, is how Celery, kombu and SQLAlchemy import these.
    "billiard.pool",
    "celery.app.amqp",
    "celery.app.control",
    "celery.app.events",
    "celery.app.log",
    "celery.backends.base",
    "celery.concurrency.thread",
    "celery.fixups.django",
    "celery.worker.autoscale",
    "celery.worker.components",
    "celery.worker.consumer",
    "celery.worker.consumer.delayed_delivery",
    "celery.events",
    "celery.worker.strategy",
    "encodings.idna",
    "sqlalchemy.dialects.sqlite.pysqlite",
    "sqlite3",
)


def warm_up() -> None:
    """Import what a worker needs beside the driver of its database, and read the certificates it trusts. Opens no
    connection and starts no thread.

    Everything that is there by now is kept out of garbage collections: a child's would copy it, page by page, and find
    nothing.
    """
    heap.collect_rarely()
    import_structlog()
    for name in _MODULES:
        importlib.import_module(name)
    for tool in installed.get_installed().tools.values():
        load_reference(tool.implementation)
    _read_certificates()
    heap.freeze_objects()


def _read_certificates() -> None:
    from hermes_worker.models.connections import get_shared_ssl_context

    get_shared_ssl_context()
