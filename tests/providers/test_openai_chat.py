import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest
from support.fault_server import (
    FaultServer,
    Handler,
    Received,
    Reply,
    finish_chunk,
    say_hello,
    text_chunk,
)
from support.patience import PATIENCE_S

from hermes_worker.core.abort import AbortSignal
from hermes_worker.core.errors import FailureKind, ModelCallError
from hermes_worker.core.messages import Delta, ModelReply, ModelRequest, Usage, build_user_body, dump_canonical_json
from hermes_worker.models import connections
from hermes_worker.models import exchange as calling
from hermes_worker.models.endpoint import Endpoint
from hermes_worker.models.wires.openai_chat import Dialect, OpenAIChat, adapt_dialect, build_request_body
from hermes_worker.models.wires.pace import REST_S

KEY = "sk-test-0123456789abcdefghij"
TOOL = dump_canonical_json(
    {"type": "function", "function": {"name": "terminal", "parameters": {"type": "object", "properties": {}}}}
)
REQUEST = ModelRequest(model="m", messages=(build_user_body("hello"),), tools=(TOOL,), session_id="s-1")
TLS = Path(__file__).parent / "tls"


@pytest.fixture
def serve() -> Iterator[Callable[..., FaultServer]]:
    servers: list[FaultServer] = []

    def start(handler: Handler, tls: ssl.SSLContext | None = None) -> FaultServer:
        server = FaultServer(handler, tls=tls)
        server.__enter__()
        servers.append(server)
        return server

    yield start
    for server in servers:
        server.__exit__()


def provider(server: FaultServer, **fields: Any) -> OpenAIChat:
    return OpenAIChat(Endpoint(base_url=server.base_url, api_key=KEY, **fields))


def ask(
    chat: OpenAIChat,
    request: ModelRequest = REQUEST,
    abort: AbortSignal | None = None,
    deltas: list[Delta] | None = None,
) -> ModelReply:
    heard: list[Delta] = [] if deltas is None else deltas
    return chat.ask(request, on_delta=heard.append, abort=abort or AbortSignal())


def failure(chat: OpenAIChat, request: ModelRequest = REQUEST, abort: AbortSignal | None = None) -> ModelCallError:
    with pytest.raises(ModelCallError) as raised:
        ask(chat, request, abort)
    return raised.value


Serve = Callable[..., FaultServer]

ENDS_AT_ONCE_S = 0.5
"""Aborts take milliseconds; a machine busy with other tests may take longer to schedule a thread. A call that did not
notice its abort would go on for minutes."""


@contextlib.contextmanager
def unaccepting_server() -> Iterator[str]:
    """The address of a listening socket whose queue is full, so that further connections hang in the handshake."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        for filler in fillers:
            filler.close()


def trusting_tls(monkeypatch: pytest.MonkeyPatch) -> ssl.SSLContext:
    """Makes clients trust the test's certificate; returns the context that serves it."""
    trusting = ssl.create_default_context(cafile=str(TLS / "localhost-cert.pem"))
    trusting.verify_flags |= ssl.VERIFY_X509_STRICT  # the default from Python 3.13 on
    monkeypatch.setattr(connections, "get_shared_ssl_context", lambda: trusting)
    return serving_tls()


def serving_tls() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(TLS / "localhost-cert.pem", TLS / "localhost-key.pem")
    return context


# ----------------------------------------------------------------------------------------------------------- a reply


def test_a_streamed_reply_arrives_whole_and_piece_by_piece(serve: Serve) -> None:
    deltas: list[Delta] = []

    reply = ask(provider(serve(say_hello)), deltas=deltas)

    assert reply == ModelReply(text="hello", usage=Usage(input=12, output=3))
    assert deltas == [Delta(text="hel"), Delta(text="lo")]


def test_the_request_holds_the_rows_byte_for_byte(serve: Serve) -> None:
    server = serve(say_hello)

    ask(provider(server))

    assert server.requests[0].body == (
        b'{"model":"m","stream":true,"stream_options":{"include_usage":true},"tools":['
        + TOOL.encode()
        + b'],"messages":[{"content":"hello","role":"user"}]}'
    )
    assert server.requests[0].header("authorization") == f"Bearer {KEY}"
    assert server.requests[0].header("content-type") == "application/json"


def test_the_environment_adds_nothing_to_a_request(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_ORG_ID", "org-leak")
    monkeypatch.setenv("OPENAI_PROJECT_ID", "proj-leak")
    monkeypatch.setenv("OPENAI_ADMIN_KEY", "admin-leak")
    monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", "X-Leak: yes\nAuthorization: Bearer leak")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:1/leak")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    server = serve(say_hello)

    ask(provider(server))

    assert "leak" not in server.requests[0].head
    assert server.requests[0].header("authorization") == f"Bearer {KEY}"


def test_without_a_key_no_credential_is_sent(serve: Serve) -> None:
    server = serve(say_hello)

    ask(OpenAIChat(Endpoint(base_url=server.base_url)))

    assert server.requests[0].header("authorization") is None


def test_azure_gets_its_own_header_and_the_query_of_the_base_url(serve: Serve) -> None:
    server = serve(say_hello)

    ask(OpenAIChat(Endpoint(base_url=f"{server.base_url}/?api-version=preview", api_key=KEY, key_header="api-key")))

    assert server.requests[0].header("api-key") == KEY
    assert server.requests[0].header("authorization") is None
    assert server.requests[0].head.startswith("POST /v1/chat/completions?api-version=preview HTTP/1.1")


def test_a_server_that_answers_in_one_piece_is_understood(serve: Serve) -> None:
    def handler(_: Received, reply: Reply) -> None:
        message = {"role": "assistant", "content": "in one piece"}
        reply.document(200, {"choices": [{"message": message, "finish_reason": "stop"}], "usage": {"prompt_tokens": 7}})

    deltas: list[Delta] = []
    reply = ask(provider(serve(handler)), deltas=deltas)

    assert (reply.text, reply.usage.input) == ("in one piece", 7)
    assert deltas == [Delta(text="in one piece")]


def test_a_stream_under_the_wrong_content_type_is_understood(serve: Serve) -> None:
    def handler(_: Received, reply: Reply) -> None:
        reply.head(200, "application/json")
        reply.raw(b"2\r\n\n\n\r\n")
        reply.event(text_chunk("fine", "stop"))
        reply.event("[DONE]")
        reply.end()

    assert ask(provider(serve(handler))).text == "fine"


def test_a_connection_is_used_again(serve: Serve) -> None:
    server = serve(say_hello)
    chat = provider(server)

    for _ in range(5):
        ask(chat)

    assert len(server.requests) == 5
    assert server.connections == 1


def test_a_connection_that_the_server_closed_meanwhile_is_replaced(serve: Serve) -> None:
    closed = threading.Event()

    def handler(request: Received, reply: Reply) -> None:
        say_hello(request, reply)
        if request.number == 0:
            reply.close()
            closed.set()

    server = serve(handler)
    chat = provider(server)
    ask(chat)
    assert closed.wait(PATIENCE_S)

    assert ask(chat).text == "hello"
    assert server.connections == 2


def test_a_server_that_dawdles_after_done_costs_its_connection_and_no_time(serve: Serve) -> None:
    def handler(request: Received, reply: Reply) -> None:
        if request.number > 0:
            say_hello(request, reply)
            return
        reply.head()
        reply.event(text_chunk("early", "stop"))
        reply.event("[DONE]")
        reply.block()

    server = serve(handler)
    chat = provider(server)

    assert ask(chat).text == "early"
    assert ask(chat).text == "hello"
    assert server.connections == 2


@pytest.mark.parametrize("is_secure", [False, True])
def test_many_small_events_take_few_reads(serve: Serve, monkeypatch: pytest.MonkeyPatch, is_secure: bool) -> None:
    """Each read wakes a thread, which costs more than all that is done with the event."""
    events, reads = 400, counted_reads(monkeypatch)

    def trickle(_: Received, reply: Reply) -> None:
        reply.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        reply.head()
        for _ in range(events):
            reply.event(text_chunk("x"))
            time.sleep(0.0005)
        reply.event(finish_chunk())
        reply.event("[DONE]")
        reply.end()

    server = serve(trickle, tls=trusting_tls(monkeypatch) if is_secure else None)
    deltas: list[Delta] = []
    reply = ask(provider(server), deltas=deltas)

    assert reply.text == "x" * events
    assert len(deltas) == events
    assert len(reads) < events / 2


def counted_reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many bytes each read of a connection brings, from now on."""
    reads: list[int] = []
    read = connections._Stream.read

    def counted(stream: connections._Stream, max_bytes: int, timeout: float | None = None) -> bytes:
        data = read(stream, max_bytes, timeout)
        reads.append(len(data))
        return data

    monkeypatch.setattr(connections._Stream, "read", counted)
    return reads


def test_a_call_that_rests_between_reads_ends_at_once(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    resting = threading.Event()
    sleep = time.sleep

    def observed(seconds: float) -> None:
        if seconds == REST_S:
            resting.set()
        sleep(seconds)

    def trickle(_: Received, reply: Reply) -> None:
        reply.head()
        while not reply.closing.wait(0.0005):
            reply.event(text_chunk("x"))

    monkeypatch.setattr(time, "sleep", observed)
    error, took_s = abort_while_blocked(provider(serve(trickle)), resting.is_set)

    assert resting.is_set()
    assert error.kind is FailureKind.INTERRUPTED
    assert took_s < ENDS_AT_ONCE_S


def test_calls_on_many_threads_do_not_mix(serve: Serve) -> None:
    def echo(request: Received, reply: Reply) -> None:
        text = request.document["messages"][0]["content"]
        reply.sse(*(text_chunk(character) for character in text), finish_chunk(), "[DONE]")

    chat = provider(serve(echo))
    answers: dict[int, str] = {}

    def work(number: int) -> None:
        for round_number in range(5):
            text = f"{number}-{round_number}"
            answers[number * 100 + round_number] = ask(
                chat, ModelRequest(model="m", messages=(build_user_body(text),))
            ).text

    threads = [threading.Thread(target=work, args=(n,)) for n in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert answers == {n * 100 + r: f"{n}-{r}" for n in range(20) for r in range(5)}


# ------------------------------------------------------------------------------------------------- the request's body


ENDPOINT = Endpoint(base_url="http://127.0.0.1:1/v1")


def test_fields_are_sorted_and_compact_whatever_is_added_and_the_conversation_comes_last() -> None:
    request = ModelRequest(
        model="m", messages=("{}",), extra_body={"temperature": 0, "a": {"z": 1, "b": 2}}, output_tokens_max=9
    )

    assert build_request_body(request, ENDPOINT, Dialect(takes_stream_options=False)) == (
        b'{"a":{"b":2,"z":1},"max_tokens":9,"model":"m","stream":true,"temperature":0,"messages":[{}]}'
    )


def test_extra_fields_cannot_replace_the_conversation() -> None:
    request = ModelRequest(model="m", messages=("1",), extra_body={"messages": [], "model": "x", "stream": False})

    assert (
        build_request_body(request, ENDPOINT, Dialect(streams=False)) == b'{"model":"m","stream":false,"messages":[1]}'
    )


def test_a_model_name_cannot_break_out_of_the_json() -> None:
    request = ModelRequest(model='m","x":"y', messages=())

    assert b'"model":"m\\",\\"x\\":\\"y"' in build_request_body(request, ENDPOINT, Dialect())


def test_the_session_becomes_a_cache_key_only_where_that_is_understood() -> None:
    endpoint = Endpoint(base_url="https://api.openai.com/v1", sends_cache_key=True)
    long_id = ModelRequest(model="m", messages=(), session_id="s" * 100)

    assert b"prompt_cache_key" not in build_request_body(REQUEST, ENDPOINT, Dialect())
    assert b'"prompt_cache_key":"s-1"' in build_request_body(REQUEST, endpoint, Dialect())
    assert b"s" * 65 not in build_request_body(long_id, endpoint, Dialect())


# ---------------------------------------------------------------------------------------- learning how to be understood


def test_a_server_that_refuses_stream_options_is_asked_without_and_remembered(serve: Serve) -> None:
    def handler(request: Received, reply: Reply) -> None:
        if "stream_options" in request.document:
            reply.document(400, {"error": {"message": "Unrecognized request argument supplied: stream_options"}})
        else:
            say_hello(request, reply)

    server = serve(handler)
    chat = provider(server)

    assert ask(chat).text == "hello"
    assert ask(chat).text == "hello"
    assert ["stream_options" in r.document for r in server.requests] == [True, False, False]


def test_a_server_that_cannot_stream_is_asked_for_one_piece_and_remembered(serve: Serve) -> None:
    def handler(request: Received, reply: Reply) -> None:
        if request.document["stream"]:
            reply.document(400, {"error": {"message": "streaming is not supported by this model"}})
        else:
            reply.document(200, {"choices": [{"message": {"content": "whole"}, "finish_reason": "stop"}]})

    server = serve(handler)
    chat = provider(server)

    assert ask(chat).text == "whole"
    assert ask(chat).text == "whole"
    assert [r.document["stream"] for r in server.requests] == [True, False, False]


def test_a_server_that_wants_the_other_output_limit_gets_it(serve: Serve) -> None:
    def handler(request: Received, reply: Reply) -> None:
        if "max_tokens" in request.document:
            said = "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens'."
            reply.document(400, {"error": {"message": said, "code": "unsupported_parameter"}})
        else:
            say_hello(request, reply)

    server = serve(handler)

    ask(provider(server), ModelRequest(model="m", messages=(build_user_body("x"),), output_tokens_max=7))

    assert server.requests[-1].document["max_completion_tokens"] == 7


def test_a_refusal_of_something_else_is_not_asked_again(serve: Serve) -> None:
    server = serve(lambda _, reply: reply.document(400, {"error": {"message": "messages: too short"}}))

    assert failure(provider(server)).kind is FailureKind.FORMAT_ERROR
    assert len(server.requests) == 1


def test_a_server_that_refuses_everything_is_asked_a_bounded_number_of_times(serve: Serve) -> None:
    said = "unknown fields: stream, stream_options, max_tokens are not supported"
    server = serve(lambda _, reply: reply.document(400, {"error": {"message": said}}))

    assert failure(provider(server)).status == 400
    assert len(server.requests) == 4


@pytest.mark.parametrize("status", [401, 404, 429, 500])
def test_only_refusals_of_the_request_change_the_dialect(status: int) -> None:
    error = ModelCallError(FailureKind.UNKNOWN, "stream_options are not supported", status=status)

    assert adapt_dialect(Dialect(), error, request=REQUEST) is None


# ----------------------------------------------------------------------------------------------------------- failures


@pytest.mark.parametrize(
    ("status", "message", "kind"),
    [
        (400, "bad request of some kind that is long enough", FailureKind.FORMAT_ERROR),
        (400, "This model's maximum context length is 8192 tokens", FailureKind.CONTEXT_OVERFLOW),
        (401, "Incorrect API key provided", FailureKind.AUTH),
        (402, "Payment Required", FailureKind.BILLING),
        (403, "Forbidden", FailureKind.AUTH),
        (404, "The model `x` does not exist", FailureKind.MODEL_NOT_FOUND),
        (408, "slow", FailureKind.TIMEOUT),
        (413, "big", FailureKind.PAYLOAD_TOO_LARGE),
        (429, "Too Many Requests", FailureKind.RATE_LIMIT),
        (500, "boom", FailureKind.SERVER_ERROR),
        (502, "bad gateway", FailureKind.SERVER_ERROR),
        (503, "busy", FailureKind.OVERLOADED),
        (529, "busy", FailureKind.OVERLOADED),
    ],
)
def test_statuses_become_kinds(serve: Serve, status: int, message: str, kind: FailureKind) -> None:
    error = failure(provider(serve(lambda _, reply: reply.document(status, {"error": {"message": message}}))))

    assert (error.kind, error.status) == (kind, status)
    assert message in error.message


def test_a_wait_in_seconds_is_passed_on(serve: Serve) -> None:
    server = serve(lambda _, reply: reply.document(429, {"error": {"message": "slow down"}}, "Retry-After: 17"))

    assert failure(provider(server)).retry_after_s == 17


def test_a_wait_until_a_date_is_passed_on(serve: Serve) -> None:
    def handler(_: Received, reply: Reply) -> None:
        reply.document(
            503, {"error": {"message": "later"}}, f"Retry-After: {formatdate(time.time() + 60, usegmt=True)}"
        )

    wait_s = failure(provider(serve(handler))).retry_after_s

    assert wait_s is not None
    assert 50 < wait_s <= 61


def test_a_failure_that_is_a_web_page_stays_readable(serve: Serve) -> None:
    page = b"<html><body>" + b"<p>oops</p>" * 1000 + b"</body></html>"
    error = failure(provider(serve(lambda _, reply: reply.document(502, page, content_type="text/html"))))

    assert error.kind is FailureKind.SERVER_ERROR
    assert len(error.message) < 2_100


def test_a_web_page_with_status_200_names_the_setting(serve: Serve) -> None:
    server = serve(lambda _, reply: reply.document(200, b"<!DOCTYPE html><html></html>", content_type="text/html"))

    error = failure(provider(server))

    assert error.kind is FailureKind.SERVER_ERROR
    assert "HERMES_BASE_URL" in error.message


def test_an_address_without_the_api_hints_at_the_path(serve: Serve) -> None:
    error = failure(provider(serve(lambda _, reply: reply.document(404, b"404 page not found"))))

    assert "/v1" in error.message


def test_a_redirect_is_not_followed_with_the_key(serve: Serve) -> None:
    other = serve(say_hello)
    server = serve(lambda _, reply: reply.document(307, {}, f"Location: {other.base_url}/chat/completions"))

    error = failure(provider(server))

    assert error.kind is FailureKind.CONFIGURATION
    assert other.base_url in error.message
    assert other.requests == []


def test_a_refused_connection_names_the_setting() -> None:
    with FaultServer(say_hello) as server:
        base_url = server.base_url
    error = failure(OpenAIChat(Endpoint(base_url=base_url)))

    assert error.kind is FailureKind.UNREACHABLE
    assert "HERMES_BASE_URL" in error.message
    assert base_url in error.message
    assert "refused" in error.message.lower()


@pytest.mark.parametrize("host", ["no-such-host.invalid", "a" * 64 + ".invalid", "a..invalid"])
def test_an_unknown_host_names_the_setting(host: str) -> None:
    error = failure(OpenAIChat(Endpoint(base_url=f"http://{host}/v1")))

    assert error.kind is FailureKind.UNREACHABLE
    assert "HERMES_BASE_URL" in error.message


def test_a_server_that_never_accepts_times_out_as_unreachable() -> None:
    with unaccepting_server() as base_url:
        error = failure(OpenAIChat(Endpoint(base_url=base_url, connect_timeout_s=0.2)))

    assert error.kind is FailureKind.UNREACHABLE


def test_an_untrusted_certificate_is_refused(serve: Serve) -> None:
    server = serve(say_hello, tls=serving_tls())

    error = failure(provider(server))

    assert error.kind is FailureKind.SSL_CERT_VERIFICATION
    assert server.requests == []


def test_a_trusted_certificate_is_accepted(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    server = serve(say_hello, tls=trusting_tls(monkeypatch))
    chat = provider(server)

    assert ask(chat).text == "hello"
    assert ask(chat).text == "hello"
    assert server.connections == 1


def test_speaking_tls_to_a_plain_server_says_so(serve: Serve) -> None:
    base_url = serve(say_hello).base_url.replace("http:", "https:")

    error = failure(OpenAIChat(Endpoint(base_url=base_url, connect_timeout_s=0.3)))

    assert error.kind in (FailureKind.UNREACHABLE, FailureKind.TIMEOUT)
    assert base_url in error.message


def test_silence_before_the_first_byte_times_out(serve: Serve) -> None:
    error = failure(provider(serve(lambda _, reply: reply.block()), read_timeout_s=0.2))

    assert error.kind is FailureKind.TIMEOUT


def test_a_model_that_thinks_for_long_may_be_silent_for_longer(serve: Serve) -> None:
    server = serve(say_hello)

    assert ask(provider(server), ModelRequest(model="o3-mini", messages=(build_user_body("x"),))).text == "hello"


def test_silence_after_some_text_keeps_the_text(serve: Serve) -> None:
    def handler(_: Received, reply: Reply) -> None:
        reply.head()
        reply.event(text_chunk("half an ans"))
        reply.block()

    reply = ask(provider(serve(handler), read_timeout_s=1.0))

    assert (reply.text, reply.finish_reason) == ("half an ans", "length")


@pytest.mark.parametrize("ending", ["end", "close", "reset"])
def test_a_stream_that_breaks_after_some_text_keeps_the_text(serve: Serve, ending: str) -> None:
    def handler(_: Received, reply: Reply) -> None:
        reply.head()
        reply.event(text_chunk("half an ans"))
        time.sleep(0.05)  # or the reset overtakes the text
        getattr(reply, ending)()

    reply = ask(provider(serve(handler)))

    assert (reply.text, reply.finish_reason) == ("half an ans", "length")


@pytest.mark.parametrize("ending", ["end", "close", "reset"])
def test_a_stream_that_breaks_before_any_text_is_a_timeout(serve: Serve, ending: str) -> None:
    def handler(_: Received, reply: Reply) -> None:
        reply.head()
        getattr(reply, ending)()

    error = failure(provider(serve(handler)))

    assert error.kind is FailureKind.TIMEOUT


@pytest.mark.parametrize("ending", ["close", "reset"])
def test_a_server_that_hangs_up_without_answering_is_a_timeout(serve: Serve, ending: str) -> None:
    error = failure(provider(serve(lambda _, reply: getattr(reply, ending)())))

    assert error.kind is FailureKind.TIMEOUT


def test_a_broken_stream_in_the_middle_of_a_tool_call_is_asked_again_by_the_loop(serve: Serve) -> None:
    def handler(_: Received, reply: Reply) -> None:
        reply.head()
        call = {"index": 0, "id": "a", "function": {"name": "terminal", "arguments": '{"comm'}}
        reply.event({"choices": [{"delta": {"tool_calls": [call]}}]})
        reply.close()

    assert failure(provider(serve(handler))).kind is FailureKind.TIMEOUT


@pytest.mark.parametrize("event", ["{not json", '{"choices":[]} {}', '"text"', '{"choices":5}', "[" * 100_000])
def test_a_malformed_chunk_is_a_server_error(serve: Serve, event: str) -> None:
    server = serve(lambda _, reply: reply.sse(text_chunk("x"), event, "[DONE]"))

    assert failure(provider(server)).kind is FailureKind.SERVER_ERROR


def test_a_document_without_choices_is_a_server_error(serve: Serve) -> None:
    server = serve(lambda _, reply: reply.document(200, {"object": "list", "data": []}))

    assert failure(provider(server)).kind is FailureKind.SERVER_ERROR


@pytest.mark.parametrize("is_streamed", [True, False])
def test_an_error_under_status_200_is_an_error(serve: Serve, is_streamed: bool) -> None:
    body = {"error": {"message": "Rate limit exceeded, try again in 5 s", "code": 429}}

    def handler(_: Received, reply: Reply) -> None:
        if is_streamed:
            reply.sse(text_chunk(""), body)
        else:
            reply.document(200, body)

    error = failure(provider(serve(handler)))

    assert (error.kind, error.status) == (FailureKind.RATE_LIMIT, 429)


def test_an_endless_reply_is_cut_off(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calling, "REPLY_BYTES_MAX", 100_000)

    def handler(_: Received, reply: Reply) -> None:
        reply.head()
        while not reply.closing.is_set():
            reply.event(text_chunk("x" * 1_000))

    assert failure(provider(serve(handler))).kind is FailureKind.SERVER_ERROR


def test_a_failing_listener_is_not_mistaken_for_a_failing_model(serve: Serve) -> None:
    def fail(_: Delta) -> None:
        raise ConnectionError("the listener's own trouble")

    with pytest.raises(ConnectionError):
        provider(serve(say_hello)).ask(REQUEST, on_delta=fail, abort=AbortSignal())


@pytest.mark.parametrize("status", [200, 400, 401, 500])
def test_no_message_ever_holds_the_key(serve: Serve, status: int) -> None:
    def handler(request: Received, reply: Reply) -> None:
        said = f"Incorrect API key provided: {KEY}. Header was {request.header('authorization')}"
        reply.document(status, {"error": {"message": said, "key": KEY}})

    error = failure(provider(serve(handler)))

    assert KEY not in error.message
    assert KEY[:10] not in error.message
    assert KEY not in str(error)
    assert KEY not in repr(provider(serve(handler)).endpoint)


# -------------------------------------------------------------------------------------------------------------- abort


def abort_while_blocked(chat: OpenAIChat, is_blocked: Callable[[], bool]) -> tuple[ModelCallError, float]:
    """The error of a call that is aborted once it is blocked, and how many seconds that took."""
    signal = AbortSignal()
    result: list[ModelCallError] = []
    thread = threading.Thread(target=lambda: result.append(failure(chat, abort=signal)))
    thread.start()
    deadline = time.monotonic() + PATIENCE_S
    while not is_blocked() and time.monotonic() < deadline:
        time.sleep(0.005)
    started = time.monotonic()
    signal.set("cancelled")
    thread.join(PATIENCE_S)
    return result[0], time.monotonic() - started


def test_a_call_that_waits_for_the_first_byte_ends_at_once(serve: Serve) -> None:
    server = serve(lambda _, reply: reply.block())

    error, took_s = abort_while_blocked(provider(server), lambda: bool(server.requests))

    assert error.kind is FailureKind.INTERRUPTED
    assert took_s < ENDS_AT_ONCE_S


def test_a_call_in_the_middle_of_a_stream_ends_at_once_and_keeps_no_text(serve: Serve) -> None:
    streaming = threading.Event()

    def handler(_: Received, reply: Reply) -> None:
        reply.head()
        reply.event(text_chunk("some text"))
        streaming.set()
        reply.block()

    error, took_s = abort_while_blocked(provider(serve(handler)), streaming.is_set)

    assert error.kind is FailureKind.INTERRUPTED
    assert took_s < ENDS_AT_ONCE_S


def test_a_call_that_receives_without_pause_ends_at_once(serve: Serve) -> None:
    streaming = threading.Event()

    def handler(_: Received, reply: Reply) -> None:
        reply.head()
        while not reply.closing.is_set():
            reply.event(text_chunk("x"))
            streaming.set()

    error, took_s = abort_while_blocked(provider(serve(handler)), streaming.is_set)

    assert error.kind is FailureKind.INTERRUPTED
    assert took_s < ENDS_AT_ONCE_S


def test_a_call_that_waits_for_a_connection_ends_at_once() -> None:
    with unaccepting_server() as base_url:
        chat = OpenAIChat(Endpoint(base_url=base_url))
        started = time.monotonic()

        error, took_s = abort_while_blocked(chat, lambda: time.monotonic() > started + 0.1)

    assert error.kind is FailureKind.INTERRUPTED
    assert took_s < ENDS_AT_ONCE_S


def test_a_call_that_waits_for_a_name_ends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, release = threading.Event(), threading.Event()

    def stuck_lookup(*_: Any, flags: int = 0, **__: Any) -> list[Any]:
        if flags & socket.AI_NUMERICHOST:
            raise socket.gaierror("a name is no address")
        asked.set()
        release.wait(30)
        raise OSError("too late")

    monkeypatch.setattr(socket, "getaddrinfo", stuck_lookup)

    error, took_s = abort_while_blocked(OpenAIChat(Endpoint(base_url="http://slow.invalid/v1")), asked.is_set)
    release.set()

    assert error.kind is FailureKind.INTERRUPTED
    assert took_s < ENDS_AT_ONCE_S


def test_a_call_in_the_tls_handshake_ends_at_once(serve: Serve) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        accepted: list[socket.socket] = []
        threading.Thread(target=lambda: accepted.append(listener.accept()[0]), daemon=True).start()
        chat = OpenAIChat(Endpoint(base_url=f"https://127.0.0.1:{listener.getsockname()[1]}/v1"))

        error, took_s = abort_while_blocked(chat, lambda: bool(accepted))

    assert error.kind is FailureKind.INTERRUPTED
    assert took_s < ENDS_AT_ONCE_S


def test_a_call_under_tls_ends_at_once(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    server = serve(lambda _, reply: reply.block(), tls=trusting_tls(monkeypatch))

    error, took_s = abort_while_blocked(provider(server), lambda: bool(server.requests))

    assert error.kind is FailureKind.INTERRUPTED
    assert took_s < ENDS_AT_ONCE_S


def test_an_abort_that_came_before_the_call_sends_nothing(serve: Serve) -> None:
    server = serve(say_hello)
    signal = AbortSignal()
    signal.set("cancelled")

    assert failure(provider(server), abort=signal).kind is FailureKind.INTERRUPTED
    assert server.requests == []


def test_an_abort_on_an_idle_connection_leaves_it_for_the_next_call(serve: Serve) -> None:
    server = serve(say_hello)
    chat = provider(server)
    ask(chat)
    signal = AbortSignal()
    signal.set("cancelled")

    failure(chat, abort=signal)

    assert ask(chat).text == "hello"
    assert server.connections == 1


def test_an_abort_that_comes_after_the_reply_hurts_nobody(serve: Serve) -> None:
    release = threading.Event()

    def handler(request: Received, reply: Reply) -> None:
        if request.number == 1:
            release.wait(10)
        say_hello(request, reply)

    server = serve(handler)
    chat = provider(server)
    late = AbortSignal()
    ask(chat, abort=late)
    answers: list[str] = []
    thread = threading.Thread(target=lambda: answers.append(ask(chat).text))
    thread.start()
    while len(server.requests) < 2:
        time.sleep(0.005)

    late.set("too late")
    release.set()
    thread.join(PATIENCE_S)

    assert answers == ["hello"]
    assert server.connections == 1


def test_a_hundred_aborts_disturb_none_of_a_hundred_healthy_calls(serve: Serve) -> None:
    release = threading.Event()

    def handler(request: Received, reply: Reply) -> None:
        if b"doomed" in request.body:
            reply.block()
            return
        reply.head()
        reply.event(text_chunk("half, "))
        release.wait(30)
        reply.event(text_chunk("whole", "stop"))
        reply.event("[DONE]")
        reply.end()

    server = serve(handler)
    chat = provider(server)
    signals = [AbortSignal() for _ in range(100)]
    kinds: list[FailureKind] = []
    healthy: list[str] = []

    def doomed(signal: AbortSignal) -> None:
        kinds.append(failure(chat, ModelRequest(model="m", messages=(build_user_body("doomed"),)), signal).kind)

    threads = [threading.Thread(target=doomed, args=(signal,)) for signal in signals]
    threads += [threading.Thread(target=lambda: healthy.append(ask(chat).text)) for _ in range(100)]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + PATIENCE_S
    while len(server.requests) < 200 and time.monotonic() < deadline:
        time.sleep(0.01)
    for signal in signals:
        signal.set("cancelled")
    for thread in threads[:100]:
        thread.join(PATIENCE_S)
    ended = len(kinds)
    release.set()
    for thread in threads:
        thread.join(PATIENCE_S)

    assert ended == 100, "some of them waited for their answers"
    assert kinds == [FailureKind.INTERRUPTED] * 100
    assert healthy == ["half, whole"] * 100


# -------------------------------------------------------------------------------------------------------------- proxy


def test_a_proxy_is_used_when_one_is_given(serve: Serve) -> None:
    proxy = serve(say_hello)

    chat = OpenAIChat(Endpoint(base_url="http://model.invalid/v1", proxy_url=f"http://127.0.0.1:{proxy.port}"))

    assert ask(chat).text == "hello"
    assert proxy.requests[0].head.startswith("POST http://model.invalid/v1/chat/completions HTTP/1.1")
