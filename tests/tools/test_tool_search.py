from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.programs import ripgrep

from hermes_worker.agent.tools.treesearch import IgnoreRules, matches_glob
from hermes_worker.workspaces.base import CommandResult
from hermes_worker.workspaces.local import LocalWorkspace


@pytest.fixture(params=["ripgrep", "treesearch"])
def search(request: pytest.FixtureRequest, session: Any, root: Path) -> Any:
    """The session with one of the two programs that search; every claim here is made of both."""
    # A folder of links to what a command needs, with or without ripgrep among them.
    programs = root.parent / "bin"
    programs.mkdir()
    for name in ("head", "env", "sleep", "find"):
        (programs / name).symlink_to(str(shutil.which(name)))
    if request.param == "ripgrep":
        (programs / "rg").symlink_to(ripgrep())
    session.workspace = LocalWorkspace(str(root), base_env={"PATH": str(programs)})
    return session


def _tree(root: Path, **files: str) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_matching_lines_come_with_file_and_number(search: Any, root: Path) -> None:
    _tree(root, **{"src/b.py": "one\ntwo foo\n", "src/a.py": "foo\nbar\nfoo bar\n", "c.txt": "nothing"})
    assert search("search_files", pattern="foo") == {
        "matches": [
            {"path": "src/a.py", "line": 1, "content": "foo"},
            {"path": "src/a.py", "line": 3, "content": "foo bar"},
            {"path": "src/b.py", "line": 2, "content": "two foo"},
        ],
        "total_count": 3,
        "truncated": False,
    }


def test_nothing_found_is_not_an_error(search: Any, root: Path) -> None:
    _tree(root, a="x")
    assert search("search_files", pattern="zzz") == {"matches": [], "total_count": 0, "truncated": False}
    assert search("search_files", pattern="*.zzz", target="files") == {
        "files": [],
        "total_count": 0,
        "truncated": False,
    }


@pytest.mark.parametrize(
    ("pattern", "lines"),
    [
        (r"^def \w+\(", [1, 4]),
        (r"\bx\b", [2]),
        ("(?i)RETURN", [2, 5]),
        (r"(?<=return )y", [5]),
        (r"(re)turn.*", [2, 5]),
        ("é", [6]),
        ("-x", [7]),
        (r"\$\(", [8]),
    ],
)
def test_the_pattern_is_a_regular_expression(search: Any, root: Path, pattern: str, lines: list[int]) -> None:
    _tree(root, **{"a.py": "def f(a):\n    return x\n\ndef g():\n    return y\ncafé\nrm -xf\n$(touch pwned)\n"})
    assert [match["line"] for match in search("search_files", pattern=pattern)["matches"]] == lines


def test_a_pattern_that_is_none_is_an_error(search: Any, root: Path) -> None:
    _tree(root, a="x")
    assert "not a regular expression" in search.error("search_files", pattern="(")


@pytest.mark.parametrize("word", ["$(touch pwned)", "`touch pwned`", "'; touch pwned; '", "x\ntouch pwned", "--help"])
def test_no_argument_reaches_the_shell(search: Any, root: Path, word: str) -> None:
    _tree(root, a="x")
    search.result("search_files", pattern=word)
    search.result("search_files", pattern="x", file_glob=word)
    search.result("search_files", pattern=word, target="files")
    search.result("search_files", pattern="x", path=word)
    assert not (root / "pwned").exists()


def test_lines_around_a_match_are_marked(search: Any, root: Path) -> None:
    _tree(root, a="1\n2\nhit\n4\n5\n6\n7\nhit\n9\n")
    matches = search("search_files", pattern="hit", context=1)
    assert [(m["line"], m.get("context", False)) for m in matches["matches"]] == [
        (2, True),
        (3, False),
        (4, True),
        (7, True),
        (8, False),
        (9, True),
    ]
    assert matches["total_count"] == 2


def test_a_page_has_only_the_lines_around_its_own_matches(search: Any, root: Path) -> None:
    _tree(root, a="1\n2\nhit\n4\n5\n6\n7\nhit\n9\n")
    second = search("search_files", pattern="hit", context=1, limit=1, offset=1)
    assert [m["line"] for m in second["matches"]] == [7, 8, 9]


def test_results_come_in_pages(search: Any, root: Path) -> None:
    _tree(root, **{f"f{n:02}": "x\n" for n in range(10)})
    page = search("search_files", pattern="x", limit=3, offset=3)
    assert [match["path"] for match in page["matches"]] == ["f03", "f04", "f05"]
    assert (page["total_count"], page["truncated"]) == (10, True)
    assert page["hint"] == "results 4 to 6 of 10; narrow the search or use offset=6"
    assert "hint" not in search("search_files", pattern="x", limit=3, offset=8)


def test_only_the_names_or_the_numbers_may_be_asked_for(search: Any, root: Path) -> None:
    _tree(root, **{"b/x": "hit\nhit\n", "a": "hit", "c": "no"})
    assert search("search_files", pattern="hit", output_mode="files_only")["files"] == ["a", "b/x"]
    counts = search("search_files", pattern="hit", output_mode="count")
    assert counts["counts"] == {"a": 1, "b/x": 2}
    assert (counts["total_count"], counts["matches_total"]) == (2, 3)


TREE = {
    "a.py": "x",
    "b.js": "x",
    "src/a.py": "x",
    "src/deep/a.ts": "x",
    "src/deep/test_a.py": "x",
    "docs/a.md": "x",
}

GLOBS = [
    ("*.py", ["a.py", "src/a.py", "src/deep/test_a.py"]),
    ("*.{js,ts}", ["b.js", "src/deep/a.ts"]),
    ("test_*", ["src/deep/test_a.py"]),
    ("src/**/*.py", ["src/a.py", "src/deep/test_a.py"]),
    ("src/*.py", ["src/a.py"]),
    ("**/deep/*", ["src/deep/a.ts", "src/deep/test_a.py"]),
    ("[ab].*", ["a.py", "b.js", "docs/a.md", "src/a.py", "src/deep/a.ts"]),
    ("!*.py", ["b.js", "docs/a.md", "src/deep/a.ts"]),
    ("*", sorted(TREE)),
]


@pytest.mark.parametrize(("glob", "expected"), GLOBS)
def test_files_are_found_by_name_and_lines_only_in_such_files(
    search: Any, root: Path, glob: str, expected: list[str]
) -> None:
    _tree(root, **TREE)
    assert search("search_files", pattern=glob, target="files")["files"] == expected
    assert search("search_files", pattern="x", file_glob=glob, output_mode="files_only")["files"] == expected
    assert [match["path"] for match in search("search_files", pattern="x", file_glob=glob)["matches"]] == expected


def test_ignored_hidden_linked_and_binary_files_are_skipped(search: Any, root: Path) -> None:
    _tree(
        root,
        **{
            ".gitignore": "*.log\n/build\nnode_modules/\n!keep.log\n",
            "a.log": "x",
            "keep.log": "x",
            "build/out": "x",
            "src/build/in": "x",
            "src/node_modules/m": "x",
            "src/.gitignore": "local\n!../a.log\n",
            "src/local": "x",
            "src/ok": "x",
            ".hidden/h": "x",
            ".env": "x",
            "binary": "x\0y",
        },
    )
    (root / "link").symlink_to("src/ok")
    (root / "linked").symlink_to("src")
    expected = ["keep.log", "src/build/in", "src/ok"]
    assert search("search_files", pattern="x", output_mode="files_only")["files"] == expected
    assert search("search_files", pattern="*", target="files")["files"] == ["binary", *expected]


def test_a_file_or_hidden_folder_that_is_named_is_searched(search: Any, root: Path) -> None:
    _tree(root, **{".gitignore": "*.log", "a.log": "x", ".github/ci.yml": "x"})
    assert search("search_files", pattern="x", path="a.log")["matches"][0]["path"] == "a.log"
    assert search("search_files", pattern="x", path=".github")["matches"][0]["path"] == ".github/ci.yml"


def test_credentials_are_not_found(search: Any, root: Path) -> None:
    _tree(root, **{"keys/id_rsa": "SECRET", "keys/other": "SECRET", ".env": "SECRET"})
    assert search("search_files", pattern="SECRET")["total_count"] == 1
    assert search("search_files", pattern="SECRET", output_mode="count")["counts"] == {"keys/other": 1}
    assert search("search_files", pattern="*", target="files")["files"] == ["keys/other"]
    assert "protected" in search.error("search_files", pattern="SECRET", path="keys/id_rsa")


def test_paths_are_told_from_the_folder_of_the_shell(search: Any, root: Path) -> None:
    _tree(root, **{"src/a": "x", "b": "x"})
    search.documents["cwd"] = "src"
    assert search("search_files", pattern="x")["matches"][0]["path"] == "a"
    assert search("search_files", pattern="x", path="..", output_mode="files_only")["files"] == [f"{root}/b", "a"]


def test_names_with_blanks_and_odd_characters_are_whole(search: Any, root: Path) -> None:
    names = sorted(["a b", "c:1:d", "ü", "-e", "f'g", 'h"i'])
    _tree(root, **dict.fromkeys(names, "x"))
    assert search("search_files", pattern="x", output_mode="files_only")["files"] == names
    assert [match["path"] for match in search("search_files", pattern="x")["matches"]] == names


def test_long_lines_are_cut_and_line_ends_taken_off(search: Any, root: Path) -> None:
    (root / "a").write_bytes(b"x" * 5_000 + b"\r\n")
    (root / "b").write_bytes(b"x\r\n")
    first, second = search("search_files", pattern="x")["matches"]
    assert first["content"] == "x" * 500 + "... [truncated]"
    assert second["content"] == "x"


def test_more_results_than_can_be_collected_are_told(search: Any, root: Path) -> None:
    line = "x" * 4_000 + "\n"
    _tree(root, **{f"f{n}": line * 900 for n in range(4)})
    result = search("search_files", pattern="x", limit=1)
    assert result["truncated"]
    assert result["total_count"] > 1_000
    last = search("search_files", pattern="x", limit=1, offset=result["total_count"] - 1)
    assert "more results than can be collected" in last["hint"]


def test_a_place_that_cannot_be_searched_is_an_error(search: Any, root: Path) -> None:
    os.mkfifo(root / "pipe")
    assert "does not exist" in search.error("search_files", pattern="x", path="missing")
    assert search.error("search_files", pattern="x", path="pipe")
    assert "outside" in search.error("search_files", pattern="x", path="/etc")


def test_links_that_lead_round_or_nowhere_are_skipped(search: Any, root: Path) -> None:
    _tree(root, **{"a.py": "foo\n"})
    for name, target in {"loop": "pool", "pool": "loop", "self": "self", "lost": "nowhere"}.items():
        (root / name).symlink_to(target)
    assert [match["path"] for match in search("search_files", pattern="foo")["matches"]] == ["a.py"]
    assert search("search_files", pattern="*", target="files")["files"] == ["a.py"]
    assert search.error("search_files", pattern="foo", path="loop")
    assert "a.py" in search.workspace.entries(".")


@pytest.fixture
def dig(root: Path) -> Iterator[Callable[[int], None]]:
    """Makes ``d/d/d/...`` with a file at the bottom, without paths that the system would find too long. It is taken
    away again, because what cleans up behind tests would fail at it."""

    def dug(depth: int) -> None:
        folder = os.open(root, os.O_RDONLY)
        for _ in range(depth):
            os.mkdir("d", dir_fd=folder)
            inner = os.open("d", os.O_RDONLY, dir_fd=folder)
            os.close(folder)
            folder = inner
        with os.fdopen(os.open("bottom.py", os.O_WRONLY | os.O_CREAT, 0o644, dir_fd=folder), "w") as file:
            file.write("foo\n")
        os.close(folder)

    yield dug
    subprocess.run(["rm", "-rf", str(root / "d")], check=True)


def test_a_tree_is_searched_to_its_bottom_however_deep_it_is(search: Any, dig: Callable[[int], None]) -> None:
    dig(1_100)
    bottom = "d/" * 1_100 + "bottom.py"
    assert [match["path"] for match in search("search_files", pattern="foo")["matches"]] == [bottom]
    assert search("search_files", pattern="*.py", target="files")["files"] == [bottom]
    assert search("search_files", pattern="foo", output_mode="count")["counts"] == {bottom: 1}


def test_one_entry_that_cannot_be_read_does_not_spoil_the_search(
    search: Any, root: Path, dig: Callable[[int], None]
) -> None:
    _tree(root, **{"a.py": "foo\n", "z.py": "foo\n"})
    dig(2_200)  # below some place its paths are longer than the system takes
    assert [match["path"] for match in search("search_files", pattern="foo")["matches"]] == ["a.py", "z.py"]
    assert search("search_files", pattern="nothing")["matches"] == []


@pytest.mark.parametrize("code", [1, 3, 137])
def test_a_search_that_fails_is_an_error_and_not_an_empty_answer(session: Any, root: Path, code: int) -> None:
    programs = root.parent / "bin"
    programs.mkdir()
    for name in ("head", "env", "sleep"):
        (programs / name).symlink_to(str(shutil.which(name)))
    (programs / "rg").write_text("#!/bin/bash\nexit 3\n")
    (programs / "rg").chmod(0o755)
    session.workspace = _OtherInterpreter(str(root), base_env={"PATH": str(programs)}, exit_code=code)
    assert f"exit code {code}" in session.error("search_files", pattern="foo")
    assert f"exit code {code}" in session.error("search_files", pattern="*", target="files")


class _OtherInterpreter(LocalWorkspace):
    """A place whose Python ends with ``exit_code`` before it has searched."""

    def __init__(self, root: str, *, base_env: dict[str, str], exit_code: int) -> None:
        super().__init__(root, base_env=base_env)
        self._program = Path(root).parent / "python-that-fails"
        self._program.write_text(f"#!/bin/bash\nexit {exit_code}\n")
        self._program.chmod(0o755)

    def execute(self, command: str, **options: Any) -> CommandResult:
        return super().execute(command.replace(sys.executable, str(self._program)), **options)


@pytest.fixture(scope="module")
def crowd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of 20,000 files."""
    folder = tmp_path_factory.mktemp("crowd")
    for number in range(20_000):
        (folder / f"file-{number:05}.txt").write_bytes(b"foo\n")
    return folder


def test_a_crowded_folder_is_judged_without_following_every_path(
    session: Any, crowd: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is counted is how often a path is resolved: time would depend on the machine."""
    session.workspace = LocalWorkspace(str(crowd), base_env={"PATH": os.environ["PATH"]})
    resolved = []
    resolve = LocalWorkspace.resolve
    monkeypatch.setattr(
        LocalWorkspace, "resolve", lambda *args, **options: resolved.append(args) or resolve(*args, **options)
    )
    assert session("search_files", pattern="*.txt", target="files", limit=3)["total_count"] == 20_000
    assert session("search_files", pattern="foo", limit=3)["total_count"] == 20_000
    assert len(resolved) < 40


def test_a_stop_is_heeded_while_the_names_found_are_judged(
    session: Any, crowd: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session.workspace = LocalWorkspace(str(crowd), base_env={"PATH": os.environ["PATH"]})
    judged = []

    def may_read(_self: LocalWorkspace, canonical: str) -> bool:
        judged.append(canonical)
        if len(judged) == 100:
            session.cancelled.set()
        return True

    monkeypatch.setattr(LocalWorkspace, "may_read", may_read)
    assert "interrupted" in session.error("search_files", pattern="*", target="files")
    assert len(judged) == 100


def test_an_expression_that_never_ends_is_stopped_with_its_call(session: Any, root: Path) -> None:
    """It runs in a process of its own: inside the worker it would hold the interpreter's lock."""
    import threading

    (root / "a").write_text("a" * 40 + "b")
    session.workspace = LocalWorkspace(str(root), base_env={"PATH": "/nowhere"})
    timer = threading.Timer(0.5, session.cancelled.set)
    timer.start()
    # A back-reference, so that only the backtracking engine takes the pattern.
    result = session.result("search_files", pattern=r"(a+)+(a+)+\1$")
    assert json.loads(result.text)["error"] == "the search was interrupted"


@pytest.mark.parametrize(
    ("path", "pattern", "expected"),
    [
        ("a/b/c.py", "*.py", True),
        ("a/b/c.py", "b/*.py", False),
        ("a/b/c.py", "**/*.py", True),
        ("c.py", "**/*.py", True),
        ("a/b/c.py", "a/**", True),
        ("a/b/c.py", "a/**/c.py", True),
        ("a/c.py", "a/**/c.py", True),
        ("a/b/c.py", "/a/b/*", True),
        ("x.ts", "*.{js,ts}", True),
        ("x.ts", "{x,y}.{js,ts}", True),
        ("x.{js}", "x.{js}", True),
        ("x", "", False),
    ],
)
def test_globs(path: str, pattern: str, expected: bool) -> None:
    assert matches_glob(path, pattern) is expected


@pytest.mark.parametrize("kind", ["fifo", "device", "holes", "link"])
def test_rules_that_are_no_file_hold_no_search_up(search: Any, root: Path, kind: str) -> None:
    _tree(root, **{"sub/a.txt": "needle", "b.txt": "needle", "real": "*.txt"})
    rules = root / "sub" / ".gitignore"
    match kind:
        case "fifo":
            os.mkfifo(rules)
        case "device":
            rules.symlink_to("/dev/zero")
        case "holes":
            rules.touch()
            os.truncate(rules, 10 * 1024**3)
        case "link":  # git follows none either
            rules.symlink_to("../real")
    found = search("search_files", pattern="needle", output_mode="files_only")
    assert found["files"] == ["b.txt", "sub/a.txt"]


@pytest.mark.parametrize("pattern", ["*a" * 60, "**/" * 60 + "x", "{a,b}" * 40, "a/" * 2_000, "[" * 1_000])
def test_a_hostile_glob_is_answered_quickly(pattern: str) -> None:
    for path in ("a" * 250, "/".join("a" * 120)):
        matches_glob(path, pattern)


@pytest.mark.parametrize(
    ("rules", "path", "is_folder", "expected"),
    [
        ("*.o", "a/b.o", False, True),
        ("/a.o", "b/a.o", False, None),
        ("/a.o", "a.o", False, True),
        ("doc/*.txt", "doc/a.txt", False, True),
        ("doc/*.txt", "doc/x/a.txt", False, None),
        ("build/", "build", True, True),
        ("build/", "build", False, None),
        ("*\n!keep", "keep", False, False),
        ("!keep\n*", "keep", False, True),
        ("# comment\n\n  ", "# comment", False, None),
        ("\\#x", "#x", False, True),
        ("\\!x", "!x", False, True),
        ("a/**/z", "a/b/c/z", False, True),
        ("**/tmp", "x/y/tmp", True, True),
        ("x   ", "x", False, True),
        ("/", "x", False, None),
    ],
)
def test_gitignore_rules(rules: str, path: str, is_folder: bool, expected: bool | None) -> None:
    assert IgnoreRules(rules).decide_ignored(path, is_folder) is expected
