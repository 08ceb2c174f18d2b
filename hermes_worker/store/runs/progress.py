"""The progress of a run, for people who look at it from a chat."""

from __future__ import annotations

import sqlalchemy as sa

from hermes_worker.core.chat_signs import CallSign, RunProgress
from hermes_worker.core.run import CallStatus, RunStatus
from hermes_worker.store.engine.database import Database
from hermes_worker.store.tables import runs, tool_calls

_CALLS_MAX = 200


def load_progress(database: Database, run_id: str) -> RunProgress:
    """Load the status of a run and its newest calls, in one statement."""
    wanted = (
        sa.select(runs.c.status, tool_calls.c.name, tool_calls.c.status)
        .outerjoin(tool_calls, tool_calls.c.run_pk == runs.c.pk)
        .where(runs.c.run_id == run_id)
        .order_by(tool_calls.c.iteration.desc(), tool_calls.c.position.desc())
        .limit(_CALLS_MAX)
    )
    found = database.select(wanted).all()
    if not found:
        return RunProgress()
    calls = [CallSign(name, CallStatus(status)) for _, name, status in reversed(found) if name is not None]
    return RunProgress(RunStatus(found[0][0]), calls)
