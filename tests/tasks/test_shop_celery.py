"""A Celery application of somebody else on our broker: it submits runs, and neither of the two disturbs the other."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from celery import Celery
from celery.contrib.testing.worker import start_worker
from kombu.transport import TRANSPORT_ALIASES
from support.migrated import bring_up
from support.patience import PATIENCE_S
from support.valkey import for_administrator

from hermes_worker.broker.queue import KEY_PREFIX, build_redis_client
from hermes_worker.core.principals import KeyScope
from hermes_worker.services import signed_tasks
from hermes_worker.services.embedding import Submitter, TaskRefused
from hermes_worker.services.signed_tasks import sign_task
from hermes_worker.settings import load_settings
from hermes_worker.settings.kinds import convert_socket_url
from hermes_worker.store.access.idempotency_keys import IdempotencyConflict
from hermes_worker.store.access.principals import NewKey, Tenants
from hermes_worker.wiring import open_database


def test_a_shops_task_makes_one_run_however_often_it_is_delivered(broker_url: str, tmp_path: Path) -> None:
    """As docs/celery.md says. What a broker delivers again has the same id."""
    url = f"sqlite:///{tmp_path / 'state.db'}"
    bring_up(url)
    known = {"HERMES_HOME": str(tmp_path / "home"), "HERMES_DATABASE_URL": url, "HERMES_BROKER_URL": broker_url}
    submitter, engine = Submitter(load_settings({**known, "HERMES_MODEL": "scripted"})), sa.create_engine(url)
    administrator = for_administrator(broker_url)
    transports = dict(TRANSPORT_ALIASES)
    shop = Celery(
        "shop", broker=convert_socket_url(administrator, "redis+socket", "virtual_host"), set_as_current=False
    )
    shop.conf.update(task_acks_late=True, worker_hijack_root_logger=False, task_ignore_result=True)
    made: list[str] = []
    done = threading.Semaphore(0)

    @shop.task(bind=True, name="shop.pack")  # type: ignore[untyped-decorator]
    def pack(self: Any, order: int) -> None:
        with engine.begin() as connection:
            run = submitter.submit(
                connection, f"Pack order {order}", tenant="default", principal="shop", idempotency_key=self.request.id
            )
        run.announce()
        made.append(run.run_id)
        done.release()

    with start_worker(shop, pool="solo", perform_ping_check=False):
        for task_id in ("order-17", "order-17", "order-18"):
            shop.send_task("shop.pack", args=[17 if task_id == "order-17" else 18], task_id=task_id)
        assert all(done.acquire(timeout=PATIENCE_S) for _ in range(3))
    shop.close()

    with engine.connect() as connection:
        runs = connection.execute(sa.text("select run_id from runs order by pk")).scalars().all()
    engine.dispose()
    assert made == [runs[0], runs[0], runs[1]]
    assert transports == TRANSPORT_ALIASES, "the shop's own transport was replaced"
    with build_redis_client(administrator) as client:
        ours = [key for key in client.scan_iter() if key.startswith(KEY_PREFIX)]
        assert ours == ["hermes:model"], "a key of the shop's is under our prefix"
        assert client.llen("hermes:model") == 2


@pytest.fixture
def submitter(broker_url: str, database_url: str, tmp_path: Path) -> Submitter:
    bring_up(database_url)
    known = {"HERMES_HOME": str(tmp_path / "home"), "HERMES_DATABASE_URL": database_url, "HERMES_MODEL": "scripted"}
    return Submitter(load_settings({**known, "HERMES_BROKER_URL": broker_url}))


@pytest.fixture
def engine(submitter: Submitter) -> sa.Engine:
    return sa.create_engine(str(submitter.settings.database.url))


@pytest.fixture
def tenants(submitter: Submitter) -> Tenants:
    found = Tenants(open_database(submitter.settings))
    found.create_tenant("acme")
    return found


def make_key(tenants: Tenants, *scopes: KeyScope) -> NewKey:
    return tenants.create_key("acme", "shop", scopes or (KeyScope.RUNS_WRITE,))


def signed_with(key: NewKey, text: str = "Pack order 17", **changes: Any) -> dict[str, str]:
    said = {"tenant": "acme", "idempotency_key": "order-17", **changes}
    return sign_task(key.view.key_id, key.token, text, **said)


def list_runs(engine: sa.Engine) -> list[tuple[str, str | None]]:
    """Tenants and principals of the runs that there are."""
    with engine.connect() as connection:
        found = connection.execute(sa.text("select tenant, principal from runs order by pk"))
        return [(str(tenant), principal) for tenant, principal in found]


def test_a_signed_task_is_accepted_once_and_others_are_refused(
    broker_url: str, submitter: Submitter, engine: sa.Engine, tenants: Tenants, capfd: pytest.CaptureFixture[str]
) -> None:
    """As docs/celery.md says, with the stock Celery and our real broker under the shop's own prefix."""
    administrator = for_administrator(broker_url)
    address = convert_socket_url(administrator, "redis+socket", "virtual_host")
    shop = Celery("shop", broker=address, set_as_current=False)
    shop.conf.update(task_acks_late=True, worker_hijack_root_logger=False, task_ignore_result=True)
    shop.conf.broker_transport_options = {"global_keyprefix": "shop:"}
    outcomes: list[str] = []
    done = threading.Semaphore(0)

    @shop.task(name="shop.accept_run", shared=False)  # type: ignore[untyped-decorator]
    def accept_run(**task: str) -> None:
        try:
            with engine.begin() as connection:
                run = submitter.submit_signed(connection, task)
            run.announce()
            outcomes.append("again" if run.was_replayed else "new")
        except TaskRefused as error:
            outcomes.append(str(error))
        finally:
            done.release()

    key, revoked = make_key(tenants), make_key(tenants)
    tenants.revoke_key("acme", revoked.view.key_id)
    task = signed_with(key, tags=["shop"], iterations_max=5)
    stolen = {**task, "body": task["body"].replace("order 17", "order 18")}
    sent = [task, task, task, signed_with(revoked), signed_with(key, tenant="default"), stolen, {"body": task["body"]}]
    with start_worker(shop, pool="solo", perform_ping_check=False):
        for kwargs in sent:
            shop.send_task("shop.accept_run", kwargs=kwargs)
        assert all(done.acquire(timeout=PATIENCE_S) for _ in sent)
    shop.close()

    unusable = "it is not signed with a key that can be used"
    assert outcomes == [
        "new",
        "again",
        "again",
        unusable,
        "the key acts for another tenant than 'default'",
        unusable,
        "the task has no 'key_id', 'body' and 'signature'",
    ]
    assert list_runs(engine) == [("acme", f"api:shop/{key.view.key_id}")]
    assert tenants.list_keys("acme")[0].last_used_at is not None
    told = capfd.readouterr().err
    assert told.count("signed_task.refused") == 4
    assert key.token not in told and key.token not in json.dumps(sent)


def expire(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signed_tasks, "VALID_S", -1.0)


Change = Callable[[NewKey], Mapping[str, str]]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda key: signed_with(key, approvals="approve"), "approvals: Extra inputs are not permitted"),
        (lambda key: signed_with(key, iterations_max="many"), "iterations_max: Input should be a valid integer"),
        (lambda key: {**signed_with(key), "signature": "\ud800"}, "not signed with a key that can be used"),
        (lambda key: {**signed_with(key), "key_id": "key_000000000000"}, "not signed with a key that can be used"),
    ],
)
def test_a_signature_covers_what_a_key_may_ask_for(
    submitter: Submitter, engine: sa.Engine, tenants: Tenants, change: Change, reason: str
) -> None:
    with engine.connect() as connection, pytest.raises(TaskRefused, match=reason):
        submitter.submit_signed(connection, change(make_key(tenants)))
    assert list_runs(engine) == []


def test_a_key_that_only_reads_or_a_late_task_submits_nothing(
    submitter: Submitter, engine: sa.Engine, tenants: Tenants, monkeypatch: pytest.MonkeyPatch
) -> None:
    with engine.connect() as connection, pytest.raises(TaskRefused, match="lacks the scope 'runs:write'"):
        submitter.submit_signed(connection, signed_with(make_key(tenants, KeyScope.RUNS_READ)))
    key = make_key(tenants)
    with engine.begin() as connection:
        submitter.submit_signed(connection, signed_with(key))
    with engine.connect() as connection, pytest.raises(IdempotencyConflict):
        submitter.submit_signed(connection, signed_with(key, "Pack order 18"))
    expire(monkeypatch)
    with engine.connect() as connection, pytest.raises(TaskRefused, match="was not signed within the last"):
        submitter.submit_signed(connection, signed_with(key))
    tenants.disable_tenant("acme")
    with engine.connect() as connection, pytest.raises(TaskRefused, match="the tenant 'acme' is disabled"):
        submitter.submit_signed(connection, signed_with(key))
    assert len(list_runs(engine)) == 1
