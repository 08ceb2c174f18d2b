"""Marks that nobody sees are shown, on every surface in the same way."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import hermes_worker
from hermes_worker.cli.wording import flatten_text
from hermes_worker.core.invisible_characters import UNSEEN, show_invisible


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("rm \u202efdp.exe", "rm <U+202E>fdp.exe"),
        ("a\u200bb\u200cc\u200dd\u2060e\ufefff", "a<U+200B>b<U+200C>c<U+200D>d<U+2060>e<U+FEFF>f"),
        ("\u2066x\u2069 \u061c\u200e\u200f", "<U+2066>x<U+2069> <U+061C><U+200E><U+200F>"),
        ("pay\u00adpal\u3164\u115f\u2800\u180e", "pay<U+00AD>pal<U+3164><U+115F><U+2800><U+180E>"),
        ("x\U000e0041\U000e0100\ufe00", "x<U+E0041><U+E0100><U+FE00>"),
        ("one\u2028two\u2029three", "one<U+2028>two<U+2029>three"),
        ("\x1b[2Kgone\x07\x9b\rover", "<U+001B>[2Kgone<U+0007><U+009B><U+000D>over"),
    ],
)
def test_a_mark_that_nobody_sees_is_shown_by_its_code(text: str, shown: str) -> None:
    assert show_invisible(text) == shown
    assert show_invisible(shown) == shown
    assert flatten_text(text, 200) == " ".join(shown.split())


@pytest.mark.parametrize(
    "text",
    [
        "a\tb\nc",
        "Grüße, 你好, עברית, العربية",
        "\U0001f468\u200d\U0001f469\u200d\U0001f467 and \u2764\ufe0f and 1\ufe0f\u20e3 and \u2139\ufe0f",
        "\U0001f3f4\U000e0067\U000e0062\U000e0073\U000e0063\U000e0074\U000e007f",
        "non\u00a0breaking",
    ],
)
def test_words_of_every_script_and_emoji_stay(text: str) -> None:
    assert show_invisible(text) == text


def test_line_ends_of_windows_are_line_ends() -> None:
    assert show_invisible("a\r\nb\u200b") == "a\nb<U+200B>"


def test_the_page_shows_the_same_marks() -> None:
    script = (Path(hermes_worker.__file__).parent / "web" / "core.js").read_text(encoding="utf-8")
    [ranges] = re.findall(r"const UNSEEN = /\[(.+)\]/u;", script)
    written = [
        "".join(chr(int(code.strip("{}"), 16)) for code in re.findall(r"\\u(\{[0-9a-f]+\}|[0-9a-f]{4})", part))
        for part in re.findall(r"\\u(?:\{[0-9a-f]+\}|[0-9a-f]{4})-\\u(?:\{[0-9a-f]+\}|[0-9a-f]{4})", ranges)
    ]

    assert "[" + "".join(f"{pair[0]}-{pair[1]}" for pair in written) + "]" == UNSEEN.pattern
