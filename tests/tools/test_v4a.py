from __future__ import annotations

import pytest

from hermes_worker.agent.tools.textfile import TextFile
from hermes_worker.agent.tools.v4a_patches import (
    AddFile,
    DeleteFile,
    MoveFile,
    PatchHunk,
    PatchPlan,
    PatchSyntaxError,
    UpdateFile,
    parse_patch,
)


def _update(path: str, *hunks: PatchHunk, move_to: str | None = None) -> UpdateFile:
    return UpdateFile(path=path, hunks=hunks, move_to=move_to)


PARSED = [
    (
        "*** Begin Patch\n*** Update File: a.py\n@@ def greet @@\n def greet():\n-    old\n+    new\n*** End Patch",
        [
            _update(
                "a.py", PatchHunk(hint="def greet", old=("def greet():", "    old"), new=("def greet():", "    new"))
            )
        ],
    ),
    (
        "*** Update File: a\n@@ one\n-1\n+2\n@@\n-3\n+4\n",
        [_update("a", PatchHunk(hint="one", old=("1",), new=("2",)), PatchHunk(hint="", old=("3",), new=("4",)))],
    ),
    (
        "*** Begin Patch\n*** Add File: n/m.py\n+import os\n+\n+x\n*** End Patch",
        [AddFile(path="n/m.py", lines=("import os", "", "x"))],
    ),
    ("*** Begin Patch\n*** Delete File: old file.py\n*** End Patch", [DeleteFile(path="old file.py")]),
    ("*** Move File: a/b -> c/d\n", [MoveFile(path="a/b", to="c/d")]),
    (
        "*** Begin Patch\n*** Update File: a\n*** Move to: b\n@@\n-x\n+y\n*** End of File\n*** End Patch",
        [_update("a", PatchHunk(hint="", old=("x",), new=("y",), is_at_end=True), move_to="b")],
    ),
    (
        "*** Update File: a\n@@ class A\n@@   def f\n-x\n+y\n@@ -1,2 +1,3 @@\n-p\n+q",
        [
            _update(
                "a",
                PatchHunk(hint="def f", old=("x",), new=("y",), outer=("class A",)),
                PatchHunk(hint="", old=("p",), new=("q",)),
            )
        ],
    ),
    ("*** Update File: a\n*** Move to: b\n", [_update("a", move_to="b")]),
    # Markers inside content are content.
    (
        "*** Begin Patch\n*** Add File: notes\n+*** End Patch\n+more\n*** End Patch\ntrailing words",
        [AddFile(path="notes", lines=("*** End Patch", "more"))],
    ),
    (
        "*** Begin Patch\n*** Update File: g\n old\n *** End Patch\n+new\n*** End Patch",
        [_update("g", PatchHunk(hint="", old=("old", "*** End Patch"), new=("old", "*** End Patch", "new")))],
    ),
    # Windows line ends, a missing blank before context, an empty line of context, diff's own remark.
    (
        "*** Begin Patch\r\n*** Update File: a\r\nctx\r\n\r\n-x\r\n+y\r\n"
        "\\ No newline at end of file\r\n*** End Patch\r\n",
        [_update("a", PatchHunk(hint="", old=("ctx", "", "x"), new=("ctx", "", "y")))],
    ),
    # Context between two changes only says where they are.
    ("*** Update File: a\n@@\n anchor\n@@\n-x\n+y", [_update("a", PatchHunk(hint="", old=("x",), new=("y",)))]),
]


@pytest.mark.parametrize(("patch", "expected"), PARSED, ids=range(len(PARSED)))
def test_a_patch_becomes_its_operations(patch: str, expected: list[object]) -> None:
    assert list(parse_patch(patch)) == expected


@pytest.mark.parametrize(
    ("patch", "message"),
    [
        ("", "the patch has no"),
        ("*** Begin Patch\n*** End Patch", "the patch has no"),
        ("just text", "line 1: 'just text' belongs to no file"),
        ("*** Update File: \n-x\n+y", "line 1: the file's path is missing"),
        ("*** Update File: a\n context\n", "line 1: the update of 'a' changes nothing"),
        ("*** Move File: a\n", "line 1: write"),
        ("*** Move File: -> b\n", "line 1: write"),
        ("*** Add File: a\nx", "line 2: every line of an added file begins with"),
        ("*** Delete File: a\n-x", "line 2: a 'Delete File' section has no lines"),
    ],
)
def test_what_is_no_patch_is_refused_with_its_line(patch: str, message: str) -> None:
    with pytest.raises(PatchSyntaxError, match=message):
        parse_patch(patch)


def _planned(files: dict[str, str], patch: str) -> PatchPlan:
    plan = PatchPlan(lambda path: TextFile(text=files[path]) if path in files else None)
    for operation in parse_patch(patch):
        names = [operation.path, getattr(operation, "to", None), getattr(operation, "move_to", None)]
        plan.apply_operation(operation, {name: name for name in names if name})
    return plan


def _after(files: dict[str, str], patch: str) -> dict[str, str | None]:
    plan = _planned(files, patch)
    assert plan.errors == []
    return {change.path: change.after.text if change.after else None for change in plan.changes}


@pytest.mark.parametrize(
    ("text", "hunk", "expected"),
    [
        ("a\nb\nc\n", " a\n-b\n c", "a\nc\n"),
        ("a\nb\nc\n", "-a\n-b\n-c", ""),
        ("b\nab\n", "-b\n+x", "x\nab\n"),
        ("a\nb", " a\n-b\n+c", "a\nc"),
        ("x = 1\ndef f():\n    x = 1\n", "@@ def f\n-    x = 1\n+    x = 2", "x = 1\ndef f():\n    x = 2\n"),
        (
            "def f():\n    x = 1\ndef g():\n    x = 1\n",
            "@@ def g():\n-    x = 1\n+    x = 2",
            "def f():\n    x = 1\ndef g():\n    x = 2\n",
        ),
        ("def main():\n    pass\n", "@@ def main @@\n+    setup()", "def main():\n    setup()\n    pass\n"),
        ("a\n", "+b\n+c", "a\nb\nc\n"),
        ("a", "+b", "a\nb\n"),
        ("", "+b", "b\n"),
        ("    a\n    b\n", " a\n-b\n+c", "    a\n    c\n"),
    ],
)
def test_a_hunk_changes_the_lines_it_names(text: str, hunk: str, expected: str) -> None:
    assert _after({"f": text}, f"*** Update File: f\n{hunk}\n") == {"f": expected}


def test_hunks_see_what_earlier_ones_did() -> None:
    assert _after({"f": "a\n"}, "*** Update File: f\n@@\n-a\n+b\n@@\n-b\n+c\n") == {"f": "c\n"}


def test_deleting_and_adding_one_path_rewrites_it() -> None:
    assert _after({"f": "old\n"}, "*** Delete File: f\n*** Add File: f\n+new\n") == {"f": "new\n"}


def test_an_update_may_move_the_file() -> None:
    assert _after({"f": "a\n"}, "*** Update File: f\n*** Move to: g\n@@\n-a\n+b\n") == {"f": None, "g": "b\n"}


def test_what_ends_as_it_began_is_no_change() -> None:
    assert _after({"f": "a\n"}, "*** Move File: f -> g\n*** Move File: g -> f\n") == {}


@pytest.mark.parametrize(
    ("patch", "message"),
    [
        ("*** Update File: f\n@@\n-a\n+b\n@@ far\n-zzz\n+y\n", "f: hunk 2 (far): the text to replace was not found"),
        ("*** Update File: f\n-same\n+b\n", "found 2 times"),
        ("*** Update File: f\n@@ same\n+b\n", "the line 'same' is there 2 times"),
        ("*** Update File: f\n@@ nowhere\n+b\n", "the line 'nowhere' is there 0 times"),
        ("*** Update File: x\n-a\n+b\n", "x: there is no such file"),
        ("*** Delete File: f\n*** Update File: f\n-a\n+b\n", "f: there is no such file"),
        ("*** Add File: f\n+b\n", "f: the file is already there"),
        ("*** Move File: f -> g\n", "f: cannot be moved to 'g'"),
    ],
)
def test_every_part_that_does_not_fit_is_named(patch: str, message: str) -> None:
    plan = _planned({"f": "a\nsame\nx\nsame\n", "g": ""}, patch)
    assert len(plan.errors) == 1
    assert message in plan.errors[0]


def test_all_that_does_not_fit_is_reported_at_once() -> None:
    plan = _planned({"f": "a\n"}, "*** Delete File: x\n*** Add File: f\n+1\n*** Update File: f\n-q\n+r\n")
    assert [error.split(":")[0] for error in plan.errors] == ["x", "f", "f"]
