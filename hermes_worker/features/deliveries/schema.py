"""Deliveries and dead targets, as the API answers them, the client returns them and commands print them."""

from __future__ import annotations

from typing import Literal

from hermes_worker.core.delivery_states import DeliveryState
from hermes_worker.resource import ListOf, PageOf, Resource


class DeliveryRetryObject(Resource):
    """Somebody had a settled delivery sent once more. Its attempts are counted anew from then on."""

    at: float
    by: str
    state: DeliveryState
    """What had become of it until then, with so many ``attempts``."""
    attempts: int
    error_kind: str | None = None


class DeliveryObject(Resource):
    """A message to somebody outside, and what became of it. Times are epoch seconds."""

    object: Literal["hermes.delivery"] = "hermes.delivery"
    delivery_id: str
    run_id: str | None = None
    job_id: str | None = None
    target: str
    """Without what may be a secret in a URL."""
    state: DeliveryState
    attempts: int
    may_be_duplicate: bool
    """An attempt ended without an answer and may have arrived."""
    not_before: float | None = None
    receipt: str | None = None
    error_kind: str | None = None
    error: str | None = None
    created_at: float
    settled_at: float | None = None
    is_retried: bool = False
    """Somebody had it sent once more."""
    retries: list[DeliveryRetryObject] | None = None
    """Who did and when, the oldest first; only where one delivery is read."""


class DeliveryList(PageOf[DeliveryObject]):
    """A page of deliveries, newest first."""


class DeadTargetObject(Resource):
    """A target that refused us or is gone: nothing is sent there any more."""

    key: str
    reason: str
    marked_at: float
    """Epoch seconds."""


class DeadTargetList(ListOf[DeadTargetObject]):
    """Targets that refuse deliveries, the newest first."""
