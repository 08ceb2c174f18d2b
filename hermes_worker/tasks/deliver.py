"""One delivery: claim it, send what is left of it, settle it or give it back."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property, partial

from hermes_worker.broker.queue import QueueName
from hermes_worker.channels.catalog import APPRISE, LOCAL, WEBHOOK
from hermes_worker.channels.dispatcher import Dispatcher
from hermes_worker.channels.errors import (
    DUPLICATE_REMARK,
    Adjustment,
    DeliveryAttempt,
    DeliveryError,
    GiveUpDelivery,
    RetryPolicy,
    SendErrorKind,
    TryAgain,
    decide_next_step,
    find_dead_target_reason,
    make_dead_target_key,
)
from hermes_worker.channels.exchange import Outcome, Part
from hermes_worker.channels.files import FileOutbox
from hermes_worker.channels.targets import (
    ChatRef,
    Resolution,
    Target,
    TargetError,
    format_reference,
    parse_targets,
    require_open_to,
    resolve_targets,
)
from hermes_worker.core.abort import AbortSignal
from hermes_worker.core.chat_signs import RunProgress, format_progress, is_typing
from hermes_worker.core.effects import SendDelivery
from hermes_worker.core.errors import Failure, LeaseLost
from hermes_worker.core.previews import FinishByEdit, FinishByRemoval, FinishLater, PreviewResult, decide_finish
from hermes_worker.observe import bind_facts, count, log
from hermes_worker.safety.redaction import mask_known, redact
from hermes_worker.store.outbox.deliveries import ATTEMPTS_MAX, Deliveries, DeliveryClaim
from hermes_worker.store.rows import Hint
from hermes_worker.store.runs.views import Views
from hermes_worker.system import faults
from hermes_worker.system.faults import FaultPoint
from hermes_worker.tasks.context import Sender
from hermes_worker.tasks.iteration.persistence import persist
from hermes_worker.tasks.leases import Leases
from hermes_worker.tasks.message_parts import MessagePart, add_buttons, split_report
from hermes_worker.tasks.previews import ChatPace, ChatPreview, render_preview
from hermes_worker.tasks.reply_options import ReplyOptions
from hermes_worker.tasks.step_runner import begin_step
from hermes_worker.tracing import names
from hermes_worker.tracing import recording as tracing
from scheduler.reports import Report, build_report


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryContext:
    """The parts that a worker needs to deliver."""

    outbox: Deliveries
    views: Views
    dispatcher: Dispatcher
    sender: Sender
    leases: Leases
    attachments: Callable[[str], FileOutbox | None] = lambda workspace: None
    """Opens the files that may be sent along, given a run's stored workspace."""
    secrets: Sequence[str] = ()
    """Values that no message may contain, whatever they look like."""
    filters_silence: bool = True
    """Whether answers that only say that nothing is said go to files and programs alone, and not to people."""
    policy: RetryPolicy = field(default_factory=lambda: RetryPolicy(attempts_max=ATTEMPTS_MAX))
    pace: ChatPace = field(default_factory=ChatPace)
    written: Callable[[str], str] = lambda run_id: ""
    """Reads the text that a run at work has written of its newest reply until now."""
    progress: Callable[[str], RunProgress] = lambda run_id: RunProgress()
    """Reads how far a run at work has got."""
    commit_patience_s: float = 600.0


def deliver(parts: DeliveryContext, effect: SendDelivery, at: float) -> None:
    """Make the attempt that ``effect`` names, if it is still to be made. ``at`` is when its message was hinted.

    Safe to deliver any number of times: of all deliveries of the message one gets the claim.
    """
    queue = QueueName.SUSPECT_DELIVERY if effect.is_suspect else QueueName.DELIVERY
    begin_step(parts, queue, Hint(effect=effect, at=at), lambda: _deliver(parts, effect))


def _deliver(parts: DeliveryContext, effect: SendDelivery) -> None:
    claim = parts.outbox.claim(effect, parts.leases.owner)
    if claim is None:
        count("hint.stale")
        return
    count("delivery.claimed")
    faults.pass_point(FaultPoint.DELIVER_AFTER_CLAIM, claim.run_id or claim.delivery_id)
    with (
        bind_facts(delivery_id=claim.delivery_id, run_id=claim.run_id, attempt=claim.attempt),
        parts.leases.hold_claim(claim.token, claim.run_id or claim.delivery_id, may_hand_over=False) as abort,
        _trace_delivery(claim),
    ):
        try:
            hints = _DeliveryAttempt(parts, claim, abort).run()
        except LeaseLost as lost:
            count("delivery.refused")
            log.warning("delivery.refused", reason=str(lost))
            return
    parts.sender.send(hints)


def _trace_delivery(claim: DeliveryClaim) -> AbstractContextManager[None]:
    """The span of a delivery. A notice about a job belongs to no run, so to no trace."""
    if claim.run_id is None:
        return nullcontext()
    platform = claim.target.partition(":")[0]
    said: dict[str, tracing.Value] = {names.OPERATION: names.DELIVER, names.DELIVERY: claim.delivery_id}
    return tracing.record_step(
        claim.run_id, claim.token, {**said, names.PLATFORM: platform, names.ATTEMPT: claim.attempt}
    )


class _DeliveryAttempt:
    """One attempt at one delivery."""

    def __init__(self, parts: DeliveryContext, claim: DeliveryClaim, abort: AbortSignal) -> None:
        self._parts = parts
        self._claim = claim
        self._abort = abort

    @cached_property
    def _wishes(self) -> ReplyOptions:
        return ReplyOptions.from_claim(self._claim)

    def run(self) -> list[Hint]:
        """Returns what to send afterwards. Raises ``LeaseLost``."""
        claim = self._claim
        if not self._parts.leases.is_surely_held(self._claim.token):
            return self._give_back()
        try:
            found = self._resolve_targets(claim.target)
        except TargetError as error:
            return self._fail(Failure(kind=SendErrorKind.REFUSED, message=str(error)), is_abandoned=False)
        if found.unresolved:
            reason = "; ".join(f"{missing.reference}: {missing.reason}" for missing in found.unresolved)
            return self._fail(Failure(kind=SendErrorKind.REFUSED, message=reason), is_abandoned=False)
        named = claim.target.strip().lower()
        if named == "all":
            others = self._list_targets_of_others(yields=True)
            missing = [format_reference(ChatRef(target)) for target in found.targets if target not in others]
            return self._parts.outbox.expand(claim, missing)
        target = found.targets[0]
        if claim.previewed_run_id is not None:
            return self._send_preview(target, claim.previewed_run_id)
        if Adjustment.BUTTONS_GONE in claim.adjustments:
            return self._take_buttons_away(target)
        if named != format_reference(ChatRef(target)).lower() and target.platform != LOCAL and not self._is_replayed:
            twin = self._list_targets_of_others().get(target)
            if twin is not None:
                return self._succeed(target, f"sent as {twin!r}")
        return self._send_to(target)

    def _give_back(self) -> list[Hint]:
        """Give the claim back without sending: this process was frozen since its claim, and by now the delivery may be
        another worker's.
        """
        self._write(partial(self._parts.outbox.release, self._claim))
        return []

    def _send_preview(self, target: Target, run_id: str) -> list[Hint]:
        if self._find_dead_reason(target) is not None:
            after = PreviewResult(standing=self._claim.standing, delay_s=None)
            self._write(partial(self._parts.outbox.record_preview, self._claim, after))
            return []
        outbox = self._parts.attachments(self._claim.workspace) if self._claim.workspace else None
        signs = self._wishes.signs
        at_work = self._parts.progress(run_id) if signs.depends_on_progress else RunProgress()
        text, progress = "", ""
        if signs.has_text:
            text = render_preview(self._parts.written(run_id), self._redact_text, outbox)
            progress = self._redact_text(format_progress(at_work.calls, signs.progress))
        reply_to = self._wishes.find_message_replied_to(target, part=0)
        preview = ChatPreview(
            dispatcher=self._parts.dispatcher, pace=self._parts.pace, target=target, reply_to=reply_to
        )
        after = preview.show_text(self._claim.standing, text, key=f"{self._claim.delivery_id}:0", progress=progress)
        has_preview = after.standing.message_id is not None
        if is_typing(signs, at_work, age_s=self._claim.age_s, has_preview=has_preview):
            after = preview.show_typing(after, signs)
        self._write(partial(self._parts.outbox.record_preview, self._claim, after))
        return []

    def _take_buttons_away(self, target: Target) -> list[Hint]:
        """Remove the buttons from a message, if it still stands in the chat and can be changed. A failure is ignored:
        it is no reason to hold up the chat.
        """
        message_id = self._claim.standing.message_id
        pieces = split_report(self._redact_text(self._claim.body or ""), target, self._parts.dispatcher, None)
        if message_id is None or not pieces or not self._parts.dispatcher.loses_buttons(target.platform):
            return self._succeed(target, "its buttons stay")
        part = Part(
            text=pieces[-1].text,
            idempotency_key=f"{self._claim.delivery_id}:0",
            is_plain=Adjustment.PLAIN_TEXT in self._claim.adjustments,
        )
        outcome = self._parts.dispatcher.edit(part, message_id, target)
        if not isinstance(outcome, DeliveryError):
            return self._succeed(target, outcome.message_id)
        self._parts.pace.report_error(target, outcome)
        if outcome.kind in _COMES_AGAIN:
            return self._retry(target, outcome, is_in_doubt=False)
        failure = Failure(kind=outcome.kind, message=self._redact_text(outcome.message))
        return self._fail(failure, is_abandoned=False)

    def _resolve_targets(self, reference: str) -> Resolution:
        """Resolve a reference to its targets. Raises ``TargetError``."""
        dispatcher = self._parts.dispatcher
        references = parse_targets(reference)
        require_open_to(self._claim.tenant, references, dispatcher.rules)
        names_a_chat = all(isinstance(one, ChatRef) for one in references)
        homes = {} if names_a_chat else dispatcher.find_homes()
        return resolve_targets(references, origin=None, homes=homes, lookup=dispatcher.find_chat)

    def _list_targets_of_others(self, *, yields: bool = False) -> dict[Target, str]:
        """The targets of the run's other deliveries that are served before this one, each with its reference:
        deliveries that name the chat itself, and earlier ones; all of them for a delivery that ``yields``. A chat that
        is named twice, as by its id and as the home channel, is sent to once.
        """
        found: dict[Target, str] = {}
        is_earlier = True
        for reference in self._parts.outbox.list_siblings(self._claim):
            is_earlier = is_earlier and reference != ""
            if reference in ("", "all"):
                continue
            try:
                targets = self._resolve_targets(reference).targets
            except TargetError:
                continue
            for target in targets:
                if yields or is_earlier or reference == format_reference(ChatRef(target)):
                    found.setdefault(target, reference)
        return found

    def _send_to(self, target: Target) -> list[Hint]:
        why_dead = self._find_dead_reason(target)
        if why_dead is not None and not self._is_replayed:
            reason = f"nothing is sent there since it was refused: {why_dead}; replay this delivery to try it"
            return self._fail(Failure(kind=SendErrorKind.DEAD_TARGET, message=reason), is_abandoned=False)
        report = build_report(self._claim, self._parts.views)
        text = report.document if target.platform == LOCAL else report.text
        # A file keeps everything, and a program that waits for the end of a run is told of it in any case.
        is_silence = report.says_nothing and self._parts.filters_silence
        is_unwanted = is_silence and target.platform not in (LOCAL, WEBHOOK)
        # A person who is asked is shown the whole text, also a part that looks as if it named a file.
        takes_files = self._claim.workspace and not self._claim.buttons
        outbox = self._parts.attachments(self._claim.workspace or "") if takes_files else None
        pieces: Sequence[MessagePart] = []
        if text is not None and not is_unwanted:
            pieces = add_buttons(
                split_report(self._redact_text(text), target, self._parts.dispatcher, outbox), self._claim.buttons
            )
        given_back = self._wait_for_chat(target, pieces)
        if given_back is not None:
            return given_back
        return self._send_all(target, report, pieces, why_dead) if pieces else self._succeed(target, "nothing to say")

    def _wait_for_chat(self, target: Target, pieces: Sequence[MessagePart]) -> list[Hint] | None:
        """Give the delivery back where nothing may be sent to the chat yet, or its preview cannot be taken away;
        ``None`` where it may go on."""
        wait_s = self._parts.pace.wait_s(target) if self._parts.dispatcher.edits(target.platform) else 0.0
        is_first_text = bool(pieces) and not pieces[0].has_file
        step = decide_finish(self._claim.standing, parts_sent=self._claim.parts_sent, is_first_text=is_first_text)
        if isinstance(step, FinishLater):
            wait_s = max(wait_s, step.delay_s)
        if wait_s > 0:
            self._write(partial(self._parts.outbox.postpone_delivery, self._claim, wait_s))
            return []
        error = self._remove_preview(target, step.message_id) if isinstance(step, FinishByRemoval) else None
        return None if error is None else self._retry(target, error, self._claim.is_in_doubt)

    def _remove_preview(self, target: Target, message_id: str) -> DeliveryError | None:
        """Take the preview away; ``None`` when it is gone."""
        outcome = self._parts.dispatcher.remove(message_id, target)
        if isinstance(outcome, DeliveryError):
            self._parts.pace.report_error(target, outcome)
            return outcome
        self._write(partial(self._parts.outbox.record_preview_gone, self._claim))
        return None

    def _send_all(
        self, target: Target, report: Report, pieces: Sequence[MessagePart], why_dead: str | None
    ) -> list[Hint]:
        receipt = None
        shown_as = list(self._claim.shown_as)
        is_in_doubt = self._claim.is_in_doubt
        for number in range(self._claim.parts_sent, len(pieces)):
            if not self._parts.leases.is_surely_held(self._claim.token):
                return self._give_back()
            edited = self._edit_preview(target, report, pieces[number], number)
            outcome = edited or self._send_piece(target, report, pieces[number], number, is_in_doubt)
            if isinstance(outcome, DeliveryError):
                self._parts.pace.report_error(target, outcome)
                return self._retry(target, outcome, is_in_doubt)
            faults.pass_point(FaultPoint.DELIVER_AFTER_SEND, self._claim.run_id or self._claim.delivery_id)
            receipt, is_in_doubt = outcome.message_id, False
            if self._claim.asks and receipt is not None:
                # A reply to any of its messages answers the question.
                shown_as.append(receipt)
                receipt = " ".join(shown_as[-_QUOTABLE_MAX:])
            if number + 1 < len(pieces):
                kept = receipt if self._claim.asks else None
                self._write(partial(self._parts.outbox.record_part_sent, self._claim, number + 1, kept))
        return self._succeed(target, receipt, was_dead=why_dead is not None)

    def _edit_preview(self, target: Target, report: Report, piece: MessagePart, number: int) -> Outcome | None:
        """Put the first part in the place of the preview, which may be repeated; ``None`` where no preview stands, so
        that the part is to be sent."""
        step = decide_finish(self._claim.standing, parts_sent=number, is_first_text=not piece.has_file)
        if not isinstance(step, FinishByEdit):
            return None
        part = self._build_part(report, piece, f"{self._claim.delivery_id}:{number}", is_marked=False)
        outcome = self._parts.dispatcher.edit(part, step.message_id, self._adjust_target(target))
        if not isinstance(outcome, DeliveryError) or outcome.kind not in _NOT_CHANGEABLE:
            return outcome
        if outcome.kind is SendErrorKind.UNKNOWN:
            # It is there, and may be changed no more. What cannot be taken away either stays.
            self._parts.dispatcher.remove(step.message_id, target)
        self._write(partial(self._parts.outbox.record_preview_gone, self._claim))
        return None

    def _send_piece(
        self, target: Target, report: Report, piece: MessagePart, number: int, is_in_doubt: bool
    ) -> Outcome:
        key = f"{self._claim.delivery_id}:{number}"
        is_marked = is_in_doubt and not self._is_recognised(target)
        part = self._build_part(report, piece, key, is_marked)
        reply_to = self._wishes.find_message_replied_to(target, part=number)
        part = replace(part, may_be_duplicate=is_in_doubt and not is_marked, reply_to=reply_to)
        outcome = self._send(target, part, report.file_name)
        is_unwanted = isinstance(outcome, DeliveryError) and outcome.kind in _WRONG_WITH_FILE
        if part.attachment is None or not is_unwanted:
            return outcome
        # The platform wants no such file. That says nothing against the rest.
        note = piece.build_text_without_file("it was refused there")
        return self._send(
            target, replace(part, text=note, attachment=None, idempotency_key=f"{key}:note"), report.file_name
        )

    def _send(self, target: Target, part: Part, file_name: str) -> Outcome:
        return self._parts.dispatcher.send(part, self._adjust_target(target), at=datetime.now(UTC), file_name=file_name)

    def _build_part(self, report: Report, piece: MessagePart, key: str, is_marked: bool) -> Part:
        text, attachment = piece.open_content(self._redact_text, self._parts.dispatcher.fetch_picture)
        return Part(
            text="\n\n".join(filter(None, (DUPLICATE_REMARK, text))) if is_marked else text,
            idempotency_key=key,
            title=self._redact_text(report.title),
            is_plain=Adjustment.PLAIN_TEXT in self._claim.adjustments,
            attachment=attachment,
            buttons=piece.buttons,
            facts=report.facts,
        )

    def _is_recognised(self, target: Target) -> bool:
        """Whether the target still knows the keys of our earlier attempts."""
        kept_s = self._parts.dispatcher.get_key_kept_s(target.platform)
        return math.isinf(kept_s) or (self._claim.age_s < kept_s and not self._is_replayed)

    @property
    def _is_replayed(self) -> bool:
        return Adjustment.REPLAYED in self._claim.adjustments

    def _find_dead_reason(self, target: Target) -> str | None:
        if target.platform in _NEVER_DEAD:
            return None
        return self._parts.outbox.find_dead_reason(
            make_dead_target_key(target.sender, target.chat), tenant=self._claim.tenant
        )

    def _redact_text(self, text: str) -> str:
        return redact(mask_known(text, self._parts.secrets))

    def _adjust_target(self, target: Target) -> Target:
        return replace(target, thread=None) if Adjustment.WITHOUT_THREAD in self._claim.adjustments else target

    def _retry(self, target: Target, error: DeliveryError, is_in_doubt: bool) -> list[Hint]:
        claim = self._claim
        applied = {Adjustment(name) for name in claim.adjustments}
        if is_in_doubt:
            applied.add(Adjustment.MARKED_DUPLICATE)
        attempt = DeliveryAttempt(
            number=claim.attempt - claim.losses,
            age=timedelta(seconds=claim.age_s),
            has_idempotency_key=self._is_recognised(target),
            applied=frozenset(applied),
        )
        match decide_next_step(error, attempt, self._parts.policy, random.random()):
            case GiveUpDelivery(reason=reason, is_abandoned=is_abandoned):
                why = find_dead_target_reason(target.platform, error)
                dead = (make_dead_target_key(target.sender, target.chat), self._redact_text(why)) if why else None
                failure = Failure(kind=error.kind, message=self._redact_text(reason))
                return self._fail(failure, is_abandoned=is_abandoned, dead=dead)
            case TryAgain(delay_s=delay_s, adjustment=adjustment, is_counted=is_counted):
                kept = dict.fromkeys((*claim.adjustments, adjustment.value))
                is_in_doubt = is_in_doubt or error.kind is SendErrorKind.AMBIGUOUS
                give_back = partial(
                    self._parts.outbox.postpone_retry,
                    claim,
                    Failure(kind=error.kind, message=self._redact_text(error.message)),
                    delay_s=delay_s,
                    adjustments=[name for name in kept if name in _LASTING],
                    is_in_doubt=is_in_doubt,
                    is_counted=is_counted,
                )
                self._write(give_back)
                count("delivery.retried")
                log.info("delivery.retried", target=target.shown, kind=error.kind.value, delay_s=round(delay_s, 1))
                return []

    def _succeed(self, target: Target, receipt: str | None, *, was_dead: bool = False) -> list[Hint]:
        revived = make_dead_target_key(target.sender, target.chat) if was_dead else None
        self._write(partial(self._parts.outbox.settle_delivered, self._claim, receipt, revived=revived))
        count("delivery.delivered")
        log.info("delivery.delivered", target=target.shown)
        return []

    def _fail(self, failure: Failure, *, is_abandoned: bool, dead: tuple[str, str] | None = None) -> list[Hint]:
        self._write(
            partial(self._parts.outbox.settle_failed, self._claim, failure, is_abandoned=is_abandoned, dead=dead)
        )
        count("delivery.failed")
        log.warning("delivery.failed", kind=failure.kind, reason=failure.message)
        return []

    def _write(self, write: Callable[[], None]) -> None:
        persist(write, self._abort, patience_s=self._parts.commit_patience_s)


_QUOTABLE_MAX = 40
"""How many messages of a question, the last ones, are recognised when a person replies to them."""
_NOT_CHANGEABLE = frozenset({SendErrorKind.NOT_FOUND, SendErrorKind.UNKNOWN})
_COMES_AGAIN = frozenset(
    {SendErrorKind.RATE_LIMITED, SendErrorKind.TRANSIENT, SendErrorKind.AMBIGUOUS, SendErrorKind.BAD_FORMAT}
)
"""Errors that another attempt, perhaps as plain text, may mend; repeating a change does no harm."""
_LASTING = tuple(
    one.value
    for one in (Adjustment.PLAIN_TEXT, Adjustment.WITHOUT_THREAD, Adjustment.REPLAYED, Adjustment.BUTTONS_GONE)
)
_WRONG_WITH_FILE = (SendErrorKind.TOO_LONG, SendErrorKind.BAD_FORMAT, SendErrorKind.REFUSED)
_NEVER_DEAD = frozenset({LOCAL, WEBHOOK, APPRISE})
