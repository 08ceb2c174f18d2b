"""What a model call costs the worker, measured against ``model_server.py`` in a process of its own.

    python benchmarks/model_calls.py [--calls 300] [--in-flight 500]

Prints CPU per call at 10, 100 and 500 messages, CPU per streamed chunk, memory per call in flight, and how long an
abort takes beside healthy calls. CPU is that of this process only; the first calls of each kind are not counted.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

from hermes_worker.core.abort import AbortSignal
from hermes_worker.core.errors import ModelCallError
from hermes_worker.core.messages import Delta, ModelRequest, canonical_json, tool_body, user_body
from hermes_worker.providers.endpoint import Endpoint
from hermes_worker.providers.openai_chat import OpenAIChat

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
        canonical_json(
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
    rows = [user_body(text)]
    for n in range(messages // 2):
        call = {"function": {"arguments": "{}", "name": "bench_echo"}, "id": f"c{n}", "type": "function"}
        rows.append(canonical_json({"content": None, "role": "assistant", "tool_calls": [call]}))
        rows.append(tool_body(f"c{n}", "x" * 300))
    return ModelRequest(model="bench", messages=rows, tools=tool_schemas())


def silent(_: Delta) -> None:
    return


def cpu_of(work: Callable[[], object], times: int) -> float:
    """CPU seconds of this thread per repetition."""
    for _ in range(WARM_UP):
        work()
    started_s = time.thread_time()
    for _ in range(times):
        work()
    return (time.thread_time() - started_s) / times


def measure_calls(calls: int) -> None:
    with model_server() as base_url:
        chat = OpenAIChat(Endpoint(base_url=base_url, api_key="bench"))
        for messages in (10, 100, 500):
            request = request_of(messages)
            cpu_s = cpu_of(lambda r=request: chat.ask(r, on_delta=silent, abort=AbortSignal()), calls)  # type: ignore[misc]
            print(f"call, {messages:3} messages, 20 tools   {cpu_s * 1e3:6.2f} ms CPU")


def measure_chunks(chunks: int = 2_000) -> None:
    """In a burst the cost is ours; one by one, waking a thread and reading its socket costs as much again."""
    request = ModelRequest(model="bench", messages=(user_body("no marker"),))
    for gap_s, name in ((0.0, "in a burst"), (0.0005, "one by one")):
        cpu_s: dict[int, float] = {}
        for count in (1, chunks):
            size = str(4 * chunks)
            with model_server("--chunks", str(count), "--reply-chars", size, "--chunk-gap-s", str(gap_s)) as base_url:
                chat = OpenAIChat(Endpoint(base_url=base_url, api_key="bench"))
                cpu_s[count] = cpu_of(lambda c=chat: c.ask(request, on_delta=silent, abort=AbortSignal()), 5)  # type: ignore[misc]
        print(f"streamed chunk, {name}        {(cpu_s[chunks] - cpu_s[1]) / (chunks - 1) * 1e6:6.1f} us CPU")


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=300)
    parser.add_argument("--in-flight", type=int, default=500)
    given = parser.parse_args()
    measure_calls(given.calls)
    measure_chunks()
    measure_memory(given.in_flight)
    measure_aborts()


if __name__ == "__main__":
    main()
