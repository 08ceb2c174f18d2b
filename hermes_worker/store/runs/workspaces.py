"""The workspaces of runs, for people who look at their files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import sqlalchemy as sa

from hermes_worker.core.home_paths import strip_said
from hermes_worker.store.access.audit import Act, record_action
from hermes_worker.store.engine.database import RowStore
from hermes_worker.store.engine.prepared import fetch_one
from hermes_worker.store.rewinds import Rewind, record_rewind
from hermes_worker.store.runs.runs import find_run
from hermes_worker.store.tables import runs, sessions

_NAMED_MAX = 20


class RunWorkspace(NamedTuple):
    """The workspace in which one run works, or worked."""

    session_id: str
    tenant: str
    workspace: str
    """The stored description (``workspaces.ref``)."""


class RunWorkspaces(RowStore):
    """Loads workspaces of runs, and records what people did to files in them. Thread-safe."""

    def load_workspace(self, run_id: str) -> RunWorkspace:
        """Load the workspace of a run. Raises ``RunNotFound``."""
        wanted = sa.select(sessions.c.session_id, sessions.c.tenant, sessions.c.workspace).join(
            runs, runs.c.session_pk == sessions.c.pk
        )
        with self.database.read() as connection:
            pk = find_run(connection, run_id)
            return fetch_one(connection.execute(wanted.where(runs.c.pk == pk)), RunWorkspace)

    def list_open_runs(self, place: RunWorkspace) -> Sequence[str]:
        """List the ids of the first runs that work in this workspace now, in any session."""
        wanted = (
            sa.select(runs.c.run_id, sessions.c.workspace)
            .join(sessions, sessions.c.active_run_pk == runs.c.pk)
            .where(sessions.c.tenant == place.tenant)
            .order_by(runs.c.pk)
        )
        here = strip_said(place.workspace)
        found = [run_id for run_id, workspace in self.database.select(wanted) if strip_said(workspace) == here]
        return found[:_NAMED_MAX]

    def record_restore(self, run_id: str, checkpoint: str, *, before: str, files: int, rewind: Rewind) -> None:
        """Record that a person restored files from a checkpoint: in the audit log, and for every conversation that
        works in them."""
        with self.database.write() as connection:
            place = sa.select(sessions.c.tenant, sessions.c.workspace).join(runs, runs.c.session_pk == sessions.c.pk)
            tenant, workspace = connection.execute(place.where(runs.c.pk == find_run(connection, run_id))).one()
            # In the order of their keys, so that two restores do not wait for each other.
            here = sa.select(sessions.c.pk).where(sessions.c.tenant == tenant, sessions.c.workspace == workspace)
            pks = connection.execute(here.order_by(sessions.c.pk).with_for_update()).scalars().all()
            for pk in pks:
                its = sa.or_(
                    runs.c.session_pk == pk, runs.c.root_pk.in_(sa.select(runs.c.pk).where(runs.c.session_pk == pk))
                )
                record_rewind(connection, pk, replace(rewind, calls=its & rewind.calls))
            after = {"checkpoint": checkpoint, "files": files}
            record_action(connection, Act.RUN_RESTORE, run_id, before={"checkpoint": before}, after=after)
