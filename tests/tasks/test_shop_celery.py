"""A Celery application of somebody else on our broker: it submits runs, and neither of the two disturbs the other."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from celery import Celery
from celery.contrib.testing.worker import start_worker
from kombu.transport import TRANSPORT_ALIASES
from support.migrated import bring_up
from support.patience import PATIENCE_S
from support.valkey import for_administrator

from hermes_worker.broker.queue import KEY_PREFIX, build_redis_client
from hermes_worker.services.embedding import Submitter
from hermes_worker.settings import load_settings
from hermes_worker.settings.kinds import convert_socket_url


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
