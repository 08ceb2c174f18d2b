import re
import time
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hermes_worker.channels.markup import matrix_html, slack_mrkdwn, telegram_html


@pytest.mark.parametrize(
    ("text", "converted"),
    [
        ("plain", "plain"),
        ("a < b & c > d", "a &lt; b &amp; c &gt; d"),
        ("**bold**, **b**.", "<b>bold</b>, <b>b</b>."),
        ("*slanted* and _slanted_", "<i>slanted</i> and <i>slanted</i>"),
        ("**bold and _both_**", "<b>bold and <i>both</i></b>"),
        ("~~gone~~", "<s>gone</s>"),
        ("# Heading **x** #", "<b>Heading x</b>"),
        ("`a < b`", "<code>a &lt; b</code>"),
        ("``a ` b``", "<code>a ` b</code>"),
        ("`**not bold**`", "<code>**not bold**</code>"),
        ("[label](https://x.example/?a=1&b=2)", '<a href="https://x.example/?a=1&amp;b=2">label</a>'),
        ("[**x**](https://x.example)", '<a href="https://x.example">**x**</a>'),
        ("**[x](https://x.example)**", '<b><a href="https://x.example">x</a></b>'),
        ("[wiki](https://x.example/a_(b)_c)", '<a href="https://x.example/a_(b)_c">wiki</a>'),
        (
            "```python\nif a < b:\n    pass\n```\nafter",
            '<pre><code class="language-python">if a &lt; b:\n    pass\n</code></pre>\nafter',
        ),
        ("```\nopen", "<pre><code>open</code></pre>"),
        ("~~~\n**x**\n~~~", "<pre><code>**x**\n</code></pre>"),
    ],
)
def test_markdown_becomes_html(text, converted):
    assert telegram_html(text) == converted


@pytest.mark.parametrize(
    "text",
    [
        "snake_case_name and other_name_",
        "2 * 3 * 4",
        "a ** b ** c",
        "file*.py and *.txt",
        "[x](javascript:alert(1))",
        "[x](/relative)",
        "5 * x*",
        "no # heading",
        "**open",
        "`open",
        "__init__.py",
    ],
)
def test_what_is_no_markup_stays(text):
    assert telegram_html(text) == text


def test_marks_that_cross_do_not_become_elements_that_cross():
    assert telegram_html("**bold _x** y_") == "<b>bold _x</b> y_"


def test_html_in_a_text_is_text():
    assert telegram_html('<a href="x">y</a><script>') == '&lt;a href="x"&gt;y&lt;/a&gt;&lt;script&gt;'


@pytest.mark.parametrize("url", ['https://x.example/"onclick="y', "https://x.example/<b>", "https://x.example/ y"])
def test_an_address_cannot_leave_its_attribute(url):
    assert "<" not in telegram_html(f"[x]({url})")


def test_matrix_writes_line_ends_out_but_not_in_code():
    assert matrix_html("a\n**b**\n```\nc\nd\n```\ne") == "a<br><strong>b</strong><br><pre><code>c\nd\n</code></pre>\ne"


@pytest.mark.parametrize(
    ("text", "converted"),
    [
        ("**bold** *slanted* ~~gone~~", "*bold* _slanted_ ~gone~"),
        ("[label](https://x.example/?a=1&b=2|3)", "<https://x.example/?a=1&amp;b=2%7C3|label>"),
        ("# Heading", "*Heading*"),
        ("<!channel> & <@U1>", "&lt;!channel&gt; &amp; &lt;@U1&gt;"),
        ("```\n<b>\n```", "```\n&lt;b&gt;\n```"),
        ("`x`", "`x`"),
    ],
)
def test_markdown_becomes_mrkdwn(text, converted):
    assert slack_mrkdwn(text) == converted


class Balance(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag, attrs):
        assert tag in {"b", "i", "s", "a", "code", "pre", "strong", "em", "del", "br"}
        if tag != "br":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


fragments = st.one_of(
    st.text(alphabet="ab *_~`#<>&\n[]()\ue000\ue001" + "0", max_size=12),
    st.sampled_from(["**", "__", "*", "_", "~~", "`", "```\n", "# ", "[x](https://x.example/)", "<b>", "\n"]),
)


@settings(max_examples=400, deadline=None)
@given(st.lists(fragments, max_size=20).map("".join))
def test_the_html_is_always_balanced_and_keeps_the_letters(text):
    for convert in (telegram_html, matrix_html):
        balance = Balance()
        balance.feed(convert(text))
        balance.close()
        assert balance.open == []
        if not re.search("```|~~~|https", text):  # their info strings and addresses become attributes
            assert re.sub("[^ab0]", "", "".join(balance.text)) == re.sub("[^ab0]", "", text)


@pytest.mark.parametrize("part", ["**a ", "_a ", "[a](https://b", "`a ", "~~a ", "# ", "__", "*", "```\n"])
def test_hostile_text_is_converted_in_bounded_time(part):
    started = time.thread_time()
    telegram_html(part * (16_000 // len(part)))
    assert time.thread_time() - started < 5  # of the processor, whatever else it does
