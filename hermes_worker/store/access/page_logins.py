"""Logins of browsers to the page: each is a row, and its browser keeps a token that lasts twelve hours.

A login is made with a key and ends with the key, and its scopes are those of the key, checked at every request.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from hermes_worker.core.principals import DEFAULT_TENANT, Principal, format_named_holder, parse_scopes
from hermes_worker.store.access.audit import Act, record_action
from hermes_worker.store.access.principals import KEY_USABLE, hash_token, tenant_disabled_error
from hermes_worker.store.engine.database import Database, db_now
from hermes_worker.store.engine.prepared import fetch_row
from hermes_worker.store.tables import api_keys, page_logins, principals, tenants

LASTS_S = 12 * 3600.0
TOKEN_PREFIX = "hwp_"
_RANDOM_BYTES = 32
_LAPSED_MAX = 1_000
"""Rows of ended logins that one new login deletes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageLogin:
    """A new login of a browser; its ``token`` is shown once and stored only as a hash."""

    token: str = field(repr=False)
    expires_at: float
    """Epoch seconds."""
    lasts_s: float = LASTS_S


class _PageLoginRow(NamedTuple):
    tenant: str
    login_holder: str | None
    expires_at: float
    key_id: str | None
    scopes: str | None
    name: str | None
    disabled_at: float | None


_OPEN = page_logins.c.expires_at > db_now()
_FOUND = (
    sa.select(
        page_logins.c.tenant,
        page_logins.c.holder.label("login_holder"),
        page_logins.c.expires_at,
        api_keys.c.key_id,
        api_keys.c.scopes,
        principals.c.name,
        tenants.c.disabled_at,
    )
    .select_from(page_logins)
    .outerjoin(api_keys, sa.and_(api_keys.c.key_id == page_logins.c.key_id, KEY_USABLE))
    .outerjoin(principals, principals.c.pk == api_keys.c.principal_pk)
    .outerjoin(tenants, tenants.c.name == page_logins.c.tenant)
)


class PageLogins:
    """The page logins of an installation. ``holder`` is the holder of the installation's own key; logins by an earlier
    holder are over."""

    def __init__(self, database: Database, holder: str) -> None:
        self._database = database
        self._holder = holder

    def open(self, key: str, principal: Principal) -> PageLogin:
        """Log a browser in whose user showed ``key``, the key of ``principal``. Deletes lapsed logins."""
        token = f"{TOKEN_PREFIX}{secrets.token_urlsafe(_RANDOM_BYTES)}"
        with self._database.write() as connection:
            _delete_lapsed(connection)
            found = connection.execute(sa.select(api_keys.c.key_id).where(api_keys.c.hash == hash_token(key))).scalar()
            values = {
                "tenant": principal.tenant,
                "hash": hash_token(token),
                "key_id": found,
                "holder": None if found is not None else self._holder,
                "created_at": db_now(),
                "expires_at": db_now() + LASTS_S,
            }
            made = sa.insert(page_logins).values(**values).returning(page_logins.c.expires_at)
            expires_at = connection.execute(made).scalar_one()
            record_action(connection, Act.PAGE_LOGIN, principal.display_name, tenant=principal.tenant)
        return PageLogin(token=token, expires_at=float(expires_at))

    def find_principal(self, token: str) -> Principal | None:
        """Find the principal that a browser acts for; ``None`` when the login or its key is over. Raises
        ``TenantDisabled``."""
        wanted = _FOUND.where(page_logins.c.hash == hash_token(token), _OPEN)
        row = fetch_row(self._database.select(wanted), _PageLoginRow)
        if row is None:
            return None
        if row.login_holder is not None:
            return Principal(tenant=DEFAULT_TENANT, name=self._holder) if row.login_holder == self._holder else None
        if row.key_id is None or row.name is None:
            return None
        if row.disabled_at is not None:
            raise tenant_disabled_error(row.tenant)
        name = format_named_holder(row.name, row.key_id)
        return Principal(tenant=row.tenant, name=name, scopes=parse_scopes((row.scopes or "").split()))

    def find_expiry(self, token: str) -> float | None:
        """Find when a login ends, in epoch seconds; ``None`` when there is no such login."""
        wanted = sa.select(page_logins.c.expires_at).where(page_logins.c.hash == hash_token(token), _OPEN)
        found = self._database.select(wanted).scalar()
        return None if found is None else float(found)

    def close(self, token: str, principal: Principal) -> None:
        """End a login now. Idempotent."""
        with self._database.write() as connection:
            gone = connection.execute(sa.delete(page_logins).where(page_logins.c.hash == hash_token(token)))
            if gone.rowcount:
                record_action(connection, Act.PAGE_LOGOUT, principal.display_name, tenant=principal.tenant)


def _delete_lapsed(connection: Connection) -> None:
    lapsed = sa.select(page_logins.c.pk).where(page_logins.c.expires_at <= db_now()).limit(_LAPSED_MAX)
    connection.execute(sa.delete(page_logins).where(page_logins.c.pk.in_(lapsed)))
