"""Translate exceptions of the SDK and the network into our ``ModelCallError``."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass

import httpx2

from hermes_worker.core.errors import FailureKind, ModelCallError, strip_error_numbers
from hermes_worker.core.rate_limits import parse_rate_limits
from hermes_worker.core.recovery.classify import Classification, RequestSize, build_raw_error, classify
from hermes_worker.core.recovery.error_patterns import NOTHING_SERVED
from hermes_worker.models.catalog import find_provider
from hermes_worker.models.wires.chat_reply import StreamedError
from hermes_worker.safety import redaction

MESSAGE_CHARS_MAX = 2_000
_OUR_KEY = "HERMES_API_KEY"


@dataclass(frozen=True, slots=True, kw_only=True)
class CallPlace:
    """The endpoint of a call: what an error message may name, and what it must not."""

    base_url: str
    provider: str = ""
    model: str = ""
    secrets: Sequence[str] = ()
    """Texts that never appear in a message, such as the API key."""


def translate_error(error: Exception, place: CallPlace, size: RequestSize | None = None) -> ModelCallError:
    """Translate a failure into a ``ModelCallError``.

    The SDKs need not be told apart: all that are used here carry the response, its status and its body under the same
    names, and keep errors of the network behind words of their own ("Request timed out.").
    """
    response = _find_response(error)
    if response is not None and 300 <= response.status_code < 400:
        return _redirect_error(response, place)
    telling = error.__cause__ if isinstance(error.__cause__, httpx2.HTTPError) else error
    row = find_provider(place.provider) if place.provider else None
    seen = build_raw_error(
        telling,
        provider=place.provider,
        model=place.model,
        overflow=row.overflow if row is not None else (),
        now_s=time.time(),
        document=_read_document(response),
    )
    verdict = classify(seen, size)
    status = getattr(error, "status_code", None)
    return ModelCallError(
        verdict.kind,
        redact(_format_message(error, verdict, place), place.secrets),
        status=status if isinstance(status, int) and status >= 400 else None,
        retry_after_s=verdict.retry_after_s,
        limits=parse_rate_limits(response.headers.raw) if response is not None else None,
        classification=verdict,
    )


def _read_document(response: httpx2.Response | None) -> object:
    """The whole body of an answer, where it is JSON and was read."""
    try:
        return json.loads(response.content) if response is not None else None
    except (httpx2.StreamError, ValueError, RecursionError):
        return None


def _find_response(error: Exception) -> httpx2.Response | None:
    response = getattr(error, "response", None)
    return response if isinstance(response, httpx2.Response) else None


def _format_message(error: Exception, verdict: Classification, place: CallPlace) -> str:
    said = verdict.message or "it gave no reason"
    response = _find_response(error)
    match verdict.kind:
        case FailureKind.UNREACHABLE:
            return (
                f"Could not connect to {place.base_url}: {_find_root_cause(error)}. Check that the server is running "
                f"and "
                "that HERMES_BASE_URL (model.base_url in config.yaml) is its address."
            )
        case FailureKind.SSL_CERT_VERIFICATION:
            return f"The certificate of {place.base_url} could not be verified: {_find_root_cause(error)}"
        case _ if response is not None:
            return f"HTTP {response.status_code} from {place.base_url}: {said}{_format_hint(response, verdict, place)}"
        case _ if isinstance(error, StreamedError):
            return f"{place.base_url} broke its reply off with an error: {said}{_format_hint(None, verdict, place)}"
        case _:
            return f"The call to {place.base_url} failed: {_find_root_cause(error)}"


def _format_hint(response: httpx2.Response | None, verdict: Classification, place: CallPlace) -> str:
    """The setting to look at, as a sentence, where one is to blame; else empty."""
    match verdict.kind:
        case FailureKind.UNKNOWN if response is not None and _is_wrong_address(response, verdict):
            asked = response.request.url.copy_with(query=None)
            return f" (nothing is served at {asked}: is HERMES_BASE_URL right? For most servers it ends in /v1)"
        case FailureKind.MODEL_NOT_FOUND:
            return f" (the model asked for was {place.model!r}: change HERMES_MODEL or the run's own model)"
        case FailureKind.AUTH | FailureKind.AUTH_PERMANENT:
            row = find_provider(place.provider) if place.provider else None
            usual = [name for name in row.key_variables[:1] if name != _OUR_KEY] if row else []
            return f" (check the key: {' or '.join([*usual, _OUR_KEY])})"
        case _:
            return ""


def _is_wrong_address(response: httpx2.Response, verdict: Classification) -> bool:
    """Whether nothing is served at the address, as far as the answer tells: an answer in JSON with other words comes
    from a server that is right.
    """
    says_nothing = _read_document(response) is None or NOTHING_SERVED.search(verdict.message.lower()) is not None
    return response.status_code == 404 and says_nothing


def _redirect_error(response: httpx2.Response, place: CallPlace) -> ModelCallError:
    """The error for a redirect: following it could carry the key to another host, so the user is told instead."""
    target = response.headers.get("location", "another address")
    message = f"{place.base_url} redirects to {target}: set HERMES_BASE_URL (model.base_url) to the address meant."
    return ModelCallError(FailureKind.CONFIGURATION, redact(message, place.secrets), status=response.status_code)


def _find_root_cause(error: BaseException) -> str:
    """The text nearest to the network: the SDK's own says "Connection error." and keeps the reason behind it."""
    current, text = error, str(error)
    for _ in range(6):
        if current.__cause__ is None:
            break
        current = current.__cause__
        text = str(current) or text
    return strip_error_numbers(text) or type(current).__name__


def redact(text: str, secrets: Sequence[str] = ()) -> str:
    """``text`` printable and shortened, without ``secrets`` and without anything that looks like a credential.

    A secret of less than eight characters is not looked for: it would be found in the middle of words.
    """
    text = redaction.mask_known(text, secrets, lambda secret: "[redacted]")
    text = "".join(char if char.isprintable() or char == "\n" else " " for char in text)
    text = redaction.redact(text)
    return text if len(text) <= MESSAGE_CHARS_MAX else text[:MESSAGE_CHARS_MAX] + "…"
