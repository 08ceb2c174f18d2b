"""The documentation site builds, strictly, and asks nobody when it is read."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
needs_builder = pytest.mark.skipif(
    not any((Path(place) / "zensical").is_dir() for place in sys.path),
    reason="the site is built where its extra is installed: pip install -e '.[docs]'",
)
_FETCHED = re.compile(
    r"""<(?:script|img|iframe|source)\b[^>]*\bsrc=["']?(?:https?:)?//|<link\b[^>]*\bhref=["']?(?:https?:)?//"""
)
_FETCHED_BY_STYLE = re.compile(r"""url\(["']?(?:https?:)?//|@import ["'](?:https?:)?//""")


def navigated() -> list[str]:
    """The pages of the navigation, in its order."""

    def below(entry: object) -> list[str]:
        match entry:
            case str():
                return [entry]
            case dict():
                return [page for each in entry.values() for page in below(each)]
            case list():
                return [page for each in entry for page in below(each)]
        raise AssertionError(entry)

    return below(yaml.load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"), Loader=yaml.BaseLoader)["nav"])


def build(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "zensical", "build", "--strict", "--config-file", str(folder / "mkdocs.yml")],
        cwd=folder,
        capture_output=True,
        text=True,
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copytree(DOCS, tmp_path / "docs")
    shutil.copyfile(ROOT / "mkdocs.yml", tmp_path / "mkdocs.yml")
    return tmp_path


def test_the_navigation_and_the_start_page_name_every_page_once() -> None:
    pages = sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))
    assert sorted(navigated()) == pages

    linked = set(re.findall(r"\]\(([\w/.-]+\.md)\)", (DOCS / "index.md").read_text(encoding="utf-8")))
    assert sorted(linked | {"index.md"}) == pages


def test_no_page_links_out_of_the_documentation() -> None:
    """The site has no other files of the repository: name them in code."""
    for path in DOCS.rglob("*.md"):
        for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", path.read_text(encoding="utf-8")):
            assert (path.parent / target).resolve().is_relative_to(DOCS), f"{path.name}: {target}"


@needs_builder
def test_the_site_builds_and_fetches_nothing_from_elsewhere(folder: Path) -> None:
    done = build(folder)
    assert done.returncode == 0, done.stdout + done.stderr

    site = folder / "site"
    assert len(list(site.rglob("*.html"))) >= len(navigated())
    for path in site.rglob("*.html"):
        assert not _FETCHED.search(path.read_text(encoding="utf-8")), path
    for path in site.rglob("*.css"):
        assert not _FETCHED_BY_STYLE.search(path.read_text(encoding="utf-8")), path
    assert not list(site.rglob("*.py"))


@needs_builder
def test_a_link_that_leads_nowhere_stops_the_build(folder: Path) -> None:
    start = folder / "docs" / "start.md"
    start.write_text(start.read_text(encoding="utf-8") + "\n[nowhere](runs.md#no-such-heading)\n", encoding="utf-8")

    done = build(folder)

    assert done.returncode != 0
    assert "anchor does not exist" in done.stdout + done.stderr
