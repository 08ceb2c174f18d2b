"""Provider keys of tenants: the provider has to be one of the catalogue's."""

from __future__ import annotations

from hermes_worker.core.errors import HermesError
from hermes_worker.features.provider_keys.rows import ProviderKeys, ProviderKeyView
from hermes_worker.models.catalog import find_provider, list_provider_rows
from hermes_worker.store.engine.database import Database


class ProviderUnknown(HermesError):
    """The catalogue has no provider of this name."""


def add_provider_key(database: Database, tenant: str, provider: str, key: str) -> ProviderKeyView:
    """Add a key of a tenant's own, with which its model calls are made from then on. ``provider`` is a name of the
    catalogue or an alias in it. Idempotent. Raises ``ProviderUnknown``, and what ``ProviderKeys.add`` raises."""
    row = find_provider(provider) or list_provider_rows().get(provider)
    if row is None:
        raise ProviderUnknown(
            f"the provider {provider[:60]!r} is not in the catalogue: choose one of {', '.join(list_provider_rows())}"
        )
    return ProviderKeys(database).add(tenant, row.name, key)
