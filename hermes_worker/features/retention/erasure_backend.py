"""The API's operations on exports and erasures, as typed calls."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hermes_worker.cli.api_connection import open_api_client
from hermes_worker.cli.options import get_chosen_tenant
from hermes_worker.cli.short_ids import complete_id
from hermes_worker.core.principals import DEFAULT_TENANT
from hermes_worker.features.retention.erasure_rows import NotYetErased, RunsAtWork
from hermes_worker.features.retention.erasure_rules import ErasureReceipt, Person, parse_receipt

if TYPE_CHECKING:
    from hermes_worker.client import HermesClient
    from hermes_worker.features.retention.erasure_schema import ErasureReceiptObject, ForetoldErasure

_LOOK_EVERY_S = 0.2
Progress = Callable[[Counter[str]], None]


def open_erasures(home: Path | None, told: Progress) -> ErasureRows:
    """Open the erasures of a home or server. ``told`` is called with what was erased so far. Raises
    ``ConfigurationError``, ``UnavailableError``."""
    return ErasureRows(open_api_client(home, names_tenant=True), get_chosen_tenant(), told)


def _build_runs_at_work(at_work: Sequence[str]) -> RunsAtWork:
    return RunsAtWork(
        f"{len(at_work)} runs were told to stop and have not ended, {at_work[0]} among them; call "
        "'hermes-worker data erase --resume --stop' when a worker has ended them"
    )


class ErasureRows:
    """Exports and erasures of one tenant. The API works for some seconds at each request. ``stops_within_s`` is how
    long runs are waited for that were asked to stop; ``None`` stops nothing."""

    def __init__(self, client: HermesClient, tenant: str, told: Progress) -> None:
        self._client = client
        self._tenant = None if tenant == DEFAULT_TENANT else tenant
        self._told = told

    def export(self, person: Person) -> Iterator[tuple[str, str]]:
        for line in self._client.export(self._build_subject(person), tenant=self._tenant):
            yield str(json.loads(line)["kind"]), line

    def list_receipts(self, receipt_id: str | None) -> Sequence[ErasureReceiptObject]:
        if receipt_id is None:
            return self._client.erasure_receipts(tenant=self._tenant)
        return [self._client.erasure_receipt(receipt_id, tenant=self._tenant)]

    def foretell(self, person: Person) -> ForetoldErasure:
        return self._client.foretell_erasure(self._build_subject(person), tenant=self._tenant)

    def erase(self, person: Person, *, shared: bool, stops_within_s: float | None) -> ErasureReceipt:
        stops = stops_within_s is not None
        begun = self._client.begin_erasure(self._build_subject(person), shared=shared, stop=stops, tenant=self._tenant)
        return self._finish(begun.receipt_id, stops_within_s)

    def resume(self, *, stops_within_s: float | None) -> Sequence[ErasureReceipt]:
        found = self._client.erasures(tenant=self._tenant)
        return [self._finish(each.receipt_id, stops_within_s) for each in found]

    def replay(self, receipts: Sequence[ErasureReceipt], *, stops_within_s: float | None) -> Sequence[ErasureReceipt]:
        done = []
        for receipt in receipts:
            begun = self._client.replay_erasure(json.dumps(receipt.build_document()), tenant=self._tenant)
            done.append(self._finish(begun.receipt_id, stops_within_s))
        return done

    def _finish(self, receipt_id: str, stops_within_s: float | None) -> ErasureReceipt:
        """Erase until it is done. Raises ``RunsAtWork``, ``NotYetErased``, and the server's refusals; what was erased
        stays erased."""
        told: Counter[str] = Counter()
        deadline = None if stops_within_s is None else time.monotonic() + stops_within_s
        while True:
            work = self._client.work_on_erasure(receipt_id, stop=deadline is not None, tenant=self._tenant)
            if work.receipt is not None:
                return parse_receipt(json.dumps(work.receipt.model_dump()))
            told.update(work.did)
            self._told(told)
            if work.open_runs:
                if deadline is not None and time.monotonic() > deadline:
                    raise _build_runs_at_work(work.open_runs)
                time.sleep(_LOOK_EVERY_S)
            elif work.waits_for:
                raise NotYetErased(work.waits_for)

    def _build_subject(self, person: Person) -> dict[str, Any]:
        """Build the subject for the API. Raises ``AmbiguousId``."""
        return {
            "sessions": [complete_id(self._client, each, "session") for each in person.sessions],
            "named": [list(each) for each in person.named],
            "principals": list(person.principals),
            "holders": list(person.holders),
            "targets": list(person.targets),
            "everybody": person.is_everybody,
        }
