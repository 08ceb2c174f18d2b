"""The official ``openai`` client for one endpoint, told nothing but where to post bytes.

Two wires share it: chat completions and responses.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import httpx2
import openai

from hermes_worker.models.connections import DirectClient, build_timeouts
from hermes_worker.models.endpoint import Endpoint
from hermes_worker.models.wires.templates import RequestTemplates


class OpenAIClient(openai.OpenAI):
    """The SDK's client without the environment: left to itself the SDK adds organisation, project and custom headers
    from ``OPENAI_*`` variables to requests that go to any server at all.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self._fixed_headers = build_request_headers(endpoint)
        # The SDK insists on a credential unless its header is explicitly left out of the call.
        self._call_headers = {} if "Authorization" in self._fixed_headers else {"Authorization": openai.omit}
        self._connect_timeout_s = endpoint.connect_timeout_s
        http = DirectClient(proxy_url=endpoint.proxy_url)
        self._templates = RequestTemplates(http)
        super().__init__(
            api_key="none",  # the real one is among the fixed headers
            admin_api_key="",
            organization="",
            project="",
            webhook_secret="",
            base_url=endpoint.plain_url,
            default_query=endpoint.query,
            max_retries=0,
            timeout=build_timeouts(connect_s=endpoint.connect_timeout_s, read_s=endpoint.read_timeout_s),
            http_client=http,
        )

    @property
    def default_headers(self) -> dict[str, str | openai.Omit]:
        return self._fixed_headers

    def _build_request(self, options: Any, *, retries_taken: int = 0) -> httpx2.Request:
        request = super()._build_request(options, retries_taken=retries_taken)
        return self._templates.keep((options.url, options.timeout.read), request)

    def send(self, path: str, body: bytes, *, read_timeout_s: float) -> httpx2.Response:
        """Post to ``path``; the response's body is still unread. Raises what the SDK raises, and
        ``httpx2.TransportError``."""
        first = partial(self._post_bytes, path, body, read_timeout_s)
        to_error = self._make_status_error_from_response
        return self._templates.send((path, read_timeout_s), body, first=first, to_error=to_error)

    def _post_bytes(self, path: str, body: bytes, read_timeout_s: float) -> httpx2.Response:
        timeout = build_timeouts(connect_s=self._connect_timeout_s, read_s=read_timeout_s)
        response: object = self.post(
            path,
            content=body,
            cast_to=httpx2.Response,
            options={"headers": self._call_headers, "timeout": timeout},
            stream=True,
            stream_cls=openai.Stream[Any],
        )
        assert isinstance(response, httpx2.Response)  # what ``cast_to`` asks for; the SDK's types cannot say so
        return response


def build_request_headers(endpoint: Endpoint) -> dict[str, str | openai.Omit]:
    """The headers of every request to this endpoint."""
    headers: dict[str, str | openai.Omit] = {
        "Accept": "text/event-stream, application/json",
        "Accept-Encoding": "identity",  # small events gain nothing from compression and are held back by it
        "Content-Type": "application/json",
        "User-Agent": "hermes-worker",
        **endpoint.headers,
    }
    if endpoint.api_key:
        is_bearer = endpoint.is_access_token or endpoint.key_header.lower() == "authorization"
        name = "Authorization" if is_bearer else endpoint.key_header
        headers[name] = f"Bearer {endpoint.api_key}" if is_bearer else endpoint.api_key
    return headers
