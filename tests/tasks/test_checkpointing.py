"""A call that changes files leaves a checkpoint of what was there, on whichever worker it runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from support.store import Store, opened
from support.turns import Turns, change_parts, do_calls
from support.workspace_hosts import ShellHost

from hermes_worker.agent.tools.catalog import build_default_catalog
from hermes_worker.core.messages import ModelReply, ToolRequest, dump_canonical_json
from hermes_worker.features.checkpoints.rules import CheckpointLimits
from hermes_worker.features.checkpoints.service import CheckpointsAway, RunCheckpoints
from hermes_worker.features.checkpoints.work import Checkpointing
from hermes_worker.safety.approvals import ApprovalMode
from hermes_worker.safety.destruction import describe_unkept, is_destructive
from hermes_worker.store.runs.waits import Waits
from hermes_worker.tasks.calls.approval_rules import ApprovalRules
from hermes_worker.tasks.iteration.planning import plan_calls
from hermes_worker.workspaces.opening import OpeningOptions, open_workspace
from hermes_worker.workspaces.ref import WorkspaceKind, WorkspaceRef
from hermes_worker.workspaces.remote.workspace import RemoteWorkspace

_OPENING = OpeningOptions(base_env={"PATH": "/usr/bin:/bin"}, hermes_home="")
_CATALOG = build_default_catalog()
TOOLS = f"[{','.join(_CATALOG.render_definitions(_CATALOG.names))}]"


@pytest.fixture
def turns(database_url: str, tmp_path: Path) -> Iterator[Turns]:
    with opened(database_url) as store:
        turns = Turns.over(store)
        turns.parts = change_parts(
            turns.parts,
            workspace=lambda ref: open_workspace(WorkspaceRef.from_json(ref), _OPENING),
            checkpoints=Checkpointing(home=tmp_path / "home", limits=CheckpointLimits()),
        )
        yield turns


def called(store: Store, turns: Turns, run_id: str, *calls: tuple[str, object]) -> None:
    before = len(store.results(run_id))
    requests = tuple(
        ToolRequest(id=f"c{before}-{n}", name=name, arguments=dump_canonical_json(arguments))
        for n, (name, arguments) in enumerate(calls)
    )
    reply, planned = plan_calls(ModelReply(text="", tool_requests=requests), turns.parts.catalog)
    store.runs.commit_reply(store.turn(run_id), reply, planned)
    do_calls(turns.parts, store, run_id)


def begun(turns: Turns, root: Path) -> str:
    root.mkdir()
    return turns.submit(tools=TOOLS, workspace=WorkspaceRef(kind=WorkspaceKind.LOCAL, root=str(root)).to_json())


def test_before_files_change_they_are_kept_once_for_each_iteration(turns: Turns, tmp_path: Path) -> None:
    root = tmp_path / "workspace"
    run_id = begun(turns, root)
    (root / "a").write_text("first")
    (root / "b").write_text("untouched")
    write = lambda text: ("write_file", {"path": "a", "content": text})  # noqa: E731

    called(turns.store, turns, run_id, ("read_file", {"path": "a"}))
    called(turns.store, turns, run_id, write("second"), ("patch", {"path": "b", "old_string": "un", "new_string": ""}))
    # Another worker takes over: it has the same home.
    turns.parts = replace(turns.parts)
    called(turns.store, turns, run_id, write("third"))
    called(turns.store, turns, run_id, ("terminal", {"command": "ls"}), ("terminal", {"command": "rm a"}))

    assert not (root / "a").exists()
    checkpoints = RunCheckpoints(turns.store.database, tmp_path / "home", CheckpointLimits())
    found = checkpoints.list_all(run_id)
    assert [(each.iteration, each.tool) for each in found] == [(4, "terminal"), (3, "write_file"), (2, "write_file")]
    assert [each.path for each in checkpoints.diff(run_id).files] == ["a", "b"]
    turns.store.answer(run_id)
    done = checkpoints.restore(run_id, found[-1].id)
    assert list(done.written) == ["a", "b"]
    assert ((root / "a").read_text(), (root / "b").read_text()) == ("first", "untouched")


def test_a_checkpoint_that_fails_does_not_hold_up_the_call(turns: Turns, tmp_path: Path) -> None:
    run_id = begun(turns, tmp_path / "workspace")
    (tmp_path / "home").write_text("no folder")
    called(turns.store, turns, run_id, ("write_file", {"path": "a", "content": "x"}))
    assert (tmp_path / "workspace/a").read_text() == "x"


def test_a_refused_call_leaves_no_checkpoint(turns: Turns, tmp_path: Path) -> None:
    run_id = begun(turns, tmp_path / "workspace")
    called(turns.store, turns, run_id, ("terminal", {"command": "rm -rf /"}))
    assert not (tmp_path / "home").exists()


def test_a_question_says_where_a_command_would_run_and_what_no_checkpoint_keeps(turns: Turns, tmp_path: Path) -> None:
    root = tmp_path / "workspace"
    turns.parts = change_parts(
        turns.parts, waits=Waits(turns.store.database), approvals=ApprovalRules(mode=ApprovalMode.MANUAL)
    )
    run_id = begun(turns, root)
    (root / "sub/build").mkdir(parents=True)
    called(turns.store, turns, run_id, ("terminal", {"command": "rm -rf build", "workdir": "sub"}))
    [asked] = Waits(turns.store.database).list_open(run_id=run_id)
    assert asked.request["directory"] == str(root / "sub")
    assert asked.request["description"].endswith("; no checkpoint keeps build: this cannot be put back")


@pytest.mark.parametrize(
    ("command", "named"),
    [
        ("rm -rf build", "build"),
        ("rm -r ./a/dist .venv/lib && mv build x", "dist, .venv, build"),
        ("rm -rf src", ""),
        ("ls build", ""),
        ("(" * 400, ""),
    ],
)
def test_what_no_checkpoint_keeps_is_named(command: str, named: str) -> None:
    assert describe_unkept(command) == (f"no checkpoint keeps {named}: this cannot be put back" if named else "")


@pytest.mark.parametrize(
    "command",
    [
        *("rm a", "cd d && rm -rf x", "mv a b", "cp a b", "sed -i s/a/b/ f", "truncate -s 0 f", "dd if=a of=b"),
        *("shred f", "git reset --hard", "git -C x clean -fd", "git checkout .", "echo x > f", "cat a | tee b"),
        *("find . -delete", "find . -exec rm {} +", "bash -c 'rm f'", "sudo rm f", "xargs rm < list", "$EDITOR f"),
        *("perl -i -pe s/a/b/ f", "patch -p1", "python - <<E\nE\necho x >f", "for f in *; do rm $f; done", "(" * 400),
    ],
)
def test_a_command_that_looks_destructive_is_told(command: str) -> None:
    assert is_destructive(command)


@pytest.mark.parametrize(
    "command",
    ["ls -la", "cat a", "git status", "git log --oneline", "grep -r x . 2>/dev/null", "pytest -q 2>&1", "sed s/a/b/ f"],
)
def test_a_command_that_only_looks_is_not(command: str) -> None:
    assert not is_destructive(command)


def test_files_on_another_host_are_kept_by_every_worker_and_put_back(turns: Turns, tmp_path: Path) -> None:
    root = tmp_path / "workspace"
    ref = WorkspaceRef(kind=WorkspaceKind.SSH, root=str(root)).to_json()
    hosted = lambda _: RemoteWorkspace(ShellHost(), str(root))  # noqa: E731 - each call is on a worker of its own
    turns.parts = replace(turns.parts, workspace=hosted)
    run_id = turns.submit(tools=TOOLS, workspace=ref)
    called(turns.store, turns, run_id, ("write_file", {"path": "a", "content": "first"}))
    called(turns.store, turns, run_id, ("write_file", {"path": "a", "content": "second"}))
    called(turns.store, turns, run_id, ("terminal", {"command": "rm a"}))

    checkpoints = RunCheckpoints(turns.store.database, tmp_path / "home", CheckpointLimits(), opened=hosted)
    found = checkpoints.list_all(run_id)
    assert [(each.iteration, each.files) for each in found] == [(3, 1), (2, 1), (1, 0)]
    assert [(each.path, each.change) for each in checkpoints.diff(run_id, found[0].id).files] == [("a", "removed")]
    turns.store.answer(run_id)
    assert list(checkpoints.restore(run_id, found[1].id).written) == ["a"]
    assert (root / "a").read_text() == "first"
    elsewhere = RunCheckpoints(turns.store.database, tmp_path / "home", CheckpointLimits())
    assert len(elsewhere.list_all(run_id)) == 4, "to see them nobody needs the host"
    with pytest.raises(CheckpointsAway, match="opens no workspaces on other hosts"):
        elsewhere.diff(run_id)


def test_a_workspace_that_was_lost_is_told_by_the_call_though_a_checkpoint_was_made_before_it(
    turns: Turns, tmp_path: Path
) -> None:
    root = tmp_path / "workspace"
    ref = WorkspaceRef(kind=WorkspaceKind.SSH, root=str(root)).to_json()
    hosted = RemoteWorkspace(ShellHost(), str(root))
    turns.parts = replace(turns.parts, workspace=lambda _: hosted)
    run_id = turns.submit(tools=TOOLS, workspace=ref)
    called(turns.store, turns, run_id, ("write_file", {"path": "a", "content": "first"}))
    (root / "a").unlink()
    root.rmdir()
    (tmp_path / ".workspace.id").unlink()
    turns.parts = replace(turns.parts, workspace=lambda _: RemoteWorkspace(ShellHost(), str(root)))
    called(turns.store, turns, run_id, ("write_file", {"path": "a", "content": "second"}))
    assert "the files that this session worked on are not on" in turns.store.results(run_id)[-1]
