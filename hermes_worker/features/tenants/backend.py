"""The API's operations on one tenant's provider keys and alert targets, as typed calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from hermes_worker.cli.options import chosen_tenant
from hermes_worker.cli.reaching import api_client
from hermes_worker.cli.server import read
from hermes_worker.core.principals import DEFAULT_TENANT
from hermes_worker.features.provider_keys.rows import ProviderKeyView

if TYPE_CHECKING:
    from hermes_worker.client import HermesClient


def open_tenant(home: Path | None) -> TenantRows:
    """Open a tenant of a home or server. Raises ``ConfigurationError``, ``UnavailableError``."""
    return TenantRows(api_client(home, names_tenant=True), chosen_tenant())


class TenantRows:
    """What one tenant has of its own. A tenant other than the default one is named, as operators may."""

    def __init__(self, client: HermesClient, tenant: str) -> None:
        self._client = client
        self.tenant = tenant

    def add_provider_key(self, provider: str, key: str) -> ProviderKeyView:
        return _key_of(self._client.add_provider_key(self.tenant, provider, key))

    def provider_keys(self) -> Sequence[ProviderKeyView]:
        return [_key_of(told) for told in self._client.provider_keys(self.tenant)]

    def remove_provider_key(self, key_id: str) -> ProviderKeyView:
        return _key_of(self._client.remove_provider_key(self.tenant, key_id))

    def alert_targets(self) -> Sequence[str]:
        return self._client.alert_targets(tenant=self._named)

    def set_alert_targets(self, targets: Sequence[str]) -> Sequence[str]:
        return self._client.set_alert_targets(targets, tenant=self._named)

    @property
    def _named(self) -> str | None:
        """The tenant to name; ``None`` for a tenant's own administrator, whose key names it."""
        return None if self.tenant == DEFAULT_TENANT else self.tenant


def _key_of(told: Mapping[str, Any]) -> ProviderKeyView:
    return cast("ProviderKeyView", read(ProviderKeyView, {name: told.get(name) for name in ProviderKeyView._fields}))
