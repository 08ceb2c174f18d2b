"""Failures as values that are stored, and the exceptions that are raised."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from hermes_worker.core.rate_limits import RateLimits


class FailureKind(StrEnum):
    """The kinds of failures of a model call, with the names and meanings of the original."""

    AUTH = "auth"
    AUTH_PERMANENT = "auth_permanent"
    BILLING = "billing"
    RATE_LIMIT = "rate_limit"
    UPSTREAM_RATE_LIMIT = "upstream_rate_limit"
    OVERLOADED = "overloaded"
    SERVER_ERROR = "server_error"
    TIMEOUT = "timeout"
    SSL_CERT_VERIFICATION = "ssl_cert_verification"
    CONTEXT_OVERFLOW = "context_overflow"
    PAYLOAD_TOO_LARGE = "payload_too_large"
    IMAGE_TOO_LARGE = "image_too_large"
    MODEL_NOT_FOUND = "model_not_found"
    PROVIDER_POLICY_BLOCKED = "provider_policy_blocked"
    CONTENT_POLICY_BLOCKED = "content_policy_blocked"
    FORMAT_ERROR = "format_error"
    INVALID_ENCRYPTED_CONTENT = "invalid_encrypted_content"
    MULTIMODAL_TOOL_CONTENT_UNSUPPORTED = "multimodal_tool_content_unsupported"
    THINKING_SIGNATURE = "thinking_signature"
    LONG_CONTEXT_TIER = "long_context_tier"
    OAUTH_LONG_CONTEXT_BETA_FORBIDDEN = "oauth_long_context_beta_forbidden"
    LLAMA_CPP_GRAMMAR_PATTERN = "llama_cpp_grammar_pattern"
    UNREACHABLE = "unreachable"
    """Ours: the connection was never established (DNS, refused). Kept apart from ``timeout`` so that the
    message can name the setting to change."""
    INTERRUPTED = "interrupted"
    """Ours: the call was aborted because the run was stopped or the claim was lost."""
    CONFIGURATION = "configuration"
    """Ours: a key, model or provider is missing or unknown; nothing was sent."""
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A failure as it is stored: ``kind`` for machines, ``message`` for people, ``detail`` for support. Messages never
    contain secrets; the code that builds one redacts it first."""

    kind: str
    message: str
    detail: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Classification:
    """The meaning of a failure, and the remedies it admits. ``retry.decide_remedy`` chooses among them."""

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
    """The provider's message, shortened; it may contain anything a server chose to send."""
    retry_after_s: float | None = None
    rejects_images: bool = False
    """The model accepts no images at all, so removing them is the remedy whatever the kind."""
    lacks_thoughts: bool = False
    """The model requires its earlier reasoning, which the request left out."""
    is_output_cap: bool = False
    """The request asked for too many *output* tokens; compressing the input cannot help."""
    output_tokens_available: int | None = None
    """How many output tokens would have fitted; ``None`` when the provider did not say."""
    context_limit: int | None = None
    """The context window in tokens; ``None`` when the provider did not say."""


class HermesError(Exception):
    """Base of every error this package raises on purpose."""


class ConfigurationError(HermesError):
    """A setting is missing or wrong; the message names the setting and what to write instead."""


class UnavailableError(HermesError):
    """A server that we need (database, broker) did not answer; the caller may try again later."""


class LeaseLost(HermesError):
    """The claim this worker acted under is no longer its own; nothing was written."""


class InvalidTransition(HermesError):
    """An event arrived that the state machine does not allow in this state; nothing was changed."""


class ModelCallError(HermesError):
    """A model call failed. Adapters translate the exceptions of their SDK into this, at their edge."""

    def __init__(
        self,
        kind: FailureKind,
        message: str,
        *,
        status: int | None = None,
        retry_after_s: float | None = None,
        limits: RateLimits | None = None,
        classification: Classification | None = None,
        may_be_billed: bool = False,
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.status = status
        """HTTP status, ``None`` when there was no response."""
        self.retry_after_s = retry_after_s
        """How long the server asked to wait, in seconds; ``None`` if it did not say."""
        self.limits = limits
        """What the response said about the credential's rate limits."""
        self.classification = classification
        """A classification by code that knows more about the failure than its kind and message, for instance a
        provider; the message and the wait inside it are not read. ``None``: classify by the kind."""
        self.may_be_billed = may_be_billed
        """The request was sent and its outcome is unknown: the provider may bill it."""


_NUMBERS = re.compile(r"\[Errno -?\d+\] ?|\bError -?\d+ (?=connecting|while)")
"""How Python and redis-py write the number of an error before its words."""


def strip_error_numbers(text: str) -> str:
    """Remove the numbers that the operating system gives its errors from ``text``: their words say the same."""
    return _NUMBERS.sub("", text)


def format_reason(error: BaseException) -> str:
    """The message of an error, for people."""
    return strip_error_numbers(str(error)) or type(error).__name__
