"""Calls that the clients of runs execute (``core.client_tools``): where they stand, and the results that clients
bring."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from hermes_worker.core.client_tools import IS_CLIENTS, ClientCall, HandedReply, Handovers
from hermes_worker.core.messages import Role
from hermes_worker.core.recovery_state import dump_recovery_state, parse_recovery_state
from hermes_worker.core.run import WaitKind
from hermes_worker.core.run_events import RunEventName
from hermes_worker.store.engine.database import RowStore
from hermes_worker.store.engine.prepared import fetch_rows
from hermes_worker.store.rows import CALL_OF_WAIT, Hint, load_messages
from hermes_worker.store.runs.runs import find_run, session_is
from hermes_worker.store.runs.waits import settle_input
from hermes_worker.store.tables import blobs, events, runs, sessions, tool_calls, waits


class _ClientCallRow(NamedTuple):
    pk: int
    iteration: int
    position: int
    request: str
    outcome: str | None
    name: str
    result_seq: int


class _LastResultRow(NamedTuple):
    iteration: int
    last_seq: int


class _InputAnsweredRow(NamedTuple):
    seq: int
    data: str


_ASKED = (
    sa.select(
        waits.c.pk,
        waits.c.iteration,
        waits.c.position,
        waits.c.request,
        waits.c.outcome,
        tool_calls.c.name,
        tool_calls.c.result_seq,
    )
    .join(tool_calls, CALL_OF_WAIT)
    .where(waits.c.run_pk == sa.bindparam("run"), waits.c.kind == WaitKind.INPUT.value)
    .order_by(waits.c.iteration, waits.c.position)
)
_LAST = (
    sa.select(tool_calls.c.iteration, sa.func.max(tool_calls.c.result_seq).label("last_seq"))
    .where(tool_calls.c.run_pk == sa.bindparam("run"))
    .group_by(tool_calls.c.iteration)
)
_ANSWERED = (
    sa.select(events.c.seq, events.c.data)
    .where(events.c.run_pk == sa.bindparam("run"), events.c.event == RunEventName.INPUT_ANSWERED.value)
    .order_by(events.c.seq.desc())
)


class ClientCalls(RowStore):
    """The client calls in one database. Thread-safe."""

    def load_handovers(self, run_id: str) -> Handovers:
        """Load the calls that the client of a run is to execute. Raises ``RunNotFound``."""
        with self.database.read() as connection:
            return load_handovers(connection, find_run(connection, run_id))

    def load_results(self, run_id: str, calls: Iterable[ClientCall]) -> dict[int, str]:
        """Load the results that clients brought for calls, by the numbers of their waits. Raises ``RunNotFound``."""
        with self.database.read() as connection:
            session_pk = _find_session(connection, find_run(connection, run_id))
            found = {}
            for call in calls:
                for row in load_messages(connection, session_pk, call.seq, call.seq):
                    if row.role is Role.TOOL:
                        found[call.wait_id] = str(json.loads(row.body).get("content") or "")
        return found

    def settle_calls(
        self, run_id: str, results: Mapping[int, str], *, by: str, forced_tools: Sequence[str] = ()
    ) -> list[Hint]:
        """Settle calls with what their client brought, by the numbers of their waits: all of them, or none.
        ``forced_tools``: see ``RunRequest``, for the part of the run that begins. Raises ``RunNotFound``,
        ``NotWaiting``, and ``NothingAsked`` when one of them is settled already."""
        with self.database.write() as connection:
            pk = find_run(connection, run_id)
            hints: list[Hint] = []
            for wait_id in sorted(results):
                hints += settle_input(connection, pk, results[wait_id], by=by, wait_id=wait_id)
            if forced_tools:
                _force_tools(connection, pk, forced_tools)
            return hints

    def load_session_tools(self, tenant: str, source: str, reference: str) -> str | None:
        """Load the tool definitions of a session by the name its caller uses; ``None`` where there is no such
        session."""
        wanted = (
            sa.select(blobs.c.body)
            .join(sessions, sessions.c.tools_hash == blobs.c.hash)
            .where(session_is(tenant, source, reference))
        )
        found = self.database.select(wanted).scalar()
        return None if found is None else str(found)

    def load_run_tools(self, run_id: str) -> str:
        """Load the tool definitions of the session of a run. Raises ``RunNotFound``."""
        wanted = sa.select(blobs.c.body).join(sessions, sessions.c.tools_hash == blobs.c.hash)
        with self.database.read() as connection:
            session_pk = _find_session(connection, find_run(connection, run_id))
            return str(connection.execute(wanted.where(sessions.c.pk == session_pk)).scalar_one())


def _force_tools(connection: Connection, run_pk: int, names: Sequence[str]) -> None:
    """Have the next reply of a locked run call one of these tools."""
    stored = connection.execute(sa.select(runs.c.memory).where(runs.c.pk == run_pk)).scalar()
    memory = dump_recovery_state(replace(parse_recovery_state(stored), forced_tools=tuple(names)))
    connection.execute(sa.update(runs).where(runs.c.pk == run_pk).values(memory=memory))


def _find_session(connection: Connection, run_pk: int) -> int:
    return int(connection.execute(sa.select(runs.c.session_pk).where(runs.c.pk == run_pk)).scalar_one())


def load_handovers(connection: Connection, run_pk: int) -> Handovers:
    """Load the calls that a client is to execute, for the run with row id ``run_pk``."""
    asked = [
        row
        for row in fetch_rows(connection.execute(_ASKED, {"run": run_pk}), _ClientCallRow)
        if json.loads(row.request).get(IS_CLIENTS)
    ]
    if not asked:
        return Handovers()
    calls = [
        ClientCall(
            wait_id=row.pk,
            iteration=row.iteration,
            position=row.position,
            tool=row.name,
            seq=row.result_seq,
            outcome=row.outcome,
        )
        for row in asked
    ]
    open_ones = {call.iteration for call in calls if call.outcome is None}
    done = sorted({call.iteration for call in calls if call.outcome == "answered"} - open_ones)
    if not done:
        return Handovers(calls=calls)
    last = {
        row.iteration: row.last_seq for row in fetch_rows(connection.execute(_LAST, {"run": run_pk}), _LastResultRow)
    }
    first: dict[int, int] = {}
    for row in fetch_rows(connection.execute(_ANSWERED, {"run": run_pk}), _InputAnsweredRow):
        first[json.loads(row.data)["iteration"]] = row.seq
    handed = [HandedReply(iteration=number, last_seq=last[number], event_seq=first[number] - 1) for number in done]
    return Handovers(calls=calls, done=handed)
