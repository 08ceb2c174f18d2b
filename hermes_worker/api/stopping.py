"""Ask a run to stop, for routes: first in the rows, then by a nudge to the workers at work on it."""

from __future__ import annotations

from hermes_worker.api.context import ApiContext
from hermes_worker.core.errors import UnavailableError
from hermes_worker.observe import count, log
from hermes_worker.store.runs.runs import StopResult
from hermes_worker.stream.live import Live


async def stop(context: ApiContext, run_id: str, *, by: str) -> StopResult:
    """Stop a run and all that it caused. Idempotent. Raises ``RunNotFound``, ``UnavailableError``."""
    client = context.client
    stopped = await context.call_store(client.runs.stop_tree, run_id, by=by)

    def tell() -> None:
        client.publisher.publish_stops(stopped.run_ids, stopped.hints)
        Live(client.redis).nudge(run_id)

    if stopped.was_new or stopped.caused_run_ids:
        count("run.stop_requested")
        log.info("run.stop_requested", run_id=run_id, status=stopped.status.value, runs=len(stopped.run_ids))
    context.spawn(context.tell_broker(tell))
    return stopped


async def stop_abandoned(context: ApiContext, run_id: str, *, by: str) -> None:
    """Stop a run whose answer has no reader left. While the database is away the run stays at work, and the log says
    so."""
    try:
        await stop(context, run_id, by=by)
    except UnavailableError as error:
        log.warning("database.unreachable", doing="stop a run whose client left", run_id=run_id, error=str(error))
