"""An HTTP client for wires without an SDK of bytes: it posts a request's body and gives the response, unread."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import httpx2

from hermes_worker.core.json_values import parse_json
from hermes_worker.models.connections import DirectClient, build_timeouts
from hermes_worker.models.endpoint import Endpoint

ERROR_BYTES_MAX = 256 * 1024
"""How many bytes of an answer that is no reply are read."""


class RefusedRequest(Exception):
    """The server answered with a status that is no success. It has what SDKs give their errors: the response, its
    status and its parsed body."""

    def __init__(self, response: httpx2.Response, content: bytes, code: str = "") -> None:
        self.response = response
        self.status_code = response.status_code
        self.body = _parse_error(content, code.partition(":")[0])
        super().__init__(f"status {response.status_code}: {content[:2_000].decode('utf-8', 'replace')}")


class PlainClient:
    """Connections to one endpoint. Thread-safe; ignores the environment."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._client = DirectClient(proxy_url=endpoint.proxy_url)

    def close(self) -> None:
        """Close idle connections. Calls in flight are not touched."""
        self._client.close()

    def build_address(self, path: str, **query: str) -> str:
        """The whole address of ``path``, with the endpoint's query and ``query``."""
        return str(httpx2.URL(f"{self._endpoint.plain_url}{path}", params={**self._endpoint.query, **query}))

    def send(
        self, address: str, headers: Mapping[str, str], body: bytes, *, read_timeout_s: float, code_header: str = ""
    ) -> httpx2.Response:
        """Post ``body``; the response's body is still unread. ``code_header`` is where the server names its errors.

        Raises ``RefusedRequest`` and the errors of the HTTP client.
        """
        timeout = build_timeouts(connect_s=self._endpoint.connect_timeout_s, read_s=read_timeout_s)
        request = self._client.build_request("POST", address, content=body, headers=dict(headers), timeout=timeout)
        response = self._client.send(request)
        if response.is_success:
            return response
        try:
            content = _read_beginning(response)
        finally:
            response.close()
        raise RefusedRequest(response, content, response.headers.get(code_header, "") if code_header else "")


def build_usual_headers(endpoint: Endpoint) -> dict[str, str]:
    """The headers of every request to this endpoint, without a credential."""
    return {
        "Accept": "*/*",
        "Accept-Encoding": "identity",  # small events gain nothing from compression and are held back by it
        "Content-Type": "application/json",
        "User-Agent": "hermes-worker",
        **endpoint.headers,
    }


def _read_beginning(response: httpx2.Response) -> bytes:
    content = bytearray()
    for chunk in response.iter_bytes():
        content += chunk
        if len(content) >= ERROR_BYTES_MAX:
            break
    return bytes(content)


def _parse_error(content: bytes, code: str) -> Mapping[str, object] | None:
    """The document of an error, with the code that stands in a header. ``None`` when the server sent neither."""
    document = parse_json(content)
    if not isinstance(document, dict):
        return {"code": code} if code else None
    told = cast(dict[str, object], document)
    return {"code": code, **told} if code else told
