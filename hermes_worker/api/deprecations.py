"""Deprecated parts of the API: one table, which the document, the answers and the tests are made from.

An entry stays for at least two releases and half a year (docs/api.md). In that time its answers say since when it is
deprecated (RFC 9745), when it may be gone (RFC 8594), and where to read what to use instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from email.utils import format_datetime
from typing import Any
from urllib.parse import parse_qsl

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Receive, Scope, Send

from hermes_worker.api.middleware import change_headers
from hermes_worker.api.operations import is_path_of

NOTICE = timedelta(days=183)
"""The shortest time between the announcement of a deprecation and the removal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deprecated:
    """An operation that will be removed, or a parameter of one."""

    method: str
    """``GET``, ``POST``, ..."""
    path: str
    """The path as the document names it: ``/v1/runs/{run_id}``."""
    parameter: str | None = None
    """The name of a parameter of the query, if only that will be removed."""
    since: date
    until: date
    """The first day on which it may be removed."""
    link: str
    """A page that says what to use instead."""

    def __post_init__(self) -> None:
        if self.until - self.since < NOTICE:
            raise ValueError(f"{self.method} {self.path} must stay for {NOTICE.days} days at least, until it may go")

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers that its answers carry."""
        begins, ends = (datetime.combine(day, time(), UTC) for day in (self.since, self.until))
        return {
            "Deprecation": f"@{int(begins.timestamp())}",
            "Sunset": format_datetime(ends, usegmt=True),
            "Link": f'<{self.link}>; rel="deprecation"; type="text/html"',
        }

    def is_asked_for(self, method: str, path: str, query: str) -> bool:
        """Whether a request uses the deprecated operation or parameter."""
        if method != self.method or not is_path_of(self.path, path):
            return False
        return self.parameter is None or any(name == self.parameter for name, _ in parse_qsl(query, True))


DEPRECATED: Sequence[Deprecated] = ()
"""Empty: nothing is deprecated at present."""


def mark(document: Mapping[str, Any], table: Sequence[Deprecated]) -> None:
    """Mark in the API's document what is deprecated. Idempotent. Raises ``LookupError`` for an entry that matches
    nothing."""
    for entry in table:
        operation = document["paths"].get(entry.path, {}).get(entry.method.lower())
        if operation is None:
            raise LookupError(f"there is no operation {entry.method} {entry.path} to deprecate")
        if entry.parameter is None:
            operation["deprecated"] = True
            continue
        of_query = (one for one in operation.get("parameters", ()) if one["in"] == "query")
        parameter = next((one for one in of_query if one["name"] == entry.parameter), None)
        if parameter is None:
            raise LookupError(f"{entry.method} {entry.path} has no parameter {entry.parameter!r} to deprecate")
        parameter["deprecated"] = True


class Deprecations:
    """ASGI middleware that adds the headers of the deprecated parts that a request uses to its answer, refusals
    included."""

    def __init__(self, app: ASGIApp, table: Sequence[Deprecated]) -> None:
        self._app = app
        self._table = table

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        used = self._find_used(scope) if scope["type"] == "http" else []
        if not used:
            await self._app(scope, receive, send)
            return

        def add(headers: MutableHeaders) -> None:
            # Of several the one that goes first: its dates are the ones to act by.
            first = min(used, key=lambda entry: entry.until)
            for name, value in first.headers.items():
                headers.append(name, value)

        await self._app(scope, receive, change_headers(send, add))

    def _find_used(self, scope: Scope) -> list[Deprecated]:
        query = scope["query_string"].decode("latin-1")
        return [entry for entry in self._table if entry.is_asked_for(scope["method"], scope["path"], query)]
