"""Accounts to which people write, and who may speak to the agent there. For operators."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import Field

from hermes_worker.api import schema
from hermes_worker.api.auth import FOR_OPERATORS
from hermes_worker.api.bodies import JsonRoute
from hermes_worker.api.context import Context
from hermes_worker.api.errors import ApiError, RouteRefusal, answer_errors
from hermes_worker.api.formats import NO_NUL
from hermes_worker.api.schema import RequestBody
from hermes_worker.core.chat_commands import ChatRole
from hermes_worker.safety.redaction import redact
from hermes_worker.schemas.gateway import (
    ChatAskerObject,
    ChatPersonObject,
    GatewayAccountList,
    GatewayAccountObject,
    PairedPerson,
    RemovedCodes,
)
from hermes_worker.store.gateway import GatewayRows, PairingRefused

router = APIRouter(
    prefix="/v1/gateway",
    tags=["gateway"],
    route_class=answer_errors(
        {
            PairingRefused: RouteRefusal(409, "pairing_refused", "code"),
        },
        JsonRoute,
    ),
    dependencies=[FOR_OPERATORS],
    responses=schema.declare_errors(503),
)
_Account = Annotated[str, Query(min_length=1, max_length=100, pattern=NO_NUL)]
_Person = Annotated[str, Query(min_length=1, max_length=200, pattern=NO_NUL)]


class PairPerson(RequestBody):
    """A code that a person was given in a chat."""

    account: str = Field(min_length=1, max_length=100, pattern=NO_NUL, description="As 'telegram:default'.")
    code: str = Field(min_length=1, max_length=40, pattern=NO_NUL)
    role: Annotated[ChatRole, Field(strict=False)] = Field(ChatRole.OWNER, description="What they may do.")


@router.get("/accounts", response_model=GatewayAccountList)
async def list_gateway_accounts(context: Context) -> GatewayAccountList:
    """The accounts that gateways listen to: by which gateway, what was wrong with the last poll, who was let in, and
    who asks to be."""
    return await context.call_store(_list_accounts, GatewayRows(context.client.database))


def _list_accounts(rows: GatewayRows) -> GatewayAccountList:
    now = rows.read_clock()
    known = rows.list_people()
    found = [
        GatewayAccountObject(
            account=each.account,
            mode=each.mode,
            holder=each.holder if each.lease_until is not None and each.lease_until > now else None,
            looked_at=each.looked_at,
            error=None if each.error is None else redact(each.error),
            error_at=each.error_at,
            codes_locked_until=each.locked_until if each.locked_until is not None and each.locked_until > now else None,
            people=[
                ChatPersonObject.model_validate(one, from_attributes=True)
                for one in known
                if one.account == each.account and one.role is not None
            ],
            asking=[
                ChatAskerObject.model_validate(one, from_attributes=True)
                for one in known
                if one.account == each.account and one.role is None
            ],
        )
        for each in rows.list_accounts()
    ]
    return GatewayAccountList(data=found)


@router.post("/pairings", response_model=PairedPerson, responses=schema.declare_errors(408, 409))
async def pair_person(context: Context, body: PairPerson) -> PairedPerson:
    """Let in the person who was given this code. After five wrong codes every code of the account is refused for an
    hour."""
    rows = GatewayRows(context.client.database)
    person = await context.call_store(rows.pair, body.account, body.code, body.role)
    return PairedPerson(account=body.account, person=person, role=body.role)


@router.delete("/people", status_code=204, responses=schema.declare_errors(404))
async def remove_chat_person(context: Context, account: _Account, person: _Person) -> None:
    """Remove a person who was let in, or refuse one who asks: their code is no longer valid, and they get another one
    no sooner than before."""
    if not await context.call_store(_revoke_or_deny, GatewayRows(context.client.database), account, person):
        message = f"Nobody called {person[:80]!r} was let in on {account[:80]!r}, and nobody so called asks to be."
        raise ApiError(404, message, code="person_not_found", param="person")


@router.delete("/codes", response_model=RemovedCodes)
async def remove_gateway_codes(context: Context, account: _Account) -> RemovedCodes:
    """Remove all unused codes of an account. A person who had one may ask again at once."""
    gone = await context.call_store(GatewayRows(context.client.database).delete_codes, account)
    return RemovedCodes(account=account, removed=gone)


def _revoke_or_deny(rows: GatewayRows, account: str, person: str) -> bool:
    is_in = any(each.person == person and each.role is not None for each in rows.list_people(account))
    return rows.revoke(account, person) if is_in else rows.deny(account, person)
