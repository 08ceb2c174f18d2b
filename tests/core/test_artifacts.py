"""Which files of a workspace are artifacts, decided from their paths alone."""

from __future__ import annotations

import re
import time

import pytest

from hermes_worker.core.artifact_patterns import PATTERN_FORM, explain_wrong_pattern
from hermes_worker.core.media_kinds import OCTETS
from hermes_worker.features.artifacts.rules import explain_refusal, find_media_type, matches_any, sanitize_name


@pytest.mark.parametrize(
    ("pattern", "fits", "does_not"),
    [
        ("report.md", ["report.md", "a/b/report.md"], ["report.mdx", "areport.md", "report.md/x"]),
        ("*.csv", ["a.csv", "x/y.csv", ".csv"], ["a.csv.gz", "csv"]),
        ("out/**", ["out/a", "out/b/c"], ["a/out/b", "output/a"]),
        ("out/*", ["out/a"], ["out/b/c"]),
        ("**/fig?.png", ["fig1.png", "a/b/fig2.png"], ["fig.png", "fig12.png"]),
        ("a/**/b/*.txt", ["a/b/c.txt", "a/x/y/b/c.txt"], ["a/b.txt", "b/c.txt"]),
        ("[ab].txt", ["[ab].txt"], ["a.txt"]),
    ],
)
def test_a_pattern_fits_what_it_says(pattern: str, fits: list[str], does_not: list[str]) -> None:
    assert [path for path in fits if not matches_any(path, [pattern])] == []
    assert [path for path in does_not if matches_any(path, [pattern])] == []


def test_no_pattern_takes_long() -> None:
    began = time.process_time()
    assert not matches_any("a" * 1_000, ["*a" * 100 + "b"])
    assert not matches_any("/".join("a" * 500), ["/".join(["**", "a"] * 40) + "/b"])
    assert time.process_time() - began < 1.0


@pytest.mark.parametrize(
    ("pattern", "is_one"),
    [
        ("a/b", True),
        ("a..b", True),
        ("...", True),
        ("ü*", True),
        ("", False),
        ("/etc/passwd", False),
        ("../x", False),
        ("a/../b", False),
        ("a//b", False),
        ("a/", False),
        ("./a", False),
        ("~/a", False),
        ("a\\b", False),
        ("a\0b", False),
        ("a\nb", False),
        ("a" * 201, False),
    ],
)
def test_what_may_be_a_pattern_is_what_the_document_says(pattern: str, is_one: bool) -> None:
    assert (explain_wrong_pattern(pattern) is None) is is_one
    assert (re.search(PATTERN_FORM, pattern) is not None) is is_one


@pytest.mark.parametrize("path", ["a/tls.key", "cert.PEM", "auth.json", "x/credentials", "a\nb", "a" * 2_000])
def test_a_file_of_this_path_is_never_an_artifact(path: str) -> None:
    assert explain_refusal(path)


def test_what_a_browser_would_run_is_octets() -> None:
    for name in ("a.html", "a.svg", "a.xml", "a.js", "a.xhtml", "a", "a.exe"):
        assert find_media_type(name) == OCTETS
    assert find_media_type("x/A.PNG") == "image/png"


def test_a_shown_name_hides_nothing() -> None:
    assert sanitize_name("a/invoice\u202excod.exe") == "invoice_xcod.exe"
    assert sanitize_name('a/"x\\y"') == "_x_y_"
