"""A shop whose orders and whose agent's runs are committed together."""

import os
from pathlib import Path

import sqlalchemy as sa
from fastapi import FastAPI, HTTPException
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

import hermes_worker

URL = os.environ.get("HERMES_DATABASE_URL") or f"sqlite:///{Path(os.environ['HERMES_HOME'], 'hermes-worker.db')}"
STOCK = {"lamp", "chair"}
engine = sa.create_engine(URL)
app = FastAPI()


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "shop_orders"

    number: Mapped[int] = mapped_column(primary_key=True)
    item: Mapped[str]
    status: Mapped[str] = mapped_column(default="ordered")


Base.metadata.create_all(engine)


@app.post("/orders", status_code=201)
def make_order(item: str) -> dict[str, int | str]:
    with Session(engine) as session, session.begin():
        order = Order(item=item)
        session.add(order)
        session.flush()  # gives it its number
        run = hermes_worker.submit(
            session,
            f"Pack order {order.number}: one {item}.",
            tenant="default",
            principal="shop",
            toolsets=["shop"],
            tags=["shop"],
            idempotency_key=f"pack-{order.number}",
        )
        if item not in STOCK:
            raise HTTPException(409, f"there is no {item}")  # the order and the run are rolled back
        return {"number": order.number, "run_id": run.run_id}


@app.get("/orders/{number}")
def show_order(number: int) -> dict[str, int | str]:
    with Session(engine) as session:
        if (order := session.get(Order, number)) is None:
            raise HTTPException(404, f"there is no order {number}")
        return {"number": order.number, "item": order.item, "status": order.status}
