"""Files that clients uploaded: artifacts that belong to no run, each for a purpose."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import sqlalchemy as sa

from hermes_worker.core.errors import HermesError
from hermes_worker.store.access.audit import Act, record_action
from hermes_worker.store.artifacts.contents import ContentStore, RowContents
from hermes_worker.store.artifacts.gatherings import claim_contents, delete_artifacts
from hermes_worker.store.artifacts.listing import SHOWN, ArtifactNotFound, ArtifactView
from hermes_worker.store.engine.database import Database, db_now
from hermes_worker.store.engine.prepared import fetch_one, fetch_row, fetch_rows
from hermes_worker.store.rows import make_storable
from hermes_worker.store.tables import artifacts, legal_holds

_GONE_AT_ONCE = 1_000


class UploadHeld(HermesError):
    """A legal hold on the tenant keeps its files."""


class UploadsFull(HermesError):
    """The tenant's uploaded files have as many bytes together as it may keep."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewUpload:
    """A file that is uploaded."""

    tenant: str
    principal: str
    name: str
    purpose: str
    media_type: str
    content: bytes
    expires_in_s: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadPage:
    """A part of a list of files."""

    files: Sequence[ArtifactView]
    has_more: bool


class Uploads:
    """The uploaded files of one tenant. Thread-safe."""

    def __init__(self, database: Database, tenant: str, contents: ContentStore | None = None) -> None:
        """``contents`` stores files elsewhere than in rows."""
        self._database = database
        self._tenant = tenant
        self._contents = contents or RowContents(database)
        self._ours = sa.and_(
            artifacts.c.tenant == tenant,
            artifacts.c.run_pk.is_(None),
            sa.or_(artifacts.c.expires_at.is_(None), artifacts.c.expires_at > db_now()),
        )

    def create(self, new: NewUpload, *, bytes_max: int) -> ArtifactView:
        """Keep a file, unless the tenant's files would have more than ``bytes_max`` bytes together; uploads at the same
        moment are not counted against each other. Raises ``UploadsFull``, ``ContentGone``."""
        self._require_space(len(new.content), bytes_max)
        digest = self._contents.keep(new.tenant, new.content)
        values = {
            "artifact_id": f"file-{uuid.uuid4().hex}",
            "tenant": new.tenant,
            "principal": new.principal,
            "path": make_storable(new.name),
            "purpose": new.purpose,
            "sha256": hashlib.sha256(new.content).hexdigest(),
            "size": len(new.content),
            "media_type": new.media_type,
            "modified_at": 0.0,
            "blob_hash": digest,
            "created_at": db_now(),
            "expires_at": None if new.expires_in_s is None else db_now() + new.expires_in_s,
        }
        with self._database.write() as connection:
            claim_contents(connection, [digest])
            made = connection.execute(sa.insert(artifacts).values(**values).returning(*SHOWN))
            view = fetch_one(made, ArtifactView)
            after = _describe_upload(view)
            record_action(connection, Act.FILE_UPLOAD, view.artifact_id, tenant=new.tenant, after=after)
            return view

    def _require_space(self, size: int, bytes_max: int) -> None:
        kept = self._database.select(sa.select(sa.func.coalesce(sa.func.sum(artifacts.c.size), 0)).where(self._ours))
        if int(kept.scalar_one()) + size > bytes_max:
            raise UploadsFull(f"the uploaded files would have more than {bytes_max} bytes together")

    def list_page(
        self, *, limit: int, order: Literal["asc", "desc"], after: str | None = None, purpose: str | None = None
    ) -> UploadPage:
        """List files by when they were uploaded, behind the file ``after``. Raises ``ArtifactNotFound``."""
        wanted = sa.select(*SHOWN).where(self._ours)
        if purpose is not None:
            wanted = wanted.where(artifacts.c.purpose == purpose)
        with self._database.read() as connection:
            if after is not None:
                pk = connection.execute(sa.select(artifacts.c.pk).where(self._ours, artifacts.c.artifact_id == after))
                if (last := pk.scalar()) is None:
                    raise ArtifactNotFound(f"there is no file {after!r}")
                wanted = wanted.where(artifacts.c.pk > last if order == "asc" else artifacts.c.pk < last)
            wanted = wanted.order_by(artifacts.c.pk.asc() if order == "asc" else artifacts.c.pk.desc())
            found = fetch_rows(connection.execute(wanted.limit(limit + 1)), ArtifactView)
        return UploadPage(files=found[:limit], has_more=len(found) > limit)

    def find(self, file_id: str) -> ArtifactView:
        """Load a file by its id. Raises ``ArtifactNotFound``."""
        wanted = sa.select(*SHOWN).where(self._ours, artifacts.c.artifact_id == file_id)
        row = fetch_row(self._database.select(wanted), ArtifactView)
        if row is None:
            raise ArtifactNotFound(f"there is no file {file_id!r}")
        return row

    def delete(self, file_id: str) -> None:
        """Delete a file, and release its content. Raises ``ArtifactNotFound``, ``UploadHeld``."""
        view = self.find(file_id)
        this = artifacts.c.artifact_id == view.artifact_id
        with self._database.write() as connection:
            if delete_artifacts(connection, sa.and_(this, sa.not_(_IS_HELD))) == 0:
                raise UploadHeld("a legal hold keeps the files of this tenant")
            before = _describe_upload(view)
            record_action(connection, Act.FILE_DELETE, view.artifact_id, tenant=self._tenant, before=before)


def _describe_upload(view: ArtifactView) -> dict[str, object]:
    """What the audit log says of a file."""
    return {"purpose": view.purpose, "size": view.size}


_IS_HELD = sa.exists().where(
    legal_holds.c.tenant == artifacts.c.tenant, legal_holds.c.root_pk.is_(None), legal_holds.c.session_pk.is_(None)
)


def delete_expired_uploads(database: Database, *, acts: bool) -> int:
    """Delete some uploaded files whose time is over and that no hold keeps; without ``acts``, only count them. Returns
    how many."""
    is_over = sa.and_(artifacts.c.run_pk.is_(None), artifacts.c.expires_at <= db_now(), sa.not_(_IS_HELD))
    if not acts:
        counted = sa.select(sa.func.count()).select_from(artifacts).where(is_over)
        return int(database.select(counted).scalar_one())
    with database.write() as connection:
        some = sa.select(artifacts.c.pk).where(is_over).limit(_GONE_AT_ONCE).with_for_update(skip_locked=True)
        found = connection.execute(some).scalars().all()
        return delete_artifacts(connection, artifacts.c.pk.in_(found)) if found else 0
