"""Outside cases of edits: facts of the original's own tests, and files of public reports."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from hermes_worker.agent.tools.fuzzy import ReplacedText, replace_text

CASES = Path(__file__).parents[1] / "cases"
PATCHES = json.loads((CASES / "original/patch.json").read_text())["cases"]
REPORTS = {
    case["id"]: case
    for case in json.loads((CASES / "reports.json").read_text())
    if case["kind"] == "file" and case["id"] != "skill-colon"
}


@pytest.mark.parametrize("case", PATCHES, ids=lambda case: case["id"])
def test_text_is_replaced_as_the_original_replaces_it(case: Mapping[str, Any]) -> None:
    given, expected = case["input"], case["expected"]
    outcome = replace_text(given["content"], given["old"], given["new"], replace_all=given["replace_all"])
    assert isinstance(outcome, ReplacedText) == expected["ok"]
    after = outcome.text if isinstance(outcome, ReplacedText) else given["content"]
    assert expected["result"] in (None, after)
    assert all(part in after for part in expected["has"])
    assert not any(part in after for part in expected["hasnot"])


def edited(name: str, session: Any, root: Path) -> tuple[bytes, Mapping[str, Any]]:
    """The file of a report after its call, and what the call answered."""
    given = REPORTS[name]["input"]
    file = root / given["path"]
    file.write_bytes(given["text"].encode() if "text" in given else base64.b64decode(given["base64"]))
    call = {"tool": "patch", "path": given["path"], **given.get("call", {})}
    if "patch" in given:
        call = {"tool": "patch", "mode": "patch", "patch": given["patch"]}
    answer = json.loads(session.result(call.pop("tool"), **call).text)
    return file.read_bytes(), answer


@pytest.mark.parametrize("name", ["tab-meant", "nfd"])
def test_a_file_of_a_report_is_edited_as_it_should_be(name: str, session: Any, root: Path) -> None:
    after, _ = edited(name, session, root)
    assert after == base64.b64decode(REPORTS[name]["right"]["base64"])


def test_tabs_that_were_written_out_become_tabs(session: Any, root: Path) -> None:
    after, answer = edited("makefile-written-out", session, root)
    assert after == b"all:\n\tgcc -O2 a.c\n\techo ok\n"
    assert answer["success"]


def test_line_numbers_of_read_file_are_not_written(session: Any, root: Path) -> None:
    after, answer = edited("line-numbers-written", session, root)
    assert after == b"import os\nprint(os.name)\n"
    assert "write the lines without them" in answer["error"]


def test_the_end_of_the_file_says_which_of_two_is_meant(session: Any, root: Path) -> None:
    assert edited("v4a-end-of-file", session, root)[0] == b"x\nend\ny\nEND\n"


def test_a_diff_counts_lines_as_read_file_does(session: Any, root: Path) -> None:
    _, answer = edited("diff-of-odd-lines", session, root)
    assert "\\ No newline" not in answer["diff"]
    assert "@@ -1,2 +1,2 @@" in answer["diff"]


def test_every_file_of_a_report_is_tried() -> None:
    tried = {"tab-meant", "nfd", "makefile-written-out", "line-numbers-written", "v4a-end-of-file", "diff-of-odd-lines"}
    assert tried == REPORTS.keys()
