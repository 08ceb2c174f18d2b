"""MCP servers of tenants as rows: added, approved and removed by people, polled by workers and hosts.

A person's change makes a new version and makes the row due. A process that polls takes a due row for ``TAKEN_S``, asks
the server without a transaction, and writes what it found for the version that it read: when a person's change came in
between, nothing is written, and the row is still due. Several processes may poll at once.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from hermes_worker.core.errors import HermesError
from hermes_worker.core.row_sources import format_source
from hermes_worker.store.access.audit import Act, Facts, record_action
from hermes_worker.store.access.principals import lock_tenant
from hermes_worker.store.engine.database import RowStore, db_now, require_encryption
from hermes_worker.store.engine.prepared import fetch_row, fetch_views, select_view_columns
from hermes_worker.store.resources import ResourceKind
from hermes_worker.store.rows import build_insert_ignoring, make_storable
from hermes_worker.store.tables import mcp_servers, resources, tool_sources
from hermes_worker.store.tool_sources import write_source

SERVERS_MAX: Final = 50
"""The most servers of one tenant."""
TAKEN_S: Final = 120.0
"""Seconds after which another process may poll a row whose poll has not ended."""
PROBLEM_CHARS_MAX: Final = 500


class McpServerNotFound(HermesError):
    """The tenant has no MCP server of this name."""


class McpServerExists(HermesError):
    """The tenant has another MCP server of this name."""


class McpServerChanged(HermesError):
    """The server was changed by another request at the same time."""


class McpServersFull(HermesError):
    """The tenant has as many MCP servers as it may have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class McpServerRow:
    """The row of a server. Times are epoch seconds."""

    tenant: str
    name: str
    version: int
    is_process: bool
    server: str = field(repr=False)
    """``mcp.servers.McpServer`` as JSON."""
    offered: str | None = field(repr=False)
    """JSON of the definitions that the server offered when it was last asked."""
    problem: str | None
    """Why the last attempt to ask it failed; ``None`` when it succeeded."""
    has_token: bool
    created_at: float
    changed_at: float
    looked_at: float | None
    """When it was last asked; ``None`` since it got another address or command."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewMcpServer:
    """The new values of a server's row."""

    server: str = field(repr=False)
    is_process: bool
    token: str | None = field(default=None, repr=False)
    """A new token; ``None`` for none."""
    keeps_token: bool = False
    """The stored token stays."""
    is_elsewhere: bool = False
    """The address or command is another than before: what the server offered is dropped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class McpServerWithToken:
    """A server with its token, about to be asked."""

    row: McpServerRow
    token: str | None = field(repr=False)


class _DueServer(NamedTuple):
    tenant: str
    name: str
    due_at: float


_WANTED = sa.select(
    *select_view_columns(mcp_servers, McpServerRow),
    mcp_servers.c.token.is_not(None).label("has_token"),
)


class McpServers(RowStore):
    """The MCP servers of one database's tenants. Thread-safe; every method raises ``UnavailableError``."""

    # --- for people --------------------------------------------------------------------------------------------------

    def list_of_tenant(self, tenant: str) -> list[McpServerRow]:
        """List the servers of a tenant, by name."""
        wanted = _WANTED.where(mcp_servers.c.tenant == tenant).order_by(mcp_servers.c.name)
        return fetch_views(self.database.select(wanted), McpServerRow)

    def list_all(self) -> list[McpServerRow]:
        """List the servers of all tenants, by tenant and name; for operators."""
        wanted = _WANTED.order_by(mcp_servers.c.tenant, mcp_servers.c.name)
        return fetch_views(self.database.select(wanted), McpServerRow)

    def find(self, tenant: str, name: str) -> McpServerRow | None:
        with self.database.read() as connection:
            return _find_row(connection, tenant, name)

    def require(self, tenant: str, name: str) -> McpServerRow:
        """Load a server. Raises ``McpServerNotFound``."""
        found = self.find(tenant, name)
        if found is None:
            raise _server_not_found(name)
        return found

    def write_server(
        self, tenant: str, name: str, new: NewMcpServer, *, before: McpServerRow | None, facts: Facts
    ) -> None:
        """Insert a server, or change the one that was read as ``before``. Processes of its former command are ended.
        Raises ``McpServerChanged``, ``McpServersFull``, ``TextsInClear``, ``TenantNotFound``."""
        if new.token is not None:
            require_encryption(self.database, "token")
        values: dict[str, object] = {"server": make_storable(new.server), "is_process": new.is_process}
        if not new.keeps_token:
            values["token"] = new.token
        if new.is_elsewhere:
            values |= {"offered": None, "problem": None, "looked_at": None}
        with self.database.write() as connection:
            if before is None:
                self._insert(connection, tenant, name, values)
            else:
                _update_if_unchanged(connection, before, values)
            _end_processes(connection, tenant, name)
            if new.is_elsewhere:
                _delete_tools(connection, tenant, name)
            record_action(connection, Act.MCP_SERVER_KEEP, name, tenant=tenant, after=facts)

    def approve(self, before: McpServerRow, server: str, *, facts: Facts) -> None:
        """Write the server with what is approved of it now, and restart its processes. Raises ``McpServerChanged``."""
        with self.database.write() as connection:
            _update_if_unchanged(connection, before, {"server": make_storable(server)})
            _end_processes(connection, before.tenant, before.name)
            record_action(connection, Act.MCP_SERVER_APPROVE, before.name, tenant=before.tenant, after=facts)

    def mark_due(self, tenant: str, name: str) -> None:
        """Make the server due for a poll now. Idempotent. Raises ``McpServerNotFound``."""
        with self.database.write() as connection:
            asked = sa.update(mcp_servers).where(_is_server(tenant, name)).values(due_at=db_now())
            if connection.execute(asked).rowcount == 0:
                raise _server_not_found(name)
            record_action(connection, Act.MCP_SERVER_TEST, name, tenant=tenant)

    def remove(self, tenant: str, name: str) -> None:
        """Delete a server, with its token, its tools and its processes. Raises ``McpServerNotFound``."""
        with self.database.write() as connection:
            if connection.execute(sa.delete(mcp_servers).where(_is_server(tenant, name))).rowcount == 0:
                raise _server_not_found(name)
            _end_processes(connection, tenant, name)
            _delete_tools(connection, tenant, name)
            record_action(connection, Act.MCP_SERVER_REMOVE, name, tenant=tenant)

    def _insert(self, connection: Connection, tenant: str, name: str, values: dict[str, object]) -> None:
        lock_tenant(connection, tenant)
        count = sa.select(sa.func.count()).select_from(mcp_servers).where(mcp_servers.c.tenant == tenant)
        if connection.execute(count).scalar_one() >= SERVERS_MAX:
            raise McpServersFull(f"the tenant {tenant!r} has {SERVERS_MAX} MCP servers; remove one first")
        times = {"created_at": db_now(), "changed_at": db_now(), "due_at": db_now()}
        # A random version, so that a look at a removed server of this name does not match the new one.
        version = secrets.randbelow(2**30) + 1
        row = build_insert_ignoring(connection, mcp_servers).values(
            tenant=tenant, name=name, version=version, **values, **times
        )
        if connection.execute(row.returning(mcp_servers.c.version)).first() is None:
            raise _server_changed_error(name)

    # --- for workers and hosts ---------------------------------------------------------------------------------------

    def load_with_token(self, tenant: str, name: str) -> McpServerWithToken | None:
        """Load the server with its token, to be asked now; ``None`` when it is gone. Raises ``KeyMissing``,
        ``TextTampered``."""
        with self.database.read() as connection:
            row = _find_row(connection, tenant, name)
            if row is None:
                return None
            token = connection.execute(sa.select(mcp_servers.c.token).where(_is_server(tenant, name))).scalar()
        return McpServerWithToken(row=row, token=token)

    def claim_due(self, *, is_process: bool) -> tuple[str, str] | None:
        """Claim the server that is due the longest. Returns its tenant and name; no other process gets it for
        ``TAKEN_S`` seconds unless a person makes it due again. ``None`` when none is due."""
        due = (mcp_servers.c.is_process == sa.literal(is_process)) & (mcp_servers.c.due_at <= db_now())
        wanted = sa.select(mcp_servers.c.tenant, mcp_servers.c.name, mcp_servers.c.due_at).where(due)
        row = fetch_row(self.database.select(wanted.order_by(mcp_servers.c.due_at).limit(1)), _DueServer)
        if row is None:
            return None
        mine = _is_server(row.tenant, row.name) & (mcp_servers.c.due_at == row.due_at)
        taken = self.database.execute(sa.update(mcp_servers).where(mine).values(due_at=db_now() + TAKEN_S))
        return (row.tenant, row.name) if taken == 1 else None

    def record_offer(
        self, row: McpServerRow, *, offered: str, server: str, definitions: Sequence[str], again_s: float
    ) -> bool:
        """Write what a server offers now; ``definitions`` are those that sessions may have. Returns False when a person
        changed the server meanwhile. Idempotent."""
        values = {"offered": make_storable(offered), "server": make_storable(server), "problem": None}
        with self.database.write() as connection:
            if not _record_poll(connection, row, values, again_s):
                return False
            write_source(connection, format_source(row.name), definitions, tenant=row.tenant)
            return True

    def record_problem(self, row: McpServerRow, problem: str, *, again_s: float) -> bool:
        """Write why a server could not be asked; its tools stay available to sessions. Returns False when a person
        changed the server meanwhile."""
        with self.database.write() as connection:
            return _record_poll(connection, row, {"problem": make_storable(problem)[:PROBLEM_CHARS_MAX]}, again_s)


def _is_server(tenant: str, name: str) -> sa.ColumnElement[bool]:
    return sa.and_(mcp_servers.c.tenant == tenant, mcp_servers.c.name == name)


def _find_row(connection: Connection, tenant: str, name: str) -> McpServerRow | None:
    found = fetch_views(connection.execute(_WANTED.where(_is_server(tenant, name))), McpServerRow)
    return next(iter(found), None)


def _update_if_unchanged(connection: Connection, before: McpServerRow, values: dict[str, object]) -> None:
    this = _is_server(before.tenant, before.name) & (mcp_servers.c.version == before.version)
    times = {"changed_at": db_now(), "due_at": db_now()}
    changed = sa.update(mcp_servers).where(this).values(version=before.version + 1, **values, **times)
    if connection.execute(changed).rowcount == 0:
        raise _server_changed_error(before.name)


def _record_poll(connection: Connection, row: McpServerRow, values: dict[str, str | None], again_s: float) -> bool:
    this = _is_server(row.tenant, row.name) & (mcp_servers.c.version == row.version)
    times = {"looked_at": db_now(), "due_at": db_now() + again_s}
    return connection.execute(sa.update(mcp_servers).where(this).values(**values, **times)).rowcount == 1


def _end_processes(connection: Connection, tenant: str, name: str) -> None:
    """Delete the rows of the server's processes; their host notices and ends them."""
    of = (resources.c.kind == ResourceKind.MCP_STDIO.value) & (resources.c.name == format_source(name))
    connection.execute(sa.delete(resources).where(of, resources.c.tenant == tenant))


def _delete_tools(connection: Connection, tenant: str, name: str) -> None:
    of = (tool_sources.c.tenant == tenant) & (tool_sources.c.source == format_source(name))
    connection.execute(sa.delete(tool_sources).where(of))


def _server_not_found(name: str) -> McpServerNotFound:
    return McpServerNotFound(f"there is no MCP server {name!r}")


def _server_changed_error(name: str) -> McpServerChanged:
    return McpServerChanged(f"somebody else changed the MCP server {name!r} at the same time; look at it again")
