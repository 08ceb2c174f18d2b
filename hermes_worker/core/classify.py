"""What a failed model call means: from the facts of an error to a ``Classification``.

Everything here is a table. Patterns are lower-case substrings of what providers really send; a *rule* is a test and
the outcome it leads to; a *ladder* is a list of rules of which the first that holds wins. The order inside a ladder
is the meaning: ``Unsupported parameter: max_tokens`` is a malformed request although it contains ``max_tokens``, which
elsewhere speaks of the context window. Families, order and flags are those of Hermes Agent 0.19.0 (reference, loop
§4.1 to §4.6 and §9.7); what differs is marked "Ours".

Wires build a ``RawError`` from whatever their SDK raised (``raw_error`` reads the usual attributes) and raise a
``ModelCallError`` with the kind found here; ``classification_of`` gets the flags back on the other side.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from email.utils import parsedate_to_datetime

from hermes_worker.core.error_patterns import (
    AUTH,
    BILLING,
    CERTIFICATE,
    CONTENT_POLICY,
    CONTEXT_OVERFLOW,
    DISCONNECTED,
    EMPTY_PROVIDER_REPLY,
    IMAGE_REJECTED,
    IMAGE_TOO_LARGE,
    MODEL_NOT_FOUND,
    MULTIMODAL_TOOL_CONTENT,
    NEVER_CONNECTED,
    OVERLOADED,
    PAYLOAD_TOO_LARGE,
    PROVIDER_POLICY,
    RATE_LIMIT,
    REQUEST_VALIDATION,
    SPENDING_LIMIT,
    TIMED_OUT,
    TLS_TRANSIENT,
    TOO_MUCH,
    TRANSPORT_CLASSES,
    UNKNOWN_PARAMETER,
    USAGE_LIMIT,
    USAGE_LIMIT_IS_TRANSIENT,
    is_reasoning_model,
)
from hermes_worker.core.errors import FailureKind, ModelCallError
from hermes_worker.core.reported_limits import (
    is_output_cap_error,
    parse_available_output_tokens,
    parse_context_limit,
)

__all__ = [
    "Classification",
    "RawError",
    "RequestSize",
    "classification_of",
    "classify",
    "is_output_cap_error",
    "is_reasoning_model",
    "parse_available_output_tokens",
    "parse_context_limit",
    "parse_retry_after",
    "raw_error",
]

RETRY_AFTER_MAX_S = 600.0
"""Longest wait we let a server ask of us: Anthropic's slowest input-token bucket refills in 171 s."""

MESSAGE_CHARS_MAX = 500
"""How much of a provider's text a classification keeps."""


# ---------------------------------------------------------------------------------------------- what goes in and out


@dataclass(frozen=True, slots=True, kw_only=True)
class RawError:
    """The facts of a failure, before anybody judged them."""

    message: str = ""
    """The text of the exception."""
    status: int | None = None
    """HTTP status; ``None`` when there was no response."""
    body: Mapping[str, object] | None = None
    """The parsed JSON body, whole or only its ``error`` object (SDKs differ)."""
    class_name: str = ""
    """Name of the exception's class, without its module."""
    causes: tuple[str, ...] = ()
    """``"ClassName: text"`` of each exception behind this one. Read for transport failures only: the official SDKs
    say "Connection error." and keep the reason in the cause."""
    is_os_error: bool = False
    """The exception is an ``OSError``, as socket errors and ``TimeoutError`` are."""
    retry_after_s: float | None = None
    """See ``parse_retry_after``."""
    provider: str = ""
    model: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestSize:
    """How big the request was that failed: a bare refusal of a big one usually means "too big"."""

    tokens: int = 0
    """Estimated, messages and tools."""
    window: int = 200_000
    """The model's context window, in tokens."""
    messages: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Classification:
    """What a failure means and which remedies it admits. ``retry.decide`` chooses among them."""

    kind: FailureKind
    is_retryable: bool = True
    """The same request may succeed later."""
    should_compress: bool = False
    should_rotate: bool = False
    """Another credential of the same provider may succeed."""
    should_fall_back: bool = False
    """Another provider or model may succeed."""
    status: int | None = None
    message: str = ""
    """What the provider said, shortened; may contain anything a server chose to send."""
    retry_after_s: float | None = None
    rejects_images: bool = False
    """The model does not take images at all, so removing them is the remedy whatever the kind."""
    is_output_cap: bool = False
    """The request asked for too many *output* tokens; compressing the input cannot help."""
    output_tokens_available: int | None = None
    """How many output tokens would have fitted, when the provider said."""
    context_limit: int | None = None
    """The context window in tokens, when the provider said."""


def classify(error: RawError, size: RequestSize | None = None) -> Classification:
    """Judge a failure. Total and pure; an error nobody has heard of is ``unknown`` and may be retried."""
    seen = _look_at(error, size or RequestSize())
    outcome = _first_hit(_FIRST, seen) or _first_hit(_ladder_for(seen.status), seen) or _UNKNOWN
    told = replace(outcome, status=error.status, message=seen.shown_message, retry_after_s=error.retry_after_s)
    return _with_what_the_text_says(told, seen.text)


def classification_of(error: ModelCallError) -> Classification:
    """The classification of an error that a wire has already translated: usual flags of its kind, refined by the
    status and by the numbers in its message."""
    outcome = _USUAL[error.kind]
    if error.kind is FailureKind.AUTH and error.status == 403:
        outcome = _AUTH_DENIED
    message = error.message[:MESSAGE_CHARS_MAX]
    told = replace(outcome, status=error.status, message=message, retry_after_s=error.retry_after_s)
    return _with_what_the_text_says(told, error.message.lower())


def raw_error(error: BaseException, *, provider: str = "", model: str = "", now_s: float) -> RawError:
    """The facts of an SDK's exception, read from the attributes that HTTP client libraries agree on (``status_code``
    or ``status``, ``body``, ``response.headers``), along at most five links of its chain of causes.

    ``now_s`` is the Unix time, for a ``Retry-After`` that names a date.
    """
    chain = list(_cause_chain(error))
    header = next((h for h in map(_retry_after_header, chain) if h is not None), None)
    return RawError(
        message=str(error),
        status=next((s for s in map(_status_attribute, chain) if s is not None), None),
        body=next((b for b in (getattr(e, "body", None) for e in chain) if isinstance(b, Mapping)), None),
        class_name=type(error).__name__,
        causes=tuple(f"{type(cause).__name__}: {cause}" for cause in chain[1:]),
        is_os_error=isinstance(error, OSError),
        retry_after_s=parse_retry_after(header, now_s=now_s),
        provider=provider,
        model=model,
    )


def parse_retry_after(value: str | None, *, now_s: float) -> float | None:
    """A ``Retry-After`` header in seconds, at most ``RETRY_AFTER_MAX_S``: a number of seconds or an HTTP date (RFC
    9110 §10.2.3; the original ignores dates). A moment in the past gives 0. ``None`` when absent or unreadable."""
    if value is None:
        return None
    seconds = _seconds(value.strip(), now_s)
    if seconds is None or math.isnan(seconds):
        return None
    return min(max(seconds, 0.0), RETRY_AFTER_MAX_S)


def _seconds(value: str, now_s: float) -> float | None:
    try:
        return float(value)
    except ValueError:
        pass
    try:
        return parsedate_to_datetime(value).timestamp() - now_s
    except (ValueError, OverflowError):
        return None


# ---------------------------------------------------------------------------------------------------------- outcomes

_AUTH = Classification(kind=FailureKind.AUTH, is_retryable=False, should_rotate=True, should_fall_back=True)
_AUTH_DENIED = replace(_AUTH, should_rotate=False)
"""The credential is known and may not do this; another of the same account may not either."""
_BILLING = replace(_AUTH, kind=FailureKind.BILLING)
_RATE_LIMIT = Classification(kind=FailureKind.RATE_LIMIT, should_rotate=True, should_fall_back=True)
_UPSTREAM_RATE_LIMIT = Classification(kind=FailureKind.UPSTREAM_RATE_LIMIT, should_fall_back=True)
_OVERLOADED = Classification(kind=FailureKind.OVERLOADED)
_SERVER_ERROR = Classification(kind=FailureKind.SERVER_ERROR)
_TIMEOUT = Classification(kind=FailureKind.TIMEOUT)
_STALE_TOO_OFTEN = replace(_TIMEOUT, is_retryable=False, should_fall_back=True)
_UNREACHABLE = Classification(kind=FailureKind.UNREACHABLE)
_CERTIFICATE = Classification(kind=FailureKind.SSL_CERT_VERIFICATION, is_retryable=False)
_OVERFLOW = Classification(kind=FailureKind.CONTEXT_OVERFLOW, should_compress=True)
_PAYLOAD = Classification(kind=FailureKind.PAYLOAD_TOO_LARGE, should_compress=True)
_LONG_CONTEXT_TIER = Classification(kind=FailureKind.LONG_CONTEXT_TIER, should_compress=True)
_IMAGE = Classification(kind=FailureKind.IMAGE_TOO_LARGE)
_MULTIMODAL_TOOL = Classification(kind=FailureKind.MULTIMODAL_TOOL_CONTENT_UNSUPPORTED)
_MODEL_NOT_FOUND = Classification(kind=FailureKind.MODEL_NOT_FOUND, is_retryable=False, should_fall_back=True)
_PROVIDER_POLICY = Classification(kind=FailureKind.PROVIDER_POLICY_BLOCKED, is_retryable=False)
_CONTENT_POLICY = replace(_MODEL_NOT_FOUND, kind=FailureKind.CONTENT_POLICY_BLOCKED)
_FORMAT = replace(_MODEL_NOT_FOUND, kind=FailureKind.FORMAT_ERROR)
_ENCRYPTED = Classification(kind=FailureKind.INVALID_ENCRYPTED_CONTENT)
_THINKING = Classification(kind=FailureKind.THINKING_SIGNATURE)
_LONG_CONTEXT_BETA = Classification(kind=FailureKind.OAUTH_LONG_CONTEXT_BETA_FORBIDDEN)
_GRAMMAR = Classification(kind=FailureKind.LLAMA_CPP_GRAMMAR_PATTERN)
_UNKNOWN = Classification(kind=FailureKind.UNKNOWN)
_LOCAL_BUG = replace(_MODEL_NOT_FOUND, kind=FailureKind.UNKNOWN)

_USUAL: Mapping[FailureKind, Classification] = {
    FailureKind.AUTH_PERMANENT: replace(_AUTH_DENIED, kind=FailureKind.AUTH_PERMANENT),
    FailureKind.INTERRUPTED: Classification(kind=FailureKind.INTERRUPTED, is_retryable=False),
    FailureKind.CONFIGURATION: replace(_MODEL_NOT_FOUND, kind=FailureKind.CONFIGURATION),
} | {
    outcome.kind: outcome
    for outcome in (
        _AUTH,
        _BILLING,
        _RATE_LIMIT,
        _UPSTREAM_RATE_LIMIT,
        _OVERLOADED,
        _SERVER_ERROR,
        _TIMEOUT,
        _UNREACHABLE,
        _CERTIFICATE,
        _OVERFLOW,
        _PAYLOAD,
        _LONG_CONTEXT_TIER,
        _IMAGE,
        _MULTIMODAL_TOOL,
        _MODEL_NOT_FOUND,
        _PROVIDER_POLICY,
        _CONTENT_POLICY,
        _FORMAT,
        _ENCRYPTED,
        _THINKING,
        _LONG_CONTEXT_BETA,
        _GRAMMAR,
        _UNKNOWN,
    )
}


# ------------------------------------------------------------------------------------------------- what is looked at


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """A ``RawError`` prepared for the rules: lower case, nested texts joined, codes found."""

    error: RawError
    size: RequestSize
    status: int | None
    text: str
    body_message: str
    code: str
    metadata: Mapping[str, object]
    transport_text: str
    shown_message: str = field(repr=False, default="")


def _look_at(error: RawError, size: RequestSize) -> _Seen:
    detail = _error_object(error.body)
    body_message = (
        _text(detail.get("message")) or _text(detail.get("error")) or _text((error.body or {}).get("message"))
    )
    metadata = detail.get("metadata")
    metadata = metadata if isinstance(metadata, Mapping) else {}
    text = _join_new(error.message.lower(), body_message.lower(), _wrapped_message(metadata).lower())
    return _Seen(
        error=error,
        size=size,
        status=_decisive_status(error),
        text=text,
        body_message=body_message.strip().lower(),
        code=_code(error.body, detail).lower(),
        metadata=metadata,
        transport_text=_join_new(text, f"{error.class_name}: ".lower(), *(cause.lower() for cause in error.causes)),
        shown_message=(body_message.strip() or error.message)[:MESSAGE_CHARS_MAX],
    )


def _decisive_status(error: RawError) -> int | None:
    """Ours: an SSE error event arrives under status 200 (anthropic SDK 2.12), which says nothing."""
    if error.status is None:
        return 429 if error.class_name == "RateLimitError" else None
    return error.status if 400 <= error.status < 600 else None


def _error_object(body: Mapping[str, object] | None) -> Mapping[str, object]:
    """The ``error`` object of a body. The openai SDK hands out that object itself, the anthropic SDK the whole body."""
    if body is None:
        return {}
    nested = body.get("error")
    return nested if isinstance(nested, Mapping) else body


def _wrapped_message(metadata: Mapping[str, object]) -> str:
    """What the upstream provider said, which OpenRouter passes on as JSON text in ``metadata.raw``."""
    inner = _json_object(metadata.get("raw"))
    return _text(_error_object(inner).get("message"))


def _code(body: Mapping[str, object] | None, detail: Mapping[str, object]) -> str:
    candidates = (
        detail.get("code"),
        detail.get("type"),
        *_codes_inside(_json_object(detail.get("message"))),
        (body or {}).get("code"),
        (body or {}).get("error_code"),
    )
    return next(filter(None, map(_code_text, candidates)), "")


def _codes_inside(payload: Mapping[str, object]) -> Iterator[object]:
    """Codes of an error body that a gateway put as text into another error's message."""
    detail = _error_object(payload)
    yield from (detail.get("code"), detail.get("type"), payload.get("code"), payload.get("error_code"))


def _code_text(value: object) -> str:
    """A usable code: numbers repeat the status and say nothing new, nor does an ``error`` that only names its kind."""
    text = value.strip() if isinstance(value, str) else ""
    return "" if text.isdigit() or text == "error" else text


def _json_object(value: object) -> Mapping[str, object]:
    if not isinstance(value, str) or not value.lstrip().startswith("{"):
        return {}
    try:
        parsed = json.loads(value)
    except (ValueError, RecursionError):
        return {}
    return parsed if isinstance(parsed, Mapping) else {}


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _join_new(first: str, *others: str) -> str:
    joined = first
    for other in others:
        if other not in joined:
            joined = f"{joined} {other}"
    return joined


def _cause_chain(error: BaseException, depth: int = 5) -> Iterator[BaseException]:
    current: BaseException | None = error
    for _ in range(depth):
        if current is None:
            return
        yield current
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)


def _status_attribute(error: BaseException) -> int | None:
    for name in ("status_code", "status"):
        value = getattr(error, name, None)
        if isinstance(value, int) and 100 <= value < 600:
            return value
    return None


def _retry_after_header(error: BaseException) -> str | None:
    headers = getattr(getattr(error, "response", None), "headers", None)
    if not isinstance(headers, Mapping):
        return None
    value = headers.get("retry-after") or headers.get("Retry-After")
    return value if isinstance(value, str) else None


# ------------------------------------------------------------------------------------------------------------- rules

_Test = Callable[[_Seen], bool]
_Rule = tuple[_Test, Classification]


def _first_hit(ladder: tuple[_Rule, ...], seen: _Seen) -> Classification | None:
    return next((outcome for test, outcome in ladder if test(seen)), None)


def _contains(text: str, patterns: tuple[str, ...]) -> bool:
    return any(pattern in text for pattern in patterns)


def _is_client_side(status: int | None) -> bool:
    return status is None or 400 <= status < 500


def _says(*patterns: str) -> _Test:
    return lambda seen: _contains(seen.text, patterns)


def _transport_says(*patterns: str) -> _Test:
    return lambda seen: _contains(seen.transport_text, patterns)


def _code_is(*codes: str) -> _Test:
    return lambda seen: seen.code in codes


def _status_is(*statuses: int) -> _Test:
    return lambda seen: seen.status in statuses


def _all(*tests: _Test) -> _Test:
    return lambda seen: all(test(seen) for test in tests)


def _any(*tests: _Test) -> _Test:
    return lambda seen: any(test(seen) for test in tests)


def _always(seen: _Seen) -> bool:
    return True


def _is_bigger_than(share: float, tokens: int, messages: int) -> _Test:
    """The request fills more than ``share`` of the window. The absolute numbers stand in for it on windows up to
    256,000 tokens; on larger ones long histories are normal."""

    def test(seen: _Seen) -> bool:
        size = seen.size
        is_long = size.tokens > tokens or size.messages > messages
        return size.tokens > size.window * share or (size.window <= 256_000 and is_long)

    return test


def _is_wrapped_upstream_error(seen: _Seen) -> bool:
    """OpenRouter's key is fine; the provider behind it failed, so another credential cannot help."""
    is_openrouter = seen.error.provider.strip().lower() == "openrouter"
    has_upstream = "raw" in seen.metadata or "provider_name" in seen.metadata
    return seen.body_message == "provider returned error" and (is_openrouter or has_upstream)


def _is_transport_class(seen: _Seen) -> bool:
    return seen.error.is_os_error or seen.error.class_name in TRANSPORT_CLASSES


def _is_about_output_cap(seen: _Seen) -> bool:
    return is_output_cap_error(seen.text) or parse_available_output_tokens(seen.text) is not None


def _is_local_bug(seen: _Seen) -> bool:
    """We built the request wrongly. A ``TypeError`` about iterating ``None`` comes from SDKs that met an odd reply."""
    if seen.error.class_name not in ("ValueError", "TypeError"):
        return False
    return not ("nonetype" in seen.text and "not iterable" in seen.text)


_is_transient_usage_limit = _all(_says(*USAGE_LIMIT), _says(*USAGE_LIMIT_IS_TRANSIENT))
_is_overflow = _any(
    _says(*CONTEXT_OVERFLOW),
    _all(_says("max_tokens"), _says(*TOO_MUCH)),
    # Ours: some wordings of an output cap name ``max_completion_tokens`` and nothing of the overflow family.
    _is_about_output_cap,
)
_is_encrypted_content = _any(
    _code_is("invalid_encrypted_content"),
    _says("invalid_encrypted_content", "could not decrypt the provided encrypted_content"),
    _all(_says("encrypted content for item"), _says("could not be verified")),
)

_FIRST: tuple[_Rule, ...] = (
    (_says(*CONTENT_POLICY), _CONTENT_POLICY),
    (
        _all(
            _status_is(400),
            _says("thinking"),
            _says("signature", "cannot be modified", "must remain as they were"),
        ),
        _THINKING,
    ),
    (_all(_status_is(429), _says("extra usage"), _says("long context")), _LONG_CONTEXT_TIER),
    (_all(_status_is(400), _says("long context beta"), _says("not yet available")), _LONG_CONTEXT_BETA),
    (
        _all(
            _status_is(400),
            _any(
                _says("error parsing grammar", "json-schema-to-grammar"),
                _all(_says("unable to generate parser"), _says("template")),
            ),
        ),
        _GRAMMAR,
    ),
    (
        _any(
            _says("do not have an active grok subscription"),
            _all(_says("out of available resources"), _says("grok")),
        ),
        _AUTH_DENIED,
    ),
)

_STATUS_400: tuple[_Rule, ...] = (
    (_says(*MULTIMODAL_TOOL_CONTENT), _MULTIMODAL_TOOL),
    (_says(*IMAGE_TOO_LARGE), _IMAGE),
    (_is_encrypted_content, _ENCRYPTED),
    (_any(_says(*UNKNOWN_PARAMETER), _code_is("unknown_parameter", "unsupported_parameter")), _FORMAT),
    (_says(*EMPTY_PROVIDER_REPLY), _SERVER_ERROR),
    (_is_overflow, _OVERFLOW),
    (_says(*PROVIDER_POLICY), _PROVIDER_POLICY),
    (_says(*MODEL_NOT_FOUND), _MODEL_NOT_FOUND),
    (_says(*RATE_LIMIT), _RATE_LIMIT),
    (_says(*BILLING), _BILLING),
    (_all(lambda seen: len(seen.body_message) < 30, _is_bigger_than(0.4, 80_000, 80)), _OVERFLOW),
    (_always, _FORMAT),
)
_STATUS_403: tuple[_Rule, ...] = (
    (
        _any(_says(*SPENDING_LIMIT), _says(*BILLING), _code_is("personal-team-blocked:spending-limit")),
        _BILLING,
    ),
    (_always, _AUTH_DENIED),
)
_STATUS_404: tuple[_Rule, ...] = (
    (_says(*BILLING), _BILLING),
    (_says(*PROVIDER_POLICY), _PROVIDER_POLICY),
    (_says(*MODEL_NOT_FOUND), _MODEL_NOT_FOUND),
    # A bare 404 is as often a wrong path or a proxy in trouble as a missing model: do not blame the model.
    (_always, _UNKNOWN),
)
_STATUS_429: tuple[_Rule, ...] = (
    (_says(*OVERLOADED), _OVERLOADED),
    (_is_wrapped_upstream_error, _UPSTREAM_RATE_LIMIT),
    (_always, _RATE_LIMIT),
)
_STATUS_500: tuple[_Rule, ...] = (
    (
        _any(
            _says(*REQUEST_VALIDATION),
            _code_is("invalid_request_error", "unknown_parameter", "unsupported_parameter"),
        ),
        _FORMAT,
    ),
    (_says(*EMPTY_PROVIDER_REPLY), _SERVER_ERROR),
    (_is_overflow, _OVERFLOW),
    (_always, _SERVER_ERROR),
)
_STATUS_503: tuple[_Rule, ...] = (
    (_says(*EMPTY_PROVIDER_REPLY), _SERVER_ERROR),
    (_is_overflow, _OVERFLOW),
    (_always, _OVERLOADED),
)
_BY_STATUS: Mapping[int, tuple[_Rule, ...]] = {
    400: _STATUS_400,
    401: ((_always, _AUTH),),
    402: ((_is_transient_usage_limit, _RATE_LIMIT), (_always, _BILLING)),
    403: _STATUS_403,
    404: _STATUS_404,
    408: ((_always, _TIMEOUT),),
    413: ((_always, _PAYLOAD),),
    429: _STATUS_429,
    500: _STATUS_500,
    502: _STATUS_500,
    503: _STATUS_503,
    529: _STATUS_503,
}


_BY_CODE: tuple[_Rule, ...] = (
    (_code_is("resource_exhausted", "throttled", "rate_limit_exceeded"), _RATE_LIMIT),
    (
        _code_is(
            "insufficient_quota",
            "billing_not_active",
            "payment_required",
            "insufficient_credits",
            "no_usable_credits",
            "balance_depleted",
            "model_not_supported_on_free_tier",
            "personal-team-blocked:spending-limit",
        ),
        _BILLING,
    ),
    (_code_is("model_not_found", "model_not_available", "invalid_model"), _MODEL_NOT_FOUND),
    (_code_is("context_length_exceeded", "max_tokens_exceeded"), _OVERFLOW),
    (_code_is("invalid_encrypted_content"), _ENCRYPTED),
    # Ours: the types that Anthropic and OpenAI put on an error inside a stream, where there is no status to read
    # (docs.anthropic.com "Errors", platform.openai.com "Streaming events", both as of 2026).
    (_code_is("rate_limit_error"), _RATE_LIMIT),
    (_code_is("overloaded_error"), _OVERLOADED),
    (_code_is("api_error", "server_error", "internal_server_error"), _SERVER_ERROR),
    (_code_is("timeout_error"), _TIMEOUT),
    (_code_is("billing_error"), _BILLING),
    (_code_is("authentication_error"), _AUTH),
    (_code_is("permission_error"), _AUTH_DENIED),
    (_code_is("request_too_large"), _PAYLOAD),
)
_BY_MESSAGE: tuple[_Rule, ...] = (
    (_says(*PAYLOAD_TOO_LARGE), _PAYLOAD),
    (_says(*MULTIMODAL_TOOL_CONTENT), _MULTIMODAL_TOOL),
    (_says(*IMAGE_TOO_LARGE), _IMAGE),
    (_is_transient_usage_limit, _RATE_LIMIT),
    (_says(*USAGE_LIMIT), _BILLING),
    (_says(*OVERLOADED), _OVERLOADED),
    (_says(*BILLING), _BILLING),
    (_says(*RATE_LIMIT), _RATE_LIMIT),
    (_says(*EMPTY_PROVIDER_REPLY), _SERVER_ERROR),
    (_is_overflow, _OVERFLOW),
    (_says(*AUTH), _AUTH),
    (_says(*PROVIDER_POLICY), _PROVIDER_POLICY),
    (_says(*MODEL_NOT_FOUND), _MODEL_NOT_FOUND),
    (_says(*TIMED_OUT), _TIMEOUT),
)
_BY_TRANSPORT: tuple[_Rule, ...] = (
    (_transport_says(*CERTIFICATE), _CERTIFICATE),
    (_transport_says(*TLS_TRANSIENT), _TIMEOUT),
    (_all(_transport_says(*DISCONNECTED), lambda seen: is_reasoning_model(seen.error.model)), _TIMEOUT),
    (_all(_transport_says(*DISCONNECTED), _is_bigger_than(0.6, 120_000, 200)), _OVERFLOW),
    (_transport_says(*DISCONNECTED), _TIMEOUT),
    (_all(_says("consecutive stale attempts"), _says("aborting this call")), _STALE_TOO_OFTEN),
    (_all(_is_transport_class, _transport_says(*NEVER_CONNECTED)), _UNREACHABLE),
    (_is_transport_class, _TIMEOUT),
    (_is_local_bug, _LOCAL_BUG),
)
_WITHOUT_STATUS: tuple[_Rule, ...] = (*_BY_CODE, *_BY_MESSAGE, *_BY_TRANSPORT)


def _ladder_for(status: int | None) -> tuple[_Rule, ...]:
    if status is None:
        return _WITHOUT_STATUS
    return _BY_STATUS.get(status, ((_always, _FORMAT if status < 500 else _SERVER_ERROR),))


def _with_what_the_text_says(classification: Classification, text: str) -> Classification:
    available = parse_available_output_tokens(text)
    is_output_cap = available is not None or is_output_cap_error(text)
    return replace(
        classification,
        rejects_images=_is_client_side(classification.status) and _contains(text, IMAGE_REJECTED),
        should_compress=classification.should_compress and not is_output_cap,
        is_output_cap=is_output_cap,
        output_tokens_available=available,
        context_limit=parse_context_limit(text),
    )
