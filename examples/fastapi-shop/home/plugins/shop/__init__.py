"""The shop's tool for its agent."""

import os
from pathlib import Path

import sqlalchemy as sa

from hermes_worker.extending import Extension, Key, ToolFailed, tool


@tool(replay="keyed", is_untrusted=False)
def pack_order(order: int, key: Key) -> str:
    """Pack an order. Packing one that is packed already changes nothing."""
    url = os.environ.get("HERMES_DATABASE_URL") or f"sqlite:///{Path(os.environ['HERMES_HOME'], 'hermes-worker.db')}"
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        statement = sa.text("UPDATE shop_orders SET status = 'packed' WHERE number = :number")
        found = connection.execute(statement, {"number": order}).rowcount
    engine.dispose()
    if not found:
        raise ToolFailed(f"there is no order {order}")
    return f"order {order} is packed"


EXTENSION = Extension(name="shop", version="1.0", tools=(pack_order,))
