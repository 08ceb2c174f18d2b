import re
import time
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hermes_worker.channels.catalog import list_platforms
from hermes_worker.channels.markup import (
    DIALECTS,
    render_markup,
    render_matrix_html,
    render_slack_mrkdwn,
    render_telegram_html,
    spell_tables,
)


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
    assert render_telegram_html(text) == converted


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
    assert render_telegram_html(text) == text


def test_marks_that_cross_do_not_become_elements_that_cross():
    assert render_telegram_html("**bold _x** y_") == "<b>bold _x</b> y_"


def test_html_in_a_text_is_text():
    assert render_telegram_html('<a href="x">y</a><script>') == '&lt;a href="x"&gt;y&lt;/a&gt;&lt;script&gt;'


@pytest.mark.parametrize("url", ['https://x.example/"onclick="y', "https://x.example/<b>", "https://x.example/ y"])
def test_an_address_cannot_leave_its_attribute(url):
    assert "<" not in render_telegram_html(f"[x]({url})")


def test_matrix_writes_line_ends_out_but_not_in_code():
    assert (
        render_matrix_html("a\n**b**\n```\nc\nd\n```\ne")
        == "a<br><strong>b</strong><br><pre><code>c\nd\n</code></pre>\ne"
    )


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
    assert render_slack_mrkdwn(text) == converted


SAID = (
    "# Head\n**bold** *it* _it_ ~~gone~~ `co**de**` ||hush|| [page](https://x.example/a?b=1) "
    "![owl](https://x.example/o)\n"
    "> **said**\n> twice\n\n```py\n**x**\n```"
)
TABLE = "Before\n| Name | *Score* |\n|:--|--:|\n| Al | 1 \\| 2 |\n| **Bo** | 30 |\nAfter"


@pytest.mark.parametrize(
    ("platform", "shown"),
    [
        (
            "whatsapp_cloud",
            "*Head*\n*bold* _it_ _it_ ~gone~ `co**de**` hush page (https://x.example/a?b=1) owl (https://x.example/o)\n"
            "> *said*\n> twice\n\n```\n**x**\n```",
        ),
        (
            "google_chat",
            "*Head*\n*bold* _it_ _it_ ~gone~ `co**de**` hush <https://x.example/a?b=1|page> <https://x.example/o|owl>\n"
            "> *said*\n> twice\n\n```\n**x**\n```",
        ),
        (
            "sms",
            "Head\nbold it it gone co**de** hush page (https://x.example/a?b=1) owl (https://x.example/o)\n"
            "> said\n> twice\n\n**x**",
        ),
        ("discord", SAID.replace("![", "[")),
        ("mattermost", SAID.replace("||", "")),
        ("dingtalk", SAID.replace("||", "").replace("![", "[")),
    ],
)
def test_markdown_becomes_what_a_platform_shows(platform: str, shown: str) -> None:
    assert render_markup(SAID, DIALECTS[platform]) == shown


@pytest.mark.parametrize(
    ("platform", "shown"),
    [
        ("mattermost", TABLE),
        ("sms", "Before\n- Name: Al; Score: 1 | 2\n- Name: Bo; Score: 30\nAfter"),
        ("wecom", "Before\n- Name: Al; *Score*: 1 | 2\n- Name: **Bo**; *Score*: 30\nAfter"),
        ("discord", "Before\n```\nName   Score\n────   ─────\nAl     1 | 2\nBo     30\n```\nAfter"),
        ("telegram", "Before\n<pre><code>Name   Score\n────   ─────\nAl     1 | 2\nBo     30\n</code></pre>\nAfter"),
    ],
)
def test_a_table_becomes_what_a_platform_shows(platform: str, shown: str) -> None:
    assert render_markup(TABLE, DIALECTS[platform]) == shown
    assert render_markup(spell_tables(TABLE, DIALECTS[platform]), DIALECTS[platform]) == shown


def test_a_wide_table_is_a_list_and_one_in_code_stays() -> None:
    wide = f"| A | B |\n|---|---|\n| {'x' * 60} | {'y' * 30} |"
    assert render_telegram_html(wide) == f"- A: {'x' * 60}; B: {'y' * 30}"
    assert render_telegram_html(f"```\n{TABLE}\n```") == f"<pre><code>{TABLE}\n</code></pre>".replace("&", "&amp;")


def test_marks_stand_beside_letters_of_scripts_without_spaces() -> None:
    assert render_telegram_html("这是**粗体**和*斜体*字") == "这是<b>粗体</b>和<i>斜体</i>字"


def test_every_platform_that_is_sent_to_has_a_dialect() -> None:
    sent_to = {name for name, row in list_platforms().items() if row.has_adapter}
    assert sent_to - DIALECTS.keys() == {"chat_webhook"}, "its program is given Markdown"
    assert DIALECTS.keys() <= sent_to


class Balance(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag, attrs):
        assert tag in {
            "b",
            "i",
            "s",
            "a",
            "code",
            "pre",
            "strong",
            "em",
            "del",
            "br",
            "span",
            "tg-spoiler",
            "blockquote",
        }
        if tag != "br":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


fragments = st.one_of(
    st.text(alphabet="ab *_~`#<>&\n[]()\ue000\ue001" + "0", max_size=12),
    st.sampled_from(["**", "__", "*", "_", "~~", "`", "```\n", "# ", "[x](https://x.example/)", "<b>", "\n"]),
    st.sampled_from(["||", "> ", "**>", "\n|a|b|\n|-|-|\n|a|b|\n", "![](https://x.example/)"]),
)


@settings(max_examples=400, deadline=None)
@given(st.lists(fragments, max_size=20).map("".join))
def test_the_html_is_always_balanced_and_keeps_the_letters(text):
    for convert in (render_telegram_html, render_matrix_html):
        balance = Balance()
        balance.feed(convert(text))
        balance.close()
        assert balance.open == []
        if not re.search("```|~~~|https", text):  # their info strings and addresses become attributes
            assert re.sub("[^ab0]", "", "".join(balance.text)) == re.sub("[^ab0]", "", text)


@pytest.mark.parametrize(
    "part",
    [
        "**a ",
        "_a ",
        "[a](https://b",
        "`a ",
        "~~a ",
        "# ",
        "__",
        "*",
        "```\n",
        "||a",
        "> ",
        "a|",
        "a|b\n-|-\n",
        "-|",
        ":-",
    ],
)
def test_hostile_text_is_converted_in_bounded_time(part):
    started = time.thread_time()
    render_telegram_html(part * (16_000 // len(part)))
    assert time.thread_time() - started < 5  # of the processor, whatever else it does
