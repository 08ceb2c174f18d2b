"""The artifacts of runs for people and clients: read models only."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import sqlalchemy as sa

from hermes_worker.core.errors import HermesError
from hermes_worker.core.run import ArtifactsState
from hermes_worker.store.artifacts.contents import ContentStore, RowContents
from hermes_worker.store.artifacts.gatherings import LeftOutFile
from hermes_worker.store.engine.database import Database
from hermes_worker.store.engine.prepared import fetch_row, fetch_rows
from hermes_worker.store.runs.runs import find_run
from hermes_worker.store.tables import artifact_gatherings, artifacts, blobs, runs


class ArtifactNotFound(HermesError):
    """There is no artifact of this id, or it was deleted."""


class ArtifactView(NamedTuple):
    """A file that a run left, or that a client uploaded."""

    artifact_id: str
    tenant: str
    path: str
    sha256: str
    size: int
    media_type: str
    modified_at: float
    created_at: float
    blob_hash: str
    purpose: str | None
    """What a client uploaded it for; ``None`` for a file of a run."""
    expires_at: float | None
    """Epoch seconds; ``None`` for a file without an end of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunArtifacts:
    """The artifacts of a run, and the state of their gathering."""

    state: ArtifactsState
    reason: str | None = None
    files: Sequence[ArtifactView] = ()
    """The artifacts by path. Fewer than ``gathered`` when retention has deleted some."""
    gathered: int = 0
    left_out: int = 0
    """How many files match a pattern and are no artifacts."""
    left_out_named: Sequence[LeftOutFile] = ()
    """The first of the files that were left out."""


class _GatheringFacts(NamedTuple):
    artifacts: int | None
    exit_reason: str | None
    state: str | None
    reason: str | None
    files: int | None
    left_out: int | None
    left_out_named: str | None


SHOWN = tuple(artifacts.c[name] for name in ArtifactView._fields)
"""The columns of an ``ArtifactView``."""


class Artifacts:
    """Lists and reads the artifacts of one database. Thread-safe."""

    def __init__(self, database: Database, contents: ContentStore | None = None) -> None:
        """``contents`` loads files that are not in rows."""
        self._database = database
        self._contents = contents or RowContents(database)

    def list_artifacts(self, run_id: str) -> RunArtifacts:
        """List the artifacts of a run. Raises ``RunNotFound``, ``UnavailableError``."""
        gathering = artifact_gatherings.c
        with self._database.read() as connection:
            pk = find_run(connection, run_id)
            wanted = sa.select(
                runs.c.artifacts,
                runs.c.exit_reason,
                gathering.state,
                gathering.reason,
                gathering.files,
                gathering.left_out,
                gathering.left_out_named,
            )
            joined = wanted.outerjoin_from(runs, artifact_gatherings, gathering.run_pk == runs.c.pk)
            row = _GatheringFacts._make(connection.execute(joined.where(runs.c.pk == pk)).one())
            found = fetch_rows(connection.execute(sa.select(*SHOWN).where(artifacts.c.run_pk == pk)), ArtifactView)
        return RunArtifacts(
            state=_decide_state(row),
            reason=row.reason if row.state == "failed" else None,
            files=sorted(found, key=lambda each: each.path),
            gathered=row.files or 0,
            left_out=row.left_out or 0,
            left_out_named=[LeftOutFile(**each) for each in json.loads(row.left_out_named or "[]")],
        )

    def find(self, artifact_id: str) -> ArtifactView:
        """Load an artifact by its id. Raises ``ArtifactNotFound``, ``UnavailableError``."""
        wanted = sa.select(*SHOWN).where(artifacts.c.artifact_id == artifact_id)
        row = fetch_row(self._database.select(wanted), ArtifactView)
        if row is None:
            raise ArtifactNotFound(f"there is no artifact {artifact_id!r}")
        return row

    def load_content(self, artifact: ArtifactView) -> bytes:
        """Load the bytes of the file. Raises ``ArtifactNotFound`` when they were deleted meanwhile, and
        ``UnavailableError``."""
        body = self._database.select(sa.select(blobs.c.body).where(blobs.c.hash == artifact.blob_hash)).scalar()
        if body is None:
            raise ArtifactNotFound(f"there is no artifact {artifact.artifact_id!r}")
        return self._contents.load(artifact.tenant, artifact.blob_hash, body)


def _decide_state(row: _GatheringFacts) -> ArtifactsState:
    if row.artifacts is None:
        return "none"
    if row.exit_reason is None:
        return "open"
    return "done" if row.state == "done" else "failed" if row.state == "failed" else "pending"
