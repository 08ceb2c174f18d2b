"""The operations of the API about retention, holds, exports and erasures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hermes_worker.features.retention.erasure_schema import (
    ErasureObject,
    ErasureReceiptObject,
    ErasureWork,
    ForetoldErasure,
)
from hermes_worker.features.retention.schema import HoldView, PrunedPlace, PruneObject
from hermes_worker.operation import ApiRequest, build_get, build_post, make_reader, read_nothing


def retention_rules() -> ApiRequest[dict[str, str]]:
    """The retention rules of the tenant, by kind."""
    return build_get("/v1/retention", make_reader(dict[str, str], "rules"))


def change_retention(rules: Mapping[str, str | None]) -> ApiRequest[dict[str, str]]:
    """Set rules of the tenant's own, by kind; ``None`` removes one. Returns all rules that hold then."""
    body = {"rules": dict(rules)}
    return ApiRequest(method="PATCH", template="/v1/retention", read=make_reader(dict[str, str], "rules"), body=body)


def holds() -> ApiRequest[list[HoldView]]:
    """What is held of the tenant whatever the rules say."""
    return build_get("/v1/holds", make_reader(list[HoldView], "data"))


def place_hold(reason: str, *, run_id: str | None = None, session_id: str | None = None) -> ApiRequest[HoldView]:
    """Hold the chain of a run, a session, or everything of the tenant, until it is released."""
    body = {"reason": reason, "run_id": run_id, "session_id": session_id}
    return build_post("/v1/holds", make_reader(HoldView), body=body)


def release_hold(number: int) -> ApiRequest[None]:
    """Release a hold."""
    return ApiRequest(method="DELETE", template="/v1/holds/{number}", read=read_nothing, names={"number": str(number)})


def prune(
    *, dry_run: bool = True, all_tenants: bool = False, after: PrunedPlace | Mapping[str, Any] | None = None
) -> ApiRequest[PruneObject]:
    """Delete for some seconds what the rules let go, or count it: ``counts``, ``done``, and ``next``, which is the
    ``after`` of the next request."""
    body = {"dry_run": dry_run, "all_tenants": all_tenants, "after": None if after is None else dict(after)}
    return replace(build_post("/v1/prunes", make_reader(PruneObject), body=body), only_reads=dry_run)


def foretell_erasure(whom: Mapping[str, Any], *, tenant: str | None = None) -> ApiRequest[ForetoldErasure]:
    """What an erasure would erase; changes nothing. ``whom`` as for ``export``."""
    asked = build_post("/v1/erasures/foretold", make_reader(ForetoldErasure), body=dict(whom))
    return replace(asked, params={"tenant": tenant}, only_reads=True)


def begin_erasure(
    whom: Mapping[str, Any], *, shared: bool = False, stop: bool = False, tenant: str | None = None
) -> ApiRequest[ErasureObject]:
    """Mark everything of somebody, so that nothing new begins; ``work_on_erasure`` with its ``receipt_id`` erases."""
    body = {"whom": dict(whom), "shared": shared, "stop": stop}
    return replace(build_post("/v1/erasures", make_reader(ErasureObject), body=body), params={"tenant": tenant})


def replay_erasure(receipt: str, *, tenant: str | None = None) -> ApiRequest[ErasureObject]:
    """Begin to erase again what a receipt, as text, tells of."""
    asked = build_post("/v1/erasures/replayed", make_reader(ErasureObject), body={"receipt": receipt})
    return replace(asked, params={"tenant": tenant})


def erasures(*, tenant: str | None = None) -> ApiRequest[list[ErasureObject]]:
    """Erasures that have begun and are not finished, oldest first."""
    return build_get("/v1/erasures", make_reader(list[ErasureObject], "data"), tenant=tenant)


def work_on_erasure(receipt_id: str, *, stop: bool = False, tenant: str | None = None) -> ApiRequest[ErasureWork]:
    """Erase for some seconds; repeat it until ``done``, when there is a ``receipt``."""
    read = make_reader(ErasureWork)
    asked = build_post("/v1/erasures/{receipt_id}/work", read, {"receipt_id": receipt_id}, body={"stop": stop})
    return replace(asked, params={"tenant": tenant})


def erasure_receipts(*, tenant: str | None = None) -> ApiRequest[list[ErasureReceiptObject]]:
    """The receipts of the tenant's erasures, oldest first."""
    return build_get("/v1/erasure-receipts", make_reader(list[ErasureReceiptObject], "data"), tenant=tenant)


def erasure_receipt(receipt_id: str, *, tenant: str | None = None) -> ApiRequest[ErasureReceiptObject]:
    """A receipt, after the server verified its signature."""
    read, names = make_reader(ErasureReceiptObject), {"receipt_id": receipt_id}
    return build_get("/v1/erasure-receipts/{receipt_id}", read, names, tenant=tenant)
