"""A script's tool calls over a real store: permission, hooks, what is written before each, and lost workers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from support.confined import working
from support.store import Store, opened
from support.turns import Turns, change_parts, do_calls

from hermes_worker.agent.tools.catalog import build_default_catalog
from hermes_worker.core.errors import LeaseLost
from hermes_worker.core.hooks import HookEvent
from hermes_worker.core.inner_calls import InnerCall, dump_calls, parse_calls
from hermes_worker.core.messages import ModelReply, ToolRequest, dump_canonical_json
from hermes_worker.core.replay import Replay
from hermes_worker.core.run import RunStatus
from hermes_worker.safety.approvals import ApprovalChoice, ApprovalMode
from hermes_worker.safety.redaction import Redactor
from hermes_worker.store.hooks.calls import HookCalls
from hermes_worker.store.runs.waits import Waits
from hermes_worker.store.tables import tool_calls
from hermes_worker.tasks.calls.approval_rules import ApprovalRules
from hermes_worker.tasks.context import WorkerHooks
from hermes_worker.tasks.hooks.running import HookRunner, LoadedHook
from hermes_worker.tasks.iteration.planning import plan_calls
from hermes_worker.workspaces.opening import OpeningOptions, open_workspace
from hermes_worker.workspaces.ref import WorkspaceKind, WorkspaceRef
from hermes_worker.workspaces.sandbox.backends import Sandbox
from hermes_worker.workspaces.sandbox.network import Network, NetworkRules
from hermes_worker.workspaces.sandbox.policy import SandboxMode, SandboxPolicy

_OPENING = OpeningOptions(base_env={"PATH": "/usr/local/bin:/usr/bin:/bin"}, hermes_home="")
_CATALOG = build_default_catalog()
NAMES = ("execute_code", "read_file", "write_file", "terminal", "todo", "web_extract")
TOOLS = f"[{','.join(_CATALOG.render_definitions(NAMES))}]"


@dataclass
class Scene:
    store: Store
    turns: Turns
    root: Path
    run_id: str = ""

    def ask(self, *scripts: str) -> None:
        """The model asks for scripts."""
        before = len(self.store.results(self.run_id))
        requests = tuple(
            ToolRequest(id=f"c{before}-{n}", name="execute_code", arguments=dump_canonical_json({"code": code}))
            for n, code in enumerate(scripts)
        )
        reply, planned = plan_calls(ModelReply(text="", tool_requests=requests), self.turns.parts.catalog)
        self.store.runs.commit_reply(self.store.turn(self.run_id), reply, planned)

    def __call__(self, code: str) -> Any:
        self.ask(code)
        do_calls(self.turns.parts, self.store, self.run_id)
        return json.loads(self.store.results(self.run_id)[-1])

    def noted(self) -> list[tuple[InnerCall, ...]]:
        with self.store.database.read() as connection:
            rows = connection.execute(sa.select(tool_calls.c.inner_calls).order_by(tool_calls.c.iteration))
            return [parse_calls(row.inner_calls) for row in rows]

    def change(self, **parts: Any) -> None:
        self.turns.parts = change_parts(self.turns.parts, **parts)

    def hook(self, call: Callable[[HookEvent], Any], event: str) -> None:
        one = LoadedHook(name="guard", events=frozenset({event}), call=call, timeout_s=5.0)
        self.change(hooks=WorkerHooks(runner=HookRunner([one]), store=HookCalls(self.store.database)))


@pytest.fixture
def scene(database_url: str, tmp_path: Path) -> Iterator[Scene]:
    with opened(database_url) as store:
        turns = Turns.over(store)
        root = tmp_path / "workspace"
        root.mkdir()
        here = Scene(store, turns, root)
        here.change(
            workspace=lambda ref: open_workspace(WorkspaceRef.from_json(ref), _OPENING),
            waits=Waits(store.database),
            approvals=ApprovalRules(mode=ApprovalMode.OFF),
        )
        ref = WorkspaceRef(kind=WorkspaceKind.LOCAL, root=str(root)).to_json()
        here.run_id = turns.submit(tools=TOOLS, workspace=ref)
        yield here


def test_what_may_have_an_effect_is_written_before_it_begins(scene: Scene) -> None:
    seen: list[tuple[InnerCall, ...]] = []
    scene.hook(lambda event: seen.append(scene.noted()[-1]), "transform_tool_result")
    said = scene(
        "from hermes_tools import *\n"
        "import hermes_tools as t\n"
        "t.write_file('a', 'one')\nprint(t.read_file('a')['content'])\nt.terminal('echo two >> a')\n"
    )
    assert (said["status"], said["output"], said["tool_calls_made"]) == ("success", "1|one\n", 3)
    [(first, second)] = scene.noted()
    assert (first.tool, second.tool) == ("write_file", "terminal") and "echo two" in second.about
    # When its result was shown, the call stood there already; reading has no effect and is not written down.
    assert [[call.tool for call in calls] for calls in seen[:3]] == [
        ["write_file"],
        ["write_file"],
        ["write_file", "terminal"],
    ]
    assert first.has_ended and not second.has_ended


def test_a_script_whose_worker_vanished_is_not_run_again_and_says_what_it_began(scene: Scene) -> None:
    worker = scene.store.worker()
    scene.ask("irrelevant")
    claim = scene.store.call(scene.run_id, owner=worker.pk)
    begun = [InnerCall(tool="write_file", about='{"path":"a"}', has_ended=True), InnerCall(tool="terminal", about="{}")]
    scene.store.calls.record_inner_calls(claim, begun[:1])
    scene.store.calls.record_inner_calls(claim, begun)
    scene.store.sweep()
    scene.store.vanish(worker)
    scene.store.sweep()
    said = json.loads(scene.store.results(scene.run_id)[-1])
    assert said["status"] == "outcome_unknown"
    assert said["begun_by_the_script"] == [
        'write_file {"path":"a"} (it had ended)',
        "terminal {} (nobody saw its end)",
    ]
    # The worker wakes up: it begins nothing more.
    with pytest.raises(LeaseLost):
        scene.store.calls.record_inner_calls(claim, begun)
    assert not [effect for effect in scene.store.due(scene.run_id) if type(effect).__name__ == "RunTool"]


def test_a_worker_that_lost_its_claim_makes_no_more_calls(scene: Scene) -> None:
    calls = scene.turns.parts.rows.calls

    class Taken:
        def __getattr__(self, name: str) -> Any:
            return getattr(calls, name)

        def record_inner_calls(self, claim: Any, begun: Any) -> None:
            with scene.store.database.write() as connection:
                connection.execute(sa.update(tool_calls).values(lease_token="somebody else"))
            calls.record_inner_calls(claim, begun)

    scene.change(calls=Taken())
    scene.ask("from hermes_tools import terminal\nprint(terminal('touch one'))\nterminal('touch two')")
    do_calls(scene.turns.parts, scene.store, scene.run_id)
    assert list(scene.root.iterdir()) == []
    assert scene.store.results(scene.run_id) == []


def test_a_dangerous_command_in_a_script_waits_for_nobody(scene: Scene) -> None:
    scene.change(
        approvals=ApprovalRules(mode=ApprovalMode.MANUAL, allowed=frozenset({"script via an interpreter's code flag"}))
    )
    (scene.root / "kept").mkdir()
    said = scene("from hermes_tools import terminal\nprint(terminal('rm -rf kept')['error'])")
    assert "needs somebody's permission" in said["output"]
    assert (scene.root / "kept").is_dir() and scene.noted() == [()]


def test_what_is_never_run_is_not_run_by_scripts(scene: Scene) -> None:
    said = scene("from hermes_tools import terminal\nprint(terminal('mkfs.ext4 /dev/sda')['error'])")
    assert "never run here" in said["output"] and scene.noted() == [()]


def test_a_script_needs_the_permission_of_an_interpreter_that_is_given_code(scene: Scene) -> None:
    scene.change(approvals=ApprovalRules(mode=ApprovalMode.MANUAL))
    scene.ask("open('made', 'w')")
    do_calls(scene.turns.parts, scene.store, scene.run_id)
    assert scene.store.status(scene.run_id) is RunStatus.WAITING_FOR_APPROVAL
    assert not (scene.root / "made").exists()
    waits = Waits(scene.store.database)
    [wait] = waits.list_open(run_id=scene.run_id)
    assert wait.request["description"] == "script via an interpreter's code flag"
    waits.approve(scene.run_id, ApprovalChoice.ONCE, by="api:somebody")
    do_calls(scene.turns.parts, scene.store, scene.run_id)
    assert (scene.root / "made").exists()


def test_hooks_are_asked_about_inner_calls(scene: Scene) -> None:
    def guard(event: HookEvent) -> Any:
        given = event.payload
        if given["tool_name"] == "write_file" and given["args"]["path"] == "no":
            return {"action": "block", "message": "not that one"}
        return None

    scene.hook(guard, "pre_tool_call")
    said = scene(
        "from hermes_tools import write_file\n"
        "print(write_file('no', 'x')['error'])\nprint(write_file('yes', 'x')['success'])"
    )
    assert said["output"] == "not that one\nTrue\n"
    assert [path.name for path in scene.root.iterdir()] == ["yes"]


def test_inner_results_hold_no_secrets(scene: Scene) -> None:
    scene.change(redactor=Redactor(known=("a-secret-of-this-installation",)))
    (scene.root / "a").write_text("a-secret-of-this-installation")
    said = scene("from hermes_tools import read_file\nprint('a-secret' in read_file('a')['content'])")
    assert said["output"] == "False\n"


def test_a_script_sees_only_what_its_session_has(scene: Scene) -> None:
    said = scene(
        "import hermes_tools\nprint(sorted(n for n in dir(hermes_tools) if n in ('patch', 'todo', 'terminal')))"
    )
    assert said["output"] == "['terminal']\n"


def test_terminal_in_a_script_runs_in_the_foreground_only(scene: Scene) -> None:
    said = scene("from hermes_tools import terminal\nprint(terminal('true', background=True)['error'])")
    assert "foreground only" in said["output"]


def test_what_is_written_is_read_and_nonsense_is_nothing() -> None:
    calls = (InnerCall(tool="a", about="b", has_ended=True), InnerCall(tool="c", about="d"))
    assert parse_calls(dump_calls(calls)) == calls
    assert parse_calls(None) == parse_calls("{") == parse_calls("[1]") == parse_calls('[["a"]]') == ()


def test_no_script_tool_asks_models_after_an_effect() -> None:
    classes = {name: _CATALOG.get_spec(name).replay for name in ("web_extract", "read_file", "search_files")}
    assert set(classes.values()) == {Replay.PURE}


def _in_sandbox(scene: Scene, network: Network, *, is_confined: bool = True) -> None:
    """Give the scene's workspace a sandbox with ``network``, and ask a person about what is dangerous."""
    sandbox = Sandbox(
        SandboxMode.REQUIRE if is_confined else SandboxMode.OFF,
        SandboxPolicy(),
        [working("bubblewrap")],
        network=NetworkRules(people=network, unattended=network, api=network),
    )
    opening = replace(_OPENING, sandbox=sandbox)
    scene.change(
        approvals=ApprovalRules(mode=ApprovalMode.MANUAL),
        workspace=lambda ref: open_workspace(WorkspaceRef.from_json(ref), opening),
    )


@pytest.mark.parametrize("network", [Network.NONE, Network.PROXY])
def test_nobody_is_asked_about_a_script_whose_files_and_network_are_confined(scene: Scene, network: Network) -> None:
    _in_sandbox(scene, network)

    assert scene("print(1+1)")["output"] == "2\n"


def test_the_calls_of_a_confined_script_are_judged_one_by_one(scene: Scene) -> None:
    _in_sandbox(scene, Network.NONE)
    (scene.root / "kept").mkdir()
    said = scene(
        "from hermes_tools import terminal\nprint(terminal('rm -rf kept'))\nprint(terminal('echo two')['output'])"
    )

    assert "needs somebody's permission" in said["output"] and "two" in said["output"]
    assert (scene.root / "kept").is_dir()


@pytest.mark.parametrize(("network", "is_confined"), [(Network.OPEN, True), (Network.NONE, False)])
def test_a_person_is_asked_about_a_script_that_reaches_more(scene: Scene, network: Network, is_confined: bool) -> None:
    _in_sandbox(scene, network, is_confined=is_confined)
    scene.ask("print(1+1)")
    do_calls(scene.turns.parts, scene.store, scene.run_id)

    assert scene.store.views.load_run(scene.run_id).status is RunStatus.WAITING_FOR_APPROVAL


def test_what_is_never_run_or_forbidden_is_refused_to_a_confined_script_too(scene: Scene) -> None:
    _in_sandbox(scene, Network.NONE)
    scene.change(approvals=ApprovalRules(mode=ApprovalMode.MANUAL, deny=("python3 -c *forbidden*",)))

    assert "Blocked by the rule" in scene("forbidden = 1")["error"]
