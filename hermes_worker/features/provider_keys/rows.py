"""Provider keys that tenants bring, as rows: encrypted, added and removed by operators, read by workers for models.

The database holds no key in clear: where texts are not encrypted, no key is accepted. A row is never changed. So the
number of rows, the newest time and the sum of the row ids tell whether the keys are others than before
(``load_version``), and a worker that looks every second decrypts nothing while nothing changed.
"""

from __future__ import annotations

import hashlib
import secrets
from typing import NamedTuple

import sqlalchemy as sa

from hermes_worker.core.errors import HermesError
from hermes_worker.core.tenant_keys import DecryptedKey, KeysVersion
from hermes_worker.features.provider_keys.tables import provider_keys
from hermes_worker.observe import log
from hermes_worker.store.access.audit import Act, record_action
from hermes_worker.store.access.principals import lock_tenant
from hermes_worker.store.engine.database import RowStore, db_now, require_encryption
from hermes_worker.store.engine.prepared import Nothing, Prepared, fetch_one, fetch_row, fetch_rows, select_columns
from hermes_worker.store.engine.sealing import CLEAR, TextTampered, is_stored_by
from hermes_worker.store.rows import build_insert_ignoring

KEYS_MAX = 100
"""The most keys of one tenant."""
KEY_CHARS_MAX = 4_000
_KEY_CHARS_MIN = 8


class ProviderKeyInvalid(HermesError, ValueError):
    """The text cannot be a key: it is not printable ASCII without spaces, or its length is out of range."""


class ProviderKeyNotFound(HermesError):
    """The tenant has no provider key of this id."""


class ProviderKeysFull(HermesError):
    """The tenant has as many provider keys as it may have."""


class ProviderKeyView(NamedTuple):
    """A tenant's provider key, without the secret."""

    key_id: str
    tenant: str
    provider: str
    fingerprint: str
    """Distinguishes the key from others and reveals nothing of it."""
    created_at: float
    """Epoch seconds."""


class _SecretRow(NamedTuple):
    pk: int
    key_id: str
    tenant: str
    provider: str


_VIEW = sa.select(*select_columns(provider_keys, ProviderKeyView))
_VERSION: Prepared[Nothing, KeysVersion] = Prepared(
    sa.select(
        sa.func.count().label("keys"),
        sa.func.coalesce(sa.func.max(provider_keys.c.created_at), 0.0).label("newest"),
        sa.func.coalesce(sa.cast(sa.func.sum(provider_keys.c.pk), sa.BigInteger()), 0).label("pks"),
    ),
    gives=KeysVersion,
)


class ProviderKeys(RowStore):
    """The provider keys of one database's tenants. Thread-safe; every method raises ``UnavailableError``."""

    def add(self, tenant: str, provider: str, key: str) -> ProviderKeyView:
        """Store a key of ``provider``, which is a name of the catalogue. Idempotent: a key that is stored already stays
        as it is. Raises ``ProviderKeyInvalid``, ``TextsInClear``, ``TenantNotFound``, ``ProviderKeysFull``."""
        _require_key(key)
        values = {
            "key_id": f"pkey_{secrets.token_hex(6)}",
            "tenant": tenant,
            "provider": provider,
            "fingerprint": _compute_fingerprint(tenant, provider, key),
        }
        is_theirs = provider_keys.c.tenant == tenant
        with self.database.write() as connection:
            lock_tenant(connection, tenant)
            require_encryption(self.database, "key", ", or name the key in HERMES_TENANT_KEYS of the model workers")
            this = sa.and_(*(provider_keys.c[name] == values[name] for name in ("tenant", "provider", "fingerprint")))
            there = fetch_row(connection.execute(_VIEW.where(this)), ProviderKeyView)
            if there is not None:
                return there
            count = sa.select(sa.func.count()).select_from(provider_keys).where(is_theirs)
            if connection.execute(count).scalar_one() >= KEYS_MAX:
                raise ProviderKeysFull(f"the tenant {tenant!r} has {KEYS_MAX} provider keys; remove one first")
            row = build_insert_ignoring(connection, provider_keys).values(**values, secret=key, created_at=db_now())
            made = connection.execute(row.returning(provider_keys.c.pk)).first() is not None
            view = fetch_one(connection.execute(_VIEW.where(this)), ProviderKeyView)
            if made:
                record_action(connection, Act.PROVIDER_KEY_ADD, view.key_id, tenant=tenant, after=_describe_key(view))
            return view

    def list_of_tenant(self, tenant: str) -> list[ProviderKeyView]:
        """List the keys of a tenant, the oldest first."""
        wanted = _VIEW.where(provider_keys.c.tenant == tenant).order_by(provider_keys.c.pk)
        return fetch_rows(self.database.select(wanted), ProviderKeyView)

    def list_all(self) -> list[ProviderKeyView]:
        """List the keys of all tenants, by tenant."""
        wanted = _VIEW.order_by(provider_keys.c.tenant, provider_keys.c.pk)
        return fetch_rows(self.database.select(wanted), ProviderKeyView)

    def count_in_clear(self) -> int:
        """Count the keys that are stored in clear, because encryption was turned off after they were added."""
        counted = sa.select(sa.func.count()).where(is_stored_by(provider_keys.c.secret, CLEAR))
        return int(self.database.select(counted).scalar_one())

    def remove(self, tenant: str, key_id: str) -> ProviderKeyView:
        """Delete a key; no worker uses it after a second or two. Raises ``ProviderKeyNotFound``."""
        this = (provider_keys.c.tenant == tenant) & (provider_keys.c.key_id == key_id)
        with self.database.write() as connection:
            view = fetch_row(connection.execute(_VIEW.where(this)), ProviderKeyView)
            if view is None or connection.execute(sa.delete(provider_keys).where(this)).rowcount == 0:
                raise ProviderKeyNotFound(
                    f"there is no provider key {key_id!r}; 'hermes-worker fleet providers keys list' shows those "
                    "there are"
                )
            record_action(connection, Act.PROVIDER_KEY_REMOVE, key_id, tenant=tenant, before=_describe_key(view))
            return view

    def load_version(self) -> KeysVersion:
        """Load a value that changes whenever a key is added or removed."""
        with self.database.read() as connection:
            return _VERSION.one(connection, {})

    def list_keys(self) -> list[DecryptedKey]:
        """Load all keys, decrypted, in the order in which they were added. Raises ``KeyMissing``."""
        wanted = sa.select(*select_columns(provider_keys, _SecretRow)).order_by(provider_keys.c.pk)
        rows = fetch_rows(self.database.select(wanted), _SecretRow)
        return [
            DecryptedKey(key_id=row.key_id, tenant=row.tenant, provider=row.provider, key=self._decrypt(row))
            for row in rows
        ]

    def _decrypt(self, row: _SecretRow) -> str | None:
        try:
            wanted = sa.select(provider_keys.c.secret).where(provider_keys.c.pk == row.pk)
            return self.database.select(wanted).scalar_one_or_none()
        except TextTampered as error:
            log.warning("provider.key_unreadable", tenant=row.tenant, key_id=row.key_id, error=str(error))
            return None


def _require_key(key: str) -> None:
    if not (key.isascii() and key.isprintable() and " " not in key and _KEY_CHARS_MIN <= len(key) <= KEY_CHARS_MAX):
        raise ProviderKeyInvalid(
            f"a provider's key has {_KEY_CHARS_MIN} to {KEY_CHARS_MAX:,} printable ASCII characters and no spaces"
        )


def _compute_fingerprint(tenant: str, provider: str, key: str) -> str:
    """Hash a key with its tenant and its provider, so that the fingerprint cannot be found in a table of known keys,
    and differs between tenants."""
    return hashlib.sha256(f"{tenant}\0{provider}\0{key}".encode()).hexdigest()[:16]


def _describe_key(view: ProviderKeyView) -> dict[str, object]:
    return {"provider": view.provider, "fingerprint": view.fingerprint}
