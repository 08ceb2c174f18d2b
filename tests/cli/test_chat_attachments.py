"""Files that a line of a chat names: what is sent of them, and how their names are completed."""

from __future__ import annotations

from pathlib import Path

import pytest

from hermes_worker.cli.chat.attachments import build_content, list_file_completions, read_clipboard_picture
from hermes_worker.core.errors import ConfigurationError

PNG = b"\x89PNG\r\n\x1a\nrest"
PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgpyZXN0"}}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "a.py").write_text("print()")
    (tmp_path / ".env").write_text("secret")
    (tmp_path / "shot one.png").write_bytes(PNG)
    (tmp_path / "blob").write_bytes(b"\xff\x00")
    monkeypatch.chdir(tmp_path)
    return tmp_path.resolve()


def test_a_picture_is_sent_whether_it_is_named_or_dropped(folder: Path) -> None:
    for line in ('see @"shot one.png"', str(folder / "shot one.png"), f"'{folder}/shot\\ one.png'"):
        assert build_content(line, folder) == [{"type": "text", "text": line}, PICTURE]


def test_a_text_is_sent_only_where_the_agent_cannot_see_it(folder: Path) -> None:
    assert build_content("read @src/a.py, please", folder) == "read @src/a.py, please"
    assert build_content("read @src/a.py, please", None) == "read @src/a.py, please\n\nsrc/a.py:\nprint()"


@pytest.mark.parametrize(
    "line", ["ask @ada", "me@example.org", "@", "/etc/nothing-here", "a /etc/hosts", "@src", "@\0"]
)
def test_what_names_no_file_stays_text(folder: Path, line: str) -> None:
    assert build_content(line, None) == line


def test_a_file_that_cannot_be_sent_is_an_error(folder: Path) -> None:
    with pytest.raises(ConfigurationError, match="neither a text nor a picture"):
        build_content("@blob", None)
    (folder / "long").write_text("x" * 200_001)
    with pytest.raises(ConfigurationError, match="more than 200,000 bytes"):
        build_content("@long", None)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("look at @s", ["@src/"]),
        ("@src/", ["@src/a.py"]),
        ("@", ["@blob", "@src/"]),
        ("@.", ["@.env"]),
        ("@nowhere/", []),
        ("s", []),
        ("@src ", []),
    ],
)
def test_names_are_completed(folder: Path, text: str, expected: list[str]) -> None:
    assert [whole for _, whole in list_file_completions(text)] == expected


def test_a_picture_in_the_clipboard_is_read_by_whatever_program_there_is(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The programs are stand-ins: a clipboard needs a desktop."""
    monkeypatch.setenv("PATH", str(folder))
    assert read_clipboard_picture() is None, "none of the programs is installed"
    for name, content in (("wl-paste", "blob"), ("xclip", "shot one.png")):
        program = folder / name
        program.write_text(f"#!/bin/sh\nexec /bin/cat '{folder}/{content}'\n")
        program.chmod(0o755)
    assert read_clipboard_picture() == PNG, "the first one holds a text"
