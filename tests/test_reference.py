"""The pages of ``docs/reference`` are what ``docs/make_reference.py`` makes of the declarations."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType

import click
import pytest
from support.documents import load_maker

pytestmark = pytest.mark.nightly  # of texts and lists: .ci/run plays it

ROOT = Path(__file__).resolve().parent.parent
REFERENCE = ROOT / "docs" / "reference"


@pytest.fixture(scope="module")
def making() -> ModuleType:
    return load_maker("make_reference")


def test_the_committed_pages_are_those_of_the_declarations(making: ModuleType) -> None:
    made = making.pages()

    assert {path.name for path in REFERENCE.iterdir()} == set(made)
    for name, text in made.items():
        committed = (REFERENCE / name).read_text(encoding="utf-8").splitlines()
        assert committed == text.splitlines(), f"{name}: run python docs/make_reference.py"


def test_no_two_headings_of_a_page_share_an_address() -> None:
    for path in REFERENCE.glob("*.md"):
        headings = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
        assert sorted(set(headings)) == sorted(headings), path.name


def test_an_item_has_the_first_sentence_of_its_declaration(making: ModuleType) -> None:
    assert making.first_sentence("Counts ``runs``.\n    Not set: none.") == "Counts `runs`."
    assert making.first_sentence("Serves 3.5 runs, see docs/runs.md") == "Serves 3.5 runs, see docs/runs.md"
    assert making.first_sentence("") == ""


def test_a_type_is_a_few_words_with_links(making: ModuleType) -> None:
    kinds = {"anyOf": [{"type": "array", "items": {"$ref": "#/components/schemas/RunObject"}}, {"type": "null"}]}
    assert making.type_of(kinds) == "list of [RunObject](api-objects.md#runobject) or null"
    assert making.type_of({"enum": ["", "low", None]}) == '`""`, `low`, `null`'
    assert making.type_of({"type": "object", "additionalProperties": {"type": "string"}}) == "object of string"


def test_a_hidden_command_is_not_listed(making: ModuleType) -> None:
    group = click.Group("tree", {"seen": click.Command("seen"), "unseen": click.Command("unseen", hidden=True)})
    found = making.walk(group, click.Context(group, info_name="tree"))
    assert [context.command_path for _, context in found] == ["tree", "tree seen"]


def test_a_setting_that_is_gone_is_named(making: ModuleType) -> None:
    with pytest.raises(
        LookupError, match=r"^FIRST of docs/make_reference\.py names what is no setting: model\.provider"
    ):
        making.first_of([])
