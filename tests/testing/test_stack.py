"""What users test their tools and agents with: a whole agent in this process, crashes, and no import for others."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import yaml

from hermes_worker.core.errors import FailureKind, ModelCallError
from hermes_worker.core.run import RunStatus
from hermes_worker.extending import Key, tool
from hermes_worker.models.scripted.replies import InvalidReplies
from hermes_worker.system.faults import FaultPoint
from hermes_worker.testing import AgentStack, AskedModel, ScriptedModel, call

ROOT = Path(__file__).resolve().parents[2]
MakeStack = Callable[..., AgentStack]
paid: list[str] = []
mailed: list[str] = []


@pytest.fixture(autouse=True)
def nothing_happened() -> None:
    paid.clear()
    mailed.clear()


@tool(replay="keyed", is_untrusted=False)
def pay(order: int, key: Key) -> str:
    """Pay an order."""
    if key not in paid:
        paid.append(key)
    return f"order {order} is paid"


@tool(replay="once", is_untrusted=False)
def mail(to: str) -> str:
    """Send a mail."""
    mailed.append(to)
    return "sent"


def test_a_list_is_played_and_calls_effects_and_costs_can_be_looked_at(hermes_stack: MakeStack) -> None:
    stack = hermes_stack([call("pay", order=17), "Done."], tools=[pay])

    run = stack.run("Pay order 17").require_completed()

    assert run.output == "Done."
    assert run.require_call("pay", order=17).result == "order 17 is paid"
    assert len(paid) == 1
    assert run.cost_usd is not None and run.cost_usd > Decimal(0)
    assert "pay" in stack.model.requests[0].tools
    with pytest.raises(AssertionError, match="0 calls of pay"):
        run.require_call("pay", order=18)


def test_a_function_reads_the_conversation_and_a_session_goes_on(hermes_stack: MakeStack) -> None:
    def reply(asked: AskedModel) -> Any:
        return f"reply {asked.replies} to {asked.last}"

    stack = hermes_stack(reply)

    first = stack.run("one", session_id="talk").require_completed()
    second = stack.run("two", session_id="talk").require_completed()

    assert (first.output, second.output) == ("reply 0 to one", "reply 1 to two")
    assert first.session_id == second.session_id


def test_a_recorded_run_is_said_again(hermes_stack: MakeStack) -> None:
    stack = hermes_stack([[call("pay", order=1), call("pay", order=2)], "Both."], tools=[pay])
    recorded = stack.run("Pay both").require_completed()

    stack.use_model(ScriptedModel.of_recording(recorded.messages))
    again = stack.run("Pay both").require_completed()

    assert [dict(one.arguments) for one in again.calls] == [{"order": 1}, {"order": 2}]
    assert again.output == "Both."


def test_errors_of_the_model_and_scripts_that_are_too_short_end_visibly(hermes_stack: MakeStack) -> None:
    stack = hermes_stack([call("pay", order=1)], tools=[pay])
    assert "has 1 replies" in str(stack.run("Pay").error)

    stack.use_model(lambda _: ModelCallError(FailureKind.AUTH, "no such key"))
    run = stack.run("Pay")
    assert run.status is RunStatus.FAILED
    with pytest.raises(AssertionError, match="the run is failed"):
        run.require_completed()


@pytest.mark.parametrize(
    "point",
    [
        FaultPoint.ITERATE_AFTER_CLAIM,
        FaultPoint.ITERATE_AFTER_REPLY,
        FaultPoint.ITERATE_AFTER_COMMIT,
        FaultPoint.CALL_TOOL_AFTER_CLAIM,
        FaultPoint.CALL_TOOL_AFTER_RUN,
        FaultPoint.CALL_TOOL_AFTER_SETTLE,
    ],
)
def test_a_keyed_tool_pays_once_wherever_its_worker_is_killed(hermes_stack: MakeStack, point: FaultPoint) -> None:
    stack = hermes_stack([call("pay", order=17), "Done."], tools=[pay])

    with stack.killed_at(point):
        run = stack.run("Pay order 17").require_completed()

    assert (run.output, len(paid)) == ("Done.", 1)


def test_a_once_tool_is_never_repeated_and_the_model_is_told(hermes_stack: MakeStack) -> None:
    stack = hermes_stack([call("mail", to="a@example.org"), "I do not know whether it went out."], tools=[mail])

    with stack.killed_at("call_tool.after_run"):
        run = stack.run("Mail").require_completed()

    assert mailed == ["a@example.org"]
    assert run.require_call("mail").status == "unknown"
    with pytest.raises(AssertionError, match="no step passed"), stack.killed_at("call_tool.after_run"):
        pass


def test_a_dangerous_command_waits_for_an_answer(hermes_stack: MakeStack) -> None:
    stack = hermes_stack(
        [call("terminal", command="rm -rf build"), "Very well."], environ={"HERMES_APPROVALS": "manual"}
    )

    run = stack.run("Tidy up", approvals="ask")
    assert run.status is RunStatus.WAITING_FOR_APPROVAL

    run = stack.answer(run.run_id, allow=False).require_completed()
    assert "denied" in run.require_call("terminal").result.lower()


def test_the_example_passes_its_own_tests_as_its_readme_says(tmp_path: Path) -> None:
    """What pip would install is there already; the README's last line is played."""
    example = shutil.copytree(ROOT / "examples" / "refunds", tmp_path / "refunds")
    *_, command = (example / "README.md").read_text().partition("```sh\n")[2].partition("```")[0].strip().splitlines()
    assert command == "pytest"
    environ = {**os.environ, "PYTHONPATH": str(example)}
    for name in [name for name in environ if name.startswith("PYTEST_")]:
        del environ[name]

    found = subprocess.run(
        [sys.executable, "-m", command], cwd=example, env=environ, capture_output=True, text=True, timeout=300
    )

    assert found.returncode == 0, found.stdout + found.stderr
    assert "5 passed" in found.stdout


def test_the_plugin_imports_nothing_of_the_product_before_it_is_used() -> None:
    program = (
        "import sys, hermes_worker.testing.plugin\n"
        "print([name for name in sys.modules if name.split('.')[0] in ('sqlalchemy', 'celery', 'pydantic', 'fastapi')])"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


USAGE = {"input_tokens": 9, "output_tokens": 2, "total_tokens": 11}
RECORDED = {
    "/v1/chat/completions": {
        "choices": [{"message": {"role": "assistant", "content": "Hello."}, "finish_reason": "stop"}]
    },
    "/v1/messages": {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [{"type": "text", "text": "Hello."}],
        "stop_reason": "end_turn",
        "usage": USAGE,
    },
    "/v1/responses": {
        "id": "resp_1",
        "object": "response",
        "status": "completed",
        "output": [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Hello."}]}],
        "usage": USAGE,
    },
}


@pytest.mark.parametrize("path", RECORDED)
def test_recorded_bytes_are_read_over_the_wire_that_they_came_from(
    hermes_stack: MakeStack, tmp_path: Path, path: str
) -> None:
    entry = {"user": "Say hello", "replies": 0, "path": path, "status": 200, "type": "application/json"}
    cassette = tmp_path / "cassette.yaml"
    cassette.write_text(yaml.safe_dump([{**entry, "body": json.dumps(RECORDED[path])}]))
    stack = hermes_stack(ScriptedModel.of_cassette(cassette))

    assert stack.run("Say hello").require_completed().output == "Hello."
    assert stack.model.requests[0].last.startswith("Say hello")


def test_a_cassette_without_a_recording_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "written.yaml").write_text("- {when: hello, final: Hello.}")
    with pytest.raises(InvalidReplies, match="has no recording of one wire"):
        ScriptedModel.of_cassette(tmp_path / "written.yaml")
