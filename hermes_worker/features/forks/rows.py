"""The rows of forks: the points at which a run can be forked, the session of a fork, and what the original did."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from hermes_worker.core.errors import HermesError
from hermes_worker.core.forks import FORK_KEY, GRADES_KEY, REPLAY_TAG, ForkTerms
from hermes_worker.core.messages import RESULT_KEY_PREFIX, Message, Role, dump_canonical_json
from hermes_worker.core.questions import APPROVED_KEY
from hermes_worker.core.rewind import RecordedCall
from hermes_worker.core.spec import RunSpec
from hermes_worker.features.forks.rules import CAN_USE_ANY_TOOL, StepCall, choose_point
from hermes_worker.store.access.audit import Act, record_action
from hermes_worker.store.engine.database import Database, db_now
from hermes_worker.store.engine.prepared import fetch_row, fetch_rows
from hermes_worker.store.prefixes import find_prefix
from hermes_worker.store.recorded_calls import MADE_CALLS, MadeCallRow, load_recorded_calls
from hermes_worker.store.rewinds import Rewind, match_calls_after, record_calls_since, record_rewind
from hermes_worker.store.rows import build_insert_ignoring, load_messages, make_storable
from hermes_worker.store.runs.inputs import load_spec
from hermes_worker.store.runs.runs import Created, RunNotFound, require_not_erased, run_missing_error
from hermes_worker.store.sessions import CONVERSATION_KEY
from hermes_worker.store.tables import (
    blobs,
    messages,
    run_inputs,
    run_tags,
    runs,
    session_documents,
    sessions,
    tool_calls,
)


class NotForkable(HermesError):
    """A run cannot be forked, or not there; the message says why, and where it can."""


class OriginalRun(NamedTuple):
    """What a fork takes over of a run."""

    pk: int
    run_id: str
    session_pk: int
    session_id: str
    tenant: str
    iteration: int
    message_seq: int
    output_seq: int | None
    context_at: int | None
    tools_hash: str
    workspace: str
    title: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewFork:
    """The session of a fork that is about to begin."""

    run_id: str
    """The id of the fork, and of its session."""
    original: OriginalRun
    has_input: bool
    """Whether the original began with a message of its own."""
    terms: ForkTerms
    """``rows`` is chosen when it is written."""
    prompt: str | None
    """The system prompt in place of the original's."""
    title: str


def load_original(connection: Connection, run_id: str) -> tuple[OriginalRun, RunSpec]:
    """Load a run that is to be forked, and its submission. Raises ``RunNotFound``, ``NotForkable``."""
    row = _load_run(connection, run_id)
    try:
        spec = load_spec(connection, row.pk)
    except ValueError:
        raise NotForkable(f"the stored input of run {run_id!r} cannot be read") from None
    if spec.compress is not None:
        raise NotForkable(f"run {run_id!r} only summarised its conversation; fork a run of the conversation")
    return row, spec


def _load_run(connection: Connection, run_id: str) -> OriginalRun:
    of_session = (sessions.c.session_id, sessions.c.context_at, sessions.c.tools_hash, sessions.c.workspace)
    columns = {column.name: column for column in (*runs.c, *of_session, run_inputs.c.title)}
    wanted = sa.select(*(columns[name] for name in OriginalRun._fields)).where(runs.c.run_id == run_id)
    wanted = wanted.join(sessions, sessions.c.pk == runs.c.session_pk)
    found = connection.execute(wanted.outerjoin(run_inputs, run_inputs.c.run_pk == runs.c.pk))
    row = fetch_row(found, OriginalRun)
    if row is None:
        raise run_missing_error(connection, run_id)
    return row


def load_replies(database: Database, run_id: str) -> list[dict[str, Any]]:
    """Load the replies of a run in chat-completions form, in order. A fork has the replies of its original up to its
    point, and then its own. Raises ``RunNotFound``, also where the original of a fork was removed."""
    return [json.loads(row.body) for row in load_reply_rows(database, run_id)]


def load_reply_rows(database: Database, run_id: str) -> list[Message]:
    """Load the messages in which the model replied in a run, in order. A fork has the replies of its original up to
    its point, and then its own. Raises ``RunNotFound``, also where the original of a fork was removed."""
    with database.read() as connection:
        run = begun = _load_run(connection, run_id)
        # The session of a fork has the id of the run that began it. Its rows go on with the numbers of its original.
        while begun.session_id == begun.run_id and (terms := load_terms(connection, begun.session_pk)) is not None:
            begun = _load_run(connection, terms.run_id)
        first = _find_first_row(connection, begun)
        rows = [] if first is None else load_messages(connection, run.session_pk, first, run.message_seq)
    return [row for row in rows if row.role is Role.ASSISTANT]


def list_calls_of_reply(database: Database, run_id: str, seq: int) -> list[str]:
    """List the places (``3.0``) of the calls of the reply in row ``seq``; none for a reply of the original of a
    fork."""
    with database.read() as connection:
        its = tool_calls.c.result_seq - tool_calls.c.position - 1
        wanted = (
            sa.select(tool_calls.c.iteration, tool_calls.c.position)
            .join(runs, runs.c.pk == tool_calls.c.run_pk)
            .where(runs.c.run_id == run_id, its == seq)
        )
        found = connection.execute(wanted.order_by(tool_calls.c.iteration, tool_calls.c.position))
        return [f"{iteration}.{position}" for iteration, position in found]


def _find_first_row(connection: Connection, run: OriginalRun) -> int | None:
    """Find the first row of the transcript that the run wrote; ``None`` where it wrote none yet."""
    own = sa.and_(messages.c.session_pk == run.session_pk, messages.c.run_pk == run.pk)
    first: int | None = connection.execute(sa.select(sa.func.min(messages.c.seq)).where(own)).scalar()
    return first


def find_point(connection: Connection, original: OriginalRun, step: int, *, has_input: bool) -> int:
    """Find the last row of the transcript that stands before a fork. Raises ``NotForkable``, which says which steps
    there are."""
    if not original.message_seq or original.context_at is not None:
        raise NotForkable(f"run {original.run_id!r} has not begun; submit another one")
    first = _find_first_row(connection, original)
    opened = original.message_seq if first is None else first - (0 if has_input else 1)
    calls = sa.select(
        tool_calls.c.iteration, tool_calls.c.position, tool_calls.c.status, tool_calls.c.result_seq
    ).where(tool_calls.c.run_pk == original.pk)
    places = fetch_rows(connection.execute(calls.order_by(tool_calls.c.iteration)), StepCall)
    points = choose_point(opened, places, original.output_seq)
    if step not in points:
        steps = sorted(points)
        there = f"{steps[0]}" if len(steps) == 1 else f"{', '.join(map(str, steps[:-1][:50]))} and {steps[-1]}"
        if step == original.iteration and original.output_seq is not None:
            raise NotForkable(
                f"step {step} of run {original.run_id!r} is its answer, behind which nothing is left to be done again; "
                f"to go on from there, say something in the conversation {original.session_id!r} or in a fork of it "
                f"('hermes-worker sessions fork'). A fork can begin behind step {there} (0: before the first reply)"
            )
        raise NotForkable(
            f"run {original.run_id!r} has no step {step} that is over and is followed by another; there are {there} "
            "(0: before its first reply)"
        )
    return points[step]


def open_fork(connection: Connection, new: NewFork) -> None:
    """Open the session of a fork: it reads its beginning from the session of the original, and its model is told what
    happened there since. Raises ``RunNotFound``, ``SessionErased``, ``NotForkable``."""
    original = new.original
    locked = sa.select(sessions.c.pk).where(sessions.c.pk == original.session_pk).with_for_update()
    if connection.execute(locked).first() is None:
        raise RunNotFound(f"there is no run {original.run_id!r} any more")
    require_not_erased(connection, original.session_pk)
    rows = find_point(connection, original, new.terms.step, has_input=new.has_input)
    is_evaluation = new.terms.tools.is_evaluation
    values: dict[str, Any] = {
        "session_id": new.run_id,
        "tenant": original.tenant,
        "system_prompt": make_storable(new.prompt or ""),
        "tools_hash": original.tools_hash,
        "workspace": original.workspace,
        "forked_from": original.session_id,
        "title": new.title,
        "archived_at": db_now() if is_evaluation else None,
        "created_at": db_now(),
        "active_at": db_now(),
        "message_seq": rows,
    }
    # The definitions of the tools are a text that is shared by its hash: it is in use from now on.
    connection.execute(sa.update(blobs).where(blobs.c.hash == original.tools_hash).values(released_at=None))
    pk = int(connection.execute(sa.insert(sessions).values(**values).returning(sessions.c.pk)).scalar_one())
    terms = replace(new.terms, rows=rows)
    document = {"session_pk": pk, "key": FORK_KEY, "body": terms.to_json()}
    connection.execute(sa.insert(session_documents).values(**document))
    _copy_documents(connection, original.session_pk, pk)
    record_rewind(connection, pk, _build_rewind(connection, original.session_pk, terms))
    after = {"run": original.run_id, "step": terms.step, "tools": terms.tools.value}
    record_action(connection, Act.SESSION_FORK, new.run_id, after=after)


def mark_as_counted(connection: Connection, created: Created) -> None:
    """Keep an evaluation out of what is counted, from its beginning."""
    connection.execute(sa.update(runs).where(runs.c.run_id == created.run_id).values(is_counted=1))


def _copy_documents(connection: Connection, source_pk: int, fork_pk: int) -> None:
    """Copy the state of the session's tools, such as its directory. Permissions stay behind, and long results are read
    from where they stand."""
    kept = session_documents.c.key
    rows = sa.select(sa.literal(fork_pk, sessions.c.pk.type), kept, session_documents.c.body).where(
        session_documents.c.session_pk == source_pk,
        kept.not_in((APPROVED_KEY, CONVERSATION_KEY, FORK_KEY)),
        ~kept.startswith(RESULT_KEY_PREFIX),
    )
    connection.execute(sa.insert(session_documents).from_select(("session_pk", "key", "body"), rows))


def load_terms(connection: Connection, session_pk: int) -> ForkTerms | None:
    """Load the terms of a fork; ``None`` for a session that is none, or a copy."""
    this = sa.and_(session_documents.c.session_pk == session_pk, session_documents.c.key == FORK_KEY)
    body = connection.execute(sa.select(session_documents.c.body).where(this)).scalar()
    return None if body is None else ForkTerms.from_json(body)


# --- what was done ---------------------------------------------------------------------------------------------------


def record_original(connection: Connection, session_pk: int) -> None:
    """Record for a fork what its original did since the fork began, if that is still there."""
    prefix, terms = find_prefix(connection, session_pk), load_terms(connection, session_pk)
    if prefix is not None and terms is not None:
        record_calls_since(connection, session_pk, _build_rewind(connection, prefix.session_pk, terms))


def _build_rewind(connection: Connection, session_pk: int, terms: ForkTerms) -> Rewind:
    """Build the rewind of a fork: of what was done behind its point by its original, by later runs of that session and
    by their children, and behind the points of those that the original was forked from. The model of a replay is not
    told of it."""
    return Rewind(
        calls=match_calls_after(connection, session_pk, terms.rows),
        asks_too=CAN_USE_ANY_TOOL,
        is_told=terms.tools.is_replay,
    )


def list_calls(
    database: Database, run_id: str, *, after: int = 0, until: int | None = None, tool: str | None = None
) -> Sequence[RecordedCall]:
    """List the calls of one run behind iteration ``after``, up to ``until`` inclusive, in order."""
    wanted = MADE_CALLS.where(runs.c.run_id == run_id, tool_calls.c.iteration > after)
    if until is not None:
        wanted = wanted.where(tool_calls.c.iteration <= until)
    if tool is not None:
        wanted = wanted.where(tool_calls.c.name == tool)
    with database.read() as connection:
        rows = connection.execute(wanted.order_by(tool_calls.c.iteration, tool_calls.c.position))
        return load_recorded_calls(connection, fetch_rows(rows, MadeCallRow))


# --- replays ---------------------------------------------------------------------------------------------------------


class ReplaysRow(NamedTuple):
    """A replay: the name, the number of its runs, and when the first of them was accepted."""

    name: str
    runs: int
    began_at: float


class ReplayFork(NamedTuple):
    """A run of a replay."""

    run_id: str
    session_pk: int
    terms: ForkTerms
    grades: Mapping[str, bool]


def list_replays(database: Database, tenant: str, *, limit: int) -> Sequence[ReplaysRow]:
    """List the replays of a tenant, the newest first."""
    newest = sa.func.max(run_tags.c.run_pk)
    statement = (
        sa.select(run_tags.c.tag, sa.func.count(), sa.func.min(runs.c.created_at))
        .join(runs, runs.c.pk == run_tags.c.run_pk)
        # all that begins with it: the character behind the last one of the beginning is the bound
        .where(run_tags.c.tenant == tenant, run_tags.c.tag >= REPLAY_TAG, run_tags.c.tag < f"{REPLAY_TAG[:-1]};")
        .group_by(run_tags.c.tag)
        .order_by(newest.desc())
        .limit(limit)
    )
    with database.read() as connection:
        return [ReplaysRow(tag.removeprefix(REPLAY_TAG), *row) for tag, *row in connection.execute(statement)]


def list_replay_forks(connection: Connection, tenant: str, name: str) -> Sequence[ReplayFork]:
    """List the runs of a replay, in the order in which they were accepted; none where there is no such replay."""
    its, graded = session_documents.alias(), session_documents.alias()
    statement = (
        sa.select(runs.c.run_id, runs.c.session_pk, its.c.body, graded.c.body)
        .select_from(run_tags)
        .join(runs, runs.c.pk == run_tags.c.run_pk)
        .join(its, (its.c.session_pk == runs.c.session_pk) & (its.c.key == FORK_KEY))
        .outerjoin(graded, (graded.c.session_pk == runs.c.session_pk) & (graded.c.key == GRADES_KEY))
        .where(run_tags.c.tenant == tenant, run_tags.c.tag == f"{REPLAY_TAG}{name}")
        .order_by(runs.c.pk)
    )
    return [
        ReplayFork(run_id, session_pk, ForkTerms.from_json(terms), json.loads(grades or "{}"))
        for run_id, session_pk, terms, grades in connection.execute(statement)
    ]


def write_grades(database: Database, tenant: str, name: str, grades: Mapping[str, Mapping[str, bool]]) -> bool:
    """Add to a replay what graders found, by run id and by the grader's name; other runs are left out. Idempotent.
    Returns whether there is such a replay."""
    with database.write() as connection:
        of_replay = (run_tags.c.tenant == tenant, run_tags.c.tag == f"{REPLAY_TAG}{name}")
        its_sessions = sa.select(runs.c.session_pk).join(run_tags, run_tags.c.run_pk == runs.c.pk).where(*of_replay)
        # Two graders at once: the second one adds to what the first one wrote.
        locked = sa.select(sessions.c.pk).where(sessions.c.pk.in_(its_sessions)).order_by(sessions.c.pk)
        connection.execute(locked.with_for_update()).all()
        forks = list_replay_forks(connection, tenant, name)
        for fork in (fork for fork in forks if fork.run_id in grades):
            body = dump_canonical_json({**fork.grades, **grades[fork.run_id]})
            its = (session_documents.c.session_pk == fork.session_pk) & (session_documents.c.key == GRADES_KEY)
            connection.execute(sa.delete(session_documents).where(its))
            row = {"session_pk": fork.session_pk, "key": GRADES_KEY, "body": body}
            connection.execute(build_insert_ignoring(connection, session_documents), row)
        if forks:
            record_action(connection, Act.REPLAY_GRADE, name, after={"runs": len(grades)})
        return bool(forks)
