"""A home in one file, and a home from one; archives of strangers are refused."""

from __future__ import annotations

import io
import json
import shutil
import signal
import tarfile
import threading
from pathlib import Path

import pytest
from support.commandline import CommandLine
from support.hostile_inputs import BACKUPS, member
from support.store import EMPTY, Store, opened

from hermes_worker.core.replay import Replay
from hermes_worker.core.run import RunStatus
from hermes_worker.local.archives import InvalidArchive, unpack
from hermes_worker.local.paths import hold_home


@pytest.fixture
def home(tmp_path: Path, store: Store) -> Path:
    """With files of every sort."""
    home = tmp_path / "home"
    for name in (
        "config.yaml",
        "mcp.json",
        "api.key",
        "cron/output/a.md",
        "workspaces/w/src/x.py",
        "run/lock",
        "valkey/dump",
    ):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text("")
    (home / "api.key").write_text("hwk_" + "0" * 40)
    (home / "mcp.json").write_text("{}")
    (home / "workspaces" / "w" / "link").symlink_to("/etc/passwd")
    return home


def test_a_home_comes_back_as_it_was_while_others_wrote(hermes: CommandLine, store: Store, home: Path) -> None:
    ended = store.submit().run_id
    store.answer(ended)
    at_work = store.with_tools(Replay.ONCE, Replay.PURE)
    store.call(at_work, 1)
    end = threading.Event()
    written: list[str] = []

    def write() -> None:
        while not end.is_set():
            written.append(store.submit().run_id)
            store.answer(written[-1])

    writer = threading.Thread(target=write)
    writer.start()
    try:
        archive = home.parent / "home.tar"
        made = json.loads(hermes.inline("data", "backup", str(archive), "--json").out)
    finally:
        end.set()
        writer.join()
    assert archive.stat().st_mode & 0o777 == 0o600
    assert (made["files"], made["left_out"]) == (6, 1)

    other = home.parent / "other"
    restored = json.loads(hermes.inline("data", "restore", str(archive), "--home", str(other), "--json").out)
    assert (restored["calls_in_doubt"], restored["claims_given_up"]) == (1, 1)
    assert (other / "api.key").read_text() == (home / "api.key").read_text()
    assert (other / "workspaces/w/src/x.py").exists() and not (other / "workspaces/w/link").exists()
    assert not (other / "valkey").exists()
    assert (other / "mcp.json").exists()
    with opened(f"sqlite:///{other / 'hermes-worker.db'}") as copy:
        assert copy.status(ended) is RunStatus.COMPLETED
        copy.sweep(EMPTY)
        assert [call.status.value for call in copy.views.list_calls(at_work)] == ["unknown", "pending"]
        known = {view.run_id for view in copy.views.list_runs(limit=1000)}
        assert known <= {ended, at_work, *written}
        for run_id in known - {at_work}:
            assert copy.status(run_id) in (RunStatus.COMPLETED, RunStatus.QUEUED, RunStatus.RUNNING)
    assert store.status(at_work) is RunStatus.RUNNING


def test_nothing_is_overwritten_unless_forced(hermes: CommandLine, store: Store, home: Path) -> None:
    run_id = store.submit().run_id
    archive = home.parent / "home.tar"
    assert hermes.inline("data", "backup", str(archive)).code == 0
    again = hermes.inline("data", "backup", str(archive))
    assert (again.code, "--force" in again.err) == (2, True)
    assert hermes.inline("data", "backup", str(archive), "--force").code == 0
    assert [path.name for path in home.parent.iterdir() if path.name.startswith(".home")] == []
    inside = hermes.inline("data", "backup", str(home / "a.tar"))
    assert (inside.code, "outside" in inside.err) == (2, True)
    (home.parent / "link").symlink_to(home)
    assert hermes.inline("data", "backup", str(home.parent / "link" / "a.tar")).code == 2
    beside = hermes.inline("data", "backup", str(home / ".." / "beside.tar"))
    assert beside.code == 0 and (home.parent / "beside.tar").exists()

    refused = hermes.inline("data", "restore", str(archive))
    assert (refused.code, "--force" in refused.err) == (2, True)
    missing = hermes.inline("data", "restore", str(home.parent / "no.tar"), "--force")
    assert (missing.code, "No such file" in missing.err) == (2, True)
    with hold_home(home):
        running = hermes.inline("data", "restore", str(archive), "--force")
        assert (running.code, "hermes-worker" in running.err) == (2, True)
    assert store.views.load_run(run_id).run_id == run_id
    store.submit()
    store.database.close()
    assert hermes.inline("data", "restore", str(archive), "--force").code == 0
    with opened(f"sqlite:///{home / 'hermes-worker.db'}") as copy:
        assert [view.run_id for view in copy.views.list_runs()] == [run_id]


def test_a_restore_that_is_killed_anywhere_leaves_the_old_home_or_the_new_one(
    hermes: CommandLine, store: Store, home: Path
) -> None:
    """And a whole database at every moment; whoever holds the home next completes what had taken effect."""
    old = store.submit().run_id
    archive = home.parent / "home.tar"
    assert hermes.inline("data", "backup", str(archive)).code == 0
    (home / "config.yaml").write_text("# newer")
    (home / "valkey" / "dump").write_text("hints")
    newer = store.submit().run_id
    store.database.close()
    kills = 0
    while True:
        trial = home.parent / f"trial{kills}"
        shutil.copytree(home, trial, symlinks=True)
        hermes.environ["HERMES_FAULTS"] = f"restore.between_files=kill@{kills + 1}"
        code = hermes("data", "restore", str(archive), "--force", "--home", str(trial)).code
        with opened(f"sqlite:///{trial / 'hermes-worker.db'}") as copy:
            found = {view.run_id for view in copy.views.list_runs()}
        assert found in ({old}, {old, newer})
        with hold_home(trial):
            pass
        with opened(f"sqlite:///{trial / 'hermes-worker.db'}") as copy:
            assert [view.run_id for view in copy.views.list_runs()] == [old]
        assert (trial / "config.yaml").read_text() == ""
        assert (trial / "workspaces/w/src/x.py").exists() and not (trial / "valkey").exists()
        left = {path.name for path in (trial / "run").iterdir()}
        assert not {name for name in left if name.startswith("re")}, left
        if code == 0:
            break
        assert code == -signal.SIGKILL
        kills += 1
    assert kills >= 6


def test_a_restore_that_is_killed_before_it_takes_effect_changes_nothing(tmp_path: Path, store: Store) -> None:
    run_id = store.submit().run_id
    home = tmp_path / "home"
    (home / "run" / "restore.0123abcd" / "cron").mkdir(parents=True)
    with hold_home(home):
        assert not list((home / "run").glob("restore*"))
    assert store.views.load_run(run_id).run_id == run_id


def test_only_the_epoch_is_marked(hermes: CommandLine, store: Store) -> None:
    store.with_tools(Replay.ONCE)
    busy = hermes.inline("data", "restore", "--mark-epoch")
    assert (busy.code, "stop all workers" in busy.err) == (2, True)
    store.let_pass(2e9)
    assert json.loads(hermes.inline("data", "restore", "--mark-epoch", "--json").out)["calls_in_doubt"] == 1
    assert hermes.inline("data", "restore").code == 2


MANIFEST = json.dumps({"format": "hermes-worker home 1"}).encode()


@pytest.mark.parametrize(("folders", "is_refused"), [(2_000, True), (201, True), (200, False)])
def test_an_archive_of_nested_folders_is_refused_with_a_sentence(
    tmp_path: Path, folders: int, is_refused: bool
) -> None:
    archive, into = tmp_path / "a.tar", tmp_path / "into"
    into.mkdir()
    with tarfile.open(archive, "w") as tar:
        tar.addfile(member("manifest.json", size=len(MANIFEST)), io.BytesIO(MANIFEST))
        tar.addfile(member("a/" * folders + "x"))
        tar.addfile(member("hermes-worker.db"))
    if not is_refused:
        unpack(archive, into, bytes_max=1_000_000)
        return
    with pytest.raises(InvalidArchive, match="in the archive lies deeper than 200 folders"):
        unpack(archive, into, bytes_max=1_000_000)


def test_a_manifest_of_nested_lists_is_refused(tmp_path: Path) -> None:
    archive, nested = tmp_path / "a.tar", b"[" * 60_000
    with tarfile.open(archive, "w") as tar:
        tar.addfile(member("manifest.json", size=len(nested)), io.BytesIO(nested))
    with pytest.raises(InvalidArchive, match="is not an archive of a home"):
        unpack(archive, tmp_path, bytes_max=1_000_000)


def test_a_backup_leaves_out_what_no_restore_would_take(
    hermes: CommandLine, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = json.loads(hermes.inline("data", "backup", str(home.parent / "plain.tar"), "--json").out)
    monkeypatch.chdir(home / "workspaces" / "w")
    for _ in range(400):
        Path("d").mkdir()
        monkeypatch.chdir("d")
    Path("deep").write_text("x")
    monkeypatch.chdir(home)
    made = json.loads(hermes.inline("data", "backup", str(home.parent / "deep.tar"), "--json").out)
    assert (made["files"], made["left_out"]) == (plain["files"], plain["left_out"] + 1)
    assert (
        hermes.inline("data", "restore", str(home.parent / "deep.tar"), "--home", str(home.parent / "again")).code == 0
    )


@pytest.mark.parametrize("case", BACKUPS)
def test_a_hostile_archive_is_refused(tmp_path: Path, case: str) -> None:
    archive, into = tmp_path / "a.tar", tmp_path / "into"
    into.mkdir()
    with tarfile.open(archive, "w") as tar:
        tar.addfile(member("manifest.json", size=len(MANIFEST)), io.BytesIO(MANIFEST))
        BACKUPS[case](tar)
    with pytest.raises(InvalidArchive):
        unpack(archive, into, bytes_max=1_000_000)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.tar", "into"]


@pytest.mark.parametrize("content", [b"", b"no tar", bytes(10_240), b"\x1f\x8b" + bytes(100)])
def test_what_is_no_archive_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.tar").write_bytes(content)
    (tmp_path / "into").mkdir()
    with pytest.raises(InvalidArchive):
        unpack(tmp_path / "a.tar", tmp_path / "into", bytes_max=1_000)
