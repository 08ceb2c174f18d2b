"""Requests that differ in nothing but their bodies, built by the SDK once.

What an SDK does before the first byte leaves, merging headers, query and URL, gives the same result for every call to
one endpoint, and was half of the CPU of sending one; what it does after that, for retries, redirects and cookies that
we do not have, was a quarter of the rest.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable

import httpx2

from hermes_worker.models.connections import DirectClient

_KEPT_MAX = 64
"""How many templates are kept. Requests differ by path, patience and beta features beside their bodies: a handful in
practice.
"""


class RequestTemplates:
    """The requests of one client. Safe for threads: the worst a race costs is a template built twice."""

    def __init__(self, http: DirectClient) -> None:
        self._http = http
        self._templates: dict[Hashable, httpx2.Request] = {}

    def keep(self, key: Hashable, template: httpx2.Request) -> httpx2.Request:
        """Keep a request as the template for ``key``, and return it."""
        if len(self._templates) >= _KEPT_MAX:
            self._templates.clear()
        self._templates[key] = template
        return template

    def send(
        self,
        key: Hashable,
        body: bytes,
        *,
        first: Callable[[], httpx2.Response],
        to_error: Callable[[httpx2.Response], Exception],
    ) -> httpx2.Response:
        """Send the template for ``key`` with ``body`` in it, past the SDK; the response's body is still unread.
        ``first`` sends the request where there is no template yet, and has to keep one.

        Raises ``to_error`` of an answer that is no success, and ``httpx2.TransportError``.
        """
        template = self._templates.get(key)
        if template is None:
            return first()
        length = str(len(body)).encode("ascii")
        headers = [
            (name, length if name.lower() == b"content-length" else value) for name, value in template.headers.raw
        ]
        request = httpx2.Request(
            template.method,
            template.url,
            headers=headers,
            stream=httpx2.ByteStream(body),
            extensions=template.extensions,
        )
        response = self._http.send(request)
        if response.is_success:
            return response
        with contextlib.closing(response):
            response.read()
        raise to_error(response)
