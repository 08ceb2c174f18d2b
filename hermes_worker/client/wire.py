"""Translate between requests of both kinds of clients and httpx2."""

from __future__ import annotations

import json
from typing import Any

import httpx2

from hermes_worker.client.exchange import ApiRequest, LostAnswer
from hermes_worker.core.errors import UnavailableError, format_reason


def build_arguments(request: ApiRequest[Any]) -> dict[str, Any]:
    """Build the arguments of httpx2 for a request."""
    headers = dict(request.headers)
    content = None
    if request.body is not None:
        headers["Content-Type"] = "application/json"
        content = json.dumps(request.body).encode("utf-8")
    return {
        "method": request.method,
        "url": request.path,
        "params": request.query or None,
        "headers": headers,
        "content": content,
    }


def judge_error(error: httpx2.HTTPError) -> LostAnswer:
    """Judge a connection's error: over a connection that was never made nothing was sent."""
    was_sent = not isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout | httpx2.PoolTimeout)
    reason = format_reason(error)
    return LostAnswer(reason=reason, was_sent=was_sent, may_pass="CERTIFICATE_VERIFY_FAILED" not in reason)


def build_broken_off(place: str, error: httpx2.HTTPError) -> UnavailableError:
    """Build the error for an answer that is read line by line and breaks off."""
    if isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout):
        return UnavailableError(f"{place} does not answer: {format_reason(error)}")
    return UnavailableError(f"{place} broke off, and what came is not all there is ({format_reason(error)}); ask again")
