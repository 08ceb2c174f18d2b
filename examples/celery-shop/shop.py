"""A shop's own Celery application, whose task hands work to an agent."""

import os
import sys
import time
from pathlib import Path

import sqlalchemy as sa
from celery import Celery

import hermes_worker

HERE = Path(__file__).parent
URL = os.environ.get("HERMES_DATABASE_URL") or f"sqlite:///{Path(os.environ['HERMES_HOME'], 'hermes-worker.db')}"
engine = sa.create_engine(URL)
orders = sa.Table(
    "shop_orders", sa.MetaData(), sa.Column("number", sa.Integer, primary_key=True), sa.Column("status", sa.String(20))
)
orders.metadata.create_all(engine)
app = Celery("shop", broker=os.environ.get("SHOP_BROKER_URL", f"sqla+sqlite:///{HERE / 'broker.db'}"))
app.conf.update(task_acks_late=True, task_ignore_result=True)


@app.task(bind=True)
def pack(self, number: int) -> None:
    with engine.begin() as connection:
        connection.execute(sa.insert(orders).values(number=number, status="ordered"))
        run = hermes_worker.submit(
            connection,
            f"Pack order {number}.",
            tenant="default",
            principal="shop",
            toolsets=["shop"],
            tags=["shop"],
            idempotency_key=self.request.id,
        )
    run.announce()


def is_packed(number: int) -> bool:
    with engine.connect() as connection:
        return connection.execute(sa.select(orders.c.status).where(orders.c.number == number)).scalar() == "packed"


if __name__ == "__main__":
    number = int(sys.argv[1])
    app.send_task("shop.pack", args=[number], task_id=f"pack-{number}")
    while not is_packed(number):
        time.sleep(0.5)
    print(f"order {number} is packed")
