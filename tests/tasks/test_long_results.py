"""A long result is read page by page on whichever worker, and the calls of one reply share what they may bring."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from support.store import Store, opened
from support.turns import Turns, change_parts, do_calls

from hermes_worker.agent.tools.catalog import build_default_catalog
from hermes_worker.core.delegation import DelegationPolicy
from hermes_worker.core.messages import ModelReply, ToolRequest, dump_canonical_json
from hermes_worker.tasks.iteration.planning import plan_calls
from hermes_worker.workspaces.opening import OpeningOptions, open_workspace
from hermes_worker.workspaces.ref import WorkspaceKind, WorkspaceRef

_OPENING = OpeningOptions(base_env={"PATH": "/usr/bin:/bin"}, hermes_home="")
_CATALOG = build_default_catalog()
TOOLS = f"[{','.join(_CATALOG.render_definitions(_CATALOG.names))}]"


@pytest.fixture
def turns(database_url: str) -> Iterator[Turns]:
    with opened(database_url) as store:
        turns = Turns.over(store)
        turns.parts = replace(turns.parts, workspace=lambda ref: open_workspace(WorkspaceRef.from_json(ref), _OPENING))
        yield turns


def begun(turns: Turns, folder: Path) -> str:
    folder.mkdir()
    workspace = WorkspaceRef(kind=WorkspaceKind.LOCAL, root=str(folder)).to_json()
    return turns.submit(tools=TOOLS, workspace=workspace)


def called(store: Store, turns: Turns, run_id: str, *calls: tuple[str, object]) -> list[str]:
    """The results of one reply's calls."""
    before = len(store.results(run_id))
    requests = tuple(
        ToolRequest(id=f"c{before}-{n}", name=name, arguments=dump_canonical_json(arguments))
        for n, (name, arguments) in enumerate(calls)
    )
    reply, planned = plan_calls(ModelReply(text="", tool_requests=requests), turns.parts.catalog)
    store.runs.commit_reply(store.turn(run_id), reply, planned)
    do_calls(turns.parts, store, run_id)
    return store.results(run_id)[before:]


def test_a_long_result_is_read_where_its_file_is_not(turns: Turns, tmp_path: Path) -> None:
    folder = tmp_path / "workspace"
    run_id = begun(turns, folder)
    for name in ("a.txt", "b.txt", "c.txt"):
        (folder / name).write_text("".join(f"{name} line {n} {'x' * 60}\n" for n in range(1_000)))
    reads = [("read_file", {"path": name, "limit": 1_000}) for name in ("a.txt", "b.txt", "c.txt")]

    results = called(turns.store, turns, run_id, *reads)

    [path] = {match[1] for match in (re.search(r"(hermes-results/\w+\.txt)", text) for text in results[:1]) if match}
    assert all(text.startswith("<persisted-output>") for text in results)
    shutil.rmtree(folder / "hermes-results")
    [page] = called(turns.store, turns, run_id, ("read_file", {"path": path, "offset": 1, "limit": 20}))
    assert "a.txt line 0" in page
    assert not json.loads(page).get("error")
    elsewhere = begun(turns, tmp_path / "of-another-session")
    [refused] = called(turns.store, turns, elsewhere, ("read_file", {"path": path}))
    assert "does not exist" in refused


def test_a_reply_hands_on_no_more_tasks_than_may_work_at_once(turns: Turns, tmp_path: Path) -> None:
    turns.parts = change_parts(turns.parts, delegation=DelegationPolicy(children_max=1))
    run_id = begun(turns, tmp_path / "workspace")
    requests = tuple(
        ToolRequest(id=f"c{n}", name="delegate_task", arguments=dump_canonical_json({"goal": f"g{n}"}))
        for n in range(3)
    )
    reply, planned = plan_calls(ModelReply(text="", tool_requests=requests), turns.parts.catalog)
    turns.store.runs.commit_reply(turns.store.turn(run_id), reply, planned)
    do_calls(turns.parts, turns.store, run_id)

    refused = [json.loads(row["content"]) for row in turns.store.bodies(run_id) if row["role"] == "tool"]

    assert [said["error"][:22] for said in refused] == ["nothing was delegated:"] * 2
