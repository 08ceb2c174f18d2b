"""Previews: an answer that is shown in its chat while it is written, as one message that is edited. Pure.

The row of the delivery is written when the run begins, and it holds the id of the message from the first preview on. A
preview is a hint: it may be late, refused or left out. The delivery decides what stands in the chat when the run has
ended. Its first part is the last edit of that message; where that is impossible, the message is removed, or is known to
be gone, before the part is sent as a new one. So a chat ends with exactly the parts of the answer, in their order.

One case cannot be repaired: the first preview was sent and its answer was lost, so there may be a message with an
unknown id. Then no preview is shown any more until the end, and the delivery says that it may be a duplicate, as after
any attempt of unknown outcome.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, assert_never

EVERY_S: Final = 1.0
"""Least seconds between two edits of one message."""
IDLE_S_MAX: Final = 10.0
"""Seconds. While nothing new is written, the next look comes after a quarter of the time since the last change, up to
this."""
AGAIN_S: Final = 30.0
"""Seconds until the next try after a preview was refused."""
SHOWN_CHARS_MIN: Final = 24
"""A shorter text is not shown yet: it may become one that says nothing (``[SILENT]``)."""
_EARLIER: Final = "… "


@dataclass(frozen=True, slots=True, kw_only=True)
class PreviewState:
    """The state of a preview in its chat, as the row knows it."""

    message_id: str | None = None
    """The id of the message that is edited; ``None`` before the first preview, and when it is gone."""
    shown_hash: str | None = None
    """The hash of the text that it shows."""
    idle_s: float = 0.0
    """Seconds since something was shown, or, before the first preview, since the run was submitted."""
    is_in_doubt: bool = False
    """There may be a message with an unknown id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShowNew:
    """Send the first preview."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ShowAgain:
    """Edit the message."""

    message_id: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LookLater:
    """Nothing is to be shown now; look again after ``delay_s``, or with ``None`` not before the end."""

    delay_s: float | None


PreviewStep = ShowNew | ShowAgain | LookLater


def decide_preview(standing: PreviewState, text: str, *, chars_min: int = SHOWN_CHARS_MIN) -> PreviewStep:
    """Decide what to show of the text written until now; an empty one means that nothing is written."""
    if standing.message_id is None and standing.is_in_doubt:
        return LookLater(delay_s=None)
    if standing.message_id is not None and standing.idle_s < EVERY_S:
        return LookLater(delay_s=EVERY_S - standing.idle_s)
    if len(text) < chars_min or compute_text_hash(text) == standing.shown_hash:
        return LookLater(delay_s=min(IDLE_S_MAX, max(EVERY_S, standing.idle_s / 4)))
    if standing.message_id is None:
        return ShowNew(text=text)
    return ShowAgain(message_id=standing.message_id, text=text)


class PreviewOutcome(StrEnum):
    """The outcome of sending a preview."""

    SHOWN = "shown"
    HELD_BACK = "held_back"
    """The platform said when to try again."""
    GONE = "gone"
    """The message was deleted."""
    OPEN = "open"
    """The request was sent, and no answer came."""
    REFUSED = "refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class PreviewResult:
    """The state of the row after a preview."""

    standing: PreviewState
    delay_s: float | None
    """When to look again; ``None`` for not before the end."""


def apply_outcome(
    standing: PreviewState,
    step: ShowNew | ShowAgain,
    outcome: PreviewOutcome,
    *,
    message_id: str | None = None,
    retry_after_s: float = 0.0,
) -> PreviewResult:
    """The state after a preview. ``message_id`` is the platform's id of a new message; ``None`` when it gave none."""
    match outcome:
        case PreviewOutcome.SHOWN:
            return _apply_shown(standing, step, message_id)
        case PreviewOutcome.HELD_BACK:
            return PreviewResult(standing=standing, delay_s=max(EVERY_S, retry_after_s))
        case PreviewOutcome.GONE:
            # The person who deleted it does not want to see it; the answer comes as a new message.
            return PreviewResult(standing=PreviewState(idle_s=standing.idle_s), delay_s=None)
        case PreviewOutcome.OPEN:
            # An edit with unknown outcome leaves the same message; whether a new message arrived is unknown.
            is_in_doubt = standing.is_in_doubt or isinstance(step, ShowNew)
            known = PreviewState(message_id=standing.message_id, is_in_doubt=is_in_doubt)
            return PreviewResult(standing=known, delay_s=None if isinstance(step, ShowNew) else AGAIN_S)
        case PreviewOutcome.REFUSED:
            return PreviewResult(standing=standing, delay_s=AGAIN_S)
        case _:
            assert_never(outcome)


def _apply_shown(standing: PreviewState, step: ShowNew | ShowAgain, message_id: str | None) -> PreviewResult:
    known = step.message_id if isinstance(step, ShowAgain) else message_id
    if known is None:
        # The platform accepted the message without returning an id.
        return PreviewResult(standing=PreviewState(idle_s=standing.idle_s, is_in_doubt=True), delay_s=None)
    return PreviewResult(
        standing=PreviewState(message_id=known, shown_hash=compute_text_hash(step.text)), delay_s=EVERY_S
    )


# --- the end ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishByEdit:
    """The first part takes the place of the preview."""

    message_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishByRemoval:
    """Remove the preview; what is to be sent is sent as new messages."""

    message_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishBySending:
    """No preview stands there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishLater:
    """The last edit was a moment ago."""

    delay_s: float


Finish = FinishByEdit | FinishByRemoval | FinishBySending | FinishLater


def decide_finish(standing: PreviewState, *, parts_sent: int, is_first_text: bool) -> Finish:
    """Decide how the delivery goes on. ``is_first_text``: there is a first part and it is a text; a file cannot replace
    a message, and an empty answer replaces none."""
    if standing.message_id is None or parts_sent > 0:
        return FinishBySending()
    if standing.idle_s < EVERY_S:
        return FinishLater(delay_s=EVERY_S - standing.idle_s)
    if is_first_text:
        return FinishByEdit(message_id=standing.message_id)
    return FinishByRemoval(message_id=standing.message_id)


# --- texts -----------------------------------------------------------------------------------------------------------


def compute_text_hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def select_shown_text(text: str, fits: Callable[[str], bool]) -> str:
    """The part of an unfinished text that is shown: without its last word, which may become a secret that is redacted
    when it is whole, and, when the text does not fit, its end from a line or a word on."""
    whole = _drop_last_word(text)
    if fits(whole):
        return whole
    size = len(whole)
    while size > 1:
        size = size * 3 // 4
        end = whole[-size:]
        cut = end.find("\n") if 0 <= end.find("\n") < size // 2 else end.find(" ")
        shown = _EARLIER + end[cut + 1 :].lstrip()
        if fits(shown):
            return shown
    return ""


def _drop_last_word(text: str) -> str:
    cut = max(text.rfind(sign) for sign in " \n\t")
    return text[:cut].strip() if cut >= 0 else ""
