"""Everything of a person, a session or a tenant: export it, and erase it with a receipt."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Annotated

import redis
from fastapi import APIRouter, BackgroundTasks
from fastapi.responses import StreamingResponse
from pydantic import Field

from hermes_worker.api import schema
from hermes_worker.api.auth import Caller, declare_scope
from hermes_worker.api.bodies import JsonRoute
from hermes_worker.api.context import ApiContext, Context
from hermes_worker.api.errors import ApiError, RouteRefusal, answer_errors, invalid
from hermes_worker.api.formats import NO_NUL
from hermes_worker.api.line_streams import DECLARED, stream_lines
from hermes_worker.api.owners import ActsFor
from hermes_worker.api.schema import RequestBody
from hermes_worker.broker.queue import NoBroker
from hermes_worker.core.principals import KeyScope, Principal
from hermes_worker.features.retention.build import build_pruner, remove_files_here
from hermes_worker.features.retention.erasure_rows import (
    ErasureHeld,
    ErasureNotFound,
    Erasures,
    NotYetErased,
    RunningErasure,
    RunsAtWork,
    SharedWithOthers,
)
from hermes_worker.features.retention.erasure_rules import (
    ErasureReceipt,
    InvalidReceipt,
    NobodyNamed,
    Person,
    parse_receipt,
)
from hermes_worker.features.retention.erasure_schema import (
    ErasureList,
    ErasureObject,
    ErasureReceiptObject,
    ErasureWork,
    ForetoldErasure,
    ReceiptList,
)
from hermes_worker.features.retention.export_rows import export_rows
from hermes_worker.features.retention.naming_rows import NothingNamed, resolve_person
from hermes_worker.stream.live import delete_previews

router = APIRouter(
    prefix="/v1",
    tags=["retention"],
    route_class=answer_errors(
        {
            ErasureNotFound: RouteRefusal(404, "erasure_not_found", "receipt_id", "{error}"),
            ErasureHeld: RouteRefusal(409, "erasure_in_the_way", text="{error}"),
            SharedWithOthers: RouteRefusal(409, "erasure_in_the_way", text="{error}"),
            RunsAtWork: RouteRefusal(409, "erasure_in_the_way", text="{error}"),
            InvalidReceipt: RouteRefusal(400, "invalid_value", "receipt", "Invalid 'receipt': {error}."),
        },
        JsonRoute,
    ),
    dependencies=[declare_scope(KeyScope.ADMIN)],
    responses=schema.declare_errors(503),
)
_AT_IT_S = 5.0
"""Seconds for which one request erases; the next one goes on."""
_STOPPED_AT_ONCE = 100
_NAMED_MAX = 1_000
_Word = Annotated[str, Field(min_length=1, max_length=300, pattern=NO_NUL)]
_Words = Annotated[list[_Word], Field(max_length=_NAMED_MAX)]
_NOT_REACHED = "the broker did not answer: previews there go within ten minutes by themselves"

_NOT_STORED = "object storage did not answer: workers remove objects there later; nobody can read them any more"


class ErasureSubject(RequestBody):
    """Selects the rows to erase: everything that any of these fields leads to."""

    sessions: _Words = Field(default_factory=list, description="Sessions by id, or by the name that lists show.")
    named: list[Annotated[list[_Word], Field(min_length=2, max_length=2)]] = Field(
        default_factory=list, max_length=_NAMED_MAX, description="Sessions by source and name: ['webhook:chat', '47']."
    )
    principals: _Words = Field(default_factory=list, description="Who asked, as runs record it: 'cli:alice'.")
    holders: _Words = Field(default_factory=list, description="Holders of keys, with the keys.")
    targets: _Words = Field(default_factory=list, description="Addresses of deliveries: 'telegram:47'.")
    everybody: bool = Field(False, description="The whole tenant; for operators, who name it in the query.")

    def parse_person(self) -> Person:
        """Parse the subject. Raises ``ApiError``."""
        found = Person(
            sessions=tuple(self.sessions),
            named=tuple((source, name) for source, name in self.named),
            principals=tuple(self.principals),
            holders=tuple(self.holders),
            targets=tuple(self.targets),
            is_everybody=self.everybody,
        )
        try:
            found.require_named()
        except NobodyNamed:
            raise invalid("body", "Nobody is named: say whom it is about.") from None
        return found


class BeginErasure(RequestBody):
    whom: ErasureSubject
    shared: bool = Field(False, description="Also sessions in which others asked for something.")
    stop: bool = Field(False, description="Begin although runs have not ended: the work stops them.")


class ReplayErasure(RequestBody):
    receipt: str = Field(max_length=1_000_000, description="A receipt as it was given out, as text.")


class WorkOnErasure(RequestBody):
    stop: bool = Field(False, description="Stop runs that have not ended.")


# --- before ----------------------------------------------------------------------------------------------------------


@router.post("/exports", response_class=StreamingResponse, responses={**schema.declare_errors(404), 200: DECLARED})
async def export_everything(
    context: Context, caller: Caller, tenant: ActsFor, body: ErasureSubject
) -> StreamingResponse:
    """Everything of a subject as JSON Lines, one row each: ``kind``, which is its table, and ``row``. An export that
    breaks off ends without the end of a body."""
    person, _ = await _resolve_subject(context, caller, tenant, body)
    return stream_lines(context, lambda: _export_rows(context, tenant, person))


async def _resolve_subject(
    context: ApiContext, caller: Principal, tenant: str, whom: ErasureSubject
) -> tuple[Person, Sequence[str]]:
    """Resolve whose rows a request means, with ids in the place of names, and list the names that match nothing. Raises
    ``ApiError`` where nothing matches, or where a session does not."""
    try:
        return await context.call_store(
            resolve_person, context.client.database, tenant, caller.source, whom.parse_person()
        )
    except NothingNamed as error:
        code = "session_not_found" if error.field in ("sessions", "named") else "nothing_named"
        message = f"Invalid {error.field!r}: {error}. Nothing was exported or erased."
        raise ApiError(404, message, code=code, param=error.field) from None


def _export_rows(context: ApiContext, tenant: str, person: Person) -> Iterator[str]:
    return (row.to_json() for row in export_rows(context.client.database, tenant, person, context.client.contents))


@router.post("/erasures/foretold", responses=schema.declare_errors(404))
async def foretell_erasure(context: Context, caller: Caller, tenant: ActsFor, body: ErasureSubject) -> ForetoldErasure:
    """Say what an erasure would erase. Changes nothing."""
    person, unknown = await _resolve_subject(context, caller, tenant, body)
    foretold = await context.call_store(Erasures(context.client.database).preview_erasure, tenant, person)
    return ForetoldErasure(
        would_erase=foretold.counts,
        open_runs=foretold.open_runs,
        shared=foretold.selected.shared,
        held_by=foretold.held,
        unknown=unknown,
    )


@router.post("/erasures", status_code=201, responses=schema.declare_errors(404, 409))
async def begin_erasure(context: Context, caller: Caller, tenant: ActsFor, body: BeginErasure) -> ErasureObject:
    """Mark everything of a subject, so that nothing new begins. The work that follows erases it."""
    person, _ = await _resolve_subject(context, caller, tenant, body.whom)
    if person.is_everybody and tenant == caller.tenant and not caller.is_of_operators:
        raise invalid("everybody", "Invalid 'everybody': an operator erases a whole tenant.")
    return _build_object(await context.call_store(_begin, context, caller, tenant, person, body))


def _begin(context: ApiContext, caller: Principal, tenant: str, person: Person, body: BeginErasure) -> RunningErasure:
    every = Erasures(context.client.database)
    open_runs = every.preview_erasure(tenant, person).open_runs
    if open_runs and not body.stop:
        raise RunsAtWork(f"{len(open_runs)} runs have not ended, {open_runs[0]} among them; add --stop")
    return every.begin(tenant, person, by=caller.display_name, takes_shared=body.shared)


@router.post("/erasures/replayed", status_code=201, responses=schema.declare_errors(404, 409))
async def replay_erasure(context: Context, caller: Caller, tenant: ActsFor, body: ReplayErasure) -> ErasureObject:
    """Begin again what a receipt of the tenant records, as after a restore."""
    receipt = parse_receipt(body.receipt)
    if receipt.tenant != tenant:
        raise InvalidReceipt(f"this is no receipt of the tenant {tenant!r}")
    return _build_object(await context.call_store(_begin_again, context, caller, receipt))


def _begin_again(context: ApiContext, caller: Principal, receipt: ErasureReceipt) -> RunningErasure:
    every = Erasures(context.client.database)
    found = every.find_person_again(receipt)
    person = Person(sessions=("none",)) if found == Person() else found  # nothing of them is there
    by, replays = caller.display_name, receipt.receipt_id
    return every.begin(receipt.tenant, person, by=by, takes_shared=True, replays=replays)


# --- at it -----------------------------------------------------------------------------------------------------------


@router.get("/erasures", responses=schema.declare_errors(404))
async def list_erasures(context: Context, tenant: ActsFor) -> ErasureList:
    """Erasures of the tenant that have begun and are not finished."""
    found = await context.call_store(Erasures(context.client.database).list_unfinished, tenant)
    return ErasureList(data=[_build_object(erasure) for erasure in found])


@router.post("/erasures/{receipt_id}/work", responses=schema.declare_errors(404, 409))
async def work_on_erasure(
    context: Context,
    caller: Caller,
    tenant: ActsFor,
    receipt_id: str,
    body: WorkOnErasure,
    later: BackgroundTasks,
) -> ErasureWork:
    """Erase for some seconds. It may be interrupted anywhere and repeated; the last one brings the receipt."""
    every = Erasures(context.client.database)
    found = [each for each in await context.call_store(every.list_unfinished, tenant) if each.receipt_id == receipt_id]
    if not found:
        return await context.call_store(_build_finished, every, tenant, receipt_id)
    if body.stop and (at_work := await context.call_store(_stop_some, context, caller, every, found[0], later)):
        return ErasureWork(done=False, did={}, open_runs=at_work, waits_for="runs that end", receipt=None)
    return await context.call_store(_work, context, every, found[0])


def _stop_some(
    context: ApiContext, caller: Principal, every: Erasures, erasure: RunningErasure, later: BackgroundTasks
) -> Sequence[str]:
    """Ask some runs of the erasure to stop. Returns the runs that have not ended."""
    at_work = every.list_open_runs(erasure)
    asked = context.client.runs.find_stopping(at_work)
    for run_id in [each for each in at_work if each not in asked][:_STOPPED_AT_ONCE]:
        told = context.client.runs.stop_tree(run_id, by=caller.name)
        later.add_task(context.tell_broker, context.client.publisher.publish_stops, told.run_ids, told.hints)
    return every.list_open_runs(erasure)


def _build_finished(every: Erasures, tenant: str, receipt_id: str) -> ErasureWork:
    """Build the answer for a client that lost the last one, from the receipt. Raises ``ErasureNotFound``."""
    receipt = every.load_receipt(receipt_id, tenant)
    return ErasureWork(done=True, did={}, open_runs=[], waits_for=None, receipt=_build_receipt(receipt))


def _work(context: ApiContext, every: Erasures, erasure: RunningErasure) -> ErasureWork:
    did: Counter[str] = Counter()
    ends_at = time.monotonic() + _AT_IT_S
    try:
        for what in every.delete_stepwise(erasure, patience_s=_AT_IT_S):
            did[what] += 1
            # Only behind what is gone for good: the first steps are done again by every request.
            if what in ("runs", "sessions") and time.monotonic() > ends_at:
                return ErasureWork(done=False, did=did, open_runs=[], waits_for=None, receipt=None)
        removed = remove_files_here(context.client.settings.home, erasure.tenant, erasure.sessions, erasure.jobs)
        previews, not_reached = _forget(context, every.list_deleted_run_ids(erasure))
        stored, not_reached_either = _remove_stored(context, erasure)
        more = Counter(removed) + Counter(workspaces=stored, previews=previews)
        receipt = every.finish(erasure, more=more, not_reached=(*not_reached, *not_reached_either))
    except NotYetErased as error:
        return ErasureWork(done=False, did=did, open_runs=[], waits_for=str(error), receipt=None)
    return ErasureWork(done=True, did=did, open_runs=[], waits_for=None, receipt=_build_receipt(receipt))


def _forget(context: ApiContext, run_ids: Sequence[str]) -> tuple[int, Sequence[str]]:
    """Delete previews in the broker; where it cannot be reached they expire by themselves."""
    try:
        return delete_previews(context.client.redis, run_ids), ()
    except NoBroker:
        return 0, ()
    except (redis.RedisError, OSError):
        return 0, (_NOT_REACHED,)


def _remove_stored(context: ApiContext, erasure: RunningErasure) -> tuple[int, Sequence[str]]:
    """Remove workspaces in object storage, but for those in which a fork of somebody else works. What cannot be reached
    now cannot be read any more, and workers remove it later."""
    target = context.client.objects.target
    if target is None:
        return 0, ()
    pruner = build_pruner(context.client.database, context.client.settings)
    removed = target.remove_named(erasure.tenant, pruner.find_expired_workspaces(erasure.tenant, erasure.sessions))
    return (0, (_NOT_STORED,)) if removed is None else (removed, ())


# --- afterwards ------------------------------------------------------------------------------------------------------


@router.get("/erasure-receipts", responses=schema.declare_errors(404))
async def list_receipts(context: Context, tenant: ActsFor) -> ReceiptList:
    """The receipts of the tenant's erasures."""
    found = await context.call_store(Erasures(context.client.database).list_receipts)
    return ReceiptList(data=[_build_receipt(each) for each in found if each.tenant == tenant])


@router.get("/erasure-receipts/{receipt_id}", response_model=ErasureReceiptObject, responses=schema.declare_errors(404))
async def get_receipt(context: Context, tenant: ActsFor, receipt_id: str) -> ErasureReceiptObject:
    """A receipt, after its signature was verified."""
    receipt = await context.call_store(Erasures(context.client.database).load_receipt, receipt_id, tenant)
    return _build_receipt(receipt)


def _build_receipt(receipt: ErasureReceipt) -> ErasureReceiptObject:
    return ErasureReceiptObject.model_validate(receipt.build_document())


def _build_object(erasure: RunningErasure) -> ErasureObject:
    return ErasureObject(receipt_id=erasure.receipt_id, tenant=erasure.tenant, by=erasure.by, began_at=erasure.began_at)
