"""The documents say what is there, and the code cites only documents that are there."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import yaml
from support.commandline import find_command

from hermes_worker.settings.role_secrets import PROVIDER_SECRETS, SECRET_SETTINGS, ProcessRole
from hermes_worker.store.whole_schema import load_schema

pytestmark = pytest.mark.nightly  # of texts and lists: .ci/run plays it

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "hermes_worker"
README = (ROOT / "README.md").read_text(encoding="utf-8")
ARCHITECTURE = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
_BLOCK = re.compile(r"^```(?:sh|bash)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def lines_of(document: str) -> Iterator[str]:
    """The command lines of its shell blocks, those that go on joined."""
    for block in _BLOCK.findall(document):
        yield from block.replace("\\\n", " ").splitlines()


DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "compose").glob("*.md")])
SHOWN = sorted(
    {
        line
        for path in DOCUMENTS
        for line in lines_of(path.read_text(encoding="utf-8"))
        if line.startswith("hermes-worker ")
    }
)


def test_every_command_of_the_documents_is_one() -> None:
    wrong = {}
    for line in SHOWN:
        _, *words = shlex.split(line, comments=True)
        if words[-1] == "&":  # it goes on in the background
            words.pop()
        try:
            command, rest = find_command(words)
            command.make_context(line, rest)
        except (AssertionError, click.ClickException) as error:
            wrong[line] = str(error)
    assert wrong == {}


def test_the_documents_show_commands() -> None:
    assert len(SHOWN) > 30
    assert len([line for line in lines_of(README) if line.startswith("hermes-worker ")]) >= 6


def test_the_readme_begins_with_the_two_commands() -> None:
    """The first sets everything up and does the main job, the second everything up and passes the tests."""
    first, second = (block.splitlines()[-1] for block in _BLOCK.findall(README)[:2])
    assert first.endswith("/hermes-worker run")
    assert second.endswith("/pytest")
    assert [line for line in README.splitlines() if "'.[test]'" in line] == [second]


def test_the_readme_leads_to_every_page() -> None:
    """Those below docs are named by docs/index.md (tests/test_site.py)."""
    pages = {path.relative_to(ROOT).as_posix() for path in DOCUMENTS} - {"README.md"}
    others = {page for page in pages if not page.startswith("docs/")} | {"docs/index.md"}
    assert others - set(re.findall(r"\]\(([\w/.-]+\.md)\)", README)) == set()


def test_the_readme_is_read_in_three_minutes() -> None:
    """At 230 words a minute; what a reader does not need at first has a page of its own."""
    prose = re.sub(r"^```.*?^```$", "", README, flags=re.MULTILINE | re.DOTALL)
    assert len(prose.split()) < 3 * 230


def test_every_place_that_the_architecture_names_is_there() -> None:
    """Paths of files and folders, modules and what stands in them (``core.effects.list_outstanding``), and columns."""
    paths = set(re.findall(r"`([\w.-]+/[\w./-]+)`", ARCHITECTURE)) - {"HOME/hooks", "hermes_worker/features/NAME"}
    modules = {
        name for name in re.findall(r"`([a-z_]+(?:\.[a-z_]+)+)`", ARCHITECTURE) if "." in name.removesuffix(".py")
    }
    modules -= {"provider_rows.toml", "platform_rows.toml"}
    assert len(paths) > 100 and len(modules) > 10
    assert [path for path in sorted(paths) if not is_path(path)] == []
    assert [name for name in sorted(modules) if not (is_path(name) or is_defined(name) or is_column(name))] == []


def is_path(name: str) -> bool:
    places = [place / name for place in (ROOT, PACKAGE, ROOT / "scheduler")]
    return any(place.exists() or place.with_name(f"{place.name}.py").exists() for place in places)


def is_defined(name: str) -> bool:
    *module, last = name.split(".")
    path = PACKAGE.joinpath(*module).with_suffix(".py")
    found = re.search(rf"^(?:def |class )?{last}\b", path.read_text("utf-8"), re.MULTILINE) if path.exists() else None
    return found is not None or is_path("/".join([*module, last]))


def is_column(name: str) -> bool:
    table, _, column = name.partition(".")
    return table in load_schema().tables and column in load_schema().tables[table].c


def test_every_link_between_documents_leads_somewhere() -> None:
    links = {path: re.findall(r"\]\((?!https?:)([^)#]+)", path.read_text(encoding="utf-8")) for path in DOCUMENTS}
    broken = [(path.name, to) for path, found in links.items() for to in found if not (path.parent / to).exists()]
    assert broken == []


def committed_texts() -> Iterator[tuple[str, str]]:
    """Our sources and documents with their places; what a comment wraps stands on one line."""
    folders = ("hermes_worker", "scheduler", "tests", "benchmarks", "docs", "compose", ".ci")
    paths = [*ROOT.glob("*.md"), *(path for folder in folders for path in (ROOT / folder).rglob("*"))]
    for path in sorted(paths):
        if path.is_file() and path.suffix in {".py", ".md", ".toml", ""} and "__pycache__" not in path.parts:
            text = path.read_text(encoding="utf-8", errors="replace")
            yield path.relative_to(ROOT).as_posix(), re.sub(r"\s+(?:# )?", " ", text)


_ELSEWHERE = re.compile(r"\b(?:loop|around|reference),? [§]|\breference, (?:loop|around)", re.IGNORECASE)
"""Citations of documents that are not in the repository."""
_CLASS = re.compile(r"^class (\w+)(?:\(([^)]*)\))?:\n((?:[ \t][^\n]*\n|\n)+)", re.MULTILINE)
_TRIPLE_QUOTED = re.compile(r'"""(?:.|\n)*?"""')
_CITATION = re.compile(r'(docs/[a-z-]+\.md), ("[^"]+"(?:(?: and|,) "[^"]+")*)')


def test_nothing_cites_a_document_that_readers_do_not_have() -> None:
    assert [place for place, text in committed_texts() if _ELSEWHERE.search(text)] == []


def test_every_page_that_the_product_cites_is_there() -> None:
    cited = {
        page
        for place, text in committed_texts()
        if place.startswith(("hermes_worker/", "scheduler/"))
        for page in re.findall(r"docs/[a-z-]+\.md", text)
    }
    assert [page for page in sorted(cited) if not (ROOT / page).exists()] == []


def test_every_member_and_private_name_that_a_docstring_names_is_there() -> None:
    """``Sandbox.find_backend`` in a docstring: a rename that leaves the old name there makes the docstring a riddle."""
    texts = [
        path.read_text(encoding="utf-8") for folder in (PACKAGE, ROOT / "scheduler") for path in folder.rglob("*.py")
    ]
    classes: dict[str, list[tuple[str, str]]] = {}
    for text in texts:
        for name, bases, body in _CLASS.findall(text):
            classes.setdefault(name, []).append((bases, body))

    def has_member(name: str, member: str) -> bool:
        is_set = re.compile(rf"\bdef {member}\b|^ +(?:self\.)?{member}(?::| =)", re.MULTILINE)
        return any(
            is_set.search(body) or any(has_member(base, member) for base in re.findall(r"\w+", bases))
            for bases, body in classes.get(name, ())
        )

    named = {pair for text in texts for pair in re.findall(r"``([A-Z]\w+)\.([a-z]\w*)", text) if pair[0] in classes}
    named.remove(("Target", "attachToBrowserTarget"))  # Chromium's
    assert len(named) > 20
    assert [pair for pair in sorted(named) if not has_member(*pair)] == []

    private = {name for text in texts for name in re.findall(r"``(?:\w+\.)*(_[A-Za-z]\w+)\b", text)}
    there = set(re.findall(r"\b_\w+\b", _TRIPLE_QUOTED.sub("", "\n".join(texts))))
    assert private - there == {"_pg3_7", "_base_client"}  # psycopg's, and an SDK's


def test_every_section_that_code_cites_is_there() -> None:
    cited = {
        (document, section)
        for place, text in committed_texts()
        for document, sections in _CITATION.findall(text)
        for section in re.findall(r'"([^"]+)"', sections)
        if place != "tests/test_documents.py"
    }
    headings = {
        (f"docs/{path.name}", heading)
        for path in (ROOT / "docs").glob("*.md")
        for heading in re.findall(r"^#{2,3} (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert cited - headings == set()


def test_the_page_for_operators_says_how_to_rotate_every_secret_and_who_has_it() -> None:
    """A setting that is a secret needs a row in docs/operations.md, "Rotating every key"."""
    page = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    table = page.partition("## Rotating every key")[2].partition("```")[0]
    rows = {
        variable: cells[1]
        for cells in (line.strip("|").split("|") for line in table.splitlines() if line.startswith("| "))
        for variable in re.findall(r"`([A-Z][A-Z_]+)`", cells[0])
    }
    settings = {row.variables[0]: row for row in SECRET_SETTINGS}
    assert set(settings) | PROVIDER_SECRETS | {"OPENAI_API_KEY"} == set(rows)
    everybody = frozenset(ProcessRole) - {ProcessRole.SCRIPTED}
    said = {
        everybody: "every role",
        frozenset({ProcessRole.MODEL}): "model workers",
        frozenset({ProcessRole.API}): "API",
        frozenset({ProcessRole.DELIVERY}): "delivery workers",
        frozenset(
            {ProcessRole.API, ProcessRole.TOOLS, ProcessRole.DELIVERY, ProcessRole.SYSTEM}
        ): "API; tools, delivery and system workers",
    }
    assert {name: rows[name].strip() for name in settings} == {
        name: said.get(row.roles, "Flower") for name, row in settings.items()
    }


def test_the_page_for_operators_names_services_and_deployments_that_there_are() -> None:
    page = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    services = yaml.safe_load((ROOT / "compose" / "compose.yaml").read_text(encoding="utf-8"))["services"]
    named = re.findall(r"`docker compose up --detach (?:--force-recreate ([\w-]+)|--scale ([\w-]+)=\d+)`", page)
    assert len(named) == 2
    assert {one or other for one, other in named} <= set(services)
    deployments = re.findall(r"`kubectl --namespace hermes rollout restart deployment/([\w-]+)`", page)
    manifests = [each.read_text(encoding="utf-8") for each in (ROOT / "k8s" / "base").glob("*.yaml")]
    objects = [each for text in manifests for each in yaml.safe_load_all(text) if each]
    there_are = {each["metadata"]["name"] for each in objects if each["kind"] == "Deployment"}
    assert deployments
    assert set(deployments) <= there_are
