"""Whether this process answers, and whether the installation works."""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any

import redis
from fastapi import APIRouter, Response

from hermes_worker.api import schema
from hermes_worker.api.auth import FOR_OPERATORS
from hermes_worker.api.context import ApiContext, Context
from hermes_worker.broker.queue import STANDING_QUEUES, explain_outage, log_broker_failure, require_writable
from hermes_worker.core.errors import UnavailableError
from hermes_worker.observe import broker_outage
from hermes_worker.schemas.capabilities import Health
from hermes_worker.services.submission import InvalidSubmission, resolve_model
from hermes_worker.settings import Settings
from hermes_worker.store import whole_database
from hermes_worker.store.revisions import find_newest, load_revision
from hermes_worker.wiring import Client

router = APIRouter(tags=["health"])

_PATIENCE_S = 5.0
"""Seconds that one check may take."""
_READY_AGE_S = 2.0
"""Seconds for which an answer about readiness is kept: so often at most a caller without a key causes a check."""
_FREE_BYTES_MIN = 1_000_000
"""Free bytes below which a database counts as full: a step writes some kilobytes, and several are written at once."""
_DISK_PERCENT_MAX = 90
"""Percent of a disk from which on it counts as nearly full."""


class Readiness(StrEnum):
    OK = "ok"
    DEGRADED = "degraded"
    """Something needs attention; runs are still accepted."""
    UNAVAILABLE = "unavailable"
    """Runs cannot be accepted."""


@dataclass(frozen=True, slots=True)
class Check:
    verdict: Readiness
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def document(self) -> dict[str, Any]:
        return {"status": self.verdict.value, **self.facts}


@router.get("/health", response_model=Health)
@router.get("/v1/health", response_model=Health)
async def health() -> Health:
    """Whether this process answers. Needs no key, and asks no other server."""
    return Health(version=schema.VERSION)


@router.get(
    "/health/ready",
    response_model=schema.Ready,
    response_model_exclude_none=True,
    responses={503: {"model": schema.Ready}},
)
async def health_ready(context: Context, response: Response) -> schema.Ready:
    """Whether requests should be sent to this process: not once it was told to stop, although it still takes them for
    `server.drain_s`, and not while the database is away, full or read-only, because then nothing can be accepted.
    `reasons` names what is wrong; a broker that takes no messages is named and does not matter here: runs are accepted
    and wait for it. Needs no key, and looks at most every two seconds however often it is asked."""
    if context.leaving.is_set():
        response.status_code = 503
        return schema.Ready(status="leaving")
    database, broker = await context.troubles.get("ready", partial(_find_troubles, context), max_age_s=_READY_AGE_S)
    if database is not None:
        response.status_code = 503
    reasons = [reason for reason in (database, broker) if reason is not None]
    return schema.Ready(status="ready" if database is None else "unavailable", reasons=reasons or None)


async def _find_troubles(context: ApiContext) -> tuple[str | None, str | None]:
    """Find what is wrong with the database and with the broker, each as a sentence; ``None`` for nothing."""
    return await asyncio.gather(
        _await_trouble(context.probe(_find_database_trouble, context.client), "the database"),
        _await_trouble(context.probe(_find_broker_trouble, context.client), "the broker"),
    )


async def _await_trouble(look: Awaitable[str | None], server: str) -> str | None:
    try:
        async with asyncio.timeout(_PATIENCE_S):
            return await look
    except TimeoutError:
        return f"{server} did not answer within {_PATIENCE_S:g} s"


def _find_database_trouble(client: Client) -> str | None:
    file = client.database.url.database if client.database.is_sqlite else None
    if file and shutil.disk_usage(Path(file).parent).free < _FREE_BYTES_MIN:
        # The log of writes is overwritten in place, so one small row may still find room.
        return "the database cannot write; make room on its disk"
    try:
        whole_database.require_writable(client.database)
    except UnavailableError as error:
        # Not the server's own words behind it: they may name hosts and files, and anybody may ask here.
        return str(error).partition(": ")[0]
    return None


def _find_broker_trouble(client: Client) -> str | None:
    try:
        require_writable(client.redis)
    except (redis.RedisError, OSError) as error:
        log_broker_failure("look whether it takes messages", error)
        return explain_outage(error)
    broker_outage.note_success()
    return None


@router.get(
    "/health/detailed",
    response_model=None,
    responses={200: {"model": schema.HealthInFull}, 503: {"model": schema.HealthInFull}},
    dependencies=[FOR_OPERATORS],
)
async def health_detailed(context: Context, response: Response) -> dict[str, Any]:
    """Whether runs can be accepted and worked on, check by check. Status 503 when they cannot be accepted."""
    checks = await _run_all_checks(context)
    verdict = _find_worst([check.verdict for check in checks.values()])
    if verdict is Readiness.UNAVAILABLE:
        response.status_code = 503
    documents = {name: check.document for name, check in checks.items()}
    return {
        "status": verdict.value,
        "readiness": {"status": verdict.value, "checks": documents},
        "platform": "hermes-agent",
        "version": schema.VERSION,
        "pid": os.getpid(),
        "updated_at": time.time(),
        "active_agents": documents["runs"].get("by_status", {}).get("running", 0),
        "readers": context.followers.count,
    }


async def _run_all_checks(context: ApiContext) -> dict[str, Check]:
    client = context.client
    names = ("state_db", "broker", "workers", "runs", "disk", "config")
    found = await asyncio.gather(
        _wait_for_check(context.probe(_check_state_db, client), Readiness.UNAVAILABLE),
        _wait_for_check(context.probe(_check_broker, client), Readiness.DEGRADED),
        _wait_for_check(context.probe(_check_workers, client), Readiness.DEGRADED),
        _wait_for_check(context.probe(_count_runs, client), Readiness.DEGRADED),
        _wait_for_check(context.probe(_check_disk, client.settings), Readiness.DEGRADED),
        _wait_for_check(context.probe(_check_config, client.settings), Readiness.DEGRADED),
    )
    return dict(zip(names, found, strict=True))


def _find_worst(verdicts: Sequence[Readiness]) -> Readiness:
    return max(verdicts, key=list(Readiness).index)


async def _wait_for_check(check: Awaitable[Check], otherwise: Readiness) -> Check:
    """Wait for a check; ``otherwise`` is its verdict when its server does not answer in time."""
    try:
        async with asyncio.timeout(_PATIENCE_S):
            return await check
    except TimeoutError:
        return Check(otherwise, {"error": f"no answer within {_PATIENCE_S:g} s"})
    except UnavailableError:
        # The reason is in the log: it may name hosts and files, and a status page is shown around.
        return Check(otherwise, {"error": "the database does not answer"})


def _check_state_db(client: Client) -> Check:
    began = time.monotonic()
    found = load_revision(client.database)
    facts = {
        "backend": "sqlite" if client.database.is_sqlite else "postgresql",
        "schema_revision": found,
        "latency_ms": round((time.monotonic() - began) * 1000, 1),
    }
    if found == find_newest():
        return Check(Readiness.OK, facts)
    return Check(Readiness.UNAVAILABLE, {**facts, "error": f"this version needs schema revision {find_newest()}"})


def _check_broker(client: Client) -> Check:
    depths = client.publisher.count_waiting()
    if depths is None:
        return Check(Readiness.DEGRADED, {"error": "no answer; runs are accepted and start when it is back"})
    return Check(Readiness.OK, {"queue_depths": dict(depths)})


def _check_workers(client: Client) -> Check:
    alive = client.workers.list_alive()
    shown = [{name: worker[name] for name in ("name", "queues", "started_at")} for worker in alive]
    served = {queue for worker in alive for queue in str(worker["queues"]).split(",")}
    unserved = [name.value for name in STANDING_QUEUES if name.value not in served]
    facts: dict[str, Any] = {"alive": len(alive), "processes": shown}
    if unserved:
        return Check(Readiness.DEGRADED, {**facts, "error": f"no live worker serves {', '.join(unserved)}"})
    return Check(Readiness.OK, facts)


def _count_runs(client: Client) -> Check:
    return Check(Readiness.OK, {"by_status": client.views.count_open()})


def _check_disk(settings: Settings) -> Check:
    try:
        usage = shutil.disk_usage(settings.home)
    except OSError as error:
        return Check(Readiness.DEGRADED, {"error": f"the home directory cannot be looked at: {error.strerror}"})
    # As ``df`` counts: what only root may use is not free.
    percent = 100 * (usage.total - usage.free) / usage.total if usage.total else 0.0
    facts = {"used_percent": round(percent, 1), "free_bytes": usage.free}
    if percent >= _DISK_PERCENT_MAX:
        return Check(Readiness.DEGRADED, {**facts, "error": "the disk of the home directory is nearly full"})
    return Check(Readiness.OK, facts)


def _check_config(settings: Settings) -> Check:
    try:
        model, provider = resolve_model(settings.model, None)
    except InvalidSubmission as error:
        return Check(Readiness.DEGRADED, {"error": str(error)})
    return Check(Readiness.OK, {"model": model, "provider": provider, "notes": list(settings.notes)})
