"""The gathering of a run's artifacts: a row that is due when the run ends, claimed and settled like a delivery.

The end of a run that declared artifacts writes the row, so the answer does not wait for it. A worker claims it, stores
the content of each file under its hash, and then writes all rows in one transaction that its token guards. A worker
that is killed on the way leaves contents to which nothing refers; the next worker uses them, or they are deleted after
an hour.
"""

from __future__ import annotations

import base64
import json
import secrets
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from hermes_worker.core.effects import GatherArtifacts
from hermes_worker.core.errors import HermesError, LeaseLost
from hermes_worker.store.artifacts.contents import keep_text
from hermes_worker.store.engine.database import Database, RowStore, db_now, select_db_now
from hermes_worker.store.engine.stored_texts import make_storable
from hermes_worker.store.rows import Hint, build_insert_ignoring, compute_blob_hash
from hermes_worker.store.runs.inputs import load_spec
from hermes_worker.store.tables import (
    artifact_gatherings,
    artifacts,
    blobs,
    runs,
    sessions,
    tool_calls,
)
from hermes_worker.store.work_items import ATTEMPTS_MAX, WorkItems

_REASON_CHARS_MAX = 500


class GatheringState(StrEnum):
    PENDING = "pending"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    """The workspace was not available, or the workers that tried vanished."""


class ContentGone(HermesError):
    """A content that was stored a moment ago was deleted, because an erasure removed what nothing refers to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatheringClaim:
    """The right to gather the artifacts of one run. Good only while ``token`` is in its row."""

    token: str
    run_pk: int
    run_id: str
    attempt: int
    tenant: str
    workspace: str
    """The stored description of the workspace."""
    patterns: tuple[str, ...]
    age_s: float
    """Seconds since the run began, by the database's clock."""
    has_calls: bool
    """The run made a tool call, so it had a workspace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptFile:
    """A file whose content is in the database."""

    path: str
    """Below the workspace."""
    sha256: str
    """The SHA-256 of its bytes, in hexadecimal."""
    size: int
    media_type: str
    modified_at: float
    """Epoch seconds by the clock of its file system."""
    blob_hash: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOutFile:
    """A file that matches a pattern and is not kept, with the reason."""

    path: str
    reason: str


class _ClaimedGathering(NamedTuple):
    run_pk: int
    tenant: str


class _GatheredRun(NamedTuple):
    workspace: str
    age_s: float
    has_calls: bool


def enqueue_gathering(connection: Connection, run_pk: int, run_id: str) -> list[Hint]:
    """Insert the gathering of a run that ends, in the caller's transaction, and return the hints to send. An existing
    row stays."""
    tenant = sa.select(runs.c.tenant).where(runs.c.pk == run_pk).scalar_subquery()
    values = {"run_pk": run_pk, "tenant": tenant, "state": GatheringState.PENDING.value}
    owed = build_insert_ignoring(connection, artifact_gatherings).values(
        **values, hinted_at=db_now(), created_at=db_now()
    )
    connection.execute(owed)
    return [Hint(effect=GatherArtifacts(run_id=run_id, attempt=1), at=0.0)]


def store_content(database: Database, content: bytes) -> str:
    """Store a content for an hour, until a row refers to it. Returns its hash. Idempotent."""
    return store_encoded_content(database, base64.b64encode(content).decode())


def store_encoded_content(database: Database, body: str) -> str:
    """Store a content that is base64 already for an hour, until a row refers to it. Returns its hash. Idempotent."""
    digest = compute_blob_hash(body)
    keep_text(database, digest, body)
    return digest


def claim_contents(connection: Connection, hashes: Sequence[str]) -> None:
    """Mark stored contents as referred to, in the caller's transaction. Raises ``ContentGone``."""
    taken = sa.update(blobs).where(blobs.c.hash.in_(hashes)).values(released_at=None)
    if hashes and connection.execute(taken).rowcount < len(hashes):
        raise ContentGone("a file was deleted before it could be recorded")


def delete_artifacts(connection: Connection, which: sa.ColumnElement[bool]) -> int:
    """Delete artifacts, and release their contents. Returns how many."""
    named = sa.select(artifacts.c.blob_hash).where(which)
    connection.execute(sa.update(blobs).where(blobs.c.hash.in_(named)).values(released_at=db_now()))
    return connection.execute(sa.delete(artifacts).where(which)).rowcount


class Gatherings(RowStore):
    """The gatherings in one database. Thread-safe."""

    def claim(self, effect: GatherArtifacts, owner: int) -> GatheringClaim | None:
        """Claim a gathering; ``None`` when it is not available. Of any number of workers exactly one gets it."""
        token = secrets.token_hex(16)
        run_pk = sa.select(runs.c.pk).where(runs.c.run_id == effect.run_id).scalar_subquery()
        with self.database.write() as connection:
            found = connection.execute(
                sa.update(artifact_gatherings)
                .where(
                    artifact_gatherings.c.run_pk == run_pk,
                    artifact_gatherings.c.hinted_at.is_not(None),
                    artifact_gatherings.c.attempts == effect.attempt - 1,
                )
                .values(
                    state=GatheringState.RUNNING.value,
                    attempts=artifact_gatherings.c.attempts + 1,
                    lease_token=token,
                    lease_owner=owner,
                    claimed_at=db_now(),
                    hinted_at=None,
                    hints=0,
                )
                .returning(artifact_gatherings.c.run_pk, artifact_gatherings.c.tenant)
            ).first()
            if found is None:
                return None
            row = _ClaimedGathering._make(found)
            run = _GatheredRun._make(connection.execute(_RUN, {"run": row.run_pk}).one())
            patterns = _load_patterns(connection, row.run_pk)
        return GatheringClaim(
            token=token,
            run_pk=row.run_pk,
            run_id=effect.run_id,
            attempt=effect.attempt,
            tenant=row.tenant,
            workspace=run.workspace,
            patterns=patterns,
            age_s=float(run.age_s),
            has_calls=bool(run.has_calls),
        )

    def store_content(self, content: bytes) -> str:
        """Store a content for an hour, until a row refers to it. Returns its hash. Idempotent."""
        return store_content(self.database, content)

    def settle(
        self,
        claim: GatheringClaim,
        files: Sequence[KeptFile],
        left_out: Sequence[LeftOutFile] = (),
        *,
        left_out_total: int = 0,
    ) -> None:
        """Record what was gathered, once, in one transaction. ``left_out`` are the first of ``left_out_total`` files
        that are not kept. Raises ``LeaseLost``, ``ContentGone``."""
        told = [{"path": make_storable(one.path), "reason": make_storable(one.reason)} for one in left_out]
        with self.database.write() as connection:
            _end_claim(
                connection,
                claim,
                state=GatheringState.DONE.value,
                settled_at=db_now(),
                files=len(files),
                left_out=left_out_total,
                left_out_named=json.dumps(told) if told else None,
            )
            hashes = sorted({one.blob_hash for one in files})
            claim_contents(connection, hashes)
            if files:
                connection.execute(
                    sa.insert(artifacts).values(created_at=db_now()), [_build_row(claim, one) for one in files]
                )

    def fail_gathering(self, claim: GatheringClaim, reason: str) -> bool:
        """Give up a gathering that cannot be done here: it is due again for another worker, or has failed after
        ``ATTEMPTS_MAX`` tries. Returns whether it has failed. No hint is sent, so that another worker has time to come
        up. Raises ``LeaseLost``."""
        is_last = claim.attempt >= ATTEMPTS_MAX
        with self.database.write() as connection:
            _end_claim(
                connection,
                claim,
                state=(GatheringState.FAILED if is_last else GatheringState.PENDING).value,
                reason=make_storable(reason)[:_REASON_CHARS_MAX],
                settled_at=db_now() if is_last else None,
                hinted_at=None if is_last else db_now(),
            )
        return is_last


def _load_patterns(connection: Connection, run_pk: int) -> tuple[str, ...]:
    """The patterns that a run declared; empty when its submission cannot be read, which the gathering reports."""
    try:
        return tuple(load_spec(connection, run_pk).artifacts)
    except ValueError:
        return ()


def _end_claim(connection: Connection, claim: GatheringClaim, **values: object) -> None:
    """End a claim, and write ``values``. Raises ``LeaseLost``."""
    held = sa.and_(artifact_gatherings.c.run_pk == claim.run_pk, artifact_gatherings.c.lease_token == claim.token)
    ended = sa.update(artifact_gatherings).where(held).values(lease_token=None, lease_owner=None, **values)
    if connection.execute(ended).rowcount == 0:
        raise LeaseLost(f"the claim on the artifacts of {claim.run_id} was taken over; nothing was written")


def _build_row(claim: GatheringClaim, file: KeptFile) -> dict[str, object]:
    return {
        "artifact_id": f"art_{uuid.uuid4().hex}",
        "run_pk": claim.run_pk,
        "tenant": claim.tenant,
        "path": file.path,
        "sha256": file.sha256,
        "size": file.size,
        "media_type": file.media_type,
        "modified_at": file.modified_at,
        "blob_hash": file.blob_hash,
    }


_RUN = (
    sa.select(
        sessions.c.workspace,
        (select_db_now() - sa.func.coalesce(runs.c.started_at, runs.c.created_at)).label("age_s"),
        sa.exists().where(tool_calls.c.run_pk == runs.c.pk).label("has_calls"),
    )
    .join(sessions, sessions.c.pk == runs.c.session_pk)
    .where(runs.c.pk == sa.bindparam("run"))
)


# --- what the sweeper does -------------------------------------------------------------------------------------------


class _DueGathering(NamedTuple):
    run_id: str
    attempts: int
    hinted_at: float | None


_ROWS = WorkItems(
    artifact_gatherings,
    "run_pk",
    gives=_DueGathering,
    lost={"state": GatheringState.FAILED.value, "reason": "the worker that gathered the files vanished"},
)


def take_back_gatherings(database: Database) -> list[Hint]:
    """Take back the gatherings of workers that are gone: due again, or given up. Returns the hints to send.
    Idempotent."""
    return _build_hints(_ROWS.take_back(database))


def resend_gatherings(database: Database, *, grace_s: float, before: float) -> list[Hint]:
    """List hints of due rows whose message is lost: hinted before ``before`` (epoch seconds) and longer ago than
    ``grace_s``."""
    return _build_hints(_ROWS.take_lost(database, grace_s=grace_s, before=before))


def _build_hints(due: Sequence[_DueGathering]) -> list[Hint]:
    return [
        Hint(effect=GatherArtifacts(run_id=row.run_id, attempt=row.attempts + 1), at=float(row.hinted_at))
        for row in due
        if row.hinted_at is not None
    ]
