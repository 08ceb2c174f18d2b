"""A request made from a template is, byte for byte, what the SDK would have built for that body."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator

import openai
import pytest

from hermes_worker.models.connections import Line, use_line
from hermes_worker.models.endpoint import Endpoint
from hermes_worker.models.wires.anthropic_messages import _Client as AnthropicClient
from hermes_worker.models.wires.openai_client import OpenAIClient


class _Recorder(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    seen: list[tuple[str, list[tuple[str, str]], bytes]]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.seen.append((self.path, [(name.lower(), value) for name, value in self.headers.items()], body))
        self.send_response(200)
        self.send_header("Set-Cookie", "who=somebody-else")
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[tuple[str, list[tuple[str, list[tuple[str, str]], bytes]]]]:
    handler = type("Handler", (_Recorder,), {"seen": []})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as httpd:
        thread = threading.Thread(target=httpd.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{httpd.server_address[1]}/v1", handler.seen  # type: ignore[attr-defined]
        httpd.shutdown()
        thread.join()


def _post(client: OpenAIClient, body: bytes, read_timeout_s: float) -> None:
    with use_line(Line()):
        response = client.send("/chat/completions", body, read_timeout_s=read_timeout_s)
        response.read()
        response.close()


def test_openai_requests_differ_in_their_bodies_only(server: tuple[str, list[object]]) -> None:
    url, seen = server
    client = OpenAIClient(Endpoint(base_url=url, api_key="secret", headers={"X-Mine": "yes"}))
    for body in (b'{"a":1}', b'{"a":' + b"2" * 1_000 + b"}", b'{"b":3}'):
        _post(client, body, 60.0)
    _post(client, b'{"b":3}', 90.0)
    (path, first, body), (_, second, long), (_, third, _), (_, fourth, _) = seen  # type: ignore[misc]
    assert path == "/v1/chat/completions"
    assert body == b'{"a":1}'
    assert len(long) == 1_006
    assert dict(first)["authorization"] == "Bearer secret"
    assert dict(first)["x-mine"] == "yes"
    assert [name for name, _ in first] == [name for name, _ in second]
    differing = {name for (name, one), (_, other) in zip(first, second, strict=True) if one != other}
    assert differing == {"content-length"}
    assert third == first
    assert {one for one, other in zip(third, fourth, strict=True) if one != other} == {
        ("x-stainless-read-timeout", "60.0")
    }


def test_no_cookie_of_one_run_reaches_another(server: tuple[str, list[object]]) -> None:
    url, seen = server
    client = OpenAIClient(Endpoint(base_url=url, api_key="secret"))
    for read_timeout_s in (60.0, 60.0, 90.0):  # the last one is built after an answer with a cookie
        _post(client, b"{}", read_timeout_s)
    assert all("cookie" not in dict(headers) for _, headers, _ in seen)  # type: ignore[misc]


def test_a_template_says_what_the_plain_sdk_says(server: tuple[str, list[object]]) -> None:
    url, seen = server
    ours = OpenAIClient(Endpoint(base_url=url, api_key="secret"))
    for _ in range(2):
        _post(ours, b'{"model":"m"}', 60.0)
    plain = super(OpenAIClient, ours)._build_request
    options = openai._models.FinalRequestOptions.construct(
        method="post", url="/chat/completions", content=b'{"model":"m"}', timeout=ours.timeout
    )
    expected = {name.lower(): value for name, value in plain(options).headers.items()}
    sent = dict(seen[1][1])  # type: ignore[index]
    assert sent | {"x-stainless-read-timeout": ""} == expected | {"x-stainless-read-timeout": ""}


def test_anthropic_requests_know_their_betas(server: tuple[str, list[object]]) -> None:
    url, seen = server
    client = AnthropicClient(Endpoint(base_url=url, api_key="secret"))
    for takes_betas in (True, False, True, False):
        with use_line(Line()):
            client.send(b'{"n":1}', read_timeout_s=60.0, takes_betas=takes_betas).close()
    headers = [dict(sent) for _, sent, _ in seen]  # type: ignore[misc]
    assert ["anthropic-beta" in sent for sent in headers] == [True, False, True, False]
    assert headers[0] == headers[2]
    assert headers[1] == headers[3]
