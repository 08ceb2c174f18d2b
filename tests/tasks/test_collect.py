"""A worker's part of a scheduled job: real scripts, real files, and nothing that leaves their directories."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from support.desk import NOON, Desk
from support.store import Store, opened

from hermes_worker.core.effects import Collect
from hermes_worker.delivery.courier import Courier
from hermes_worker.embedded.paths import output_dir
from hermes_worker.outputs import prune_outputs
from hermes_worker.store.executions import Executions
from hermes_worker.store.rows import Hint
from hermes_worker.store.tables import firings
from hermes_worker.store.workers import Workers
from hermes_worker.tasks.collect import CollectingParts, collect
from hermes_worker.tasks.leases import Leases
from scheduler import jobs as work
from scheduler.jobtext import CollectedTexts


class Sent:
    """A broker that keeps what it is given."""

    def __init__(self) -> None:
        self.hints: list[Hint] = []

    def send(self, hints: Any) -> int:
        self.hints += hints
        return len(hints)

    def depths(self) -> None:
        return None


class Bench:
    """A worker that collects, beside jobs on a clock."""

    def __init__(self, store: Store, home: Path) -> None:
        self.desk = Desk(store, home)
        self.home = home
        self.leases = Leases(Workers(store.database), name="collector", queues="tools", ttl_s=60)
        self.leases.register()
        self.sent = Sent()
        self.parts = CollectingParts(
            executions=Executions(store.database),
            courier=Courier(values={}, directory=output_dir(home)),
            sender=self.sent,
            leases=self.leases,
            home=home,
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
    monkeypatch.setattr("hermes_worker.tasks.collect._HELD_EVERY_S", 0.05)
    bench.script("a.sh", "sleep 60")
    _, firing_id = bench.fire(script="a.sh")
    thread = threading.Thread(target=collect, args=(bench.parts, firing_id, NOON))
    thread.start()
    deadline = time.monotonic() + 20
    while not bench.leases.held_runs():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    with bench.desk.store.database.write() as connection:
        taken = {"execution": "unknown", "lease_token": None, "lease_owner": None}
        connection.execute(sa.update(firings).where(firings.c.pk == firing_id).values(**taken))
    thread.join(timeout=20)
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
    (document,) = (output_dir(bench.home) / job_id).glob("*.md")
    text = document.read_text()
    assert "**Mode:** no_agent (script)" in text and "all is well" in text


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
