"""Rewinds: what happened after the point to which a conversation was taken back, kept with the session that goes on.

A fork, an undo, a retry, a restored checkpoint and a restored database take no effect back and give no permission
again. So the session that goes on has a document: the calls of the *rewound part*, or that they are not known. The
gates of later calls read it (``tasks.calls.rewound``), and the next run of the session begins with a note that tells
the model. The document holds its own copy of the calls, so it holds after the session that they were made in was
deleted.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from hermes_worker.core.inner_calls import parse_calls
from hermes_worker.core.messages import Message, Role, build_user_body, dump_canonical_json
from hermes_worker.core.questions import APPROVED_KEY
from hermes_worker.core.replay import Replay
from hermes_worker.core.rewind import RecordedCall, are_equal, describe_effects, select_effects_after
from hermes_worker.core.run import CallStatus
from hermes_worker.store.engine.prepared import Prepared, fetch_rows
from hermes_worker.store.prefixes import find_prefix
from hermes_worker.store.recorded_calls import MADE_CALLS, MadeCallRow, load_recorded_calls
from hermes_worker.store.row_keys import SessionKey
from hermes_worker.store.rows import build_insert_ignoring
from hermes_worker.store.runs.steering import insert_text
from hermes_worker.store.tables import runs, session_documents, sessions, tool_calls

REWOUND_KEY: Final = "rewound"
"""The key of the session document that holds a ``RewoundPart``."""
CALLS_MAX: Final = 100
"""Calls that are kept whole; of earlier ones the tool's name is."""
_RESULT_CHARS_MAX: Final = 2_000
_ARGUMENTS_CHARS_MAX: Final = 8_000
"""Longer arguments are cut, so no call is equal to them: a person is asked."""


RESTORED_NOTE: Final = (
    "[Note of the system: the database was set back to an earlier moment. What was done after that moment was not "
    "taken back and is not known here, so what you are about to do may have been done already. Look at the present "
    "state first. A person is asked before a call that must not run twice; where nobody answers, it is not made. Say "
    "then what is left undone.]"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RewoundPart:
    """What happened after the point to which a conversation was taken back."""

    calls: tuple[RecordedCall, ...] = ()
    """The newest calls that may have had an effect, in their order."""
    once_tools: frozenset[str] = frozenset()
    """Every tool of a call that must not run twice, those of scripts among them."""
    used: tuple[str, ...] = ()
    """The keys of the calls whose outcome or key was given to an equal call since."""
    files_note: str = ""
    """What was done to the files of the workspace, for the model."""
    is_told: bool = False
    """The model has read the note."""
    unknown_until: int | None = None
    """The database was set back, and what runs up to this row id did since the moment of the backup is not known."""

    def find_unused(self, tool: str, arguments: str) -> int:
        """Count the equal calls whose outcome or key was given away."""
        return sum(
            call.key in self.used for call in self.calls if call.tool == tool and are_equal(call.arguments, arguments)
        )

    def build_note(self) -> str:
        """Build the note for the model."""
        restored = "" if self.unknown_until is None else RESTORED_NOTE
        parts = (restored, self.files_note, describe_effects(self.calls))
        return "\n\n".join(part for part in parts if part)

    def to_document(self) -> dict[str, Any]:
        """Build the session document."""
        return {**asdict(self), "once_tools": sorted(self.once_tools)}

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> RewoundPart:
        """Read the session document."""
        calls = (
            RecordedCall(**{**each, "replay": Replay(each["replay"]), "status": CallStatus(each["status"])})
            for each in document["calls"]
        )
        given = {
            "calls": tuple(calls),
            "once_tools": frozenset(document["once_tools"]),
            "used": tuple(document["used"]),
        }
        return cls(**{**document, **given})


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewind:
    """A rewind that was just done, as it is to be recorded."""

    calls: sa.ColumnElement[bool]
    """Condition for the calls of the rewound part."""
    files_note: str = ""
    besides: frozenset[str] = field(default_factory=frozenset)
    """Tools whose effects the rewind did take back."""
    asks_too: frozenset[str] = field(default_factory=frozenset)
    """Tools that ask as soon as there was any call that must not run twice."""
    is_told: bool = False
    """The model of the session is not to read a note."""


def match_calls_after(connection: Connection, session_pk: int, seq: int) -> sa.ColumnElement[bool]:
    """Build the condition for the calls behind row ``seq`` of a transcript, also where its beginning is read from
    elsewhere, and for the calls of all runs that were delegated there, and of what these caused."""
    here = (runs.c.session_pk == session_pk) & (tool_calls.c.result_seq > seq)
    child, parent, call = runs.alias(), runs.alias(), tool_calls.alias()
    its_call = sa.and_(
        call.c.run_pk == child.c.parent_pk,
        call.c.iteration == child.c.parent_iteration,
        call.c.position == child.c.parent_position,
    )
    delegated = (
        sa.select(child.c.pk)
        .join(parent, parent.c.pk == child.c.parent_pk)
        .join(call, its_call)
        .where(parent.c.session_pk == session_pk, call.c.result_seq > seq)
        .cte(recursive=True)
    )
    other = runs.alias()
    its = sa.or_(other.c.parent_pk == delegated.c.pk, other.c.cause_pk == delegated.c.pk)
    below = delegated.union(sa.select(other.c.pk).join(delegated, its))
    made, prefix = sa.or_(here, runs.c.pk.in_(sa.select(below.c.pk))), find_prefix(connection, session_pk)
    if prefix is None:
        return made
    return sa.or_(made, match_calls_after(connection, prefix.session_pk, min(seq, prefix.rows)))


def match_calls_of(run_id: str) -> sa.ColumnElement[bool]:
    """Build the condition for the calls of a run and of all that it caused."""
    pk = sa.select(runs.c.pk).where(runs.c.run_id == run_id).scalar_subquery()
    return sa.or_(runs.c.pk == pk, runs.c.root_pk == pk)


def match_calls_settled_since(at: float) -> sa.ColumnElement[bool]:
    """Build the condition for the calls that were settled since ``at`` (epoch seconds), or are not settled."""
    return sa.or_(tool_calls.c.settled_at.is_(None), tool_calls.c.settled_at >= at)


def record_rewind(connection: Connection, session_pk: int, rewind: Rewind) -> None:
    """Record in the caller's transaction that a session goes on after a rewind: its earlier rewinds still count, and
    what a person allowed in it for longer is allowed no more. Does nothing where nothing had happened."""
    part = _add_calls(connection, load_rewound(connection, session_pk) or RewoundPart(), rewind)
    if part == RewoundPart() and not rewind.files_note:
        return
    files_note = rewind.files_note or part.files_note
    _write(connection, session_pk, replace(part, files_note=files_note, used=(), is_told=rewind.is_told))
    forget_permissions(connection, session_documents.c.session_pk == session_pk)


def record_calls_since(connection: Connection, session_pk: int, rewind: Rewind) -> None:
    """Record in the caller's transaction what runs of before the rewind did since it, as they were still at work."""
    before = load_rewound(connection, session_pk) or RewoundPart(is_told=True)
    part = _add_calls(connection, before, rewind)
    if part != before:
        _write(connection, session_pk, part)


def _add_calls(connection: Connection, part: RewoundPart, rewind: Rewind) -> RewoundPart:
    """Add the calls of a rewind; of a call that is known already, what came of it is read again."""
    effective = MADE_CALLS.where(tool_calls.c.replay != Replay.PURE.value, rewind.calls)
    found = fetch_rows(connection.execute(effective), MadeCallRow)
    calls = _add_inner_calls(found, load_recorded_calls(connection, found))
    effects = select_effects_after(-1, (call for call in calls if call.tool not in rewind.besides))
    fresh, once = {call.key for call in effects}, {call.tool for call in effects if call.replay is Replay.ONCE}
    kept = (call for call in part.calls if call.key not in fresh)
    asks_too = rewind.asks_too if once or part.once_tools else frozenset()
    return replace(
        part,
        calls=(*kept, *map(_shorten, effects))[-CALLS_MAX:],
        once_tools=part.once_tools | once | asks_too,
    )


def _add_inner_calls(rows: Sequence[MadeCallRow], calls: Sequence[RecordedCall]) -> Iterator[RecordedCall]:
    """Yield each call, and behind a script what it called itself."""
    for row, call in zip(rows, calls, strict=True):
        yield call
        for each in parse_calls(row.inner_calls):
            yield replace(call, tool=each.tool, replay=Replay.ONCE, arguments=each.about)


def record_restore(connection: Connection) -> None:
    """Record in every conversation that the database was set back to an earlier moment: effects of its open runs, or
    of a run that came later, are not known. The models of runs that have begun are told with their next results, the
    models of other runs as they begin. No worker may be at work."""
    newest = int(connection.execute(sa.select(sa.func.coalesce(sa.func.max(runs.c.pk), 0))).scalar_one())
    its = session_documents.c.key == REWOUND_KEY
    known = sa.select(session_documents.c.session_pk, session_documents.c.body).where(its)
    for session_pk, body in connection.execute(known).all():
        part = RewoundPart.from_document(json.loads(body))
        _write(connection, session_pk, replace(part, unknown_until=newest, is_told=False))
    body = dump_canonical_json(RewoundPart(unknown_until=newest).to_document())
    others = sa.select(
        sessions.c.pk,
        sa.literal(REWOUND_KEY, session_documents.c.key.type),
        sa.literal(body, session_documents.c.body.type),
    ).where(sessions.c.pk.not_in(sa.select(session_documents.c.session_pk).where(its)))
    connection.execute(sa.insert(session_documents).from_select(("session_pk", "key", "body"), others))
    begun = sa.select(sessions.c.active_run_pk).where(sessions.c.active_run_pk.is_not(None))
    for run_pk in connection.execute(begun).scalars().all():
        insert_text(connection, run_pk, RESTORED_NOTE)
    forget_permissions(connection, sa.true())


def forget_permissions(connection: Connection, where: sa.ColumnElement[bool]) -> None:
    """Delete what people allowed for the rest of a conversation."""
    connection.execute(sa.delete(session_documents).where(session_documents.c.key == APPROVED_KEY, where))


def pass_to_children(connection: Connection, session_pk: int, run_ids: Iterable[str]) -> None:
    """Have the children that a run was just given know of the rewound part of its session."""
    copied = sa.select(sessions.c.pk, session_documents.c.key, session_documents.c.body).where(
        sessions.c.session_id.in_(list(run_ids))
    )
    its_part = (session_documents.c.session_pk == session_pk) & (session_documents.c.key == REWOUND_KEY)
    copied = copied.select_from(sessions.join(session_documents, its_part))
    connection.execute(sa.insert(session_documents).from_select(("session_pk", "key", "body"), copied))


class _Document(NamedTuple):
    body: str


_READ = Prepared(
    sa.select(session_documents.c.body).where(
        session_documents.c.session_pk == sa.bindparam("session"), session_documents.c.key == REWOUND_KEY
    ),
    takes=SessionKey,
    gives=_Document,
)


def load_rewound(connection: Connection, session_pk: int) -> RewoundPart | None:
    """Load the rewound part of a session; ``None`` where it was never taken back."""
    row = _READ.first(connection, {"session": session_pk})
    return None if row is None else RewoundPart.from_document(json.loads(row.body))


def take_note(connection: Connection, session_pk: int, seq: int, run_pk: int = 0) -> list[Message]:
    """Take the note about a rewind that the model has not read, as the row ``seq`` with which its next run begins,
    ``run_pk``. What was done before the database was set back is in doubt for one new run, and not for a second."""
    part = load_rewound(connection, session_pk)
    if part is not None and part.is_told and part.unknown_until is not None and run_pk > part.unknown_until:
        _write(connection, session_pk, replace(part, unknown_until=None))
    if part is None or part.is_told:
        return []
    _write(connection, session_pk, replace(part, is_told=True))
    return [Message(seq=seq, role=Role.USER, body=build_user_body(part.build_note()))]


def _write(connection: Connection, session_pk: int, part: RewoundPart) -> None:
    values = {"session_pk": session_pk, "key": REWOUND_KEY, "body": dump_canonical_json(part.to_document())}
    here = (session_documents.c.session_pk == session_pk) & (session_documents.c.key == REWOUND_KEY)
    if connection.execute(sa.update(session_documents).where(here).values(body=values["body"])).rowcount == 0:
        connection.execute(build_insert_ignoring(connection, session_documents), values)


def _shorten(call: RecordedCall) -> RecordedCall:
    return replace(call, arguments=call.arguments[:_ARGUMENTS_CHARS_MAX], result=call.result[:_RESULT_CHARS_MAX])
