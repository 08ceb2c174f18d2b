"""The state of provider keys: the whole fleet shares one for each key that ever failed."""

from __future__ import annotations

from fastapi import APIRouter

from hermes_worker.api import schema
from hermes_worker.api.auth import FOR_OPERATORS, FOR_SCALERS
from hermes_worker.api.context import Context
from hermes_worker.api.errors import RouteRefusal, answer_errors
from hermes_worker.schemas.fleet import KeyStateList, KeyStateObject
from hermes_worker.store.key_states import KeyRow, KeyStates, KeyUnknown

router = APIRouter(
    prefix="/v1/providers",
    tags=["health"],
    route_class=answer_errors(
        {
            KeyUnknown: RouteRefusal(404, "key_unknown", "credential"),
        }
    ),
    responses=schema.declare_errors(503),
)


@router.get("/states", response_model=KeyStateList, dependencies=[FOR_SCALERS])
async def list_key_states(context: Context) -> KeyStateList:
    """The keys of the whole installation that failed at least once, closed ones first. While a key is closed no model
    call begins with it, but for one at a time that tries it."""
    found = await context.call_store(KeyStates(context.client.database).list_keys)
    return KeyStateList(data=[_build_state_object(row) for row in found])


@router.post(
    "/states/{credential}/open",
    response_model=KeyStateObject,
    responses=schema.declare_errors(404),
    dependencies=[FOR_OPERATORS],
)
async def open_key_state(context: Context, credential: str) -> KeyStateObject:
    """Let runs use a key again at once, as after a top-up. If it does not work it is closed again."""
    return _build_state_object(await context.call_store(KeyStates(context.client.database).open, credential))


def _build_state_object(row: KeyRow) -> KeyStateObject:
    return KeyStateObject.from_record(
        row,
        condition=row.state.condition.value,
        since=row.state.since,
        epoch=row.state.epoch,
        probes=row.state.probes,
        probe_at=row.state.probe_at,
    )
