"""A child out of a zygote behaves like a started one, and has nothing of the process that asked for it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from support.patience import PATIENCE_S

from hermes_worker.local.forking import ChildEntry, ChildPlan, ForkedProcess, Zygote, can_fork

pytestmark = pytest.mark.skipif(not can_fork(), reason="children are started, not forked, on this system")

ENV = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(Path(__file__).parents[1])}
_PR_SET_CHILD_SUBREAPER = 36


def life(main: str, *words: str, name: str = "t", **more: str) -> ChildPlan:
    return ChildPlan(name, ChildEntry(f"support.forked_mains:{main}", words), {**ENV, **more})


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    zygote = Zygote()
    yield zygote
    zygote.close()
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def output_of(child: ForkedProcess) -> str:
    text = child.stdout.read().decode()
    child.stdout.close()
    return text


def test_its_output_and_its_status_come_back(zygote: Zygote) -> None:
    child = zygote.fork(life("talk", "a word"))
    assert sorted(output_of(child).splitlines()) == ["to stderr", "to stdout a word"]
    assert child.wait() == 7
    assert child.wait() == 7  # the end is remembered


def test_an_error_is_status_1_with_its_traceback(zygote: Zygote) -> None:
    child = zygote.fork(life("fail"))
    assert "ValueError: broken" in output_of(child)
    assert child.wait() == 1


def test_it_has_the_given_environment_and_nobody_elses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_OF_THE_PARENT", "x")
    zygote = Zygote()
    zygote.start({**ENV, "SECRET_OF_THE_ZYGOTE": "x"})
    child = zygote.fork(life("show_environment", ONLY="this"))
    assert output_of(child).splitlines() == ["{'ONLY': 'this'}", "False"]
    child.wait()
    zygote.close()


def test_it_holds_no_descriptor_of_its_parent(zygote: Zygote, tmp_path: Path) -> None:
    with (tmp_path / "held").open("w"):
        child = zygote.fork(life("list_descriptors"))
        open_ones = output_of(child)
    child.wait()
    assert open_ones.split() == ["0", "1", "2", "3"]  # the last is the listing itself


def test_it_holds_the_descriptors_it_is_given_and_no_others_between_them(zygote: Zygote, tmp_path: Path) -> None:
    with (tmp_path / "a").open("w") as first, (tmp_path / "b").open("w"), (tmp_path / "c").open("w") as last:
        wanted = [first.fileno(), last.fileno()]
        child = zygote.fork(life("name_descriptors", *map(str, wanted)), wanted)
        said = output_of(child)
    child.wait()
    assert said.split() == ["6", "a", "c"]  # with the standard ones, and the listing itself


def test_it_is_our_child_with_a_session_and_a_name_of_its_own(zygote: Zygote) -> None:
    child = zygote.fork(life("show_session", name="hermes-worker-of-tests"))
    assert output_of(child).split() == [str(child.pid), str(os.getpid()), str(child.pid), "hermes-worker-o"]
    child.wait()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_it_even_when_its_parent_handles_that_signal(zygote: Zygote, number: signal.Signals) -> None:
    before = signal.signal(number, lambda *_: None)
    try:
        child = zygote.fork(life("sleep"))
        child.send_signal(number)
        assert child.wait() == -number
        child.send_signal(number)  # to a process whose end is known: nobody else is hit
    finally:
        signal.signal(number, before)
        child.stdout.close()


def test_a_zygote_that_was_killed_is_replaced_and_its_children_live_on(zygote: Zygote) -> None:
    child = zygote.fork(life("sleep"))
    killed = next(
        one for one in psutil.Process().children() if one.pid != child.pid and "fork server" in str(one.cmdline())
    )
    killed.kill()
    second = zygote.fork(life("talk"))
    assert "to stdout" in output_of(second)
    assert second.wait() == 7
    assert psutil.Process(child.pid).status() != psutil.STATUS_ZOMBIE
    child.kill()
    assert child.wait() == -signal.SIGKILL
    child.stdout.close()


def test_a_zygote_that_cannot_import_is_an_error(tmp_path: Path) -> None:
    with (tmp_path / "said").open("w+") as said:
        zygote = Zygote(ChildEntry("there.is.no:such_thing"), output=said.fileno())
        with pytest.raises(OSError, match="process that was to fork"):
            zygote.fork(life("talk"))
        said.seek(0)
        assert "No module named 'there'" in said.read()


def test_a_module_of_the_directory_where_somebody_works_is_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('planted')")
    (tmp_path / "psutil.py").write_text("raise SystemExit('planted')")
    monkeypatch.chdir(tmp_path)
    zygote = Zygote()
    child = zygote.fork(life("talk"))
    assert "to stdout" in output_of(child)
    child.wait()
    zygote.close()


def test_it_and_the_zygote_die_with_their_parent() -> None:
    script = """
import sys, time
from hermes_worker.local.forking import ChildEntry, ChildPlan, Zygote
zygote = Zygote()
env = {"PYTHONPATH": sys.argv[1]}
print(zygote.fork(ChildPlan("t", ChildEntry("support.forked_mains:sleep"), env)).pid, flush=True)
time.sleep(60)
"""
    argv = [sys.executable, "-c", script, ENV["PYTHONPATH"]]
    parent = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = psutil.Process(int(parent.stdout.readline()))
    below = psutil.Process(parent.pid).children(recursive=True)
    parent.kill()
    parent.communicate()
    assert child in below
    assert len(below) == 2
    deadline = time.monotonic() + PATIENCE_S
    for process in below:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.wait(max(0.0, deadline - time.monotonic()))
        assert not process.is_running()
