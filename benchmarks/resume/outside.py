"""The world outside an agent: a model that records each request, a sink that counts effects, and points to kill at.

Nothing in the process that is killed counts anything, so nothing that it lost or restored can change the count. Only
the standard library is used, so that a driver in any environment can be judged.
"""

from __future__ import annotations

import json
import os
import signal
import threading
from collections import Counter
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(slots=True)
class Script:
    """What the model does, and where the agent is killed."""

    calls: int = 3
    """Calls that the model asks for, one in each reply, before it answers."""
    kill_at: str = ""
    """The point at which the process that passes it gets SIGKILL."""
    kill_on: int = 1
    """At which passage of that point."""


@dataclass(slots=True)
class Record:
    """What was seen of one experiment."""

    requests: list[bytes] = field(default_factory=list)
    effects: Counter[str] = field(default_factory=Counter)
    """How often the world was changed, by the mark of the call: requests of one idempotency key change it once."""
    keys: dict[str, set[str]] = field(default_factory=dict)
    points: Counter[str] = field(default_factory=Counter)
    kills: int = 0

    def list_messages(self) -> list[list[Any]]:
        """The messages of each request."""
        return [json.loads(body)["messages"] for body in self.requests]


class Outside:
    """The servers of one experiment. Use as a context manager."""

    def __init__(self) -> None:
        self.script, self.record = Script(), Record()
        self._lock = threading.Lock()
        outside = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                answer = outside._answer(self.path, body, self.headers.get("Idempotency-Key", ""))
                is_streamed = "choices" in answer and json.loads(body).get("stream")
                data = _render_stream(answer) if is_streamed else json.dumps(answer).encode()
                try:
                    self.send_response(200)
                    self.send_header("Content-Type", "text/event-stream" if is_streamed else "application/json")
                    self.send_header("Content-Length", str(len(data)))
                    self.end_headers()
                    self.wfile.write(data)
                except ConnectionError:
                    pass  # whoever asked was killed

            def log_message(self, *_: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 128

        self._server = Server(("127.0.0.1", 0), Handler)

    def __enter__(self) -> Outside:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def begin(self, script: Script) -> Record:
        """Begin an experiment with nothing recorded."""
        with self._lock:
            self.script, self.record = script, Record()
            return self.record

    def _answer(self, path: str, body: bytes, key: str) -> dict[str, Any]:
        with self._lock:
            if path == "/v1/chat/completions":
                self.record.requests.append(body)
                return _reply(json.loads(body), self.script.calls)
            document = json.loads(body)
            if path == "/effect":
                return self._count_effect(str(document["mark"]), key)
            return self._pass_point(str(document["point"]), int(document["pid"]))

    def _count_effect(self, mark: str, key: str) -> dict[str, Any]:
        known = self.record.keys.setdefault(mark, set())
        if not key or key not in known:
            self.record.effects[mark] += 1
        known.add(key)
        return {"paid": mark}

    def _pass_point(self, point: str, pid: int) -> dict[str, Any]:
        self.record.points[point] += 1
        if point == self.script.kill_at and self.record.points[point] == self.script.kill_on:
            self.record.kills += 1
            os.kill(pid, signal.SIGKILL)
        return {}


def _reply(request: dict[str, Any], calls: int) -> dict[str, Any]:
    """The model's reply: a pure function of the request."""
    done = sum(message["role"] == "tool" for message in request["messages"])
    message: dict[str, Any] = {"role": "assistant", "content": "paid"}
    if done < calls:
        arguments = json.dumps({"mark": f"m{done}"})
        call = {"id": f"call_{done}", "type": "function", "function": {"name": "pay", "arguments": arguments}}
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
    reason = "tool_calls" if done < calls else "stop"
    return {
        "id": f"c{done}",
        "object": "chat.completion",
        "created": 0,
        "model": "scripted",
        "choices": [{"index": 0, "message": message, "finish_reason": reason}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
    }


def _render_stream(answer: dict[str, Any]) -> bytes:
    """Render a model's reply as server-sent events, for a client that asked for a stream."""
    [choice] = answer["choices"]
    calls = [{"index": place, **call} for place, call in enumerate(choice["message"].get("tool_calls", ()))]
    delta = {**choice["message"], **({"tool_calls": calls} if calls else {})}
    chunk = {**{name: answer[name] for name in ("id", "created", "model")}, "object": "chat.completion.chunk"}
    parts = [
        {**chunk, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]},
        {**chunk, "choices": [{"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}]},
        {**chunk, "choices": [], "usage": answer["usage"]},
    ]
    return b"".join(b"data: " + json.dumps(part).encode() + b"\n\n" for part in parts) + b"data: [DONE]\n\n"
