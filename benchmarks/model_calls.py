"""What a model call costs the worker, measured against ``model_server.py`` in a process of its own.

    python -m benchmarks.model_calls [--calls 300] [--in-flight 500]

Prints CPU per turn at 10, 100 and 500 messages beside that of the same call through the official SDK's typed
parameters, CPU per streamed chunk beside the SDK's typed stream and a bare ``recv``, whether many streams keep up with
their server, memory per call in flight, and how long an abort takes beside healthy calls. Our figure holds everything a
turn does before and after the bytes: the message pipeline, cache markers and the reply put together; the SDK's is the
bare call. CPU is that of this process only; the first calls of each kind are not counted.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import socket
import subprocess
import sys
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import openai
import psutil

from hermes_worker.core.abort import AbortSignal
from hermes_worker.core.errors import ModelCallError
from hermes_worker.core.messages import (
    Delta,
    Message,
    ModelRequest,
    Role,
    build_tool_body,
    build_user_body,
    dump_canonical_json,
)
from hermes_worker.core.recovery_state import RecoveryState
from hermes_worker.models.chain import ModelChoice, ProviderChain
from hermes_worker.models.endpoint import Endpoint
from hermes_worker.models.wires.openai_chat import OpenAIChat
from hermes_worker.store.runs.runs import SessionContext
from hermes_worker.tasks.iteration.requests import ModelOptions, build_request
from hermes_worker.wiring import SWITCH_INTERVAL_S

WARM_UP = 5


@contextlib.contextmanager
def model_server(*options: str) -> Iterator[str]:
    """The base URL of a model server that lives as long as the block."""
    command = [sys.executable, str(Path(__file__).with_name("model_server.py")), *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


def in_flight(base_url: str) -> int:
    """Requests that the model server has not answered yet."""
    with urllib.request.urlopen(f"{base_url.removesuffix('/v1')}/stats", timeout=30) as reply:
        count: int = json.load(reply)["in_flight"]
    return count


def tool_schemas(count: int = 20) -> tuple[str, ...]:
    properties = {f"parameter_{n}": {"type": "string", "description": "what it is for" * 3} for n in range(5)}
    return tuple(
        dump_canonical_json(
            {
                "type": "function",
                "function": {
                    "name": f"tool_{n}",
                    "description": "what the tool does, when to use it and when not to" * 8,
                    "parameters": {"type": "object", "properties": properties},
                },
            }
        )
        for n in range(count)
    )


def request_of(messages: int, text: str = "bench:steps=100000 go") -> ModelRequest:
    rows = [build_user_body(text)]
    for n in range(messages // 2):
        call = {"function": {"arguments": "{}", "name": "bench_echo"}, "id": f"c{n}", "type": "function"}
        rows.append(dump_canonical_json({"content": None, "role": "assistant", "tool_calls": [call]}))
        rows.append(build_tool_body(f"c{n}", "x" * 300))
    return ModelRequest(model="bench", messages=rows, tools=tool_schemas())


def silent(_: Delta) -> None:
    return


def cpu_of(work: Callable[[], object], times: int, *, warm_up: int = WARM_UP) -> float:
    """CPU seconds of this thread per repetition."""
    for _ in range(warm_up):
        work()
    started_s = time.thread_time()
    for _ in range(times):
        work()
    return (time.thread_time() - started_s) / times


def measure_calls(calls: int) -> None:
    """Turn by turn about, so that a neighbour's load falls on both."""
    with model_server() as base_url:
        chain = ProviderChain(ModelChoice(base_url=base_url, api_key="bench", model="bench"))
        plain = openai.OpenAI(base_url=base_url, api_key="bench", max_retries=0)
        tools = [json.loads(tool) for tool in tool_schemas()]
        for messages in (10, 100, 500):
            request = request_of(messages)
            typed = [json.loads(row) for row in request.messages]
            ours, theirs = [], []
            for _ in range(4):
                ours.append(cpu_of(partial(one_turn, chain, request), calls // 4))
                create = partial(plain.chat.completions.create, model="bench", messages=typed, tools=tools)
                theirs.append(cpu_of(create, max(5, calls // 40)))
            best, sdk = min(ours), min(theirs)
            print(
                f"turn, {messages:3} messages, 20 tools   {best * 1e3:6.2f} ms CPU; typed SDK call {sdk * 1e3:6.2f} ms;"
                f" ratio {best / sdk:.2f}"
            )


def one_turn(chain: ProviderChain, request: ModelRequest) -> None:
    """What an iteration does about its model call, without the rows."""
    route = chain.resolve_route("bench", 0)
    session = SessionContext(
        session_id="s", system_prompt="You are a benchmark.", tools=f"[{','.join(request.tools)}]", workspace="{}"
    )
    rows = [Message(seq=n, role=role_of(body), body=body) for n, body in enumerate(request.messages, start=1)]
    built = build_request(session, rows, route, RecoveryState(), is_summary=False, options=ModelOptions())
    route.provider.ask(built, on_delta=silent, abort=AbortSignal())


def role_of(body: str) -> Role:
    return Role.TOOL if '"role":"tool"' in body else Role.ASSISTANT if '"role":"assistant"' in body else Role.USER


@dataclass(frozen=True, slots=True)
class Streamed:
    """One stream among many, in seconds."""

    first_s: float
    """From the begin of the call to its first chunk: a connection and a request among many."""
    flow_s: float
    """From the first chunk to the end. A stream that falls behind its server takes longer than the server does."""


Stream = Callable[[Callable[[], None]], None]
"""Receives a streamed reply to its end, and calls what it is given at least once, first at the first chunk."""


def measure_streams(streams: int, seconds: float = 5.0, chunks_per_s: int = 50) -> None:
    """Whether so many streams at once keep up with a server that sends each of them so many chunks a second; and the
    same with threads that only receive, which no client on threads can beat."""
    chunks = int(seconds * chunks_per_s)
    options = ("--chunks", str(chunks), "--reply-chars", str(4 * chunks), "--chunk-gap-s", str(1 / chunks_per_s))
    switch_interval_s = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_INTERVAL_S)  # as a worker has it
    print(f"{streams} streams of {chunks_per_s} chunks/s, {seconds:.0f} s each:")
    with model_server(*options) as base_url:
        ours = partial(stream_ours, OpenAIChat(Endpoint(base_url=base_url, api_key="bench")))
        for name, stream in (("ours", ours), ("bare recv", partial(stream_bare, base_url))):
            for over_s in (0.0, 2.0):
                results, cpu_s, took_s = together(stream, streams, over_s)
                first = sorted(result.first_s for result in results)
                flow = sorted(result.flow_s for result in results)
                print(
                    f"  {name:9}  begun over {over_s:.0f} s: first chunk after {middle(first):.2f} s, "
                    f"to the end {middle(flow):.2f} s (p99 {last_but_few(flow):.2f} s, slowest {flow[-1]:.2f} s); "
                    f"{cpu_s / (streams * chunks) * 1e6:.0f} us CPU per chunk, {cpu_s / took_s:.0%} of a core"
                )
    sys.setswitchinterval(switch_interval_s)


def middle(ordered: Sequence[float]) -> float:
    return ordered[len(ordered) // 2]


def last_but_few(ordered: Sequence[float]) -> float:
    """The 99th percentile."""
    return ordered[len(ordered) * 99 // 100]


def together(stream: Stream, count: int, over_s: float) -> tuple[list[Streamed], float, float]:
    """Each of them on a thread of its own, begun evenly over so many seconds; with the CPU seconds and the seconds of
    all."""
    results: list[Streamed] = []
    begin = threading.Barrier(count + 1)

    def run(number: int) -> None:
        seen_s: list[float] = []
        begin.wait()
        time.sleep(number / count * over_s)
        began_s = time.monotonic()
        stream(lambda: None if seen_s else seen_s.append(time.monotonic()))
        results.append(Streamed(first_s=seen_s[0] - began_s, flow_s=time.monotonic() - seen_s[0]))

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    begin.wait()
    cpu_s, started_s = time.process_time(), time.monotonic()
    for thread in threads:
        thread.join()
    return results, time.process_time() - cpu_s, time.monotonic() - started_s


@dataclass(frozen=True, slots=True)
class Flow:
    """How the chunks of a reply come, and how often it is measured."""

    name: str
    chunks: int
    gap_s: float
    rounds: int
    times: int


FLOWS = (
    Flow("in a burst", chunks=2_000, gap_s=0.0, rounds=3, times=3),
    Flow("2,000/s", chunks=500, gap_s=0.0005, rounds=4, times=3),
    Flow("50/s", chunks=50, gap_s=0.02, rounds=3, times=1),
)


def measure_chunks() -> None:
    """In a burst the cost is ours; one by one, waking a thread and reading its socket costs more than that. A thread
    that only receives shows how much more."""
    for flow in FLOWS:
        ours, theirs, bare = (cpu_per_chunk(flow, client) for client in (ours_of, typed_of, bare_of))
        print(
            f"streamed chunk, {flow.name:10}  {ours * 1e6:6.1f} us CPU; typed SDK stream {theirs * 1e6:6.1f} us; "
            f"bare recv {bare * 1e6:6.1f} us"
        )


def cpu_per_chunk(flow: Flow, client: Callable[[str], Callable[[], object]]) -> float:
    """A long reply less a short one, the best of several."""
    cpu_s = {}
    for count in (1, flow.chunks):
        options = ("--chunks", str(count), "--reply-chars", str(4 * flow.chunks), "--chunk-gap-s", str(flow.gap_s))
        with model_server(*options) as base_url:
            work = client(base_url)
            work()
            cpu_s[count] = min(cpu_of(work, flow.times, warm_up=1) for _ in range(flow.rounds))
    return (cpu_s[flow.chunks] - cpu_s[1]) / (flow.chunks - 1)


def ours_of(base_url: str) -> Callable[[], object]:
    return partial(stream_ours, OpenAIChat(Endpoint(base_url=base_url, api_key="bench")))


def typed_of(base_url: str) -> Callable[[], object]:
    return partial(stream_typed, openai.OpenAI(base_url=base_url, api_key="bench", max_retries=0))


def bare_of(base_url: str) -> Callable[[], object]:
    return partial(stream_bare, base_url)


def stream_bare(base_url: str, on_chunk: Callable[[], None] = lambda: None) -> None:
    """Receive a streamed reply and do nothing with it."""
    where = urllib.parse.urlsplit(base_url)
    body = b'{"stream":true}'
    with socket.create_connection((where.hostname, where.port), timeout=60) as sock:
        sock.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        end = b""
        while not end.endswith(b"0\r\n\r\n"):
            end = end[-8:] + sock.recv(16_384)
            on_chunk()


def stream_ours(chat: OpenAIChat, on_chunk: Callable[[], None] = lambda: None) -> None:
    request = ModelRequest(model="bench", messages=(build_user_body("no marker"),))
    chat.ask(request, on_delta=lambda _: on_chunk(), abort=AbortSignal())


def stream_typed(plain: openai.OpenAI) -> None:
    for _ in plain.chat.completions.create(
        model="bench", messages=[{"role": "user", "content": "no marker"}], stream=True
    ):
        pass


def measure_memory(in_flight: int) -> None:
    """Resident memory of this process with this many streams under way, thread included."""
    process = psutil.Process()
    request = request_of(100, "no marker")
    with model_server("--chunks", "40", "--chunk-gap-s", "0.25", "--reply-chars", "4000") as base_url:
        chat = OpenAIChat(Endpoint(base_url=base_url, api_key="bench"))
        started = threading.Semaphore(0)

        def stream() -> None:
            is_first = [True]

            def on_delta(_: Delta) -> None:
                if is_first[0]:
                    is_first[0] = False
                    started.release()

            chat.ask(request, on_delta=on_delta, abort=AbortSignal())

        warm = threading.Thread(target=stream)
        warm.start()
        warm.join()
        started.acquire()
        before = process.memory_info().rss
        threads = [threading.Thread(target=stream) for _ in range(in_flight)]
        for thread in threads:
            thread.start()
        for _ in threads:
            started.acquire()
        after = process.memory_info().rss
        cpu_started_s = time.process_time()
        for thread in threads:
            thread.join()
        cpu_s = time.process_time() - cpu_started_s
    print(f"memory, {in_flight} streams in flight    {(after - before) / in_flight / 1024:6.0f} KiB per call")
    print(f"  the rest of their streams took {cpu_s:.2f} s CPU for about {in_flight * 40} chunks")


def measure_aborts(count: int = 100) -> None:
    request = request_of(10, "no marker")
    with model_server("--latency-s", "6") as base_url:
        chat = OpenAIChat(Endpoint(base_url=base_url, api_key="bench"))
        signals = [AbortSignal() for _ in range(count)]
        took_s: list[float] = []
        healthy: list[str] = []
        aborted_at_s = [0.0] * count

        def doomed(number: int) -> None:
            try:
                chat.ask(request, on_delta=silent, abort=signals[number])
            except ModelCallError:
                took_s.append(time.monotonic() - aborted_at_s[number])

        def spared() -> None:
            healthy.append(chat.ask(request, on_delta=silent, abort=AbortSignal()).text)

        threads = [threading.Thread(target=doomed, args=(n,)) for n in range(count)]
        threads += [threading.Thread(target=spared) for _ in range(count)]
        for thread in threads:
            thread.start()
        while in_flight(base_url) < 2 * count:
            time.sleep(0.05)
        for number, signal in enumerate(signals):
            aborted_at_s[number] = time.monotonic()
            signal.set("benchmark")
        for thread in threads:
            thread.join()
    took_s.sort()
    print(
        f"abort, {count} beside {count} healthy   {took_s[len(took_s) // 2] * 1e3:6.1f} ms median, "
        f"{took_s[-1] * 1e3:.1f} ms worst; {len(took_s)} ended, {len(healthy)} healthy replies"
    )


WHAT: Mapping[str, Callable[[argparse.Namespace], None]] = {
    "calls": lambda given: measure_calls(given.calls),
    "chunks": lambda given: measure_chunks(),
    "streams": lambda given: measure_streams(given.in_flight),
    "memory": lambda given: measure_memory(given.in_flight),
    "aborts": lambda given: measure_aborts(),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=300)
    parser.add_argument("--in-flight", type=int, default=500)
    parser.add_argument("what", nargs="*", help="only these")
    given = parser.parse_args()
    for name in given.what or WHAT:
        WHAT[name](given)


if __name__ == "__main__":
    main()
