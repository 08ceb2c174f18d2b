"""Filters of lists that people saved under a name, to use them from any browser.

They belong to the holder of a key, not to the key: they stay when the key is replaced. Other holders of the tenant do
not see them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import sqlalchemy as sa

from hermes_worker.core.errors import HermesError
from hermes_worker.core.principals import Principal
from hermes_worker.store.access.audit import Act, record_action
from hermes_worker.store.engine.database import RowStore, db_now
from hermes_worker.store.engine.prepared import fetch_rows, select_columns
from hermes_worker.store.rows import build_insert_ignoring
from hermes_worker.store.tables import saved_filters

SAVED_MAX: Final = 100
"""The most filters of one holder."""


class FilterNotFound(HermesError):
    """The holder has no filter of that name."""


class FiltersFull(HermesError):
    """The holder has ``SAVED_MAX`` filters."""


class SavedFilter(NamedTuple):
    """A filter of one holder."""

    name: str
    query: str
    """The query part of the list's address, such as ``status=failed&tag=nightly``."""
    changed_at: float
    """Epoch seconds."""


def find_holder(principal: Principal) -> str:
    """Return the holder that owns filters: the principal without its key id. Holders' names contain no slash."""
    return principal.display_name.partition("/")[0]


class SavedFilters(RowStore):
    """Reads and writes the filters of holders."""

    def list(self, principal: Principal) -> Sequence[SavedFilter]:
        """List all filters of the holder, by name. Raises ``UnavailableError``."""
        wanted = sa.select(*select_columns(saved_filters, SavedFilter)).where(_is_owned_by(principal))
        return fetch_rows(self.database.select(wanted.order_by(saved_filters.c.name)), SavedFilter)

    def save(self, principal: Principal, name: str, query: str) -> None:
        """Store ``query`` under ``name``, replacing what was stored there. Idempotent. Raises ``FiltersFull``,
        ``UnavailableError``."""
        ours = {"tenant": principal.tenant, "holder": find_holder(principal), "name": name}
        with self.database.write() as connection:
            row = {**ours, "query": query, "changed_at": db_now()}
            connection.execute(build_insert_ignoring(connection, saved_filters).values(row))
            this = _is_owned_by(principal) & (saved_filters.c.name == name)
            connection.execute(sa.update(saved_filters).where(this).values(query=query, changed_at=db_now()))
            count = sa.select(sa.func.count()).select_from(saved_filters).where(_is_owned_by(principal))
            if int(connection.execute(count).scalar_one()) > SAVED_MAX:
                raise FiltersFull(f"there are {SAVED_MAX} saved filters: remove one first")
            record_action(connection, Act.FILTER_SAVE, find_holder(principal), tenant=principal.tenant)

    def remove(self, principal: Principal, name: str) -> None:
        """Delete a filter. Raises ``FilterNotFound``, ``UnavailableError``."""
        this = _is_owned_by(principal) & (saved_filters.c.name == name)
        with self.database.write() as connection:
            if not connection.execute(sa.delete(saved_filters).where(this)).rowcount:
                raise FilterNotFound(f"there is no saved filter {name!r}")
            record_action(connection, Act.FILTER_REMOVE, find_holder(principal), tenant=principal.tenant)


def _is_owned_by(principal: Principal) -> sa.ColumnElement[bool]:
    return (saved_filters.c.tenant == principal.tenant) & (saved_filters.c.holder == find_holder(principal))
