"""Whether runs of this installation wait for places, and how many places there are."""

from __future__ import annotations

from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from hermes_worker.core.fair_share import PLACES_PER_SLOT
from hermes_worker.core.principals import DEFAULT_TENANT
from hermes_worker.store.engine.database import Database
from hermes_worker.store.engine.prepared import Prepared
from hermes_worker.store.tables import limits, tenants, workers

FLEET = "*"
"""The tenant name in rows that are about the whole fleet."""
PLACES = "places"
"""The name of the fleet's limit of runs at work."""
PLACES_MIN = 16
"""Places of a fleet in which no worker has reported yet how many steps it does at once."""


class _Sharing(NamedTuple):
    is_shared: bool


class _FleetSize(NamedTuple):
    slots: int
    places: int | None


_is_others: sa.ColumnElement[bool] = sa.and_(tenants.c.name != DEFAULT_TENANT, tenants.c.disabled_at.is_(None))
_IS_SHARED = Prepared(
    sa.select(sa.or_(sa.exists().where(_is_others), sa.exists().where(limits.c.tenant != FLEET)).label("is_shared")),
    gives=_Sharing,
)
_FLEET_SIZE = Prepared(
    sa.select(
        sa.select(sa.func.coalesce(sa.func.sum(workers.c.slots), 0))
        .where(workers.c.state == "alive")
        .scalar_subquery()
        .label("slots"),
        sa.select(limits.c.value)
        .where(limits.c.tenant == FLEET, limits.c.key_id == "", limits.c.name == PLACES)
        .scalar_subquery()
        .label("places"),
    ),
    gives=_FleetSize,
)


def is_shared(connection: Connection) -> bool:
    """Whether new runs wait for a place: more than one tenant may begin runs, or a tenant has a limit. At most half a
    second old. The connection is in a transaction."""
    remembered = Database.get_remembered(connection)
    return remembered.get("is_shared", lambda: bool(_IS_SHARED.one(connection, {}).is_shared))


def get_fleet_places(connection: Connection, database: Database) -> int:
    """Get how many runs may be at work at once in the whole fleet. At most half a second old."""
    found = database.remembered.get("fleet", lambda: _FLEET_SIZE.one(connection, {}))
    return found.places or max(PLACES_MIN, PLACES_PER_SLOT * int(found.slots))
