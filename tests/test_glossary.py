"""The words of ARCHITECTURE.md have no rivals: what they replaced comes back in no name and in no text."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

import click
import pytest
from support.documents import load_maker
from support.function_names import VerbRule, list_functions

from hermes_worker.cli.entry import commands

pytestmark = pytest.mark.nightly  # of texts and lists: .ci/run plays it

ROOT = Path(__file__).resolve().parent.parent
ARCHITECTURE = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
WORDS = ARCHITECTURE.partition("\n## Words\n")[2]
KERNEL, _, OTHERS = WORDS.partition("Those of features and rooms")
_ROW = re.compile(r"^\| ([a-z ]+) \| (\S.*?) \|(.*)\|$", re.MULTILINE)
CODE = [*(ROOT / "hermes_worker").rglob("*.py"), *(ROOT / "scheduler").rglob("*.py")]
PAGES = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "hermes_worker" / "web").glob("*.*")]


def list_rows(text: str) -> list[tuple[str, str, str]]:
    return [match for match in _ROW.findall(text) if match[0] != "word"]


REPLACED = "".join(replaces for _, _, replaces in list_rows(WORDS))
NAMES = re.findall(r"`([\w*]+)`", REPLACED)
TEXTS = re.findall(r'"([^"]+)"', REPLACED)
INSIDE = re.findall(r"\*(\w+)\*", WORDS.partition("People read of none of these")[2].partition("\n\n")[0])


VERBS = frozenset((ROOT / "tests" / "verbs.txt").read_text(encoding="ascii").split())
"""What the name of a function may begin with. Some are nouns too: read them as verbs."""


def spell_name(name: str) -> str:
    """Spell a name as words with underscores: ``_TurnClaim`` becomes ``turn_claim``."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name.strip("_")).lower()


@cache
def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def names_of(path: Path) -> Iterator[str]:
    yield path.stem
    for node in ast.walk(parse(path)):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.Name(id=name) | ast.arg(arg=name) | ast.Attribute(attr=name):
                yield name


def name_module(path: Path) -> str:
    return path.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".").removesuffix(".__init__")


@cache
def make_verb_rule() -> VerbRule:
    return VerbRule(VERBS, [parse(path) for path in CODE])


@cache
def is_refused(name: str) -> bool:
    """Whether a word of the glossary replaced ``name``, in one number or the other."""
    spelled = spell_name(name)
    return any(fnmatchcase(spelled, form) for word in NAMES for form in (word, f"{word}s"))


def find_texts(words: list[str], text: str) -> list[str]:
    """The words of ``words`` that stand in ``text``, also as a part of a name, in any case and number."""
    parts = " ".join(re.sub(r"(?<=[a-z])(?=[A-Z])|_", " ", text).lower().split())
    return [word for word in words if re.search(rf"\b{word.lower()}s?\b", parts)]


def help_texts() -> Iterator[tuple[str, str]]:
    """What each command of the product says of itself, by its path."""
    root = click.Context(commands, info_name="hermes-worker", **commands.context_settings)
    for command, context in load_maker("make_reference").walk(commands, root):
        yield context.command_path, command.get_help(context)


def prose_of(path: Path) -> str:
    """A page without the names of files and fields, which are in code letters."""
    text = path.read_text(encoding="utf-8")
    return re.sub(r"`[^`\n]*`", "", text) if path.suffix == ".md" else text


def errors_of(path: Path) -> Iterator[str]:
    """The sentences of the exceptions that a module raises."""
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.Raise):
            for part in ast.walk(node):
                if isinstance(part, ast.Constant) and isinstance(part.value, str):
                    yield part.value


def test_the_glossary_has_the_thirty_words_of_the_kernel_each_with_its_meaning() -> None:
    assert len(list_rows(KERNEL)) == 30
    words = [word for word, _, _ in list_rows(WORDS)]
    assert sorted(set(words)) == sorted(words)
    assert len(NAMES) > 20 and len(TEXTS) >= 3 and len(INSIDE) > 4


@pytest.mark.parametrize("name", ["TurnClaim", "_turn_claims", "_owe_both", "Desk"])
def test_a_replaced_name_is_refused_however_it_is_written(name: str) -> None:
    assert is_refused(name)


def test_no_name_is_one_that_a_word_of_the_glossary_replaced() -> None:
    refused = {path.relative_to(ROOT).as_posix(): sorted(filter(is_refused, set(names_of(path)))) for path in CODE}
    assert {place: names for place, names in refused.items() if names} == {}


def test_a_function_is_called_by_a_verb() -> None:
    """``render_text``, not ``text``; ``tests/support/function_names.py`` says what else a function may be called."""
    rule = make_verb_rule()
    found = {
        path.relative_to(ROOT).as_posix(): [
            each.node.name for each in list_functions(name_module(path), parse(path)) if rule.is_broken(each)
        ]
        for path in CODE
        if "versions" not in path.parts  # migrations are not touched any more
    }
    assert {place: names for place, names in found.items() if names} == {}


@pytest.mark.parametrize(
    "given",
    [
        "def text(): ...",
        "def _limit_of(row: Row) -> int: ...",
        "class A:\n def files(self): ...",
        "def make():\n def inner(): ...\n return inner",
        "def ready() -> bool: ...",
        "@lru_cache(maxsize=4)\ndef catalog(): ...",
    ],
)
def test_a_name_without_a_verb_is_found_wherever_it_stands(given: str) -> None:
    rule = make_verb_rule()
    assert any(rule.is_broken(each) for each in list_functions("hermes_worker.core.run", ast.parse(given)))


@pytest.mark.parametrize(
    "given",
    [
        "def _render_text(): ...",
        "def to_row(): ...",
        "def _holds_marker(text: str) -> bool: ...",
        "class A:\n @property\n def text(self): ...",
        "@contextmanager\ndef session(): ...",
        "@router.get('/v1/runs')\ndef runs(): ...",
        "def not_found(name: str) -> RunNotFound: ...",
        "class A(dict[str, int]):\n def items(self): ...",
    ],
)
def test_what_reads_well_without_a_verb_is_allowed(given: str) -> None:
    rule = make_verb_rule()
    assert not any(rule.is_broken(each) for each in list_functions("hermes_worker.core.run", ast.parse(given)))


def test_no_text_has_a_word_that_the_glossary_replaced() -> None:
    refused = {
        path.relative_to(ROOT).as_posix(): find_texts(TEXTS, path.read_text(encoding="utf-8"))
        for path in (*CODE, *PAGES)
        if path.suffix in {".py", ".md", ".js", ".html", ".css"}
    }
    assert {place: words for place, words in refused.items() if words} == {}


def test_people_read_no_word_of_the_inside() -> None:
    texts = dict(help_texts())
    assert len(texts) > 150, "the commands were found"
    texts |= {
        path.relative_to(ROOT).as_posix(): prose_of(path) for path in PAGES if path.suffix in {".md", ".js", ".html"}
    }
    texts |= {path.relative_to(ROOT).as_posix(): "\n".join(errors_of(path)) for path in CODE}
    refused = {place: find_texts([*INSIDE, *TEXTS], text) for place, text in texts.items()}
    assert {place: words for place, words in refused.items() if words} == {}
