"""The API's operations on deliveries, as typed calls for the verbs of ``deliveries``."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from hermes_worker.cli.reaching import api_client
from hermes_worker.cli.short_ids import whole_id
from hermes_worker.store.outbox.deliveries import DeadTarget, DeliveryState, DeliveryView

if TYPE_CHECKING:
    from hermes_worker.client import HermesClient
    from hermes_worker.client.documents import DeliveryDocument


def open_outbox(home: Path | None) -> Outbox:
    """Open the deliveries of a home or server. Raises ``ConfigurationError``, ``UnavailableError``."""
    return Outbox(api_client(home))


class Outbox:
    """Deliveries of one tenant. The API redacts what looks like a secret in receipts and errors. Ids may be
    shortened."""

    def __init__(self, client: HermesClient) -> None:
        self._client = client

    def list(self, limit: int, state: DeliveryState | None, run_id: str | None) -> Sequence[DeliveryView]:
        full_id = whole_id(self._client, run_id, "run") if run_id is not None else None
        asked = {"state": state.value if state else None, "run_id": full_id, "limit": min(limit, 100)}
        return [_view_of(told) for told in islice(self._client.deliveries(**asked), limit)]

    def get(self, delivery_id: str) -> DeliveryView:
        return _view_of(self._client.delivery(self._full_id(delivery_id)))

    def retry(self, delivery_id: str) -> str:
        return self._client.retry_delivery(self._full_id(delivery_id))["delivery_id"]

    def dead_targets(self) -> Sequence[DeadTarget]:
        return [DeadTarget(**told) for told in self._client.dead_targets()]

    def _full_id(self, written: str) -> str:
        """Complete a shortened id. Raises ``AmbiguousId``, ``ConfigurationError``."""
        return whole_id(self._client, written, "delivery")


def _view_of(told: DeliveryDocument) -> DeliveryView:
    """Build the view from a server's document."""
    return DeliveryView(
        delivery_id=told["delivery_id"],
        run_id=told.get("run_id"),
        job_id=told.get("job_id"),
        target=told["target"],
        state=DeliveryState(told["state"]),
        attempts=told["attempts"],
        is_in_doubt=told["may_be_duplicate"],
        not_before=told.get("not_before"),
        receipt=told.get("receipt"),
        error_kind=told.get("error_kind"),
        error=told.get("error"),
        created_at=told["created_at"],
        settled_at=told.get("settled_at"),
    )
