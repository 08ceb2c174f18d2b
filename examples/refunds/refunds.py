"""A shop's tools for its agent: look an order up, refund it once, write to the customer once."""

from __future__ import annotations

from dataclasses import dataclass, field

from hermes_worker.extending import Extension, Key, ToolFailed, tool


@dataclass
class Shop:
    """The shop's books and mailbox; a real one keeps them in its database."""

    prices: dict[int, int] = field(default_factory=lambda: {17: 4_200, 18: 900})
    """Orders and what they cost, in cents."""
    refunds: dict[str, int] = field(default_factory=dict)
    """Refunded orders by the key of the call: a repeated call finds its own."""
    letters: list[str] = field(default_factory=list)


SHOP = Shop()


@tool(replay="pure", is_untrusted=False, is_parallel_safe=True)
def order_price(order: int) -> int:
    """Look up what an order cost, in cents."""
    if order not in SHOP.prices:
        raise ToolFailed(f"there is no order {order}")
    return SHOP.prices[order]


@tool(replay="keyed", is_untrusted=False)
def refund(order: int, key: Key) -> str:
    """Pay the price of an order back to its customer."""
    if order not in SHOP.prices:
        raise ToolFailed(f"there is no order {order}")
    SHOP.refunds.setdefault(key, order)
    return f"order {order} is refunded"


@tool(replay="once", is_untrusted=False)
def write_to_customer(order: int, text: str) -> str:
    """Send a letter to the customer of an order."""
    SHOP.letters.append(f"{order}: {text}")
    return "sent"


EXTENSION = Extension(name="refunds", version="1.0", tools=(order_price, refund, write_to_customer))
