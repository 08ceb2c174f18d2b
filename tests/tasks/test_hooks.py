"""Hooks that change steps: asked once, stored with the step, replayed byte for byte; and hooks that misbehave."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from support.fault_server import USAGE_CHUNK, FaultServer, Received, Reply, finish_chunk, text_chunk
from support.patience import PATIENCE_S
from support.rig import until
from support.store import Store, opened
from support.turns import Turns, change_parts, do_calls

from hermes_worker.core.abort import AbortSignal
from hermes_worker.core.hooks import ANSWER_CHARS_MAX, HookEvent
from hermes_worker.core.messages import ModelReply, ToolRequest, Usage, dump_canonical_json
from hermes_worker.core.run import RunStatus
from hermes_worker.extension import Extension, MemoryProviderDeclaration, fold_extensions
from hermes_worker.safety.approvals import ApprovalChoice
from hermes_worker.safety.redaction import Redactor
from hermes_worker.store.hooks.calls import HookCalls
from hermes_worker.store.runs.calls import CallClaim
from hermes_worker.store.runs.waits import Waits
from hermes_worker.tasks.context import WorkerContext, WorkerHooks
from hermes_worker.tasks.hooks.running import ABANDONED_MAX, REST_S, HookRunner, LoadedHook, load_hooks
from hermes_worker.tasks.iteration.planning import plan_calls
from hermes_worker.tasks.leases import AbortReason
from hermes_worker.workspaces.opening import OpeningOptions, open_workspace
from hermes_worker.workspaces.ref import WorkspaceKind, WorkspaceRef

NEVER = AbortSignal()


def hook(call: Callable[..., Any], *events: str, **more: Any) -> LoadedHook:
    name = more.pop("name", getattr(call, "__name__", "hook").replace("_", "-").strip("-"))
    return LoadedHook(name=name, events=frozenset(events), call=call, timeout_s=more.pop("timeout_s", 5.0), **more)


@dataclass
class Model:
    """A model server that says what is next on its list."""

    words: list[str] = field(default_factory=list)
    asked: list[list[dict[str, Any]]] = field(default_factory=list)

    def __call__(self, request: Received, reply: Reply) -> None:
        self.asked.append(request.document["messages"])
        said = self.words.pop(0) if self.words else "done"
        if said == "(busy)":
            reply.document(429, {"error": {"message": "later"}}, "Retry-After: 600")
        elif said.startswith("("):
            call = {"index": 0, "id": "c1", "type": "function", "function": {"name": "todo", "arguments": "{}"}}
            reply.sse(
                {"choices": [{"index": 0, "delta": {"tool_calls": [call]}, "finish_reason": None}]},
                finish_chunk("tool_calls"),
                USAGE_CHUNK,
                "[DONE]",
            )
        else:
            reply.sse(text_chunk(said), finish_chunk(), USAGE_CHUNK, "[DONE]")


@dataclass
class Scene:
    """A worker with hooks, its store, its model and its workspace."""

    store: Store
    turns: Turns
    model: Model
    workspace: Path

    def enable(self, *hooks: LoadedHook, **more: Any) -> None:
        parts = change_parts(
            self.turns.parts,
            hooks=WorkerHooks(runner=HookRunner(hooks), store=HookCalls(self.store.database)),
            waits=Waits(self.store.database),
            workspace=lambda _: open_workspace(
                WorkspaceRef(kind=WorkspaceKind.LOCAL, root=str(self.workspace)),
                OpeningOptions(base_env={"PATH": "/usr/bin:/bin"}, hermes_home=""),
            ),
            **more,
        )
        self.turns.parts = parts

    @property
    def parts(self) -> WorkerContext:
        return self.turns.parts

    def asks(self, name: str, **arguments: Any) -> str:
        """A run whose model asks for one tool call."""
        definitions = self.parts.catalog.render_definitions([name])
        run_id = self.store.submit(tools=f"[{','.join(definitions)}]").run_id
        request = ToolRequest(id="c1", name=name, arguments=dump_canonical_json(arguments))
        reply, calls = plan_calls(ModelReply(text="", tool_requests=(request,), usage=Usage()), self.parts.catalog)
        self.store.runs.commit_reply(self.store.turn(run_id), reply, calls)
        return run_id

    def writes(self, text: str = "as asked") -> str:
        return self.asks("write_file", path="note.txt", content=text)

    def do(self, run_id: str) -> str:
        """Do the run's calls; the result of the last."""
        do_calls(self.parts, self.store, run_id)
        return self.store.results(run_id)[-1]

    def written(self) -> str | None:
        path = self.workspace / "note.txt"
        return path.read_text() if path.exists() else None

    def events(self, run_id: str, name: str) -> list[Mapping[str, Any]]:
        return [event.data for event in self.store.views.list_events_after(run_id, 0) if event.name == name]


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    model = Model()
    (tmp_path / "workspace").mkdir()
    with opened(f"sqlite:///{tmp_path / 'test.db'}") as store, FaultServer(model) as server:
        found = Scene(store, Turns.over(store, server.base_url), model, tmp_path / "workspace")
        found.enable()
        yield found


# --- before a tool call ----------------------------------------------------------------------------------------------


def test_a_blocked_call_does_not_run_and_says_why(scene: Scene) -> None:
    def no_notes(event: HookEvent) -> dict[str, str]:
        assert event.payload["tool_name"] == "write_file"
        assert event.payload["args"] == {"path": "note.txt", "content": "as asked"}
        return {"action": "block", "message": "no notes on Sundays"}

    scene.enable(hook(no_notes, "pre_tool_call"))
    run_id = scene.writes()
    assert "no notes on Sundays" in scene.do(run_id)
    assert scene.written() is None
    [ended] = scene.events(run_id, "tool.completed")
    assert (ended["refused_by"], ended["reason"], ended["error"]) == ("hook", "no-notes: no notes on Sundays", True)


def test_a_call_runs_with_the_arguments_that_hooks_gave_it(scene: Scene) -> None:
    def louder(event: HookEvent) -> dict[str, Any]:
        return {"args": {**event.payload["args"], "content": event.payload["args"]["content"].upper()}}

    def longer(event: HookEvent) -> dict[str, Any]:
        return {"args": {**event.payload["args"], "content": event.payload["args"]["content"] + "!"}}

    scene.enable(hook(louder, "pre_tool_call"), hook(longer, "pre_tool_call"))
    run_id = scene.writes()
    scene.do(run_id)
    assert scene.written() == "AS ASKED!"
    [reply] = [row for row in scene.store.bodies(run_id) if row["role"] == "assistant"]
    assert "as asked" in reply["tool_calls"][0]["function"]["arguments"]  # what the model said stays what it said
    [began] = scene.events(run_id, "tool.started")
    assert "AS ASKED!" in began["preview"]


def test_whoever_takes_a_call_over_asks_no_hook_again(scene: Scene) -> None:
    asked = []

    def once(event: HookEvent) -> dict[str, Any]:
        asked.append(event.id)
        return {"args": {"path": "note.txt", "content": f"answer {len(asked)}"}}

    run_id = scene.writes()
    dying = scene.store.worker("dying")
    claim = scene.store.call(run_id, owner=dying.pk)
    scene.enable(hook(once, "pre_tool_call"))
    before(scene, claim)
    assert (scene.written(), asked) == (None, [f"{run_id}.1.0.pre_tool_call"])
    scene.store.sweep()
    scene.store.vanish(dying)
    scene.store.sweep()
    scene.do(run_id)
    assert (scene.written(), len(asked)) == ("answer 1", 1)


def before(scene: Scene, claim: CallClaim) -> CallClaim:
    """What a worker does with a claim until the tool begins."""
    from hermes_worker.tasks.hooks.rewriting import ask_before_call

    session = scene.parts.rows.runs.load_session_context(claim.session_pk)
    return ask_before_call(scene.parts, claim, session, NEVER)[0]


def test_a_hook_can_have_a_person_asked_about_any_call(scene: Scene) -> None:
    asked = []

    def careful(event: HookEvent) -> dict[str, str]:
        asked.append(event.id)
        return {"action": "approve", "message": "writes a file", "rule_key": "files"}

    scene.enable(hook(careful, "pre_tool_call"))
    run_id = scene.writes()
    do_calls(scene.parts, scene.store, run_id)
    assert scene.store.status(run_id) is RunStatus.WAITING_FOR_APPROVAL
    [request] = scene.events(run_id, "approval.request")
    assert (request["description"], request["pattern_key"]) == ("writes a file", "plugin_rule:files")
    Waits(scene.store.database).approve(run_id, ApprovalChoice.ONCE, by="person")
    scene.do(run_id)
    assert (scene.written(), len(asked)) == ("as asked", 1)


def test_a_hook_sees_no_secret_and_cannot_write_its_marker(scene: Scene) -> None:
    secret = "s3cr3t-0123456789-abcdef"
    seen = []

    def nosy(event: HookEvent) -> dict[str, Any]:
        seen.append(json.dumps(event.payload))
        return {"args": {**event.payload["args"], "path": "other.txt"}}

    scene.enable(hook(nosy, "pre_tool_call"), redactor=Redactor(known=(secret,)))
    run_id = scene.writes(f"the key is {secret}")
    scene.do(run_id)
    assert secret not in seen[0]
    assert run_id in seen[0]
    assert scene.written() == f"the key is {secret}"
    assert "marker of a secret" in scene.events(run_id, "hook.failed")[0]["reason"]


# --- on a result -----------------------------------------------------------------------------------------------------


def test_the_first_text_stands_in_for_a_result(scene: Scene) -> None:
    def silent(event: HookEvent) -> None:
        assert event.payload["status"] == "ok"

    def shorter(event: HookEvent) -> str:
        return f"written: {event.payload['args']['path']}"

    def never(event: HookEvent) -> str:
        raise AssertionError("the first text wins")

    where = "transform_tool_result"
    scene.enable(hook(silent, where), hook(shorter, where), hook(never, where))
    run_id = scene.writes()
    assert scene.do(run_id) == "written: note.txt"
    assert scene.events(run_id, "hook.failed") == []


def test_a_result_of_a_hook_is_read_for_secrets_and_bounded_as_any(scene: Scene) -> None:
    secret = "s3cr3t-0123456789-abcdef"

    def leaky(event: HookEvent) -> str:
        return secret + "x" * 300_000

    scene.enable(hook(leaky, "transform_tool_result"), redactor=Redactor(known=(secret,)))
    run_id = scene.writes()
    result = scene.do(run_id)
    assert secret not in result
    assert len(result) < 150_000


# --- before a model call, and the answer -----------------------------------------------------------------------------


def test_context_is_below_the_question_and_stays_there_byte_for_byte(scene: Scene) -> None:
    asked = []

    def weather(event: HookEvent) -> dict[str, str]:
        asked.append(event.payload["user_message"])
        return {"context": f"It rains. ({len(asked)})"}

    scene.enable(hook(weather, "pre_llm_call"))
    scene.model.words = ["(todo)", "first answer", "second answer"]
    run_id = scene.turns.submit(session_id="s", input="hello")
    scene.turns.finish(run_id)
    again = scene.turns.submit(session_id="s", input="and now?")
    scene.turns.finish(again)
    first, second, third = scene.model.asked
    assert [row["content"] for row in first] == ["You are a test.", "hello\n\nIt rains. (1)"]
    assert asked == ["hello", "and now?"]
    assert json.dumps(second[: len(first)]) == json.dumps(first)
    assert json.dumps(third[: len(second)]) == json.dumps(second)
    assert third[-1]["content"] == "and now?\n\nIt rains. (2)"
    assert scene.turns.said(run_id)[0] == ("user", "hello")  # people see what was said


def test_a_parked_turn_sends_the_same_context_again(scene: Scene) -> None:
    asked = []

    def counter(event: HookEvent) -> str:
        asked.append(event.id)
        return f"context {len(asked)}"

    scene.enable(hook(counter, "pre_llm_call"))
    scene.model.words = ["(busy)", "(todo)", "answer"]
    run_id = scene.turns.submit(input="hello")
    scene.turns.finish(run_id)
    contents = [[row["content"] for row in rows[:2]] for rows in scene.model.asked]
    assert len(contents) >= 3
    assert {tuple(rows) for rows in contents} == {("You are a test.", "hello\n\ncontext 1")}
    assert asked == [f"{run_id}.1.pre_llm_call"]


def test_what_a_memory_provider_recalls_is_part_of_each_request_of_the_turn(scene: Scene) -> None:
    asked = []

    def prefetch(event: HookEvent) -> str:
        asked.append(event.payload["user_message"])
        return f"They like blue. ({len(asked)})"

    provider = MemoryProviderDeclaration(name="notes", prefetch=prefetch, sync=print)
    found = fold_extensions([Extension(name="notes", version="1.0", memory_providers=(provider,))])
    scene.enable(*load_hooks(found, {"pre_llm_call"}))
    scene.model.words = ["(busy)", "(todo)", "answer"]
    run_id = scene.turns.submit(input="hello")
    scene.turns.finish(run_id)
    opening = {dump_canonical_json(rows[:2]) for rows in scene.model.asked}
    assert len(scene.model.asked) >= 3
    assert len(opening) == 1
    assert "hello\\n\\n<memory-context>" in (said := opening.pop())
    assert "They like blue. (1)" in said
    assert asked == ["hello"]


def test_another_text_stands_in_for_the_answer(scene: Scene) -> None:
    def polite(event: HookEvent) -> str:
        return event.payload["response_text"] + ", with kind regards"

    scene.enable(hook(polite, "transform_llm_output"))
    scene.model.words = ["(todo)", "the answer"]
    run_id = scene.turns.submit(input="hello")
    scene.turns.finish(run_id)
    assert scene.turns.said(run_id)[-1] == ("assistant", "the answer, with kind regards")
    assert scene.store.views.load_run(run_id).status is RunStatus.COMPLETED


# --- hooks that misbehave --------------------------------------------------------------------------------------------


def _raises(event: HookEvent) -> str:
    raise RuntimeError("no luck with sk-ant-REDACTED")


def _exits(event: HookEvent) -> str:
    raise SystemExit(3)


def _odd(event: HookEvent) -> object:
    return {"text": object()}


def _deep(event: HookEvent) -> object:
    found: list[Any] = []
    for _ in range(100_000):
        found = [found]
    return found


def _huge(event: HookEvent) -> str:
    return "x" * (ANSWER_CHARS_MAX + 1)


def _number(event: HookEvent) -> float:
    return float("nan")


@pytest.mark.parametrize("bad", [_raises, _exits, _odd, _deep, _huge, _number], ids=lambda bad: bad.__name__)
def test_a_bad_hook_breaks_no_run_and_is_named(scene: Scene, bad: Callable[[HookEvent], Any]) -> None:
    everywhere = ("pre_tool_call", "transform_tool_result", "pre_llm_call", "transform_llm_output")
    scene.enable(hook(bad, *everywhere, name="bad"))
    run_id = scene.writes()
    scene.do(run_id)
    assert scene.written() == "as asked"
    scene.turns.finish(run_id)
    assert scene.turns.said(run_id)[-1] == ("assistant", "done")
    named = scene.events(run_id, "hook.failed")
    assert [one["hook_event"] for one in named] == ["pre_tool_call", "transform_tool_result", "transform_llm_output"]
    assert {one["hook"] for one in named} == {"bad"}
    assert "api03" not in json.dumps(named)


def test_a_hook_that_hangs_is_left_behind_and_after_three_times_off() -> None:
    release, calls = threading.Event(), []

    def hangs(event: HookEvent) -> str:
        calls.append(event.id)
        release.wait(60)
        return "too late"

    slow = hook(hangs, "pre_tool_call", timeout_s=0.05)
    runner = HookRunner([slow])
    try:
        for number in range(ABANDONED_MAX):
            called = runner.call(slow, f"e{number}", "pre_tool_call", "{}", NEVER)
            assert "had not answered after 0.05 s" in (called.failure or "")
        assert runner.is_off(slow)
        assert "switched off" in (runner.call(slow, "e9", "pre_tool_call", "{}", NEVER).failure or "")
        assert calls == ["e0", "e1", "e2"]
    finally:
        release.set()


def test_a_hook_that_hung_is_called_again_when_nothing_of_it_hangs_and_it_has_rested() -> None:
    release, now, ended = threading.Event(), [0.0], threading.Semaphore(0)

    def hangs(event: HookEvent) -> str:
        release.wait(60)
        ended.release()
        return event.id

    slow = hook(hangs, "pre_tool_call", timeout_s=0.05)
    runner = HookRunner([slow], clock=lambda: now[0])
    try:
        for number in range(ABANDONED_MAX):
            runner.call(slow, f"e{number}", "pre_tool_call", "{}", NEVER)
        now[0] = 2 * REST_S
        assert runner.is_off(slow), "its threads hang"
    finally:
        release.set()
    assert all(ended.acquire(timeout=30) for _ in range(ABANDONED_MAX))
    until(lambda: not runner.is_off(slow), "its threads have ended")
    slow = replace(slow, timeout_s=30.0)
    assert runner.call(slow, "e8", "pre_tool_call", "{}", NEVER).answer == '"e8"'
    release.clear()
    slow = replace(slow, timeout_s=0.05)
    for number in range(ABANDONED_MAX):
        assert not runner.is_off(slow), "it has three calls again"
        runner.call(slow, f"f{number}", "pre_tool_call", "{}", NEVER)
    release.set()
    assert all(ended.acquire(timeout=30) for _ in range(ABANDONED_MAX + 1))
    assert runner.is_off(slow), "it rests first"


def test_a_coroutine_is_a_hook_and_is_cancelled_in_time() -> None:
    cancelled = threading.Event()

    async def later(event: HookEvent) -> str:
        try:
            await asyncio.sleep(0.0 if event.id == "quick" else 60.0)
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return "in time"

    slow = hook(later, "pre_llm_call", timeout_s=0.2)
    runner = HookRunner([slow])
    assert runner.call(slow, "quick", "pre_llm_call", "{}", NEVER).answer == '"in time"'
    assert runner.call(slow, "slow", "pre_llm_call", "{}", NEVER).failure is not None
    assert cancelled.wait(PATIENCE_S)


def test_who_must_leave_waits_for_no_hook() -> None:
    release, stop = threading.Event(), AbortSignal()

    def hangs(event: HookEvent) -> None:
        stop.set(AbortReason.STOP)
        release.wait(60)

    slow = hook(hangs, "pre_tool_call", timeout_s=50.0)
    try:
        called = HookRunner([slow]).call(slow, "e", "pre_tool_call", "{}", stop)
        assert called.was_broken_off
        assert called.duration_s < 5
    finally:
        release.set()


def test_what_a_hook_does_to_its_payload_stays_with_it() -> None:
    seen = []

    def vandal(event: HookEvent) -> None:
        seen.append(dict(event.payload))
        event.payload.clear()  # type: ignore[attr-defined]

    hooks = [hook(vandal, "pre_tool_call", name="a"), hook(vandal, "pre_tool_call", name="b")]
    runner = HookRunner(hooks)
    for one in runner.select_hooks("pre_tool_call"):
        runner.call(one, "e", "pre_tool_call", '{"args":{"a":1}}', NEVER)
    assert seen == [{"args": {"a": 1}}] * 2


def test_a_handler_is_called_with_the_name_and_the_payload() -> None:
    def handle(event_type: str, context: dict[str, Any]) -> str:
        return f"{event_type} {context['session_id']}"

    one = hook(handle, "agent:end", is_handler=True)
    called = HookRunner([one]).call(one, "e", "agent:end", '{"session_id":"s"}', NEVER)
    assert called.answer == '"agent:end s"'
