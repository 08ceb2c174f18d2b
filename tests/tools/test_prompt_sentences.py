"""What the prompt and the tools' descriptions say about paths and tools is so: each sentence is tried."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from hermes_worker.agent.prompt.children import build_child_prompt
from hermes_worker.agent.prompt.sources import describe_workspace
from hermes_worker.agent.prompt.system import _TOOL_GUIDANCE
from hermes_worker.agent.tools.builtin import PATCH, READ_FILE, SEARCH_FILES, TERMINAL, WRITE_FILE
from hermes_worker.core.messages import dump_canonical_json

Trial = Callable[[Any, Path], None]


def sentences(text: str) -> list[str]:
    return re.split(r"(?<=[.:]) (?=[A-Z])", re.sub(r"^# .*\n", "", text, flags=re.MULTILINE).replace("\n", " "))


def acts_there(session: Any, root: Path) -> None:
    assert session("terminal", command="pwd -P")["output"].strip() == str(root.resolve())


def begins_at_the_current_folder(session: Any, root: Path) -> None:
    """Each tool that takes a path, before a command changed the folder and after it."""
    for folder in (".", "src"):
        session("terminal", command=f"cd {folder}")
        session("write_file", path="a.txt", content="one\n")
        assert (root / folder / "a.txt").read_text() == "one\n"
        assert session("read_file", path="a.txt")["content"] == "1|one"
        session("patch", path="a.txt", old_string="one", new_string="two")
        assert [one["path"] for one in session("search_files", pattern="two", path="a.txt")["matches"]] == ["a.txt"]
        session("patch", mode="patch", patch="*** Begin Patch\n*** Delete File: a.txt\n*** End Patch")
        assert not (root / folder / "a.txt").exists()
        assert session("terminal", command="pwd -P")["output"].strip() == str((root / folder).resolve())


def names_the_folder_and_the_files(session: Any, root: Path) -> None:
    assert "current_folder" not in session("write_file", path="src/b.txt", content="x\n")
    session("terminal", command="cd src")
    place = {"current_folder": "src", "from_workspace": "src/b.txt"}
    for answer in (
        session("write_file", path="b.txt", content="x\n"),
        session("read_file", path="b.txt"),
        session("patch", path="b.txt", old_string="x", new_string="y"),
    ):
        assert place.items() <= answer.items()
    assert session("write_file", path="../c.txt", content="x\n")["from_workspace"] == "c.txt"
    assert session("search_files", pattern="y")["current_folder"] == "src"
    assert json.loads(session.result("read_file", path="gone.txt").text)["from_workspace"] == "src/gone.txt"


def keeps_folder_and_variables(session: Any, root: Path) -> None:
    session("terminal", command="cd src; export COLOUR=red")
    assert session("terminal", command='echo "$COLOUR ${PWD##*/}"')["output"].strip() == "red src"


def has_nobody_at_its_input(session: Any, root: Path) -> None:
    assert session("terminal", command="read -r line; echo \"got '$line'\"")["output"].strip() == "got ''"


def changes_all_or_nothing(session: Any, root: Path) -> None:
    (root / "a").write_text("one\n")
    patch = "*** Begin Patch\n*** Update File: a\n-one\n+two\n*** Update File: gone\n-x\n+y\n*** End Patch"
    assert "no file was changed" in session.error("patch", mode="patch", patch=patch)
    assert (root / "a").read_text() == "one\n"


ADVICE: Trial | None = None
"""A sentence that asks for something and claims nothing that could be tried."""
TRIALS: Mapping[str, Trial | None] = {
    "Your tools act in the directory ROOT.": acts_there,
    "Relative paths begin at the current folder: that directory at first, and afterwards the folder in which the last "
    "command of terminal ended.": begins_at_the_current_folder,
    "When that is another one, results of the file tools name it as current_folder, and the files from that directory "
    "as from_workspace.": names_the_folder_and_the_files,
    "The terminal keeps its directory and exported variables between calls of a session.": keeps_folder_and_variables,
    "Nobody can type at it: use flags that answer questions in advance, and start nothing that waits for a "
    "key.": has_nobody_at_its_input,
    "Read a file before you change it and change as little as the task needs.": ADVICE,
    "Prefer patch to rewriting a whole file.": ADVICE,
    "Use the file tools rather than shell redirection, so that changes are complete or do not "
    "happen.": changes_all_or_nothing,
}
SAID = [
    sentence
    for text in (
        describe_workspace("ROOT"),
        *(text for tools, text in _TOOL_GUIDANCE if tools & {"terminal", "patch", "write_file"}),
    )
    for sentence in sentences(text)
]


@pytest.mark.parametrize("sentence", SAID)
def test_what_the_prompt_says_of_tools_is_so(sentence: str, session: Any, root: Path) -> None:
    (root / "src").mkdir()
    trial = TRIALS[sentence]
    if trial is not None:
        trial(session, root)


def test_where_paths_begin_is_said_once_and_alike_to_everybody() -> None:
    assert describe_workspace("/srv/ws") in build_child_prompt(dump_canonical_json({"root": "/srv/ws"}), {"terminal"})
    for spec in (READ_FILE, WRITE_FILE):
        assert (
            spec.parameters["properties"]["path"]["description"] == "Path, relative to the current folder or absolute."
        )
    for spec in (PATCH, SEARCH_FILES):
        assert "relative" not in dump_canonical_json(spec.parameters)
    assert "session's current folder if left out" in TERMINAL.parameters["properties"]["workdir"]["description"]
