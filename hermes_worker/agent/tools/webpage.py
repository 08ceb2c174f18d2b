"""Convert a web page to text that a model can read: Markdown, without what only a browser needs. Pure."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Final
from urllib.parse import urljoin

PAGE_CHARS_MAX: Final = 2_000_000
"""Characters of a page's source that are read."""
_LINK_CHARS_MAX = 2_000
_SKIPPED = (
    "script",
    "style",
    "noscript",
    "template",
    "svg",
    "canvas",
    "iframe",
    "object",
    "select",
    "button",
    "nav",
    "footer",
)
_BLOCKS = frozenset(
    (
        *("p", "div", "section", "article", "main", "header", "aside", "body", "form", "fieldset"),
        *("table", "tr", "ul", "ol", "dl", "dt", "dd", "figure", "figcaption"),
    )
)
_HEADINGS = {f"h{level}": "#" * level for level in range(1, 7)}


def convert_to_markdown(html: str, base_url: str) -> tuple[str, str]:
    """The title and the text of a page. Links are made whole by ``base_url``; nothing but http and https is a link."""
    reader = _HtmlReader(base_url)
    reader.feed(_strip_unended_tags(html[:PAGE_CHARS_MAX]))
    reader.close()
    return " ".join("".join(reader.title).split()), _tidy_text("".join(reader.text))


def _strip_unended_tags(html: str) -> str:
    """The page without comments and declarations, and without a tag that never ends: the parser of some Python releases
    reads each of many such tags to the end of the page (CVE-2025-6069).
    """
    plain = re.sub(r"<[!?][^>]*>?", "", _strip_comments(html))
    end = plain.rfind(">") + 1
    return plain[:end] + plain[end:].partition("<")[0]


def _strip_comments(html: str) -> str:
    kept: list[str] = []
    position = 0
    while (start := html.find("<!--", position)) >= 0:
        kept.append(html[position:start])
        end = html.find("-->", start + 4)
        position = len(html) if end < 0 else end + 3
    return "".join((*kept, html[position:]))


class _HtmlReader(HTMLParser):
    def __init__(self, base_url: str) -> None:
        super().__init__(convert_charrefs=True)
        self.title: list[str] = []
        self.text: list[str] = []
        self._base_url = base_url
        self._skipped: str | None = None
        self._skips = 0
        self._is_title = False
        self._preformatted = 0
        self._link = ""
        self._link_at = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if self._skipped is not None:
            self._skips += tag == self._skipped
            return
        if tag in _SKIPPED:
            self._skipped, self._skips = tag, 1
            return
        given = dict(attrs)
        if tag == "title":
            self._is_title = True
        elif tag in _HEADINGS:
            self.text.append(f"\n\n{_HEADINGS[tag]} ")
        elif tag == "li":
            self.text.append("\n- ")
        elif tag == "br":
            self.text.append("\n")
        elif tag == "hr":
            self.text.append("\n\n---\n\n")
        elif tag == "pre":
            self._preformatted += 1
            self.text.append("\n\n```\n")
        elif tag == "blockquote":
            self.text.append("\n\n> ")
        elif tag in ("td", "th"):
            self.text.append(" | ")
        elif tag == "img" and (label := (given.get("alt") or "").strip()):
            self.text.append(f"![{label}]")
        elif tag == "a":
            self._end_link()
            self._link, self._link_at = self._resolve_target(given.get("href")), len(self.text)
        elif tag in _BLOCKS:
            self.text.append("\n\n")

    def handle_endtag(self, tag: str) -> None:
        if self._skipped is not None:
            self._skips -= tag == self._skipped
            if self._skips <= 0:
                self._skipped = None
            return
        if tag == "title":
            self._is_title = False
        elif tag == "pre" and self._preformatted:
            self._preformatted -= 1
            self.text.append("\n```\n\n")
        elif tag == "a":
            self._end_link()
        elif tag in _BLOCKS or tag in _HEADINGS or tag == "blockquote":
            self.text.append("\n\n")

    def handle_data(self, data: str) -> None:
        if self._is_title:
            self.title.append(data)
        elif self._skipped is None:
            self.text.append(data if self._preformatted else re.sub(r"\s+", " ", data))

    def _end_link(self) -> None:
        """Links do not hold links. One without words is none."""
        link, self._link = self._link, ""
        if link:
            words = "".join(self.text[self._link_at :]).strip()
            del self.text[self._link_at :]
            self.text.append(f"[{words}]({link})" if words else "")

    def _resolve_target(self, href: str | None) -> str:
        try:
            target = urljoin(self._base_url, (href or "").strip())
        except ValueError:
            return ""
        is_link = target.startswith(("http://", "https://")) and len(target) <= _LINK_CHARS_MAX
        return re.sub(r"[\s()<>]", "", target) if is_link and href and not href.startswith("#") else ""


def _tidy_text(text: str) -> str:
    """The text with several blank lines as one, and without indentation outside of code."""
    lines: list[str] = []
    is_code = False
    for line in text.replace("\xa0", " ").split("\n"):
        is_code = is_code != line.startswith("```")
        line = line.rstrip() if is_code else line.strip()
        if line or is_code or (lines and lines[-1]):
            lines.append(line)
    return "\n".join(lines).strip()
