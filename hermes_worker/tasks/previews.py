"""Show what a run has written until now: one look, one edit, and the row goes back to wait. No worker waits."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from hermes_worker.channels.dispatcher import Dispatcher
from hermes_worker.channels.errors import DeliveryError, SendErrorKind
from hermes_worker.channels.exchange import Part
from hermes_worker.channels.files import FileOutbox
from hermes_worker.channels.narration import is_silence_narration
from hermes_worker.channels.splitting import measure
from hermes_worker.channels.targets import Target
from hermes_worker.core.chat_signs import ChatSigns, compute_next_look_s
from hermes_worker.core.previews import (
    SHOWN_CHARS_MIN,
    LookLater,
    PreviewOutcome,
    PreviewResult,
    PreviewState,
    ShowAgain,
    ShowNew,
    apply_outcome,
    decide_preview,
    select_shown_text,
)
from hermes_worker.models.governor import CallGovernor, CredentialRef, NoGovernor


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatPace:
    """The flood limits of chats, shared by all workers: one worker's 429 holds back the others."""

    governor: CallGovernor = field(default_factory=NoGovernor)

    def wait_s(self, target: Target) -> float:
        """For how many seconds nothing may be sent to a chat; 0 when it may be sent to now."""
        place = _build_place(target)
        permit = self.governor.acquire(place, ticket=place.credential, tokens=0)
        if permit.wait_s > 0:
            self.governor.withdraw(permit)
        elif permit.is_governed:
            self.governor.settle(permit)
        return permit.wait_s

    def report_error(self, target: Target, error: DeliveryError) -> None:
        """Share a platform's rate limit with the other workers."""
        if error.kind is SendErrorKind.RATE_LIMITED and error.retry_after_s:
            self.governor.cool_down(_build_place(target), error.retry_after_s)


def _build_place(target: Target) -> CredentialRef:
    chat = hashlib.sha256(f"{target.sender}:{target.chat}".encode()).hexdigest()[:24]
    return CredentialRef(provider="chats", credential=chat)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatPreview:
    """One look at what a run has written, for one chat."""

    dispatcher: Dispatcher
    pace: ChatPace
    target: Target
    reply_to: str = ""
    """The message that the first preview answers."""

    def show_text(self, standing: PreviewState, text: str, *, key: str, progress: str = "") -> PreviewResult:
        """Show ``text`` below ``progress`` if it is time; return what to write into the row. ``key`` tells the message
        from all others.
        """
        limit = self.dispatcher.limit(self.target)
        left = limit.size_max - (measure(progress, limit.unit) + 2 if progress else 0)
        written = select_shown_text(text, lambda shown: measure(shown, limit.unit) <= left)
        if not progress:
            step = decide_preview(standing, written)
        else:
            is_shown = len(written) >= SHOWN_CHARS_MIN
            step = decide_preview(standing, f"{progress}\n\n{written}" if is_shown else progress, chars_min=1)
        if isinstance(step, LookLater):
            return PreviewResult(standing=standing, delay_s=step.delay_s)
        if (wait_s := self.pace.wait_s(self.target)) > 0:
            return apply_outcome(standing, step, PreviewOutcome.HELD_BACK, retry_after_s=wait_s)
        return self._send_or_edit(standing, step, key)

    def show_typing(self, after: PreviewResult, signs: ChatSigns) -> PreviewResult:
        """Show a typing sign, where the chat has one; return what to write into the row. The outcome only changes how
        long the chat is left alone.
        """
        if not self.dispatcher.shows_typing(self.target.platform) or self.pace.wait_s(self.target) > 0:
            return after
        outcome = self.dispatcher.show_typing(self.target)
        if isinstance(outcome, DeliveryError):
            self.pace.report_error(self.target, outcome)
            return after
        return replace(after, delay_s=compute_next_look_s(after.delay_s, signs))

    def _send_or_edit(self, standing: PreviewState, step: ShowNew | ShowAgain, key: str) -> PreviewResult:
        # Half of a text is half of its formatting as well: it is shown as it is written.
        part = Part(text=step.text, idempotency_key=f"{key}:preview", is_plain=True, reply_to=self.reply_to)
        if isinstance(step, ShowAgain):
            outcome = self.dispatcher.edit(part, step.message_id, self.target)
        else:
            outcome = self.dispatcher.send(part, self.target, at=datetime.now(UTC), file_name="")
        if not isinstance(outcome, DeliveryError):
            return apply_outcome(standing, step, PreviewOutcome.SHOWN, message_id=outcome.message_id)
        self.pace.report_error(self.target, outcome)
        failed = _judge_error(outcome, step)
        return apply_outcome(standing, step, failed, retry_after_s=outcome.retry_after_s or 0.0)


def _judge_error(error: DeliveryError, step: ShowNew | ShowAgain) -> PreviewOutcome:
    if error.kind is SendErrorKind.RATE_LIMITED:
        return PreviewOutcome.HELD_BACK
    if error.kind is SendErrorKind.AMBIGUOUS:
        return PreviewOutcome.OPEN
    is_gone = error.kind is SendErrorKind.NOT_FOUND and isinstance(step, ShowAgain)
    return PreviewOutcome.GONE if is_gone else PreviewOutcome.REFUSED


def render_preview(written: str, conceal: Callable[[str], str], outbox: FileOutbox | None) -> str:
    """The part of an unfinished answer that people may see: no credentials, no paths of files, and no stage
    direction.
    """
    text = conceal(written)
    if outbox is not None:
        text = outbox.extract(text).text
    return "" if is_silence_narration(text) else text
