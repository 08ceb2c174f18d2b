"""Draw what a terminal showed as an SVG, whose lines appear one after the other."""

from __future__ import annotations

import re
from html import escape

_SGR = re.compile(r"\x1b\[([\d;]*)m")
_OTHER = re.compile(r"\x1b(?:\][^\x07\x1b]*(?:\x07|\x1b\\)|\[[\d;?]*[A-Za-ln-z]|[()].)")
_COLUMN, _LINE, _MARGIN, _PACE_S = 8.4, 19, 16, 0.25
_COLOURS = ("#768390", "#f47067", "#57ab5a", "#c69026", "#539bf5", "#b083f0", "#39c5cf", "#cdd9e5")
_STYLES = {"1": "font-weight:bold", "2": "opacity:.6", "3": "font-style:italic", "4": "text-decoration:underline"}
_SHEET = (
    "text{font:14px ui-monospace,Menlo,Consolas,monospace;fill:#adbac7;white-space:pre}"
    "@media(prefers-reduced-motion:no-preference){text{animation:a .01s backwards}}@keyframes a{from{opacity:0}}"
)


def _change_style(codes: list[str], before: dict[str, str]) -> dict[str, str]:
    """The style behind an escape of ``codes``, by what it is about: ``colour``, or a code that is on."""
    style = dict(before)
    while codes:
        code = codes.pop(0)
        if code in ("", "0"):
            style = {}
        elif code == "38" and codes[:1] == ["5"] and len(codes) > 1:
            style["colour"] = f"fill:{_COLOURS[int(codes[1]) % 8]}"
            del codes[:2]
        elif code == "39":
            style.pop("colour", None)
        elif re.fullmatch("[39][0-7]", code):
            style["colour"] = f"fill:{_COLOURS[int(code[1])]}"
        elif code in _STYLES:
            style[code] = _STYLES[code]
        elif code in ("22", "23", "24"):
            for each in {"22": "12", "23": "3", "24": "4"}[code]:
                style.pop(each, None)
    return style


def render_cast(captured: str, *, columns: int) -> str:
    """The SVG of ``captured``, the text of a terminal with its escapes for colours. Each line appears a quarter of a
    second after the one above it; where nothing is to move, and where styles are not understood, all are there."""
    lines = _OTHER.sub("", captured).rstrip().split("\n")
    width, height = round(columns * _COLUMN + 2 * _MARGIN), len(lines) * _LINE + 2 * _MARGIN
    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">',
        f'<style>{_SHEET}</style><rect width="100%" height="100%" rx="8" fill="#22272e"/>',
    ]
    style: dict[str, str] = {}
    for number, line in enumerate(lines):
        spans = []
        for index, piece in enumerate(_SGR.split(line.rstrip())):
            if index % 2:
                style = _change_style(piece.split(";"), style)
            elif piece and style:
                spans.append(f'<tspan style="{";".join(style.values())}">{escape(piece, quote=False)}</tspan>')
            else:
                spans.append(escape(piece, quote=False))
        place = f'x="{_MARGIN}" y="{_MARGIN + number * _LINE + 14}" style="animation-delay:{number * _PACE_S:g}s"'
        if any(spans):
            drawn.append(f'<text {place} xml:space="preserve">{"".join(spans)}</text>')
    return "\n".join([*drawn, "</svg>", ""])


def read_cast(svg: str) -> list[str]:
    """The lines of a cast as text."""
    return [re.sub(r"<[^>]+>", "", line) for line in svg.split("\n") if line.startswith("<text")]
