"""Decide what to do about a failed model call, by one table.

A *remedy* is something a worker can do before it asks again, such as fetching a fresh credential or removing images.
Which remedies exist right now is part of the ``Situation``; the table names them all. A shell that can only wait
therefore gets a right answer today, and a remedy that is added later needs no change here.

``decide_remedy`` answers one failure. The shell carries the answer out, takes the history on with ``advance_history``
and asks again. When a remedy turns out not to work (no image could be shrunk, no credential was refreshed), the shell
calls ``decide_remedy`` once more *with the advanced history and the same failure*: a remedy that may be used once is
then passed over. Whatever the failures, this ends: every decision uses up a remedy, a compaction, a retry or a
fallback.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Literal, assert_never

from hermes_worker.core.errors import FailureKind
from hermes_worker.core.json_values import require_count
from hermes_worker.core.recovery.classify import Classification
from hermes_worker.core.recovery.reported_limits import ROOM_MIN

ATTEMPTS_MAX = 3
"""Calls that one iteration may make of one provider (``agent.api_max_retries``), so two waits lie between them."""

COMPACTIONS_MAX = 3
"""Compactions that gained nothing, and output caps, that errors may cause in a row."""

PARK_OVER_S = 5.0
"""A longer wait parks the run; a worker holds still for a shorter one (invariant I8)."""

STANDARD_WINDOW = 200_000
"""Tokens that every Anthropic account may send; more needs the long-context tier."""

WINDOW_MIN = 1_024
"""Tokens below which no refusal lowers a window: what is refused then is not too long for any model."""

_IMAGE_SIDE_PX = 8_000
_STATED_IMAGE_SIDE = re.compile(r"max allowed size:? ?(\d{3,5})\b")


class Remedy(StrEnum):
    """The remedies for a failure, besides waiting."""

    REFRESH_CREDENTIAL = "refresh_credential"
    ROTATE_CREDENTIAL = "rotate_credential"
    """Present while the pool holds another credential that is usable now."""
    SHRINK_IMAGES = "shrink_images"
    STRIP_IMAGES = "strip_images"
    TEXTIFY_TOOL_IMAGES = "textify_tool_images"
    STRIP_SIGNATURES = "strip_signatures"
    ECHO_REASONING = "echo_reasoning"
    DROP_ENCRYPTED_REASONING = "drop_encrypted_reasoning"
    DROP_LONG_CONTEXT_BETA = "drop_long_context_beta"
    STRIP_GRAMMAR = "strip_grammar"
    COMPACT = "compact"
    CAP_OUTPUT = "cap_output"
    RENEW_CONNECTION = "renew_connection"
    """Present on the primary provider, unless an aggregator serves it: rebuilding our end cannot help then."""
    FALL_BACK = "fall_back"
    """Present while the chain of fallback providers has an entry left."""


class GiveUpReason(StrEnum):
    INTERRUPTED = "interrupted"
    REFUSED = "refused"
    """The provider will not serve this request, however often it is sent."""
    CONTENT_POLICY_BLOCKED = "content_policy_blocked"
    RETRIES_EXHAUSTED = "retries_exhausted"
    COMPACTION_DISABLED = "compaction_disabled"
    COMPACTION_EXHAUSTED = "compaction_exhausted"
    OUTPUT_CAP = "output_cap"
    CONFIGURATION = "configuration"
    """Nothing was sent: a key, model or provider is missing or unknown."""


# --------------------------------------------------------------------------------------------------------- decisions


@dataclass(frozen=True, slots=True, kw_only=True)
class RefreshCredential:
    """Get a new token for the credential in use, then ask again."""

    kind: Literal["refresh_credential"] = "refresh_credential"


@dataclass(frozen=True, slots=True, kw_only=True)
class RotateCredential:
    """Mark the credential in use as unusable for now, take another, then ask again."""

    kind: Literal["rotate_credential"] = "rotate_credential"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShrinkImages:
    """Scale inline images of this request down to ``side_px_max``, then ask again. The transcript keeps them."""

    side_px_max: int
    kind: Literal["shrink_images"] = "shrink_images"


@dataclass(frozen=True, slots=True, kw_only=True)
class StripImages:
    """Send no images for the rest of the session: the model cannot see."""

    kind: Literal["strip_images"] = "strip_images"


@dataclass(frozen=True, slots=True, kw_only=True)
class TextifyToolImages:
    """Replace images in tool results of this request by text."""

    is_lasting: bool
    """The model never takes them: remember that for the session."""
    kind: Literal["textify_tool_images"] = "textify_tool_images"


@dataclass(frozen=True, slots=True, kw_only=True)
class StripSignature:
    """Leave signed reasoning out of this request. The transcript keeps it."""

    kind: Literal["strip_signature"] = "strip_signature"


@dataclass(frozen=True, slots=True, kw_only=True)
class EchoReasoning:
    """Send the model's earlier reasoning back with this request, although its provider's row does not ask for it."""

    kind: Literal["echo_reasoning"] = "echo_reasoning"


@dataclass(frozen=True, slots=True, kw_only=True)
class DropEncryptedReasoning:
    """Replay no encrypted reasoning for the rest of the session."""

    kind: Literal["drop_encrypted_reasoning"] = "drop_encrypted_reasoning"


@dataclass(frozen=True, slots=True, kw_only=True)
class DropLongContextBeta:
    """Stop asking for the long-context beta for the rest of the session."""

    kind: Literal["drop_long_context_beta"] = "drop_long_context_beta"


@dataclass(frozen=True, slots=True, kw_only=True)
class StripGrammar:
    """Remove ``pattern`` and ``format`` from the tool schemas, then ask again."""

    kind: Literal["strip_grammar"] = "strip_grammar"


@dataclass(frozen=True, slots=True, kw_only=True)
class Compact:
    """Compact the history and start the iteration again, not counted. Report a compaction that made no progress
    with ``mark_stalled``; progress is fewer rows or less than 95 % of the tokens."""

    kind: Literal["compact"] = "compact"


@dataclass(frozen=True, slots=True, kw_only=True)
class LowerWindow:
    """Take ``tokens`` for the model's context window from now on, then compact to it."""

    tokens: int
    is_lasting: bool
    """A property of the model, worth remembering beyond this turn; ``False`` for a limit of the account, and for a
    bound that was only concluded from what was refused."""
    kind: Literal["lower_window"] = "lower_window"


@dataclass(frozen=True, slots=True, kw_only=True)
class CapOutput:
    """Ask for at most ``tokens`` output tokens in the next call only; compact nothing."""

    tokens: int
    kind: Literal["cap_output"] = "cap_output"


@dataclass(frozen=True, slots=True, kw_only=True)
class RenewConnection:
    """Build the provider's client anew after ``seconds``, then start its attempts again."""

    seconds: float
    kind: Literal["renew_connection"] = "renew_connection"


@dataclass(frozen=True, slots=True, kw_only=True)
class FallBack:
    """Go on with the next provider of the chain. When none of the rest can be activated, decide again without the
    remedy."""

    kind: Literal["fall_back"] = "fall_back"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Ask again after ``seconds``."""

    seconds: float
    kind: Literal["wait"] = "wait"


@dataclass(frozen=True, slots=True, kw_only=True)
class GiveUp:
    """End the run."""

    reason: GiveUpReason
    kind: Literal["give_up"] = "give_up"


Decision = (
    RefreshCredential
    | RotateCredential
    | ShrinkImages
    | StripImages
    | TextifyToolImages
    | StripSignature
    | EchoReasoning
    | DropEncryptedReasoning
    | DropLongContextBeta
    | StripGrammar
    | Compact
    | LowerWindow
    | CapOutput
    | RenewConnection
    | FallBack
    | Wait
    | GiveUp
)


# -------------------------------------------------------------------------------------------- what is decided on


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptHistory:
    """The record of what was already done about failures of this iteration. A parked run stores it as a
    ``build_document``."""

    retries: int = 0
    """Failures that counted, before the present one."""
    compactions: int = 0
    """Since the last reply, or the last that gained something. Output caps count too, so that a wrong number from the
    provider cannot loop."""
    used: frozenset[Remedy] = frozenset()
    """Remedies that may be used once and were."""
    was_rate_limited: bool = False
    """The credential in use was rate-limited once and got its second chance."""
    is_compaction_stalled: bool = False
    """The last compaction made no progress."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """The remedies that exist now, and the sizes of the request and the window."""

    remedies: frozenset[Remedy] = frozenset()
    attempts_max: int = ATTEMPTS_MAX
    """At least 1."""
    compactions_max: int = COMPACTIONS_MAX
    jitter: float = 0.0
    """A random number, 0 <= jitter < 1, so that runs which failed together do not come back together."""
    window: int = STANDARD_WINDOW
    """The model's context window, in tokens."""
    request_tokens: int = 0
    """Estimate of what was sent: messages and tools. 0 when there is none."""
    output_tokens_max: int = 0
    """Room for the answer that was asked for with it; 0 when that was left to the provider."""


def decide_remedy(classification: Classification, history: AttemptHistory, situation: Situation) -> Decision:
    """Decide what to do about a failed request: the first row of the table that applies. Pure; the same failure and
    history always get the same decision."""
    case = _Case(classification=classification, history=history, situation=situation)
    return next(row.do(case) for row in _TABLE if _applies(row, case))


def advance_history(history: AttemptHistory, decision: Decision, classification: Classification) -> AttemptHistory:
    """The history after ``decision`` was carried out because of ``classification``."""
    match decision:
        case Compact() | LowerWindow() | CapOutput():
            # The iteration starts again with all remedies but a used CAP_OUTPUT, which a failure of billing uses up.
            # Compactions are counted.
            spent = {Remedy.CAP_OUTPUT} if classification.kind is FailureKind.BILLING else set()
            return AttemptHistory(compactions=history.compactions + 1, used=history.used & {Remedy.CAP_OUTPUT} | spent)
        case FallBack():
            kept = history.used - {Remedy.REFRESH_CREDENTIAL, Remedy.RENEW_CONNECTION, Remedy.CAP_OUTPUT}
            return AttemptHistory(used=kept)
        case RotateCredential():
            kept = history.used - {Remedy.REFRESH_CREDENTIAL, Remedy.CAP_OUTPUT}
            return replace(history, used=kept, was_rate_limited=False)
        case RenewConnection():
            return replace(_mark_used(history, Remedy.RENEW_CONNECTION), retries=0)
        case Wait():
            limited = history.was_rate_limited or classification.kind is FailureKind.RATE_LIMIT
            return replace(history, retries=history.retries + 1, was_rate_limited=limited)
        case GiveUp():
            return history
        case (
            RefreshCredential()
            | ShrinkImages()
            | StripImages()
            | TextifyToolImages()
            | StripSignature()
            | EchoReasoning()
            | DropEncryptedReasoning()
            | DropLongContextBeta()
            | StripGrammar()
        ):
            return _mark_used(history, _REMEDY_OF[decision.kind])
        case _:
            assert_never(decision)


def mark_stalled(history: AttemptHistory) -> AttemptHistory:
    """The history after a compaction that made no progress."""
    return replace(history, is_compaction_stalled=True)


def compute_backoff_s(attempt: int, *, base_s: float = 2.0, cap_s: float = 60.0, jitter: float = 0.0) -> float:
    """Seconds to wait after failure number ``attempt`` (1-based; less counts as 1): doubling from ``base_s`` up to
    ``cap_s``, and up to half as much again by ``jitter`` (0 <= jitter < 1)."""
    exponent = max(0, attempt - 1)
    doubled = cap_s if exponent >= 63 or base_s <= 0 else min(base_s * 2**exponent, cap_s)
    return doubled * (1 + 0.5 * jitter)


def build_document(history: AttemptHistory) -> dict[str, object]:
    """The history as JSON values, equal for equal histories."""
    return {
        "retries": history.retries,
        "compactions": history.compactions,
        "used": sorted(history.used),
        "was_rate_limited": history.was_rate_limited,
        "is_compaction_stalled": history.is_compaction_stalled,
    }


def parse_history(document: Mapping[str, object]) -> AttemptHistory:
    """The history that ``build_document`` wrote. Missing fields start anew, and remedies that this version does not
    know (a newer worker wrote them) are left out. Raises ``ValueError`` for values of the wrong type."""
    known = {remedy.value for remedy in Remedy}
    used = document.get("used", [])
    if not isinstance(used, list):
        raise ValueError(f"'used' must be a list, not {used!r}")
    return AttemptHistory(
        retries=require_count(document, "retries"),
        compactions=require_count(document, "compactions"),
        used=frozenset(Remedy(name) for name in used if name in known),
        was_rate_limited=bool(document.get("was_rate_limited", False)),
        is_compaction_stalled=bool(document.get("is_compaction_stalled", False)),
    )


def explain_give_up(give_up: GiveUp, classification: Classification) -> str:
    """Why a run ended, in a sentence for its user. Contains what the provider said, so redact it like any message."""
    said = f" The provider said: {classification.message}" if classification.message else ""
    return f"{_EXPLANATIONS[give_up.reason]}{said}"


_EXPLANATIONS: Mapping[GiveUpReason, str] = {
    GiveUpReason.INTERRUPTED: "The run was stopped while it was recovering from a failed model call.",
    GiveUpReason.REFUSED: "The model provider refused the request, and sending it again would not change that.",
    GiveUpReason.CONTENT_POLICY_BLOCKED: "The provider's safety filter blocked this request.",
    GiveUpReason.RETRIES_EXHAUSTED: "The model call failed as often as it may be tried.",
    GiveUpReason.COMPACTION_DISABLED: (
        "The conversation is too long for the model and compaction is off. Start a new session, turn compaction on, "
        "or use a model with a larger context window."
    ),
    GiveUpReason.COMPACTION_EXHAUSTED: (
        "The conversation is too long for the model and cannot be made shorter. Start a new session or use a model "
        "with a larger context window."
    ),
    GiveUpReason.OUTPUT_CAP: (
        "More output tokens were asked for than the model can write. Lower the maximum number of output tokens; a "
        "shorter conversation would not help."
    ),
    GiveUpReason.CONFIGURATION: "The model provider is not set up, so nothing was sent.",
}


def _mark_used(history: AttemptHistory, remedy: Remedy) -> AttemptHistory:
    return replace(history, used=history.used | {remedy}, is_compaction_stalled=False)


# --------------------------------------------------------------------------------------------------------- the table

_RATE_LIMITED = frozenset({FailureKind.RATE_LIMIT, FailureKind.BILLING, FailureKind.UPSTREAM_RATE_LIMIT})
_TRANSPORT = frozenset({FailureKind.TIMEOUT, FailureKind.UNREACHABLE, FailureKind.OVERLOADED})
_HEEDS_RETRY_AFTER = _RATE_LIMITED | {FailureKind.OVERLOADED}
_OUTPUT_MARGIN = 64
"""Tokens left free beside a reported room for output, because both sides of the sum are estimates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    classification: Classification
    history: AttemptHistory
    situation: Situation

    @property
    def kind(self) -> FailureKind:
        return self.classification.kind

    @property
    def failures(self) -> int:
        """Counted failures, with this one."""
        return self.history.retries + 1

    def has_remedy(self, remedy: Remedy) -> bool:
        return remedy in self.situation.remedies


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    when: Callable[[_Case], bool]
    do: Callable[[_Case], Decision]
    needs: Remedy | None = None
    """The row applies only while this remedy exists."""
    is_once: bool = False
    """The remedy is tried once in an iteration."""


def _applies(row: _Row, case: _Case) -> bool:
    if row.needs is not None and not case.has_remedy(row.needs):
        return False
    if row.is_once and row.needs in case.history.used:
        return False
    return row.when(case)


def _is(*kinds: FailureKind) -> Callable[[_Case], bool]:
    return lambda case: case.kind in kinds


def _has_spent_credential(case: _Case) -> bool:
    """Billing rotates at once; a first rate limit gets one more try of the same credential, unless it names a quota
    that no short wait refills, or a wait too long to hold a worker for."""
    if case.kind is FailureKind.RATE_LIMIT:
        asked_for = case.classification.retry_after_s or 0.0
        return (
            case.history.was_rate_limited
            or asked_for > PARK_OVER_S
            or "usage limit reached" in case.classification.message.lower()
        )
    return case.kind is FailureKind.BILLING


def _can_afford_reply(case: _Case) -> bool:
    """The credit is not enough for the longest reply that there may be, and enough for one that is worth asking for."""
    return case.kind is FailureKind.BILLING and (case.classification.output_tokens_available or 0) >= ROOM_MIN


def _is_refused_credential(case: _Case) -> bool:
    return case.kind is FailureKind.AUTH and case.classification.should_rotate


def _asks_too_much_output(case: _Case) -> bool:
    return case.kind is FailureKind.CONTEXT_OVERFLOW and case.classification.is_output_cap


def _has_room_for_output(case: _Case) -> bool:
    is_told = case.classification.output_tokens_available is not None
    return _asks_too_much_output(case) and is_told and not _compactions_are_used_up(case)


def _has_too_much_input(case: _Case) -> bool:
    is_about_input = case.kind in (FailureKind.PAYLOAD_TOO_LARGE, FailureKind.CONTEXT_OVERFLOW)
    return is_about_input and not _asks_too_much_output(case)


def _cannot_compact(case: _Case) -> bool:
    is_over = _has_too_much_input(case) or case.kind is FailureKind.LONG_CONTEXT_TIER
    return is_over and not case.has_remedy(Remedy.COMPACT)


def _compactions_are_used_up(case: _Case) -> bool:
    return case.history.compactions >= case.situation.compactions_max


def _is_over_tier(case: _Case) -> bool:
    is_new = not _compactions_are_used_up(case) and not case.history.is_compaction_stalled
    return case.kind is FailureKind.LONG_CONTEXT_TIER and is_new


def _is_stalled_payload(case: _Case) -> bool:
    return case.kind is FailureKind.PAYLOAD_TOO_LARGE and case.history.is_compaction_stalled


def _has_compacted_enough(case: _Case) -> bool:
    return _has_too_much_input(case) and (case.history.is_compaction_stalled or _compactions_are_used_up(case))


def _is_window_smaller_than_assumed(case: _Case) -> bool:
    return _has_too_much_input(case) and _compute_window_bound(case) < case.situation.window


def _compute_window_bound(case: _Case) -> int:
    """The largest window that the refusal leaves possible: what the provider told, and never more than was sent. Our
    count of tokens is an estimate, so in its measure the window may be far smaller than the provider's own number."""
    sent = case.situation.request_tokens
    asked = sent + case.situation.output_tokens_max if sent else case.situation.window
    told = case.classification.context_limit if case.kind is FailureKind.CONTEXT_OVERFLOW else None
    return max(min(asked, told or asked), WINDOW_MIN)


def _is_capacity_trouble(case: _Case) -> bool:
    """Another provider is the quicker way out. Transport trouble gets one ordinary retry before; a pool with another
    credential is tried before, except for a limit that lies behind an aggregator and hits all its credentials."""
    if case.kind is FailureKind.UPSTREAM_RATE_LIMIT:
        return True
    is_due = case.kind in _RATE_LIMITED or (case.kind in _TRANSPORT and case.failures >= 2)
    return is_due and not case.has_remedy(Remedy.ROTATE_CREDENTIAL)


def _is_final(case: _Case) -> bool:
    return not case.classification.is_retryable


def _is_exhausted(case: _Case) -> bool:
    return case.failures >= case.situation.attempts_max


def _is_exhausted_transport(case: _Case) -> bool:
    return _is_exhausted(case) and case.kind in (FailureKind.TIMEOUT, FailureKind.UNREACHABLE)


def _always(case: _Case) -> bool:
    return True


def _decide_wait(case: _Case) -> Decision:
    asked_for = case.classification.retry_after_s
    if asked_for and case.kind in _HEEDS_RETRY_AFTER:
        return Wait(seconds=asked_for * (1 + 0.1 * case.situation.jitter))
    return Wait(seconds=compute_backoff_s(case.failures, jitter=case.situation.jitter))


def _decide_cap(case: _Case) -> Decision:
    """The provider's number is the upper bound. Ours lowers it when it is plausible: the request holds things the
    provider may have counted differently."""
    reported = case.classification.output_tokens_available or 1
    ours = case.situation.window - case.situation.request_tokens
    room = min(reported, ours) if ours > 0 else reported
    return CapOutput(tokens=max(1, room - _OUTPUT_MARGIN))


def _decide_window(case: _Case) -> Decision:
    tokens = _compute_window_bound(case)
    return LowerWindow(tokens=tokens, is_lasting=tokens == case.classification.context_limit)


def _decide_image_side(case: _Case) -> Decision:
    stated = _STATED_IMAGE_SIDE.search(case.classification.message.lower())
    return ShrinkImages(side_px_max=int(stated[1]) if stated else _IMAGE_SIDE_PX)


def _build_give_up(reason: GiveUpReason) -> Callable[[_Case], Decision]:
    return lambda _: GiveUp(reason=reason)


def _refuse(case: _Case) -> Decision:
    if case.kind is FailureKind.INTERRUPTED:
        return GiveUp(reason=GiveUpReason.INTERRUPTED)
    if case.kind is FailureKind.CONTENT_POLICY_BLOCKED:
        return GiveUp(reason=GiveUpReason.CONTENT_POLICY_BLOCKED)
    if case.kind is FailureKind.CONFIGURATION:
        return GiveUp(reason=GiveUpReason.CONFIGURATION)
    return GiveUp(reason=GiveUpReason.REFUSED)


def _lower_to_standard(case: _Case) -> Decision:
    if case.situation.window > STANDARD_WINDOW:
        return LowerWindow(tokens=STANDARD_WINDOW, is_lasting=False)
    return Compact()


_FALL_BACK = Remedy.FALL_BACK

_TABLE: tuple[_Row, ...] = (
    _Row(when=_is(FailureKind.INTERRUPTED), do=_refuse),
    # Remedies for one particular failure do not count as a retry.
    _Row(
        when=lambda case: case.classification.rejects_images,
        needs=Remedy.STRIP_IMAGES,
        is_once=True,
        do=lambda _: StripImages(),
    ),
    _Row(when=_can_afford_reply, needs=Remedy.CAP_OUTPUT, is_once=True, do=_decide_cap),
    _Row(when=_has_spent_credential, needs=Remedy.ROTATE_CREDENTIAL, do=lambda _: RotateCredential()),
    _Row(
        when=_is_refused_credential,
        needs=Remedy.REFRESH_CREDENTIAL,
        is_once=True,
        do=lambda _: RefreshCredential(),
    ),
    _Row(when=_is_refused_credential, needs=Remedy.ROTATE_CREDENTIAL, do=lambda _: RotateCredential()),
    _Row(
        when=_is(FailureKind.IMAGE_TOO_LARGE),
        needs=Remedy.SHRINK_IMAGES,
        is_once=True,
        do=_decide_image_side,
    ),
    _Row(
        when=_is(FailureKind.IMAGE_TOO_LARGE),
        needs=Remedy.STRIP_IMAGES,
        is_once=True,
        do=lambda _: StripImages(),
    ),
    _Row(
        when=_is(FailureKind.MULTIMODAL_TOOL_CONTENT_UNSUPPORTED),
        needs=Remedy.TEXTIFY_TOOL_IMAGES,
        is_once=True,
        do=lambda _: TextifyToolImages(is_lasting=True),
    ),
    _Row(
        when=_is(FailureKind.OAUTH_LONG_CONTEXT_BETA_FORBIDDEN),
        needs=Remedy.DROP_LONG_CONTEXT_BETA,
        is_once=True,
        do=lambda _: DropLongContextBeta(),
    ),
    _Row(
        when=lambda case: case.classification.lacks_thoughts,
        needs=Remedy.ECHO_REASONING,
        is_once=True,
        do=lambda _: EchoReasoning(),
    ),
    _Row(
        when=_is(FailureKind.THINKING_SIGNATURE),
        needs=Remedy.STRIP_SIGNATURES,
        is_once=True,
        do=lambda _: StripSignature(),
    ),
    _Row(
        when=_is(FailureKind.INVALID_ENCRYPTED_CONTENT),
        needs=Remedy.DROP_ENCRYPTED_REASONING,
        is_once=True,
        do=lambda _: DropEncryptedReasoning(),
    ),
    _Row(
        when=_is(FailureKind.LLAMA_CPP_GRAMMAR_PATTERN),
        needs=Remedy.STRIP_GRAMMAR,
        is_once=True,
        do=lambda _: StripGrammar(),
    ),
    # From here on the failure counts.
    _Row(when=_cannot_compact, needs=_FALL_BACK, do=lambda _: FallBack()),
    _Row(when=_cannot_compact, do=_build_give_up(GiveUpReason.COMPACTION_DISABLED)),
    _Row(when=_is_over_tier, needs=Remedy.COMPACT, do=_lower_to_standard),
    _Row(when=_is_capacity_trouble, needs=_FALL_BACK, do=lambda _: FallBack()),
    _Row(when=_is(FailureKind.AUTH, FailureKind.AUTH_PERMANENT), needs=_FALL_BACK, do=lambda _: FallBack()),
    _Row(when=_has_room_for_output, needs=Remedy.CAP_OUTPUT, do=_decide_cap),
    _Row(when=_asks_too_much_output, needs=_FALL_BACK, do=lambda _: FallBack()),
    _Row(when=_asks_too_much_output, do=_build_give_up(GiveUpReason.OUTPUT_CAP)),
    _Row(
        when=_is_stalled_payload,
        needs=Remedy.TEXTIFY_TOOL_IMAGES,
        is_once=True,
        do=lambda _: TextifyToolImages(is_lasting=False),
    ),
    _Row(when=_has_compacted_enough, needs=_FALL_BACK, do=lambda _: FallBack()),
    _Row(when=_has_compacted_enough, do=_build_give_up(GiveUpReason.COMPACTION_EXHAUSTED)),
    _Row(when=_is_window_smaller_than_assumed, needs=Remedy.COMPACT, do=_decide_window),
    _Row(when=_has_too_much_input, needs=Remedy.COMPACT, do=lambda _: Compact()),
    _Row(when=_is_final, needs=_FALL_BACK, do=lambda _: FallBack()),
    _Row(when=_is_final, do=_refuse),
    _Row(
        when=_is_exhausted_transport,
        needs=Remedy.RENEW_CONNECTION,
        is_once=True,
        do=lambda case: RenewConnection(seconds=min(3.0 + case.failures, 8.0)),
    ),
    _Row(when=_is_exhausted, needs=_FALL_BACK, do=lambda _: FallBack()),
    _Row(when=_is_exhausted, do=_build_give_up(GiveUpReason.RETRIES_EXHAUSTED)),
    _Row(when=_always, do=_decide_wait),
)
"""The rows in the order in which they are tried."""

_REMEDY_OF: Mapping[str, Remedy] = {
    "refresh_credential": Remedy.REFRESH_CREDENTIAL,
    "shrink_images": Remedy.SHRINK_IMAGES,
    "strip_images": Remedy.STRIP_IMAGES,
    "textify_tool_images": Remedy.TEXTIFY_TOOL_IMAGES,
    "strip_signature": Remedy.STRIP_SIGNATURES,
    "echo_reasoning": Remedy.ECHO_REASONING,
    "drop_encrypted_reasoning": Remedy.DROP_ENCRYPTED_REASONING,
    "drop_long_context_beta": Remedy.DROP_LONG_CONTEXT_BETA,
    "strip_grammar": Remedy.STRIP_GRAMMAR,
}
