"""The keys that texts in the database are encrypted with, by their ids."""

from __future__ import annotations

from fastapi import APIRouter

from hermes_worker.api import schema
from hermes_worker.api.auth import FOR_SCALERS
from hermes_worker.api.context import Context
from hermes_worker.features.encryption.schema import TextKeyList
from hermes_worker.store.engine.database import Database
from hermes_worker.store.text_keys import list_key_statuses

router = APIRouter(prefix="/v1/encryption", tags=["health"], responses=schema.declare_errors(503))


@router.get("/keys", response_model=TextKeyList, dependencies=[FOR_SCALERS])
async def list_text_keys(context: Context) -> TextKeyList:
    """Which keys encrypt the texts of the database, as this server and the rows say. The command line also counts the
    texts that are stored otherwise ('data encryption status'): it reads all of them."""
    return await context.call_store(_read, context.client.database)


def _read(database: Database) -> TextKeyList:
    found = list_key_statuses(database)
    is_on = database.sealer.is_on and any(each.is_current and each.is_key for each in found)
    return TextKeyList.model_validate({"is_on": is_on, "data": found}, from_attributes=True)
