"""The shop's tools for its support agent. A real shop asks its own service; here the books are a file of the home."""

import json
import os
from pathlib import Path

from hermes_worker.extending import Extension, HookDeclaration, HookEvent, Key, ToolFailed, tool

PRICES = {17: 4_200, 18: 900}
"""Orders and what they cost, in cents."""
BOOKS = Path(os.environ.get("HERMES_HOME", ".")) / "refunds"


@tool(replay="pure", is_untrusted=False, is_parallel_safe=True)
def find_order(order: int) -> dict[str, int]:
    """Look up an order and its price in cents."""
    if order not in PRICES:
        raise ToolFailed(f"there is no order {order}")
    return {"order": order, "price": PRICES[order]}


@tool(replay="keyed", is_untrusted=False)
def refund(order: int, key: Key) -> str:
    """Pay the price of an order back to its customer."""
    if order not in PRICES:
        raise ToolFailed(f"there is no order {order}")
    BOOKS.mkdir(exist_ok=True)
    # One file for each key: a call that is repeated after a crash pays nothing again.
    (BOOKS / f"{key}.json").write_text(json.dumps({"order": order, "cents": PRICES[order]}))
    return f"order {order} is paid back"


def ask_before_refunds(event: HookEvent) -> object:
    if event.payload["tool_name"] != "refund":
        return None
    return {
        "action": "approve",
        "message": f"pay back order {event.payload['args'].get('order')}",
        "rule_key": "refund",
    }


EXTENSION = Extension(
    name="support",
    version="1.0",
    tools=(find_order, refund),
    hooks=(HookDeclaration(name="ask_before_refunds", events=("pre_tool_call",), implementation=ask_before_refunds),),
)
