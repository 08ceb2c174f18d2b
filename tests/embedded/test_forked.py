"""A forked child behaves like a started one."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from hermes_worker.embedded.forked import ForkedProcess, can_fork, fork

pytestmark = pytest.mark.skipif(not can_fork(), reason="children are started, not forked, on this system")


def output_of(child: ForkedProcess) -> str:
    text = child.stdout.read().decode()
    child.stdout.close()
    return text


def test_its_output_and_its_status_come_back() -> None:
    def main() -> None:
        print("to stdout")
        os.write(2, b"to stderr\n")
        sys.exit(7)

    child = fork("t", main, {})
    assert sorted(output_of(child).splitlines()) == ["to stderr", "to stdout"]
    assert child.wait() == 7
    assert child.wait() == 7  # the end is remembered


def test_an_error_is_status_1_with_its_traceback() -> None:
    def main() -> None:
        raise ValueError("broken")

    child = fork("t", main, {})
    assert "ValueError: broken" in output_of(child)
    assert child.wait() == 1


def test_it_has_the_given_environment_and_not_its_parents(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_OF_THE_PARENT", "x")

    def main() -> None:
        print(dict(os.environ))
        print("SECRET" in subprocess.check_output(["/usr/bin/env"], text=True))

    child = fork("t", main, {"ONLY": "this"})
    assert output_of(child).splitlines() == ["{'ONLY': 'this'}", "False"]
    child.wait()


def test_it_holds_no_descriptor_of_its_parent(tmp_path: Path) -> None:
    with (tmp_path / "held").open("w"):
        child = fork("t", lambda: print(*sorted(path.name for path in Path("/proc/self/fd").iterdir())), {})
        open_ones = output_of(child)
    child.wait()
    assert open_ones.split() == ["0", "1", "2", "3"]  # the last is the listing itself


def test_it_holds_the_descriptors_it_is_given_and_no_others_between_them(tmp_path: Path) -> None:
    with (tmp_path / "a").open("w") as first, (tmp_path / "b").open("w"), (tmp_path / "c").open("w") as last:
        wanted = [first.fileno(), last.fileno()]

        def main() -> None:
            folder = Path("/proc/self/fd")
            print(len(list(folder.iterdir())), *((folder / str(fd)).readlink().name for fd in wanted))

        child = fork("t", main, {}, wanted)
        said = output_of(child)
    child.wait()
    assert said.split() == ["6", "a", "c"]  # with the standard ones, and the listing itself


def test_it_has_a_session_and_a_name_of_its_own() -> None:
    child = fork("hermes-worker-of-tests", lambda: print(os.getsid(0), Path("/proc/self/comm").read_text()), {})
    assert output_of(child).split() == [str(child.pid), "hermes-worker-o"]
    child.wait()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_it_even_when_its_parent_handles_that_signal(number: signal.Signals) -> None:
    before = signal.signal(number, lambda *_: None)
    try:
        child = fork("t", lambda: time.sleep(60), {})
        child.send_signal(number)
        assert child.wait() == -number
        child.send_signal(number)  # to a process whose end is known: nobody else is hit
    finally:
        signal.signal(number, before)
        child.stdout.close()


def test_what_was_buffered_before_is_not_written_twice(tmp_path: Path) -> None:
    script = """
import sys
from hermes_worker.embedded.forked import fork
sys.stdout.write("once")
child = fork("t", lambda: None, {})
child.wait()
"""
    assert subprocess.check_output([sys.executable, "-c", script], text=True) == "once"


def test_it_dies_with_its_parent(tmp_path: Path) -> None:
    script = """
import os, signal, sys, time
from hermes_worker.embedded.forked import fork
child = fork("t", lambda: time.sleep(60), {})
print(child.pid, flush=True)
time.sleep(60)
"""
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = psutil.Process(int(parent.stdout.readline()))
    parent.kill()
    parent.communicate()
    with contextlib.suppress(psutil.NoSuchProcess):
        child.wait(10)
    assert not child.is_running()
