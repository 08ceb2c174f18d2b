"""The offers of tool sources, as workers last saw them: one row for each source, with a version that counts its
changes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from hermes_worker.core.messages import dump_canonical_json
from hermes_worker.store.engine.database import RowStore, db_now
from hermes_worker.store.engine.prepared import fetch_views, select_view_columns
from hermes_worker.store.rows import build_insert_ignoring
from hermes_worker.store.tables import tool_sources

EVERY_TENANT = "*"
"""Stands in the place of a tenant's name, which it cannot be: a source that all tenants have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceRow:
    """The offer of a source when a worker last asked it."""

    source: str
    tenant: str
    version: int
    """Begins with 1 and grows with each change of what it offers."""
    definitions: Sequence[str]
    """Canonical JSON of each tool, as a session stores it."""
    changed_at: float
    listed_at: float
    """When a worker last saw that this is what it offers."""


class ToolSources(RowStore):
    """The tool sources in one database. Thread-safe; every method raises ``UnavailableError``."""

    def write(self, source: str, definitions: Sequence[str], *, tenant: str = EVERY_TENANT) -> bool:
        """Write what a source offers now. Returns whether it changed. Idempotent: any number of workers may write the
        same."""
        with self.database.write() as connection:
            return write_source(connection, source, definitions, tenant=tenant)

    def list_sources(self, tenant: str) -> Sequence[SourceRow]:
        """Load the sources of a tenant by name: its own row of a source replaces the row for all tenants."""
        statement = sa.select(*select_view_columns(tool_sources, SourceRow))
        statement = statement.where(tool_sources.c.tenant.in_((tenant, EVERY_TENANT)))
        found = fetch_views(self.database.select(statement), SourceRow, definitions=_read_definitions)
        ours = {row.source: row for row in sorted(found, key=lambda row: row.tenant == tenant)}
        return [ours[source] for source in sorted(ours)]


def write_source(connection: Connection, source: str, definitions: Sequence[str], *, tenant: str) -> bool:
    """Write what a source offers now, in the caller's transaction. Returns whether it changed."""
    body = f"[{','.join(definitions)}]"
    digest = hashlib.sha256(body.encode()).hexdigest()
    ours = (tool_sources.c.tenant == tenant) & (tool_sources.c.source == source)
    said = {"hash": digest, "definitions": body, "changed_at": db_now(), "listed_at": db_now()}
    made = connection.execute(
        build_insert_ignoring(connection, tool_sources)
        .values(tenant=tenant, source=source, version=1, **said)
        .returning(tool_sources.c.version)
    )
    if made.first() is not None:
        return True
    changed = connection.execute(
        sa.update(tool_sources)
        .where(ours, tool_sources.c.hash != digest)
        .values(version=tool_sources.c.version + 1, **said)
    )
    if changed.rowcount == 0:
        connection.execute(sa.update(tool_sources).where(ours).values(listed_at=db_now()))
    return changed.rowcount == 1


def _read_definitions(text: str) -> list[str]:
    return [dump_canonical_json(definition) for definition in json.loads(text)]
