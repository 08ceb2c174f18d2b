"""Routes of the API, in Acme's own dialect. Imported by the API and by nobody else."""

from __future__ import annotations

from fastapi import APIRouter, HTTPException

from hermes_acme.stock import STOCK

router = APIRouter()


@router.get("/acme/v1/stock/{item}")
async def stock(item: str) -> dict[str, object]:
    """How many pieces of an item there are."""
    if item not in STOCK:
        raise HTTPException(status_code=404, detail="Acme has no such item")
    return {"item": item, "pieces": STOCK[item]}
