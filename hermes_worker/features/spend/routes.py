"""The cost of runs, added up by day, model, tenant, job or session."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field

from hermes_worker.api import schema
from hermes_worker.api.auth import READS, Caller
from hermes_worker.api.context import ApiContext, Context
from hermes_worker.api.owners import for_all_or_own
from hermes_worker.features.spend.rows import GROUPS_MAX, SpendBy, SpendQuestion, read_spend
from hermes_worker.services.shown import spend_line

router = APIRouter(prefix="/v1/spend", tags=["runs"], responses=schema.errors(503))
_DAYS = 30
_AGE_S_MAX = 300


class ListSpend(BaseModel):
    """How to group the cost, and of which runs."""

    model_config = ConfigDict(extra="forbid")

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


class SpendObject(BaseModel):
    """The cost of one group's runs."""

    key: str | None
    """A day in UTC (``2026-11-25``), a model, a tenant, the id of a job or of a session; ``null`` for runs that no job
    began."""
    name: str | None
    """The name of the job, or the name that callers gave the session."""
    runs: int
    cost_usd: float | None
    """The known part of the cost; ``null`` when none is known."""
    doubtful_cost_usd: float
    """The most that may have been billed beside it."""
    unknown_runs: int
    """Runs whose cost is not wholly known: ``cost_usd`` leaves the rest out."""
    unpriced_calls: int
    """Model calls whose price is not known."""
    input_tokens: int
    """Without those that were read from or written to a cache of the provider."""
    output_tokens: int
    cache_read_tokens: int
    cache_write_tokens: int
    reasoning_tokens: int
    """Among ``output_tokens``."""
    estimated_tokens: int
    """Among all these, those that the provider did not count."""
    unknown_tokens: int
    """Tokens of requests with an unknown outcome, as estimated; not among the others."""
    cache_hit_ratio: float | None
    """Which part of what was sent came from a cache of the provider; ``null`` when nothing was sent."""


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
    tenant = for_all_or_own(caller, all_tenants=wanted.all_tenants)
    if not wanted.max_age_s:
        return await _added_up(context, wanted, tenant)
    key = (tenant, wanted.model_copy(update={"max_age_s": 0}).model_dump_json())
    found: SpendList = await context.spent.get(
        key, lambda: _added_up(context, wanted, tenant), max_age_s=wanted.max_age_s
    )
    return found


async def _added_up(context: ApiContext, wanted: ListSpend, tenant: str | None) -> SpendList:
    before = wanted.created_before
    if before is None:
        before = await context.store(context.client.database.now) + 1
    after = max(0.0, before - _DAYS * 86_400) if wanted.created_after is None else wanted.created_after
    question = SpendQuestion(by=wanted.by, after=after, before=before, tenant=tenant, limit=wanted.limit)
    found = await context.store(read_spend, context.client.database, question)
    return SpendList(
        by=wanted.by,
        created_after=after,
        created_before=before,
        data=[SpendObject.model_validate(spend_line(row), from_attributes=True) for row in found],
    )
