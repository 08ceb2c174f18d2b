"""Tenants, principals, and their API keys."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from hermes_worker.core.errors import HermesError
from hermes_worker.core.principals import (
    DEFAULT_TENANT,
    KeyScope,
    Principal,
    format_named_holder,
    parse_scopes,
    require_holder_name,
    require_tenant_name,
)
from hermes_worker.store.access.audit import Act, record_action
from hermes_worker.store.engine.database import RowStore, db_now
from hermes_worker.store.engine.prepared import (
    fetch_row,
    fetch_views,
    select_columns,
    select_view_columns,
)
from hermes_worker.store.outbox.deliveries import DeliveryNotFound
from hermes_worker.store.rows import build_insert_ignoring
from hermes_worker.store.runs.runs import run_missing_error
from hermes_worker.store.tables import api_keys, deliveries, principals, runs, tenants

KEY_PREFIX = "hwk_"
"""The beginning of our keys, by which a key in a text is recognised as a secret."""
USED_EVERY_S = 60.0
"""The precision of ``last_used_at`` in seconds: it is written at most this often."""
_RANDOM_BYTES = 32


class TenantNotFound(HermesError):
    """No tenant has this name."""


class TenantExists(HermesError):
    """A tenant has this name already."""


class TenantDisabled(HermesError):
    """The tenant is disabled: its keys open nothing, and nothing new begins for it."""


class DefaultTenantStays(HermesError):
    """The tenant of the installation cannot be disabled."""


class KeyNotFound(HermesError):
    """The tenant has no key of this id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTenant:
    """A tenant. ``created_at`` in epoch seconds; ``None`` for the default one before it was first written."""

    name: str
    created_at: float | None
    disabled_at: float | None
    """``None`` while it is not disabled."""
    keys: int
    """How many of its keys can be used."""
    runs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredKey:
    """A key, without what makes it one. Times are epoch seconds."""

    key_id: str
    tenant: str
    holder: str
    scopes: tuple[str, ...]
    created_at: float
    expires_at: float | None
    last_used_at: float | None
    """Exact to ``USED_EVERY_S``; ``None`` when the key was never used."""
    revoked_at: float | None
    replaced_by: str | None
    """The key that was made for its rotation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewKey:
    """A new key; its ``token`` is shown once and stored only as a hash."""

    view: StoredKey
    token: str = field(repr=False)


KEY_USABLE = sa.and_(
    api_keys.c.revoked_at.is_(None), sa.or_(api_keys.c.expires_at.is_(None), api_keys.c.expires_at > db_now())
)


class _UsedRow(NamedTuple):
    pk: int
    key_id: str
    tenant: str
    scopes: str
    last_used_at: float | None
    hash: str
    holder: str
    disabled_at: float | None
    now: float


class _LockedKey(NamedTuple):
    pk: int
    principal_pk: int
    scopes: str
    created_at: float
    expires_at: float | None
    revoked_at: float | None


def _select_with_holder(columns: Sequence[sa.ColumnElement[Any]]) -> sa.Select[Any]:
    wanted = sa.select(*columns, principals.c.name.label("holder"))
    return wanted.join(principals, principals.c.pk == api_keys.c.principal_pk)


_KEYS = _select_with_holder(select_view_columns(api_keys, StoredKey))
_USED = (
    _select_with_holder([api_keys.c[name] for name in _UsedRow._fields[:-3]])
    .add_columns(tenants.c.disabled_at)
    .join(tenants, tenants.c.name == api_keys.c.tenant)
)


class Tenants(RowStore):
    """The tenants, principals and keys in one database. Thread-safe."""

    # --- tenants ---

    def create_tenant(self, name: str) -> None:
        """Create a tenant. Raises ``InvalidName``, ``TenantExists``."""
        values = {"name": require_tenant_name(name), "created_at": db_now()}
        with self.database.write() as connection:
            made = build_insert_ignoring(connection, tenants).values(**values).returning(tenants.c.name)
            if name == DEFAULT_TENANT or connection.execute(made).first() is None:
                raise TenantExists(f"there is a tenant {name!r} already")
            record_action(connection, Act.TENANT_CREATE, name, tenant=name)
        self.database.remembered.forget()

    def require_tenant(self, name: str) -> str:
        """Return ``name`` if it is a tenant. Raises ``TenantNotFound``."""
        if name == DEFAULT_TENANT:
            return name
        if self.database.select(sa.select(tenants.c.name).where(tenants.c.name == name)).first() is None:
            raise _tenant_not_found(name)
        return name

    def require_enabled(self, name: str) -> str:
        """Return ``name`` if it is an enabled tenant. Raises ``TenantNotFound``, ``TenantDisabled``."""
        if name == DEFAULT_TENANT:
            return name
        found = self.database.select(sa.select(tenants.c.disabled_at).where(tenants.c.name == name)).all()
        if not found:
            raise _tenant_not_found(name)
        [(disabled_at,)] = found
        if disabled_at is not None:
            raise tenant_disabled_error(name)
        return name

    def disable_tenant(self, name: str) -> None:
        """Disable a tenant: nothing new begins for it. Idempotent. Raises ``TenantNotFound``,
        ``DefaultTenantStays``."""
        if name == DEFAULT_TENANT:
            raise DefaultTenantStays(f"the tenant {name!r} is the installation's own and cannot be disabled")
        self._set_disabled(name, sa.func.coalesce(tenants.c.disabled_at, db_now()), Act.TENANT_DISABLE)

    def enable_tenant(self, name: str) -> None:
        """Undo ``disable_tenant``. Idempotent. Raises ``TenantNotFound``."""
        if name != DEFAULT_TENANT:
            self._set_disabled(name, None, Act.TENANT_ENABLE)

    def _set_disabled(self, name: str, at: sa.ColumnElement[float] | None, act: Act) -> None:
        with self.database.write() as connection:
            changed = connection.execute(sa.update(tenants).where(tenants.c.name == name).values(disabled_at=at))
            if changed.rowcount == 0:
                raise _tenant_not_found(name)
            record_action(connection, act, name, tenant=name)
        self.database.remembered.forget()

    def has_others(self) -> bool:
        """Whether there is a tenant beside the default one."""
        others = sa.select(tenants.c.name).where(tenants.c.name != DEFAULT_TENANT).limit(1)
        return self.database.select(others).first() is not None

    def list_tenants(self) -> list[StoredTenant]:
        """List all tenants, the default one first."""
        with self.database.read() as connection:
            made: dict[str, float] = _load_pairs(connection, sa.select(tenants.c.name, tenants.c.created_at))
            disabled: dict[str, float | None] = _load_pairs(
                connection, sa.select(tenants.c.name, tenants.c.disabled_at)
            )
            usable = sa.select(api_keys.c.tenant, sa.func.count()).where(KEY_USABLE).group_by(api_keys.c.tenant)
            keys: dict[str, int] = _load_pairs(connection, usable)
            counted = sa.select(runs.c.tenant, sa.func.count()).group_by(runs.c.tenant)
            known: dict[str, int] = _load_pairs(connection, counted)
        names = [DEFAULT_TENANT, *sorted(made.keys() - {DEFAULT_TENANT})]
        return [
            StoredTenant(
                name=name,
                created_at=made.get(name),
                disabled_at=disabled.get(name),
                keys=keys.get(name, 0),
                runs=known.get(name, 0),
            )
            for name in names
        ]

    # --- keys ---

    def create_key(
        self, tenant: str, holder: str, scopes: Collection[KeyScope], *, expires_in_s: float | None = None
    ) -> NewKey:
        """Create a key for ``holder``, who acts for ``tenant``. Raises ``TenantNotFound``, ``InvalidName``."""
        require_holder_name(holder)
        with self.database.write() as connection:
            principal_pk = _find_or_insert_principal(connection, tenant, holder)
            made = _insert_key(connection, tenant, principal_pk, sorted(scopes), expires_in_s)
            record_action(connection, Act.KEY_CREATE, made.view.key_id, tenant=tenant, after=_describe_key(made.view))
            return made

    def list_keys(self, tenant: str) -> list[StoredKey]:
        """The keys of a tenant, oldest first; those that cannot be used any more as well."""
        found = self.database.select(_KEYS.where(api_keys.c.tenant == tenant).order_by(api_keys.c.pk))
        return _fetch_keys(found)

    def require_key(self, tenant: str, key_id: str) -> str:
        """Return ``key_id`` if it is a key of the tenant. Raises ``KeyNotFound``, also for a key of another tenant."""
        if not self._is_owned(api_keys.c.key_id, key_id, tenant):
            raise _key_not_found(key_id)
        return key_id

    def rotate_key(self, tenant: str, key_id: str, *, overlap_s: float) -> NewKey:
        """Create a key that replaces another, which ends in ``overlap_s`` seconds unless it ends before. The new key
        has the same scopes and the same lifetime, counted from now. Raises ``KeyNotFound``."""
        with self.database.write() as connection:
            row = _lock_key(connection, tenant, key_id)
            lasts_s = None if row.expires_at is None else row.expires_at - row.created_at
            made = _insert_key(connection, tenant, row.principal_pk, row.scopes.split(), lasts_s)
            ends_at = db_now() + overlap_s
            expires_at = sa.case((api_keys.c.expires_at < ends_at, api_keys.c.expires_at), else_=ends_at)
            changes = {"expires_at": expires_at, "replaced_by": made.view.key_id}
            connection.execute(sa.update(api_keys).where(api_keys.c.pk == row.pk).values(**changes))
            before = {"expires_at": row.expires_at}
            record_action(
                connection, Act.KEY_ROTATE, key_id, tenant=tenant, before=before, after=_describe_key(made.view)
            )
            return made

    def revoke_key(self, tenant: str, key_id: str) -> None:
        """End a key now. Idempotent. Raises ``KeyNotFound``."""
        with self.database.write() as connection:
            row = _lock_key(connection, tenant, key_id)
            if row.revoked_at is None:
                connection.execute(sa.update(api_keys).where(api_keys.c.pk == row.pk).values(revoked_at=db_now()))
                record_action(connection, Act.KEY_REVOKE, key_id, tenant=tenant, before={"scopes": row.scopes.split()})

    def find_principal(self, token: str) -> Principal | None:
        """Find the holder of a key; ``None`` for an unknown key, or one that ended. Records that the key was used, at
        most once a minute. Raises ``TenantDisabled``."""
        row = self._load_usable(api_keys.c.hash == hash_token(token))
        return None if row is None else self._use_key(row)

    def find_signer(self, key_id: str, has_signed: Callable[[str], bool]) -> Principal | None:
        """Find the holder of a key with which something was signed: ``has_signed`` is given the hash of the key.
        ``None`` for an unknown key, one that ended, and another signature. Records the use as ``find_principal``.
        Raises ``TenantDisabled``."""
        row = self._load_usable(api_keys.c.key_id == key_id)
        return None if row is None or not has_signed(row.hash) else self._use_key(row)

    def _load_usable(self, this: sa.ColumnElement[bool]) -> _UsedRow | None:
        now = db_now().label("now")
        return fetch_row(self.database.select(_USED.add_columns(now).where(this, KEY_USABLE)), _UsedRow)

    def _use_key(self, row: _UsedRow) -> Principal:
        if row.disabled_at is not None:
            raise tenant_disabled_error(row.tenant)
        if row.last_used_at is None or row.last_used_at < row.now - USED_EVERY_S:
            self.database.execute(sa.update(api_keys).where(api_keys.c.pk == row.pk).values(last_used_at=db_now()))
        name = format_named_holder(row.holder, row.key_id)
        return Principal(tenant=row.tenant, name=name, scopes=parse_scopes(row.scopes.split()))

    # --- whose a row is ---

    def require_run(self, tenant: str, run_id: str) -> str:
        """Return ``run_id`` if it is a run of the tenant. Raises ``RunNotFound``, also for a run of another tenant, and
        ``RunDeleted`` for a deleted run of this tenant."""
        if not self._is_owned(runs.c.run_id, run_id, tenant):
            with self.database.read() as connection:
                raise run_missing_error(connection, run_id, tenant)
        return run_id

    def require_delivery(self, tenant: str, delivery_id: str) -> str:
        """Return ``delivery_id`` if it is a delivery of the tenant. Raises ``DeliveryNotFound``, also for a delivery of
        another tenant."""
        if not self._is_owned(deliveries.c.delivery_id, delivery_id, tenant):
            raise DeliveryNotFound(f"there is no delivery {delivery_id!r}")
        return delivery_id

    def _is_owned(self, column: sa.Column[Any], value: str, tenant: str) -> bool:
        wanted = sa.select(sa.literal(1)).where(column == value, column.table.c.tenant == tenant)
        return self.database.select(wanted).first() is not None


def _load_pairs(connection: Connection, wanted: sa.Select[Any]) -> dict[str, Any]:
    return {str(name): value for name, value in connection.execute(wanted)}


def _tenant_not_found(name: str) -> TenantNotFound:
    return TenantNotFound(f"there is no tenant {name!r}; make it with 'hermes-worker tenants create {name}'")


def lock_tenant(connection: Connection, name: str) -> None:
    """Lock a tenant's row until the transaction ends, so that writes for the tenant follow one another. Raises
    ``TenantNotFound``."""
    known = sa.select(tenants.c.name).where(tenants.c.name == name).with_for_update()
    if connection.execute(known).first() is None and name != DEFAULT_TENANT:
        raise TenantNotFound(f"there is no tenant {name!r}; 'hermes-worker tenants list' shows them")


def tenant_disabled_error(name: str) -> TenantDisabled:
    """Build the error for a request on behalf of a disabled tenant."""
    return TenantDisabled(f"the tenant {name!r} is disabled; whoever runs this installation can enable it again")


def _find_or_insert_principal(connection: Connection, tenant: str, holder: str) -> int:
    if tenant == DEFAULT_TENANT:
        connection.execute(build_insert_ignoring(connection, tenants).values(name=tenant, created_at=db_now()))
    elif connection.execute(sa.select(tenants.c.name).where(tenants.c.name == tenant)).first() is None:
        raise _tenant_not_found(tenant)
    values = {"tenant": tenant, "name": holder, "created_at": db_now()}
    connection.execute(build_insert_ignoring(connection, principals).values(**values))
    this = (principals.c.tenant == tenant) & (principals.c.name == holder)
    return int(connection.execute(sa.select(principals.c.pk).where(this)).scalar_one())


def _insert_key(
    connection: Connection, tenant: str, principal_pk: int, scopes: Collection[str], expires_in_s: float | None
) -> NewKey:
    key_id = f"key_{secrets.token_hex(6)}"
    token = f"{KEY_PREFIX}{secrets.token_urlsafe(_RANDOM_BYTES)}"
    values = {
        "key_id": key_id,
        "tenant": tenant,
        "principal_pk": principal_pk,
        "hash": hash_token(token),
        "scopes": " ".join(scopes),
        "created_at": db_now(),
        "expires_at": None if expires_in_s is None else db_now() + expires_in_s,
    }
    connection.execute(sa.insert(api_keys).values(**values))
    [made] = _fetch_keys(connection.execute(_KEYS.where(api_keys.c.key_id == key_id)))
    return NewKey(view=made, token=token)


def _lock_key(connection: Connection, tenant: str, key_id: str) -> _LockedKey:
    this = (api_keys.c.tenant == tenant) & (api_keys.c.key_id == key_id)
    found = connection.execute(sa.select(*select_columns(api_keys, _LockedKey)).where(this).with_for_update())
    row = fetch_row(found, _LockedKey)
    if row is None:
        raise _key_not_found(key_id)
    return row


def _key_not_found(key_id: str) -> KeyNotFound:
    return KeyNotFound(f"there is no key {key_id!r}; 'hermes-worker tenants keys list' shows those there are")


def _describe_key(view: StoredKey) -> dict[str, object]:
    return {"key": view.key_id, "holder": view.holder, "scopes": list(view.scopes), "expires_at": view.expires_at}


def hash_token(token: str) -> str:
    """Hash a token for storage. A key is 256 random bits, so a salt or a slow hash would not make it harder to find."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def _fetch_keys(found: sa.Result[Any]) -> list[StoredKey]:
    return fetch_views(found, StoredKey, scopes=lambda words: tuple(words.split()))
