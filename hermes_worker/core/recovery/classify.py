"""Classify failed model calls: from the facts of an error to a ``Classification``.

Everything here is a table. Patterns are lower-case substrings of what providers really send
(``error_patterns.toml``); a *rule* is a test and the outcome it leads to; a *ladder* is a list of rules of which the
first that holds wins. The order inside a ladder is the meaning: ``Unsupported parameter: max_tokens`` is a malformed
request although it contains ``max_tokens``, which elsewhere speaks of the context window. Families, order and flags are
those of Hermes Agent 0.19.0; what differs is marked "Ours".

Wires build a ``RawError`` from whatever their SDK raised (``build_raw_error`` reads the usual attributes) and raise a
``ModelCallError`` with the kind found here; ``classify_translated`` gets the flags back on the other side.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from email.utils import parsedate_to_datetime
from typing import Any

from hermes_worker.core.errors import Classification, FailureKind, ModelCallError
from hermes_worker.core.json_values import parse_object, read_list, read_mapping, read_text
from hermes_worker.core.recovery.error_patterns import FAMILIES, is_reasoning_model
from hermes_worker.core.recovery.error_words import clean_error_text, find_body, find_words
from hermes_worker.core.recovery.reported_limits import (
    is_output_cap_error,
    parse_available_output_tokens,
    parse_context_limit,
    require_plausible_window,
)

__all__ = [
    "OUTCOMES",
    "Classification",
    "RawError",
    "RequestSize",
    "build_raw_error",
    "classify",
    "classify_translated",
    "is_output_cap_error",
    "is_reasoning_model",
    "parse_available_output_tokens",
    "parse_context_limit",
    "parse_retry_after",
    "parse_wait",
]

RETRY_AFTER_MAX_S = 600.0
"""Longest wait we let a server ask of us: Anthropic's slowest input-token bucket refills in 171 s."""

MESSAGE_CHARS_MAX = 500
"""The most characters of a provider's text in a classification."""


# ---------------------------------------------------------------------------------------------- what goes in and out


@dataclass(frozen=True, slots=True, kw_only=True)
class RawError:
    """The facts of a failure, before it is classified."""

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
    overflow: tuple[str, ...] = ()
    """How this provider says that a request is too long, in lower case, beside the usual wordings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestSize:
    """The size of the request that failed: a bare refusal of a large one usually means "too big"."""

    tokens: int = 0
    """Estimated tokens of messages and tools."""
    window: int = 200_000
    """The model's context window, in tokens."""
    messages: int = 0


def classify(error: RawError, size: RequestSize | None = None) -> Classification:
    """Classify a failure. Total and pure; an unknown error is ``unknown`` and may be retried."""
    seen = _prepare(error, size or RequestSize())
    told = replace(
        _classify_prepared(seen), status=error.status, message=seen.shown_message, retry_after_s=error.retry_after_s
    )
    found = _refine_by_text(told, seen.text)
    return found if seen.window_told is None else replace(found, context_limit=seen.window_told)


def _classify_prepared(seen: _PreparedError) -> Classification:
    """Apply the rules. A code with one meaning goes before every text and status; the rest is judged by its status, or
    by code and text."""
    return (
        _find_by_code(_TELLING_CODES, seen)
        or _apply_ladder(_FIRST, seen)
        or (_find_by_code(_CODES, seen) if seen.status is None else None)
        or _apply_ladder(_choose_ladder(seen.status), seen)
        or _UNKNOWN
    )


def classify_translated(error: ModelCallError) -> Classification:
    """The classification of an error that a wire has already translated: the one that the wire found, or else the usual
    flags of the kind, refined by the status and by the numbers in the message."""
    if error.classification is not None:
        return replace(error.classification, **_read_error(error))
    outcome = _USUAL[error.kind]
    if error.kind is FailureKind.AUTH and error.status == 403:
        outcome = _AUTH_DENIED
    return _refine_by_text(replace(outcome, **_read_error(error)), error.message.lower())


def _read_error(error: ModelCallError) -> dict[str, Any]:
    """The fields of a classification that are read from the error itself: its message is redacted already."""
    return {
        "status": error.status,
        "message": error.message[:MESSAGE_CHARS_MAX],
        "retry_after_s": error.retry_after_s,
    }


def build_raw_error(
    error: BaseException,
    *,
    provider: str = "",
    model: str = "",
    overflow: tuple[str, ...] = (),
    now_s: float,
    document: object = None,
) -> RawError:
    """The facts of an SDK's exception, read from the attributes that HTTP client libraries agree on (``status_code``
    or ``status``, ``body``, ``response.headers``), along at most five links of its chain of causes.

    ``now_s`` is the Unix time, for a ``Retry-After`` that names a date. ``document`` is the whole body, where it could
    be read: SDKs keep a part of it only.
    """
    chain = list(_iterate_causes(error))
    waits = (parse_wait(headers, now_s=now_s) for headers in map(_read_headers, chain))
    return RawError(
        message=str(error),
        status=next((s for s in map(_read_status, chain) if s is not None), None),
        body=find_body(document)
        or next((b for e in chain if (b := find_body(getattr(e, "body", None))) is not None), None),
        class_name=type(error).__name__,
        causes=tuple(f"{type(cause).__name__}: {cause}" for cause in chain[1:]),
        is_os_error=isinstance(error, OSError),
        retry_after_s=next((wait_s for wait_s in waits if wait_s is not None), None),
        provider=provider,
        model=model,
        overflow=overflow,
    )


def parse_wait(headers: Mapping[str, str], *, now_s: float) -> float | None:
    """Parse how long response headers ask to wait, in seconds, at most ``RETRY_AFTER_MAX_S``; ``None`` when they do
    not. ``retry-after-ms`` (Azure, OpenAI; read by their SDKs, openai-python 2, ``_base_client.py``, July 2026) is more
    exact and goes first."""
    exact = headers.get("retry-after-ms")
    wait_ms = _parse_number(exact.strip()) if isinstance(exact, str) else None
    if wait_ms is not None and not math.isnan(wait_ms):
        return min(max(wait_ms / 1000, 0.0), RETRY_AFTER_MAX_S)
    usual = headers.get("retry-after") or headers.get("Retry-After")
    return parse_retry_after(usual if isinstance(usual, str) else None, now_s=now_s)


def parse_retry_after(value: str | None, *, now_s: float) -> float | None:
    """A ``Retry-After`` header in seconds, at most ``RETRY_AFTER_MAX_S``: a number of seconds or an HTTP date (RFC
    9110 §10.2.3; the original ignores dates). A moment in the past gives 0. ``None`` when absent or unreadable."""
    if value is None:
        return None
    seconds = _parse_seconds(value.strip(), now_s)
    if seconds is None or math.isnan(seconds):
        return None
    return min(max(seconds, 0.0), RETRY_AFTER_MAX_S)


def _parse_seconds(value: str, now_s: float) -> float | None:
    number = _parse_number(value)
    if number is not None:
        return number
    try:
        return parsedate_to_datetime(value).timestamp() - now_s
    except (ValueError, OverflowError):
        return None


def _parse_number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
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
_THOUGHTS_MISSING = replace(_THINKING, lacks_thoughts=True)
_LONG_CONTEXT_BETA = Classification(kind=FailureKind.OAUTH_LONG_CONTEXT_BETA_FORBIDDEN)
_GRAMMAR = Classification(kind=FailureKind.LLAMA_CPP_GRAMMAR_PATTERN)
_UNKNOWN = Classification(kind=FailureKind.UNKNOWN)
_LOCAL_BUG = replace(_MODEL_NOT_FOUND, kind=FailureKind.UNKNOWN)
_WRONG_ADDRESS = replace(_MODEL_NOT_FOUND, kind=FailureKind.UNKNOWN)
"""Nothing is served there. Ours: the original tries a bare 404 again, which only hides that an address is wrong."""

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
class _PreparedError:
    """A ``RawError`` prepared for the rules: lower case, nested texts joined, codes found."""

    error: RawError
    size: RequestSize
    status: int | None
    text: str
    body_message: str
    codes: tuple[str, ...]
    """The names that the body gives to the failure, in lower case, the most particular first."""
    window_told: int | None
    """The context window, where the body states it in a field of its own."""
    metadata: Mapping[str, object]
    transport_text: str
    shown_message: str = field(repr=False, default="")


def _prepare(error: RawError, size: RequestSize) -> _PreparedError:
    detail = _find_error_object(error.body)
    codes = _list_codes(error.body, detail)
    words = find_words(error.body) or clean_error_text(error.message)
    body_message = (
        read_text(detail.get("message"))
        or read_text(detail.get("error"))
        or read_text((error.body or {}).get("message"))
        or find_words(error.body)
    )
    text = _join_distinct(error.message.lower(), body_message.lower(), words.lower())
    return _PreparedError(
        error=error,
        size=size,
        status=_find_decisive_status(error, codes),
        text=text,
        body_message=body_message.strip().lower(),
        codes=codes,
        window_told=require_plausible_window(detail.get("n_ctx")),
        metadata=read_mapping(detail.get("metadata")),
        transport_text=_join_distinct(
            text, f"{error.class_name}: ".lower(), *(cause.lower() for cause in error.causes)
        ),
        shown_message=words[:MESSAGE_CHARS_MAX],
    )


def _find_decisive_status(error: RawError, codes: tuple[str, ...]) -> int | None:
    """Ours: an SSE error event arrives under status 200 (anthropic SDK 2.12), which says nothing. Its code may say
    which status it would have been; the most particular code that is known decides."""
    if error.status is None and error.class_name == "RateLimitError":
        return 429
    if error.status is not None and 400 <= error.status < 600:
        return error.status
    known = next((code for code in codes if code in _CODES or code in _STATUS_OF_CODE), "")
    return _STATUS_OF_CODE.get(known)


def _find_error_object(body: Mapping[str, object] | None) -> Mapping[str, object]:
    """The ``error`` object of a body. The openai SDK hands out that object itself, the anthropic SDK the whole body."""
    if body is None:
        return {}
    nested = body.get("error")
    return find_body(nested if isinstance(nested, Mapping | list) else body.get("errors")) or body


def _list_codes(body: Mapping[str, object] | None, detail: Mapping[str, object]) -> tuple[str, ...]:
    inner = detail.get("innererror")
    candidates = (
        detail.get("code"),
        inner.get("code") if isinstance(inner, Mapping) else None,  # Azure
        detail.get("type"),
        detail.get("status"),  # Google
        *_list_nested_codes(_read_object(detail.get("message"))),
        *_list_nested_codes(_read_object(read_mapping(detail.get("metadata")).get("raw"))),
        *(read_mapping(each).get("reason") for each in read_list(detail.get("details"))),  # Google
        (body or {}).get("code"),
        (body or {}).get("error_code"),
    )
    return tuple(dict.fromkeys(code for code in map(_read_code, candidates) if code))


def _list_nested_codes(payload: Mapping[str, object]) -> Iterator[object]:
    """Yield the codes of an error body in JSON that a gateway put as text into another error's message."""
    detail = _find_error_object(payload)
    yield from (detail.get("code"), detail.get("type"), payload.get("code"), payload.get("error_code"))


def _read_code(value: object) -> str:
    """A usable code: numbers repeat the status and say nothing new, nor does an ``error`` that only names its kind."""
    text = value.strip().lower() if isinstance(value, str) else ""
    return "" if text.isdigit() or text == "error" else text


def _read_object(value: object) -> Mapping[str, object]:
    if not isinstance(value, str) or not value.lstrip().startswith("{"):
        return {}
    return parse_object(value)


def _join_distinct(first: str, *others: str) -> str:
    joined = first
    for other in others:
        if other not in joined:
            joined = f"{joined} {other}"
    return joined


def _iterate_causes(error: BaseException, depth: int = 5) -> Iterator[BaseException]:
    current: BaseException | None = error
    for _ in range(depth):
        if current is None:
            return
        yield current
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)


def _read_status(error: BaseException) -> int | None:
    for name in ("status_code", "status"):
        value = getattr(error, name, None)
        if isinstance(value, int) and 100 <= value < 600:
            return value
    return None


def _read_headers(error: BaseException) -> Mapping[str, str]:
    headers = getattr(getattr(error, "response", None), "headers", None)
    return headers if isinstance(headers, Mapping) else {}


# ------------------------------------------------------------------------------------------------------------- rules

_Test = Callable[[_PreparedError], bool]
_Rule = tuple[_Test, Classification]


def _apply_ladder(ladder: tuple[_Rule, ...], seen: _PreparedError) -> Classification | None:
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
    return lambda seen: any(code in seen.codes for code in codes)


def _find_by_code(table: Mapping[str, Classification], seen: _PreparedError) -> Classification | None:
    return next((table[code] for code in seen.codes if code in table), None)


def _status_is(*statuses: int) -> _Test:
    return lambda seen: seen.status in statuses


def _all(*tests: _Test) -> _Test:
    return lambda seen: all(test(seen) for test in tests)


def _any(*tests: _Test) -> _Test:
    return lambda seen: any(test(seen) for test in tests)


def _always(seen: _PreparedError) -> bool:
    return True


def _is_bigger_than(share: float, tokens: int, messages: int) -> _Test:
    """The request fills more than ``share`` of the window. The absolute numbers stand in for it on windows up to
    256,000 tokens; on larger ones long histories are normal."""

    def test(seen: _PreparedError) -> bool:
        size = seen.size
        is_long = size.tokens > tokens or size.messages > messages
        return size.tokens > size.window * share or (size.window <= 256_000 and is_long)

    return test


def _is_wrapped_upstream_error(seen: _PreparedError) -> bool:
    """OpenRouter's key is fine; the provider behind it failed, so another credential cannot help."""
    is_openrouter = seen.error.provider.strip().lower() == "openrouter"
    has_upstream = "raw" in seen.metadata or "provider_name" in seen.metadata
    return seen.body_message == "provider returned error" and (is_openrouter or has_upstream)


def _is_transport_class(seen: _PreparedError) -> bool:
    return seen.error.is_os_error or seen.error.class_name in FAMILIES["transport_classes"]


def _is_about_output_cap(seen: _PreparedError) -> bool:
    return is_output_cap_error(seen.text) or parse_available_output_tokens(seen.text) is not None


def _is_local_bug(seen: _PreparedError) -> bool:
    """We built the request wrongly. A ``TypeError`` about iterating ``None`` comes from SDKs that met an odd reply."""
    if seen.error.class_name not in ("ValueError", "TypeError"):
        return False
    return not ("nonetype" in seen.text and "not iterable" in seen.text)


def _is_missing_model(seen: _PreparedError) -> bool:
    """Ours: Ollama says ``model "x" not found``, Anthropic ``model: x`` under the code ``not_found_error``."""
    is_told = "not_found_error" in seen.codes and seen.body_message.startswith("model:")
    return is_told or _MISSING_MODEL.search(seen.text) is not None


_MISSING_MODEL = re.compile(r"model:? ['\"`]?[^\s'\"`]{1,200}['\"`]? (?:was )?not found")

_is_transient_usage_limit = _all(_says(*FAMILIES["usage_limit"]), _says(*FAMILIES["usage_limit_is_transient"]))
_is_overflow = _any(
    _says(*FAMILIES["context_overflow"]),
    lambda seen: any(words in seen.text for words in seen.error.overflow),
    _all(_says("max_tokens"), _says(*FAMILIES["too_much"])),
    # Ours: some wordings of an output cap name ``max_completion_tokens`` and nothing of the overflow family.
    _is_about_output_cap,
)
_is_encrypted_content = _any(
    _says("invalid_encrypted_content", "could not decrypt the provided encrypted_content"),
    _all(_says("encrypted content for item"), _says("could not be verified")),
)

_FIRST: tuple[_Rule, ...] = (
    (_says(*FAMILIES["content_policy"]), _CONTENT_POLICY),
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
    (_all(_status_is(400, 422), _says("reasoning_content"), _says(*FAMILIES["lacks_thoughts"])), _THOUGHTS_MISSING),
    (_all(_status_is(400, 422), _says(*FAMILIES["thought_fields"]), _says(*FAMILIES["field_refused"])), _THINKING),
    (_says("tool call validation failed", "failed to call a function", "tool_use_failed"), _SERVER_ERROR),
    (
        _any(
            _says("do not have an active grok subscription"),
            _all(_says("out of available resources"), _says("grok")),
        ),
        _AUTH_DENIED,
    ),
)

_BAD_REQUEST: tuple[_Rule, ...] = (
    (_says(*FAMILIES["multimodal_tool_content"]), _MULTIMODAL_TOOL),
    (_says(*FAMILIES["image_too_large"]), _IMAGE),
    (_is_encrypted_content, _ENCRYPTED),
    (_any(_says(*FAMILIES["bad_key"]), _code_is("api_key_invalid")), _AUTH),
    (_any(_says(*FAMILIES["unknown_parameter"]), _code_is("unknown_parameter", "unsupported_parameter")), _FORMAT),
    (_says(*FAMILIES["empty_provider_reply"]), _SERVER_ERROR),
    (_is_overflow, _OVERFLOW),
    (_says(*FAMILIES["provider_policy"]), _PROVIDER_POLICY),
    (_says(*FAMILIES["model_not_found"]), _MODEL_NOT_FOUND),
    (_says(*FAMILIES["rate_limit"]), _RATE_LIMIT),
    (_says(*FAMILIES["billing"]), _BILLING),
)
_STATUS_400: tuple[_Rule, ...] = (
    *_BAD_REQUEST,
    (_all(lambda seen: len(seen.body_message) < 30, _is_bigger_than(0.4, 80_000, 80)), _OVERFLOW),
    (_always, _FORMAT),
)
_STATUS_422: tuple[_Rule, ...] = (*_BAD_REQUEST, (_always, _FORMAT))
"""Ours: TGI and servers made with FastAPI say with it what others say with 400."""
_STATUS_403: tuple[_Rule, ...] = (
    (
        _any(
            _says(*FAMILIES["spending_limit"]),
            _says(*FAMILIES["billing"]),
            _code_is("personal-team-blocked:spending-limit"),
        ),
        _BILLING,
    ),
    (_always, _AUTH_DENIED),
)
_STATUS_404: tuple[_Rule, ...] = (
    (_says(*FAMILIES["billing"]), _BILLING),
    (_says(*FAMILIES["provider_policy"]), _PROVIDER_POLICY),
    (_any(_says(*FAMILIES["model_not_found"]), _is_missing_model), _MODEL_NOT_FOUND),
    # A bare 404 is as often a wrong path as a missing model: do not blame the model.
    (_always, _WRONG_ADDRESS),
)
_STATUS_429: tuple[_Rule, ...] = (
    (_says(*FAMILIES["overloaded"]), _OVERLOADED),
    (_is_wrapped_upstream_error, _UPSTREAM_RATE_LIMIT),
    (_always, _RATE_LIMIT),
)
_STATUS_500: tuple[_Rule, ...] = (
    (
        _any(
            # OpenAI puts the code on genuine context overflows with status 400 too.
            _says(*FAMILIES["unknown_parameter"], "invalid_request_error"),
            _code_is("invalid_request_error", "unknown_parameter", "unsupported_parameter"),
        ),
        _FORMAT,
    ),
    (_says(*FAMILIES["empty_provider_reply"]), _SERVER_ERROR),
    (_is_overflow, _OVERFLOW),
    (_always, _SERVER_ERROR),
)
_STATUS_503: tuple[_Rule, ...] = (
    (_says(*FAMILIES["empty_provider_reply"]), _SERVER_ERROR),
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
    # Ours: a conflict (of locks, of a model that is being loaded) and "too early" pass; the official SDKs retry a 409.
    409: ((_always, _SERVER_ERROR),),
    413: ((_always, _PAYLOAD),),
    422: _STATUS_422,
    425: ((_always, _SERVER_ERROR),),
    429: _STATUS_429,
    500: _STATUS_500,
    502: _STATUS_500,
    503: _STATUS_503,
    529: _STATUS_503,
}


def _map_codes(outcome: Classification, *codes: str) -> dict[str, Classification]:
    return dict.fromkeys(codes, outcome)


_TELLING_CODES: Mapping[str, Classification] = {
    # Ours. Azure: "content_filter" with "ResponsibleAIPolicyViolation" inside, under a text that names neither
    # (learn.microsoft.com, "Content filtering", 2026). OpenAI: ``ResponseError.code`` of openai-python, July 2026.
    **_map_codes(
        _CONTENT_POLICY,
        "content_filter",
        "responsibleaipolicyviolation",
        "content_policy_violation",
        "image_content_policy_violation",
        "bio_policy",
        "misalignment_policy_violation",
    ),
    # The last is llama-server's (ggml-org/llama.cpp#15780, September 2025).
    **_map_codes(_OVERFLOW, "context_length_exceeded", "max_tokens_exceeded", "exceed_context_size_error"),
    **_map_codes(
        _BILLING,
        "insufficient_quota",
        "billing_not_active",
        "payment_required",
        "insufficient_credits",
        "no_usable_credits",
        "balance_depleted",
        "model_not_supported_on_free_tier",
        "personal-team-blocked:spending-limit",
        "billing_error",
    ),
    **_map_codes(_MODEL_NOT_FOUND, "model_not_found", "model_not_available", "invalid_model", "deploymentnotfound"),
    **_map_codes(_IMAGE, "image_too_large", "image_file_too_large"),
    **_map_codes(_ENCRYPTED, "invalid_encrypted_content"),
    **_map_codes(_AUTH, "invalid_api_key"),
    # Bedrock throttles with "Too many tokens, please wait before trying again." (strands-agents/agent-builder#31),
    # and says with 424 that the model broke (service model of botocore 1.44).
    **_map_codes(_RATE_LIMIT, "throttlingexception"),
    **_map_codes(_SERVER_ERROR, "modelerrorexception", "modelstreamerrorexception"),
    # Groq: the model wrote a call that does not fit its tool; the next try may (console.groq.com/docs/errors, 2026).
    **_map_codes(_SERVER_ERROR, "tool_use_failed"),
}
"""Codes that mean one thing under any status. A 429 with ``insufficient_quota`` is no matter of waiting."""

_CODES: Mapping[str, Classification] = {
    **_map_codes(_RATE_LIMIT, "resource_exhausted", "throttled", "rate_limit_exceeded", "rate_limit", "rate_limited"),
    **_map_codes(_RATE_LIMIT, "too_many_requests", "rate_limit_reached_error"),
    # Ours: the types that Anthropic and OpenAI put on an error inside a stream, where there is no status to read
    # (docs.anthropic.com "Errors", platform.openai.com "Streaming events", both as of 2026).
    **_map_codes(_RATE_LIMIT, "rate_limit_error"),
    **_map_codes(_OVERLOADED, "overloaded_error", "overloaded", "server_overloaded", "engine_overloaded"),
    **_map_codes(_OVERLOADED, "engine_overloaded_error", "service_unavailable", "service_unavailable_error"),
    **_map_codes(_SERVER_ERROR, "api_error", "server_error", "internal_server_error"),
    **_map_codes(_TIMEOUT, "timeout_error"),
    **_map_codes(_AUTH, "authentication_error"),
    **_map_codes(_AUTH_DENIED, "permission_error"),
    **_map_codes(_PAYLOAD, "request_too_large"),
    # Bedrock (service model of botocore 1.44) and Google (google.rpc.Code), November 2026.
    **_map_codes(_OVERLOADED, "serviceunavailableexception", "modelnotreadyexception", "unavailable"),
    **_map_codes(_SERVER_ERROR, "internalserverexception", "internal"),
    **_map_codes(_TIMEOUT, "modeltimeoutexception", "deadline_exceeded"),
    **_map_codes(_AUTH, "unauthenticated"),
    **_map_codes(_AUTH_DENIED, "accessdeniedexception", "permission_denied"),
}
"""Codes that are looked at when there is no status."""

_STATUS_OF_CODE: Mapping[str, int] = {
    "invalid_request_error": 400,
    "invalid_request": 400,
    "badrequesterror": 400,
    "bad_request": 400,
    "invalid_argument": 400,
    "invalid_parameter_error": 400,
    # OpenAI's Responses (``ResponseError.code`` of openai-python, July 2026).
    "invalid_prompt": 400,
    "invalid_image": 400,
    "invalid_image_format": 400,
    "invalid_base64_image": 400,
    "invalid_image_url": 400,
    "invalid_image_mode": 400,
    "image_too_small": 400,
    "image_parse_error": 400,
    "unsupported_image_media_type": 400,
    "empty_image_file": 400,
    "not_found_error": 404,
    "validationexception": 400,
    "resourcenotfoundexception": 404,
}
"""Ours: what the error inside a stream would have been as a response. A malformed request stays one."""

_BY_MESSAGE: tuple[_Rule, ...] = (
    (_says(*FAMILIES["payload_too_large"]), _PAYLOAD),
    (_says(*FAMILIES["multimodal_tool_content"]), _MULTIMODAL_TOOL),
    (_says(*FAMILIES["image_too_large"]), _IMAGE),
    (_is_transient_usage_limit, _RATE_LIMIT),
    (_says(*FAMILIES["usage_limit"]), _BILLING),
    (_says(*FAMILIES["overloaded"]), _OVERLOADED),
    (_says(*FAMILIES["billing"]), _BILLING),
    (_says(*FAMILIES["rate_limit"]), _RATE_LIMIT),
    (_says(*FAMILIES["empty_provider_reply"]), _SERVER_ERROR),
    (_is_overflow, _OVERFLOW),
    (_says(*FAMILIES["auth"]), _AUTH),
    (_says(*FAMILIES["provider_policy"]), _PROVIDER_POLICY),
    (_says(*FAMILIES["model_not_found"]), _MODEL_NOT_FOUND),
    (_says(*FAMILIES["timed_out"]), _TIMEOUT),
)
_BY_TRANSPORT: tuple[_Rule, ...] = (
    (_transport_says(*FAMILIES["certificate"]), _CERTIFICATE),
    (_transport_says(*FAMILIES["tls_transient"]), _TIMEOUT),
    (_all(_transport_says(*FAMILIES["disconnected"]), lambda seen: is_reasoning_model(seen.error.model)), _TIMEOUT),
    (_all(_transport_says(*FAMILIES["disconnected"]), _is_bigger_than(0.6, 120_000, 200)), _OVERFLOW),
    (_transport_says(*FAMILIES["disconnected"]), _TIMEOUT),
    (_all(_says("consecutive stale attempts"), _says("aborting this call")), _STALE_TOO_OFTEN),
    (_all(_is_transport_class, _transport_says(*FAMILIES["never_connected"])), _UNREACHABLE),
    (_is_transport_class, _TIMEOUT),
    (_is_local_bug, _LOCAL_BUG),
)
_WITHOUT_STATUS: tuple[_Rule, ...] = (*_BY_MESSAGE, *_BY_TRANSPORT)

OUTCOMES: frozenset[Classification] = frozenset(
    {
        *(outcome for ladder in (_FIRST, _WITHOUT_STATUS, *_BY_STATUS.values()) for _, outcome in ladder),
        *_TELLING_CODES.values(),
        *_CODES.values(),
        _UNKNOWN,
    }
)
"""Every classification there is, before the details of an error are filled in."""


def _choose_ladder(status: int | None) -> tuple[_Rule, ...]:
    if status is None:
        return _WITHOUT_STATUS
    return _BY_STATUS.get(status, ((_always, _FORMAT if status < 500 else _SERVER_ERROR),))


def _refine_by_text(classification: Classification, text: str) -> Classification:
    available = parse_available_output_tokens(text)
    is_output_cap = available is not None or is_output_cap_error(text)
    return replace(
        classification,
        rejects_images=_is_client_side(classification.status) and _contains(text, FAMILIES["image_rejected"]),
        should_compress=classification.should_compress and not is_output_cap,
        is_output_cap=is_output_cap,
        output_tokens_available=available,
        context_limit=parse_context_limit(text),
    )
