"""Routes of inbound webhooks, and how often events came."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields

import sqlalchemy as sa

from hermes_worker.core.errors import HermesError
from hermes_worker.core.principals import DEFAULT_TENANT
from hermes_worker.features.webhooks.tables import webhook_routes
from hermes_worker.store.access.audit import Act, record_action
from hermes_worker.store.engine.database import db_now
from hermes_worker.store.owners import TenantRows
from hermes_worker.store.rows import build_insert_ignoring, make_storable
from hermes_worker.store.tables import webhook_events

WINDOW_S = 60.0


class RouteExists(HermesError):
    """Another route has this name."""


class RouteNotFound(HermesError):
    """No route has this name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteRow:
    """A route. ``created_at`` in epoch seconds."""

    tenant: str
    name: str
    secret: str = field(repr=False)
    """Encrypted with the server key (``features.webhooks.rules.sealed``)."""
    definition: str
    created_at: float

    @property
    def full_name(self) -> str:
        """The name of the route in addresses, and among the routes of all tenants."""
        return format_route_name(self.tenant, self.name)


_COLUMNS = tuple(webhook_routes.c[each.name] for each in fields(RouteRow))


def format_route_name(tenant: str, name: str) -> str:
    """The name of a route in addresses, and among the routes of all tenants."""
    return name if tenant == DEFAULT_TENANT else f"{tenant}/{name}"


class Webhooks(TenantRows):
    """The routes of one tenant. Thread-safe."""

    def add(self, name: str, secret: str, definition: str, *, replaces: bool = False) -> None:
        """Store a route. Raises ``RouteExists`` unless it may replace the route of the same name."""
        values = {
            "tenant": self.tenant,
            "name": name,
            "secret": make_storable(secret),
            "definition": make_storable(definition),
        }
        with self.database.write() as connection:
            if replaces:
                connection.execute(sa.delete(webhook_routes).where(self._is_route(name)))
            added = build_insert_ignoring(connection, webhook_routes).values(**values, created_at=db_now())
            if connection.execute(added.returning(webhook_routes.c.name)).first() is None:
                raise RouteExists(f"there is a route {name!r} already; replace it with --replace")
            record_action(connection, Act.ROUTE_ADD, name, tenant=self.tenant, after={"replaces": replaces})

    def find(self, name: str) -> RouteRow | None:
        found = self.database.select(sa.select(*_COLUMNS).where(self._is_route(name))).mappings().first()
        return RouteRow(**found) if found is not None else None

    def list_routes(self) -> list[RouteRow]:
        return self._load_routes(sa.select(*_COLUMNS).where(webhook_routes.c.tenant == self.tenant))

    def list_all_tenants(self) -> list[RouteRow]:
        """List the routes of all tenants."""
        return self._load_routes(sa.select(*_COLUMNS))

    def _load_routes(self, wanted: sa.Select[tuple[object, ...]]) -> list[RouteRow]:
        found = self.database.select(wanted.order_by("tenant", "name")).mappings()
        return [RouteRow(**each) for each in found]

    def reseal(self, change: Callable[[RouteRow], str | None]) -> int:
        """Store what ``change`` returns for the secret of each route of every tenant; ``None`` leaves it. A route that
        was changed at the same time stays as it is. Returns how many were changed; safe in several processes at
        once."""
        changed = 0
        for row in self.list_all_tenants():
            if (secret := change(row)) is None:
                continue
            same = (webhook_routes.c.tenant == row.tenant) & (webhook_routes.c.name == row.name)
            same &= webhook_routes.c.secret == row.secret
            update = sa.update(webhook_routes).where(same).values(secret=make_storable(secret))
            changed += self.database.execute(update)
        return changed

    def remove(self, name: str) -> None:
        """Delete a route. Raises ``RouteNotFound``."""
        with self.database.write() as connection:
            removed = connection.execute(sa.delete(webhook_routes).where(self._is_route(name)))
            if removed.rowcount == 0:
                raise RouteNotFound(f"there is no route {name!r}")
            record_action(connection, Act.ROUTE_REMOVE, name, tenant=self.tenant)

    def admit(self, name: str, rate_per_min: int) -> bool:
        """Count an event that came just now; False when too many came in the last minute. Exact over all servers: the
        route's row is locked."""
        recent = sa.select(sa.func.count()).where(
            webhook_events.c.tenant == self.tenant,
            webhook_events.c.route == name,
            webhook_events.c.received_at > db_now() - WINDOW_S,
        )
        with self.database.write() as connection:
            connection.execute(sa.select(webhook_routes.c.name).where(self._is_route(name)).with_for_update()).first()
            if connection.execute(recent).scalar_one() >= rate_per_min:
                return False
            event = {"tenant": self.tenant, "route": name}
            connection.execute(sa.insert(webhook_events).values(**event, received_at=db_now()))
        return True

    def _is_route(self, name: str) -> sa.ColumnElement[bool]:
        return sa.and_(webhook_routes.c.tenant == self.tenant, webhook_routes.c.name == name)
