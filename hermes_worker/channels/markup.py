"""Convert the Markdown that models write into the markup of a platform.

``DIALECTS`` is the table of what platforms show. Only what carries over without doubt is converted; everything else is
escaped and stays as it is, so that no text of a model can produce markup that it did not write. What a platform cannot
show is written in words: a table as lines, a link as its text and its address.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Final

_BLOCK = re.compile(
    r"^ {0,3}(?P<fence>`{3,}|~{3,})(?P<info>[^\n`]*)\n(?P<code>.*?)(?:^ {0,3}(?P=fence)[`~]*[ \t]*$\n?|\Z)", re.M | re.S
)
_INLINE_CODE = re.compile(r"(?<!`)(?P<ticks>`{1,2})(?!`)(?P<code>[^\n]+?)(?<!`)(?P=ticks)(?!`)")
_LINK = re.compile(
    r"(?P<image>!?)\[(?P<label>[^\[\]\n]{0,300})\]\((?P<url>(?:https?://|mailto:|tg://)[^\s()<>\"]{1,2000}(?:\([^\s()<>\"]*\))?[^\s()<>\"]*)\)"
)
# Not "__": models mean names such as __init__ by it far more often than emphasis. Letters of other scripts than Latin
# stand beside a mark without a space: Chinese has none.
_BOLD = re.compile(r"(?<![0-9A-Za-z_*])\*\*(?=\S)(?P<text>[^\n]{1,1000}?)(?<=\S)\*\*(?![0-9A-Za-z_*])")
_ITALIC = re.compile(
    r"(?<![0-9A-Za-z_*])\*(?=[^\s*])(?P<text>[^*\n]+?)(?<=[^\s*])\*(?![0-9A-Za-z_*])|(?<!\w)_(?=[^\s_])(?P<text_u>[^_\n]+?)(?<=[^\s_])_(?!\w)"
)
_STRIKE = re.compile(r"~~(?=\S)(?P<text>[^\n~]+?)(?<=\S)~~")
_SPOILER = re.compile(r"\|\|(?=[^\s|])(?P<text>[^\n|]+?)(?<=\S)\|\|")
_HEADING = re.compile(r"^#{1,6}[ \t]+(?P<text>[^\n]+?)[ \t]*#*$", re.M)
_QUOTATION = re.compile(r"(?:^(?:\*\*)?>[^\n]*(?:\n|\Z))+", re.M)
_QUOTED = re.compile(r"^(?:\*\*)?>[ \t]?", re.M)
_LANGUAGE = re.compile(r"[A-Za-z0-9_+#.-]{1,32}")

_TABLE = re.compile(
    r"^(?P<head>[^\n]*\|[^\n]*)\n(?=[^\n]*\|)[ \t]*\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*$"
    r"(?P<rows>(?:\n[^\n]*\|[^\n]*)*)",
    re.M,
)
_CELL_END = re.compile(r"(?<!\\)\|")
_TABLE_WIDTH_MAX = 72
"""Most characters of a line of code that phones show without breaking it, about; a wider table becomes a list."""

# Converted pieces wait under a number between two characters of Unicode's private use area, which are removed from the
# input: the steps that follow cannot touch them, and no input can imitate one.
_OPEN, _CLOSE = "\ue000", "\ue001"
_HELD = re.compile(f"{_OPEN}([0-9]+){_CLOSE}")


class Tables(StrEnum):
    """How a platform shows a table."""

    OWN = "as tables"
    BLOCK = "as a block of code with aligned columns"
    LIST = "as a list, a line a row"


@dataclass(frozen=True, slots=True)
class _Marks:
    """How a platform writes each element. The texts are escaped already."""

    escape: Callable[[str], str]
    block: Callable[[str, str], str]
    code: Callable[[str], str]
    link: Callable[[str, str], str]
    bold: Callable[[str], str]
    italic: Callable[[str], str]
    strike: Callable[[str], str]
    heading: Callable[[str], str]
    spoiler: Callable[[str], str]
    quote: Callable[[str], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """What a platform shows, and how it is written there."""

    shows: str
    """Tells a model what it may write."""
    tables: Tables = Tables.LIST
    marks: _Marks | None = None
    """``None`` where Markdown is understood as it is."""
    has_spoilers: bool = False
    """Whether a platform that understands Markdown hides the text between ``||``."""
    has_images: bool = False
    """Whether a platform that understands Markdown shows a picture by its address."""


# --- what platforms write --------------------------------------------------------------------------------------------


def _keep(text: str) -> str:
    return text


def _escape_text(text: str) -> str:
    return html.escape(text, quote=False)


def _render_html_block(language: str, code: str) -> str:
    attribute = f' class="language-{language}"' if language else ""
    return f"<pre><code{attribute}>{code}</code></pre>"


def _wrap_in_mark(mark: str) -> Callable[[str], str]:
    return lambda text: f"{mark}{text}{mark}"


def _make_element(name: str, attributes: str = "") -> Callable[[str], str]:
    return lambda text: f"<{name}{attributes}>{text}</{name}>"


def _render_html_link(label: str, url: str) -> str:
    return f'<a href="{html.escape(url)}">{label}</a>'


def _spell_link(label: str, url: str) -> str:
    bare = url.removeprefix("mailto:")
    return url if label.strip() in ("", url) else bare if label.strip() == bare else f"{label} ({url})"


def _render_slack_link(label: str, url: str) -> str:
    return f"<{url.replace('|', '%7C').replace('&', '&amp;')}|{label}>"


def _quote_lines(text: str) -> str:
    return "\n".join(f"> {line}" for line in text.split("\n"))


def _fence(_: str, code: str) -> str:
    return f"```\n{code}```"


_TELEGRAM_MARKS = _Marks(
    escape=_escape_text,
    block=_render_html_block,
    code=_make_element("code"),
    link=_render_html_link,
    bold=_make_element("b"),
    italic=_make_element("i"),
    strike=_make_element("s"),
    heading=_make_element("b"),
    spoiler=_make_element("tg-spoiler"),
    quote=_make_element("blockquote"),
)
_HTML_MARKS = _Marks(
    escape=_escape_text,
    block=_render_html_block,
    code=_make_element("code"),
    link=_render_html_link,
    bold=_make_element("strong"),
    italic=_make_element("em"),
    strike=_make_element("del"),
    heading=_make_element("strong"),
    spoiler=_make_element("span", " data-mx-spoiler"),
    quote=_make_element("blockquote"),
)
_SLACK_MARKS = _Marks(
    escape=_escape_text,
    block=_fence,
    code=_wrap_in_mark("`"),
    link=_render_slack_link,
    bold=_wrap_in_mark("*"),
    italic=_wrap_in_mark("_"),
    strike=_wrap_in_mark("~"),
    heading=_wrap_in_mark("*"),
    spoiler=_keep,
    quote=_quote_lines,
)
_WHATSAPP_MARKS = replace(_SLACK_MARKS, escape=_keep, link=_spell_link)
_GOOGLE_CHAT_MARKS = replace(
    _SLACK_MARKS,
    escape=_keep,
    link=lambda label, url: f"<{url.replace('|', '%7C')}|{label}>" if label else url,
)
_NO_MARKS = _Marks(
    escape=_keep,
    block=lambda _, code: code.rstrip("\n"),
    code=_keep,
    link=_spell_link,
    bold=_keep,
    italic=_keep,
    strike=_keep,
    heading=_keep,
    spoiler=_keep,
    quote=_quote_lines,
)

_BASICS = "bold, italic, strikethrough, inline code and blocks of code, quotations"
TELEGRAM: Final = Dialect(
    shows=f"Markdown: {_BASICS}, headings, links and ||spoilers||", tables=Tables.BLOCK, marks=_TELEGRAM_MARKS
)
HTML: Final = Dialect(shows=f"Markdown: {_BASICS}, headings and links", tables=Tables.BLOCK, marks=_HTML_MARKS)
SLACK: Final = Dialect(shows=f"Markdown: {_BASICS}, headings and links", tables=Tables.BLOCK, marks=_SLACK_MARKS)
WHATSAPP: Final = Dialect(shows=f"Markdown: {_BASICS}; a link as its address", marks=_WHATSAPP_MARKS)
GOOGLE_CHAT: Final = Dialect(shows=f"Markdown: {_BASICS} and links", tables=Tables.BLOCK, marks=_GOOGLE_CHAT_MARKS)
DISCORD: Final = Dialect(
    shows=f"Markdown: {_BASICS}, headings, links and ||spoilers||", tables=Tables.BLOCK, has_spoilers=True
)
MARKDOWN: Final = Dialect(
    shows=f"Markdown: {_BASICS}, headings, links, tables and pictures", tables=Tables.OWN, has_images=True
)
SIMPLE_MARKDOWN: Final = Dialect(shows="Markdown: bold, italic, inline code, quotations, headings and links")
TEAMS: Final = Dialect(shows=f"Markdown: {_BASICS}, headings and links", tables=Tables.BLOCK)
PLAIN: Final = Dialect(shows="plain text only: no markup at all", marks=_NO_MARKS)

DIALECTS: Final[Mapping[str, Dialect]] = MappingProxyType(
    {
        "dingtalk": SIMPLE_MARKDOWN,
        "discord": DISCORD,
        "email": HTML,
        "feishu": PLAIN,
        "github_comment": MARKDOWN,
        "google_chat": GOOGLE_CHAT,
        "homeassistant": PLAIN,
        "irc": PLAIN,
        "line": PLAIN,
        "matrix": HTML,
        "mattermost": MARKDOWN,
        "ntfy": SIMPLE_MARKDOWN,
        "signal": PLAIN,
        "slack": SLACK,
        "sms": PLAIN,
        "teams": TEAMS,
        "telegram": TELEGRAM,
        "wecom": SIMPLE_MARKDOWN,
        "wecom_callback": SIMPLE_MARKDOWN,
        "whatsapp_cloud": WHATSAPP,
    }
)
"""By platform. Programs, files and platforms of extensions get Markdown as it is."""


def describe_dialect(dialect: Dialect, *, takes_files: bool) -> list[str]:
    """Describe to an agent in sentences how its answers are shown. They stand in prompts that are kept."""
    said = [f"What you write is shown as {dialect.shows}."]
    if dialect.tables is not Tables.OWN:
        said.append(f"A table is shown {dialect.tables}.")
    if takes_files:
        said.append("A line MEDIA:path/of/a/file in an answer sends that file of your workspace along.")
    if takes_files or dialect.has_images:
        said.append("A picture at a web address is shown where an answer has ![its description](https://address).")
    if not takes_files:
        said.append("Files cannot be sent here: give what they hold, or a link.")
    return said


# --- converting ------------------------------------------------------------------------------------------------------


def render_telegram_html(text: str) -> str:
    """Render Telegram's HTML (core.telegram.org/bots/api#html-style)."""
    return render_markup(text, TELEGRAM)


def render_matrix_html(text: str) -> str:
    """Render HTML for ``formatted_body`` (spec.matrix.org, m.room.message): line ends are written out."""
    converted = render_markup(text, HTML)
    pieces = re.split(r"(<pre>.*?</pre>\n?)", converted, flags=re.S)
    return "".join(piece if piece.startswith("<pre>") else piece.replace("\n", "<br>") for piece in pieces)


def render_slack_mrkdwn(text: str) -> str:
    """Render Slack's mrkdwn. ``<``, ``>`` and ``&`` are escaped, so that no text can mention a channel or everybody."""
    return render_markup(text, SLACK)


def render_markup(text: str, dialect: Dialect) -> str:
    """Render ``text`` for the platform of ``dialect``."""
    return _Renderer(dialect).render(text)


def spell_tables(text: str, dialect: Dialect) -> str:
    """Render the tables of ``text`` in Markdown that the platform shows. Done before a text is split, because a block
    of code may be cut in two and a table may not."""
    if dialect.tables is Tables.OWN or "|" not in text:
        return text
    parts, position = [], 0
    for block in _BLOCK.finditer(text):
        parts += [_TABLE.sub(lambda found: _spell_table(found, dialect), text[position : block.start()]), block[0]]
        position = block.end()
    parts.append(_TABLE.sub(lambda found: _spell_table(found, dialect), text[position:]))
    return "".join(parts)


def _spell_table(found: re.Match[str], dialect: Dialect) -> str:
    head, *rows = (_split_cells(line) for line in (found["head"], *found["rows"].split("\n")[1:]))
    if dialect.tables is Tables.BLOCK:
        bare = [[render_markup(cell, PLAIN) for cell in row] for row in (head, *rows)]
        widths = [max(len(row[at]) if at < len(row) else 0 for row in bare) for at in range(max(map(len, bare)))]
        if sum(widths) + 3 * len(widths) <= _TABLE_WIDTH_MAX and not any("```" in cell for row in bare for cell in row):
            return _align(bare, widths)
    return "\n".join(
        "- " + "; ".join(f"{name}: {cell}" if name else cell for name, cell in _pair_with_head(head, row) if cell)
        for row in rows or [head]
    )


def _align(rows: Sequence[Sequence[str]], widths: Sequence[int]) -> str:
    lines = ["   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False)).rstrip() for row in rows]
    lines.insert(1, "   ".join("─" * width for width in widths))
    return "\n".join(("```", *lines, "```"))


def _pair_with_head(head: Sequence[str], row: Sequence[str]) -> list[tuple[str, str]]:
    return [(head[at] if at < len(head) and row is not head else "", cell) for at, cell in enumerate(row)]


def _split_cells(line: str) -> list[str]:
    bare = line.strip().removeprefix("|")
    cells = _CELL_END.split(bare)
    if len(cells) > 1 and not cells[-1].strip():
        cells.pop()
    return [cell.strip().replace("\\|", "|") for cell in cells]


class _Renderer:
    """Converts one text."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._held: list[str] = []

    def render(self, text: str) -> str:
        marks = self._dialect.marks
        text = spell_tables(text.replace(_OPEN, "").replace(_CLOSE, ""), self._dialect)
        if marks is None:
            return self._release(self._adapt(text))
        text = _BLOCK.sub(lambda found: self._block(found, marks), text)
        text = _INLINE_CODE.sub(lambda found: self._hold(marks.code(marks.escape(found["code"].strip()))), text)
        text = _LINK.sub(lambda found: self._link(found, marks), text)
        text = _QUOTATION.sub(lambda found: self._convert_quotation(found, marks), text)
        return self._release(self._convert_inline(text, marks))

    def _adapt(self, text: str) -> str:
        """Remove from Markdown what this platform does not know."""
        text = _BLOCK.sub(lambda found: self._hold(found[0]), text)
        text = _INLINE_CODE.sub(lambda found: self._hold(found[0]), text)
        if not self._dialect.has_spoilers:
            text = _SPOILER.sub(lambda found: found["text"], text)
        if self._dialect.has_images:
            return text
        return _LINK.sub(lambda found: f"[{found['label'] or found['url']}]({found['url']})", text)

    def _hold(self, converted: str) -> str:
        self._held.append(converted)
        return f"{_OPEN}{len(self._held) - 1}{_CLOSE}"

    def _block(self, found: re.Match[str], marks: _Marks) -> str:
        language = found["info"].strip().partition(" ")[0]
        known = language if _LANGUAGE.fullmatch(language) else ""
        end = "\n" if found[0].endswith("\n") else ""
        return self._hold(marks.block(known, marks.escape(found["code"]))) + end

    def _link(self, found: re.Match[str], marks: _Marks) -> str:
        if not found["label"] and not found["image"]:
            return found[0]
        return self._hold(marks.link(marks.escape(found["label"] or found["url"]), found["url"]))

    def _convert_quotation(self, found: re.Match[str], marks: _Marks) -> str:
        said = _QUOTED.sub("", found[0].removesuffix("\n"))
        if found[0].startswith("**>"):
            said = said.removesuffix("||")
        end = "\n" if found[0].endswith("\n") else ""
        return self._hold(marks.quote(self._convert_inline(said, marks))) + end

    def _convert_inline(self, text: str, marks: _Marks) -> str:
        text = marks.escape(text)
        text = _HEADING.sub(lambda found: self._hold(marks.heading(found["text"].replace("**", ""))), text)
        text = _SPOILER.sub(lambda found: self._hold(marks.spoiler(self._convert_emphasis(found["text"], marks))), text)
        return self._convert_emphasis(text, marks)

    def _convert_emphasis(self, text: str, marks: _Marks) -> str:
        """Convert emphasis. Whole elements are held, so that marks which cross each other cannot become elements which
        do."""
        text = _BOLD.sub(lambda found: self._hold(marks.bold(self._convert_italic(found["text"], marks))), text)
        return self._convert_italic(text, marks)

    def _convert_italic(self, text: str, marks: _Marks) -> str:
        text = _ITALIC.sub(lambda found: self._hold(marks.italic(found["text"] or found["text_u"])), text)
        return _STRIKE.sub(lambda found: self._hold(marks.strike(found["text"])), text)

    def _release(self, text: str) -> str:
        # A held piece may hold others: a link in a heading. Later pieces only ever hold earlier ones, so this ends.
        while _HELD.search(text):
            text = _HELD.sub(lambda found: self._held[int(found[1])], text)
        return text
