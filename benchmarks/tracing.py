"""What traces cost a step while they are off: ``python -m benchmarks.tracing``.

The places of a model call and of a tool call that ask whether anybody records, as the code calls them, by turns with a
loop that calls nothing. Quick and slow minutes of a machine hit both, so the least difference of many rounds counts.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from hermes_worker.core.messages import ModelReply
from hermes_worker.tracing import names, recording

_CALLS = 20_000
_ROUNDS = 60
_REPLY = ModelReply(text="")


def _without(number: int) -> None:
    for _ in range(number):
        pass


def _steps_off(number: int) -> None:
    """A model call and a tool call, and the two messages that lead to them."""
    for iteration in range(number):
        recording.find_traceparent("run_1")
        place = {names.ITERATION: iteration, names.ATTEMPT: 1}
        with recording.record_step("run_1", "token", {names.OPERATION: names.CHAT, **place}):
            recording.add_attributes(request_model="m")
            recording.add_attributes(input_tokens=1, output_tokens=1)
            recording.add_messages((), _REPLY)
        recording.find_traceparent("run_1")
        place = {names.ITERATION: iteration, names.ATTEMPT: 1}
        with recording.record_step("run_1", "token", {names.OPERATION: names.EXECUTE_TOOL, names.POSITION: 0, **place}):
            recording.add_attributes(tool="t")
            recording.add_call("", "")


def _seconds(loop: Callable[[int], None]) -> float:
    began = time.process_time()
    loop(_CALLS)
    return time.process_time() - began


def main() -> int:
    assert recording.get_recorder() is None
    least = min(_seconds(_steps_off) - _seconds(_without) for _ in range(_ROUNDS))
    sys.stdout.write(f"a model call and a tool call: {least / _CALLS * 1e6:.2f} us of CPU while nobody records\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
