"""Somebody who answers the runs that a request waits for, as a worker would."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import sqlalchemy as sa
from support.patience import PATIENCE_S
from support.store import ANSWER, Store

from hermes_worker.core.messages import ModelReply
from hermes_worker.core.run import RunStatus
from hermes_worker.store.tables import runs


def new_runs(store: Store, above: int) -> list[tuple[int, str]]:
    """Numbers and ids of runs that nobody has begun, above a number."""
    wanted = sa.select(runs.c.pk, runs.c.run_id).where(
        runs.c.pk > above, runs.c.status == RunStatus.QUEUED.value, runs.c.hinted_at.is_not(None)
    )
    with store.database.read() as connection:
        return [(int(pk), str(run_id)) for pk, run_id in connection.execute(wanted.order_by(runs.c.pk))]


def newest(store: Store) -> int:
    with store.database.read() as connection:
        return int(connection.execute(sa.select(sa.func.max(runs.c.pk))).scalar() or 0)


@contextmanager
def answering(store: Store, *replies: ModelReply | Callable[[str], None]) -> Iterator[list[str]]:
    """Each run that begins within the block gets the next reply, the last one of them again and again; what is no reply
    is called with the run's id. Yields the ids in order."""
    taken: list[str] = []
    enough = threading.Event()
    above = newest(store)
    thread = threading.Thread(target=_answer, args=(store, replies or (ANSWER,), above, taken, enough), daemon=True)
    thread.start()
    try:
        yield taken
    finally:
        enough.set()
        thread.join(PATIENCE_S)


def _answer(
    store: Store,
    replies: Sequence[ModelReply | Callable[[str], None]],
    above: int,
    taken: list[str],
    enough: threading.Event,
) -> None:
    while not enough.wait(0.01):
        for pk, run_id in new_runs(store, above):
            above = max(above, pk)
            reply = replies[min(len(taken), len(replies) - 1)]
            taken.append(run_id)
            if isinstance(reply, ModelReply):
                store.answer(run_id, reply)
            else:
                reply(run_id)
