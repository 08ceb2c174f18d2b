"""What both kinds of clients hand to a transport, and what they hear of a connection that failed."""

from __future__ import annotations

import json
from typing import Any

from hermes_worker.client.exchange import LostAnswer
from hermes_worker.core.errors import UnavailableError, format_reason
from hermes_worker.operation import ApiRequest


class ConnectionFailed(Exception):
    """A connection could not be made, or broke off; its message is that of the library's error."""

    def __init__(self, error: Exception, *, was_sent: bool) -> None:
        super().__init__(format_reason(error))
        self.was_sent = was_sent
        """Whether the server may have got the request. Not so over a connection that was never made."""


def build_arguments(request: ApiRequest[Any]) -> dict[str, Any]:
    """Build the arguments of ``ClientTransport.stream`` for a request."""
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


def judge_failure(failure: ConnectionFailed) -> LostAnswer:
    reason = str(failure)
    return LostAnswer(reason=reason, was_sent=failure.was_sent, may_pass="CERTIFICATE_VERIFY_FAILED" not in reason)


def build_broken_off(place: str, failure: ConnectionFailed) -> UnavailableError:
    """Build the error for an answer that is read line by line and breaks off."""
    if not failure.was_sent:
        return UnavailableError(f"{place} does not answer: {failure}")
    return UnavailableError(f"{place} broke off, and what came is not all there is ({failure}); ask again")
