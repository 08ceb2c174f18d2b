"""How long an idle stack lets a person wait: ``python -m benchmarks.first_token``.

A provider of the benchmark notes when a request arrives and when its reply is sent. A stack that ``hermes-worker up``
starts is asked over its API and the provider is asked directly, by turns, and three times are printed in ms:

    to the provider   from the client's first byte to the whole request at the provider
    first token       from the client's first byte to the first text of the answer
    gap               from the end of a reply that calls a tool to the next request of the run, the tool call included
"""

from __future__ import annotations

import argparse
import json
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from statistics import quantiles

from benchmarks.up import KEY, run_up
from hermes_worker.local.postgres import EmbeddedPostgres

CALLS_TOOLS = "call a tool, please"
TOOL_CALLS = 10
"""Of the run whose gaps are measured."""
WARM_UP = 10
_PATIENCE_S = 300.0
_CHUNK = '{"id":"chatcmpl-bench","object":"chat.completion.chunk","created":0,"model":"bench","choices":[%s]}'


@dataclass
class Provider:
    """What the provider saw, in seconds of the monotonic clock."""

    url: str = ""
    arrived: list[float] = field(default_factory=list)
    replied: list[float] = field(default_factory=list)


@contextmanager
def provider() -> Iterator[Provider]:
    """Serve chat completions: a text, or a call of the tool ``todo`` where the last person asks for it."""
    seen = Provider()

    class Answers(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            noted = seen if b'"tools":' in body else Provider()  # the request for a title is no step
            noted.arrived.append(time.monotonic())
            asked = body.rfind(CALLS_TOOLS.encode())
            calls = asked >= 0 and body.count(b'"role":"tool"', asked) < TOOL_CALLS
            text = "".join(f"data: {event}\n\n" for event in (*_render_reply(calls), "[DONE]")).encode()
            head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: %d\r\n\r\n" % len(text)
            noted.replied.append(time.monotonic())  # afterwards this thread may have to wait for a core
            self.wfile.write(head + text)

        def log_message(self, *_: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    seen.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    try:
        yield seen
    finally:
        server.shutdown()


def _render_reply(calls: bool) -> Iterator[str]:
    if calls:
        todo = {"todos": [{"id": "1", "content": "step", "status": "in_progress"}]}
        call = {"name": "todo", "arguments": json.dumps(todo)}
        delta = {
            "tool_calls": [{"index": 0, "id": f"call_{time.monotonic_ns()}", "type": "function", "function": call}]
        }
        yield _CHUNK % json.dumps({"index": 0, "delta": delta, "finish_reason": None})
    else:
        yield _CHUNK % json.dumps({"index": 0, "delta": {"content": "Hello"}, "finish_reason": None})
    yield _CHUNK % json.dumps({"index": 0, "delta": {}, "finish_reason": "tool_calls" if calls else "stop"})


class Client:
    """Asks for chat completions over one connection."""

    def __init__(self, url: str, **more: object) -> None:
        """``more`` are fields of each request."""
        self._more = more
        host, _, self._path = url.removeprefix("http://").partition("/")
        self._connection = HTTPConnection(host, timeout=_PATIENCE_S)

    def ask(self, text: str) -> tuple[float, float, float]:
        """Ask; return when it began, when the first text came, and when the answer was over."""
        asked = {"model": "bench", "stream": True, "messages": [{"role": "user", "content": text}], **self._more}
        body = json.dumps(asked)
        headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
        began = time.monotonic()
        self._connection.request("POST", f"/{self._path}/chat/completions", body, headers)
        answer = self._connection.getresponse()
        first, got = 0.0, b""
        while chunk := answer.read1(65_536):
            got += chunk
            if not first and b"Hello" in got:
                first = time.monotonic()
        answer.read()  # nothing, and the connection is free for the next request
        if answer.status != 200 or not first:
            raise SystemExit(f"HTTP {answer.status}: {got[:300]!r}")
        return began, first, time.monotonic()


def measure(asked: Client, seen: Provider, text: str) -> tuple[float, float, float]:
    """Ask once; return the seconds to the provider, to the first text and to the end."""
    before = len(seen.arrived)
    began, first, over = asked.ask(text)
    return seen.arrived[before] - began, first - began, over - began


def measure_gaps(asked: Client, seen: Provider) -> list[float]:
    """Have a run call tools; return the seconds from each reply to the next request."""
    before = len(seen.arrived)
    asked.ask(f"{CALLS_TOOLS} {time.monotonic_ns()}")
    arrived, replied = seen.arrived[before:], seen.replied[before:]
    return [late - early for early, late in zip(replied, arrived[1:], strict=False)]


def _render_row(name: str, values: Sequence[float]) -> str:
    parts = quantiles(values, n=100)
    shown = (min(values), parts[49], parts[94], parts[98])
    return f"| {name} | {' | '.join(f'{each * 1e3:.1f}' for each in shown)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=100)
    parser.add_argument("--postgresql", action="store_true", help="in place of SQLite")
    chosen = parser.parse_args()
    with ExitStack() as parts:
        directory = Path(parts.enter_context(tempfile.TemporaryDirectory()))
        directory.chmod(0o755)  # PostgreSQL runs as a user of its own
        seen = parts.enter_context(provider())
        settings = {"HERMES_BASE_URL": seen.url, "HERMES_PROVIDER": "custom", "HERMES_MODEL": "bench"}
        if chosen.postgresql:
            postgres = parts.enter_context(EmbeddedPostgres(directory / "postgres"))
            settings["HERMES_DATABASE_URL"] = postgres.create_database("first")
        ours = Client(parts.enter_context(run_up(directory, settings))[1])
        direct = Client(seen.url, tools=[])
        rows: dict[str, list[float]] = {}
        for number in range(WARM_UP + chosen.times):
            for name, asked in (("directly", direct), ("over the API", ours)):
                to_provider, first, over = measure(asked, seen, f"hello {number}")
                if number >= WARM_UP:
                    rows.setdefault(f"to the provider, {name}", []).append(to_provider)
                    rows.setdefault(f"first token, {name}", []).append(first)
                    rows.setdefault(f"whole answer, {name}", []).append(over)
        measure_gaps(ours, seen)
        rows["gap"] = [gap for _ in range(max(2, chosen.times // TOOL_CALLS)) for gap in measure_gaps(ours, seen)]
    print("| ms | least | p50 | p95 | p99 |\n|---|---|---|---|---|")
    print("\n".join(_render_row(name, values) for name, values in rows.items()))


if __name__ == "__main__":
    main()
