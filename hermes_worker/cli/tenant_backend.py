"""What ``providers keys`` and ``alerts targets`` need of one tenant, as typed calls, and how a database and a server
answer them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from hermes_worker.cli.options import chosen_tenant
from hermes_worker.cli.records import Records, open_records
from hermes_worker.cli.server import read, server_client
from hermes_worker.core.principals import DEFAULT_TENANT
from hermes_worker.store.access.principals import Tenants
from hermes_worker.store.access.provider_keys import ProviderKeys, ProviderKeyView
from hermes_worker.store.outbox.alerts import set_alert_targets, stored_alert_targets

if TYPE_CHECKING:
    from hermes_worker.client import HermesClient


class TenantBackend(Protocol):
    """What one tenant has of its own. Each call raises ``HermesError``s that say what is wrong."""

    @property
    def tenant(self) -> str:
        """Whose it is, as far as the command line knows: the key may say more."""

    def add_provider_key(self, provider: str, key: str) -> ProviderKeyView: ...
    def provider_keys(self) -> Sequence[ProviderKeyView]: ...
    def remove_provider_key(self, key_id: str) -> ProviderKeyView: ...
    def alert_targets(self) -> Sequence[str]: ...
    def set_alert_targets(self, targets: Sequence[str]) -> Sequence[str]:
        """All there are afterwards."""


def open_tenant(home: Path | None) -> TenantBackend:
    """The server that was chosen, or the database of a home. Raises ``ConfigurationError``, ``UnavailableError``."""
    client = server_client(names_tenant=True)
    return LocalTenant(open_records(home)) if client is None else RemoteTenant(client, chosen_tenant())


class LocalTenant:
    """Asks a database."""

    def __init__(self, records: Records) -> None:
        self._database = records.database
        self.tenant = records.tenant

    def add_provider_key(self, provider: str, key: str) -> ProviderKeyView:
        from hermes_worker.services.provider_keys import add_provider_key

        return add_provider_key(self._database, self.tenant, provider, key)

    def provider_keys(self) -> Sequence[ProviderKeyView]:
        return ProviderKeys(self._database).of_tenant(self._known())

    def remove_provider_key(self, key_id: str) -> ProviderKeyView:
        return ProviderKeys(self._database).remove(self.tenant, key_id)

    def alert_targets(self) -> Sequence[str]:
        return stored_alert_targets(self._database, self._known())

    def set_alert_targets(self, targets: Sequence[str]) -> Sequence[str]:
        from hermes_worker.services.submission import deliver_list

        set_alert_targets(self._database, self._known(), deliver_list(targets, self.tenant))
        return self.alert_targets()

    def _known(self) -> str:
        """Raises ``TenantNotFound``."""
        return Tenants(self._database).require_tenant(self.tenant)


class RemoteTenant:
    """Asks a server. ``tenant`` other than the default one is named to it; only operators may."""

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
        """A tenant's own administrator need not name it: the key does."""
        return None if self.tenant == DEFAULT_TENANT else self.tenant


def _key_of(told: Mapping[str, Any]) -> ProviderKeyView:
    return cast("ProviderKeyView", read(ProviderKeyView, {name: told.get(name) for name in ProviderKeyView._fields}))
