"""Extract what a person wrote in a mail, without what they quote. Pure, total, and linear in its length."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from html import unescape

HTML_CHARS_MAX = 200_000
_TAG_CHARS_MAX = 1_000
"""Most characters of a tag that are looked at."""
_TAG = re.compile(r"(?P<end>/?)(?P<name>[A-Za-z][A-Za-z0-9]*)(?P<rest>.*)", re.S)
_CUTS = re.compile(
    r"-{2,}\s*(?:original message|ursprüngliche nachricht|message d'origine|mensaje original|forwarded message)\s*-{2,}"
    r"|_{20,}",
    re.IGNORECASE,
)
_SAYS = re.compile(
    r"(?:wrote|schrieb|a écrit|escribió|ha scritto|schreef|napisał\(?a?\)?|skrev)\b.{0,40}:\s*$", re.IGNORECASE
)
_LINE_CHARS_MAX = 400
"""Longest line that may say who wrote what follows."""
_HIDDEN = frozenset({"script", "style", "head", "title", "template", "blockquote"})
_ROWS = frozenset({"p", "div", "br", "tr", "li", "h1", "h2", "h3", "h4", "h5", "h6", "table", "ul", "ol", "hr"})
_WITHOUT_END = frozenset({"br", "hr", "img", "meta", "link", "input", "col", "area", "base", "wbr", "source"})


def remove_quotes(text: str) -> str:
    """Remove from ``text`` the mail below it that it answers, and a signature. A quotation with text beneath it stays,
    since that text is about it."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    end = _find_written_end(lines)
    is_cut = end < len(lines)
    lines = lines[:end]
    _drop_blank(lines)
    quotes = bool(lines) and _is_quoted(lines[-1])
    while lines and (_is_quoted(lines[-1]) or not lines[-1].strip()):
        lines.pop()
    if quotes or is_cut:
        _drop_attribution(lines)
    kept = "\n".join(lines).strip()
    return kept or text.strip()


def extract_html_text(html: str) -> str:
    """Extract the text of an HTML mail, without what it quotes."""
    reader = _ShownText()
    reader.feed(html[:HTML_CHARS_MAX])
    lines = (" ".join(line.split()) for line in unescape("".join(reader.pieces)).split("\n"))
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()


def _find_written_end(lines: list[str]) -> int:
    """Find the line at which a signature or another mail begins."""
    for number, line in enumerate(lines):
        if line == "-- " or _CUTS.fullmatch(line.strip()[:_LINE_CHARS_MAX]):
            return number
    return len(lines)


def _drop_blank(lines: list[str]) -> None:
    while lines and not lines[-1].strip():
        lines.pop()


def _drop_attribution(lines: list[str]) -> None:
    """Remove the one to three lines that say who wrote what followed."""
    for count in (1, 2, 3):
        said = " ".join(line.strip() for line in lines[-count:])
        if len(lines) >= count and len(said) <= _LINE_CHARS_MAX and _SAYS.search(said):
            del lines[-count:]
            return


def _is_quoted(line: str) -> bool:
    return line.lstrip().startswith(">")


@dataclass(slots=True)
class _ShownText:
    """Collects the texts of a document that are shown and not quoted. Python's own parser takes time that grows with
    the square of the tags that a stranger leaves open."""

    pieces: list[str] = field(default_factory=list)
    _hidden: list[str] = field(default_factory=list)
    """The open elements inside one that is not shown."""

    def feed(self, html: str) -> None:
        place = 0
        while (begins := html.find("<", place)) >= 0:
            self._add_text(html[place:begins])
            is_comment = html.startswith("<!--", begins)
            ends = html.find("-->" if is_comment else ">", begins)
            if ends < 0:
                return
            tag = None if is_comment else _TAG.match(html[begins + 1 : min(ends, begins + _TAG_CHARS_MAX)])
            if tag is not None:
                self._tag(tag["name"].lower(), is_end=bool(tag["end"]), attributes=tag["rest"])
            elif not is_comment and html[begins + 1 : begins + 2] not in ("!", "?"):
                self._add_text("<")
                ends = begins
            place = ends + (3 if is_comment else 1)
        self._add_text(html[place:])

    def _tag(self, name: str, *, is_end: bool, attributes: str) -> None:
        if self._hidden:
            if is_end and name == self._hidden[-1]:
                self._hidden.pop()
            elif not is_end and name == self._hidden[0]:
                self._hidden.append(name)
        elif not is_end and name not in _WITHOUT_END and (name in _HIDDEN or "gmail_quote" in attributes):
            self._hidden.append(name)
        elif name in _ROWS:
            self.pieces.append("\n")

    def _add_text(self, text: str) -> None:
        if text and not self._hidden:
            self.pieces.append(text)
