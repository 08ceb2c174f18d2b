"""The quick ring holds what it names, and nothing in it starts a process or a server."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.quick import QUICK, TESTS, holds_quick_tests


@pytest.mark.parametrize("place", QUICK)
def test_every_place_of_the_ring_is_there(place: str) -> None:
    assert (TESTS / place).exists()


def test_other_places_are_not_in_it() -> None:
    assert holds_quick_tests(TESTS / "core" / "test_step.py")
    assert holds_quick_tests(TESTS / "tools")
    assert holds_quick_tests(TESTS / "tools" / "test_v4a.py")
    assert not holds_quick_tests(TESTS / "tools" / "test_v4a.pyc")
    assert not holds_quick_tests(TESTS / "core" / "test_shell_against_bash.py")
    assert not holds_quick_tests(TESTS / "faults")
    assert not holds_quick_tests(TESTS / "coreutils")


SERVING = """
import socket, subprocess, sys
import pytest

def test_it_listens():
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))

def test_it_starts_something():
    subprocess.run([sys.executable, "-c", "0"], check=True)

def test_it_computes():
    assert 1 + 1 == 2

def test_it_asks_for_a_server(database_url):
    assert False

@pytest.mark.slow
def test_it_is_slow():
    assert False
"""


def test_a_quick_test_that_starts_a_process_or_a_server_fails_with_a_sentence(tmp_path: Path) -> None:
    """Play a file of tests at a place of the ring, with the conftest and the marks of the real one."""
    (tmp_path / "tests" / "core").mkdir(parents=True)
    (tmp_path / "tests" / "conftest.py").symlink_to(TESTS / "conftest.py")
    (tmp_path / "pyproject.toml").symlink_to(TESTS.parent / "pyproject.toml")
    (tmp_path / "tests" / "core" / "test_serving.py").write_text(SERVING, encoding="utf-8")
    code = (
        f"import sys, pathlib; sys.path.insert(0, {str(TESTS)!r}); import pytest, support.quick;"
        f"support.quick.TESTS = pathlib.Path({str(tmp_path / 'tests')!r}); sys.exit(pytest.main(sys.argv[1:]))"
    )
    argv = [sys.executable, "-c", code, "-m", "quick", "-n", "0", "-p", "no:cacheprovider"]

    ended = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=False)

    assert "2 failed, 1 passed, 3 deselected" in ended.stdout, ended.stdout + ended.stderr
    assert "a quick test may not do this: socket.bind" in ended.stdout
    assert "a quick test may not do this: subprocess.Popen" in ended.stdout
