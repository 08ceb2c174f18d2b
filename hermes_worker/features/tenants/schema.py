"""What tenants and their keys may use, as the API answers it, the client returns it and commands print it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from hermes_worker.resource import WHOLE, Resource

_WHOLE_MAX = 10**15
_USD_MAX = 10**9


class WholeLimit(Resource, extra="forbid", strict=True):
    """How many, and what becomes of what is beyond it."""

    at_most: Annotated[int, WHOLE] = Field(ge=0, le=_WHOLE_MAX)
    waits: bool = Field(False, description="What is beyond it is accepted and waits, and is not refused.")


class MoneyLimit(Resource, extra="forbid", strict=True):
    """How many dollars, and what becomes of what is beyond it."""

    at_most: float = Field(ge=0, le=_USD_MAX, description="Dollars; what is finer than a billionth is left out.")
    waits: bool = Field(False, description="What is beyond it is accepted and waits, and is not refused.")


class LimitSet(Resource, extra="forbid", strict=True):
    """The limits of a tenant or a key; one that is not here there is not."""

    runs: WholeLimit | None = None
    queued: WholeLimit | None = None
    model_calls: WholeLimit | None = None
    submits_per_min: WholeLimit | None = None
    tokens_per_day: WholeLimit | None = None
    tokens_per_month: WholeLimit | None = None
    usd_per_day: MoneyLimit | None = None
    usd_per_month: MoneyLimit | None = None


class LimitsObject(Resource):
    """What a tenant, or one of its keys, may use."""

    object: Literal["hermes.limits"] = "hermes.limits"
    tenant: str
    key_id: str | None = None
    limits: LimitSet
    weight: float | None = None
    """The tenant's part of the fleet beside those of others."""


class TenantLimitsObject(LimitsObject):
    keys: list[LimitsObject]
    """The tenant's keys that have limits of their own."""
