"""A tool, and what the operator sets for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from hermes_worker.extending import Progress, ToolFailed, setting, tool

STOCK = {"bolt": 1200, "nut": 900}


@dataclass(frozen=True, slots=True, kw_only=True)
class Warehouse:
    """What the operator sets."""

    token: str = setting("ACME_WAREHOUSE_TOKEN", "What the warehouse knows you by.", is_secret=True)
    pieces_max: int = setting("ACME_PIECES_MAX", "The largest number that is told.", default=10_000, minimum=1)
    workshop_url: str | None = setting("ACME_WORKSHOP_URL", "Address of the workshop's server.")
    site: Literal["north", "south"] = setting("ACME_SITE", "Which warehouse is asked.", default="north")


@tool(replay="pure", timeout_s=30, is_untrusted=False)
def stock_level(
    item: Annotated[str, "One item, such as 'bolt'."], progress: Progress, warehouse: Warehouse
) -> dict[str, object]:
    """Look up how many pieces of an item are in Acme's warehouse."""
    progress(f"asking the warehouse about {item}")
    if item not in STOCK:
        raise ToolFailed(f"Acme has no {item!r}; it has {', '.join(STOCK)}")
    pieces = min(STOCK[item], warehouse.pieces_max)
    return {"item": item, "pieces": pieces, "site": warehouse.site, "authorised": bool(warehouse.token)}
