"""The cost of runs, added up by day, model, tenant, job or session."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from hermes_worker.api import schema
from hermes_worker.api.auth import READS, Caller
from hermes_worker.api.context import ApiContext, Context
from hermes_worker.api.owners import choose_tenant_or_all
from hermes_worker.features.spend.rows import GROUPS_MAX, SpendBy, SpendQuery, SpendRow, load_spend
from hermes_worker.features.spend.schema import SpendObject

router = APIRouter(prefix="/v1/spend", tags=["runs"], responses=schema.declare_errors(503))
_DAYS = 30
_AGE_S_MAX = 300


class ListSpend(BaseModel, extra="forbid"):
    """How to group the cost, and of which runs."""

    by: SpendBy = SpendBy.DAY
    created_after: float | None = Field(
        None,
        ge=0,
        le=schema.TIME_MAX,
        description=f"Epoch seconds, this moment included. Default: {_DAYS} days before the end.",
    )
    created_before: float | None = Field(None, ge=0, le=schema.TIME_MAX, description="That moment left out.")
    limit: int = Field(100, ge=1, le=GROUPS_MAX)
    all_tenants: bool = Field(False, description="Those of all tenants; for operators.")
    max_age_s: float = Field(
        0,
        ge=0,
        le=_AGE_S_MAX,
        description=(
            "Sums that this server added up so many seconds ago are good enough: for who asks again and again. "
            "'created_before' says when that was, where it is not given."
        ),
    )


class SpendList(BaseModel):
    """Groups: the newest day first, of other kinds the most expensive first."""

    object: Literal["list"] = "list"
    by: SpendBy
    created_after: float
    created_before: float
    data: list[SpendObject]


@router.get("", response_model=SpendList, dependencies=[READS])
async def list_spend(context: Context, caller: Caller, wanted: Annotated[ListSpend, Query()]) -> SpendList:
    """The cost of the runs that were accepted in a time. A run counts on the day on which it was accepted; what it
    caused counts for the job and the session in which its tree began. Deleted runs are not in it."""
    tenant = choose_tenant_or_all(caller, all_tenants=wanted.all_tenants)
    if not wanted.max_age_s:
        return await _add_up(context, wanted, tenant)
    key = (tenant, wanted.model_copy(update={"max_age_s": 0}).model_dump_json())
    found: SpendList = await context.spent.get(
        key, lambda: _add_up(context, wanted, tenant), max_age_s=wanted.max_age_s
    )
    return found


async def _add_up(context: ApiContext, wanted: ListSpend, tenant: str | None) -> SpendList:
    before = wanted.created_before
    if before is None:
        before = await context.call_store(context.client.database.read_clock) + 1
    after = max(0.0, before - _DAYS * 86_400) if wanted.created_after is None else wanted.created_after
    question = SpendQuery(by=wanted.by, after=after, before=before, tenant=tenant, limit=wanted.limit)
    found = await context.call_store(load_spend, context.client.database, question)
    return SpendList(
        by=wanted.by,
        created_after=after,
        created_before=before,
        data=[_build_group(row) for row in found],
    )


def _build_group(row: SpendRow) -> SpendObject:
    usage = row.usage
    sent = usage.input + usage.cache_read + usage.cache_write
    return SpendObject.from_record(
        row,
        cost_usd=None if row.cost_usd is None else float(row.cost_usd),
        doubtful_cost_usd=float(row.doubtful_cost_usd),
        input_tokens=usage.input,
        output_tokens=usage.output,
        cache_read_tokens=usage.cache_read,
        cache_write_tokens=usage.cache_write,
        reasoning_tokens=usage.reasoning,
        estimated_tokens=usage.estimated,
        unknown_tokens=usage.unknown_input + usage.unknown_output,
        cache_hit_ratio=round(usage.cache_read / sent, 4) if sent else None,
    )
