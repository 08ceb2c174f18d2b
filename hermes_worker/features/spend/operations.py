"""The operations of the API about what runs cost."""

from __future__ import annotations

from typing import Any

from hermes_worker.features.spend.schema import SpendObject
from hermes_worker.operation import ApiRequest, build_get, make_reader


def spend(**filters: Any) -> ApiRequest[list[SpendObject]]:
    """What runs cost, ``by`` day, model, tenant, job or session; ``filters`` are further parameters of
    ``GET /v1/spend``."""
    return build_get("/v1/spend", make_reader(list[SpendObject], "data"), **filters)
