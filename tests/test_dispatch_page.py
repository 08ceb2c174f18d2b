"""Every rule of the original for tool calls has a test, and every replay class of the reference a reason."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType

import pytest
from support.documents import load_maker

pytestmark = pytest.mark.nightly  # of texts and lists: .ci/run plays it

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "reference" / "tools.md").read_text(encoding="utf-8")
RULES = (ROOT / "tests" / "dispatch_rules.md").read_text(encoding="utf-8") + "\n"
_RULES = re.compile(r"^\| Rule of the original \|.*?\n\n", re.MULTILINE | re.DOTALL)


def rules() -> list[tuple[str, str, str]]:
    """The rows of the tables of rules: the rule, what is done here, and its tests."""
    rows = [line for table in _RULES.findall(RULES) for line in table.strip().splitlines()[2:]]
    return [tuple(cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]) for row in rows]  # type: ignore[misc]


@pytest.mark.parametrize("row", rules(), ids=lambda row: row[0][:40])
def test_every_rule_of_the_original_is_kept_or_differs_and_names_its_tests(row: tuple[str, str, str]) -> None:
    _, here, tests = row
    assert here.startswith(("present", "differs")), here
    named = re.findall(r"`(tests/[\w/.]+)`", tests)
    assert named, "the row names no test"
    assert [each for each in named if not (ROOT / each).exists()] == []


def test_there_are_rules() -> None:
    assert len(rules()) >= 30


# --- replay classes --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def making() -> ModuleType:
    return load_maker("make_reference")


def test_every_tool_has_a_line_that_says_why_its_replay_class_is_right(making: ModuleType) -> None:
    assert making.replay_table(making.replay_classes()) in PAGE, "run python docs/make_reference.py"
    assert len(making.replay_classes()) > 40


def test_a_new_tool_is_told_where_its_line_belongs(making: ModuleType) -> None:
    found = making.replay_classes()
    with pytest.raises(LookupError, match=r"^new_tool: say in WHY of docs/make_reference.py why"):
        making.replay_table({**found, "new_tool": "once"})
    with pytest.raises(LookupError, match=r"^old_tool: WHY .* names what is no tool any more"):
        making.replay_table(found, {**making.WHY, "old_tool": "it looks"})
    changed = making.replay_table({**found, "terminal": "pure"})
    assert changed not in PAGE, "a class that was changed shows in the page"
