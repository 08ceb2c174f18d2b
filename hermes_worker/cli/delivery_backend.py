"""What the verbs of ``deliveries`` need, as typed calls, and how a database and a server answer them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from hermes_worker.cli.records import Records, open_records
from hermes_worker.cli.server import server_client
from hermes_worker.core.errors import ConfigurationError
from hermes_worker.store.access.principals import Tenants
from hermes_worker.store.outbox.deliveries import DeadTarget, Deliveries, DeliveryState, DeliveryView
from hermes_worker.store.short_ids import AmbiguousId

if TYPE_CHECKING:
    from hermes_worker.client import HermesClient
    from hermes_worker.client.documents import DeliveryDocument

_PREFIX = "dlv_"
_ID_CHARS = len(_PREFIX) + 32
_LOOKED_THROUGH = 1_000
"""Of the newest deliveries, for one that begins as was written."""


class OutboxBackend(Protocol):
    """Deliveries of one tenant. Each call raises ``HermesError``s that say what is wrong; ids may be short."""

    def list(self, limit: int, state: DeliveryState | None, run_id: str | None) -> Sequence[DeliveryView]: ...
    def get(self, delivery_id: str) -> DeliveryView: ...
    def retry(self, delivery_id: str) -> str:
        """The whole id of what is sent again."""

    def dead_targets(self) -> Sequence[DeadTarget]: ...


def open_outbox(home: Path | None) -> OutboxBackend:
    """The server that was chosen, or the database of a home. Raises ``ConfigurationError``, ``UnavailableError``."""
    client = server_client()
    return LocalOutbox(open_records(home)) if client is None else RemoteOutbox(client)


class LocalOutbox:
    """Asks a database."""

    def __init__(self, records: Records) -> None:
        self._records = records
        self._outbox = Deliveries(records.database)

    def list(self, limit: int, state: DeliveryState | None, run_id: str | None) -> Sequence[DeliveryView]:
        run_id = self._records.run_id(run_id) if run_id is not None else None
        return self._outbox.list(tenant=self._records.tenant, limit=limit, state=state, run_id=run_id)

    def get(self, delivery_id: str) -> DeliveryView:
        return self._outbox.get(self._full_id(delivery_id))

    def retry(self, delivery_id: str) -> str:
        full_id = self._full_id(delivery_id)
        self._records.tell_workers("deliver", full_id, self._outbox.retry(full_id))
        return full_id

    def dead_targets(self) -> Sequence[DeadTarget]:
        return self._outbox.dead_targets(tenant=self._records.tenant)

    def _full_id(self, written: str) -> str:
        """Raises ``AmbiguousId``, ``DeliveryNotFound``."""
        full_id = self._outbox.full_id(written, tenant=self._records.tenant)
        return Tenants(self._records.database).require_delivery(self._records.tenant, full_id)


class RemoteOutbox:
    """Asks a server, which hides what looks like a secret in receipts and errors."""

    def __init__(self, client: HermesClient) -> None:
        self._client = client

    def list(self, limit: int, state: DeliveryState | None, run_id: str | None) -> Sequence[DeliveryView]:
        from hermes_worker.cli.remote_backend import RemoteBackend

        full_id = RemoteBackend(self._client).run_id(run_id) if run_id is not None else None
        asked = {"state": state.value if state else None, "run_id": full_id, "limit": min(limit, 100)}
        return [_view_of(told) for told in islice(self._client.deliveries(**asked), limit)]

    def get(self, delivery_id: str) -> DeliveryView:
        return _view_of(self._client.delivery(self._full_id(delivery_id)))

    def retry(self, delivery_id: str) -> str:
        return self._client.retry_delivery(self._full_id(delivery_id))["delivery_id"]

    def dead_targets(self) -> Sequence[DeadTarget]:
        return [DeadTarget(**told) for told in self._client.dead_targets()]

    def _full_id(self, written: str) -> str:
        """Raises ``AmbiguousId``, ``ConfigurationError``."""
        digits = written.strip().removeprefix(_PREFIX).lower()
        if len(written) == _ID_CHARS or not digits or not set(digits) <= set("0123456789abcdef"):
            return written
        newest = (told["delivery_id"] for told in islice(self._client.deliveries(), _LOOKED_THROUGH))
        found = [each for each in newest if each.startswith(f"{_PREFIX}{digits}")]
        if len(found) > 1:
            raise AmbiguousId(f"{written!r} is the beginning of several ids: {', '.join(found[:5])}; write more of it")
        if not found:
            raise ConfigurationError(
                f"none of the newest {_LOOKED_THROUGH:,} deliveries begins with {written[:80]!r}; write the whole id"
            )
        return found[0]


def _view_of(told: DeliveryDocument) -> DeliveryView:
    """What a server says, as a database does."""
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
