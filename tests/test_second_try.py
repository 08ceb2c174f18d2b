"""CI gives what failed a second try, says so, and lets no test do it twice."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SECOND_TRY = Path(__file__).parents[1] / ".ci" / "second_try.py"
FLAKY = """
from pathlib import Path

def test_steady(): pass

def test_flaky():
    been_here = Path("been-here")
    if not been_here.exists():
        been_here.touch()
        assert False, "the first time"
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / ".ci").mkdir()
    (tmp_path / ".ci" / "second_try.py").symlink_to(SECOND_TRY)
    (tmp_path / "test_it.py").write_text(FLAKY)
    return tmp_path


def run(project: Path, *listed: str, command: str = "", marker: str = "") -> subprocess.CompletedProcess[str]:
    (project / "list.txt").write_text("\n".join(["# a list", *listed]) + "\n")
    program = (
        f"import sys; sys.path.insert(0, {str(SECOND_TRY.parent)!r}); from pathlib import Path; import second_try; "
        "sys.exit(second_try.main(sys.argv[1:], listed=Path('list.txt')))"
    )
    pytest_command = [sys.executable, "-m", "pytest", *(["-m", marker] if marker else [])]
    command = command or " ".join([*pytest_command, "-p", "no:xdist"])
    argv = [sys.executable, "-c", program, command, *pytest_command]
    return subprocess.run(argv, cwd=project, capture_output=True, text=True, check=False)


def test_a_test_that_needed_a_second_try_is_named_and_forgiven_once(project: Path) -> None:
    ended = run(project)

    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "1 failed, 1 passed" in ended.stdout
    assert "passed only at the second try:\n  test_it.py::test_flaky\n" in ended.stdout


def test_a_test_that_needs_it_again_fails_the_run(project: Path) -> None:
    ended = run(project, "test_other.py::test_x", "test_it.py::test_flaky")

    assert ended.returncode == 1
    assert "test_it.py::test_flaky  (and before: its race has to be mended)" in ended.stdout


DECIDING = """
def pytest_configure(config):
    config.addinivalue_line("markers", "night")

def pytest_collection_modifyitems(items):
    if len(items) == 2:
        items[1].add_marker("night")
"""


def test_a_marker_that_depends_on_what_is_collected_decides_no_second_try(project: Path) -> None:
    (project / "conftest.py").write_text(DECIDING)
    ended = run(project, marker="night")

    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "passed only at the second try:\n  test_it.py::test_flaky\n" in ended.stdout


def test_what_fails_twice_has_failed(project: Path) -> None:
    (project / "test_it.py").write_text("def test_wrong():\n    assert False\n")
    ended = run(project)

    assert ended.returncode == 1
    assert "passed only" not in ended.stdout


def test_without_a_failure_there_is_no_second_try(project: Path) -> None:
    (project / "been-here").touch()
    ended = run(project, "test_it.py::test_flaky")

    assert ended.returncode == 0
    assert "2 passed" in ended.stdout
    assert "second try" not in ended.stdout


@pytest.mark.parametrize("status", [1, 2, 5])
def test_a_command_that_ran_no_test_is_not_tried_again(project: Path, status: int) -> None:
    ended = run(project, command=f"exit {status}")

    assert ended.returncode == status
    assert "second try" not in ended.stdout


def test_the_list_names_tests_that_there_are() -> None:
    lines = SECOND_TRY.with_name("second_tries.txt").read_text().splitlines()
    root = SECOND_TRY.parents[1]
    assert all((root / line.partition("::")[0]).exists() for line in lines if line and not line.startswith("#"))
