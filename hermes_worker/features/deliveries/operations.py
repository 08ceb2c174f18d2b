"""The operations of the API about deliveries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hermes_worker.features.deliveries.schema import DeadTargetObject, DeliveryObject
from hermes_worker.operation import (
    PAGE,
    ApiRequest,
    Portion,
    build_get,
    build_list_request,
    build_post,
    make_pager,
    make_reader,
    read_nothing,
)


def _name_delivery(delivery_id: str) -> Mapping[str, str]:
    return {"delivery_id": delivery_id}


def deliveries(**filters: Any) -> ApiRequest[Portion[DeliveryObject]]:
    """Deliveries, newest first, page after page; ``filters``: ``state``, ``run_id``, ``before``."""
    request = build_get("/v1/deliveries", read_nothing, **{"limit": PAGE, **filters})
    return build_list_request(request, DeliveryObject, "data", make_pager("before", "delivery_id"))


def delivery(delivery_id: str) -> ApiRequest[DeliveryObject]:
    """A delivery and what became of it."""
    return build_get("/v1/deliveries/{delivery_id}", make_reader(DeliveryObject), _name_delivery(delivery_id))


def send_message(target: str, text: str) -> ApiRequest[list[DeliveryObject]]:
    """Send a text to somebody outside, without a run; one delivery for each target."""
    return build_post(
        "/v1/deliveries", make_reader(list[DeliveryObject], "data"), body={"target": target, "text": text}
    )


def retry_delivery(delivery_id: str) -> ApiRequest[DeliveryObject]:
    """Send a settled delivery once more."""
    return build_post("/v1/deliveries/{delivery_id}/retry", make_reader(DeliveryObject), _name_delivery(delivery_id))


def dead_targets() -> ApiRequest[list[DeadTargetObject]]:
    """Targets to which nothing is sent any more, the newest first: ``key``, ``reason``, ``marked_at``."""
    return build_get("/v1/dead-targets", make_reader(list[DeadTargetObject], "data"))
