from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from hermes_worker.workspaces.base import WorkspaceError

# --- read_file ---


def test_lines_come_numbered(session: Any, root: Path) -> None:
    (root / "a.txt").write_text("one\ntwo\n\nfour")
    assert session("read_file", path="a.txt") == {
        "content": "1|one\n2|two\n3|\n4|four",
        "total_lines": 4,
        "file_size": 13,
        "truncated": False,
    }


def test_a_page_says_how_to_read_on(session: Any, root: Path) -> None:
    (root / "a.txt").write_text("".join(f"line {n}\n" for n in range(1, 101)))
    page = session("read_file", path="a.txt", offset=10, limit=3)
    assert page["content"] == "10|line 10\n11|line 11\n12|line 12"
    assert (page["total_lines"], page["truncated"]) == (100, True)
    assert page["hint"] == "lines 10 to 12 of 100; read on with offset=13"


def test_a_page_has_at_most_2000_lines_of_2000_characters(session: Any, root: Path) -> None:
    (root / "long").write_text("\n" * 3_000)
    assert session("read_file", path="long", limit=10_000)["content"].count("|") == 2_000
    (root / "wide").write_text("x" * 5_000)
    assert session("read_file", path="wide")["content"] == "1|" + "x" * 2_000 + "... [truncated, 5000 characters]"


def test_a_page_is_cut_at_100000_characters_between_two_lines(session: Any, root: Path) -> None:
    (root / "big").write_text(("y" * 999 + "\n") * 500)
    page = session("read_file", path="big")
    assert len(page["content"]) <= 100_000
    assert page["content"].endswith("y")
    end = page["content"].count("\n") + 1
    assert page["hint"].endswith(f"read on with offset={end + 1}")
    assert session("read_file", path="big", offset=end + 1)["content"].startswith(f"{end + 1}|yyy")


def test_a_line_that_is_not_there_is_an_error(session: Any, root: Path) -> None:
    (root / "a.txt").write_text("one\n")
    assert session.error("read_file", path="a.txt", offset=2) == "'a.txt' has only 1 lines; there is no line 2"
    assert "at least 1" in session.error("read_file", path="a.txt", offset=0)


def test_an_empty_file_is_not_an_error(session: Any, root: Path) -> None:
    (root / "empty").touch()
    page = session("read_file", path="empty")
    assert (page["content"], page["total_lines"], page["hint"]) == ("", 0, "the file is empty")


@pytest.mark.parametrize(
    ("data", "content"),
    [
        (b"\xef\xbb\xbfhi\r\nyou\r\n", "1|hi\n2|you"),
        ("hällo\n".encode("utf-16"), "1|hällo"),
        (b"caf\xe9\n", "1|café"),
        ("标题 第一章\n".encode("gbk"), "1|标题 第一章"),
        ("日本".encode(), "1|日本"),
    ],
)
def test_text_is_read_in_the_encoding_it_is_in(session: Any, root: Path, data: bytes, content: str) -> None:
    (root / "text").write_bytes(data)
    assert session("read_file", path="text")["content"] == content


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.bin", b"\x7fELF\0\0", "is a binary file"),
        ("a.dat", bytes(range(1, 9)) * 100, "is a binary file"),
        ("a.PNG", b"\x89PNG\r\n\x1a\n\0", "is an image"),
    ],
)
def test_a_binary_file_is_not_shown(session: Any, root: Path, name: str, data: bytes, message: str) -> None:
    (root / name).write_bytes(data)
    assert message in session.error("read_file", path=name)


def test_a_missing_file_comes_with_names_that_were_perhaps_meant(session: Any, root: Path) -> None:
    (root / "src").mkdir()
    for name in ("server.py", "serve.py", "README.md", "unrelated.bin"):
        (root / "src" / name).touch()
    result = session.result("read_file", path="src/servr.py")
    assert result.is_error
    assert '"similar":["src/server.py","src/serve.py"]' in result.text
    assert session.result("read_file", path="src/readme.md").text.count("src/README.md") == 1
    assert "similar" not in session.result("read_file", path="nowhere/x").text


@pytest.mark.parametrize("path", ["/etc/passwd", "../x", ".env", "a\0b", "/proc/self/environ", "~/.ssh/id_rsa"])
@pytest.mark.parametrize("tool", ["read_file", "write_file", "patch", "search_files"])
def test_no_file_tool_leaves_the_workspace(session: Any, root: Path, path: str, tool: str) -> None:
    (root / ".env").write_text("SECRET=hunter2")
    more = {
        "read_file": {},
        "write_file": {"content": "x"},
        "patch": {"old_string": "S", "new_string": "T"},
        "search_files": {"pattern": "."},
    }
    message = session.error(tool, path=path, **more[tool])
    assert "outside the workspace" in message or "protected" in message or "NUL" in message
    assert (root / ".env").read_text() == "SECRET=hunter2"


def test_a_folder_and_a_fifo_cannot_be_read(session: Any, root: Path) -> None:
    (root / "folder").mkdir()
    os.mkfifo(root / "pipe")
    assert "is a directory" in session.error("read_file", path="folder")
    assert "not a regular file" in session.error("read_file", path="pipe")


def test_a_very_long_file_is_read_from_its_beginning(session: Any, root: Path) -> None:
    with (root / "huge").open("wb") as file:
        file.write(b"first\n" * 100)
        file.truncate(40 * 1024 * 1024)
        file.seek(0)
        for _ in range(40):
            file.write((b"z" * 63 + b"\n") * 16_384)
    page = session("read_file", path="huge", limit=1)
    assert page["content"] == "1|" + "z" * 63
    assert page["total_lines"] == "more than 524288"
    assert page["truncated"]


def test_relative_paths_start_from_the_folder_of_the_shell(session: Any, root: Path) -> None:
    (root / "src").mkdir()
    session("terminal", command="cd src")
    assert session("write_file", path="a.txt", content="x")["path"] == "a.txt"
    assert (root / "src/a.txt").read_text() == "x"
    assert session("read_file", path="a.txt")["content"] == "1|x"
    assert session("write_file", path="../b.txt", content="y")["path"] == str(root / "b.txt")


def test_a_folder_of_the_shell_that_is_not_valid_is_ignored(session: Any, root: Path) -> None:
    (root / "a.txt").write_text("x")
    for folder in ("../..", "/etc", "a\0b", 5, ""):
        session.documents["cwd"] = folder
        assert session("read_file", path="a.txt")["content"] == "1|x"


# --- write_file ---


def test_writing_says_whether_the_file_is_new_and_how_long_it_is(session: Any, root: Path) -> None:
    assert session("write_file", path="a/b.txt", content="hé") == {
        "success": True,
        "path": "a/b.txt",
        "action": "created",
        "bytes_written": 3,
    }
    assert session("write_file", path="a/b.txt", content="")["action"] == "overwritten"
    assert (root / "a/b.txt").read_bytes() == b""


def test_writing_the_same_again_changes_nothing_more(session: Any, root: Path) -> None:
    for _ in range(2):
        session("write_file", path="a.txt", content="x")
    assert [entry.name for entry in root.iterdir()] == ["a.txt"]


def test_half_an_emoji_does_not_stop_a_write(session: Any, root: Path) -> None:
    session("write_file", path="a.txt", content="ok \ud83d\ude00 \ud83d!")
    assert (root / "a.txt").read_text().startswith("ok 😀 ")


def test_a_folder_is_not_replaced_by_a_file(session: Any, root: Path) -> None:
    (root / "folder").mkdir()
    assert "is a directory" in session.error("write_file", path="folder", content="x")


# --- patch, mode replace ---


def test_a_replacement_returns_a_diff(session: Any, root: Path) -> None:
    (root / "a.py").write_text("def f():\n    return 1\n")
    assert session("patch", path="a.py", old_string="return 1", new_string="return 2") == {
        "success": True,
        "diff": "--- a/a.py\n+++ b/a.py\n@@ -1,2 +1,2 @@\n def f():\n-    return 1\n+    return 2\n",
        "files_modified": ["a.py"],
        "replacements": 1,
    }
    assert (root / "a.py").read_text() == "def f():\n    return 2\n"


def test_a_text_that_is_there_twice_needs_replace_all(session: Any, root: Path) -> None:
    (root / "a.txt").write_text("x = 1\ny = 2\nx = 1\n")
    message = session.error("patch", path="a.txt", old_string="x = 1", new_string="x = 3")
    assert "found 2 times" in message
    assert "line 1: x = 1" in message
    assert "line 3: x = 1" in message
    assert session("patch", path="a.txt", old_string="x = 1", new_string="x = 3", replace_all=True)["replacements"] == 2
    assert (root / "a.txt").read_text() == "x = 3\ny = 2\nx = 3\n"


def test_a_lenient_match_says_which_one_it_was(session: Any, root: Path) -> None:
    (root / "a.py").write_text("class A:\n    def f(self):\n        return 1\n")
    result = session(
        "patch", path="a.py", old_string="def f(self):\n    return 1", new_string="def f(self):\n    return 2"
    )
    assert result["strategy"] == "line_trimmed"


def test_a_text_that_is_not_there_comes_with_the_closest_one(session: Any, root: Path) -> None:
    (root / "a.py").write_text("import os\n\n\ndef compute_total(items):\n    return sum(items)\n")
    message = session.error("patch", path="a.py", old_string="def compute_totals(itms):\n  pass", new_string="x")
    assert "was not changed" in message
    assert "closest text is at line 4" in message
    assert "4|def compute_total(items):" in message


def test_an_edit_that_was_made_before_is_not_an_error(session: Any, root: Path) -> None:
    (root / "a.py").write_text("value = compute(2)\n")
    result = session("patch", path="a.py", old_string="value = compute(1)", new_string="value = compute(2)")
    assert "already in the file" in result["note"]


def test_line_ends_and_marks_of_the_file_are_kept(session: Any, root: Path) -> None:
    (root / "dos.txt").write_bytes(b"\xef\xbb\xbfone\r\ntwo\r\nthree\r\n")
    session("patch", path="dos.txt", old_string="one\ntwo", new_string="1\n2\n2b")
    assert (root / "dos.txt").read_bytes() == b"\xef\xbb\xbf1\r\n2\r\n2b\r\nthree\r\n"


def test_mixed_line_ends_are_left_as_they_are(session: Any, root: Path) -> None:
    (root / "mixed").write_bytes(b"one\r\ntwo\nthree\r\n")
    session("patch", path="mixed", old_string="two", new_string="2")
    assert (root / "mixed").read_bytes() == b"one\r\n2\nthree\r\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"path": "a"}, "needs 'old_string', 'new_string'"),
        ({"mode": "replace", "old_string": "a", "new_string": "b"}, "needs 'path'"),
        ({"mode": "patch"}, "needs 'patch'"),
        ({"path": "a.txt", "old_string": "", "new_string": "b"}, "empty or only white space"),
        ({"path": "a.txt", "old_string": "  \n", "new_string": "b"}, "empty or only white space"),
        ({"path": "a.txt", "old_string": "abc", "new_string": "abc"}, "nothing to change"),
        ({"path": "b.txt", "old_string": "abc", "new_string": "abd"}, "does not exist"),
        ({"path": "bin", "old_string": "abc", "new_string": "abd"}, "binary"),
        ({"path": "latin", "old_string": "abc", "new_string": "abd"}, "not UTF-8"),
        ({"mode": "delete"}, "must be one of"),
    ],
)
def test_a_patch_that_cannot_be_made_says_why(
    session: Any, root: Path, arguments: dict[str, str], message: str
) -> None:
    (root / "a.txt").write_text("abc")
    (root / "bin").write_bytes(b"abc\0")
    (root / "latin").write_bytes("abc日本".encode() + b"\xe9")
    assert message in session.error("patch", **arguments)


# --- patch, mode patch ---


def test_a_patch_changes_several_files(session: Any, root: Path) -> None:
    (root / "a.py").write_text("one\ntwo\nthree\n")
    (root / "old.py").write_text("gone\n")
    (root / "from.py").write_text("moved\n")
    result = session(
        "patch",
        mode="patch",
        patch="*** Begin Patch\n*** Update File: a.py\n one\n-two\n+2\n three\n*** Add File: new/b.py\n+hello\n+world\n"
        "*** Delete File: old.py\n*** Move File: from.py -> to/here.py\n*** End Patch",
    )
    assert (root / "a.py").read_text() == "one\n2\nthree\n"
    assert (root / "new/b.py").read_text() == "hello\nworld\n"
    assert (root / "to/here.py").read_text() == "moved\n"
    assert not (root / "old.py").exists()
    assert not (root / "from.py").exists()
    assert result["files_modified"] == ["a.py"]
    assert result["files_created"] == ["new/b.py", "to/here.py"]
    assert result["files_deleted"] == ["old.py", "from.py"]
    assert result["moved"] == ["from.py -> to/here.py"]
    assert "--- /dev/null\n+++ b/new/b.py\n" in result["diff"]


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ("*** Update File: a.py\n-missing line\n+x", "a.py: hunk 1: the text to replace was not found"),
        ("*** Update File: nowhere.py\n-x\n+y", "nowhere.py: there is no such file"),
        ("*** Add File: a.py\n+x", "a.py: the file is already there"),
        ("*** Delete File: nowhere.py", "nowhere.py: there is no such file"),
        ("*** Move File: a.py -> b.py", "a.py: cannot be moved to 'b.py'"),
        ("*** Update File: ../x\n-a\n+b", "'../x' is outside the workspace"),
        ("*** Add File: .env\n+SECRET=1", "'.env' holds credentials"),
        ("*** Move File: a.py -> /etc/x", "'/etc/x' is outside the workspace"),
        ("*** Update File: bin\n-a\n+b", "bin: it is a binary file"),
        ("*** Add File: folder\n+x", "folder: "),
    ],
)
def test_one_part_that_does_not_fit_keeps_every_file_as_it_is(session: Any, root: Path, bad: str, message: str) -> None:
    (root / "a.py").write_text("a\n")
    (root / "b.py").write_text("b\n")
    (root / "bin").write_bytes(b"\0")
    (root / "folder").mkdir()
    patch = f"*** Begin Patch\n*** Update File: b.py\n-b\n+B\n*** Add File: c.py\n+c\n{bad}\n*** End Patch"
    error = session.error("patch", mode="patch", patch=patch)
    assert "no file was changed" in error
    assert message in error
    assert (root / "b.py").read_text() == "b\n"
    assert not (root / "c.py").exists()


def test_a_patch_that_fails_while_it_is_written_is_taken_back(
    session: Any, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "a.py").write_text("a\n")
    (root / "sub").mkdir()
    (root / "sub/b.py").write_text("b\n")
    write = type(session.workspace).write_bytes

    def fail_on_b(self: Any, path: str, data: bytes) -> None:
        if path.endswith("b.py"):
            raise WorkspaceError("disk full")
        write(self, path, data)

    monkeypatch.setattr(type(session.workspace), "write_bytes", fail_on_b)
    patch = (
        "*** Begin Patch\n*** Update File: a.py\n-a\n+A\n*** Add File: new.py\n+n\n"
        "*** Update File: sub/b.py\n-b\n+B\n*** End Patch"
    )
    error = session.error("patch", patch=patch)
    assert error == "the patch could not be written and no file was changed: disk full"
    assert (root / "a.py").read_text() == "a\n"
    assert not (root / "new.py").exists()


def test_later_parts_of_a_patch_see_what_earlier_ones_did(session: Any, root: Path) -> None:
    (root / "a.py").write_text("one\n")
    session(
        "patch",
        patch="*** Begin Patch\n*** Move File: a.py -> b.py\n*** Update File: b.py\n-one\n+two\n"
        "*** Add File: a.py\n+fresh\n*** End Patch",
    )
    assert (root / "b.py").read_text() == "two\n"
    assert (root / "a.py").read_text() == "fresh\n"


def test_a_patch_that_was_applied_before_is_not_an_error(session: Any, root: Path) -> None:
    (root / "a.py").write_text("value = compute(1)\n")
    patch = "*** Begin Patch\n*** Update File: a.py\n-value = compute(1)\n+value = compute(2)\n*** End Patch"
    session("patch", patch=patch)
    assert "already as the patch wants them" in session("patch", patch=patch)["note"]


# --- secrets ---

KEY = "ghp_" + "HsVJeM39xRFc8vDon3WHOi2MJrqLEpDcwJLA"
PEM = (
    "-----BEGIN PRIVATE KEY-----\n" + "MIIEabcdABCD12345678MIIEabcdABCD12345678\n" * 30 + "-----END PRIVATE KEY-----\n"
)


def test_a_file_that_holds_a_secret_is_edited_and_the_secret_survives(session: Any, root: Path) -> None:
    (root / "app.ini").write_text(f"# settings\nGITHUB_TOKEN={KEY}\nDEBUG=1\n")

    shown = session("read_file", path="app.ini")["content"]
    assert shown == "1|# settings\n2|GITHUB_TOKEN=«redacted:ghp_…»\n3|DEBUG=1"

    seen = "GITHUB_TOKEN=«redacted:ghp_…»\nDEBUG=1"
    refusal = session.error("patch", path="app.ini", old_string=seen, new_string=seen.replace("1", "0"))
    assert "«redacted» marker" in refusal
    assert "leave the lines with secrets" in refusal

    changed = session("patch", path="app.ini", old_string="DEBUG=1", new_string="DEBUG=0")

    assert (root / "app.ini").read_text() == f"# settings\nGITHUB_TOKEN={KEY}\nDEBUG=0\n"
    # The lines around the change are part of the answer.
    assert " GITHUB_TOKEN=«redacted:ghp_…»\n-DEBUG=1\n+DEBUG=0" in changed["diff"]


def test_a_marker_is_never_written(session: Any, root: Path) -> None:
    (root / "a.env").write_text(f"TOKEN={KEY}\n")
    patch = "*** Begin Patch\n*** Update File: a.env\n-TOKEN=«redacted:ghp_…»\n+TOKEN=x\n*** End Patch"

    for name, arguments in (
        ("write_file", {"path": "a.env", "content": "TOKEN=«redacted:ghp_…»\nDEBUG=1\n"}),
        ("write_file", {"path": "b.env", "content": "TOKEN=«redacted»\n"}),
        ("patch", {"mode": "patch", "patch": patch}),
        ("terminal", {"command": "echo 'TOKEN=«redacted:ghp_…»' > a.env"}),
    ):
        assert "«redacted» marker" in session.error(name, **arguments)

    assert (root / "a.env").read_text() == f"TOKEN={KEY}\n"
    assert not (root / "b.env").exists()


def test_a_page_from_the_middle_of_a_private_key_shows_nothing_of_it(session: Any, root: Path) -> None:
    (root / "key.pem").write_text(f"{PEM}after\n")

    page = session("read_file", path="key.pem", offset=10, limit=5)

    assert (
        page["content"] == "\n".join(f"{number}|«redacted»" for number in range(10, 15)) or "MII" not in page["content"]
    )
    assert "MII" not in session("read_file", path="key.pem")["content"]
    assert session("read_file", path="key.pem", offset=33)["content"] == "33|after"


def test_a_secret_at_the_end_of_a_long_line_is_not_shown_by_half(session: Any, root: Path) -> None:
    (root / "wide").write_text(f"{'x ' * 992}{KEY} {'y' * 5_000}")

    [line] = session("read_file", path="wide")["content"].split("\n")

    assert KEY[:12] not in line
    assert line.endswith("... [truncated, 7025 characters]")


@pytest.mark.parametrize(
    "command", ["cat .env", "cat < .env | sort", "printenv DB_PASSWORD", "echo $DB_PASSWORD", "env"]
)
def test_what_a_command_shows_of_a_secret_is_hidden(session: Any, root: Path, command: str) -> None:
    (root / ".env").write_text("DB_PASSWORD=correcthorse\nDEBUG=1\n")
    session("terminal", command="export DB_PASSWORD=correcthorse")

    output = session("terminal", command=command)["output"]

    assert "correcthorse" not in output
    assert "«redacted»" in output


def test_the_lines_that_a_search_finds_hide_their_secrets(session: Any, root: Path) -> None:
    (root / "app.py").write_text(f'client = Client("{KEY}")\n')

    result = session.result("search_files", pattern="Client").text

    assert "client = Client(" in result
    assert KEY not in result


# --- what stands there ---


def test_write_file_keeps_what_the_file_has_beside_its_text(session: Any, root: Path) -> None:
    (root / "a.ps1").write_bytes("\ufeffone\r\ntwo\r\n".encode())
    assert session("write_file", path="a.ps1", content="1\n2\n")["kept"] == "CRLF line ends, the byte order mark"
    assert (root / "a.ps1").read_bytes() == "\ufeff1\r\n2\r\n".encode()
    (root / "b.txt").write_bytes("标题 第一章\n".encode("gbk"))
    assert session("write_file", path="b.txt", content="标题 第二章\n")["kept"] == "GBK"
    assert (root / "b.txt").read_bytes() == "标题 第二章\n".encode("gbk")
    assert "'☃' cannot be written in GBK" in session.error("write_file", path="b.txt", content="☃")
    (root / "c").write_bytes(b"\x7fELF\0\0")
    assert "kept" not in session("write_file", path="c", content="text\n")


@pytest.mark.parametrize("content", ["1|a\n2|b\n", "     7|a\n     8|\n"])
def test_lines_with_the_numbers_of_read_file_are_not_written(session: Any, root: Path, content: str) -> None:
    assert "write the lines without them" in session.error("write_file", path="a.py", content=content)
    assert not (root / "a.py").exists()
    session("write_file", path="a.psv", content=content)


@pytest.mark.parametrize("content", ["1|a\n3|b\n", "1|a\nb\n", "1|a\n", "", "| 1 | a |\n"])
def test_lines_that_only_look_like_it_are_written(session: Any, root: Path, content: str) -> None:
    session("write_file", path="a.md", content=content)
    assert (root / "a.md").read_text() == content


@pytest.mark.parametrize(
    ("before", "old", "new", "after"),
    [
        ("a\n\tb\n", "a\n\tb", "a\\n\\tc", "a\n\tc\n"),
        ("a = 1\nb = 2\n", "a = 1\nb = 2", "a = 1\\nb = 3", "a = 1\nb = 3\n"),
        ("\tx = ','\n", "\tx = ','", "x = '\\t'", "x = '\\t'\n"),
        ("\tx = ','\n", "\tx = ','", '\\tx = "\\t"', '\tx = "\\t"\n'),
        ("a\tb\n", "a\tb", "a\\tc", "a\tc\n"),
        ("x = '\\t'\ty\n", "x = '\\t'\ty", "x = '\\t\\t'", "x = '\\t\\t'\n"),
        ("one\ntwo\n", "one\ntwo", "s = 'a\\nb'", "s = 'a\\nb'\n"),
    ],
)
def test_escapes_become_what_the_text_has_unless_they_are_meant(
    session: Any, root: Path, before: str, old: str, new: str, after: str
) -> None:
    (root / "f").write_text(before)
    session("patch", path="f", old_string=old, new_string=new)
    assert (root / "f").read_text() == after


@pytest.mark.parametrize(
    ("before", "old", "new", "after"),
    [
        ("cafe\u0301 me\u0301nu\nrest\n", "café ménu", "cafè ménu", "cafe\u0300 me\u0301nu\nrest\n"),
        ("café ménu\n", "cafe\u0301 me\u0301nu", "cafe\u0301 carte\u0301", "café carté\n"),
        ("cafe\u0301 é\n", "café é", "tea é", "tea é\n"),
        ("한글 메뉴\n", "\u1112\u1161\u11ab\u1100\u1173\u11af 메뉴", "한글 차림\n", "한글 차림\n\n"),
    ],
)
def test_accents_match_in_either_form_and_the_rest_keeps_its_own(
    session: Any, root: Path, before: str, old: str, new: str, after: str
) -> None:
    (root / "f").write_text(before)
    session("patch", path="f", old_string=old, new_string=new)
    assert (root / "f").read_text() == after


def test_a_letter_with_an_accent_is_not_the_letter(session: Any, root: Path) -> None:
    (root / "f").write_text("“cafe\u0301”\n")
    assert "was not found" in session.error("patch", path="f", old_string='"cafe', new_string='"tea')


ODD = "a\x0cb\u2028c\x85d\re\nnext\n"


def test_a_diff_has_the_lines_that_read_file_shows(session: Any, root: Path) -> None:
    (root / "f").write_bytes(ODD.encode())
    diff = session("patch", path="f", old_string="next", new_string="NEXT")["diff"]
    assert diff == "--- a/f\n+++ b/f\n@@ -1,2 +1,2 @@\n " + ODD.split("\n")[0] + "\n-next\n+NEXT\n"
    assert session("read_file", path="f")["total_lines"] == 2


@pytest.mark.parametrize("name", ["two\nlines.txt", "-n", "tab\there.txt", "a:1:b"])
def test_files_with_odd_names_are_written_read_patched_and_found(session: Any, root: Path, name: str) -> None:
    session("write_file", path=name, content="one\ntwo\n")
    assert session("read_file", path=name)["total_lines"] == 2
    answer = session("patch", path=name, old_string="two", new_string="needle")
    assert answer["files_modified"] == [name]
    assert len(answer["diff"].split("\n")) == 7
    found = session("search_files", pattern="needle")["matches"]
    assert [(one["path"], one["line"], one["content"]) for one in found] == [(name, 2, "needle")]
    assert session("search_files", pattern="needle", output_mode="count")["counts"] == {name: 1}
    assert session("search_files", pattern="needle", output_mode="files_only")["files"] == [name]


CLASSES = "class A:\n    def f(self):\n        return 1\n\nclass B:\n    def f(self):\n        return 1\n"


@pytest.mark.parametrize(
    ("hunk", "after"),
    [
        ("@@ class B:\n@@     def f(self):\n-        return 1\n+        return 2", CLASSES[:-2] + "2\n"),
        ("@@ class B:\n@@     def f(self):\n+        pass", CLASSES[:-17] + "        pass\n        return 1\n"),
        ("@@ class A:\n-        return 1\n+        return 2\n*** End of File", CLASSES[:-2] + "2\n"),
        ("@@\n+# end\n*** End of File", CLASSES + "# end\n"),
    ],
)
def test_a_hunk_is_looked_for_where_the_patch_says(session: Any, root: Path, hunk: str, after: str) -> None:
    (root / "f.py").write_text(CLASSES)
    session("patch", mode="patch", patch=f"*** Begin Patch\n*** Update File: f.py\n{hunk}\n*** End Patch")
    assert (root / "f.py").read_text() == after


# --- names that are no text ---

RAW = b"caf\xe9 \xff.txt"
SHOWN = r"caf\xe9 \xff.txt"


def raw_file(root: Path, name: bytes, data: bytes = b"one fox\n") -> Path:
    path = root / os.fsdecode(name)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        (RAW, SHOWN),
        (b"d\xe9p/a\xf6.txt", r"d\xe9p/a\xf6.txt"),
        (rb"a\xe9.txt", r"a\x5cxe9.txt"),
        (rb"a\x5c", r"a\x5cx5c"),
    ],
)
def test_a_name_that_is_no_text_is_shown_in_a_form_that_every_file_tool_takes(
    session: Any, root: Path, name: bytes, shown: str
) -> None:
    path = raw_file(root, name)
    assert session("search_files", pattern="fox")["matches"][0]["path"] == shown
    assert session("search_files", pattern="*", target="files")["files"] == [shown]
    assert session("search_files", pattern="fox", output_mode="count")["counts"] == {shown: 1}
    assert session("search_files", pattern="fox", path=shown)["total_count"] == 1
    assert session("read_file", path=shown)["content"] == "1|one fox"
    assert not session("patch", path=shown, old_string="fox", new_string="dog").get("error")
    assert path.read_bytes() == b"one dog\n"
    session("write_file", path=shown, content="other\n")
    assert path.read_bytes() == b"other\n"
    assert list(path.parent.iterdir()) == [path], "no other file was made"


def test_two_names_never_look_alike(session: Any, root: Path) -> None:
    raw_file(root, b"a\xe9", b"byte\n")
    raw_file(root, rb"a\xe9", b"text\n")
    shown = session("search_files", pattern="a*", target="files")["files"]
    assert sorted(shown) == [r"a\x5cxe9", r"a\xe9"]
    assert [session("read_file", path=one)["content"] for one in sorted(shown)] == ["1|text", "1|byte"]


def test_a_backslash_in_a_name_stays_one(session: Any, root: Path) -> None:
    session("write_file", path=r"C:\xabc.txt", content="x\n")
    assert [one.name for one in root.iterdir()] == [r"C:\xabc.txt"]
    assert session("read_file", path=r"C:\xabc.txt")["content"] == "1|x"


def test_a_file_has_one_spelling_for_those_who_guard_it(session: Any, root: Path) -> None:
    raw_file(root, "é".encode())
    assert session("read_file", path=r"\xc3\xa9")["content"] == "1|one fox"
    assert session("search_files", pattern="fox", path=r"\xc3\xa9")["matches"][0]["path"] == "é"
