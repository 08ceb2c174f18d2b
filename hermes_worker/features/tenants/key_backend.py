"""The API's operations on tenants and keys, as typed calls for the verbs of ``tenants`` and ``keys``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from hermes_worker.cli.options import chosen_tenant
from hermes_worker.cli.reaching import api_client
from hermes_worker.cli.server import read
from hermes_worker.core.budget import NANO
from hermes_worker.core.limits import LimitName
from hermes_worker.core.principals import DEFAULT_TENANT, KeyScope
from hermes_worker.store.access.principals import KeyView, NewKey, TenantView
from hermes_worker.store.runs.limits import LimitView

if TYPE_CHECKING:
    from hermes_worker.client import HermesClient
    from hermes_worker.client.documents import LimitsDocument


class ChangedLimits(NamedTuple):
    """A change to the limits of a tenant, or of one of its keys."""

    limits: Mapping[LimitName, int | None]
    """Money in nano-USD; ``None`` removes a limit."""
    waits: bool
    weight: float | None
    key_id: str


def open_keys(home: Path | None) -> TenantKeys:
    """Open the tenants of a home or server. Raises ``ConfigurationError``, ``UnavailableError``."""
    return TenantKeys(api_client(home, names_tenant=True), chosen_tenant())


class TenantKeys:
    """Tenants, and the keys of one tenant: a tenant other than the default one is named, as operators may."""

    def __init__(self, client: HermesClient, tenant: str) -> None:
        self._client = client
        self._tenant = None if tenant == DEFAULT_TENANT else tenant

    def tenants(self) -> Sequence[TenantView]:
        found: Sequence[TenantView] = read(list[TenantView], self._client.tenants())
        return found

    def create_tenant(self, name: str) -> None:
        self._client.create_tenant(name)

    def disable_tenant(self, name: str, *, stops: bool) -> int:
        told = self._client.disable_tenant(name, stop=stops)
        stopped = int(told["stopped"])
        while told["open_runs"] and told["stopped"]:
            told = self._client.disable_tenant(name, stop=True)
            stopped += int(told["stopped"])
        return stopped

    def enable_tenant(self, name: str) -> None:
        self._client.enable_tenant(name)

    def limits(self, name: str, changed: ChangedLimits) -> tuple[Sequence[LimitView], float]:
        if not changed.limits and changed.weight is None:
            return _limits_of(self._client.tenant_limits(name))
        told = {limit.value: _said(limit, value, changed.waits) for limit, value in changed.limits.items()}
        key_id = changed.key_id or None
        return _limits_of(self._client.change_tenant_limits(name, told, weight=changed.weight, key_id=key_id))

    def set_places(self, places: int | None) -> None:
        self._client.set_places(places)

    def keys(self) -> Sequence[KeyView]:
        found: Sequence[KeyView] = read(list[KeyView], self._client.keys(tenant=self._tenant))
        return found

    def create_key(self, holder: str, scopes: Sequence[KeyScope], expires_in_s: float | None) -> NewKey:
        words = [scope.value for scope in scopes]
        made = self._client.create_key(holder, scopes=words, expires_in_s=expires_in_s, tenant=self._tenant)
        return _new_key(made)

    def rotate_key(self, key_id: str, overlap_s: float) -> NewKey:
        return _new_key(self._client.rotate_key(key_id, overlap_s=overlap_s, tenant=self._tenant))

    def revoke_key(self, key_id: str) -> None:
        self._client.revoke_key(key_id, tenant=self._tenant)


def _new_key(told: Mapping[str, Any]) -> NewKey:
    view = cast("KeyView", read(KeyView, {name: told.get(name) for name in KeyView.__slots__}))
    return NewKey(view=view, token=str(told["key"]))


def _said(name: LimitName, value: int | None, waits: bool) -> dict[str, Any] | None:
    if value is None:
        return None
    return {"at_most": value / NANO if name.is_money else value, "waits": waits}


def _limits_of(told: LimitsDocument) -> tuple[Sequence[LimitView], float]:
    """Build the views in the order in which a database lists them."""
    found = list(_views_of(dict(told["limits"]), ""))
    for key in told.get("keys", ()):
        found += _views_of(dict(key["limits"]), str(key.get("key_id")))
    return sorted(found, key=lambda view: (view.key_id, view.name)), float(told.get("weight") or 1.0)


def _views_of(limits: Mapping[str, Any], key_id: str) -> Sequence[LimitView]:
    found = []
    for word, each in limits.items():
        if each is not None:
            value = round(each["at_most"] * NANO) if LimitName(word).is_money else int(each["at_most"])
            found.append(LimitView(key_id=key_id, name=word, value=value, waits=int(each["waits"])))
    return found
