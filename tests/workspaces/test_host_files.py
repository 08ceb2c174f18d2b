"""What is asked of a host for a checkpoint, and what becomes of answers that are not as they should be."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support.host_checkpoints import RESTORE, Stand, kept, moment

from hermes_worker.features.checkpoints.files import host_files, host_reading, host_scripts
from hermes_worker.features.checkpoints.files.host_files import HostFiles
from hermes_worker.features.checkpoints.files.shadow import NotKept, ShadowStore
from hermes_worker.features.checkpoints.rules import CheckpointLimits
from hermes_worker.workspaces.base import ScriptAnswer


@pytest.fixture
def stand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stand:
    monkeypatch.setattr(host_files, "_YOUNG_S", -1)  # no file is young
    return Stand(tmp_path)


def test_a_workspace_that_did_not_change_is_one_round_trip(stand: Stand) -> None:
    for number in range(30):
        (stand.root / f"{number}").write_text("x" * number)
    kept(stand.store)
    assert stand.asked() == [host_scripts.LIST, host_scripts.SENT]
    for iteration in (2, 3):
        assert stand.store.keep_checkpoint(moment(iteration)) is None
        assert (stand.asked(), stand.watched.listed < 60) == ([host_scripts.LIST], True)


def test_only_contents_that_the_store_lacks_are_moved(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    ask_about_all(monkeypatch)
    (stand.root / "large").write_bytes(b"x" * 50_000)
    (stand.root / "same").write_bytes(b"x" * 50_000)
    kept(stand.store)
    assert stand.watched.received == 50_005
    (stand.root / "large").rename(stand.root / "elsewhere")
    (stand.root / "first").write_text("second")
    kept(stand.store, 2)
    assert stand.watched.received == 50_011
    (stand.root / "first").write_text("first")  # as it was
    stand.asked()
    kept(stand.store, 3)
    assert stand.asked() == [host_scripts.LIST, host_scripts.HASHES]


def test_a_large_file_is_asked_about_unless_nothing_is_known(stand: Stand) -> None:
    (stand.root / "large").write_bytes(b"x" * 50_000)
    kept(stand.store)
    assert stand.asked() == [host_scripts.LIST, host_scripts.SENT]
    (stand.root / "large").rename(stand.root / "elsewhere")
    kept(stand.store, 2)
    assert stand.asked() == [host_scripts.LIST, host_scripts.HASHES]
    assert stand.contents()["elsewhere"] == b"x" * 50_000


@pytest.mark.parametrize("shell", [("/bin/sh",), ("busybox", "sh")], ids=["sh", "busybox"])
def test_many_small_files_of_any_name_come_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shell: tuple[str, ...]
) -> None:
    if shutil.which(shell[0]) is None:
        pytest.skip("needs busybox")
    monkeypatch.setattr(host_files, "_YOUNG_S", -1)
    stand = Stand(tmp_path, shell=shell)
    whole = {"first": b"first", "empty": b"", "of bytes": bytes(range(256)) * 3, "marks": b"//\n//\nf\n"}
    whole |= {f"{folder}/{name}": name.encode() for folder in ("-d", "*", "sp ace/in") for name in ("-n", "x")}
    whole |= {f"many/{number}": b"%d" % number for number in range(1_100)}
    whole |= {"new\nline/a": b"in", "back\\slash": b"alone", "\r": b"return"}
    for name, content in whole.items():
        path = stand.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    (stand.root / "closed").write_bytes(b"nobody reads it")
    (stand.root / "closed").chmod(0)
    found = kept(stand.store)
    reads_all = os.geteuid() == 0
    assert stand.contents() == (whole | {"closed": b"nobody reads it"} if reads_all else whole)
    assert found.left_out == (() if reads_all else ("closed",))
    assert stand.asked().count(host_scripts.SENT) == 1


def ask_about_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it is with large files."""
    monkeypatch.setattr(host_reading, "_SMALL_BYTES", -1)
    monkeypatch.setattr(host_reading, "_SMALL_AT_FIRST_BYTES", -1)


def test_what_is_young_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_files, "_YOUNG_S", 3_600)  # two seconds pass on a busy machine
    stand = Stand(tmp_path)
    kept(stand.store)
    stand.asked()
    assert stand.store.keep_checkpoint(moment(2)) is None
    assert stand.asked() == [host_scripts.LIST, host_scripts.SENT]
    remembered = (stand.directory / "scan.json").read_text()
    assert '"digest":"-"' in remembered and '"stamps":{"first":""}' in remembered


@pytest.mark.parametrize(
    "script", [host_scripts.HASHES, host_scripts.CONTENTS, host_scripts.SENT], ids=["hashed", "shown", "together"]
)
@pytest.mark.parametrize(
    ("change", "becomes"),
    [
        (lambda path: path.write_bytes(b"other"), b"other"),
        (lambda path: path.write_bytes(b"longer than it was"), b"longer than it was"),
        (lambda path: path.write_bytes(b""), b""),
        (lambda path: path.write_bytes(b"x" * 200), None),
        (lambda path: path.unlink(), None),
        (lambda path: (path.unlink(), path.mkdir()), None),
        (lambda path: (path.unlink(), path.symlink_to("/etc/hostname")), None),
        (lambda path: (path.unlink(), os.mkfifo(path)), None),
    ],
    ids=["same-size", "grew", "emptied", "grew-too-large", "gone", "folder", "link", "pipe"],
)
def test_a_file_that_changes_during_a_look_is_kept_as_it_came_or_not_at_all(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    script: str,
    change: Callable[[Path], object],
    becomes: bytes | None,
) -> None:
    monkeypatch.setattr(host_files, "_YOUNG_S", -1)
    if script != host_scripts.SENT:
        ask_about_all(monkeypatch)
    stand = Stand(tmp_path, limits=CheckpointLimits(file_bytes=100))
    for name in ("after", "between"):
        (stand.root / name).write_text(name)
    stand.watched.meddle[script] = lambda: change(stand.root / "first")
    found = kept(stand.store)
    whole = {"after": b"after", "between": b"between"}
    assert stand.contents() == (whole if becomes is None else {**whole, "first": becomes})
    assert found.left_out == (() if becomes is not None else ("first",))
    # The next look sees what it is now.
    stand.store.keep_checkpoint(moment(2))
    is_file = (stand.root / "first").is_file() and not (stand.root / "first").is_symlink()
    if is_file and becomes is not None:
        assert stand.contents()["first"] == (stand.root / "first").read_bytes()


def test_a_folder_that_becomes_a_link_is_not_entered(stand: Stand, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "a").write_text("secret")
    (stand.root / "d").mkdir()
    (stand.root / "d/a").write_text("mine!!")

    def replace_it() -> None:
        (stand.root / "d/a").unlink()
        (stand.root / "d").rmdir()
        (stand.root / "d").symlink_to(outside)

    stand.watched.meddle[host_scripts.SENT] = replace_it
    kept(stand.store)
    assert stand.contents() == {"first": b"first"}
    first = stand.store.list_checkpoints()[0]
    (stand.root / "d").unlink()
    (stand.root / "d").mkdir()
    (stand.root / "d/a").write_text("mine")
    second = kept(stand.store, 2)
    (stand.root / "d/a").write_text("changed")
    stand.watched.meddle[host_scripts.PUT] = replace_it
    done = stand.store.restore(second, RESTORE)
    assert done.failed == {"d/a": "a folder on the way to it cannot be made or entered"}
    assert [(each.name, each.read_text()) for each in outside.iterdir()] == [("a", "secret")]
    assert first.files == 2


def test_files_that_never_rest_end_the_look(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_reading, "_RESTLESS_MAX", 3)
    ask_about_all(monkeypatch)
    for number in range(6):
        (stand.root / f"{number}").write_text(f"{number}")

    def change() -> None:
        for number in range(6):
            (stand.root / f"{number}").write_text(f"changed {number}")

    stand.watched.meddle[host_scripts.CONTENTS] = change
    with pytest.raises(NotKept, match="faster than they can be read"):
        stand.store.keep_checkpoint(moment(1))


def test_another_workspace_in_the_same_place_begins_anew(stand: Stand) -> None:
    kept(stand.store)
    stand.asked()
    (stand.root.parent / ".w.id").write_text("0" * 32)
    assert stand.store.keep_checkpoint(moment(2)) is None
    assert stand.asked() == [host_scripts.LIST, host_scripts.SENT]


def test_a_workspace_that_is_not_there_is_empty_and_is_not_made(stand: Stand, tmp_path: Path) -> None:
    first = kept(stand.store)
    (stand.root / "first").unlink()
    stand.root.rmdir()
    assert kept(stand.store, 2).files == 0
    with pytest.raises(NotKept, match="is not on the host"):
        stand.store.require_there()
    done = stand.store.restore(first, RESTORE)
    assert list(done.failed) == ["first"]
    assert not stand.root.exists()


def test_an_empty_workspace_is_known_again_after_a_sweep(stand: Stand) -> None:
    first = kept(stand.store)
    (stand.root / "first").unlink()
    empty = kept(stand.store, 2)
    (stand.directory / "objects" / empty.tree[:2] / empty.tree[2:]).unlink()
    assert [(each.path, each.after) for each in stand.store.list_changes(first)] == [("first", None)]


def test_a_workspace_with_too_many_files_has_none(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_files, "FILES_MAX", 3)
    for number in range(3):
        (stand.root / f"{number}").write_text("x")
    with pytest.raises(NotKept, match="more than 3 files"):
        stand.store.keep_checkpoint(moment(1))


def test_a_list_that_is_too_long_is_not_read(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_files, "_LISTING_BYTES_MAX", 100)
    with pytest.raises(NotKept, match="answered more than was asked for"):
        stand.store.keep_checkpoint(moment(1))


def test_a_restore_leaves_no_more_than_the_workspace_may_hold(tmp_path: Path) -> None:
    stand = Stand(tmp_path, bytes_max=400_000)
    (stand.root / "large").write_bytes(os.urandom(300_000))
    first = kept(stand.store)
    (stand.root / "large").write_bytes(os.urandom(300_000))
    done = stand.store.restore(first, RESTORE)
    assert done.failed == {"large": "the workspace may hold no more"}


def test_a_damaged_content_is_said_and_the_rest_is_put_back(stand: Stand) -> None:
    (stand.root / "run").write_text("run")
    (stand.root / "run").chmod(0o755)
    first = kept(stand.store)
    (stand.root / "first").unlink()
    (stand.root / "run").unlink()
    [damaged] = [each.after for each in stand.entries() if each.path == "first"]
    assert damaged is not None
    (stand.directory / "objects" / damaged.sha[:2] / damaged.sha[2:]).write_bytes(b"nothing")
    done = stand.store.restore(first, RESTORE)
    assert (done.written, list(done.failed)) == (("run",), ["first"])
    assert (stand.root / "run").stat().st_mode & 0o777 == 0o755


def test_a_call_that_is_stopped_ends_the_look(stand: Stand) -> None:
    with pytest.raises(NotKept, match="stopped"):
        stand.store.keep_checkpoint(moment(1), should_stop=lambda: True)


STATUS = b"81a4 5 1 1 1 "


@pytest.mark.parametrize(
    "output",
    [
        b"",
        b"nothing",
        b"- now\n//end 0\n",
        b"- 5\n",
        b"- 5\n//same\n",  # of nothing that we remember
        b"- 5\n//end 137\n",
        b"- 5\n//" + STATUS + b" ./a\n",
        *(b"- 5\n//" + STATUS + path + b"\n//end 0\n" for path in (b" ./../x", b" ./a/./b", b" /etc/x", b" ./", b"")),
        b"- 5\n//zz 5 1 1 1 ./a\n//end 0\n",
        b"- 5\n//" + STATUS + b" ./a\0b\n//end 0\n",
    ],
)
def test_a_host_that_lists_nonsense_leaves_no_checkpoint(tmp_path: Path, output: bytes) -> None:
    class Liar:
        may_hold_kb = 0

        def run_script(self, script: str, *arguments: str, data: bytes = b"", bytes_max: int) -> ScriptAnswer:
            return ScriptAnswer(code=0, output=output if script == host_scripts.LIST else b"-\n", errors=b"")

    store = ShadowStore(tmp_path / "store", "there", files=HostFiles(Liar))
    with pytest.raises(NotKept):
        store.keep_checkpoint(moment(1))


@pytest.mark.slow
def test_ten_thousand_files_that_did_not_change_are_one_round_trip(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_files, "_YOUNG_S", -1)
    stand = Stand(tmp_path)
    for folder in range(100):
        (stand.root / f"d{folder}").mkdir()
        for number in range(100):
            (stand.root / f"d{folder}" / f"{number}.txt").write_text(f"{folder} {number}\n" * 20)
    began = time.monotonic()
    assert kept(stand.store).files == 10_001
    print(f"10,001 files, the first time: {time.monotonic() - began:.1f} s in {len(stand.asked())} round trips")
    took = []
    for iteration in range(2, 7):
        began, worked = time.monotonic(), time.process_time()
        assert stand.store.keep_checkpoint(moment(iteration)) is None
        took.append((time.monotonic() - began, time.process_time() - worked))
        assert stand.asked() == [host_scripts.LIST]
    print(f"nothing changed: {min(took)[0] * 1000:.0f} ms at best, {min(took)[1] * 1000:.0f} ms of our processor")
    assert min(took)[1] <= 0.150
