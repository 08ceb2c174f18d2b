"""Who is let in, and how much they may bring."""

from __future__ import annotations

import http.client
import json
import re
import socket
import stat
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest
from serving import KEY, PATIENCE_S, Served, until

from hermes_worker.api.app import SECURITY_HEADERS, create_app
from hermes_worker.api.auth import require_safe
from hermes_worker.api.limits import BODY_BYTES_MAX, BodyLimit
from hermes_worker.api.page import COOKIE
from hermes_worker.core.errors import ConfigurationError
from hermes_worker.settings import Secret, ServerSettings, Settings

PATHS = [
    ("GET", "/v1/runs"),
    ("POST", "/v1/runs"),
    ("GET", "/v1/runs/run_1"),
    ("GET", "/v1/runs/run_1/events"),
    ("GET", "/v1/runs/run_1/result"),
    ("POST", "/v1/runs/run_1/stop"),
    ("GET", "/health/detailed"),
    ("GET", "/openapi.json"),
    ("GET", "/no/such/path"),
]


def code(answer: httpx.Response) -> str:
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return str(error["code"])


# --- the id of a request ---------------------------------------------------------------------------------------------


def test_every_answer_names_its_request(api: Served) -> None:
    paths = ("/health", "/no/such/path", "/v1/runs?what=1", "/openapi.json", "/")
    found = [api.http.get(path).headers["X-Request-Id"] for path in paths]
    assert len(set(found)) == len(paths) and all(re.fullmatch("req_[0-9a-f]{32}", name) for name in found)
    assert httpx.get(f"{api.url}/v1/runs").headers["X-Request-Id"].startswith("req_")
    given = {"X-Request-Id": "7f3a-gateway:1"}
    assert api.http.get("/health", headers=given).headers["X-Request-Id"] == given["X-Request-Id"]
    for odd in ("", "a b", "x" * 200, "<script>"):
        assert api.http.get("/health", headers={"X-Request-Id": odd}).headers["X-Request-Id"].startswith("req_")
    assert "x-request-id: req_" in raw_answer(api, b"what is this\r\n\r\n")


def test_lines_about_a_request_name_it(api: Served, capsys: pytest.CaptureFixture[str]) -> None:
    answer = api.http.post("/v1/runs", json={"input": "hello"}, headers={"X-Request-Id": "mine-1"})
    assert answer.status_code == 202
    until(lambda: "run.submitted" in (text := capsys.readouterr().err) and "request_id=mine-1" in text, "the line")


def raw_answer(api: Served, sent: bytes) -> str:
    host, port = api.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as connection:
        connection.sendall(sent)
        return connection.recv(4_096).decode("latin-1").lower()


# --- with a key ------------------------------------------------------------------------------------------------------


@pytest.fixture
def locked(serve: Callable[..., Served], keyed: Settings) -> Served:
    return serve(keyed)


def test_everything_but_health_needs_the_key(locked: Served) -> None:
    for method, path in PATHS:
        answer = httpx.request(method, locked.url + path, timeout=PATIENCE_S)
        assert answer.status_code == 401, path
        error = answer.json()["error"]
        assert error.pop("message").startswith("Invalid API key. Send the key as a bearer token"), error
        assert error == {"type": "invalid_request_error", "param": None, "code": "invalid_api_key"}
        assert answer.headers["www-authenticate"] == "Bearer"
    for path in ("/health", "/v1/health", "/health/ready"):
        assert httpx.get(locked.url + path, timeout=PATIENCE_S).status_code == 200


@pytest.mark.parametrize(
    "value",
    ["", "Bearer", f"Bearer {KEY}x", f"Bearer {KEY[:-1]}", KEY, f"Basic {KEY}", f"Bearer {KEY.upper()}", "Bearer é"],
)
def test_what_is_not_the_key_is_refused(locked: Served, value: str) -> None:
    headers: Any = {"Authorization": value.encode("latin-1").strip()}
    answer = httpx.get(f"{locked.url}/v1/runs", headers=headers, timeout=PATIENCE_S)
    assert answer.status_code == 401


def test_two_keys_are_none(locked: Served) -> None:
    headers = [("Authorization", f"Bearer {KEY}"), ("Authorization", "Bearer other")]
    assert httpx.get(f"{locked.url}/v1/runs", headers=headers, timeout=PATIENCE_S).status_code == 401


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
def test_the_key_opens(locked: Served, scheme: str) -> None:
    answer = httpx.get(f"{locked.url}/v1/runs", headers={"Authorization": f"{scheme} {KEY}"}, timeout=PATIENCE_S)
    assert answer.json() == {"object": "list", "data": [], "has_more": False}


def test_with_a_key_any_host_name_is_right(locked: Served) -> None:
    assert locked.http.get("/v1/runs", headers={"Host": "hermes.example:8642"}).status_code == 200


def test_nobody_but_a_holder_of_the_key_makes_us_read_a_body(locked: Served) -> None:
    with socket.create_connection(locked.url.removeprefix("http://").split(":"), timeout=PATIENCE_S) as raw:
        raw.sendall(b"POST /v1/runs HTTP/1.1\r\nHost: x\r\nContent-Length: 9000000\r\n\r\n")
        assert raw.recv(4096).startswith(b"HTTP/1.1 401 ")


# --- the key of the installation -------------------------------------------------------------------------------------


def test_an_installation_without_a_key_makes_one_and_asks_for_it(api: Served) -> None:
    file = api.client.settings.home / "api.key"
    assert file.read_text().strip() == api.key
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    for method, path in PATHS:
        answer = httpx.request(method, api.url + path, verify=False, timeout=PATIENCE_S)
        assert (answer.status_code, code(answer)) == (401, "invalid_api_key"), path
        assert "api.key" in answer.json()["error"]["message"]
        assert api.key not in answer.text
    assert api.http.get("/v1/runs").status_code == 200


def test_no_name_of_this_machine_stands_in_for_the_key(api: Served) -> None:
    for host in ("localhost", "127.0.0.1", "[::1]:8642", "evil.example"):
        answer = httpx.get(f"{api.url}/v1/runs", headers={"Host": host}, verify=False, timeout=PATIENCE_S)
        assert answer.status_code == 401, host


def test_the_key_is_in_no_log_and_in_no_document(api: Served, capfd: pytest.CaptureFixture[str]) -> None:
    run_id = api.submit()
    for path in (f"/v1/runs/{run_id}", "/health/detailed", "/openapi.json", "/no/such/path"):
        assert api.key not in api.http.get(path).text
    said = capfd.readouterr()
    assert "run.submitted" in said.err
    assert api.key not in said.out + said.err


def test_web_pages_are_refused_with_and_without_the_key(api: Served, http: httpx.Client) -> None:
    for client in (http, httpx.Client(base_url=api.url, verify=False, timeout=PATIENCE_S)):
        for headers in (
            {"Origin": "https://evil.example"},
            {"Origin": "null"},
            {"Origin": str(client.base_url)},
            {"Sec-Fetch-Site": "cross-site"},
            {"Sec-Fetch-Site": "same-site"},
        ):
            for method, path in (("POST", "/v1/runs"), ("GET", "/v1/runs"), ("OPTIONS", "/v1/runs")):
                answer = client.request(method, path, headers=headers, content=b'{"input": "x"}')
                assert (answer.status_code, code(answer)) == (403, "origin_not_allowed")
                assert "access-control-allow-origin" not in answer.headers
    assert http.get("/v1/runs").json()["data"] == []


def test_the_own_origin_is_let_in_for_a_login_and_with_one_alone(api: Served, http: httpx.Client) -> None:
    own = {"Origin": api.url}
    assert http.post("/v1/runs", headers=own, json={"input": "x"}).status_code == 403
    opened = http.put("/v1/page/login", headers=own, json={})
    assert opened.status_code == 200
    cookie = {"Cookie": f"{COOKIE}={opened.cookies[COOKIE]}"}
    with httpx.Client(base_url=api.url, verify=False, timeout=PATIENCE_S) as page:
        assert page.get("/v1/runs", headers=own | cookie).status_code == 200
        for origin in ("https://evil.example", "null", "http://127.0.0.1:1"):
            refused = page.get("/v1/runs", headers=cookie | {"Origin": origin})
            assert (refused.status_code, code(refused)) == (403, "origin_not_allowed"), origin
    for origin in ("https://evil.example", "null"):
        assert http.put("/v1/page/login", headers={"Origin": origin}, json={}).status_code == 403


LISTED = "https://chat.example.org"
PREFLIGHT = {
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization,x-stainless-os,x-evil, content-type",
}


def test_pages_of_listed_origins_are_let_in_with_a_key(serve: Callable[..., Served], keyed: Settings) -> None:
    settings = replace(keyed, server=replace(keyed.server, cors_origins=(LISTED,)))
    with httpx.Client(base_url=serve(settings).url, verify=False, timeout=PATIENCE_S) as page:
        page.headers["Sec-Fetch-Site"] = "cross-site"
        asked = page.options("/v1/responses", headers={"Origin": LISTED, **PREFLIGHT})
        assert asked.status_code == 204
        assert asked.headers["Access-Control-Allow-Origin"] == LISTED
        assert asked.headers["Access-Control-Max-Age"] == "600"
        assert {"PATCH", "PUT"} <= set(asked.headers["Access-Control-Allow-Methods"].split(", "))
        allowed = asked.headers["Access-Control-Allow-Headers"].lower()
        assert {"authorization", "idempotency-key", "x-hermes-session-id", "x-stainless-os"} <= set(allowed.split(", "))
        assert "evil" not in allowed

        refused = page.get("/v1/runs", headers={"Origin": LISTED})
        assert (refused.status_code, code(refused)) == (401, "invalid_api_key")
        assert refused.headers["Access-Control-Allow-Origin"] == LISTED, "the page may read why"
        told = page.get("/v1/runs", headers={"Origin": LISTED, "Authorization": f"Bearer {KEY}"})
        assert told.status_code == 200
        assert "X-Hermes-Run-Id" in told.headers["Access-Control-Expose-Headers"]
        assert told.headers["Vary"] == "Origin"
        for origin in ("https://evil.example", f"{LISTED}.evil.example", "null", f"{LISTED}:8443", ""):
            for method, more in (("OPTIONS", PREFLIGHT), ("GET", {"Authorization": f"Bearer {KEY}"})):
                answer = page.request(method, "/v1/runs", headers={"Origin": origin, **more})
                assert (answer.status_code, code(answer)) == (403, "origin_not_allowed"), origin
                assert "Access-Control-Allow-Origin" not in answer.headers


def test_an_address_that_others_reach_needs_a_key(api: Served, settings: Settings) -> None:
    for host in ("0.0.0.0", "::", "192.0.2.1", "example.com"):
        with pytest.raises(ConfigurationError, match="HERMES_SERVER_KEY"):
            require_safe(ServerSettings(host=host))
        require_safe(ServerSettings(host=host, key=Secret(KEY)))
    for host in ("127.0.0.1", "localhost", "::1"):
        require_safe(ServerSettings(host=host))
    public = replace(api.client, settings=replace(settings, server=ServerSettings(host="0.0.0.0")))
    with pytest.raises(ConfigurationError):
        create_app(public)


# --- how much --------------------------------------------------------------------------------------------------------


def test_a_body_that_says_it_is_too_large_is_refused_at_once(api: Served) -> None:
    connection = http.client.HTTPConnection(api.url.removeprefix("http://"), timeout=PATIENCE_S)
    connection.putrequest("POST", "/v1/runs")
    connection.putheader("Authorization", api.authorization)
    connection.putheader("Content-Length", str(BODY_BYTES_MAX + 1))
    connection.endheaders()
    answer = connection.getresponse()
    assert answer.status == 413
    assert json.loads(answer.read())["error"]["code"] == "body_too_large"


def test_a_body_that_turns_out_too_large_is_refused(api: Served) -> None:
    def chunks() -> Iterator[bytes]:
        yield b'{"input": "'
        for _ in range(200):
            yield b"x" * 100_000

    connection = http.client.HTTPConnection(api.url.removeprefix("http://"), timeout=PATIENCE_S)
    try:
        connection.request(
            "POST",
            "/v1/runs",
            body=chunks(),
            encode_chunked=True,
            headers={
                "Authorization": api.authorization,
                "Transfer-Encoding": "chunked",
                "Content-Type": "application/json",
            },
        )
    except (BrokenPipeError, ConnectionResetError):
        pass  # it may hang up before everything was sent
    answer = connection.getresponse()
    assert answer.status == 413
    assert json.loads(answer.read())["error"]["code"] == "body_too_large"
    assert api.client.views.list_runs() == []


def test_a_body_of_just_the_allowed_size_is_read(http: httpx.Client) -> None:
    start, end = b'{"input": "x", "metadata": {"a": "', b'"}}'
    body = start + b"y" * (BODY_BYTES_MAX - len(start) - len(end)) + end
    answer = http.post("/v1/runs", content=body, headers={"Content-Type": "application/json"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "metadata.a")


@pytest.mark.parametrize("length", ["abc", "-1", "1.5", "1e3", "0x10"])
def test_a_length_that_is_no_number_is_refused(api: Served, length: str) -> None:
    """By uvicorn's HTTP parser, whose answer has our shape."""
    with socket.create_connection(api.url.removeprefix("http://").split(":"), timeout=PATIENCE_S) as raw:
        raw.sendall(f"POST /v1/runs HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n{{}}".encode())
        head, _, body = raw.makefile("rb").read().partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert json.loads(body)["error"]["code"] == "invalid_http_request"


@pytest.mark.parametrize("lengths", [["abc"], ["-1"], ["٣"], ["5", "6"], [""]])
def test_behind_another_parser_a_bad_length_is_refused_too(lengths: list[str]) -> None:
    sent: list[Any] = []

    async def never(*_: Any) -> None:
        raise AssertionError("the application was called")

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"content-length", length.encode("utf-8")) for length in lengths]
    run(BodyLimit(never)({"type": "http", "headers": headers}, never, send))  # type: ignore[arg-type]
    assert sent[0]["status"] == 400
    assert json.loads(sent[1]["body"])["error"]["code"] == "invalid_content_length"


def test_a_length_of_a_million_digits_is_refused_without_counting() -> None:
    sent: list[Any] = []

    async def never(*_: Any) -> None:
        raise AssertionError("the application was called")

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"content-length", b"9" * 1_000_000)]
    run(BodyLimit(never)({"type": "http", "headers": headers}, never, send))  # type: ignore[arg-type]
    assert sent[0]["status"] == 413


def run(coroutine: Any) -> None:
    with pytest.raises(StopIteration):
        coroutine.send(None)


def test_garbage_is_answered_like_everything_else(api: Served) -> None:
    for garbage in (
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET / HTTP/9.9\r\nConnection: close\r\n\r\n",
        b"x" * 100_000,
    ):
        with socket.create_connection(api.url.removeprefix("http://").split(":"), timeout=PATIENCE_S) as raw:
            raw.sendall(garbage + b"\r\n\r\n")
            answer = raw.makefile("rb").read()
            assert answer == b"" or b'{"error":' in answer.replace(b" ", b"")
    assert api.http.get("/health").status_code == 200


# --- every answer ----------------------------------------------------------------------------------------------------


def test_every_answer_has_the_security_headers_and_errors_have_one_shape(
    http: httpx.Client, api: Served, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("boom sk-abcdefghijklmnopqrstuvwxyz")

    monkeypatch.setattr(type(api.client.views), "count_calls", fail)
    run_id = api.submit()
    expected = {
        ("GET", "/nothing"): (404, "not_found"),
        ("GET", "/v1/runs/run_x"): (404, "run_not_found"),
        ("POST", "/v1/runs/run_x/stop"): (404, "run_not_found"),
        ("DELETE", "/v1/runs"): (405, "method_not_allowed"),
        ("PUT", "/health"): (405, "method_not_allowed"),
        ("GET", f"/v1/runs/{run_id}"): (500, "internal_error"),
        ("GET", "/v1/runs?limit=x"): (400, "invalid_value"),
    }
    for (method, path), (status, name) in expected.items():
        answer = http.request(method, path)
        assert (answer.status_code, code(answer)) == (status, name), path
        assert {header: answer.headers[header] for header in SECURITY_HEADERS} == SECURITY_HEADERS
        assert answer.headers["cache-control"] == "no-store"
        assert "server" not in answer.headers
        assert "boom" not in answer.text
        assert "Traceback" not in answer.text
    logged = capfd.readouterr().err
    assert "request.failed" in logged
    assert "RuntimeError: boom sk-abc...wxyz" in logged
    assert "allow" in http.delete("/v1/runs").headers
    assert http.get("/v1/runs/run_x").json()["error"]["type"] == "invalid_request_error"


def test_what_is_not_served_of_openais_api_is_told(http: httpx.Client) -> None:
    for path in ("completions", "vector_stores/vs_1/files"):
        told = http.post(f"/v1/{path}", json={}).json()["error"]
        assert told["code"] == "not_found"
        assert told["message"].endswith(f"models are served, and no {path.partition('/')[0]}."), told
    assert http.get("/v1/nothing").json()["error"]["message"] == "There is nothing at this path."


def test_who_asks_for_problem_details_gets_every_error_as_such(http: httpx.Client, api: Served) -> None:
    asks = {"Accept": "application/json, application/problem+json;q=0.9"}
    wrong = http.get("/v1/runs?limit=x", headers=asks)
    assert wrong.headers["content-type"] == "application/problem+json"
    assert "Accept" in wrong.headers["vary"]
    usual = http.get("/v1/runs?limit=x").json()["error"]
    assert wrong.json() == {
        "type": "about:blank",
        "title": "Bad Request",
        "status": 400,
        "detail": usual["message"],
        "param": "limit",
        "code": "invalid_value",
    }
    flat = http.post("/api/jobs", json={"name": "n"}, headers=asks).json()
    assert flat == {
        "type": "about:blank",
        "title": "Bad Request",
        "status": 400,
        "detail": http.post("/api/jobs", json={"name": "n"}).json()["error"],
    }
    unknown = httpx.get(f"{api.url}/v1/runs", headers=asks, verify=False)
    assert (unknown.status_code, unknown.json()["status"], unknown.json()["code"]) == (401, 401, "invalid_api_key")
    assert http.get("/v1/runs", headers=asks).headers["content-type"] == "application/json"


def test_what_a_client_sends_does_not_come_back_whole(http: httpx.Client) -> None:
    answer = http.get("/v1/runs/" + "sk-abcdefghijklmnopqrstuvwxyz" + "y" * 5_000)
    assert answer.status_code == 404
    assert len(answer.content) < 500
    assert "sk-abcdefghijkl" not in answer.text


def test_slashes_and_dots_in_an_id_reach_no_other_place(http: httpx.Client) -> None:
    for path in ("/v1/runs/..%2f..%2fetc", "/v1/runs/%2e%2e/health", "/v1/runs/a%00b", "/v1/runs/%ff", "/v1/runs/'--"):
        answer = http.get(path)
        assert answer.status_code == 404, path
        assert code(answer) in ("run_not_found", "not_found")


def test_the_document_describes_what_is_there(http: httpx.Client) -> None:
    document = http.get("/openapi.json").json()
    assert set(document["paths"]) >= {
        "/v1/chat/completions",
        "/v1/models",
        "/v1/models/{model}",
        "/v1/responses",
        "/v1/responses/{response_id}",
        "/v1/responses/{response_id}/cancel",
        "/v1/responses/{response_id}/input_items",
        "/health",
        "/v1/health",
        "/health/detailed",
        "/health/ready",
        "/v1/runs",
        "/v1/runs/{run_id}",
        "/v1/runs/{run_id}/events",
        "/v1/runs/{run_id}/result",
        "/v1/runs/{run_id}/tree/events",
        "/v1/runs/{run_id}/stop",
        "/v1/runs/{run_id}/pause",
        "/v1/runs/{run_id}/resume",
        "/v1/runs/{run_id}/steer",
        "/v1/runs/{run_id}/approval",
        "/v1/runs/{run_id}/input",
        "/v1/approvals",
        "/api/jobs",
        "/api/jobs/{job_id}",
        "/api/jobs/{job_id}/history",
        "/api/jobs/{job_id}/pause",
        "/api/jobs/{job_id}/resume",
        "/api/jobs/{job_id}/run",
        "/v1/backlog",
        "/v1/providers/states",
        "/v1/alerts",
        "/v1/alerts/targets",
        "/v1/deliveries",
        "/v1/deliveries/{delivery_id}",
        "/v1/deliveries/{delivery_id}/retry",
        "/webhooks/{name}",
        "/webhooks/{tenant}/{name}",
        "/inbound/{platform}",
    }
    body = document["paths"]["/v1/runs"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert body["required"] == ["input"]
    assert body["additionalProperties"] is False
    assert "#/$defs" not in json.dumps(document)
    assert "422" not in json.dumps(document)
    assert http.get("/docs").status_code == 404


def test_the_document_says_which_paths_need_the_key(http: httpx.Client) -> None:
    document = http.get("/openapi.json").json()
    assert document["components"]["securitySchemes"] == {"key": {"type": "http", "scheme": "bearer"}}
    probed = {"/health", "/v1/health", "/health/ready"}
    signed = "/v1/artifacts/{artifact_id}/content"
    open_ones = {*probed, signed, "/webhooks/{name}", "/webhooks/{tenant}/{name}", "/inbound/{platform}"}
    for path, operations in document["paths"].items():
        for operation in operations.values():
            assert operation["security"] == ([] if path in open_ones else [{"key": []}]), path
            needs_key = path not in {*probed, signed}
            assert ("401" in operation["responses"]) == needs_key, path


def _raw(api: Served, request: bytes) -> bytes:
    """All that comes back until the server closes the connection."""
    host, port = api.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as connection:
        connection.sendall(request)
        return b"".join(iter(lambda: connection.recv(65_536), b""))


WRONG_TYPES = [
    None,
    "text/plain",
    "multipart/form-data; boundary=x",
    "application/jsonx",
    "application/json, text/plain",
]


def test_no_operation_takes_a_body_that_is_not_called_json(http: httpx.Client) -> None:
    """But for events of others: GitHub, Slack and Twilio send those as a form, and they are signed."""
    asked = 0
    for path, operations in http.get("/openapi.json").json()["paths"].items():
        place = re.sub(r"\{\w+\}", "x", path)
        forms = [] if path.startswith(("/webhooks/", "/inbound/")) else ["application/x-www-form-urlencoded"]
        for method in operations:
            for given in [*WRONG_TYPES, *forms]:
                if path == "/v1/files" and given and given.startswith("multipart/"):
                    continue  # a file is uploaded so
                headers = {"Content-Type": given} if given else {}
                answer = http.request(method, place, content=b'{"input": "x"}', headers=headers)
                found = (answer.status_code, answer.json()["error"]["code"])
                assert found == (415, "unsupported_media_type"), (method, path, given)
                asked += 1
    assert asked > 100


@pytest.mark.parametrize("given", ["application/json", "Application/JSON; charset=utf-8"])
def test_json_may_say_more_than_its_name(http: httpx.Client, given: str) -> None:
    answer = http.post("/v1/runs", content=b'{"input": "x"}', headers={"Content-Type": given})
    assert answer.status_code == 202


def test_a_request_without_a_body_needs_no_type(api: Served) -> None:
    run_id = api.submit()
    assert api.http.post(f"/v1/runs/{run_id}/stop").status_code == 200


def test_a_request_with_two_lengths_closes_its_connection(api: Served) -> None:
    smuggled = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    answer = _raw(
        api,
        b"POST /v1/runs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + smuggled,
    )
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.count(b"HTTP/1.1 ") == 1
    assert b"exclude each other" in answer


@pytest.mark.parametrize("begun", [b"", b"GET /health HT", b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: y\r\n"])
def test_a_head_that_is_never_finished_is_given_up(api: Served, monkeypatch: pytest.MonkeyPatch, begun: bytes) -> None:
    monkeypatch.setattr("hermes_worker.api.server._Http.head_patience_s", 0.1)
    assert _raw(api, begun).startswith(b"HTTP/1.1 408 ")


def test_a_second_head_that_is_never_finished_is_given_up(api: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hermes_worker.api.server._Http.head_patience_s", 0.5)
    answer = _raw(api, b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\nGET /hea")
    assert answer.count(b"HTTP/1.1 200 ") == 1
    assert answer.count(b"HTTP/1.1 408 ") == 1


def test_a_connection_that_has_asked_before_may_stay_silent(api: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two time-outs, of which the longer one is that of a connection that is kept alive."""
    monkeypatch.setattr("hermes_worker.api.server._Http.head_patience_s", 0.2)
    with httpx.Client(base_url=api.url, timeout=PATIENCE_S) as client:
        port = client.get("/health").extensions["network_stream"].get_extra_info("client_addr")
        with socket.create_connection((api.url.split("/")[2].split(":")[0], int(api.url.rsplit(":", 1)[1]))) as other:
            assert other.recv(65_536).startswith(b"HTTP/1.1 408 ")  # so long ago is the answer by now
        again = client.get("/health").extensions["network_stream"].get_extra_info("client_addr")
    assert again == port


@pytest.mark.parametrize(
    ("path", "allowed"),
    [("/v1/runs", "GET, POST"), ("/api/jobs/0123456789ab", "DELETE, GET, PATCH"), ("/v1/runs/x/stop", "POST")],
)
def test_a_method_that_a_path_does_not_take_is_told_all_that_it_takes(
    http: httpx.Client, path: str, allowed: str
) -> None:
    answer = http.put(path)
    assert (answer.status_code, answer.headers["Allow"]) == (405, allowed)


def test_the_document_knows_both_shapes_of_errors_and_what_may_be_left_out(http: httpx.Client) -> None:
    document = http.get("/openapi.json").json()
    schemas = document["components"]["schemas"]
    assert "last_event" not in schemas["RunObject"]["required"]
    for path, method, status in [("/api/jobs/{job_id}", "get", "400"), ("/webhooks/{name}", "post", "403")]:
        shapes = document["paths"][path][method]["responses"][status]["content"]["application/json"]["schema"]["anyOf"]
        assert {shape["$ref"].rpartition("/")[2] for shape in shapes} == {"FlatError", "ErrorDocument"}
    for path, method in [("/api/jobs", "post"), ("/api/jobs/{job_id}", "patch")]:
        body = document["paths"][path][method]["requestBody"]["content"]["application/json"]["schema"]
        assert {"name", "schedule", "prompt"} <= set(body["properties"])
