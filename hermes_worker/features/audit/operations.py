"""The operations of the API about the audit log."""

from __future__ import annotations

from typing import Any

from hermes_worker.features.audit.schema import DeedObject
from hermes_worker.operation import ApiRequest, Portion, build_get, build_list_request, make_pager, read_nothing


def audit(**filters: Any) -> ApiRequest[Portion[DeedObject]]:
    """Who did what for the tenant, page after page, oldest first unless ``newest_first``; ``filters``: ``after``,
    ``before``, ``act``, ``subject``, ``actor``, ``since``, ``until``, ``settled`` and, for operators,
    ``all_tenants``."""
    request = build_get("/v1/audit", read_nothing, **{"limit": 1_000, **filters})
    onwards = make_pager("before" if filters.get("newest_first") else "after", "number")
    return build_list_request(request, DeedObject, "data", onwards)
