"""Provider keys of tenants as a worker knows them: looked at beside its work, rebuilt only where they changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pytest

from hermes_worker.core.errors import UnavailableError
from hermes_worker.core.tenant_keys import DecryptedKey, KeysVersion
from hermes_worker.models.credentials import FirstKey
from hermes_worker.models.tenant_watch import PoolWhereNeeded, TenantKeyWatch


@dataclass
class Rows:
    """Rows that a test changes."""

    kept: dict[str, DecryptedKey] = field(default_factory=dict)
    is_away: bool = False
    read: int = 0
    changes: int = 0

    def put(self, key_id: str, tenant: str, key: str | None) -> None:
        self.kept[key_id] = DecryptedKey(key_id=key_id, tenant=tenant, provider="openai", key=key)
        self.changes += 1

    def drop(self, key_id: str) -> None:
        del self.kept[key_id]
        self.changes += 1

    def load_version(self) -> KeysVersion:
        if self.is_away:
            raise UnavailableError("away")
        return KeysVersion(keys=len(self.kept), newest=float(self.changes), pks=0)

    def list_keys(self) -> Sequence[DecryptedKey]:
        self.read += 1
        return list(self.kept.values())


def built(tenant: str, keys: Mapping[str, Sequence[str]]) -> list[str]:
    return [tenant, *(key for of_provider in keys.values() for key in of_provider)]


def test_a_worker_learns_of_keys_and_decrypts_none_twice() -> None:
    rows = Rows()
    watch = TenantKeyWatch(rows, built, {})
    watch.poll_once()
    assert watch.is_empty and watch.find("acme") is None
    rows.put("1", "acme", "a1")
    rows.put("2", "beta", "b1")
    for _ in range(3):
        watch.poll_once()
    assert (watch.find("acme"), watch.find("beta"), rows.read) == (["acme", "a1"], ["beta", "b1"], 2)
    before = watch.find("beta")
    rows.put("3", "acme", "a2")
    watch.poll_once()
    assert watch.find("acme") == ["acme", "a1", "a2"]
    assert watch.find("beta") is before, "what was learned of its keys stays"
    rows.drop("2")
    watch.poll_once()
    assert watch.find("beta") is None


def test_the_last_known_keys_count_while_the_database_is_away() -> None:
    rows = Rows()
    watch = TenantKeyWatch(rows, built, {})
    rows.put("1", "acme", "a1")
    watch.poll_once()
    rows.drop("1")
    rows.is_away = True
    with pytest.raises(UnavailableError):
        watch.poll_once()
    assert watch.find("acme") == ["acme", "a1"]


def test_rows_count_before_settings_and_settings_where_there_are_no_rows() -> None:
    rows = Rows()
    watch = TenantKeyWatch(rows, built, {"acme": ["settings"], "beta": ["settings"]})
    assert watch.find("acme") == ["settings"], "before anything was read"
    rows.put("1", "acme", "a1")
    watch.poll_once()
    assert (watch.find("acme"), watch.find("beta")) == (["acme", "a1"], ["settings"])
    rows.drop("1")
    watch.poll_once()
    assert watch.find("acme") == ["settings"]


def test_a_tenant_whose_only_key_cannot_be_read_is_not_without_keys() -> None:
    rows = Rows()
    watch = TenantKeyWatch(rows, built, {})
    rows.put("1", "acme", None)
    watch.poll_once()
    assert watch.find("acme") == ["acme"], "it must never be asked for with keys of the installation"


def test_a_pool_is_left_alone_while_nobody_has_several_keys() -> None:
    class Asked(FirstKey):
        released = 0

        def release_key(self, ticket: str) -> None:
            self.released += 1

    pool, needed = Asked(), [False]
    either = PoolWhereNeeded(pool, FirstKey(), lambda: needed[0])
    either.release_key("run")
    assert pool.released == 0
    needed[0] = True
    either.release_key("run")
    assert pool.released == 1
