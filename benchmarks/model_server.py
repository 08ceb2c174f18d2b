"""A model server that costs next to nothing, so that a benchmark measures the worker and not the model.

    python benchmarks/model_server.py [--port 0] [--latency-s 0] [--chunks 1] [--reply-chars 64]

It speaks enough of OpenAI's chat completions for any client (streamed or not, keep-alive, HTTP/1.1) and decides its
reply without parsing the request. The conversation tells it what to do, by a marker anywhere in the last user message:

    bench:steps=20                        20 turns with one tool call each, then a final text
    bench:steps=20 tool=todo parallel=3   three calls of ``todo`` per turn (``bench_echo`` when no tool is named)

Progress is counted in the request itself: tool results behind the marker, divided by ``parallel``. So the server holds
no state, any number of replicas agree, and a repeated request gets the same reply. Without a marker the reply is text.

It prints its base URL on one line and serves until it is ended. ``GET /stats`` answers with the number of requests, the
CPU seconds this process has used and the CPU per request in microseconds; ``GET /reset`` sets the counters back.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

_MARKER = b"bench:steps="
_MARKER_PARTS = re.compile(rb"bench:steps=(\d+)(?: tool=([A-Za-z_]+))?(?: parallel=(\d+))?")
_CONTENT_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*(\d+)", re.IGNORECASE)
_HEAD_BYTES_MAX = 65_536

_SSE_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
_JSON_HEAD = b"HTTP/1.1 %d OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    latency_s: float = 0.0
    """Between the end of a request and the first byte of its reply."""
    chunks: int = 1
    """Events a final text is cut into."""
    chunk_gap_s: float = 0.0
    """Between two of those events; 0 sends the reply in one write."""
    reply_chars: int = 64


@dataclass(slots=True)
class Counters:
    requests: int = 0
    in_flight: int = 0
    in_flight_peak: int = 0
    cpu_at_start_s: float = field(default_factory=time.process_time)

    def as_json(self) -> bytes:
        cpu_s = time.process_time() - self.cpu_at_start_s
        return json.dumps(
            {
                "requests": self.requests,
                "in_flight": self.in_flight,
                "in_flight_peak": self.in_flight_peak,
                "cpu_s": round(cpu_s, 4),
                "cpu_us_per_request": round(cpu_s / max(1, self.requests) * 1e6, 1),
            }
        ).encode()


# ------------------------------------------------------------------------------------------------- deciding the reply


@dataclass(frozen=True, slots=True)
class Reply:
    """Either tool calls or a text."""

    text: str = ""
    tool: str = ""
    call_ids: tuple[str, ...] = ()
    step: int = 0


def decide(body: bytes, reply_chars: int) -> Reply:
    """What the model says. Marker and roles are found as bytes: parsing a long transcript costs milliseconds."""
    at = body.rfind(_MARKER)
    parts = _MARKER_PARTS.match(body, at) if at >= 0 else None
    if parts is None:
        return Reply(text="x" * reply_chars)
    steps, parallel = int(parts[1]), int(parts[3] or 1)
    tool = (parts[2] or b"bench_echo").decode()
    done = body.count(b'"role":"tool"', at) or body.count(b'"role": "tool"', at)
    step = done // parallel
    if step >= steps or body.rfind(b'"tools":') < 0:
        return Reply(text=f"Done after {step} steps. ".ljust(reply_chars, "x"))
    # The length of the request makes ids differ between the turns of a session, and not between repeats of a request.
    ids = tuple(f"call_{len(body):x}_{done + n}" for n in range(parallel))
    return Reply(tool=tool, call_ids=ids, step=step)


def _arguments(tool: str, step: int, number: int) -> str:
    if tool == "todo":
        todo = {"content": f"step {step}", "id": f"{step}-{number}", "status": "in_progress"}
        return json.dumps({"todos": [todo]}, separators=(",", ":"))
    return f'{{"text":"step {step} call {number}"}}'


def _tool_calls(reply: Reply) -> list[dict[str, object]]:
    return [
        {
            "index": number,
            "id": call_id,
            "type": "function",
            "function": {"name": reply.tool, "arguments": _arguments(reply.tool, reply.step, number)},
        }
        for number, call_id in enumerate(reply.call_ids)
    ]


# ------------------------------------------------------------------------------------------------ rendering the reply


def _usage(body: bytes, reply: Reply) -> dict[str, int]:
    prompt, completion = len(body) // 4, max(1, len(reply.text) // 4 or 20 * len(reply.call_ids))
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


_CHUNK = '{"id":"chatcmpl-bench","object":"chat.completion.chunk","created":0,"model":"bench","choices":[%s]%s}'


def events(body: bytes, reply: Reply, chunks: int) -> list[bytes]:
    """The reply as server-sent events, ``[DONE]`` included in the last."""
    compact = {"separators": (",", ":")}
    if reply.call_ids:
        deltas = [json.dumps({"role": "assistant", "tool_calls": _tool_calls(reply)}, **compact)]  # type: ignore[arg-type]
    else:
        size = max(1, -(-len(reply.text) // chunks))
        pieces = [reply.text[i : i + size] for i in range(0, len(reply.text), size)]
        deltas = [json.dumps({"content": piece}) for piece in pieces]
    lines = [_CHUNK % (f'{{"index":0,"delta":{delta},"finish_reason":null}}', "") for delta in deltas]
    reason = "tool_calls" if reply.call_ids else "stop"
    lines.append(_CHUNK % (f'{{"index":0,"delta":{{}},"finish_reason":"{reason}"}}', ""))
    lines.append(_CHUNK % ("", f',"usage":{json.dumps(_usage(body, reply))}'))
    rendered = [f"data: {line}\n\n".encode() for line in lines]
    rendered[-1] += b"data: [DONE]\n\n"
    return rendered


def document(body: bytes, reply: Reply) -> bytes:
    """The reply as one JSON document, for a request that does not stream."""
    message: dict[str, object] = {"role": "assistant", "content": reply.text or None}
    if reply.call_ids:
        message["tool_calls"] = _tool_calls(reply)
    reason = "tool_calls" if reply.call_ids else "stop"
    choice = {"index": 0, "message": message, "finish_reason": reason}
    return json.dumps(
        {
            "id": "chatcmpl-bench",
            "object": "chat.completion",
            "created": 0,
            "model": "bench",
            "choices": [choice],
            "usage": _usage(body, reply),
        }
    ).encode()


def _http_chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


# ------------------------------------------------------------------------------------------------------------- server


class _Trickle:
    """Sends the events of all replies at their times, each reply's by a clock of its own that began with it.

    All have the same gap between two events, so whoever was sent one is next behind all others: a queue, no timers.
    """

    def __init__(self, gap_s: float) -> None:
        self._gap_s = gap_s
        self._due: deque[tuple[float, Iterator[bytes], _Connection]] = deque()
        self._is_sending = False

    def add(self, pieces: Iterator[bytes], connection: _Connection) -> None:
        """The first event goes out at once."""
        self._due.append((time.monotonic(), pieces, connection))
        if not self._is_sending:
            self._is_sending = True
            asyncio.get_running_loop().call_soon(self._send_due)

    def _send_due(self) -> None:
        due, now_s = self._due, time.monotonic()
        while due and due[0][0] <= now_s:
            at_s, pieces, connection = due.popleft()
            piece = next(pieces, None)
            if piece is None:
                connection.end_reply()
            else:
                connection.write(piece)
                due.append((at_s + self._gap_s, pieces, connection))
        self._is_sending = bool(due)
        if due:
            asyncio.get_running_loop().call_later(max(0.0, due[0][0] - time.monotonic()), self._send_due)


class _Connection(asyncio.Protocol):
    """One client connection. Requests on it are answered in order."""

    def __init__(self, options: Options, counters: Counters, trickle: _Trickle) -> None:
        self._options = options
        self._counters = counters
        self._trickle = trickle
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._is_answering = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None

    def data_received(self, data: bytes) -> None:
        self._received += data
        if not self._is_answering:
            self._next_request()

    def _next_request(self) -> None:
        """Answer the request at the head of what was received, once it is whole."""
        head_end = self._received.find(b"\r\n\r\n")
        if head_end < 0:
            if len(self._received) > _HEAD_BYTES_MAX:
                self._close()
            return
        head = bytes(self._received[: head_end + 2])
        length = _CONTENT_LENGTH.search(head)
        end = head_end + 4 + (int(length[1]) if length else 0)
        if len(self._received) < end:
            return
        body = bytes(self._received[head_end + 4 : end])
        del self._received[:end]
        self._answer(head, body)

    def _answer(self, head: bytes, body: bytes) -> None:
        if head.startswith(b"POST") and b"/chat/completions" in head[:200]:
            self._is_answering = True
            self._counters.requests += 1
            self._counters.in_flight += 1
            self._counters.in_flight_peak = max(self._counters.in_flight_peak, self._counters.in_flight)
            if self._options.latency_s:
                asyncio.get_running_loop().call_later(self._options.latency_s, self._reply, body)
            else:
                self._reply(body)
        elif head.startswith(b"GET /stats"):
            self._send_json(200, self._counters.as_json())
        elif head.startswith(b"GET /reset"):
            in_flight = self._counters.in_flight
            self._counters.__init__()  # type: ignore[misc]
            self._counters.in_flight = in_flight
            self._send_json(200, b"{}")
        else:
            self._send_json(404, b'{"error":{"message":"only /chat/completions, /stats and /reset"}}')

    def _reply(self, body: bytes) -> None:
        reply = decide(body, self._options.reply_chars)
        if body.rfind(b'"stream":true') < 0 and body.rfind(b'"stream": true') < 0:
            self._send_json(200, document(body, reply))
            self._finish()
            return
        pieces = events(body, reply, self._options.chunks)
        if self._options.chunk_gap_s:
            self.write(_SSE_HEAD)
            self._trickle.add(iter(map(_http_chunk, pieces)), self)
            return
        self.write(_SSE_HEAD + b"".join(map(_http_chunk, pieces)) + b"0\r\n\r\n")
        self._finish()

    def end_reply(self) -> None:
        """Of a reply that came bit by bit."""
        self.write(b"0\r\n\r\n")
        self._finish()

    def _send_json(self, status: int, document: bytes) -> None:
        self.write(_JSON_HEAD % (status, len(document)) + document)

    def _finish(self) -> None:
        self._counters.in_flight -= 1
        self._is_answering = False
        if self._received:
            self._next_request()

    def write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def _close(self) -> None:
        if self._transport is not None:
            self._transport.close()


async def start(options: Options, port: int = 0) -> asyncio.Server:
    """A server that is already listening, on loopback."""
    counters = Counters()
    loop = asyncio.get_running_loop()
    trickle = _Trickle(options.chunk_gap_s)
    return await loop.create_server(lambda: _Connection(options, counters, trickle), "127.0.0.1", port, backlog=4096)


async def _serve(options: Options, port: int) -> None:
    server = await start(options, port)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1", flush=True)
    await server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=0, help="0 picks a free one")
    parser.add_argument("--latency-s", type=float, default=0.0)
    parser.add_argument("--chunks", type=int, default=1)
    parser.add_argument("--chunk-gap-s", type=float, default=0.0)
    parser.add_argument("--reply-chars", type=int, default=64)
    given = parser.parse_args()
    options = Options(
        latency_s=given.latency_s,
        chunks=given.chunks,
        chunk_gap_s=given.chunk_gap_s,
        reply_chars=given.reply_chars,
    )
    try:
        asyncio.run(_serve(options, given.port))
    except KeyboardInterrupt:
        print("stopped")


if __name__ == "__main__":
    main()
