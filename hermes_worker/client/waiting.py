"""Wait for the ends of runs, longer than one request may take. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal

from hermes_worker.client import operations
from hermes_worker.client.exchange import Exchange, Patience, run_exchange

if TYPE_CHECKING:
    from hermes_worker.schemas.runs import JoinedRuns


def run_join(
    run_ids: Sequence[str],
    mode: Literal["all", "any"],
    timeout_s: float | None,
    patience: Patience,
    clock: Callable[[], float],
    place: str,
) -> Exchange[JoinedRuns]:
    """Ask until the runs have ended or the time is over. Raises as ``exchange``."""
    give_up_at = None if timeout_s is None else clock() + timeout_s
    while True:
        left_s = operations.WAIT_S if give_up_at is None else max(0.0, min(operations.WAIT_S, give_up_at - clock()))
        if len(run_ids) == 1:
            request = operations.build_wait(run_ids[0], timeout_s=left_s)
        else:
            request = operations.build_join(run_ids, mode=mode, timeout_s=left_s)
        found = yield from run_exchange(request, patience, clock, place)
        if found["done"] or (give_up_at is not None and clock() >= give_up_at):
            return found


def read_status(found: JoinedRuns) -> str | None:
    """Read how the single awaited run ended; ``None`` when it has not."""
    [end] = found["runs"]
    return end.get("status") if end["ended"] else None
