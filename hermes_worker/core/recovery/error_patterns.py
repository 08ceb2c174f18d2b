"""Patterns of providers' error messages: lower-case substrings, in families.

Data of ``core.recovery.classify``. The strings are the providers' own words as Hermes Agent 0.19.0 collected them;
what we added is marked "Ours". A family means nothing by itself: the ladders of ``classify`` decide under which status
it is looked for, and before which others.
"""

from __future__ import annotations

import re

CONTENT_POLICY = (
    "flagged for possible cybersecurity risk",
    "trusted access for cyber",
    "violates our usage policies",
    "violates openai's usage policies",
    "violates usage policies",
    "your request was flagged by",
    "prompt was flagged by our safety",
    "responses cannot be generated due to safety",
    "content_filter",
    "responsibleaipolicyviolation",
    "new_sensitive",
)
BILLING = (
    "insufficient credits",
    "insufficient_quota",
    "insufficient balance",
    "credit balance",
    "credits exhausted",
    "credits have been exhausted",
    "no usable credits",
    "top up your credits",
    "payment required",
    "billing hard limit",
    "exceeded your current quota",
    "account is deactivated",
    "plan does not include",
    "out of extra usage",
    "out of funds",
    "run out of funds",
    "balance_depleted",
    "model_not_supported_on_free_tier",
    "not available on the free tier",
)
SPENDING_LIMIT = ("key limit exceeded", "spending limit")
RATE_LIMIT = (
    "rate limit",
    "rate_limit",
    "too many requests",
    "throttled",
    "requests per minute",
    "tokens per minute",
    "requests per day",
    "try again in",
    "please retry after",
    "resource_exhausted",
    "rate increased too quickly",
    "throttlingexception",
    "too many concurrent requests",
    "servicequotaexceededexception",
)
OVERLOADED = (
    "overloaded",
    "temporarily overloaded",
    "service is temporarily overloaded",
    "service may be temporarily overloaded",
    "server is overloaded",
    "server overloaded",
    "service overloaded",
    "service is overloaded",
    "upstream overloaded",
    "currently overloaded",
    "at capacity",
    "over capacity",
)
USAGE_LIMIT = ("usage limit", "quota", "limit exceeded", "key limit exceeded")
USAGE_LIMIT_IS_TRANSIENT = (
    "try again",
    "retry",
    "resets at",
    "reset in",
    "wait",
    "requests remaining",
    "periodic",
    "window",
)
PAYLOAD_TOO_LARGE = ("request entity too large", "payload too large", "error code: 413")
IMAGE_TOO_LARGE = (
    "image exceeds",
    "image too large",
    "image_too_large",
    "image size exceeds",
    "image dimensions exceed",
    "dimensions exceed max allowed size",
    "max allowed size: 8000",
)
IMAGE_REJECTED = (
    "only 'text' content type is supported",
    "only text content type is supported",
    "image_url is not supported",
    "image content is not supported",
    "multimodal is not supported",
    "multimodal content is not supported",
    "multimodal input is not supported",
    "vision is not supported",
    "vision input is not supported",
    "does not support images",
    "does not support image input",
    "does not support multimodal",
    "does not support vision",
    "model does not support image",
    "image_url'. expected",
    "unknown variant `image_url`, expected `text`",
    "unknown variant image_url, expected text",
    "no endpoints found that support image input",
)
MULTIMODAL_TOOL_CONTENT = (
    "text is not set",
    "tool message content must be a string",
    "tool content must be a string",
    "tool message must be a string",
    "expected string, got list",
    "expected string, got array",
    "tool_call.content must be string",
)
CONTEXT_OVERFLOW = (
    "context length",
    "context size",
    "maximum context",
    "token limit",
    "too many tokens",
    "reduce the length",
    "exceeds the limit",
    "context window",
    "prompt is too long",
    "prompt exceeds max length",
    "maximum number of tokens",
    "exceeds the max_model_len",
    "max_model_len",
    "prompt length",
    "input is too long",
    "maximum model length",
    "context length exceeded",
    "truncating input",
    "slot context",
    "n_ctx_slot",
    "超过最大长度",
    "上下文长度",
    "tokens in request more than max tokens allowed",
    "max input token",
    "input token",
    "exceeds the maximum number of input tokens",
    # Ours; their sources stand beside the numbers in ``reported_limits``.
    "exceed context window",
    "exceeds n_ctx",
    "cannot truncate prompt",
    "context the overflows",
    "prompt too long",
    "range of input length",
    "`inputs` must have less than",
    "`inputs` tokens + `max_new_tokens`",
)
TOO_MUCH = (
    "large",
    "long",
    "exceed",
    "greater",
    "more than",
    "at most",
    "maximum",
    "limit",
    "less than",
    "must be",
    ">",
)
"""Ours: ``max_tokens`` speaks of size only beside one of these; in the original the bare word is an overflow, so that
``max_tokens: expected an integer`` had the history compressed."""
MODEL_NOT_FOUND = (
    "is not a valid model",
    "invalid model",
    "model not found",
    "model_not_found",
    "does not exist",
    "no such model",
    "unknown model",
    "unsupported model",
    "no endpoints found that support tool use",
)
UNKNOWN_PARAMETER = (
    "unknown parameter",
    "unsupported parameter",
    "unrecognized request argument",
    "unknown_parameter",
    "unsupported_parameter",
)
REQUEST_VALIDATION = (*UNKNOWN_PARAMETER, "invalid_request_error")
"""``invalid_request_error`` counts on a 5xx only: OpenAI puts it on genuine context overflows with status 400."""
PROVIDER_POLICY = (
    "no endpoints available matching your guardrail",
    "no endpoints available matching your data policy",
    "no endpoints found matching your data policy",
)
AUTH = (
    "invalid api key",
    "invalid_api_key",
    "authentication",
    "unauthorized",
    "forbidden",
    "invalid token",
    "token expired",
    "token revoked",
    "access denied",
)
BAD_KEY = (
    "api key not valid",
    "invalid api key",
    "incorrect api key",
    "api key expired",
    "invalid_api_key",
)
"""Ours: said under a 400 by Google and by gateways that hand its words on."""
NOTHING_SERVED = re.compile(
    r"^\W*(?:error|http)?\W*(?:404)?\W*"
    r"(?:(?:page|path|url|route|resource|endpoint)? ?not found|no such (?:route|path))?[\W\d]*$"
    r"|cannot (?:post|get) /|(?:unknown|invalid) (?:request )?url|no route (?:matches|found)|requested url"
)
"""Ours: a 404 of a server that knows no such address. Any other words of a 404 are a reason."""
THOUGHT_FIELDS = ("reasoning_content", "reasoning_details", "reasoning content", "'reasoning'", ".reasoning")
LACKS_THOUGHTS = ("passed back", "missing", "required", "must be provided", "must include", "must contain", "not found")
"""Ours: DeepSeek ("The reasoning_content in the thinking mode must be passed back to the API") and Kimi ("thinking is
enabled but reasoning_content is missing in assistant tool call message")."""
FIELD_REFUSED = (
    "unsupported",
    "not support",
    "not permitted",
    "not allowed",
    "unexpected",
    "unknown",
    "unrecognized",
    "extra",
    "additional propert",
)
EMPTY_PROVIDER_REPLY = (
    "returned an empty response",
    "empty response despite retries",
    "provider returned an empty response",
    "model returning empty responses",
    "empty response stream",
)
TIMED_OUT = (
    "timed out",
    "turn timed out",
    "request timed out",
    "deadline exceeded",
    "operation timed out",
    "upstream timed out",
)
DISCONNECTED = (
    "server disconnected",
    "peer closed connection",
    "connection reset by peer",
    "connection was closed",
    "network connection lost",
    "unexpected eof",
    "incomplete chunked read",
)
CERTIFICATE = (
    "certificate verify failed",
    "certificate_verify_failed",
    "unable to get local issuer certificate",
    "self-signed certificate",
    "self signed certificate",
    "certificate has expired",
    "hostname mismatch, certificate is not valid",
    "unable to verify the first certificate",
)
TLS_TRANSIENT = (
    "bad record mac",
    "ssl alert",
    "tls alert",
    "ssl handshake failure",
    "tlsv1 alert",
    "sslv3 alert",
    "bad_record_mac",
    "ssl_alert",
    "tls_alert",
    "tls_alert_internal_error",
    "[ssl:",
)
NEVER_CONNECTED = (
    "connection refused",
    "name or service not known",
    "nodename nor servname",
    "temporary failure in name resolution",
    "no address associated with hostname",
    "getaddrinfo failed",
    "no route to host",
    "network is unreachable",
    "all connection attempts failed",
    "connecterror:",
    "connecttimeout:",
    "connectionrefusederror:",
    "gaierror:",
)
"""Ours: the last four are class names as ``RawError.causes`` spells them."""

TRANSPORT_CLASSES = frozenset(
    {
        "APIConnectionError",
        "APITimeoutError",
        "BrokenPipeError",
        "CloseError",
        "ConnectError",
        "ConnectTimeout",
        "ConnectionAbortedError",
        "ConnectionError",
        "ConnectionRefusedError",
        "ConnectionResetError",
        "PoolTimeout",
        "ProxyError",
        "ReadError",
        "ReadTimeout",
        "RemoteProtocolError",
        "SSLEOFError",
        "SSLError",
        "SSLSyscallError",
        "SSLWantReadError",
        "SSLWantWriteError",
        "SSLZeroReturnError",
        "ServerDisconnectedError",
        "TimeoutError",
        "WriteError",
        "WriteTimeout",
        "gaierror",
    }
)

REASONING_FAMILIES = (
    "nemotron-3-ultra",
    "nemotron-3-super",
    "nemotron-3-nano",
    "deepseek-r1",
    "deepseek-reasoner",
    "deepseek-v4-flash",
    "deepseek-v4-pro",
    "qwq-32b",
    "qwen3",
    "o1",
    "o3",
    "o4-mini",
    "claude-opus-4",
    "claude-sonnet-5",
    "claude-sonnet-4.5",
    "claude-sonnet-4.6",
    "grok-4-fast-reasoning",
    "grok-4.20-reasoning",
    "grok-4.5",
    "grok-4-fast-non-reasoning",
)
"""Models that may think for minutes in silence: when their connection drops, a proxy lost patience; the context did
not overflow. A family matches the start of the name behind the vendor, up to the end or a separator."""

_REASONING_MODEL = re.compile(rf"(?:{'|'.join(map(re.escape, REASONING_FAMILIES))})(?:$|[-._])")


def is_reasoning_model(model: str) -> bool:
    """Whether the name, with or without a ``vendor/`` in front, belongs to one of ``REASONING_FAMILIES``."""
    return _REASONING_MODEL.match(model.strip().lower().rpartition("/")[2]) is not None
