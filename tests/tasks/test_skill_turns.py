"""A run uses one set of skills from beginning to end, on whichever workers, whatever is edited in the middle."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.store import Store, opened
from support.turns import Turns, change_parts, do_calls

from hermes_worker.agent.tools.base import ToolContext, ToolPolicies
from hermes_worker.agent.tools.catalog import build_default_catalog
from hermes_worker.agent.tools.dispatch import run_tool
from hermes_worker.core.messages import ModelReply, ToolRequest, dump_canonical_json
from hermes_worker.core.run import RunStatus
from hermes_worker.features.skills.build import build_asked_calls
from hermes_worker.features.skills.reading_tool import SKILLS_FOLDER
from hermes_worker.features.skills.rows import Skills
from hermes_worker.features.skills.shelf_files import SkillShelf
from hermes_worker.features.skills.work import AgentSkills
from hermes_worker.safety.approvals import ApprovalChoice, UnattendedMode
from hermes_worker.settings import load_settings
from hermes_worker.store.runs.waits import Waits
from hermes_worker.store.runs.writers import RunWriters
from hermes_worker.store.tables import runs
from hermes_worker.tasks.calls.approval_rules import ApprovalRules
from hermes_worker.tasks.context import WorkerContext
from hermes_worker.tasks.iteration.planning import plan_calls
from hermes_worker.workspaces.opening import OpeningOptions, open_workspace
from hermes_worker.workspaces.ref import WorkspaceKind, WorkspaceRef

_OPENING = OpeningOptions(base_env={"PATH": "/usr/bin:/bin"}, hermes_home="")
_DECLARED = build_default_catalog()
NAMES = ("read_file", "skill_manage", "skill_view", "skills_list")
TOOLS = f"[{','.join(_DECLARED.render_definitions(NAMES))}]"
SKILL = """---
name: tidy
description: {description}
---
Run ${{HERMES_SKILL_DIR}}/scripts/run.sh {word}, for ${{HERMES_SESSION_ID}}.
"""


class Fleet:
    """The home where people edit, and workers of other machines, each of which knows only the database."""

    def __init__(self, turns: Turns, place: Path) -> None:
        self.store: Store = turns.store
        self.place = place
        self.folder = place / "home" / "skills" / "tidy"
        self.home = SkillShelf(Skills(self.store.database), place / "home")
        self.one, self.other = (self._worker(turns, name) for name in ("one", "other"))

    def _worker(self, turns: Turns, name: str) -> WorkerContext:
        shelf = SkillShelf(Skills(self.store.database), self.place / name)
        catalog = build_default_catalog(
            services={
                "skills": AgentSkills(
                    shelf,
                    self.store.views.load_tools,
                    writers_of=RunWriters(self.store.database).load_writers,
                )
            }
        )
        open_it = lambda ref: open_workspace(WorkspaceRef.from_json(ref), _OPENING)  # noqa: E731
        waits = Waits(self.store.database)
        return change_parts(turns.parts, catalog=catalog, workspace=open_it, waits=waits)

    def edit(self, word: str) -> None:
        (self.folder / "scripts").mkdir(parents=True, exist_ok=True)
        (self.folder / "SKILL.md").write_text(SKILL.format(description=f"Tidies {word}.", word=word))
        (self.folder / "scripts" / "run.sh").write_text(f"echo {word}\n")
        self.home.forget_look("default")

    def begin(self) -> str:
        found = self.home.load_current_set("default")
        assert found is not None
        root = self.place / f"workspace-{len(list(self.place.iterdir()))}"
        root.mkdir()
        workspace = WorkspaceRef(kind=WorkspaceKind.LOCAL, root=str(root)).to_json()
        run_id = self.store.submit(tools=TOOLS, model="strict", workspace=workspace, skills=found.hash).run_id
        self.store.change(runs, run_id, origin="cli")
        return run_id

    def wants(self, run_id: str, *calls: tuple[str, object]) -> None:
        before = len(self.store.results(run_id))
        requests = tuple(
            ToolRequest(id=f"c{before}-{n}", name=name, arguments=dump_canonical_json(arguments))
            for n, (name, arguments) in enumerate(calls)
        )
        reply, planned = plan_calls(ModelReply(text="", tool_requests=requests), self.one.catalog)
        self.store.runs.commit_reply(self.store.turn(run_id), reply, planned)

    def told(self, parts: WorkerContext, run_id: str) -> Sequence[dict[str, Any]]:
        before = len(self.store.results(run_id))
        do_calls(parts, self.store, run_id)
        return [json.loads(text) for text in self.store.results(run_id)[before:]]


@pytest.fixture
def fleet(database_url: str, tmp_path: Path) -> Iterator[Fleet]:
    with opened(database_url) as store:
        fleet = Fleet(Turns.over(store), tmp_path)
        fleet.edit("first")
        yield fleet


def test_an_edit_in_the_middle_changes_nothing_on_either_worker_nor_after_a_takeover(fleet: Fleet) -> None:
    run_id = fleet.begin()
    looks = (("skill_view", {"name": "tidy"}), ("skill_view", {"name": "tidy", "file_path": "scripts/run.sh"}))
    fleet.wants(run_id, *looks, ("skills_list", {}))
    first = fleet.told(fleet.one, run_id)
    assert f"scripts/run.sh first, for {run_id}." in first[0]["content"]
    assert (Path(first[0]["skill_dir"]) / "scripts/run.sh").read_text() == "echo first\n" == first[1]["content"]

    fleet.edit("second")
    later = fleet.begin()
    fleet.wants(run_id, *looks, ("skills_list", {}))
    dying = fleet.store.worker("dying")
    assert fleet.store.call(run_id, 0, dying.pk).attempt == 1
    fleet.store.vanish(dying)
    fleet.store.sweep()
    assert fleet.told(fleet.other, run_id) == first, "another worker took the call over, and never had the version"

    shutil.rmtree(fleet.folder)
    fleet.home.forget_look("default")
    fleet.home.load_current_set("default")
    fleet.wants(run_id, *looks, ("skills_list", {}))
    assert fleet.told(fleet.one, run_id) == first, "the folder is gone, and the run goes on with it"

    fleet.wants(later, *looks, ("skills_list", {}))
    second = fleet.told(fleet.other, later)
    assert (second[1]["content"], second[2]["skills"][0]["description"]) == ("echo second\n", "Tidies second.")
    assert second[0]["version"] != first[0]["version"]


def test_a_run_that_began_before_there_was_a_skill_has_none(fleet: Fleet) -> None:
    root = fleet.place / "elsewhere"
    root.mkdir()
    workspace = WorkspaceRef(kind=WorkspaceKind.LOCAL, root=str(root)).to_json()
    run_id = fleet.store.submit(tools=TOOLS, model="strict", workspace=workspace).run_id
    fleet.wants(run_id, ("skills_list", {}), ("skill_view", {"name": "tidy"}))
    listed, refused = fleet.told(fleet.one, run_id)
    assert (listed["skills"], listed["count"]) == ([], 0)
    assert (refused["success"], refused["error"]) == (False, "Skill 'tidy' not found.")


def test_a_view_that_is_made_again_finds_what_the_first_attempt_laid_out(fleet: Fleet) -> None:
    run_id = fleet.begin()
    fleet.wants(run_id, ("skill_view", {"name": "tidy"}))
    [first] = fleet.told(fleet.one, run_id)
    script = Path(first["skill_dir"]) / "scripts/run.sh"
    assert script.parent.parent.parent.name == SKILLS_FOLDER
    script.write_text("changed by the agent")
    fleet.wants(run_id, ("skill_view", {"name": "tidy"}))
    assert fleet.told(fleet.other, run_id) == [first]
    assert script.read_text() == "changed by the agent"
    (script.parent.parent / "SKILL.md").unlink()
    fleet.wants(run_id, ("skill_view", {"name": "tidy"}))
    assert fleet.told(fleet.other, run_id) == [first]
    assert script.read_text() == "echo first\n", "a first attempt that died half-way is made good"


# --- changing --------------------------------------------------------------------------------------------------------

SETTINGS = load_settings({"HERMES_SKILL_WRITES": "ask"}, home=Path("/nonexistent"))
ASKING = ToolPolicies(asked=build_asked_calls(SETTINGS))
MADE = {"action": "create", "name": "sweep", "content": "---\nname: sweep\ndescription: Sweeps.\n---\nSweep.\n"}


def version(fleet: Fleet, name: str = "sweep") -> int | None:
    row = Skills(fleet.store.database).find(name)
    return None if row is None else row.version


def test_a_change_whose_worker_died_before_it_said_so_is_not_made_twice(fleet: Fleet) -> None:
    run_id = fleet.begin()
    fleet.wants(run_id, ("skill_manage", MADE))
    dying = fleet.store.worker("dying")
    claim = fleet.store.call(run_id, 0, dying.pk)
    context = ToolContext(
        run_id=run_id,
        session_id=run_id,
        idempotency_key=claim.idempotency_key,
        attempt=1,
        workspace=fleet.one.workspace(WorkspaceRef(kind=WorkspaceKind.LOCAL, root=str(fleet.place)).to_json()),
        session={},
        cancelled=threading.Event(),
    )
    done = run_tool(fleet.one.catalog.get("skill_manage"), dump_canonical_json(MADE), context)
    assert (done.is_error, version(fleet)) == (False, 1)
    fleet.store.vanish(dying)
    fleet.store.sweep()
    assert fleet.told(fleet.other, run_id) == [json.loads(done.text)]
    assert version(fleet) == 1


@pytest.mark.parametrize("choice", [ApprovalChoice.ONCE, ApprovalChoice.DENY])
def test_where_a_person_is_asked_a_change_waits_for_the_answer(fleet: Fleet, choice: ApprovalChoice) -> None:
    asking = change_parts(fleet.one, policies=ASKING)
    run_id = fleet.begin()
    fleet.wants(run_id, ("skill_manage", MADE), ("skills_list", {}))
    assert fleet.told(asking, run_id) == []
    assert (fleet.store.status(run_id), version(fleet)) == (RunStatus.WAITING_FOR_APPROVAL, None)
    Waits(fleet.store.database).approve(run_id, choice, by="cli:tester")
    do_calls(replace(asking, catalog=fleet.other.catalog), fleet.store, run_id)
    told = json.loads(fleet.store.results(run_id)[0])
    if choice is ApprovalChoice.ONCE:
        assert (told["success"], version(fleet)) == (True, 1)
    else:
        assert (told["status"], version(fleet)) == ("denied", None)


def test_where_nobody_answers_a_change_is_refused_as_dangerous_commands_are(fleet: Fleet) -> None:
    rules = ApprovalRules(by_source={"api": UnattendedMode.DENY})
    run_id = fleet.begin()
    fleet.wants(run_id, ("skill_manage", MADE))
    [told] = fleet.told(change_parts(fleet.one, approvals=rules, policies=ASKING), run_id)
    assert "Nobody is there who could allow" in told["error"] and version(fleet) is None
