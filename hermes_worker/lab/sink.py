"""Three tools whose only effect is a line in a file: what really happened, as the outside world saw it.

A line is written with one ``write`` to a descriptor opened with ``O_APPEND``: lines of many processes do not mix, and a
process that is killed has either written its line or not.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hermes_worker.agent.tools.base import Tool, ToolContext, ToolResult
from hermes_worker.core.messages import dump_canonical_json
from hermes_worker.core.replay import Replay
from hermes_worker.extension import ToolSpec

TOOLSET = "chaos"


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkEffect:
    """One line of the sink: one effect."""

    replay: Replay
    key: str
    """The idempotency key the tool was given."""
    mark: str
    """The text that the model asked to be written: unique for each call."""
    attempt: int
    pid: int


class SinkTool:
    """Appends one line, then takes a little time, so that a kill can fall between the effect and its result."""

    def __init__(self, replay: Replay, path: Path, *, work_s: float) -> None:
        self._path = path
        self._work_s = work_s
        self._replay = replay
        self.spec = ToolSpec(
            name=f"sink_{replay.value}",
            description=f"Write a mark to the crash lab's sink (replay class {replay.value}).",
            parameters={
                "type": "object",
                "properties": {"mark": {"type": "string"}},
                "required": ["mark"],
            },
            toolset=TOOLSET,
            is_untrusted=False,
            replay=replay,
            timeout_s=30.0,
            is_parallel_safe=replay is Replay.PURE,
        )

    def run(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        mark = str(arguments["mark"])
        line = {
            "replay": self._replay.value,
            "key": context.idempotency_key,
            "mark": mark,
            "attempt": context.attempt,
            "pid": os.getpid(),
        }
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, f"{dump_canonical_json(line)}\n".encode())
        finally:
            os.close(descriptor)
        context.cancelled.wait(self._work_s)
        return ToolResult(text=dump_canonical_json({"written": mark}))


def make_sink_tools(path: Path, *, work_s: float) -> tuple[Tool, ...]:
    """One sink of each replay class."""
    return tuple(SinkTool(replay, path, work_s=work_s) for replay in Replay)


def read_sink(path: Path) -> list[SinkEffect]:
    """Every effect, in the order they happened; empty when there was none."""
    if not path.exists():
        return []
    with path.open(encoding="utf-8") as lines:
        return [_parse_effect(line) for line in lines if line.strip()]


def _parse_effect(line: str) -> SinkEffect:
    fields = json.loads(line)
    return SinkEffect(
        replay=Replay(fields["replay"]),
        key=fields["key"],
        mark=fields["mark"],
        attempt=fields["attempt"],
        pid=fields["pid"],
    )
