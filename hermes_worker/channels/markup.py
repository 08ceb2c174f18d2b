"""The Markdown that models write, in the markup of a platform.

Only what carries over without doubt is converted: code, emphasis, links, headings, quotations. Everything else is
escaped and stays as it is, so that no text of a model can produce markup that it did not write.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from dataclasses import dataclass

_BLOCK = re.compile(
    r"^ {0,3}(?P<fence>`{3,}|~{3,})(?P<info>[^\n`]*)\n(?P<code>.*?)(?:^ {0,3}(?P=fence)[`~]*[ \t]*$\n?|\Z)", re.M | re.S
)
_INLINE_CODE = re.compile(r"(?<!`)(?P<ticks>`{1,2})(?!`)(?P<code>[^\n]+?)(?<!`)(?P=ticks)(?!`)")
_LINK = re.compile(
    r"(?<!\!)\[(?P<label>[^\[\]\n]{1,300})\]\((?P<url>(?:https?://|mailto:|tg://)[^\s()<>\"]{1,2000}(?:\([^\s()<>\"]*\))?[^\s()<>\"]*)\)"
)
# Not "__": models mean names such as __init__ by it far more often than emphasis.
_BOLD = re.compile(r"(?<![\w*])\*\*(?=\S)(?P<text>[^\n]{1,1000}?)(?<=\S)\*\*(?![\w*])")
_ITALIC = re.compile(
    r"(?<![\w*])\*(?=[^\s*])(?P<text>[^*\n]+?)(?<=[^\s*])\*(?![\w*])|(?<!\w)_(?=[^\s_])(?P<text_u>[^_\n]+?)(?<=[^\s_])_(?!\w)"
)
_STRIKE = re.compile(r"~~(?=\S)(?P<text>[^\n~]+?)(?<=\S)~~")
_HEADING = re.compile(r"^#{1,6}[ \t]+(?P<text>[^\n]+?)[ \t]*#*$", re.M)
_LANGUAGE = re.compile(r"[A-Za-z0-9_+#.-]{1,32}")

# Converted pieces wait under a number between two characters of Unicode's private use area, which are taken out of the
# input: the steps that follow cannot touch them, and no input can imitate one.
_OPEN, _CLOSE = "\ue000", "\ue001"
_HELD = re.compile(f"{_OPEN}([0-9]+){_CLOSE}")


@dataclass(frozen=True, slots=True)
class _Markup:
    """How a platform writes things. Texts are escaped already."""

    escape: Callable[[str], str]
    block: Callable[[str, str], str]
    code: Callable[[str], str]
    link: Callable[[str, str], str]
    bold: Callable[[str], str]
    italic: Callable[[str], str]
    strike: Callable[[str], str]
    heading: Callable[[str], str]


def _escape_text(text: str) -> str:
    return html.escape(text, quote=False)


def _html_block(language: str, code: str) -> str:
    attribute = f' class="language-{language}"' if language else ""
    return f"<pre><code{attribute}>{code}</code></pre>"


_TELEGRAM = _Markup(
    escape=_escape_text,
    block=_html_block,
    code=lambda code: f"<code>{code}</code>",
    link=lambda label, url: f'<a href="{html.escape(url)}">{label}</a>',
    bold=lambda text: f"<b>{text}</b>",
    italic=lambda text: f"<i>{text}</i>",
    strike=lambda text: f"<s>{text}</s>",
    heading=lambda text: f"<b>{text}</b>",
)

_MATRIX = _Markup(
    escape=_escape_text,
    block=_html_block,
    code=lambda code: f"<code>{code}</code>",
    link=lambda label, url: f'<a href="{html.escape(url)}">{label}</a>',
    bold=lambda text: f"<strong>{text}</strong>",
    italic=lambda text: f"<em>{text}</em>",
    strike=lambda text: f"<del>{text}</del>",
    heading=lambda text: f"<strong>{text}</strong>",
)

_SLACK = _Markup(
    escape=_escape_text,
    block=lambda _, code: f"```\n{code}```",
    code=lambda code: f"`{code}`",
    link=lambda label, url: f"<{url.replace('|', '%7C').replace('&', '&amp;')}|{label}>",
    bold=lambda text: f"*{text}*",
    italic=lambda text: f"_{text}_",
    strike=lambda text: f"~{text}~",
    heading=lambda text: f"*{text}*",
)


def telegram_html(text: str) -> str:
    """Telegram's HTML (core.telegram.org/bots/api#html-style)."""
    return _convert(text, _TELEGRAM)


def matrix_html(text: str) -> str:
    """HTML for ``formatted_body`` (spec.matrix.org, m.room.message): line ends are written out."""
    converted = _convert(text, _MATRIX)
    pieces = re.split(r"(<pre>.*?</pre>\n?)", converted, flags=re.S)
    return "".join(piece if piece.startswith("<pre>") else piece.replace("\n", "<br>") for piece in pieces)


def slack_mrkdwn(text: str) -> str:
    """Slack's mrkdwn. ``<``, ``>`` and ``&`` are escaped, so that no text can mention a channel or everybody."""
    return _convert(text, _SLACK)


def _convert(text: str, markup: _Markup) -> str:
    held: list[str] = []

    def hold(converted: str) -> str:
        held.append(converted)
        return f"{_OPEN}{len(held) - 1}{_CLOSE}"

    def block(match: re.Match[str]) -> str:
        language = match["info"].strip().partition(" ")[0]
        known = language if _LANGUAGE.fullmatch(language) else ""
        end = "\n" if match[0].endswith("\n") else ""
        return hold(markup.block(known, markup.escape(match["code"]))) + end

    def emphasis(text: str) -> str:
        """Whole elements are held, so that marks which cross each other cannot become elements which do."""
        text = _BOLD.sub(lambda match: hold(markup.bold(slanted(match["text"]))), text)
        return slanted(text)

    def slanted(text: str) -> str:
        text = _ITALIC.sub(lambda match: hold(markup.italic(match["text"] or match["text_u"])), text)
        return _STRIKE.sub(lambda match: hold(markup.strike(match["text"])), text)

    text = text.replace(_OPEN, "").replace(_CLOSE, "")
    text = _BLOCK.sub(block, text)
    text = _INLINE_CODE.sub(lambda match: hold(markup.code(markup.escape(match["code"].strip()))), text)
    text = _LINK.sub(lambda match: hold(markup.link(markup.escape(match["label"]), match["url"])), text)
    text = markup.escape(text)
    text = _HEADING.sub(lambda match: hold(markup.heading(_without_bold(match["text"]))), text)
    return _release(emphasis(text), held)


def _without_bold(text: str) -> str:
    return text.replace("**", "")


def _release(text: str, held: list[str]) -> str:
    # A held piece may hold others: a link in a heading. Later pieces only ever hold earlier ones, so this ends.
    while _HELD.search(text):
        text = _HELD.sub(lambda match: held[int(match[1])], text)
    return text
