"""Files that came with messages: due with the run that waits for them, claimed and settled one by one like deliveries.

The transaction that accepts a message writes its run, which is postponed, and a row for each file. A worker claims a
row, stores the content under its hash and settles the row. The last file of a run that is settled begins the run, under
its lock; when that does not happen in time, the sweeper begins the run without the missing files (``runs.inputs``). A
worker that is killed on the way leaves a content to which nothing refers, and the file is fetched again.
"""

from __future__ import annotations

import base64
import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import BinaryIO, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from hermes_worker.core.effects import FetchFile
from hermes_worker.core.errors import LeaseLost
from hermes_worker.core.gateway import join_texts
from hermes_worker.core.inbound import MediaRef
from hermes_worker.core.inbound_files import (
    FILES_MAX,
    FileOutcome,
    FileState,
    dump_reference,
    parse_reference,
    shorten_reference,
)
from hermes_worker.core.run import RunStatus
from hermes_worker.store.artifacts.gatherings import claim_contents, store_content, store_encoded_content
from hermes_worker.store.engine.database import Database, RowStore, db_now, select_db_now
from hermes_worker.store.engine.prepared import fetch_row, fetch_rows
from hermes_worker.store.rows import Hint, LoadedRun, lock_run, make_storable
from hermes_worker.store.runs.inputs import require_spec, update_spec
from hermes_worker.store.runs.runs import session_is
from hermes_worker.store.runs.step_writer import begin_postponed
from hermes_worker.store.tables import blobs, inbound_files, runs, sessions
from hermes_worker.store.work_items import WorkItems

_PIECE_BYTES = 3 * 262_144
"""A multiple of three, so that pieces of base64 are base64 together."""
_VANISHED = FileOutcome(reason="the workers that fetched it vanished")


@dataclass(frozen=True, slots=True, kw_only=True)
class NewFile:
    """A file of a message that is being accepted."""

    media: MediaRef
    refused: str | None = None
    """Why the file is not fetched at all; ``None`` for a file that is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewFiles:
    """The files of one message."""

    account: str
    files: Sequence[NewFile]
    album: str = ""
    """Equal for messages that belong together; empty for a message by itself."""
    gathers_s: float = 0.0
    """Seconds for which more files of the same turn may come."""

    @property
    def album_hash(self) -> str | None:
        """A hash in place of the platform's name of the album, which may be any text."""
        return hashlib.sha256(f"{self.account} {self.album}".encode()).hexdigest() if self.album else None


@dataclass(frozen=True, slots=True, kw_only=True)
class FileClaim:
    """The right to fetch one file. Good only while ``token`` is in its row."""

    token: str
    file_id: int
    run_pk: int
    run_id: str
    attempt: int
    tenant: str
    account: str
    media: MediaRef
    is_kept: bool
    """The file is put into the workspace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedFile:
    """A file whose content is in the database."""

    outcome: FileOutcome
    content_hash: str | None = None
    picture_hash: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedFile:
    """A file that is to be put into the workspace of its run's session."""

    file_id: int
    path: str
    content: bytes


class _ClaimedFile(NamedTuple):
    pk: int
    run_pk: int
    tenant: str
    account: str
    reference: str


class _Insertion(NamedTuple):
    pk: int
    state: str
    hinted_at: float | None


class _Placement(NamedTuple):
    pk: int
    outcome: str
    body: str


def enqueue_files(connection: Connection, run_id: str, new: NewFiles, tenant: str) -> list[Hint]:
    """Insert the files of a message that are to be fetched for a run that has not begun, in the transaction that
    accepts the message. Returns the hints to send."""
    run_pk = sa.select(runs.c.pk).where(runs.c.run_id == run_id).scalar_subquery()
    hints: list[Hint] = []
    for file in new.files:
        is_refused = file.refused is not None
        values = {
            "run_pk": run_pk,
            "tenant": tenant,
            "account": new.account,
            "album_hash": new.album_hash,
            "reference": make_storable(dump_reference(shorten_reference(file.media))),
            "state": (FileState.REFUSED if is_refused else FileState.PENDING).value,
            "outcome": FileOutcome(reason=file.refused or "").to_json() if is_refused else None,
            "gathers_until": db_now() + new.gathers_s,
            "created_at": db_now(),
            "settled_at": db_now() if is_refused else None,
            "hinted_at": None if is_refused else db_now(),
        }
        written = connection.execute(sa.insert(inbound_files).values(**values).returning(*_INSERTED))
        row = fetch_row(written, _Insertion)
        if row is not None and row.hinted_at is not None:
            effect = FetchFile(run_id=run_id, file_id=row.pk, attempt=1)
            hints.append(Hint(effect=effect, at=float(row.hinted_at)))
    return hints


_INSERTED = (inbound_files.c.pk, inbound_files.c.state, inbound_files.c.hinted_at)


def begin_if_ready(connection: Connection, run_id: str) -> list[Hint]:
    """Begin a run whose files are all settled, or set when it begins. For a message with no file that is fetched."""
    pk = connection.execute(sa.select(runs.c.pk).where(runs.c.run_id == run_id)).scalar()
    loaded = None if pk is None else lock_run(connection, int(pk))
    return [] if loaded is None else _begin_locked(connection, loaded)


def _begin_locked(connection: Connection, loaded: LoadedRun) -> list[Hint]:
    """Begin a locked run if nothing keeps it. Returns the hints to send."""
    ours = inbound_files.c.run_pk == loaded.pk
    facts = sa.select(
        sa.func.count().filter(inbound_files.c.settled_at.is_(None)),
        sa.func.max(inbound_files.c.gathers_until),
        select_db_now(),
    ).where(ours)
    still_open, until, now = connection.execute(facts).one()
    if still_open or loaded.run.status is not RunStatus.QUEUED:
        return []
    _lock_session(connection, loaded.session_pk)
    if connection.execute(_select_waiting_for_files(loaded.session_pk).where(runs.c.pk < loaded.pk).limit(1)).first():
        return []  # earlier messages come first; their run schedules this one when it begins
    begins_at = max(float(until or now), float(now))
    waits = sa.and_(runs.c.pk == loaded.pk, runs.c.not_before.is_not(None), runs.c.hinted_at.is_(None))
    moved = connection.execute(sa.update(runs).where(waits).values(not_before=begins_at))
    _move_later_runs(connection, loaded, begins_at)
    if not moved.rowcount or begins_at > now:
        return []  # it has begun, or the sweeper begins it
    return begin_postponed(connection, loaded) or []


_PUT_OFF = (runs.c.status == RunStatus.QUEUED.value) & runs.c.hinted_at.is_(None) & runs.c.not_before.is_not(None)


def _select_waiting_for_files(session_pk: int | sa.ScalarSelect[int]) -> sa.Select[int]:
    """Select the runs of a session that cannot begin yet, because of files."""
    has_files = sa.exists().where(inbound_files.c.run_pk == runs.c.pk)
    return sa.select(runs.c.pk).where(
        runs.c.session_pk == session_pk, _PUT_OFF, runs.c.not_before > select_db_now(), has_files
    )


def _lock_session(connection: Connection, session_pk: int) -> None:
    """Lock a session's row: a transaction that begins a run of it, or adds one, then either waits for this one or is
    seen by it."""
    connection.execute(sa.select(sessions.c.pk).where(sessions.c.pk == session_pk).with_for_update())


def _move_later_runs(connection: Connection, loaded: LoadedRun, begins_at: float) -> None:
    """Let the runs that wait behind one begin when it does, except those whose own files are being fetched, or that
    take more. A transaction that holds such a row settles a file of it: it comes to the session after this one, and
    begins the run itself."""
    later = runs.alias()
    files = inbound_files.alias()
    of_later = files.c.run_pk == later.c.pk
    behind = (
        sa.select(later.c.pk)
        .where(
            later.c.session_pk == loaded.session_pk,
            later.c.pk > loaded.pk,
            later.c.status == RunStatus.QUEUED.value,
            later.c.hinted_at.is_(None),
            later.c.not_before.is_not(None),
            ~sa.exists().where(of_later, files.c.settled_at.is_(None)),
        )
        .with_for_update(skip_locked=True)
    )
    until = sa.select(sa.func.max(inbound_files.c.gathers_until)).where(inbound_files.c.run_pk == runs.c.pk)
    own = sa.func.coalesce(until.scalar_subquery(), begins_at)
    moved = sa.case((own > begins_at, own), else_=begins_at)
    connection.execute(sa.update(runs).where(runs.c.pk.in_(behind)).values(not_before=moved))


@dataclass(frozen=True, slots=True, kw_only=True)
class FileChat:
    """The conversation in which a person sends files."""

    tenant: str
    source: str
    session: str
    """The name of the session."""
    principal: str


def find_gathering_run(connection: Connection, chat: FileChat, album_hash: str | None) -> int | None:
    """Find the run of the same person that waits for its files and takes more: while they are being fetched, shortly
    after the last of them, or for further files of their album. Returns its row id, or ``None``. One statement."""
    of_run = inbound_files.c.run_pk == runs.c.pk
    takes_more = inbound_files.c.settled_at.is_(None) | (inbound_files.c.gathers_until >= db_now())
    if album_hash is not None:
        takes_more |= inbound_files.c.album_hash == album_hash
    wanted = (
        sa.select(runs.c.pk)
        .join(sessions, sessions.c.pk == runs.c.session_pk)
        .where(
            session_is(chat.tenant, chat.source, chat.session),
            _PUT_OFF,
            runs.c.principal == chat.principal,
            sa.exists().where(of_run, takes_more),
        )
        .order_by(runs.c.pk.desc())
        .limit(1)
    )
    found = connection.execute(wanted).scalar()
    return None if found is None else int(found)


def find_wait_s(connection: Connection, chat: FileChat) -> float | None:
    """Find within how many seconds, at the latest, those runs of a chat's session have begun that wait for files of any
    sender; ``None`` when there are none. One statement."""
    this = sa.select(sessions.c.pk).where(session_is(chat.tenant, chat.source, chat.session)).scalar_subquery()
    waiting = _select_waiting_for_files(this).subquery()
    latest = sa.select(sa.func.max(runs.c.not_before) - db_now()).where(runs.c.pk.in_(sa.select(waiting.c.pk)))
    left_s = connection.execute(latest).scalar()
    return None if left_s is None else max(float(left_s), 0.001)


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedRun:
    """The run that a message was added to."""

    run_id: str
    hints: Sequence[Hint]


def join_gathering_run(
    connection: Connection, chat: FileChat, text: str, new: NewFiles, *, wait_s: float
) -> JoinedRun | None:
    """Add a message to the run of the same person that waits for its files; ``None`` when there is no such run any
    more, or it has too much already, and then nothing was written."""
    seen = find_gathering_run(connection, chat, new.album_hash)
    loaded = None if seen is None else lock_run(connection, seen)
    if loaded is None or loaded.run.status is not RunStatus.QUEUED:
        return None
    # A transaction that begins a run holds its row and its session's: it waits for us, or we see that it has begun.
    _lock_session(connection, loaded.session_pk)
    if find_gathering_run(connection, chat, new.album_hash) != seen:
        return None
    spec = require_spec(connection, loaded.pk)
    known = sa.select(sa.func.count()).where(inbound_files.c.run_pk == loaded.pk)
    if not isinstance(spec.input, str) or connection.execute(known).scalar_one() + len(new.files) > FILES_MAX:
        return None
    if text:
        whole = join_texts(spec.input, text)
        if whole is None:
            return None
        update_spec(connection, loaded.pk, replace(spec, input=whole))
    hints = enqueue_files(connection, loaded.run.run_id, new, chat.tenant)
    until = connection.execute(sa.select(db_now() + wait_s)).scalar_one()
    values = {"not_before": until} if hints else {}
    connection.execute(sa.update(runs).where(runs.c.pk == loaded.pk).values(updated_at=db_now(), **values))
    if hints:
        _move_later_runs(connection, loaded, float(until))
    return JoinedRun(run_id=loaded.run.run_id, hints=hints)


class InboundFiles(RowStore):
    """The files of messages in one database. Thread-safe."""

    def claim(self, effect: FetchFile, owner: int) -> FileClaim | None:
        """Claim a file; ``None`` when it is not available. Of any number of workers exactly one gets it. Raises
        ``CorruptInput``."""
        token = secrets.token_hex(16)
        with self.database.write() as connection:
            found = connection.execute(
                sa.update(inbound_files)
                .where(
                    inbound_files.c.pk == effect.file_id,
                    inbound_files.c.hinted_at.is_not(None),
                    inbound_files.c.attempts == effect.attempt - 1,
                )
                .values(
                    state=FileState.RUNNING.value,
                    attempts=inbound_files.c.attempts + 1,
                    lease_token=token,
                    lease_owner=owner,
                    claimed_at=db_now(),
                    hinted_at=None,
                    hints=0,
                )
                .returning(*(inbound_files.c[name] for name in _ClaimedFile._fields))
            ).first()
            if found is None:
                return None
            row = _ClaimedFile._make(found)
            run_id = connection.execute(sa.select(runs.c.run_id).where(runs.c.pk == row.run_pk)).scalar_one()
            is_kept = require_spec(connection, row.run_pk).files == "kept"
        return FileClaim(
            token=token,
            file_id=row.pk,
            run_pk=row.run_pk,
            run_id=run_id,
            attempt=effect.attempt,
            tenant=row.tenant,
            account=row.account,
            media=parse_reference(row.reference),
            is_kept=is_kept,
        )

    def store_content(self, content: bytes) -> str:
        """Store a content for an hour, until a row refers to it. Returns its hash. Idempotent."""
        return store_content(self.database, content)

    def store_file(self, file: BinaryIO) -> str:
        """Store a file, from its beginning, for an hour, until a row refers to it. Returns its hash. The text that is
        written to the database is the only copy in memory."""
        file.seek(0)
        pieces = iter(lambda: file.read(_PIECE_BYTES), b"")
        return store_encoded_content(self.database, "".join(base64.b64encode(piece).decode() for piece in pieces))

    def settle(self, claim: FileClaim, file: FetchedFile) -> list[Hint]:
        """Write the outcome of a file, once, and begin the run if it was the last. Raises ``LeaseLost``,
        ``ContentGone``."""
        state = FileState.REFUSED if file.outcome.reason else FileState.FETCHED
        hashes = {each for each in (file.content_hash, file.picture_hash) if each is not None}
        with self.database.write() as connection:
            loaded = lock_run(connection, claim.run_pk)
            _end_claim(
                connection,
                claim,
                state=state.value,
                outcome=file.outcome.to_json(),
                content_hash=file.content_hash,
                picture_hash=file.picture_hash,
                settled_at=db_now(),
            )
            claim_contents(connection, sorted(hashes))
            return [] if loaded is None else _begin_locked(connection, loaded)

    def release_file(self, claim: FileClaim) -> None:
        """Give a claim up so that another worker tries. No hint is sent, so that the platform has a moment. Raises
        ``LeaseLost``."""
        with self.database.write() as connection:
            _end_claim(connection, claim, state=FileState.PENDING.value, hinted_at=db_now())

    def list_unplaced(self, run_pk: int) -> list[PlacedFile]:
        """List the files of a run that belong into its workspace and are not known to be there."""
        wanted = (
            sa.select(inbound_files.c.pk, inbound_files.c.outcome, blobs.c.body)
            .join(blobs, blobs.c.hash == inbound_files.c.content_hash)
            .where(inbound_files.c.run_pk == run_pk, inbound_files.c.outcome.is_not(None))
            .order_by(inbound_files.c.pk)
        )
        rows = fetch_rows(self.database.select(wanted), _Placement)
        found = [(row, FileOutcome.from_json(row.outcome)) for row in rows]
        return [
            PlacedFile(file_id=row.pk, path=outcome.path, content=base64.b64decode(row.body))
            for row, outcome in found
            if outcome.path
        ]

    def mark_placed(self, run_pk: int) -> None:
        """Release the contents of a run's files, which are in its workspace, or never will be. Idempotent."""
        ours = sa.and_(inbound_files.c.run_pk == run_pk, inbound_files.c.content_hash.is_not(None))
        named = sa.select(inbound_files.c.content_hash).where(ours)
        with self.database.write() as connection:
            connection.execute(sa.update(blobs).where(blobs.c.hash.in_(named)).values(released_at=db_now()))
            connection.execute(sa.update(inbound_files).where(ours).values(content_hash=None))


def _end_claim(connection: Connection, claim: FileClaim, **values: object) -> None:
    """End a claim, and write ``values``. Raises ``LeaseLost``."""
    held = sa.and_(inbound_files.c.pk == claim.file_id, inbound_files.c.lease_token == claim.token)
    ended = sa.update(inbound_files).where(held).values(lease_token=None, lease_owner=None, **values)
    if connection.execute(ended).rowcount == 0:
        raise LeaseLost(f"the claim on a file of {claim.run_id} was taken over; nothing was written")


# --- what the sweeper does -------------------------------------------------------------------------------------------


class _DueFile(NamedTuple):
    pk: int
    run_id: str
    attempts: int
    hinted_at: float | None


_ROWS = WorkItems(
    inbound_files,
    "pk",
    gives=_DueFile,
    lost={"state": FileState.REFUSED.value, "outcome": _VANISHED.to_json()},
)


def take_back_files(database: Database) -> list[Hint]:
    """Take back the rows of workers that are gone: due again, or given up. A run that waits for nothing else begins
    when its time has come. Returns the hints to send. Idempotent."""
    return _build_hints(_ROWS.take_back(database))


def resend_files(database: Database, *, grace_s: float, before: float) -> list[Hint]:
    """List hints of due rows whose message is lost: hinted before ``before`` (epoch seconds) and longer ago than
    ``grace_s``."""
    return _build_hints(_ROWS.take_lost(database, grace_s=grace_s, before=before))


def _build_hints(due: Sequence[_DueFile]) -> list[Hint]:
    return [
        Hint(effect=FetchFile(run_id=row.run_id, file_id=row.pk, attempt=row.attempts + 1), at=float(row.hinted_at))
        for row in due
        if row.hinted_at is not None
    ]
