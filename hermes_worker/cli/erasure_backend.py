"""What ``export`` and ``erase`` need, as typed calls, and how a database and a server answer them."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import redis

from hermes_worker.broker.queue import redis_client
from hermes_worker.cli.options import chosen_tenant, this_user
from hermes_worker.cli.records import Records, open_records
from hermes_worker.cli.server import server_client
from hermes_worker.core.erasure import ErasureReceipt, Person, read_receipt
from hermes_worker.core.errors import HermesError
from hermes_worker.core.principals import DEFAULT_TENANT
from hermes_worker.store.retention.erasing import Erasure, Erasures, NotYetErased, RunsAtWork
from hermes_worker.store.retention.exporting import exported
from hermes_worker.stream.live import forget
from hermes_worker.wiring import remove_files_here

if TYPE_CHECKING:
    from hermes_worker.client import HermesClient

_LOOK_EVERY_S = 0.2
Progress = Callable[[Counter[str]], None]


class ForetoldView(NamedTuple):
    """What an erasure would be, as it is printed."""

    would_erase: Mapping[str, int]
    open_runs: Sequence[str]
    shared: int
    held_by: Sequence[int]


class ErasureBackend(Protocol):
    """Exports and erasures of one tenant. Each call raises ``HermesError``s that say what is wrong. ``stops_within_s``
    is how long runs are waited for that were asked to stop; ``None`` stops nothing."""

    def exported(self, person: Person) -> Iterator[tuple[str, str]]:
        """Rows: the kind, and the whole as JSON."""

    def receipts(self, receipt_id: str | None) -> Sequence[Mapping[str, Any]]:
        """One, or all."""

    def foretell(self, person: Person) -> ForetoldView: ...
    def erase(self, person: Person, *, shared: bool, stops_within_s: float | None) -> ErasureReceipt: ...
    def resume(self, *, stops_within_s: float | None) -> Sequence[ErasureReceipt]: ...
    def replay(
        self, receipts: Sequence[ErasureReceipt], *, stops_within_s: float | None
    ) -> Sequence[ErasureReceipt]: ...


def open_erasures(home: Path | None, told: Progress) -> ErasureBackend:
    """The server that was chosen, or the database of a home; ``told`` hears what was done so far. Raises
    ``ConfigurationError``, ``UnavailableError``."""
    client = server_client(names_tenant=True)
    return LocalErasures(open_records(home), told) if client is None else RemoteErasures(client, chosen_tenant(), told)


def _not_ended(at_work: Sequence[str]) -> RunsAtWork:
    return RunsAtWork(
        f"{len(at_work)} runs were told to stop and have not ended, {at_work[0]} among them; call 'hermes-worker erase "
        "--resume --stop' when a worker has ended them"
    )


class LocalErasures:
    """Asks a database, a broker and a home."""

    def __init__(self, records: Records, told: Progress) -> None:
        self._records = records
        self._every = Erasures(records.database)
        self._told = told

    def exported(self, person: Person) -> Iterator[tuple[str, str]]:
        for row in exported(self._records.database, self._records.tenant, person):
            yield row.kind, row.to_json()

    def receipts(self, receipt_id: str | None) -> Sequence[Mapping[str, Any]]:
        found = [self._every.receipt(receipt_id)] if receipt_id is not None else self._every.receipts()
        return [receipt.to_document() for receipt in found]

    def foretell(self, person: Person) -> ForetoldView:
        foretold = self._every.foretell(self._records.tenant, person)
        return ForetoldView(
            dict(foretold.counts), list(foretold.open_runs), foretold.selected.shared, list(foretold.held)
        )

    def erase(self, person: Person, *, shared: bool, stops_within_s: float | None) -> ErasureReceipt:
        open_runs = self._every.foretell(self._records.tenant, person).open_runs
        if open_runs and stops_within_s is None:
            raise RunsAtWork(f"{len(open_runs)} runs have not ended, {open_runs[0]} among them; add --stop")
        begun = self._every.begin(self._records.tenant, person, by=this_user(), takes_shared=shared)
        return self._finish(begun, stops_within_s)

    def resume(self, *, stops_within_s: float | None) -> Sequence[ErasureReceipt]:
        return [self._finish(each, stops_within_s) for each in self._every.unfinished(self._records.tenant)]

    def replay(self, receipts: Sequence[ErasureReceipt], *, stops_within_s: float | None) -> Sequence[ErasureReceipt]:
        return [self._again(receipt, stops_within_s) for receipt in receipts]

    def _again(self, receipt: ErasureReceipt, stops_within_s: float | None) -> ErasureReceipt:
        """Erase what a receipt tells of, whoever of them is in this database (again)."""
        found = self._every.again(receipt)
        person = Person(sessions=("none",)) if found == Person() else found  # nothing of them is there
        begun = self._every.begin(receipt.tenant, person, by=this_user(), takes_shared=True, replays=receipt.receipt_id)
        return self._finish(begun, stops_within_s)

    def _finish(self, erasure: Erasure, stops_within_s: float | None) -> ErasureReceipt:
        """Raises ``RunsAtWork``, ``ErasureHeld``, ``NotYetErased``; what was done is done."""
        if stops_within_s is not None:
            self._stop(erasure, stops_within_s)
        told: Counter[str] = Counter()
        for what in self._every.steps(erasure):
            told[what] += 1
            self._told(told)
        home = self._records.settings.home
        removed = remove_files_here(home, erasure.tenant, erasure.sessions, erasure.jobs)
        previews, not_reached = self._forget(self._every.run_ids(erasure))
        more = {**removed, **({"previews": previews} if previews else {})}
        return self._every.finish(erasure, more=more, not_reached=not_reached)

    def _stop(self, erasure: Erasure, within_s: float) -> None:
        stopped: set[str] = set()
        deadline = time.monotonic() + within_s
        while at_work := self._every.open_runs(erasure):
            for run_id in at_work:
                if run_id not in stopped:
                    told = self._records.runs.stop_tree(run_id, by=this_user())
                    self._records.tell_stopped(told.run_ids, told.hints)
                    stopped.update(told.run_ids)
            if time.monotonic() > deadline:
                raise _not_ended(at_work)
            time.sleep(_LOOK_EVERY_S)

    def _forget(self, run_ids: Sequence[str]) -> tuple[int, list[str]]:
        """Previews in the broker; where it cannot be reached they go by themselves."""
        try:
            url = self._records.broker_url()
            if url is None:
                return 0, []
            client = redis_client(url)
            try:
                return forget(client, run_ids), []
            finally:
                client.close()
        except (HermesError, redis.RedisError, OSError):
            return 0, ["the broker did not answer: previews there go within ten minutes by themselves"]


class RemoteErasures:
    """Asks a server, which works for some seconds at each request."""

    def __init__(self, client: HermesClient, tenant: str, told: Progress) -> None:
        self._client = client
        self._tenant = None if tenant == DEFAULT_TENANT else tenant
        self._told = told

    def exported(self, person: Person) -> Iterator[tuple[str, str]]:
        for line in self._client.export(_whom(person), tenant=self._tenant):
            yield str(json.loads(line)["kind"]), line

    def receipts(self, receipt_id: str | None) -> Sequence[Mapping[str, Any]]:
        if receipt_id is None:
            return self._client.erasure_receipts(tenant=self._tenant)
        return [self._client.erasure_receipt(receipt_id, tenant=self._tenant)]

    def foretell(self, person: Person) -> ForetoldView:
        told = self._client.foretell_erasure(_whom(person), tenant=self._tenant)
        return ForetoldView(told["would_erase"], told["open_runs"], told["shared"], told["held_by"])

    def erase(self, person: Person, *, shared: bool, stops_within_s: float | None) -> ErasureReceipt:
        stops = stops_within_s is not None
        begun = self._client.begin_erasure(_whom(person), shared=shared, stop=stops, tenant=self._tenant)
        return self._finish(begun["receipt_id"], stops_within_s)

    def resume(self, *, stops_within_s: float | None) -> Sequence[ErasureReceipt]:
        found = self._client.erasures(tenant=self._tenant)
        return [self._finish(each["receipt_id"], stops_within_s) for each in found]

    def replay(self, receipts: Sequence[ErasureReceipt], *, stops_within_s: float | None) -> Sequence[ErasureReceipt]:
        done = []
        for receipt in receipts:
            begun = self._client.replay_erasure(json.dumps(receipt.to_document()), tenant=self._tenant)
            done.append(self._finish(begun["receipt_id"], stops_within_s))
        return done

    def _finish(self, receipt_id: str, stops_within_s: float | None) -> ErasureReceipt:
        """Raises ``RunsAtWork``, ``NotYetErased``, and what the server refuses with; what was done is done."""
        told: Counter[str] = Counter()
        deadline = None if stops_within_s is None else time.monotonic() + stops_within_s
        while True:
            work = self._client.work_on_erasure(receipt_id, stop=deadline is not None, tenant=self._tenant)
            if work["done"]:
                return read_receipt(json.dumps(work["receipt"]))
            told.update(work["did"])
            self._told(told)
            if work["open_runs"]:
                if deadline is not None and time.monotonic() > deadline:
                    raise _not_ended(work["open_runs"])
                time.sleep(_LOOK_EVERY_S)
            elif work["waits_for"]:
                raise NotYetErased(str(work["waits_for"]))


def _whom(person: Person) -> dict[str, Any]:
    return {
        "sessions": list(person.sessions),
        "named": [list(each) for each in person.named],
        "principals": list(person.principals),
        "holders": list(person.holders),
        "targets": list(person.targets),
        "everybody": person.is_everybody,
    }
