"""The process that replicas of servers, gateways and schedulers are forked from. It has imported what any of them
needs: there is one for all, so that is said in one place."""

from __future__ import annotations

import multiprocessing

from hermes_worker import installed

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(
    [
        "hermes_worker.api.server",
        *sorted({str(each.implementation).partition(":")[0] for each in installed.get_installed().routers.values()}),
        "hermes_worker.gateway.listening",
        "scheduler.beat",
        "celery.beat",
        "psycopg",
    ]
)
