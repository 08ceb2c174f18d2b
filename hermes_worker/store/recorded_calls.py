"""Load the recorded calls of runs with their arguments and results, for forks and rewinds."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from hermes_worker.core.deferred_tools import find_written_arguments
from hermes_worker.core.replay import Replay
from hermes_worker.core.rewind import RecordedCall
from hermes_worker.core.run import CallStatus, WaitKind
from hermes_worker.store.engine.prepared import fetch_rows, select_columns
from hermes_worker.store.engine.sealing import coalesce_texts
from hermes_worker.store.tables import blobs, messages, runs, tool_calls, waits


class MadeCallRow(NamedTuple):
    """A call as its rows have it, without the texts of its transcript."""

    run_pk: int
    run_id: str
    session_pk: int
    iteration: int
    position: int
    name: str
    replay: str
    status: str
    result_seq: int
    settled_at: float | None
    unbegun_token: str | None
    approved_arguments: str | None
    rewritten_arguments: str | None
    inner_calls: str | None


class _PlacedBody(NamedTuple):
    session_pk: int
    seq: int
    body: str


class _PermissionRow(NamedTuple):
    run_pk: int
    iteration: int
    position: int
    outcome: str
    answered_by: str | None
    closed_at: float


MADE_CALLS = sa.select(
    tool_calls.c.run_pk,
    runs.c.run_id,
    runs.c.session_pk,
    tool_calls.c.iteration,
    tool_calls.c.position,
    tool_calls.c.name,
    tool_calls.c.replay,
    tool_calls.c.status,
    tool_calls.c.result_seq,
    tool_calls.c.settled_at,
    tool_calls.c.unbegun_token,
    tool_calls.c.approved_arguments,
    tool_calls.c.rewritten_arguments,
    tool_calls.c.inner_calls,
).join(runs, runs.c.pk == tool_calls.c.run_pk)


def load_recorded_calls(connection: Connection, rows: Sequence[MadeCallRow]) -> list[RecordedCall]:
    """Load for each row of ``MADE_CALLS``, in their order, what the call was made with, what came of it, and who
    allowed it."""
    replies = {(row.session_pk, row.result_seq - row.position - 1) for row in rows}
    texts = load_texts(connection, replies | {(row.session_pk, row.result_seq) for row in rows})
    answers = _load_answers(connection, {row.run_pk for row in rows})
    found = []
    for row in rows:
        answer = answers.get((row.run_pk, row.iteration, row.position))
        is_allowed = answer is not None and row.approved_arguments is not None
        is_refused = row.unbegun_token is not None or (answer is not None and not is_allowed)
        found.append(
            RecordedCall(
                run_id=row.run_id,
                iteration=row.iteration,
                position=row.position,
                tool=row.name,
                replay=Replay(row.replay),
                status=CallStatus(row.status),
                arguments=row.approved_arguments or row.rewritten_arguments or _read_arguments(texts, row),
                result=_read_result(texts, row),
                place=row.result_seq,
                settled_at=row.settled_at,
                allowed_by=answer.answered_by if answer is not None and is_allowed else None,
                allowed_at=answer.closed_at if answer is not None and is_allowed else None,
                has_begun=not is_refused,
            )
        )
    return found


def load_texts(connection: Connection, places: Iterable[tuple[int, int]]) -> Mapping[tuple[int, int], str]:
    """Load rows of transcripts by their session and number. Of rows that a fork shares it finds the original's only."""
    by_session: dict[int, list[int]] = {}
    for session_pk, seq in places:
        by_session.setdefault(session_pk, []).append(seq)
    found: dict[tuple[int, int], str] = {}
    body = coalesce_texts(messages.c.body, blobs.c.body).label("body")
    wanted = sa.select(messages.c.session_pk, messages.c.seq, body).select_from(
        messages.outerjoin(blobs, blobs.c.hash == messages.c.blob_hash)
    )
    for session_pk, seqs in by_session.items():
        for first in range(0, len(seqs), 500):
            part = wanted.where(messages.c.session_pk == session_pk, messages.c.seq.in_(seqs[first : first + 500]))
            rows = fetch_rows(connection.execute(part), _PlacedBody)
            found.update({(row.session_pk, row.seq): row.body for row in rows})
    return found


def _load_answers(connection: Connection, run_pks: Iterable[int]) -> Mapping[tuple[int, int, int], _PermissionRow]:
    """Load the answers to questions of these runs for permission, by the call."""
    closed = sa.select(*select_columns(waits, _PermissionRow)).where(
        waits.c.run_pk.in_(list(run_pks)), waits.c.kind == WaitKind.APPROVAL.value, waits.c.closed_at.is_not(None)
    )
    rows = fetch_rows(connection.execute(closed.order_by(waits.c.pk)), _PermissionRow)
    return {(row.run_pk, row.iteration, row.position): row for row in rows}


def _read_arguments(texts: Mapping[tuple[int, int], str], row: MadeCallRow) -> str:
    reply = texts.get((row.session_pk, row.result_seq - row.position - 1))
    if reply is None:
        return ""
    return find_written_arguments(json.loads(reply)["tool_calls"][row.position]["function"], row.name)


def _read_result(texts: Mapping[tuple[int, int], str], row: MadeCallRow) -> str:
    stored = texts.get((row.session_pk, row.result_seq))
    content = json.loads(stored).get("content", "") if stored is not None else ""
    return content if isinstance(content, str) else json.dumps(content)
