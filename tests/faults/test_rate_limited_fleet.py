"""Many runs of a real fleet against a provider that allows few requests: next to all that is allowed gets used, and the
oldest runs end first."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from support.fault_server import FaultServer, Received, Reply, finish_chunk
from support.limited_endpoint import LimitedEndpoint
from support.rig import rig_on, until

pytestmark = pytest.mark.faults

RUNS, PER_MIN, MINUTES = 50, 60, 2


def ask_for_a_tool(request: Received, reply: Reply) -> None:
    """For ever: each run asks again as soon as it may."""
    function = {"name": "sink_pure", "arguments": f'{{"mark": "m{request.number}"}}'}
    call = {"index": 0, "id": f"call_{request.number}", "function": function}
    reply.sse({"choices": [{"index": 0, "delta": {"tool_calls": [call]}}]}, finish_chunk("tool_calls"), "[DONE]")


@pytest.mark.slow
def test_fifty_runs_get_nearly_all_that_an_endpoint_allows_and_hardly_a_refusal(
    tmp_path: Path, broker_url: str
) -> None:
    endpoint = LimitedEndpoint(PER_MIN, ask_for_a_tool, minute_s=60.0)
    with FaultServer(endpoint.answer) as server:
        environ = {
            "HERMES_BASE_URL": server.base_url,
            "HERMES_API_KEY": "sk-test-0123456789abcdef",
            "HERMES_MODEL_REQUESTS_PER_MIN": str(PER_MIN),
        }
        database_url = f"sqlite:///{tmp_path / 'test.db'}"
        with rig_on(
            tmp_path, database_url=database_url, broker_url=broker_url, workers_per_role=2, more_environ=environ
        ) as rig:
            for _ in range(RUNS):
                rig.submit([], iterations_max=1_000)
            until(lambda: endpoint.accepted or None, "the first call")
            ends_at = endpoint.accepted[0] + 60 * MINUTES
            time.sleep(max(0.0, ends_at - time.monotonic()))
            accepted = sum(at <= ends_at for at in endpoint.accepted)
            print(f"{accepted} accepted and {len(endpoint.refused)} refused in {MINUTES} minutes of {PER_MIN}")

            assert len(endpoint.refused) <= 0.03 * PER_MIN * MINUTES
            assert accepted >= 0.95 * PER_MIN * MINUTES


MANY, STEPS, MANY_PER_MIN = 46, 5, 600


def is_last(request: Received) -> bool:
    return sum(row["role"] == "tool" for row in request.document["messages"]) >= STEPS - 1


def ask_for_tools_and_answer(request: Received, reply: Reply) -> None:
    """As many calls as a run has steps, with a tool in each but the last."""
    if not is_last(request):
        ask_for_a_tool(request, reply)
    else:
        reply.sse({"choices": [{"index": 0, "delta": {"content": "done"}}]}, finish_chunk("stop"), "[DONE]")


@pytest.mark.nightly
def test_forty_six_runs_under_a_limit_end_one_after_the_other_the_oldest_first(
    tmp_path: Path, database_url: str, broker_url: str
) -> None:
    """With fewer threads than runs, on two workers of each role. A minute's limit is what a second's is elsewhere."""
    with FaultServer(ask_for_tools_and_answer) as server:
        environ = {
            "HERMES_BASE_URL": server.base_url,
            "HERMES_API_KEY": "sk-test-0123456789abcdef",
            "HERMES_MODEL_REQUESTS_PER_MIN": str(MANY_PER_MIN),
        }
        with rig_on(tmp_path, database_url=database_url, broker_url=broker_url, more_environ=environ) as rig:
            run_ids = [rig.submit([]) for _ in range(MANY)]
            views = rig.ended()
    began = min(view.created_at for view in views)
    ends = [(view.finished_at or 0.0) - began for view in views]
    all_s = MANY * STEPS * 60 / MANY_PER_MIN
    print(f"\nended after {', '.join(f'{end:.1f}' for end in ends)} s; the rate allows {all_s:.1f} s")
    assert [view.run_id for view in views] == run_ids
    assert {view.status.value for view in views} == {"completed"}
    if max(ends) > 1.3 * all_s:
        pytest.skip(f"this machine makes fewer than the {MANY_PER_MIN} requests a minute whose order the limit decides")
    # Counted in requests, not in seconds: a machine that is slow to begin serves the same requests in the same order.
    half = server.requests[: len(server.requests) // 2]
    assert sum(map(is_last, half)) >= MANY * 0.3, "answers arrive all along and not at the end"
    by_end = sorted(range(MANY), key=lambda run: ends[run])
    assert sum(abs(place - run) for place, run in enumerate(by_end)) / MANY < 6, by_end
