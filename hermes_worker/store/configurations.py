"""The configuration of a fleet and of its tenants as rows: every version is a row, and the newest one counts.

A row is never changed. A writer names the version that it read; if another one is the newest by then, nothing is
written. So two operators cannot overwrite each other, and earlier versions can be read and written again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa

from hermes_worker.core.errors import HermesError, UnavailableError
from hermes_worker.core.messages import dump_canonical_json
from hermes_worker.core.principals import DEFAULT_TENANT
from hermes_worker.store.access.audit import Act, record_action
from hermes_worker.store.access.principals import lock_tenant
from hermes_worker.store.engine.database import RowStore, db_now
from hermes_worker.store.engine.prepared import Nothing, Prepared, fetch_one, fetch_row, fetch_rows, select_columns
from hermes_worker.store.rows import build_insert_ignoring
from hermes_worker.store.runs.runs import SessionNotFound, session_is
from hermes_worker.store.session_references import find_session
from hermes_worker.store.tables import configurations, session_documents, sessions

OVERRIDES_KEY = "settings.overrides"
"""The key of the session document that holds the overrides of a session's settings."""
VERSIONS_KEPT = 100
"""Versions that are kept of each configuration."""
_FLEET = ""


class ConfigurationMoved(HermesError):
    """Another version than the one that was read is the newest."""


class ConfigurationVersion(NamedTuple):
    """One version of the configuration of the fleet, or of a tenant."""

    of_tenant: str
    """The tenant; empty for the configuration of the fleet."""
    version: int
    text: str
    """YAML, as in ``config.yaml``."""
    written_by: str
    created_at: float
    """Epoch seconds."""


class _Newest(NamedTuple):
    pk: int | None


class _SessionFound(NamedTuple):
    pk: int
    session_id: str


_NEWEST: Prepared[Nothing, _Newest] = Prepared(sa.select(sa.func.max(configurations.c.pk).label("pk")), gives=_Newest)
_ALL = sa.select(*select_columns(configurations, ConfigurationVersion))


class Configurations(RowStore):
    """The configurations of one database. Thread-safe; every method raises ``UnavailableError``."""

    def load_newest_number(self) -> int:
        """Load a number that grows with every version written; 0 while there is none."""
        with self.database.read() as connection:
            return _NEWEST.one(connection, {}).pk or 0

    def list_current(self) -> list[ConfigurationVersion]:
        """Load the newest version of each configuration."""
        of, version = configurations.c.of_tenant, configurations.c.version
        newest = sa.select(of.label("of_tenant"), sa.func.max(version).label("version")).group_by(of).subquery()
        both = (newest.c.of_tenant == of) & (newest.c.version == version)
        return fetch_rows(self.database.select(_ALL.join(newest, both)), ConfigurationVersion)

    def find(self, tenant: str | None, version: int | None = None) -> ConfigurationVersion | None:
        """Load a version of a tenant's configuration, or of the fleet's for ``None``; without a number the newest one.
        ``None`` when there is none."""
        wanted = _ALL.where(configurations.c.of_tenant == (tenant or _FLEET))
        wanted = wanted if version is None else wanted.where(configurations.c.version == version)
        found = self.database.select(wanted.order_by(configurations.c.version.desc()).limit(1))
        return fetch_row(found, ConfigurationVersion)

    def list_versions(self, tenant: str | None, limit: int = VERSIONS_KEPT) -> list[ConfigurationVersion]:
        """List the newest versions, the newest first."""
        wanted = _ALL.where(configurations.c.of_tenant == (tenant or _FLEET))
        found = self.database.select(wanted.order_by(configurations.c.version.desc()).limit(limit))
        return fetch_rows(found, ConfigurationVersion)

    def list_versions_if_any(self, limit: int) -> list[ConfigurationVersion]:
        """List the newest versions of the fleet's configuration for a process that starts: empty when the database is
        missing, or older than this table."""
        try:
            return self.list_versions(None, limit)
        except (UnavailableError, sa.exc.DatabaseError):
            return []

    def write(
        self, tenant: str | None, text: str, *, expected: int, written_by: str, changed: Sequence[str] = ()
    ) -> ConfigurationVersion:
        """Write the version after ``expected``, which is 0 for the first one. ``changed`` are the keys whose values
        differ, for the audit log. Raises ``ConfigurationMoved``, ``TenantNotFound``."""
        of = tenant or _FLEET
        this = configurations.c.of_tenant == of
        values = {"of_tenant": of, "version": expected + 1, "text": text, "written_by": written_by}
        with self.database.write() as connection:
            if tenant is not None:
                lock_tenant(connection, tenant)
            newest = connection.execute(sa.select(sa.func.max(configurations.c.version)).where(this)).scalar() or 0
            made = build_insert_ignoring(connection, configurations).values(**values, created_at=db_now())
            if newest != expected or connection.execute(made.returning(configurations.c.pk)).first() is None:
                raise ConfigurationMoved(
                    f"version {newest} of this configuration is the newest, and not version {expected}: read it again "
                    "and make your change there"
                )
            oldest = expected + 1 - VERSIONS_KEPT
            connection.execute(sa.delete(configurations).where(this, configurations.c.version <= oldest))
            record_action(
                connection,
                Act.CONFIGURATION_WRITE,
                of or "fleet",
                tenant=tenant or DEFAULT_TENANT,
                before={"version": newest},
                after={"version": expected + 1, "changed": list(changed)},
            )
            written = connection.execute(_ALL.where(this, configurations.c.version == expected + 1))
            return fetch_one(written, ConfigurationVersion)

    def load_overrides(self, tenant: str, source: str, reference: str) -> dict[str, str]:
        """Load the overrides of a session; empty when there is no such session (yet)."""
        this = session_is(tenant, source, reference)
        wanted = _select_documents().where(this)
        body = self.database.select(wanted).scalar()
        return _parse_overrides(body)

    def require_overrides(self, tenant: str, reference: str, source: str = "api") -> dict[str, str]:
        """Load the overrides of a session, by its id or by a name from ``source``. Raises ``SessionNotFound``."""
        this = sa.select(sessions.c.pk).where(session_is(tenant, source, reference))
        if self.database.select(this).first() is None:
            raise SessionNotFound(f"Session not found: {reference}")
        return self.load_overrides(tenant, source, reference)

    def require_overrides_of_any(self, reference: str, source: str = "api") -> tuple[str, dict[str, str]]:
        """Load the tenant and the overrides of a session, for operators, who name a session of any tenant by its id, or
        one of the default tenant as ``find_session`` takes it. Raises ``SessionNotFound``."""
        with self.database.read() as connection:
            this = sa.select(sessions.c.tenant).where(sessions.c.session_id == reference)
            tenant = connection.execute(this).scalar()
            session_id = reference
            if tenant is None:
                tenant, session_id = DEFAULT_TENANT, find_session(connection, DEFAULT_TENANT, source, reference)[1]
        return str(tenant), self.load_overrides(str(tenant), "api", session_id)

    def update_overrides(
        self, tenant: str, reference: str, said: Mapping[str, str | None], source: str = "api"
    ) -> dict[str, str]:
        """Change the overrides of a session: ``None`` removes one, and keys that are not named stay. Returns all
        overrides after that. Raises ``SessionNotFound``."""
        with self.database.write() as connection:
            this = sa.select(sessions.c.pk, sessions.c.session_id).where(session_is(tenant, source, reference))
            found = fetch_row(connection.execute(this.with_for_update()), _SessionFound)
            if found is None:
                raise SessionNotFound(f"Session not found: {reference}")
            mine = (session_documents.c.session_pk == found.pk) & (session_documents.c.key == OVERRIDES_KEY)
            body = connection.execute(sa.select(session_documents.c.body).where(mine)).scalar()
            before = _parse_overrides(body)
            after = {key: value for key, value in {**before, **said}.items() if value is not None}
            connection.execute(sa.delete(session_documents).where(mine))
            if after:
                row = {"session_pk": found.pk, "key": OVERRIDES_KEY, "body": dump_canonical_json(after)}
                connection.execute(sa.insert(session_documents).values(**row))
            record_action(connection, Act.SESSION_CHANGE, found.session_id, after={"changed": sorted(said)})
            return after


def _select_documents() -> sa.Select[Any]:
    ours = (session_documents.c.session_pk == sessions.c.pk) & (session_documents.c.key == OVERRIDES_KEY)
    return sa.select(session_documents.c.body).join(sessions, ours)


def _parse_overrides(body: str | None) -> dict[str, str]:
    return {str(key): str(value) for key, value in json.loads(body).items()} if body else {}
