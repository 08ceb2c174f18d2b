"""The keys that texts in the database are encrypted with, by their ids."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter
from pydantic import BaseModel

from hermes_worker.api import schema
from hermes_worker.api.auth import FOR_SCALERS
from hermes_worker.api.context import Context
from hermes_worker.store.engine.database import Database
from hermes_worker.store.text_keys import key_standings

router = APIRouter(prefix="/v1/encryption", tags=["health"], responses=schema.errors(503))


class TextKeyObject(BaseModel):
    """A key for texts. The key itself is never shown."""

    key_id: str
    """``clear`` stands for texts that are not encrypted."""
    is_current: bool
    """This server encrypts new texts with it."""
    is_here: bool
    """This server can decrypt with it."""
    is_needed: bool
    """Texts in the database may be stored by it."""
    unused_s: float | None
    """Since when no process said that it encrypts with it; ``null`` where none ever did."""


class TextKeyList(BaseModel):
    """The keys that are here or needed, the current one first."""

    object: Literal["list"] = "list"
    is_on: bool
    """New texts are encrypted."""
    data: list[TextKeyObject]


@router.get("/keys", response_model=TextKeyList, dependencies=[FOR_SCALERS])
async def list_text_keys(context: Context) -> TextKeyList:
    """Which keys encrypt the texts of the database, as this server and the rows say. The command line also counts the
    texts that are stored otherwise ('encryption status'): it reads all of them."""
    return await context.store(_read, context.client.database)


def _read(database: Database) -> TextKeyList:
    found = key_standings(database)
    return TextKeyList(
        is_on=database.sealer.is_on and any(each.is_current and each.is_key for each in found),
        data=[TextKeyObject.model_validate(each, from_attributes=True) for each in found],
    )
