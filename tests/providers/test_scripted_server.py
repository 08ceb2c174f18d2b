"""The scripted model over HTTP, asked through the provider and, where it must not be trusted, by hand."""

import json
import logging
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from support.patience import PATIENCE_S

from hermes_worker.core.abort import AbortSignal
from hermes_worker.core.errors import FailureKind, ModelCallError
from hermes_worker.core.messages import Delta, ModelReply, ModelRequest, build_assistant_body, build_user_body
from hermes_worker.models.endpoint import Endpoint
from hermes_worker.models.scripted import server as server_module
from hermes_worker.models.scripted.reply import Reply, ScriptedCall
from hermes_worker.models.scripted.server import ScriptedOptions, ScriptedServer
from hermes_worker.models.scripted.wire import estimate_usage, render_events
from hermes_worker.models.wires.openai_chat import OpenAIChat


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer() as running:
        yield running


def script(**document: Any) -> str:
    return build_user_body(f"scripted: {json.dumps(document)}")


def ask(server: ScriptedServer, *rows: str, deltas: list[Delta] | None = None) -> ModelReply:
    heard: list[Delta] = [] if deltas is None else deltas
    chat = OpenAIChat(Endpoint(base_url=server.base_url))
    return chat.ask(ModelRequest(model="scripted", messages=rows), on_delta=heard.append, abort=AbortSignal())


def exchange(server: ScriptedServer, data: bytes) -> bytes:
    """Send bytes and read until the server closes the connection, as the last request asks it to."""
    port = int(server.base_url.rpartition(":")[2].removesuffix("/v1"))
    with socket.create_connection(("127.0.0.1", port), timeout=10) as sock:
        sock.sendall(data)
        return b"".join(iter(lambda: sock.recv(65_536), b""))


CLOSE = b"Connection: close"


def post(body: bytes, *headers: bytes) -> bytes:
    fields = [b"POST /v1/chat/completions HTTP/1.1", b"Host: x", b"Content-Length: %d" % len(body), *headers]
    return b"\r\n".join(fields) + b"\r\n\r\n" + body


def get(path: bytes) -> bytes:
    return b"GET %s HTTP/1.1\r\nHost: x\r\n%s\r\n\r\n" % (path, CLOSE)


REQUEST = b'{"messages":[{"role":"user","content":"scripted: {\\"final\\":\\"hi\\"}"}]}'


# ----------------------------------------------------------------------------------------------------------- replies


def test_a_reply_is_streamed_in_pieces_with_usage(server: ScriptedServer) -> None:
    deltas: list[Delta] = []

    reply = ask(server, script(final="one two three four"), deltas=deltas)

    assert (reply.text, reply.finish_reason) == ("one two three four", "stop")
    assert len(deltas) == 4
    assert reply.usage.input > 0
    assert reply.usage.output == 5
    assert server.requests.streamed == 1


def test_calls_arrive_as_they_were_written(server: ScriptedServer) -> None:
    calls = [{"name": "terminal", "arguments": {"command": "echo 'ü 🙂'"}, "id": "x1"}, {"name": "b", "arguments": "{"}]

    reply = ask(server, script(steps=[{"calls": calls, "text": "t", "reasoning": "r"}]))

    assert [(r.name, r.arguments) for r in reply.tool_requests] == [
        ("terminal", '{"command":"echo \'ü 🙂\'"}'),
        ("b", "{"),
    ]
    assert reply.tool_requests[0].id == "x1"
    assert (reply.text, reply.reasoning) == ("t", "r")


def test_a_request_that_does_not_stream_gets_one_document(server: ScriptedServer) -> None:
    answer = exchange(server, post(REQUEST, CLOSE))

    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"200 OK" in head
    assert json.loads(body)["choices"][0]["message"]["content"] == "hi"
    assert json.loads(body)["usage"]["total_tokens"] > 0


def test_the_same_request_gets_the_same_bytes_from_any_replica(server: ScriptedServer) -> None:
    with ScriptedServer() as other:
        assert (
            exchange(server, post(REQUEST, CLOSE))
            == exchange(other, post(REQUEST, CLOSE))
            == exchange(server, post(REQUEST, CLOSE))
        )


def test_a_script_sets_the_pace(server: ScriptedServer) -> None:
    started = time.monotonic()
    deltas: list[Delta] = []

    ask(server, script(final="x" * 10, delay_s=0.1, chunks=5, chunk_gap_s=0.02), deltas=deltas)

    assert time.monotonic() - started >= 0.18
    assert len(deltas) == 5


def test_a_failing_step_fails_as_often_as_asked(server: ScriptedServer) -> None:
    failing = script(steps=[{"text": "at last", "error": {"status": 429, "retry_after_s": 3, "times": 2}}])

    for _ in range(2):
        with pytest.raises(ModelCallError) as raised:
            ask(server, failing)
        assert (raised.value.kind, raised.value.retry_after_s) == (FailureKind.RATE_LIMIT, 3)

    assert ask(server, failing).text == "at last"
    assert server.requests.faults == 2


def test_a_step_can_break_the_connection(server: ScriptedServer) -> None:
    breaking = script(steps=[{"text": "whole text", "drop": {"after_chunks": 0}}])

    with pytest.raises(ModelCallError) as raised:
        ask(server, breaking)

    assert raised.value.kind is FailureKind.TIMEOUT
    assert ask(server, breaking).text == "whole text"


def test_a_client_that_leaves_does_not_disturb_the_others(server: ScriptedServer) -> None:
    signal_of_first = AbortSignal()
    chat = OpenAIChat(Endpoint(base_url=server.base_url))
    slow = ModelRequest(model="m", messages=(script(final="x" * 100, chunks=100, chunk_gap_s=0.05),))
    kinds: list[FailureKind] = []

    def leave() -> None:
        with pytest.raises(ModelCallError) as raised:
            chat.ask(slow, on_delta=lambda _: signal_of_first.set("enough"), abort=signal_of_first)
        kinds.append(raised.value.kind)

    thread = threading.Thread(target=leave)
    thread.start()
    thread.join(PATIENCE_S)

    assert kinds == [FailureKind.INTERRUPTED]
    assert ask(server, script(final="fine")).text == "fine"


def test_nobody_hears_of_a_client_that_left_before_its_reply(
    server: ScriptedServer, caplog: pytest.LogCaptureFixture
) -> None:
    content = script(final="word " * 500, delay_s=0.2, chunks=100)
    body = json.dumps({"messages": [json.loads(content)], "stream": True}).encode()
    port = int(server.base_url.rpartition(":")[2].removesuffix("/v1"))
    with socket.create_connection(("127.0.0.1", port)) as sock:
        sock.sendall(post(body))
        # Reset rather than closed: the first byte of the reply already fails, as after a SIGKILL.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    until_gone = time.monotonic() + PATIENCE_S
    while server.requests.disconnects == 0 and time.monotonic() < until_gone:
        time.sleep(0.01)
    assert server.requests.disconnects == 1
    assert not caplog.records


def test_many_calls_at_once(server: ScriptedServer) -> None:
    chat = OpenAIChat(Endpoint(base_url=server.base_url))
    texts: list[str] = []

    def work(number: int) -> None:
        request = ModelRequest(model="m", messages=(script(final=f"{number}", delay_s=2.0),))
        texts.append(chat.ask(request, on_delta=lambda _: None, abort=AbortSignal()).text)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(50)]
    started = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(texts, key=int) == [str(n) for n in range(50)]
    assert time.monotonic() - started < 50 * 2.0  # what they take one after the other
    assert server.requests.completions == 50


def test_the_official_client_reads_both_forms(server: ScriptedServer) -> None:
    client = openai.OpenAI(base_url=server.base_url, api_key="none", max_retries=0)
    step = {"text": "t", "calls": [{"name": "terminal", "arguments": {"command": "ls"}}]}
    content = f"scripted: {json.dumps({'steps': [step]})}"

    whole = client.chat.completions.create(model="scripted", messages=[{"role": "user", "content": content}])
    chunks = list(
        client.chat.completions.create(
            model="scripted",
            messages=[{"role": "user", "content": content}],
            stream=True,
            stream_options={"include_usage": True},
        )
    )

    assert whole.choices[0].finish_reason == "tool_calls"
    assert whole.choices[0].message.content == "t"
    assert "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices) == "t"
    assert chunks[-1].usage == whole.usage


# ------------------------------------------------------------------------------------------------------------- usage


def test_cached_tokens_are_those_of_the_previous_request() -> None:
    rows: list[dict[str, Any]] = [{"role": "user", "content": "x" * 8_000}]
    first = estimate_usage({"messages": rows}, Reply(text="abcd" * 3))
    rows += [json.loads(build_assistant_body(ModelReply(text="abcd"))), {"role": "user", "content": "more"}]
    second = estimate_usage({"messages": rows}, Reply(calls=(ScriptedCall(id="1", name="abcd", arguments="1234"),)))

    assert first["prompt_tokens_details"] == {"cached_tokens": 0}
    assert first["completion_tokens"] == 3
    assert second["prompt_tokens_details"] == {"cached_tokens": 1920}
    assert second["completion_tokens"] == 2
    assert isinstance(second["prompt_tokens"], int)
    assert second["prompt_tokens"] > 1920


def test_usage_is_streamed_only_when_asked_for() -> None:
    asked = list(render_events({"messages": [], "stream_options": {"include_usage": True}}, Reply(text="x"), 1))
    unasked = list(render_events({"messages": []}, Reply(text="x"), 1))

    assert len(asked) == len(unasked) + 1
    assert asked[-1] == unasked[-1] == "[DONE]"


# ------------------------------------------------------------------------------------------------ HTTP, by hand


def test_requests_on_one_connection_are_answered_in_order(server: ScriptedServer) -> None:
    other = REQUEST.replace(b"hi", b"ho")

    answer = exchange(server, post(REQUEST) + post(other) + get(b"/health"))

    assert answer.count(b"HTTP/1.1 200 OK") == 3
    assert answer.index(b'"hi"') < answer.index(b'"ho"')


def test_a_body_in_chunks_is_read(server: ScriptedServer) -> None:
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n%s\r\nTransfer-Encoding: chunked\r\n\r\n" % CLOSE
    body = b"5\r\n%s\r\n%x;x=y\r\n%s\r\n0\r\nTrailer: x\r\n\r\n" % (REQUEST[:5], len(REQUEST) - 5, REQUEST[5:])

    assert b'"hi"' in exchange(server, head + body)


def test_a_client_that_asks_first_is_told_to_go_on(server: ScriptedServer) -> None:
    assert exchange(server, post(REQUEST, b"Expect: 100-continue", CLOSE)).startswith(b"HTTP/1.1 100 Continue\r\n\r\n")


def test_a_connection_closes_when_asked(server: ScriptedServer) -> None:
    answer = exchange(server, post(REQUEST, CLOSE) + post(REQUEST))

    assert answer.count(b"HTTP/1.1 200") == 1


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n", 413),
        (get(b"/nothing"), 404),
        (get(b"/v1/chat/completions"), 405),
        (post(b"not json", CLOSE), 400),
        (post(b"[" * 100_000, CLOSE), 400),
        (post(b"[]", CLOSE), 400),
        (post(b'{"messages":"x"}', CLOSE), 400),
        (post(b'{"messages":[1]}', CLOSE), 400),
        (post(b"", CLOSE), 400),
    ],
)
def test_what_cannot_be_answered_is_refused_politely(server: ScriptedServer, data: bytes, status: int) -> None:
    answer = exchange(server, data)

    assert answer.startswith(b"HTTP/1.1 %d " % status), answer[:200]
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["message"]
    assert b"200 OK" in exchange(server, get(b"/health"))


@pytest.mark.parametrize(
    "data",
    [
        b"nonsense\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: x\r\nbroken header\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
    ],
)
def test_what_is_no_http_is_refused_and_disturbs_nobody(server: ScriptedServer, data: bytes) -> None:
    """In what words is uvicorn's matter."""
    assert exchange(server, data).startswith(b"HTTP/1.1 400 ")
    assert b"200 OK" in exchange(server, get(b"/health"))


def test_a_body_that_grows_too_large_is_refused(server: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "BODY_BYTES_MAX", 1_000)
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert exchange(server, head + b"3e9\r\n" + b"x" * 1_001).startswith(b"HTTP/1.1 413 ")


def test_a_step_can_break_the_connection_of_a_request_that_does_not_stream(server: ScriptedServer) -> None:
    breaking = script(steps=[{"text": "whole", "drop": {"after_chunks": 0}}])
    body = json.dumps({"messages": [json.loads(breaking)]}).encode()

    assert exchange(server, post(body)) == b""
    assert b"whole" in exchange(server, post(body, CLOSE))


def test_a_broken_stream_has_sent_what_came_before(server: ScriptedServer, caplog: pytest.LogCaptureFixture) -> None:
    breaking = script(steps=[{"text": "one two three", "chunks": 3, "drop": {"after_chunks": 2}}])
    body = json.dumps({"messages": [json.loads(breaking)], "stream": True}).encode()

    answer = exchange(server, post(body))

    assert answer.count(b"data: ") == 2
    assert not answer.endswith(b"0\r\n\r\n")
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING], "a script asked for it"


def test_models_are_listed(server: ScriptedServer) -> None:
    answer = exchange(server, get(b"/v1/models"))

    assert json.loads(answer.partition(b"\r\n\r\n")[2])["data"][0]["id"] == "scripted"


# ---------------------------------------------------------------------------------------------------------- processes


def test_a_port_that_is_taken_is_reported(server: ScriptedServer) -> None:
    port = int(server.base_url.rpartition(":")[2].removesuffix("/v1"))

    with pytest.raises(OSError, match=str(port)), ScriptedServer(port=port):
        pass


def test_it_listens_on_loopback_only(server: ScriptedServer) -> None:
    assert server.base_url.startswith("http://127.0.0.1:")


def test_options_set_the_pace_of_every_reply() -> None:
    with ScriptedServer(options=ScriptedOptions(latency_s=0.1, chunks=2)) as server:
        started = time.monotonic()
        deltas: list[Delta] = []

        ask(server, script(final="abcd"), deltas=deltas)

        assert time.monotonic() - started >= 0.1
        assert len(deltas) == 2


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGINT])
def test_the_command_prints_its_address_and_ends_on_a_signal(ending: signal.Signals) -> None:
    command = [sys.executable, "-m", "hermes_worker.models.scripted", "--port", "0", "--chunks", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        base_url = process.stdout.readline().strip()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/v1", base_url)
        chat = OpenAIChat(Endpoint(base_url=base_url))
        request = ModelRequest(model="m", messages=(script(final="hi"),))
        assert chat.ask(request, on_delta=lambda _: None, abort=AbortSignal()).text == "hi"

        process.send_signal(ending)

        assert process.wait(PATIENCE_S) == 0
        assert process.stderr.read() == ""


def test_the_command_says_when_its_port_is_taken(server: ScriptedServer) -> None:
    port = server.base_url.rpartition(":")[2].removesuffix("/v1")
    command = [sys.executable, "-m", "hermes_worker.models.scripted", "--port", port]

    done = subprocess.run(command, capture_output=True, text=True, timeout=30)

    assert done.returncode == 1
    assert f"cannot listen on port {port}" in done.stderr


def test_the_script_of_the_document_does_what_it_says() -> None:
    document = Path(__file__).parents[2].joinpath("docs", "testing.md").read_text()
    [line] = re.findall(r"^scripted: .*$", document, re.MULTILINE)
    user = build_user_body(f"Please:\n{line}")
    with ScriptedServer() as server:
        first = ask(server, user)
        [called] = first.tool_requests
        assert (called.name, json.loads(called.arguments)) == ("terminal", {"command": "ls"})
        assert ask(server, user, build_assistant_body(first)).text == "Listed."
