"""Load the roles of a run that decide what it may change and see."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from hermes_worker.core.principals import KeyScope, parse_scopes
from hermes_worker.core.run_writers import MemoryWriter, decide_writers
from hermes_worker.store.engine.database import RowStore
from hermes_worker.store.engine.prepared import fetch_row
from hermes_worker.store.tables import api_keys, runs


class _AskingRun(NamedTuple):
    origin: str | None
    parent_pk: int | None
    principal: str | None
    tenant: str
    overrides: str | None


class MemoryRequester(NamedTuple):
    """A run that asks to change memories."""

    writers: frozenset[MemoryWriter]
    """The roles of the run that decide whether it may."""
    overrides: Mapping[str, str]
    """The settings that the run was accepted with and that differ from those of its processes."""


def is_guest(connection: Connection, tenant: str, principal: str | None) -> bool:
    """Whether ``principal`` is a key that was given out without the scope for memories. Keys of the installation, and
    people at the machine, are no guests; that costs no statement."""
    key_id = (principal or "").rpartition("/")[2]
    if not (principal or "").startswith("api:") or not key_id.startswith("key_"):
        return False
    this = sa.and_(api_keys.c.tenant == tenant, api_keys.c.key_id == key_id)
    words = connection.execute(sa.select(api_keys.c.scopes).where(this)).scalar()
    scopes = parse_scopes((words or "").split())
    return KeyScope.MEMORY not in scopes and KeyScope.ADMIN not in scopes


class RunWriters(RowStore):
    """The roles of the runs of one database. Thread-safe."""

    def load_writers(self, run_id: str) -> frozenset[MemoryWriter]:
        """Load the roles of a run that decide whether it may write, from its rows alone."""
        return self.load_requester(run_id).writers

    def load_requester(self, run_id: str) -> MemoryRequester:
        """Load the roles of a run that decide whether it may write, with the settings that count for the run."""
        root = runs.alias("root")
        wanted = (
            sa.select(runs.c.origin, runs.c.parent_pk, root.c.principal, runs.c.tenant, runs.c.overrides)
            .join(root, root.c.pk == sa.func.coalesce(runs.c.root_pk, runs.c.pk))
            .where(runs.c.run_id == run_id)
        )
        with self.database.read() as connection:
            asker = fetch_row(connection.execute(wanted), _AskingRun)
            if asker is None:
                return MemoryRequester(frozenset({MemoryWriter.GUEST}), {})
            guest = is_guest(connection, asker.tenant, asker.principal)
        writers = decide_writers(asker.origin or "", is_child=asker.parent_pk is not None, is_guest=guest)
        return MemoryRequester(writers, json.loads(asker.overrides) if asker.overrides else {})
