"""Pages as a model reads them; what a page holds is outside input."""

from __future__ import annotations

import pytest

from hermes_worker.agent.tools.webpage import PAGE_CHARS_MAX, convert_to_markdown


@pytest.mark.parametrize(
    ("html", "text"),
    [
        ("<h1>One</h1><p>two  \n three</p>", "# One\n\ntwo three"),
        ("<ul><li>a<li>b</ul>", "- a\n- b"),
        ("<p>x<script>alert(1)</script>y<style>p{}</style></p>", "xy"),
        ("<nav>menu<nav>inner</nav>more</nav>body", "body"),
        ("<pre>a\n  b</pre>", "```\na\n  b\n```"),
        ("<blockquote>said</blockquote>", "> said"),
        ("<table><tr><td>a</td><td>b</td></tr></table>", "| a | b"),
        ("<a href='/x?y=1'>here</a>", "[here](https://h.test/x?y=1)"),
        ("<a href='javascript:alert(1)'>no</a><a href='#top'>up</a><a>bare</a>", "noupbare"),
        ("<a href='data:text/html,x'>no</a>", "no"),
        ("<a href='https://e.test/a)b'>p</a>", "[p](https://e.test/ab)"),
        ("<a href='https://[bad'>x</a>", "x"),
        ("<img alt='a cat'><img>", "![a cat]"),
        ("&lt;b&gt; &amp; &copy;", "<b> & ©"),
        ("a<br>b<hr>c", "a\nb\n\n---\n\nc"),
        ("</a></pre></p></nav>x", "x"),
        ("plain", "plain"),
        ("<p", ""),
        ("", ""),
    ],
)
def test_a_page_becomes_markdown(html: str, text: str) -> None:
    assert convert_to_markdown(html, "https://h.test/dir/page") == ("", text)


def test_the_title_is_told_apart() -> None:
    assert convert_to_markdown("<head><title> A\n title </title></head><body>text", "https://h.test/") == (
        "A title",
        "text",
    )


@pytest.mark.parametrize(
    "piece",
    [
        "<div>",
        "<a href=x>",
        "<a href=x></a>",
        "[ ](",
        "<",
        "<!--",
        "<!",
        "<![CDATA[",
        "</",
        "<a b='",
        "\n",
        "<pre>",
        "&",
        "&#",
    ],
)
def test_a_hostile_page_is_read_in_time(piece: str) -> None:
    """Quadratic behaviour anywhere would take minutes."""
    _, text = convert_to_markdown(piece * (200_000 // len(piece)), "https://h.test/")
    assert len(text) <= PAGE_CHARS_MAX
