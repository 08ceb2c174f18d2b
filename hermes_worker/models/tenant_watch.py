"""The providers of tenants that bring provider keys, as this process knows them.

The keys are rows (``features.provider_keys.rows``), which a process looks at every second beside its work, so a model
call costs no statement for them. It decrypts them when some were added or removed. While the database is away, or the
key that they are encrypted with is not here yet, the last known ones count: a tenant that has keys is never served with
those of the installation because its own could not be read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Generic, Protocol, TypeVar

from hermes_worker.core.tenant_keys import DecryptedKey, KeysVersion
from hermes_worker.models.credentials import ChosenKey, KeyPool
from hermes_worker.models.row_watch import RowWatch
from hermes_worker.observe import count, log

M = TypeVar("M")
KeysOf = Mapping[str, Sequence[str]]
"""Keys of one tenant by their provider."""


class TenantKeySource(Protocol):
    """``features.provider_keys.rows.ProviderKeys``."""

    def load_version(self) -> KeysVersion: ...

    def list_keys(self) -> Sequence[DecryptedKey]: ...


class TenantKeyWatch(RowWatch, Generic[M]):
    """Keeps what ``build`` makes of each tenant's keys. Thread-safe.

    ``settled`` is what the settings say of tenants; for a tenant that has rows, the rows count alone.
    """

    def __init__(self, source: TenantKeySource, build: Callable[[str, KeysOf], M], settled: Mapping[str, M]) -> None:
        super().__init__("tenant key watch", thread="hermes_tenant_keys")
        self._source = source
        self._build = build
        self._settled = settled
        self._version: KeysVersion | None = None
        self._keys: Mapping[str, KeysOf] = {}
        self._models: Mapping[str, M] = dict(settled)

    @property
    def is_empty(self) -> bool:
        """Whether no tenant has keys of its own."""
        return not self._models

    def find(self, tenant: str) -> M | None:
        """What was built for a tenant; ``None`` for a tenant without keys of its own. Executes no statement."""
        return self._models.get(tenant)

    def list_built(self) -> Sequence[M]:
        """What was built for every tenant that has keys."""
        return tuple(self._models.values())

    def poll_once(self) -> None:
        """Read which keys were added and removed. Raises ``UnavailableError``."""
        version = self._source.load_version()
        if version == self._version:
            return
        found: dict[str, dict[str, list[str]]] = {}
        for each in self._source.list_keys():
            of_tenant = found.setdefault(each.tenant, {})
            if each.key is not None:
                of_tenant.setdefault(each.provider, []).append(each.key)
        # A tenant with the same keys as before keeps what was learned of them.
        made = {
            tenant: self._models[tenant] if self._keys.get(tenant) == keys else self._build(tenant, keys)
            for tenant, keys in found.items()
        }
        if self._version is not None:
            count("provider.keys_changed")
            log.info("provider.keys_changed", tenants=len(made))
        self._keys, self._models, self._version = found, {**self._settled, **made}, version


class PoolWhereNeeded:
    """A pool that is used only while some provider has several keys. Thread-safe."""

    def __init__(self, pool: KeyPool, other: KeyPool, is_needed: Callable[[], bool]) -> None:
        """``other`` is used while there is nothing to choose from."""
        self._pool = pool
        self._other = other
        self._is_needed = is_needed

    def choose_key(self, names: Sequence[str], *, ticket: str, is_child: bool = False) -> ChosenKey:
        return self._current_pool.choose_key(names, ticket=ticket, is_child=is_child)

    def rest_key(self, name: str, seconds: float) -> None:
        self._current_pool.rest_key(name, seconds)

    def release_key(self, ticket: str) -> None:
        self._current_pool.release_key(ticket)

    @property
    def _current_pool(self) -> KeyPool:
        return self._pool if self._is_needed() else self._other
