"""After the faults: does the database agree with itself, and with what really happened?"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from hermes_worker.core.replay import Replay
from hermes_worker.core.run import ExitReason
from hermes_worker.core.run_events import TERMINAL_EVENTS, RunEventName
from hermes_worker.lab.audit_counts import Usage, check_counts
from hermes_worker.lab.audit_outside import OutsideFacts, check_outside
from hermes_worker.lab.findings import AuditFinding, BrokenInvariant
from hermes_worker.lab.sink import SinkEffect, read_sink
from hermes_worker.store.engine.database import Database
from hermes_worker.store.engine.sealing import coalesce_texts
from hermes_worker.store.tables import blobs, events, messages, runs, sessions, tool_calls, waits


def check_invariants(
    database: Database,
    sink: Path,
    *,
    submitted: Sequence[str],
    expected: Mapping[str, int],
    model_requests: int,
    poisons: Collection[str] = (),
    usage: Usage | None = None,
    prices_usd: tuple[int, int] = (0, 0),
    outside: OutsideFacts | None = None,
) -> list[AuditFinding]:
    """Check every invariant. ``submitted`` are the run ids that were accepted; ``expected`` maps a run id to the model
    calls it takes when nothing goes wrong, so that one charged twice is seen. ``model_requests`` is how often the model
    was asked, as its server counted; 0 when the server was not ours. ``poisons`` are the runs that kill every worker
    that works on them. ``usage`` is the provider's own count of tokens, at ``prices_usd`` a million, and ``outside``
    what the world outside saw; ``None`` where nobody counted.
    """
    effects = read_sink(sink)
    with database.read() as connection:
        return [
            _find_runs_lost(connection, submitted),
            _find_runs_failed(connection),
            *_check_verdicts(connection, poisons),
            _find_open_calls(connection),
            _check_results_per_call(connection),
            _find_once_repeated(effects),
            _find_once_pretended(connection, effects),
            _find_keyed_with_new_key(effects),
            _find_charged_twice(connection, expected),
            _find_events_with_gaps(connection),
            _find_transcripts_with_gaps(connection),
            _find_sessions_held(connection),
            _find_runs_mixed(connection),
            _find_orphans(connection),
            _find_children_not_awaited(connection),
            *check_counts(connection, usage or {}, prices_usd),
            _find_questions_open(connection),
            _find_unbooked_requests(connection, model_requests),
            *(check_outside(connection, outside) if outside is not None else ()),
        ]


def list_unfinished(connection: Connection) -> list[str]:
    """List the runs that have not ended and are not lost: something of them is claimed, due or awaited, so they are
    slow."""
    return [run_id for run_id, is_at_rest in _read_open_runs(connection).items() if not is_at_rest]


def _read_open_runs(connection: Connection) -> dict[str, bool]:
    """The runs that have not ended; ``True`` for one that nothing will ever move on: no claim, no message due, nothing
    that it waits for."""
    parts = runs.alias("parts")
    moves = sa.or_(
        runs.c.lease_token.is_not(None),
        runs.c.hinted_at.is_not(None),
        runs.c.resume_at.is_not(None),
        runs.c.not_before.is_not(None),
        runs.c.halt.is_not(None),
        sa.exists().where(
            tool_calls.c.run_pk == runs.c.pk,
            sa.or_(tool_calls.c.hinted_at.is_not(None), tool_calls.c.lease_token.is_not(None)),
        ),
        sa.exists().where(waits.c.run_pk == runs.c.pk, waits.c.closed_at.is_(None)),
        sa.exists().where(parts.c.parent_pk == runs.c.pk, parts.c.exit_reason.is_(None)),
        # A child waits for a place among its siblings.
        sa.exists().where(
            parts.c.parent_pk == runs.c.parent_pk,
            parts.c.exit_reason.is_(None),
            sa.or_(parts.c.status != "queued", parts.c.hinted_at.is_not(None)),
        ),
        # A run of its session is active that has not ended.
        sa.exists().where(
            sessions.c.pk == runs.c.session_pk,
            sessions.c.active_run_pk == parts.c.pk,
            parts.c.pk != runs.c.pk,
            parts.c.exit_reason.is_(None),
        ),
    )
    rows = connection.execute(sa.select(runs.c.run_id, moves.label("moves")).where(runs.c.exit_reason.is_(None)))
    return {row.run_id: not row.moves for row in rows}


def is_at_rest(connection: Connection) -> bool:
    """Whether no open run will ever be moved on by anything that stands in the rows."""
    return all(_read_open_runs(connection).values())


def _find_runs_lost(connection: Connection, submitted: Sequence[str]) -> AuditFinding:
    """A run is lost when it is not there, or has not ended and nothing will move it on. One that is only slow is not:
    see ``list_unfinished``."""
    lost = BrokenInvariant()
    known = set(connection.execute(sa.select(runs.c.run_id)).scalars())
    for run_id in submitted:
        if run_id not in known:
            lost.add(f"{run_id} is not in the database")
    for run_id, rests in _read_open_runs(connection).items():
        if rests:
            lost.add(f"{run_id} has not ended, and nothing will move it on")
    return lost.make_finding("runs lost")


def _find_runs_failed(connection: Connection) -> AuditFinding:
    rows = connection.execute(
        sa.select(runs.c.run_id, runs.c.exit_reason, runs.c.failure_message).where(runs.c.status == "failed")
    )
    failed = BrokenInvariant()
    for row in rows:
        if row.exit_reason != "step_quarantined":  # the verdicts are looked at below
            failed.add(f"{row.run_id}: {row.exit_reason}: {row.failure_message}")
    return failed.make_finding("runs failed for no stated reason")


def _check_verdicts(connection: Connection, poisons: Collection[str]) -> list[AuditFinding]:
    """Poisonous runs are found out, and no other run is taken for one."""
    condemned, spared = BrokenInvariant(), BrokenInvariant()
    for row in connection.execute(sa.select(runs.c.run_id, runs.c.status, runs.c.exit_reason)):
        is_condemned = row.exit_reason == "step_quarantined"
        if is_condemned and row.run_id not in poisons:
            condemned.add(f"{row.run_id} was quarantined and harmed nobody")
        if not is_condemned and row.run_id in poisons:
            spared.add(f"{row.run_id} is {row.status} ({row.exit_reason}) and kills its workers")
    return [condemned.make_finding("innocents quarantined"), spared.make_finding("poisons not quarantined")]


def _find_open_calls(connection: Connection) -> AuditFinding:
    held = BrokenInvariant()
    rows = connection.execute(
        sa.select(tool_calls.c.run_pk, tool_calls.c.iteration, tool_calls.c.position, tool_calls.c.status)
        .join(runs, runs.c.pk == tool_calls.c.run_pk)
        .where(runs.c.exit_reason.is_not(None), tool_calls.c.status.in_(["pending", "running"]))
    )
    for row in rows:
        held.add(f"call {row.iteration}.{row.position} of run {row.run_pk} is {row.status} after the run's end")
    return held.make_finding("calls left open by an ended run")


def _check_results_per_call(connection: Connection) -> AuditFinding:
    """Every call of the model is answered once, right behind its reply and in the order of the calls."""
    broken = BrokenInvariant()
    for session_pk, rows in _read_transcripts(connection).items():
        awaited: list[str] = []
        for seq, body in rows:
            if body["role"] == "tool":
                if not awaited or awaited.pop(0) != body["tool_call_id"]:
                    broken.add(f"session {session_pk}, row {seq}: an answer that was not awaited here")
                continue
            if awaited:
                broken.add(f"session {session_pk}, row {seq}: {len(awaited)} calls before it have no answer")
            awaited = [call["id"] for call in body.get("tool_calls") or []]
        if awaited:
            broken.add(f"session {session_pk}: {len(awaited)} calls at the end have no answer")
    return broken.make_finding("calls settled twice or not at all")


def _find_once_repeated(effects: Sequence[SinkEffect]) -> AuditFinding:
    counts = Counter(effect.mark for effect in effects if effect.replay is Replay.ONCE)
    repeated = BrokenInvariant()
    for mark, count in counts.items():
        if count > 1:
            repeated.add(f"{mark} happened {count} times")
    return repeated.make_finding("'once' effects repeated")


def _find_once_pretended(connection: Connection, effects: Sequence[SinkEffect]) -> AuditFinding:
    """A ``once`` call that is said to have succeeded did happen."""
    happened = {effect.key for effect in effects}
    pretended = BrokenInvariant()
    rows = connection.execute(
        sa.select(runs.c.run_id, tool_calls.c.iteration, tool_calls.c.position)
        .join(tool_calls, tool_calls.c.run_pk == runs.c.pk)
        .where(tool_calls.c.status == "succeeded", tool_calls.c.name.like("sink_%"))
    )
    for row in rows:
        key = f"{row.run_id}.{row.iteration}.{row.position}"
        if key not in happened:
            pretended.add(f"{key} succeeded without an effect")
    return pretended.make_finding("successes without an effect")


def _find_keyed_with_new_key(effects: Sequence[SinkEffect]) -> AuditFinding:
    keys: dict[str, set[str]] = defaultdict(set)
    for effect in effects:
        if effect.replay is Replay.KEYED:
            keys[effect.mark].add(effect.key)
    broken = BrokenInvariant()
    for mark, used in keys.items():
        if len(used) > 1:
            broken.add(f"{mark} was written under {len(used)} keys")
    return broken.make_finding("'keyed' effects with a new key")


def _find_charged_twice(connection: Connection, expected: Mapping[str, int]) -> AuditFinding:
    """The charged tokens and iterations equal those of the replies in the transcript, each counted once."""
    broken = BrokenInvariant()
    replies = Counter(
        row.run_pk
        for row in connection.execute(
            sa.select(messages.c.run_pk).where(messages.c.role == "assistant", messages.c.run_pk != 0)
        )
    )
    columns = (runs.c.pk, runs.c.run_id, runs.c.iteration, runs.c.status, runs.c.exit_reason)
    for row in connection.execute(sa.select(*columns)):
        if row.status != "completed":
            continue
        # The summary that ends a run without a model call left is a reply that is not counted.
        counted = replies[row.pk] - int(row.exit_reason in ("max_iterations_reached", "budget_exhausted"))
        if row.iteration != counted or row.iteration != expected.get(row.run_id, row.iteration):
            wanted = expected.get(row.run_id)
            broken.add(f"{row.run_id}: {row.iteration} iterations, {replies[row.pk]} replies, {wanted} expected")
    return broken.make_finding("iterations charged twice")


def _find_events_with_gaps(connection: Connection) -> AuditFinding:
    """Numbers without gaps, exactly one end, and nothing after it."""
    broken = BrokenInvariant()
    streams: dict[int, list[tuple[int, str]]] = defaultdict(list)
    for row in connection.execute(sa.select(events.c.run_pk, events.c.seq, events.c.event).order_by(events.c.seq)):
        streams[row.run_pk].append((row.seq, row.event))
    for run in connection.execute(sa.select(runs.c.pk, runs.c.run_id, runs.c.event_seq, runs.c.exit_reason)):
        stream = streams[run.pk]
        if [seq for seq, _ in stream] != list(range(1, run.event_seq + 1)):
            broken.add(f"{run.run_id}: the stream has {len(stream)} of {run.event_seq} events")
        ends = [position for position, (_, name) in enumerate(stream, start=1) if name in TERMINAL_EVENTS]
        if run.exit_reason is not None and ends != [len(stream)]:
            broken.add(f"{run.run_id}: the stream ends at {ends} of {len(stream)}")
    return broken.make_finding("events missing or out of order")


def _find_transcripts_with_gaps(connection: Connection) -> AuditFinding:
    broken = BrokenInvariant()
    for session_pk, rows in _read_transcripts(connection).items():
        if [seq for seq, _ in rows] != list(range(1, len(rows) + 1)):
            broken.add(f"session {session_pk} has {len(rows)} rows up to number {rows[-1][0]}")
    return broken.make_finding("transcripts with gaps")


def _find_sessions_held(connection: Connection) -> AuditFinding:
    broken = BrokenInvariant()
    rows = connection.execute(
        sa.select(sessions.c.session_id)
        .join(runs, runs.c.pk == sessions.c.active_run_pk)
        .where(runs.c.exit_reason.is_not(None))
    )
    for row in rows:
        broken.add(f"session {row.session_id} is held by a run that has ended")
    return broken.make_finding("sessions held by ended runs")


def _find_runs_mixed(connection: Connection) -> AuditFinding:
    """The runs of a session follow each other: no run replies between two replies of another."""
    broken = BrokenInvariant()
    turns: dict[int, list[int]] = defaultdict(list)
    replies = sa.select(messages.c.session_pk, messages.c.run_pk).where(messages.c.role == "assistant")
    for row in connection.execute(
        replies.where(messages.c.run_pk != 0).order_by(messages.c.session_pk, messages.c.seq)
    ):
        if turns[row.session_pk][-1:] != [row.run_pk]:
            turns[row.session_pk].append(row.run_pk)
    for session_pk, order in turns.items():
        if len(order) > len(set(order)):
            broken.add(f"session {session_pk}: the replies of its runs come in the order {order}")
    return broken.make_finding("runs of one session at work at once")


def _find_children_not_awaited(connection: Connection) -> AuditFinding:
    """A call that delegated has its result when all of its children have ended, and not before."""
    broken = BrokenInvariant()
    joined = sa.and_(
        tool_calls.c.run_pk == runs.c.parent_pk,
        tool_calls.c.iteration == runs.c.parent_iteration,
        tool_calls.c.position == runs.c.parent_position,
        tool_calls.c.status.in_(["succeeded", "failed"]),
    )
    is_late = sa.or_(runs.c.finished_at.is_(None), runs.c.finished_at > tool_calls.c.settled_at)
    late = sa.select(runs.c.run_id).join(tool_calls, joined).where(is_late, runs.c.is_background == 0)
    for row in connection.execute(late):
        broken.add(f"{row.run_id} ended after the call that began it had its result")
    return broken.make_finding("children that their parent did not wait for")


def _find_orphans(connection: Connection) -> AuditFinding:
    """A run is over for all below it: no run works on for a parent that has ended."""
    broken = BrokenInvariant()
    parents = runs.alias("parents")
    rows = connection.execute(
        sa.select(runs.c.run_id, runs.c.status)
        .join(parents, parents.c.pk == runs.c.parent_pk)
        .where(runs.c.exit_reason.is_(None), parents.c.exit_reason.is_not(None), runs.c.is_background == 0)
    )
    for row in rows:
        broken.add(f"{row.run_id} is {row.status} and its parent has ended")
    return broken.make_finding("children that outlive their parent")


def _find_questions_open(connection: Connection) -> AuditFinding:
    broken = BrokenInvariant()
    rows = connection.execute(
        sa.select(runs.c.run_id)
        .join(waits, waits.c.run_pk == runs.c.pk)
        .where(waits.c.closed_at.is_(None), runs.c.exit_reason.is_not(None))
    )
    for row in rows:
        broken.add(f"{row.run_id} has ended and still asks somebody")
    return broken.make_finding("questions of ended runs")


def _find_unbooked_requests(connection: Connection, model_requests: int) -> AuditFinding:
    """Every request that the model's server got stands in a total: as a reply, as refused, or as of unknown outcome."""
    broken = BrokenInvariant()
    totals = sum_model_requests(connection)
    if model_requests > totals.total_requests:
        broken.add(
            f"the model was asked {model_requests} times, and {totals.total_requests} requests are booked: {totals}"
        )
    if model_requests and totals.replies > model_requests:
        broken.add(f"{totals.replies} replies are booked, and the model was asked {model_requests} times")
    return broken.make_finding("model requests that stand in no total")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelTotals:
    """Requests to models, by the rows."""

    replies: int
    """Written as an answer, or discarded and asked for again."""
    ending: int
    """Upper bound of requests that were the last of a stopped run: paid for, and told by no event."""
    refused: int
    unknown: int
    held: int
    """Claims on model calls at this moment."""

    @property
    def total_requests(self) -> int:
        return self.replies + self.ending + self.refused + self.unknown + self.held


def sum_model_requests(connection: Connection) -> ModelTotals:
    """Sum up the requests of all runs of the database."""
    replied = [RunEventName.MESSAGE_COMPLETED.value, RunEventName.REPLY_DISCARDED.value, RunEventName.COMPACTED.value]
    replies = sa.select(sa.func.count()).select_from(events).where(events.c.event.in_(replied))
    row = connection.execute(
        sa.select(
            sa.func.count().filter(runs.c.exit_reason.in_(_PAID_AND_NOT_TOLD)).label("ending"),
            sa.func.coalesce(sa.func.sum(runs.c.refused_attempts), 0).label("refused"),
            sa.func.coalesce(sa.func.sum(runs.c.unknown_attempts), 0).label("unknown"),
            sa.func.count(runs.c.lease_token).label("held"),
        )
    ).one()
    return ModelTotals(
        replies=int(connection.execute(replies).scalar_one()),
        ending=int(row.ending),
        refused=int(row.refused),
        unknown=int(row.unknown),
        held=int(row.held),
    )


_PAID_AND_NOT_TOLD = [
    ExitReason.INTERRUPTED_DURING_API_CALL.value,
    ExitReason.EMPTY_RESPONSE_EXHAUSTED.value,
    ExitReason.CONTENT_POLICY_BLOCKED.value,
    ExitReason.MODEL_CALL_REFUSED.value,
    ExitReason.TRUNCATED.value,
    ExitReason.UNKNOWN_TOOLS.value,
    ExitReason.OUTPUT_INVALID.value,
]


def _read_transcripts(connection: Connection) -> dict[int, list[tuple[int, dict[str, Any]]]]:
    found: dict[int, list[tuple[int, dict[str, Any]]]] = defaultdict(list)
    rows = connection.execute(
        sa.select(messages.c.session_pk, messages.c.seq, coalesce_texts(messages.c.body, blobs.c.body).label("body"))
        .select_from(messages.outerjoin(blobs, blobs.c.hash == messages.c.blob_hash))
        .order_by(messages.c.session_pk, messages.c.seq)
    )
    for row in rows:
        found[row.session_pk].append((row.seq, json.loads(row.body)))
    return found
