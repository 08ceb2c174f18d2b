"""A worker's part of a scheduled job: real scripts, real files, and nothing that leaves their directories."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from support.confined import working
from support.desk import NOON, Desk
from support.patience import PATIENCE_S
from support.store import Store, opened

from hermes_worker.channels.dispatcher import Dispatcher
from hermes_worker.core.effects import Collect
from hermes_worker.core.principals import find_tenant_home
from hermes_worker.features.skills.rows import Skills
from hermes_worker.features.skills.shelf_files import SkillShelf
from hermes_worker.local.paths import get_job_data_dir, get_output_dir
from hermes_worker.store.jobs.executions import Executions
from hermes_worker.store.rows import Hint
from hermes_worker.store.tables import firings
from hermes_worker.store.workers import Workers
from hermes_worker.tasks.jobs.collect import CollectingContext, collect
from hermes_worker.tasks.jobs.data import remove_data
from hermes_worker.tasks.jobs.outputs import prune_outputs
from hermes_worker.tasks.leases import Leases
from hermes_worker.workspaces.sandbox.backends import Sandbox
from hermes_worker.workspaces.sandbox.bubblewrap import BubblewrapRung
from hermes_worker.workspaces.sandbox.policy import SandboxMode, SandboxPolicy
from scheduler import jobs as work
from scheduler.jobtext import CollectedTexts


class Sent:
    """A broker that keeps what it is given."""

    def __init__(self) -> None:
        self.hints: list[Hint] = []

    def send(self, hints: Any) -> int:
        self.hints += hints
        return len(hints)

    def count_waiting(self) -> None:
        return None


class Bench:
    """A worker that collects, beside jobs on a clock."""

    def __init__(self, store: Store, home: Path) -> None:
        self.desk = Desk(store, home)
        self.home = home
        self.leases = Leases(Workers(store.database), name="collector", queues="tools", ttl_s=60)
        self.leases.register()
        self.sent = Sent()
        self.parts = CollectingContext(
            executions=Executions(store.database),
            dispatcher=Dispatcher(values={}, directory=get_output_dir(home)),
            sender=self.sent,
            leases=self.leases,
            home=home,
            skills=SkillShelf(Skills(store.database), home),
            environ={
                "PATH": "/usr/bin:/bin",
                "OPENAI_API_KEY": "sk-secret",
                "HERMES_DATABASE_URL": "x",
                "PASSED": "on",
            },
            env_passthrough=("PASSED",),
            script_timeout_s=20,
        )

    def script(self, name: str, text: str) -> None:
        path = self.home / "scripts" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def fire(self, **job: Any) -> tuple[str, int]:
        """A due job; its id and the firing that a worker is asked to collect for."""
        row = self.desk.add(**job)
        work.run_now(self.desk.jobs, row.job_id)
        (firing_id,) = [hint.effect.firing_id for hint in self.desk.tick() if isinstance(hint.effect, Collect)]
        return row.job_id, firing_id

    def run(self, **job: Any) -> CollectedTexts:
        _, firing_id = self.fire(**job)
        collect(self.parts, firing_id, NOON)
        return self.found(firing_id)

    def found(self, firing_id: int) -> CollectedTexts:
        with self.desk.store.database.read() as connection:
            row = connection.execute(sa.select(firings).where(firings.c.pk == firing_id)).one()
        assert row.lease_token is None
        return CollectedTexts.from_json(row.collected)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with opened(f"sqlite:///{tmp_path / 'collect.db'}") as store:
        yield Bench(store, tmp_path / "home")


def test_scripts_of_both_kinds_run_in_their_directory_without_secrets(bench: Bench) -> None:
    bench.script("sub/a.sh", "echo $0; pwd; env; echo note >&2")
    bench.script("b.py", "import os, sys; print(os.getcwd()); sys.exit(3)")
    shell = bench.run(script="sub/a.sh").script
    assert shell is not None and shell.exit_code == 0
    assert str(bench.home / "scripts" / "sub") in shell.stdout.splitlines()
    assert "PASSED=on" in shell.stdout
    assert "OPENAI_API_KEY" not in shell.stdout and "HERMES_DATABASE_URL" not in shell.stdout
    assert shell.stderr == "note"
    python = bench.run(script="b.py").script
    assert python is not None
    assert (python.exit_code, python.stdout) == (3, str(bench.home / "scripts"))


def test_a_script_is_refused_where_a_sandbox_is_required_and_nothing_confines(bench: Bench) -> None:
    bench.parts = replace(bench.parts, sandbox=Sandbox(SandboxMode.REQUIRE, SandboxPolicy(), [BubblewrapRung([])]))
    bench.script("a.sh", f"touch {bench.home / 'ran'}")
    for no_agent in (False, True):
        collected = bench.run(script="a.sh", no_agent=no_agent, prompt="" if no_agent else "Look")
        assert "commands must be confined (terminal.sandbox is require), but bubblewrap is not installed" in (
            collected.error or ""
        )
    assert not (bench.home / "ran").exists()


@pytest.fixture(params=["bubblewrap", "landlock"])
def confined(request: pytest.FixtureRequest, bench: Bench) -> Bench:
    """Scripts in a sandbox that hides the product's home, as a worker's does."""
    policy = SandboxPolicy(hidden=(os.path.realpath(bench.home),))
    sandbox = Sandbox(SandboxMode.REQUIRE, policy, [working(request.param)])
    bench.parts = replace(bench.parts, sandbox=sandbox, environ={"PATH": os.environ["PATH"]})
    return bench


CHANGING_SCRIPTS = """
cd SCRIPTS
echo 'echo planted' >> "$0"
echo 'echo planted' > other.sh
mv other.sh elsewhere.sh
rm -f other.sh
sed -i s/mine/planted/ other.sh
ln -s /etc/passwd link.sh
touch new.sh
mkdir folder
mv ../scripts ../moved
ln other.sh "$HERMES_JOB_DATA/other.sh" && echo planted >> "$HERMES_JOB_DATA/other.sh"
. ./lib.sh
echo kept >> "$HERMES_JOB_DATA/state"
cat "$HERMES_JOB_DATA/state"
"""


def said_by(bench: Bench, firing_id: int) -> list[str]:
    script = bench.found(firing_id).script
    assert script is not None
    return script.stdout.splitlines()


def contents(folder: Path) -> Mapping[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir()}


@pytest.mark.parametrize("place", ["its own", "scripts", "a link to scripts", "another"])
def test_a_script_rewrites_no_script_and_keeps_what_it_needs_elsewhere(
    confined: Bench, tmp_path: Path, place: str
) -> None:
    scripts = confined.home / "scripts"
    confined.script("a.sh", CHANGING_SCRIPTS.replace("SCRIPTS", str(scripts)))
    confined.script("other.sh", "echo mine")
    confined.script("lib.sh", "echo from the library")
    (tmp_path / "link").symlink_to(scripts)
    (tmp_path / "another").mkdir()
    folder = {"scripts": scripts, "a link to scripts": tmp_path / "link", "another": tmp_path / "another"}.get(place)
    where = {"no_agent": True, "prompt": "", "directory": str(folder)} if folder else {}
    before = contents(scripts)
    job_id, firing_id = confined.fire(script="a.sh", **where)
    collect(confined.parts, firing_id, NOON)
    script = confined.found(firing_id).script
    assert script is not None
    assert script.stdout.splitlines() == ["from the library", "kept"], script
    assert contents(scripts) == before
    assert contents(get_job_data_dir(confined.home, job_id)) == {"state": "kept\n"}


def test_a_script_finds_again_what_it_kept_and_no_other_job_does(confined: Bench) -> None:
    alone = {"no_agent": True, "prompt": ""}
    confined.script("theirs.sh", 'echo theirs > "$HERMES_JOB_DATA/state"')
    theirs, firing_id = confined.fire(script="theirs.sh", **alone)
    collect(confined.parts, firing_id, NOON)
    confined.script("ours.sh", 'cd "$HERMES_JOB_DATA"; echo ours >> state; cat state; cat ../JOB/state || echo refused')
    confined.script("ours.sh", (confined.home / "scripts" / "ours.sh").read_text().replace("JOB/", f"{theirs}/"))
    _, firing_id = confined.fire(script="ours.sh", **alone)
    collect(confined.parts, firing_id, NOON)
    assert said_by(confined, firing_id) == ["ours", "refused"]
    confined.desk.tick()
    confined.desk.at(3600)
    due = [hint.effect.firing_id for hint in confined.desk.tick()]
    for firing_id in due:
        collect(confined.parts, firing_id, NOON)
    assert sorted(said_by(confined, firing_id) for firing_id in due) == [[], ["ours", "ours", "refused"]]
    assert (get_job_data_dir(confined.home, theirs) / "state").read_text() == "theirs\n"


def test_a_script_works_in_the_directory_that_its_job_names(confined: Bench, tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    confined.script("a.sh", 'pwd; echo made > file; echo kept > "$HERMES_JOB_DATA/state"')
    script = confined.run(script="a.sh", no_agent=True, prompt="", directory=str(tmp_path / "project")).script
    assert script is not None
    assert (script.exit_code, script.stdout) == (0, str(tmp_path / "project"))
    assert (tmp_path / "project" / "file").read_text() == "made\n"


def test_a_script_in_a_directory_around_the_products_home_changes_none_either(bench: Bench, tmp_path: Path) -> None:
    """Such as the user's home directory. Landlock refuses that."""
    policy = SandboxPolicy(hidden=(os.path.realpath(bench.home),))
    sandbox = Sandbox(SandboxMode.REQUIRE, policy, [working("bubblewrap")])
    bench.parts = replace(bench.parts, sandbox=sandbox)
    bench.script("a.sh", f"echo planted > {bench.home}/scripts/a.sh; echo made > file; ls {bench.home}")
    before = contents(bench.home / "scripts")
    script = bench.run(script="a.sh", no_agent=True, prompt="", directory=str(tmp_path)).script
    assert script is not None
    assert script.stdout.splitlines() == ["cron", "scripts"], script
    assert contents(bench.home / "scripts") == before
    assert (tmp_path / "file").read_text() == "made\n"


def test_what_a_script_prints_is_redacted(bench: Bench) -> None:
    bench.script(
        "a.sh", "echo key sk-proj-abcdefghijklmnopqrstuvwxyz0123456789ABCDEFGH; echo password=hunter2hunter2 >&2"
    )
    script = bench.run(script="a.sh").script
    assert script is not None
    assert "abcdefghijklmnop" not in script.stdout and "hunter2" not in script.stderr


def test_a_script_outside_its_directory_is_not_run(bench: Bench, tmp_path: Path) -> None:
    outside = tmp_path / "outside.sh"
    outside.write_text(f"touch {tmp_path / 'ran'}")
    bench.script("ok.sh", "true")
    (bench.home / "scripts" / "link.sh").symlink_to(outside)
    (bench.home / "scripts" / "folder").mkdir()
    for name in ("link.sh", "missing.sh", "folder"):
        assert "script" in (bench.run(script=name).error or "")
    assert not (tmp_path / "ran").exists()


def test_a_script_that_stops_the_service_is_not_run(bench: Bench, tmp_path: Path) -> None:
    bench.script("a.sh", f"touch {tmp_path / 'ran'}\nsystemctl restart hermes-worker")
    assert "Blocked" in (bench.run(script="a.sh").error or "")
    assert not (tmp_path / "ran").exists()


def test_a_script_that_takes_too_long_is_ended(bench: Bench) -> None:
    object.__setattr__(bench.parts, "script_timeout_s", 0.5)
    bench.script("a.sh", "echo begun; exec sleep 60")
    script = bench.run(script="a.sh").script
    assert script is not None and script.exit_code is None
    # The shell that started the script is ended with it; when it is the last, it reports the script's end.
    assert script.stdout in ("begun", "begun\nTerminated")


def test_a_script_that_nobody_waits_for_any_more_is_ended(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hermes_worker.tasks.jobs.collect._HELD_EVERY_S", 0.05)
    bench.script("a.sh", "sleep 60")
    _, firing_id = bench.fire(script="a.sh")
    thread = threading.Thread(target=collect, args=(bench.parts, firing_id, NOON))
    thread.start()
    deadline = time.monotonic() + PATIENCE_S
    while not bench.leases.list_held_runs():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    with bench.desk.store.database.write() as connection:
        taken = {"execution": "unknown", "lease_token": None, "lease_owner": None}
        connection.execute(sa.update(firings).where(firings.c.pk == firing_id).values(**taken))
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


def test_a_second_message_and_a_draining_worker_do_nothing(bench: Bench) -> None:
    bench.script("a.sh", f"echo x >> {bench.home / 'count'}")
    _, firing_id = bench.fire(script="a.sh")
    collect(bench.parts, firing_id, NOON)
    collect(bench.parts, firing_id, NOON)
    assert (bench.home / "count").read_text() == "x\n" and not bench.sent.hints

    _, another = bench.fire(script="a.sh")
    bench.leases.drain()
    collect(bench.parts, another, NOON)
    assert len(bench.sent.hints) == 1 and (bench.home / "count").read_text() == "x\n"


def test_skills_are_read_and_missing_ones_named(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "SKILL.md").write_text("stolen")
    for folder in ("brief", "office/reports"):
        (bench.home / "skills" / folder).mkdir(parents=True)
        (bench.home / "skills" / folder / "SKILL.md").write_text(f"About {folder}.")
    (bench.home / "skills" / "link").symlink_to(tmp_path / "secret")
    collected = bench.run(skills=["brief", "reports", "link", "none"])
    assert [text.splitlines()[-1] for text in collected.skills] == ["About brief.", "About office/reports."]
    assert collected.missing_skills == ("link", "none")


def test_a_script_without_an_agent_leaves_its_document(bench: Bench) -> None:
    bench.script("a.sh", "echo all is well")
    job_id, firing_id = bench.fire(script="a.sh", no_agent=True, prompt="")
    collect(bench.parts, firing_id, NOON)
    (document,) = (get_output_dir(bench.home) / job_id).glob("*.md")
    text = document.read_text()
    assert "**Mode:** no_agent (script)" in text and "all is well" in text


def test_what_a_script_kept_goes_when_its_job_goes(bench: Bench, tmp_path: Path) -> None:
    bench.script("a.sh", 'echo kept > "$HERMES_JOB_DATA/state"; ln -s / "$HERMES_JOB_DATA/link"')
    alone: dict[str, Any] = {"no_agent": True, "prompt": "", "script": "a.sh"}
    stays, removed, at_work = (bench.fire(**alone) for _ in range(3))
    for _, firing_id in (stays, removed):
        collect(bench.parts, firing_id, NOON)
    data = get_job_data_dir(bench.home, removed[0]).parent
    for name in (at_work[0], "0123456789ab", "notes"):
        (data / name).mkdir()
    (data / "aaaaaaaaaaaa").symlink_to(tmp_path)
    theirs = get_job_data_dir(find_tenant_home(bench.home, "acme"), removed[0])
    theirs.mkdir(parents=True)
    for job_id, _ in (removed, at_work):
        bench.desk.jobs.remove(job_id)

    forgotten = bench.parts.executions.find_removed
    assert [remove_data(bench.home, forgotten), remove_data(bench.home, forgotten)] == [1, 1]
    assert sorted(path.name for path in data.iterdir()) == sorted(
        [stays[0], at_work[0], "0123456789ab", "notes", "aaaaaaaaaaaa"]
    )
    collect(bench.parts, at_work[1], NOON)
    assert remove_data(bench.home, forgotten) == 1
    assert not (data / at_work[0]).exists()
    assert remove_data(tmp_path / "nowhere", forgotten) == 0


@pytest.mark.parametrize("below", [".", "cron/output", "workspaces/tenants/acme"])
def test_a_script_is_not_run_where_the_state_of_the_product_is(bench: Bench, below: str) -> None:
    bench.script("a.sh", "echo ran > here")
    (bench.home / below).mkdir(parents=True, exist_ok=True)
    found = bench.run(script="a.sh", no_agent=True, prompt="", directory=str(bench.home / below))
    assert "holds the state of hermes-worker; choose another directory" in str(found.error)
    assert not (bench.home / below / "here").exists()


def test_only_the_newest_documents_of_a_job_are_kept(tmp_path: Path) -> None:
    job = tmp_path / "0123456789ab"
    job.mkdir()
    (tmp_path / "runs").mkdir()
    for second in range(5):
        (job / f"2027-03-10_12-00-0{second}.md").touch()
        (tmp_path / "runs" / f"2027-03-10_12-00-0{second}.md").touch()
    (job / "mine.txt").touch()
    (tmp_path / "aaaaaaaaaaaa").symlink_to(tmp_path / "runs")
    assert prune_outputs(tmp_path, 0) == 0
    assert (prune_outputs(tmp_path, 2), prune_outputs(tmp_path, 2)) == (3, 0)
    assert sorted(path.name for path in job.iterdir()) == [
        "2027-03-10_12-00-03.md",
        "2027-03-10_12-00-04.md",
        "mine.txt",
    ]
    assert len(list((tmp_path / "runs").iterdir())) == 5
    assert prune_outputs(tmp_path / "nowhere", 2) == 0
