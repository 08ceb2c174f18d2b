"""Provider keys of tenants as rows: encrypted, told apart, and never shown."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import sqlalchemy as sa
from support.store import Store

from hermes_worker.core.principals import DEFAULT_TENANT
from hermes_worker.features.provider_keys.rows import (
    KEY_CHARS_MAX,
    KEYS_MAX,
    ProviderKeyInvalid,
    ProviderKeyNotFound,
    ProviderKeys,
    ProviderKeysFull,
)
from hermes_worker.features.provider_keys.tables import provider_keys
from hermes_worker.store.access.audit import Actor, AuditLog, set_actor
from hermes_worker.store.access.principals import TenantNotFound, Tenants
from hermes_worker.store.engine.database import Database, TextsInClear
from hermes_worker.store.engine.sealing import MARK, Sealer, build_text_keys, select_stored_text
from hermes_worker.store.tables import audit_log

KEY, OTHER = "sk-acme-0123456789", "sk-acme-9876543210"
SEALING = "hwt_" + "k" * 40


@pytest.fixture
def keys(store: Store) -> Iterator[ProviderKeys]:
    """Over a process of its own on the same database, which encrypts."""
    for tenant in ("acme", "beta"):
        Tenants(store.database).create_tenant(tenant)
    url = store.database.url.render_as_string(hide_password=False)
    database = Database(url, sealer=Sealer(build_text_keys([SEALING])))
    yield ProviderKeys(database)
    database.close()


def stored(store: Store) -> list[str]:
    with store.database.read() as connection:
        return [
            str(value) for value in connection.execute(sa.select(select_stored_text(provider_keys.c.secret))).scalars()
        ]


def test_a_key_is_encrypted_and_its_row_shows_nothing_of_it(store: Store, keys: ProviderKeys) -> None:
    view = keys.add("acme", "openai", KEY)
    [secret] = stored(store)
    assert secret.startswith(MARK) and KEY not in secret
    assert KEY not in repr(view) and KEY not in repr(keys.list_keys())
    assert keys.list_of_tenant("acme") == [view] == keys.list_all()
    assert keys.list_of_tenant("beta") == []
    [held] = keys.list_keys()
    assert (held.tenant, held.provider, held.key) == ("acme", "openai", KEY)
    assert keys.count_in_clear() == 0


def test_no_key_is_taken_in_while_texts_are_in_clear(store: Store) -> None:
    Tenants(store.database).create_tenant("acme")
    keys = ProviderKeys(store.database)
    with pytest.raises(TextsInClear, match="HERMES_ENCRYPTION_KEYS"):
        keys.add("acme", "openai", KEY)
    assert stored(store) == []


def test_the_same_key_again_changes_nothing(keys: ProviderKeys) -> None:
    first, version = keys.add("acme", "openai", KEY), keys.load_version()
    assert keys.add("acme", "openai", KEY) == first
    assert keys.load_version() == version
    others = [keys.add("beta", "openai", KEY), keys.add("acme", "groq", KEY), keys.add("acme", "openai", OTHER)]
    assert len({first.fingerprint, *(each.fingerprint for each in others)}) == 4, "elsewhere it looks different"


def test_every_change_has_another_version(keys: ProviderKeys) -> None:
    seen = [keys.load_version()]
    for _ in range(3):
        view = keys.add("acme", "openai", KEY)  # SQLite may give the number of the row that went before
        seen.append(keys.load_version())
        keys.remove("acme", view.key_id)
    assert len(set(seen)) == len(seen)
    assert keys.load_version() == seen[0], "there is none, as before"


def test_a_key_is_removed_by_its_own_tenant_only(keys: ProviderKeys) -> None:
    view = keys.add("acme", "openai", KEY)
    for tenant, key_id in (("beta", view.key_id), ("acme", "pkey_000000000000")):
        with pytest.raises(ProviderKeyNotFound):
            keys.remove(tenant, key_id)
    assert keys.remove("acme", view.key_id) == view
    assert keys.list_keys() == []


def test_what_cannot_be_a_key_is_refused_and_not_repeated(keys: ProviderKeys, monkeypatch: pytest.MonkeyPatch) -> None:
    for wrong in ("", "short", "two words here", "new\nline-in-it", "k\u00e9y-0123456789", "k" * (KEY_CHARS_MAX + 1)):
        with pytest.raises(ProviderKeyInvalid) as raised:
            keys.add("acme", "openai", wrong)
        assert not wrong or wrong not in str(raised.value)
    with pytest.raises(TenantNotFound):
        keys.add("nobody", "openai", KEY)
    monkeypatch.setattr("hermes_worker.features.provider_keys.rows.KEYS_MAX", 2)
    assert KEYS_MAX == 100
    for number in range(2):
        keys.add(DEFAULT_TENANT, "openai", f"{KEY}{number}")
    with pytest.raises(ProviderKeysFull):
        keys.add(DEFAULT_TENANT, "openai", KEY)


def test_who_added_and_removed_a_key_is_recorded_without_it(store: Store, keys: ProviderKeys) -> None:
    with set_actor(Actor(tenant="default", name="cli:operator")):
        view = keys.add("acme", "openai", KEY)
        keys.add("acme", "openai", KEY)
        keys.remove("acme", view.key_id)
    rows = AuditLog(store.database).list_actions("acme")
    assert [(row.act, row.subject) for row in rows] == [
        ("provider_key.add", view.key_id),
        ("provider_key.remove", view.key_id),
    ]
    assert dict(rows[0].after) == {"provider": "openai", "fingerprint": view.fingerprint}
    with store.database.read() as connection:
        assert KEY not in str(connection.execute(sa.select(audit_log)).all())


def test_a_row_that_others_changed_is_held_without_a_key(store: Store, keys: ProviderKeys) -> None:
    keys.add("acme", "openai", KEY)
    keys.add("beta", "openai", OTHER)
    with store.database.write() as connection:
        connection.execute(sa.text("update provider_keys set secret = substr(secret, 1, 40) where tenant = 'acme'"))
    assert [(held.tenant, held.key) for held in keys.list_keys()] == [("acme", None), ("beta", OTHER)]
