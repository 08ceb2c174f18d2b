"""Failures of deliveries: which kind a failure is, whether and when to try again, and what that may cost.

The dangerous answer is none at all. A request that was sent and not answered may have been delivered; sending it again
may deliver it twice. Such an attempt is repeated only where the platform recognises the repetition by a key, else with
a visible remark (issue 6).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from hermes_worker.channels.catalog import APPRISE, LOCAL, WEBHOOK

REASON_CHARS_MAX = 200
RETRY_AFTER_S_MAX = 6 * 3600.0
DUPLICATE_REMARK = "♻️ Sent again after an interruption; this may be a duplicate."


class SendErrorKind(StrEnum):
    """Why a message was not delivered. The names are Hermes Agent's; the last five but one are ours."""

    TOO_LONG = "too_long"
    BAD_FORMAT = "bad_format"
    FORBIDDEN = "forbidden"
    NOT_FOUND = "not_found"
    RATE_LIMITED = "rate_limited"
    TRANSIENT = "transient"
    """Nothing arrived: the connection failed before the request, or the server said that it is down."""
    AUTH = "auth"
    """Our credentials were refused: nothing gets through until they are changed."""
    AMBIGUOUS = "ambiguous"
    """The request went out and no answer came: it may have been delivered."""
    REFUSED = "refused"
    """We did not send it: an unsafe address, a missing setting."""
    DEAD_TARGET = "dead_target"
    """Not sent: the target forbade us, or was gone, when it was last sent to."""
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryError:
    """A failed attempt, as a value. ``message`` never contains secrets or the text that was to be delivered."""

    kind: SendErrorKind
    message: str
    status: int | None = None
    """HTTP or SMTP status; ``None`` when there was no answer."""
    retry_after_s: float | None = None
    is_thread_missing: bool = False
    """The thread or topic is gone, the chat is not."""


def classify_text(text: str) -> SendErrorKind:
    """Classify an error that is only known by its words. The order of the checks
    matters."""
    lowered = text.lower()
    for kind, expression in _WORDS:
        if expression.search(lowered):
            return kind
    return SendErrorKind.UNKNOWN


_WORDS = tuple(
    (kind, re.compile(expression))
    for kind, expression in (
        (SendErrorKind.TOO_LONG, r"too[ _]long|too large|message_too_long|exceeds? (?:the )?(?:maximum|limit)"),
        (SendErrorKind.BAD_FORMAT, r"can'?t parse entities|parse error|bad format|invalid_blocks|unsupported markup"),
        (
            SendErrorKind.FORBIDDEN,
            r"forbidden|\bblocked\b|deactivated|not enough rights|have no rights|not a member|not_in_channel",
        ),
        (SendErrorKind.NOT_FOUND, r"not[ _]found|does not exist|unknown (?:channel|chat|user)"),
        (SendErrorKind.RATE_LIMITED, r"\bflood\b|too many requests|retry after|rate.?limit"),
        (
            SendErrorKind.TRANSIENT,
            r"connect(?:ion)?error|connection (?:reset|refused|aborted)|connecttimeout|network|broken pipe"
            r"|remotedisconnected|eoferror",
        ),
    )
)


def classify_status(status: int) -> SendErrorKind:
    """Classify an HTTP status alone; platforms that say more do so in the body."""
    match status:
        case 400 | 422:
            return SendErrorKind.BAD_FORMAT
        case 401 | 407:
            return SendErrorKind.AUTH
        case 403:
            return SendErrorKind.FORBIDDEN
        case 404 | 410:
            return SendErrorKind.NOT_FOUND
        case 413:
            return SendErrorKind.TOO_LONG
        case 429:
            return SendErrorKind.RATE_LIMITED
        case 408 | 425 | 502 | 503:
            return SendErrorKind.TRANSIENT
        case 504:
            # The gateway gave up waiting for a server that had the request.
            return SendErrorKind.AMBIGUOUS
        case _:
            return SendErrorKind.TRANSIENT if status >= 500 else SendErrorKind.UNKNOWN


# --- what to do about it ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How long a delivery is tried."""

    attempts_max: int = 6
    waits_s: tuple[float, ...] = (2.0, 8.0, 60.0, 600.0, 3_600.0)
    """The wait after each failure; the last one for all that follow. A target may be down for an hour."""
    age_max: timedelta = timedelta(hours=24)
    """The longest time from the first attempt on."""


class Adjustment(StrEnum):
    """What the next attempt does differently."""

    NONE = "none"
    PLAIN_TEXT = "plain_text"
    WITHOUT_THREAD = "without_thread"
    MARKED_DUPLICATE = "marked_duplicate"
    """With ``DUPLICATE_REMARK`` in front."""
    BUTTONS_GONE = "buttons_gone"
    """A message in the chat loses its buttons; nothing is sent."""
    REPLAYED = "replayed"
    """An operator asked for a replay: a target marked as dead is tried, and no platform is relied upon to remember the
    key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TryAgain:
    """Send the same part again after ``delay_s``."""

    delay_s: float
    adjustment: Adjustment = Adjustment.NONE
    is_counted: bool = True
    """Whether it counts among the attempts that there are. One that the platform put off by a time of its own does
    not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GiveUpDelivery:
    """The delivery failed. ``is_abandoned``: we stopped trying, and nothing refused it; a replay may succeed."""

    reason: str
    is_abandoned: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryAttempt:
    """The attempt that failed."""

    number: int
    """1 for the first."""
    age: timedelta
    """Since the first attempt."""
    has_idempotency_key: bool
    """Whether the platform drops a repetition of this request."""
    applied: frozenset[Adjustment] = frozenset()
    """The adjustments of this and earlier attempts."""


def decide_next_step(
    error: DeliveryError, attempt: DeliveryAttempt, policy: RetryPolicy, spread: float
) -> TryAgain | GiveUpDelivery:
    """Decide what follows a failed attempt. ``spread`` is a random number in [0, 1), in seconds, that keeps retries
    apart."""
    if (adjusted := _choose_adjustment(error, attempt)) is not None:
        return TryAgain(delay_s=0.0, adjustment=adjusted)
    if error.kind not in _RETRIED:
        return GiveUpDelivery(reason=error.message, is_abandoned=False)
    delay_s = compute_retry_delay_s(error, attempt.number, policy, spread)
    is_counted = error.kind is not SendErrorKind.RATE_LIMITED or error.retry_after_s is None
    if is_counted and attempt.number >= policy.attempts_max:
        return GiveUpDelivery(reason=f"{attempt.number} attempts failed: {error.message}", is_abandoned=True)
    if attempt.age + timedelta(seconds=delay_s) > policy.age_max:
        return GiveUpDelivery(reason=f"not delivered within {policy.age_max}: {error.message}", is_abandoned=True)
    # Once an attempt may have arrived, every later one may be its duplicate, however the later one itself failed.
    may_repeat = error.kind is SendErrorKind.AMBIGUOUS or Adjustment.MARKED_DUPLICATE in attempt.applied
    is_marked = may_repeat and not attempt.has_idempotency_key
    adjustment = Adjustment.MARKED_DUPLICATE if is_marked else Adjustment.NONE
    return TryAgain(delay_s=delay_s, adjustment=adjustment, is_counted=is_counted)


_RETRIED = frozenset({SendErrorKind.RATE_LIMITED, SendErrorKind.TRANSIENT, SendErrorKind.AMBIGUOUS})


def compute_retry_delay_s(error: DeliveryError, number: int, policy: RetryPolicy, spread: float) -> float:
    """Compute the wait in seconds behind failure ``number``, from 1: what the server asked for, else the policy's, each
    plus the spread."""
    if error.retry_after_s is not None:
        return min(max(error.retry_after_s, 0.0), RETRY_AFTER_S_MAX) + spread
    return policy.waits_s[min(number, len(policy.waits_s)) - 1] + spread


def _choose_adjustment(error: DeliveryError, attempt: DeliveryAttempt) -> Adjustment | None:
    """Choose another form of the message that may cure the failure, each tried once; ``None`` for none."""
    if error.is_thread_missing and Adjustment.WITHOUT_THREAD not in attempt.applied:
        return Adjustment.WITHOUT_THREAD
    if error.kind is SendErrorKind.BAD_FORMAT and Adjustment.PLAIN_TEXT not in attempt.applied:
        return Adjustment.PLAIN_TEXT
    return None


# --- dead targets ----------------------------------------------------------------------------------------------------

_WHOLE_CHAT = re.compile(
    r"\b(?:chat|channel|room|user|conversation|recipient|group)\b.{0,30}\b(?:not[ _]found|unknown)"
)
_UNKNOWN_CHAT = re.compile(r"\b(?:channel_not_found|unknown (?:chat|channel|room|user))\b")
_PART_OF_CHAT = re.compile(r"\b(?:thread|topic|message|reply|post|event)\b")


def find_dead_target_reason(platform: str, error: DeliveryError) -> str | None:
    """Say why a target is never worth another message: it forbids us, or the whole chat is gone; ``None`` when it may
    come back. A successful send clears the mark. Files and URLs are never given
    up."""
    if platform in (LOCAL, WEBHOOK, APPRISE):
        return None
    lowered = error.message.lower()
    is_forbidden = error.kind is SendErrorKind.FORBIDDEN
    is_gone = (
        error.kind is SendErrorKind.NOT_FOUND
        and not error.is_thread_missing
        and not _PART_OF_CHAT.search(lowered)
        and (_WHOLE_CHAT.search(lowered) or _UNKNOWN_CHAT.search(lowered)) is not None
    )
    return error.message[:REASON_CHARS_MAX] if is_forbidden or is_gone else None


def make_dead_target_key(platform: str, chat: str) -> str:
    return f"{platform}:{chat}"
