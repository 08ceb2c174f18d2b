"""What runs said and did not arrive: deliveries that failed, were given up, or are tried again."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from hermes_worker.core.delivery_states import DeliveryState
from hermes_worker.core.run_views import UndeliveredView
from hermes_worker.store.engine.prepared import fetch_rows, select_columns
from hermes_worker.store.outbox.deliveries import BUTTONS_GONE
from hermes_worker.store.tables import deliveries


class _UndeliveredRow(NamedTuple):
    run_pk: int
    delivery_id: str
    target: str
    state: str
    attempts: int
    not_before: float | None
    error: str | None


def list_undelivered(connection: Connection, run_pks: Collection[int]) -> Mapping[int, Sequence[UndeliveredView]]:
    """List the deliveries of runs that had no success, by row id of the run, in their order."""
    wanted = sa.select(*select_columns(deliveries, _UndeliveredRow)).where(
        deliveries.c.run_pk.in_(run_pks),
        deliveries.c.state != DeliveryState.DELIVERED.value,
        deliveries.c.error_kind.is_not(None),
        deliveries.c.is_preview == 0,
        ~deliveries.c.adjustments.contains(BUTTONS_GONE, autoescape=True),
    )
    found: dict[int, list[UndeliveredView]] = {}
    for row in fetch_rows(connection.execute(wanted.order_by(deliveries.c.pk)), _UndeliveredRow):
        fields = {**row._asdict(), "state": DeliveryState(row.state)}
        found.setdefault(fields.pop("run_pk"), []).append(UndeliveredView(**fields))
    return found
