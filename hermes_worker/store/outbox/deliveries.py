"""The outbox: messages that have to be delivered outside, and whether they were.

A delivery's row is written in the transaction that ends the run it reports on, so no end is without its deliveries. A
worker claims a row as it claims a tool call: with a token, under the lease of the process. A lost claim is handled
differently: the message may be out already, so the row goes back as *in doubt*, and the next attempt says so unless the
target can recognise a repetition.
"""

from __future__ import annotations

import json
import secrets
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from hermes_worker.core.chat_buttons import ChatButton, is_of_wait
from hermes_worker.core.delivery_states import DeliveryState
from hermes_worker.core.effects import SendDelivery
from hermes_worker.core.errors import Failure, HermesError, LeaseLost
from hermes_worker.core.previews import PreviewResult, PreviewState
from hermes_worker.core.principals import DEFAULT_TENANT
from hermes_worker.core.run_views import UndeliveredView
from hermes_worker.core.sources import RequestKeys
from hermes_worker.core.step import compute_retry_delay_s
from hermes_worker.store.access import idempotency_keys as keys
from hermes_worker.store.access.audit import Act, record_action
from hermes_worker.store.engine.database import Database, RowStore, db_now, select_db_now
from hermes_worker.store.engine.prepared import (
    PkRow,
    Prepared,
    fetch_row,
    fetch_rows,
    fetch_views,
    select_columns,
    select_view_columns,
)
from hermes_worker.store.owners import is_of_tenant, select_tenant_of_job, select_tenant_of_run
from hermes_worker.store.restore_detection import is_no_copy
from hermes_worker.store.row_keys import LostHintsBounds
from hermes_worker.store.rows import Hint, build_insert_ignoring, is_suspect, make_storable
from hermes_worker.store.short_ids import complete_id
from hermes_worker.store.statistics import count_delivery
from hermes_worker.store.tables import dead_targets, deliveries, jobs, run_inputs, runs, sessions, workers

ATTEMPTS_MAX = 6
"""The most attempts of one delivery, lost ones included: a message that kills its worker must not kill all workers."""
REPLAYED = "replayed"
"""The adjustment of a delivery that a person asked to send again."""
BUTTONS_GONE = "buttons_gone"
"""The adjustment of a delivery that removes the buttons from a message in the chat (``channels.errors.Adjustment``)."""
_MESSAGE_ID_CHARS_MAX = 200
_KEY_CHARS_MAX = 300
_RECEIPT_CHARS_MAX = 2_000
_SIGNS_ONLY = "signs"
"""Stands in the place of the hash of a shown text: no text is shown before the answer, so none can be duplicated."""
_WATCHED_ONCE = 1.0
"""Value of ``watched_until`` for a run without followers whose end has to look for what was shown of it
(``runs.ending``)."""
_has_signs_only = sa.func.coalesce(deliveries.c.shown_hash, "") == _SIGNS_ONLY
_BATCH = 200
_HINTS_COUNTED = 100
_RESEND_WAIT_S = 8.0
_PREVIEWED_S = 86_400.0
"""The most seconds for which the progress of a run is shown."""


SETTLED = frozenset({DeliveryState.DELIVERED, DeliveryState.FAILED, DeliveryState.ABANDONED})


class DeliveryNotFound(HermesError):
    """No delivery has this id."""


class DeliveryBusy(HermesError):
    """A delivery that is not settled cannot be sent again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryClaim:
    """The right to send one delivery. Good only while ``token`` is in its row."""

    token: str
    delivery_id: str
    tenant: str
    target: str
    """A target as it is written in ``deliver``."""
    body: str | None
    """The text; ``None`` for the answer of the run."""
    run_id: str | None
    spec: str | None
    """The submission of the run, as JSON."""
    attempt: int
    """1 for the first."""
    losses: int
    """How many attempts before this one ended with their worker."""
    parts_sent: int
    adjustments: tuple[str, ...]
    is_in_doubt: bool
    """An earlier attempt may have arrived."""
    age_s: float
    """Seconds since the first attempt."""
    workspace: str | None
    """The stored description of the run's workspace; ``None`` without a run."""
    previewed_run_id: str | None = None
    """The run at work whose progress is shown, so that nothing is delivered yet; ``None`` for a message."""
    buttons: tuple[ChatButton, ...] = ()
    """The buttons of the message."""
    shown_as: tuple[str, ...] = ()
    """The ids of the messages that show the question which this delivery asks, as far as they were sent."""
    asks: bool = False
    """The message asks a question."""
    standing: PreviewState = field(default_factory=PreviewState)
    """What the chat shows already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadTarget:
    """A target to which nothing is sent any more. ``marked_at`` in epoch seconds."""

    key: str
    reason: str
    marked_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryView:
    """A delivery as people see it. Times are epoch seconds."""

    delivery_id: str
    run_id: str | None
    job_id: str | None
    target: str
    state: DeliveryState
    attempts: int
    is_in_doubt: bool
    not_before: float | None
    receipt: str | None
    error_kind: str | None
    error: str | None
    created_at: float
    settled_at: float | None
    adjustments: str

    @property
    def is_retried(self) -> bool:
        return REPLAYED in self.adjustments.split(",")


def enqueue_deliveries(
    connection: Connection,
    targets: Sequence[str],
    *,
    run: tuple[int, str] | None = None,
    job_pk: int | None = None,
    body: str | None = None,
    buttons: Sequence[ChatButton] = (),
    wait_pk: int | None = None,
    may_be_shown: bool = True,
    tenant: str = DEFAULT_TENANT,
) -> list[Hint]:
    """Insert one delivery per target, due now, in the caller's transaction. Returns the hints to send.

    ``run`` is the row id and the id of the run whose answer is sent, or that sends ``body``, with ``buttons`` where the
    platform has them. ``wait_pk`` is the question that ``body`` asks. The deliveries belong to the tenant of the run or
    of the job; ``tenant`` names it without either. With ``may_be_shown`` a preview of the same run at the same target
    becomes the delivery.
    """
    hints = []
    shown = _end_previews(connection, run) if run is not None and body is None and may_be_shown else {}
    whose = _choose_tenant(run[0] if run else None, job_pk, tenant)
    for target in dict.fromkeys(targets):
        if target in shown:
            hints += shown[target]
            continue
        delivery_id = f"dlv_{uuid.uuid4().hex}"
        at = connection.execute(
            sa.insert(deliveries)
            .values(
                delivery_id=delivery_id,
                tenant=whose,
                run_pk=run[0] if run else None,
                job_pk=job_pk,
                target=make_storable(target),
                body=make_storable(body) if body is not None else None,
                buttons=_dump_buttons(buttons),
                wait_pk=wait_pk,
                state=DeliveryState.PENDING.value,
                hinted_at=db_now(),
                created_at=db_now(),
                updated_at=db_now(),
            )
            .returning(deliveries.c.hinted_at)
        ).scalar_one()
        effect = SendDelivery(run_id=run[1] if run else delivery_id, delivery_id=delivery_id, attempt=1)
        hints.append(Hint(effect=effect, at=float(at)))
    return hints


def parse_message_ids(receipt: str | None) -> tuple[str, ...]:
    """Parse the ids of the messages that show a question, in order, from the receipt of its delivery."""
    return tuple((receipt or "").split())


def _dump_buttons(buttons: Sequence[ChatButton]) -> str | None:
    return make_storable(json.dumps([[button.label, button.value] for button in buttons])) if buttons else None


def _parse_buttons(stored: str | None) -> tuple[ChatButton, ...]:
    return tuple(ChatButton(label=label, value=value) for label, value in json.loads(stored or "[]"))


def remove_buttons(connection: Connection, run_pk: int, wait_id: int) -> None:
    """Remove the buttons of a question that is closed, in the caller's transaction: from a message that bears them, and
    from one that was not sent yet. One that is just being sent loses them afterwards
    (``Deliveries.settle_delivered``)."""
    with_buttons = deliveries.c.run_pk == run_pk, deliveries.c.buttons.is_not(None)
    wanted = sa.select(deliveries.c.pk, deliveries.c.buttons).where(*with_buttons)
    for row in fetch_rows(connection.execute(wanted), _ButtonsRow):
        if any(is_of_wait(button, wait_id) for button in _parse_buttons(row.buttons)):
            bare = sa.update(deliveries).where(deliveries.c.pk == row.pk).values(buttons=None)
            sent = fetch_row(connection.execute(bare.returning(*select_columns(deliveries, _SentRow))), _SentRow)
            if sent is not None and sent.state == DeliveryState.DELIVERED.value:
                _enqueue_button_removal(connection, sent)


def _enqueue_button_removal(connection: Connection, sent: _SentRow) -> None:
    """Insert the delivery that removes the buttons from a sent message. The sweeper sends its hint, as it is not
    urgent."""
    message_ids = parse_message_ids(sent.receipt)
    if not message_ids or len(message_ids[-1]) > _MESSAGE_ID_CHARS_MAX:
        return
    connection.execute(
        sa.insert(deliveries).values(
            delivery_id=f"dlv_{uuid.uuid4().hex}",
            tenant=sent.tenant,
            run_pk=sent.run_pk,
            target=sent.target,
            body=sent.body,
            message_id=message_ids[-1],
            adjustments=BUTTONS_GONE,
            state=DeliveryState.PENDING.value,
            not_before=db_now(),
            created_at=db_now(),
            updated_at=db_now(),
        )
    )


def enqueue_preview(
    connection: Connection, run_id: str, target: str, *, after_s: float, is_followed: bool = True
) -> None:
    """Insert the delivery of a run's answer before there is an answer, so that the run's progress is shown from
    ``after_s`` seconds on, in the caller's transaction. With ``is_followed`` its workers publish their output to the
    broker, as for a run with followers."""
    until = db_now() + _PREVIEWED_S if is_followed else _WATCHED_ONCE
    watched = sa.update(runs).where(runs.c.run_id == run_id).values(watched_until=until)
    run_pk = connection.execute(watched.returning(runs.c.pk)).scalar_one()
    connection.execute(
        sa.insert(deliveries).values(
            delivery_id=f"dlv_{uuid.uuid4().hex}",
            tenant=select_tenant_of_run(run_pk),
            run_pk=run_pk,
            target=make_storable(target),
            state=DeliveryState.PENDING.value,
            is_preview=1,
            shown_hash=None if is_followed else _SIGNS_ONLY,
            not_before=db_now() + after_s,
            created_at=db_now(),
            updated_at=db_now(),
        )
    )


def _end_previews(connection: Connection, run: tuple[int, str]) -> dict[str, list[Hint]]:
    """Make the previews of a run that ends ordinary deliveries, by target, each with its hints. One that is being shown
    at this moment is given back by its worker, and is due then."""
    is_free = deliveries.c.lease_token.is_(None)
    ended = connection.execute(
        sa.update(deliveries)
        .where(deliveries.c.run_pk == run[0], deliveries.c.is_preview == 1, deliveries.c.settled_at.is_(None))
        .values(
            is_preview=0,
            is_in_doubt=sa.and_(deliveries.c.is_in_doubt, ~_has_signs_only),
            first_attempt_at=None,
            not_before=None,
            hinted_at=sa.case((is_free, db_now()), else_=None),
            hints=0,
            updated_at=db_now(),
        )
        .returning(*(deliveries.c[name] for name in _EndedPreview._fields))
    )
    found: dict[str, list[Hint]] = {}
    for row in fetch_rows(ended, _EndedPreview):
        effect = SendDelivery(
            run_id=run[1],
            delivery_id=row.delivery_id,
            attempt=row.attempts + 1,
            is_suspect=row.deaths is not None,
        )
        found[row.target] = [] if row.hinted_at is None else [Hint(effect=effect, at=float(row.hinted_at))]
    return found


def _choose_tenant(run_pk: int | None, job_pk: int | None, tenant: str) -> str | sa.ScalarSelect[str]:
    if run_pk is not None:
        return select_tenant_of_run(run_pk)
    if job_pk is not None:
        return select_tenant_of_job(job_pk)
    return tenant


def _to_claim(row: _TakenDelivery, asked: _AnsweringRun | None, token: str) -> DeliveryClaim:
    return DeliveryClaim(
        token=token,
        delivery_id=row.delivery_id,
        tenant=row.tenant,
        target=row.target,
        body=row.body,
        run_id=asked.run_id if asked else None,
        spec=asked.spec if asked else None,
        attempt=row.attempts,
        losses=row.losses,
        parts_sent=row.parts_sent,
        adjustments=tuple(filter(None, row.adjustments.split(","))),
        is_in_doubt=bool(row.is_in_doubt),
        age_s=max(0.0, float(row.age_s)),
        workspace=asked.workspace if asked else None,
        previewed_run_id=asked.run_id if asked and row.is_preview else None,
        buttons=_parse_buttons(row.buttons),
        shown_as=parse_message_ids(row.receipt) if row.wait_pk is not None else (),
        asks=row.wait_pk is not None,
        standing=PreviewState(
            message_id=row.message_id,
            shown_hash=row.shown_hash,
            idle_s=max(0.0, float(row.idle_s)),
            is_in_doubt=bool(row.is_in_doubt),
        ),
    )


class Deliveries(RowStore):
    """The outbox of one database. Thread-safe."""

    def claim(self, effect: SendDelivery, owner: int) -> DeliveryClaim | None:
        """Claim a delivery; ``None`` when it is not available (done, taken, or stale). Of any number of workers with
        the same message exactly one gets it."""
        token = secrets.token_hex(16)
        with self.database.write() as connection:
            claimed = connection.execute(
                sa.update(deliveries)
                .where(
                    deliveries.c.delivery_id == effect.delivery_id,
                    deliveries.c.hinted_at.is_not(None),
                    deliveries.c.attempts == effect.attempt - 1,
                    is_suspect(deliveries) == int(effect.is_suspect),
                    is_no_copy(),
                )
                .values(
                    state=DeliveryState.ATTEMPTING.value,
                    attempts=deliveries.c.attempts + 1,
                    lease_token=token,
                    lease_owner=owner,
                    claimed_at=db_now(),
                    hinted_at=None,
                    hints=0,
                    first_attempt_at=sa.func.coalesce(deliveries.c.first_attempt_at, db_now()),
                    updated_at=db_now(),
                )
                .returning(
                    *(deliveries.c[name] for name in _TakenDelivery._fields[:-2]),
                    (db_now() - deliveries.c.first_attempt_at).label("age_s"),
                    (db_now() - sa.func.coalesce(deliveries.c.shown_at, deliveries.c.created_at)).label("idle_s"),
                )
            )
            row = fetch_row(claimed, _TakenDelivery)
            if row is None:
                return None
            of_run = connection.execute(
                sa.select(runs.c.run_id, run_inputs.c.spec, sessions.c.workspace)
                .join(sessions, sessions.c.pk == runs.c.session_pk)
                .outerjoin(run_inputs, run_inputs.c.run_pk == runs.c.pk)
                .where(runs.c.pk == row.run_pk)
            )
            asked = fetch_row(of_run, _AnsweringRun)
        return _to_claim(row, asked, token)

    def enqueue(self, tenant: str, targets: Sequence[str], body: str) -> list[Hint]:
        """Insert deliveries of ``body`` to the targets, of no run. Returns the hints to send."""
        with self.database.write() as connection:
            return enqueue_deliveries(connection, targets, body=body, tenant=tenant)

    def enqueue_once(
        self, request: RequestKeys, targets: Sequence[str], body: str, *, run_id: str | None = None
    ) -> list[Hint] | None:
        """Insert deliveries of ``body`` to the targets, as a message of the run ``run_id`` if there is one; ``None``
        when this request was accepted before. Returns the hints to send. Raises ``IdempotencyConflict``,
        ``RequestReplayed``."""
        while True:
            try:
                with self.database.write() as connection:
                    if keys.find_earlier(connection, request) is not None:
                        return None
                    ours = (runs.c.run_id == run_id, is_of_tenant(request.tenant, runs))
                    pk = connection.execute(sa.select(runs.c.pk).where(*ours)).scalar() if run_id else None
                    keys.claim_names(connection, request, pk)
                    run = (pk, run_id) if pk is not None and run_id is not None else None
                    return enqueue_deliveries(connection, targets, run=run, body=body, tenant=request.tenant)
            except keys.KeyTaken:
                continue  # by the same request, which came at the same time

    def record_part_sent(self, claim: DeliveryClaim, parts_sent: int, receipt: str | None = None) -> None:
        """Record how many parts were sent, so that they are not sent again; the doubt about them is over. Raises
        ``LeaseLost``."""
        kept = {} if receipt is None else {"receipt": make_storable(receipt)[:_RECEIPT_CHARS_MAX]}
        with self.database.statement() as connection:
            self._update_claimed(connection, claim, parts_sent=parts_sent, is_in_doubt=False, **kept)

    def record_preview(self, claim: DeliveryClaim, after: PreviewResult) -> None:
        """Record what the chat shows, and give the claim up: due again after a while, or at once where the run has
        ended meanwhile. Raises ``LeaseLost``."""
        standing = after.standing
        has_changed = standing.idle_s < claim.standing.idle_s
        later = sa.null() if after.delay_s is None else db_now() + after.delay_s
        with self.database.statement() as connection:
            self._update_claimed(
                connection,
                claim,
                **_build_released_columns(),
                attempts=claim.attempt - 1,
                deaths=None,
                message_id=standing.message_id,
                shown_hash=standing.shown_hash,
                shown_at=db_now() if has_changed else deliveries.c.shown_at,
                is_in_doubt=standing.is_in_doubt,
                not_before=sa.case((deliveries.c.is_preview == 0, db_now()), else_=later),
            )

    def record_preview_gone(self, claim: DeliveryClaim) -> None:
        """Record that the chat does not show the preview any more, so that it is not edited again. Raises
        ``LeaseLost``."""
        with self.database.statement() as connection:
            self._update_claimed(connection, claim, message_id=None, is_in_doubt=False)

    def postpone_delivery(self, claim: DeliveryClaim, delay_s: float) -> None:
        """Give back a delivery that may not be sent yet; this counts as no attempt. Raises ``LeaseLost``."""
        with self.database.statement() as connection:
            self._update_claimed(
                connection,
                claim,
                **_build_released_columns(),
                attempts=claim.attempt - 1,
                not_before=db_now() + delay_s,
            )

    def settle_delivered(self, claim: DeliveryClaim, receipt: str | None, *, revived: str | None = None) -> None:
        """Settle a delivery as delivered. ``revived`` is a target that counted as dead and is not. Raises
        ``LeaseLost``."""
        with self.database.write() if revived or claim.buttons else self.database.statement() as connection:
            ended = _build_settled_columns(DeliveryState.DELIVERED)
            self._update_claimed(
                connection, claim, **ended, receipt=receipt and make_storable(receipt)[:_RECEIPT_CHARS_MAX], error=None
            )
            if claim.buttons:
                self._remove_late_buttons(connection, claim)
            if revived is not None:
                connection.execute(sa.delete(dead_targets).where(_is_dead_target(claim.tenant, revived)))

    @staticmethod
    def _remove_late_buttons(connection: Connection, claim: DeliveryClaim) -> None:
        """Remove the buttons that were sent while the question was answered."""
        this = deliveries.c.delivery_id == claim.delivery_id, deliveries.c.buttons.is_(None)
        sent = fetch_row(connection.execute(sa.select(*select_columns(deliveries, _SentRow)).where(*this)), _SentRow)
        if sent is not None:
            _enqueue_button_removal(connection, sent)

    def settle_failed(
        self, claim: DeliveryClaim, failure: Failure, *, is_abandoned: bool, dead: tuple[str, str] | None = None
    ) -> None:
        """Settle a delivery as failed, or as abandoned with ``is_abandoned``. ``dead`` is a target to which nothing is
        to be sent any more, and why. Raises ``LeaseLost``."""
        state = DeliveryState.ABANDONED if is_abandoned else DeliveryState.FAILED
        with self.database.write() if dead else self.database.statement() as connection:
            self._update_claimed(connection, claim, **_build_settled_columns(state), **_build_failure_columns(failure))
            if dead is not None:
                key, reason = dead
                mark = {"tenant": claim.tenant, "key": key[:_KEY_CHARS_MAX], "reason": make_storable(reason)}
                connection.execute(build_insert_ignoring(connection, dead_targets).values(**mark, marked_at=db_now()))

    def find_dead_reason(self, key: str, *, tenant: str = DEFAULT_TENANT) -> str | None:
        """Find why nothing is sent to a target of a tenant any more; ``None`` when it is not dead."""
        return self.database.select(sa.select(dead_targets.c.reason).where(_is_dead_target(tenant, key))).scalar()

    def list_dead_targets(self, *, tenant: str = DEFAULT_TENANT, limit: int = 100) -> list[DeadTarget]:
        """List the dead targets of a tenant, the newest first."""
        theirs = sa.select(*select_view_columns(dead_targets, DeadTarget)).where(dead_targets.c.tenant == tenant)
        newest = theirs.order_by(dead_targets.c.marked_at.desc()).limit(limit)
        return fetch_views(self.database.select(newest), DeadTarget)

    def postpone_retry(
        self,
        claim: DeliveryClaim,
        failure: Failure,
        *,
        delay_s: float,
        adjustments: Sequence[str],
        is_in_doubt: bool,
        is_counted: bool = True,
    ) -> None:
        """Give the delivery back, to be tried again after ``delay_s`` seconds. An attempt that is not counted does not
        bring it closer to ``ATTEMPTS_MAX``. Raises ``LeaseLost``."""
        with self.database.statement() as connection:
            self._update_claimed(
                connection,
                claim,
                **_build_released_columns(),
                **_build_failure_columns(failure),
                attempts=claim.attempt if is_counted else claim.attempt - 1,
                not_before=db_now() + delay_s,
                deaths=None,
                adjustments=",".join(adjustments),
                is_in_doubt=is_in_doubt,
            )

    def release(self, claim: DeliveryClaim) -> None:
        """Give back a delivery that was not begun. Raises ``LeaseLost``."""
        with self.database.statement() as connection:
            self._update_claimed(
                connection, claim, **_build_released_columns(), attempts=claim.attempt - 1, not_before=db_now()
            )

    def list_siblings(self, claim: DeliveryClaim) -> Sequence[str]:
        """List the targets of all deliveries of the same run's answer, in order of their creation; ``claim``'s own is
        ``""``. Empty for a delivery with a text of its own."""
        if claim.body is not None:
            return [""]
        same_run = sa.select(deliveries.c.run_pk).where(deliveries.c.delivery_id == claim.delivery_id)
        found = sa.select(deliveries.c.delivery_id, deliveries.c.target).order_by(deliveries.c.pk)
        of_answer = (deliveries.c.run_pk == same_run.scalar_subquery(), deliveries.c.body.is_(None))
        rows = self.database.select(found.where(*of_answer))
        return ["" if delivery_id == claim.delivery_id else target for delivery_id, target in rows]

    def expand(self, claim: DeliveryClaim, targets: Sequence[str]) -> list[Hint]:
        """Replace a delivery to ``all`` or the like by one for each target that it stands for, unless the same answer
        has one there already. Raises ``LeaseLost``."""
        with self.database.write() as connection:
            replaced = connection.execute(
                sa.delete(deliveries)
                .where(deliveries.c.delivery_id == claim.delivery_id, deliveries.c.lease_token == claim.token)
                .returning(*select_columns(deliveries, _ReplacedRow))
            )
            row = fetch_row(replaced, _ReplacedRow)
            if row is None:
                raise _lease_lost_error(claim)
            known: set[str] = set()
            if row.run_pk is not None and row.body is None:
                of_answer = (deliveries.c.run_pk == row.run_pk, deliveries.c.body.is_(None))
                known = set(connection.execute(sa.select(deliveries.c.target).where(*of_answer)).scalars())
            run = (row.run_pk, claim.run_id or "") if row.run_pk is not None else None
            missing = [target for target in targets if target not in known]
            return enqueue_deliveries(
                connection, missing, run=run, job_pk=row.job_pk, body=row.body, tenant=claim.tenant
            )

    def retry(self, delivery_id: str) -> list[Hint]:
        """Send a settled delivery once more, whole, even to a dead target. Returns the hints to send. Raises
        ``DeliveryNotFound``, ``DeliveryBusy``."""
        is_of_message = deliveries.c.adjustments == BUTTONS_GONE
        with self.database.write() as connection:
            count_delivery(connection, delivery_id)
            found = _require_view(connection, delivery_id)
            hinted_at = connection.execute(
                sa.update(deliveries)
                .where(deliveries.c.delivery_id == delivery_id, deliveries.c.settled_at.is_not(None))
                .values(
                    state=DeliveryState.PENDING.value,
                    is_counted=0,
                    attempts=0,
                    losses=0,
                    deaths=None,
                    parts_sent=0,
                    message_id=sa.case((is_of_message, deliveries.c.message_id), else_=None),
                    adjustments=sa.case((is_of_message, BUTTONS_GONE), else_=REPLAYED),
                    is_in_doubt=sa.or_(
                        deliveries.c.is_in_doubt,
                        deliveries.c.state == DeliveryState.DELIVERED.value,
                        deliveries.c.parts_sent > 0,
                    ),
                    first_attempt_at=None,
                    settled_at=None,
                    hinted_at=db_now(),
                    updated_at=db_now(),
                )
                .returning(deliveries.c.hinted_at)
            ).scalar()
            if hinted_at is None:
                raise DeliveryBusy(f"delivery {delivery_id!r} is {found.state}; it is being taken care of")
            before = {"state": found.state, "attempts": found.attempts, "error_kind": found.error_kind}
            record_action(connection, Act.DELIVERY_RETRY, delivery_id, before=before)
        effect = SendDelivery(run_id=delivery_id, delivery_id=delivery_id, attempt=1)
        return [Hint(effect=effect, at=float(hinted_at))]

    def complete_id(self, written: str, *, tenant: str = DEFAULT_TENANT) -> str:
        """Find the id of the one delivery of a tenant whose id begins with ``written``. Raises ``AmbiguousId``."""
        theirs = is_of_tenant(tenant, deliveries)
        with self.database.read() as connection:
            return complete_id(connection, deliveries.c.delivery_id, written, prefix="dlv_", where=theirs)

    def get(self, delivery_id: str) -> DeliveryView:
        """Load a delivery. Raises ``DeliveryNotFound``."""
        with self.database.read() as connection:
            return _require_view(connection, delivery_id)

    def list(
        self,
        *,
        tenant: str = DEFAULT_TENANT,
        limit: int = 50,
        before: str | None = None,
        state: DeliveryState | None = None,
        run_id: str | None = None,
    ) -> list[DeliveryView]:
        """List deliveries of a tenant, newest first; ``before`` is the id of a delivery, and only older ones are
        returned. Raises ``DeliveryNotFound`` for an unknown ``before``."""
        theirs = is_of_tenant(tenant, deliveries)
        statement = _VIEW.where(theirs).order_by(deliveries.c.pk.desc()).limit(limit)
        if state is not None:
            statement = statement.where(deliveries.c.state == state.value)
        if run_id is not None:
            statement = statement.where(runs.c.run_id == run_id)
        with self.database.read() as connection:
            if before is not None:
                last = sa.select(deliveries.c.pk).where(deliveries.c.delivery_id == before, theirs)
                pk = connection.execute(last).scalar()
                if pk is None:
                    raise _delivery_not_found(before)
                statement = statement.where(deliveries.c.pk < pk)
            return fetch_views(connection.execute(statement), DeliveryView)

    def _update_claimed(self, connection: Connection, claim: DeliveryClaim, **values: object) -> None:
        changed = connection.execute(
            sa.update(deliveries)
            .where(deliveries.c.delivery_id == claim.delivery_id, deliveries.c.lease_token == claim.token)
            .values(updated_at=db_now(), **values)
        )
        if changed.rowcount == 0:
            raise _lease_lost_error(claim)


def _is_dead_target(tenant: str, key: str) -> sa.ColumnElement[bool]:
    return sa.and_(dead_targets.c.tenant == tenant, dead_targets.c.key == key[:_KEY_CHARS_MAX])


_orphans = (
    sa.select(deliveries.c.pk)
    .outerjoin(workers, workers.c.pk == deliveries.c.lease_owner)
    .where(deliveries.c.lease_owner.is_not(None), sa.or_(workers.c.state.is_(None), workers.c.state != "alive"))
    .limit(_BATCH)
)
_FIRST_ORPHAN = Prepared(_orphans.limit(1), gives=PkRow)


def _build_take_back() -> sa.Update:
    """Build the update that takes lost deliveries back, by the rule that ``core.step`` applies to one lost step: every
    delivery of a dead worker becomes a suspect, and it counts as a death only when the parent saw a lane crash. An
    attempt that ended with its worker does not count as one of ``ATTEMPTS_MAX``; one that its own worker released after
    a defect does."""
    state_of_worker = sa.select(workers.c.state).where(workers.c.pk == deliveries.c.lease_owner).scalar_subquery()
    state = sa.func.coalesce(state_of_worker, "let go")
    seen_deaths = deliveries.c.deaths + sa.case((state == "crashed", 1), else_=0)
    is_nobodys = sa.or_(state == "let go", state == "stopped")
    deaths = sa.case((is_nobodys, deliveries.c.deaths), else_=sa.func.coalesce(seen_deaths, 0))
    losses = deliveries.c.losses + sa.case((state == "let go", 0), else_=1)
    is_guilty = sa.and_(deliveries.c.deaths.is_not(None), state == "crashed", seen_deaths >= _DEATHS_MAX)
    is_over = sa.or_(is_guilty, losses >= _LOSSES_MAX, deliveries.c.attempts - losses >= ATTEMPTS_MAX)
    only_showed_signs = _has_signs_only & deliveries.c.first_attempt_at.is_(None)
    delays = [(deliveries.c.losses == number, compute_retry_delay_s(number + 2)) for number in range(10)]
    return (
        sa.update(deliveries)
        .where(deliveries.c.pk.in_(_orphans), deliveries.c.lease_owner.is_not(None))
        .values(
            state=sa.case((is_over, DeliveryState.ABANDONED.value), else_=DeliveryState.PENDING.value),
            settled_at=sa.case((is_over, db_now()), else_=None),
            not_before=sa.case((is_over, None), else_=db_now() + sa.case(*delays, else_=compute_retry_delay_s(12))),
            deaths=deaths,
            losses=losses,
            lease_token=None,
            lease_owner=None,
            is_in_doubt=sa.or_(deliveries.c.is_in_doubt, ~only_showed_signs),
            error_kind="ambiguous",
            error=sa.case((is_guilty, _GUILTY_REASON), else_="the worker vanished while it was sending"),
            updated_at=db_now(),
        )
    )


_DEATHS_MAX = 3
_LOSSES_MAX = 100
"""The most lost attempts. With up to five minutes between two of them, that is a day of machines that went down with
it."""
_GUILTY_REASON = f"it took down {_DEATHS_MAX} times a worker that did nothing else"
_TAKE_BACK = Prepared(_build_take_back())


def take_back_deliveries(database: Database) -> int:
    """Take back the deliveries of workers that are gone. Returns how many. Idempotent."""
    with database.read() as connection:
        if _FIRST_ORPHAN.first(connection, {}) is None:
            return 0
    with database.statement() as connection:
        return _TAKE_BACK.run(connection, {})


class _Due(NamedTuple):
    delivery_id: str
    attempts: int
    deaths: int | None
    hinted_at: float


_RETURNED = (deliveries.c.delivery_id, deliveries.c.attempts, deliveries.c.deaths, deliveries.c.hinted_at)

_waiting = (
    sa.select(deliveries.c.pk)
    .where(deliveries.c.not_before <= select_db_now())
    .order_by(deliveries.c.not_before)
    .limit(_BATCH)
)
_FIRST_WAITING = Prepared(_waiting.limit(1), gives=PkRow)
_WAKE = Prepared(
    sa.update(deliveries)
    .where(deliveries.c.pk.in_(_waiting.with_for_update(skip_locked=True)), deliveries.c.not_before.is_not(None))
    .values(not_before=None, hinted_at=db_now(), hints=0)
    .returning(*_RETURNED),
    gives=_Due,
)


def wake_deliveries(database: Database) -> list[Hint]:
    """Make deliveries due whose wait is over. Returns the hints to send."""
    with database.read() as connection:
        if _FIRST_WAITING.first(connection, {}) is None:
            return []  # nothing waits: do not open a write transaction
    with database.statement() as connection:
        return _build_hints(_WAKE.all(connection, {}))


_wait: sa.ColumnElement[float] = sa.bindparam("grace", type_=sa.Double()) * sa.case(
    (deliveries.c.hints == 0, 1.0), (deliveries.c.hints == 1, 2.0), else_=_RESEND_WAIT_S
)


def _build_resend(*, is_suspect: bool) -> tuple[Prepared[LostHintsBounds, PkRow], Prepared[LostHintsBounds, _Due]]:
    """Build the statement that finds the first lost hint, and the one that sends all of them again."""
    lost = (
        sa.select(deliveries.c.pk)
        .where(
            deliveries.c.hinted_at < sa.bindparam("before", type_=sa.Double()),
            deliveries.c.hinted_at < select_db_now() - _wait,
            deliveries.c.deaths.is_not(None) if is_suspect else deliveries.c.deaths.is_(None),
            is_no_copy(),
        )
        .order_by(deliveries.c.hinted_at)
        .limit(_BATCH)
    )
    resend = (
        sa.update(deliveries)
        .where(deliveries.c.pk.in_(lost.with_for_update(skip_locked=True)), deliveries.c.hinted_at.is_not(None))
        .values(
            hinted_at=db_now(),
            hints=sa.case((deliveries.c.hints < _HINTS_COUNTED, deliveries.c.hints + 1), else_=deliveries.c.hints),
        )
        .returning(*_RETURNED)
    )
    return (
        Prepared(lost.limit(1), takes=LostHintsBounds, gives=PkRow),
        Prepared(resend, takes=LostHintsBounds, gives=_Due),
    )


_RESENDING = {is_suspect: _build_resend(is_suspect=is_suspect) for is_suspect in (False, True)}


def resend_deliveries(database: Database, *, grace_s: float, before: float, is_suspect: bool = False) -> list[Hint]:
    """List hints of due deliveries whose message is lost: hinted before ``before`` (epoch seconds) and longer ago than
    ``grace_s``. Only suspects with ``is_suspect``, else only the others."""
    first, resend = _RESENDING[is_suspect]
    values: LostHintsBounds = {"grace": grace_s, "before": before}
    with database.read() as connection:
        if first.first(connection, values) is None:
            return []
    with database.statement() as connection:
        return _build_hints(resend.all(connection, values))


def _build_hints(due: Sequence[_Due]) -> list[Hint]:
    return [
        Hint(
            effect=SendDelivery(
                run_id=row.delivery_id,
                delivery_id=row.delivery_id,
                attempt=row.attempts + 1,
                is_suspect=row.deaths is not None,
            ),
            at=float(row.hinted_at),
        )
        for row in due
    ]


def parse_targets(stored: str | None) -> list[str]:
    """Parse the targets in a run's ``deliver`` column."""
    return [str(target) for target in json.loads(stored)] if stored else []


def _build_settled_columns(state: DeliveryState) -> dict[str, object]:
    return {"state": state.value, "lease_token": None, "lease_owner": None, "settled_at": db_now()}


def _build_released_columns() -> dict[str, object]:
    return {"state": DeliveryState.PENDING.value, "lease_token": None, "lease_owner": None}


def _build_failure_columns(failure: Failure) -> dict[str, object]:
    return {"error_kind": failure.kind[:20], "error": make_storable(failure.message)[:500]}


def _lease_lost_error(claim: DeliveryClaim) -> LeaseLost:
    return LeaseLost(f"the claim on delivery {claim.delivery_id!r} was taken over; nothing was written")


class _TakenDelivery(NamedTuple):
    delivery_id: str
    tenant: str
    target: str
    body: str | None
    run_pk: int | None
    attempts: int
    losses: int
    parts_sent: int
    adjustments: str
    is_in_doubt: bool
    is_preview: int
    buttons: str | None
    wait_pk: int | None
    receipt: str | None
    message_id: str | None
    shown_hash: str | None
    age_s: float
    idle_s: float


class _EndedPreview(NamedTuple):
    target: str
    delivery_id: str
    attempts: int
    deaths: int | None
    hinted_at: float | None


class _AnsweringRun(NamedTuple):
    run_id: str
    spec: str | None
    workspace: str


class _ButtonsRow(NamedTuple):
    pk: int
    buttons: str | None


class _SentRow(NamedTuple):
    state: str
    tenant: str
    run_pk: int | None
    target: str
    body: str | None
    receipt: str | None


class _ReplacedRow(NamedTuple):
    run_pk: int | None
    job_pk: int | None
    body: str | None


_VIEW = sa.select(*select_view_columns(deliveries, DeliveryView), runs.c.run_id, jobs.c.job_id).select_from(
    deliveries.outerjoin(runs, runs.c.pk == deliveries.c.run_pk).outerjoin(jobs, jobs.c.pk == deliveries.c.job_pk)
)


def _require_view(connection: Connection, delivery_id: str) -> DeliveryView:
    found = fetch_views(connection.execute(_VIEW.where(deliveries.c.delivery_id == delivery_id)), DeliveryView)
    if not found:
        raise _delivery_not_found(delivery_id)
    return found[0]


def _delivery_not_found(delivery_id: str) -> DeliveryNotFound:
    return DeliveryNotFound(f"there is no delivery {delivery_id!r}")


class _UndeliveredRow(NamedTuple):
    run_pk: int
    delivery_id: str
    target: str
    state: str
    attempts: int
    not_before: float | None
    error: str | None


def list_undelivered(connection: Connection, run_pks: Collection[int]) -> Mapping[int, Sequence[UndeliveredView]]:
    """List the deliveries of runs that had no success, by row id of the run, in their order."""
    wanted = sa.select(*select_columns(deliveries, _UndeliveredRow)).where(
        deliveries.c.run_pk.in_(run_pks),
        deliveries.c.state != DeliveryState.DELIVERED.value,
        deliveries.c.error_kind.is_not(None),
        deliveries.c.is_preview == 0,
        ~deliveries.c.adjustments.contains(BUTTONS_GONE, autoescape=True),
    )
    found: dict[int, list[UndeliveredView]] = {}
    for row in fetch_rows(connection.execute(wanted.order_by(deliveries.c.pk)), _UndeliveredRow):
        fields = {**row._asdict(), "state": DeliveryState(row.state)}
        found.setdefault(fields.pop("run_pk"), []).append(UndeliveredView(**fields))
    return found
