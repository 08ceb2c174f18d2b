"""Find the text a model means, which is often not quite the text it wrote (``patch``).

The strategies go from literal to lenient and the first that finds anything decides. All but the last two find the same
words with other white space, escapes or typography; the last two find a block that only resembles what was asked for,
so they must find exactly one and never replace several.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher, get_close_matches
from itertools import accumulate
from operator import eq
from typing import Final, Literal
from unicodedata import combining, normalize

_TYPOGRAPHY: Final = {
    **dict.fromkeys("\u201c\u201d", '"'),
    **dict.fromkeys("\u2018\u2019", "'"),
    "\u2014": "--",
    "\u2013": "-",
    "\u2212": "-",
    "\u2026": "...",
    **dict.fromkeys("\u00a0\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u205f\u3000", " "),
}


class _PlainForms(dict[int, str]):
    """The plain form of each character that was looked up, for ``str.translate``: decomposed, without typography."""

    def __missing__(self, code: int) -> str:
        form = self[code] = "".join(_TYPOGRAPHY.get(char, char) for char in normalize("NFD", chr(code)))
        return form


_TO_PLAIN: Final = _PlainForms()
_WORD_OR_END: Final = re.compile(r"[^ \t\n]+|\n")
_WRITTEN: Final = re.compile(r"""\\(?P<mark>[nt])|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'""")
"""An escape that is written out, or a text in quotes, in which it is meant literally."""
_ESCAPES: Final = {"\\n": "\n", "\\t": "\t", "\\r": "\r", "\\\\": "\\"}
_Form = Literal["NFC", "NFD"]
_FORMS: Final[Mapping[_Form, _Form]] = {"NFC": "NFD", "NFD": "NFC"}
"""Composed and decomposed letters, each with the other form."""
_ANCHOR_MIDDLE_RATIO_MIN: Final = 0.5
_CONTEXT_EQUAL_SHARE_MIN: Final = 0.5
_CONTEXT_LINE_RATIO_MIN: Final = 0.6
_LOCATIONS_MAX: Final = 5
_SNIPPET_CHARS_MAX: Final = 80
_HINT_LINES: Final = 3
_HINT_FILE_LINES_MAX: Final = 5_000
_HINT_CHARS_MAX: Final = 100
_COMPARED_LINES_MAX: Final = 400
_COMPARED_CHARS_MAX: Final = 400
"""Comparing takes quadratic time; longer blocks and lines must be found by the exact strategies."""
_COMPARED_PAIRS_MAX: Final = 2_000_000
"""Pairs of characters, or of lines, that one search may compare: some seconds. What needs more is not found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplacedText:
    """The text after the replacement."""

    text: str
    count: int
    strategy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EditRefused:
    """Why nothing was replaced, in words that help the next try."""

    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _FoundSpans:
    """The spans of characters at which a strategy found the text, in order and without overlap."""

    spans: Sequence[tuple[int, int]]
    are_whole_lines: bool = False


_Strategy = Callable[[str, str], _FoundSpans]


def replace_text(text: str, old: str, new: str, *, replace_all: bool = False) -> ReplacedText | EditRefused:
    """``text`` with ``old`` replaced by ``new``. ``old`` must be found once, unless ``replace_all``."""
    if not old.strip():
        return EditRefused(message="old_string is empty or only white space; give text that is in the file")
    if old == new:
        return EditRefused(message="old_string and new_string are the same; there is nothing to change")
    return _replace_by_strategies(text, old, new, strategies=_TEXT_STRATEGIES, replace_all=replace_all)


def replace_lines(text: str, old: Sequence[str], new: Sequence[str]) -> ReplacedText | EditRefused:
    """``text`` with the lines ``old``, which must be found once, replaced by the lines ``new``."""
    whole = text if text.endswith("\n") or not text else text + "\n"
    outcome = _replace_by_strategies(
        whole,
        "".join(f"{line}\n" for line in old),
        "".join(f"{line}\n" for line in new),
        strategies=_LINE_STRATEGIES,
        replace_all=False,
    )
    if isinstance(outcome, ReplacedText) and whole != text:
        return ReplacedText(text=outcome.text.removesuffix("\n"), count=1, strategy=outcome.strategy)
    return outcome


def is_already_there(text: str, old: str, new: str) -> bool:
    """Whether the edit was evidently made before: the new text is there word for word, the old one is not. Short texts
    are there by chance too often to say.
    """
    return len(new.strip()) >= 8 and new in text and old not in text


def _replace_by_strategies(
    text: str, old: str, new: str, *, strategies: Sequence[tuple[str, _Strategy]], replace_all: bool
) -> ReplacedText | EditRefused:
    for name, find in strategies:
        found = find(text, old)
        if not found.spans:
            continue
        if len(found.spans) > 1 and (not replace_all or name in _BY_RESEMBLANCE):
            return EditRefused(message=_explain_ambiguity(text, found.spans, name))
        drift = _explain_escape_drift(text, old, new, found.spans) if name != "exact" else None
        if drift:
            return EditRefused(message=drift)
        return ReplacedText(text=_replace_spans(text, old, new, found, name), count=len(found.spans), strategy=name)
    return EditRefused(message=_explain_not_found(text, old))


def _replace_spans(text: str, old: str, new: str, found: _FoundSpans, strategy: str) -> str:
    pieces: list[str] = []
    position = 0
    for start, end in found.spans:
        region = text[start:end]
        meant = _restore_marks(region, old, new)
        pieces += [text[position:start], _fit_to_region(meant, old, region, strategy, found.are_whole_lines)]
        position = end
    pieces.append(text[position:])
    return "".join(pieces)


def _fit_to_region(new: str, old: str, region: str, strategy: str, are_whole_lines: bool) -> str:
    """``new`` in the form of the region it replaces, as far as ``old`` differed from that region in form only."""
    if strategy == "exact":
        return new
    if strategy == "escape_normalized":
        return _unescape(new)
    if strategy == "whitespace_normalized":
        return _strip_common_margins(old, new)
    if strategy == "unicode_normalized":
        new = _copy_typography(region, new)
    return _reindent(new, old, region) if are_whole_lines else new


def _restore_marks(region: str, old: str, new: str) -> str:
    r"""``new`` with the region's tabs and line ends where it only has them written out (``\t``, ``\n``): its arguments
    were escaped twice. An escape in quotes, or one that ``old`` or the region writes out too, is meant literally.
    """
    meant = new
    if "\t" in region and "\t" not in new and "\\t" not in region + old:
        meant = _convert_written("t", meant)
    if "\n" in region.strip("\n") and "\n" not in new.strip("\n") and "\\n" not in region + old:
        lines = _convert_written("n", meant).split("\n")
        ours = {line.strip() for line in region.split("\n")} - {""}
        if len(lines) > 1 and (meant != new or any(line.strip() in ours for line in lines)):
            meant = "\n".join(lines)
    return meant


def _convert_written(mark: str, text: str) -> str:
    """``text`` with a tab (``t``) or a line end (``n``) wherever it is written out outside of quotes."""
    return _WRITTEN.sub(lambda found: _ESCAPES[found[0]] if found["mark"] == mark else found[0], text)


# --- the strategies ---


def _find_exact(text: str, old: str) -> _FoundSpans:
    return _FoundSpans(spans=list(_find_occurrences(text, old)))


def _find_exact_lines(text: str, old: str) -> _FoundSpans:
    return _find_same_lines(text, old, lambda line: line)


def _find_line_trimmed(text: str, old: str) -> _FoundSpans:
    return _find_same_lines(text, old, str.strip)


def _find_whitespace_normalized(text: str, old: str) -> _FoundSpans:
    """Find the same words with other amounts of white space between them; line ends stay line ends."""
    wanted = "\n".join(" ".join(line.split()) for line in old.strip().split("\n"))
    normal = _collapse_spaces(text)
    spans: list[tuple[int, int]] = []
    for start, end in _find_occurrences(normal.text, wanted):
        spans.append((normal.find_original_index(start), normal.find_original_index(end - 1) + 1))
    return _FoundSpans(spans=spans)


def _find_escape_normalized(text: str, old: str) -> _FoundSpans:
    r"""Find the text where ``\n`` and ``\t`` are written out as two characters, which happens when arguments are
    escaped twice.
    """
    plain = _unescape(old)
    return _FoundSpans(spans=list(_find_occurrences(text, plain)) if plain != old else ())


def _find_unicode_normalized(text: str, old: str) -> _FoundSpans:
    """Find the text with typographic quotes, dashes and spaces where the model wrote plain ones, or the other way
    round; and with letters whose accents are characters of their own.
    """
    starts, plain = _list_plain_starts(text), _to_plain(text)
    spans: list[tuple[int, int]] = []
    for start, end in _find_occurrences(plain, _to_plain(old)):
        if end < len(plain) and combining(plain[end]):
            continue  # its last letter has an accent there
        first, last = bisect_left(starts, start), bisect_left(starts, end)
        # Half of a character, like one hyphen of an em dash, is not what was meant.
        if starts[first] == start and starts[last] == end:
            spans.append((first, last))
    return _FoundSpans(spans=spans)


def _find_unicode_lines(text: str, old: str) -> _FoundSpans:
    return _find_same_lines(text, old, lambda line: _to_plain(line).strip())


def _find_block_anchor(text: str, old: str) -> _FoundSpans:
    """Find blocks that begin and end with the lines of ``old`` and resemble it in between."""
    wanted = [line.strip() for line in _split_lines(old)]
    if len(wanted) < 3:
        return _FoundSpans(spans=())
    compared = _LineComparer()
    return _find_resembling(
        text, old, lambda window: _has_same_ends(window, wanted) and _has_similar_middle(window, wanted, compared)
    )


def _find_context_aware(text: str, old: str) -> _FoundSpans:
    """Find a block of as many lines, at least half of them the same and each of the others similar."""
    wanted = [line.strip() for line in _split_lines(old)]
    if len(wanted) < 2:
        return _FoundSpans(spans=())
    compared = _LineComparer()
    return _find_resembling(text, old, lambda window: _has_similar_lines(window, wanted, compared))


_TEXT_STRATEGIES: Final[Sequence[tuple[str, _Strategy]]] = (
    ("exact", _find_exact),
    ("line_trimmed", _find_line_trimmed),
    ("whitespace_normalized", _find_whitespace_normalized),
    ("escape_normalized", _find_escape_normalized),
    ("unicode_normalized", _find_unicode_normalized),
    ("block_anchor", _find_block_anchor),
    ("context_aware", _find_context_aware),
)
"""Two of the original's nine are missing because they can find nothing that ``line_trimmed`` does not find before
them: ``indentation_flexible`` and ``trimmed_boundary``."""
_LINE_STRATEGIES: Final[Sequence[tuple[str, _Strategy]]] = (
    ("exact", _find_exact_lines),
    ("line_trimmed", _find_line_trimmed),
    ("unicode_normalized", _find_unicode_lines),
    ("block_anchor", _find_block_anchor),
    ("context_aware", _find_context_aware),
)
_BY_RESEMBLANCE: Final = frozenset({"block_anchor", "context_aware"})


def _find_occurrences(text: str, wanted: str) -> Iterator[tuple[int, int]]:
    start = text.find(wanted)
    while start >= 0:
        yield start, start + len(wanted)
        start = text.find(wanted, start + len(wanted))


def _find_same_lines(text: str, old: str, form: Callable[[str], str]) -> _FoundSpans:
    """Find windows of ``text`` whose lines equal the lines of ``old``, one by one, after ``form`` was applied to
    both."""
    wanted = [form(line) for line in _split_lines(old)]
    lines = text.split("\n")
    forms = [form(line) for line in lines]
    starts, form_starts = _list_line_starts(lines), _list_line_starts(forms)
    # As one text, in which the standard library searches in linear time whatever the lines are.
    whole, block = "\n".join(["", *forms, ""]), "\n".join(["", *wanted, ""])
    spans: list[tuple[int, int]] = []
    place = whole.find(block)
    while place >= 0:
        index = bisect_left(form_starts, place)
        spans.append(_locate_span(text, starts, lines, index, len(wanted), takes_line_end=old.endswith("\n")))
        place = whole.find(block, place + len(block) - 1)
    return _FoundSpans(spans=spans, are_whole_lines=True)


def _find_resembling(text: str, old: str, accepts: Callable[[Sequence[str]], bool]) -> _FoundSpans:
    """Find runs of as many lines as ``old`` has that ``accepts`` takes; it is given them without white space around."""
    length = len(_split_lines(old))
    lines = text.split("\n")
    stripped = [line.strip() for line in lines]
    starts = _list_line_starts(lines)
    if length > _COMPARED_LINES_MAX:
        return _FoundSpans(spans=())
    try:
        found = [index for index in range(len(lines) - length + 1) if accepts(stripped[index : index + length])]
    except _TooMuchToCompare:
        # Whether there is exactly one such block would stay unknown.
        return _FoundSpans(spans=())
    spans = [_locate_span(text, starts, lines, index, length, takes_line_end=old.endswith("\n")) for index in found]
    return _FoundSpans(spans=spans, are_whole_lines=True)


@dataclass(frozen=True, slots=True)
class _SingleSpaced:
    """A text with one space between the words of a line and none at its ends, and where its pieces came from."""

    text: str
    starts: Sequence[int]
    origins: Sequence[int]

    def find_original_index(self, index: int) -> int:
        """The index in the original of the character at ``index``, which is not one of the spaces between words."""
        piece = bisect_right(self.starts, index) - 1
        return self.origins[piece] + index - self.starts[piece]


def _collapse_spaces(text: str) -> _SingleSpaced:
    pieces: list[str] = []
    starts: list[int] = []
    origins: list[int] = []
    length = 0
    is_in_line = False
    for found in _WORD_OR_END.finditer(text):
        piece = found.group()
        if is_in_line and piece != "\n":
            pieces.append(" ")
            length += 1
        pieces.append(piece)
        starts.append(length)
        origins.append(found.start())
        length += len(piece)
        is_in_line = piece != "\n"
    return _SingleSpaced("".join(pieces), starts, origins)


def _split_lines(old: str) -> list[str]:
    return old.removesuffix("\n").split("\n")


def _list_line_starts(lines: Sequence[str]) -> list[int]:
    return [0, *accumulate(len(line) + 1 for line in lines)]


def _locate_span(
    text: str, starts: Sequence[int], lines: Sequence[str], index: int, length: int, *, takes_line_end: bool
) -> tuple[int, int]:
    end = starts[index + length - 1] + len(lines[index + length - 1])
    return starts[index], min(end + takes_line_end, len(text))


def _has_same_ends(window: Sequence[str], wanted: Sequence[str]) -> bool:
    return window[0] == wanted[0] and window[-1] == wanted[-1]


def _has_similar_middle(window: Sequence[str], wanted: Sequence[str], compared: _LineComparer) -> bool:
    ratios = [compared.compute_ratio(*pair) for pair in zip(window[1:-1], wanted[1:-1], strict=True)]
    return sum(ratios) >= _ANCHOR_MIDDLE_RATIO_MIN * len(ratios)


def _has_similar_lines(window: Sequence[str], wanted: Sequence[str], compared: _LineComparer) -> bool:
    # Counting equal lines first is what keeps this affordable on long files.
    if sum(map(eq, window, wanted)) < _CONTEXT_EQUAL_SHARE_MIN * len(wanted):
        return False
    pairs = zip(window, wanted, strict=True)
    return all(one == other or compared.compute_ratio(one, other) >= _CONTEXT_LINE_RATIO_MIN for one, other in pairs)


class _TooMuchToCompare(Exception):
    """A search reached ``_COMPARED_PAIRS_MAX``."""


class _LineComparer:
    """The similarities of lines, cached for one search."""

    def __init__(self) -> None:
        self._pairs_left = _COMPARED_PAIRS_MAX

    def compute_ratio(self, one: str, other: str) -> float:
        """The similarity, from 0 to 1; lines too long to compare are equal or not at all similar. Raises
        ``_TooMuchToCompare``.
        """
        if one == other:
            return 1.0
        if max(len(one), len(other)) > _COMPARED_CHARS_MAX:
            return 0.0
        self._pairs_left -= len(one) * len(other)
        if self._pairs_left < 0:
            raise _TooMuchToCompare
        return SequenceMatcher(None, one, other, autojunk=False).ratio()


# --- what is written instead ---


def _to_plain(text: str) -> str:
    return text if text.isascii() else text.translate(_TO_PLAIN)


def _unescape(text: str) -> str:
    return re.sub(r"\\[ntr\\]", lambda match: _ESCAPES[match.group()], text)


def _reindent(new: str, old: str, region: str) -> str:
    """``new`` moved as far to the right as the region is from ``old``."""
    written, actual = _find_indentation(old), _find_indentation(region)
    if written == actual:
        return new
    return "\n".join(
        actual + line[len(written) :] if line.strip() and line.startswith(written) else line for line in new.split("\n")
    )


def _find_indentation(text: str) -> str:
    """The white space before the first line that has anything else."""
    for line in text.split("\n"):
        if line.strip():
            return line[: len(line) - len(line.lstrip())]
    return ""


def _strip_common_margins(old: str, new: str) -> str:
    """``new`` without the white space at its ends that ``old`` has there too: it was not part of what was found."""
    before = old[: len(old) - len(old.lstrip())]
    after = old[len(old.rstrip()) :]
    return new.removeprefix(before).removesuffix(after)


def _list_plain_starts(text: str) -> list[int]:
    """The index at which each character of ``text`` begins in its plain form; one more entry for the end."""
    return [0, *accumulate(len(_TO_PLAIN[ord(char)]) for char in text)]


def _copy_typography(region: str, new: str) -> str:
    """``new`` with the region's own characters in every line that is the same, or much the same, in plain
    characters.
    """
    actual, written = region.split("\n"), new.split("\n")
    if len(actual) * len(written) > _COMPARED_PAIRS_MAX:
        return new
    plain = [normalize("NFD", line) for line in written]
    pairs = SequenceMatcher(None, [_to_plain(line) for line in actual], plain, autojunk=False)
    lines: list[str] = []
    for tag, first, last, new_first, new_last in pairs.get_opcodes():
        if tag == "equal":
            lines += actual[first:last]
        elif tag == "replace" and last - first == new_last - new_first:
            lines += map(_copy_line_typography, actual[first:last], written[new_first:new_last])
        else:
            lines += [_copy_accent_form(region, line, line) for line in written[new_first:new_last]]
    return "\n".join(lines)


def _copy_line_typography(actual: str, written: str) -> str:
    if max(len(actual), len(written)) > _COMPARED_CHARS_MAX:
        return _copy_accent_form(actual, written, written)
    plain, starts, wanted = _to_plain(actual), _list_plain_starts(actual), normalize("NFD", written)
    pieces: list[str] = []
    for tag, first, last, new_first, new_last in SequenceMatcher(None, plain, wanted, autojunk=False).get_opcodes():
        if tag != "equal":
            pieces.append(wanted[new_first:new_last])
            continue
        # A character whose plain form is only partly unchanged (half of an em dash) is taken as it was written.
        begin, end = bisect_left(starts, first), bisect_right(starts, last) - 1
        if begin < end:
            pieces += [plain[first : starts[begin]], actual[begin:end], plain[starts[end] : last]]
        else:
            pieces.append(plain[first:last])
    return _copy_accent_form(actual, "".join(pieces), written)


def _copy_accent_form(sample: str, text: str, written: str) -> str:
    """``text`` with its accents composed or decomposed as in ``sample``, or else as in ``written``."""
    forms = [
        form
        for one in (sample, written)
        for form, other in _FORMS.items()
        if not one.isascii() and normalize(form, one) == one != normalize(other, one)
    ]
    return normalize(forms[0], text) if forms and (sample.isascii() or _has_one_form(sample)) else text


def _has_one_form(text: str) -> bool:
    return text in (normalize("NFC", text), normalize("NFD", text))


# --- what is said when nothing is replaced ---


def _explain_escape_drift(text: str, old: str, new: str, spans: Sequence[tuple[int, int]]) -> str | None:
    """Quotes with a backslash in both strings but not in the file: the arguments were escaped once too often."""
    regions = "".join(text[start:end] for start, end in spans)
    for escaped in ("\\'", '\\"'):
        if escaped in old and escaped in new and escaped not in regions:
            return (
                f"old_string and new_string contain {escaped} where the file has only {escaped[1]}; "
                "write the quotes without a backslash"
            )
    return None


def _explain_ambiguity(text: str, spans: Sequence[tuple[int, int]], strategy: str) -> str:
    rows = []
    for start, _ in spans[:_LOCATIONS_MAX]:
        number = text.count("\n", 0, start) + 1
        line = text[text.rfind("\n", 0, start) + 1 :].split("\n", 1)[0].strip()
        rows.append(f"  line {number}: {line[:_SNIPPET_CHARS_MAX]}")
    if len(spans) > _LOCATIONS_MAX:
        rows.append(f"  and {len(spans) - _LOCATIONS_MAX} more")
    advice = "add lines around it until it is unique"
    if strategy not in _BY_RESEMBLANCE:
        advice += ", or set replace_all=true"
    return f"the text to replace was found {len(spans)} times; {advice}:\n" + "\n".join(rows)


def _explain_not_found(text: str, old: str) -> str:
    message = "the text to replace was not found; read the file again and copy it exactly"
    lines = text.split("\n")[:_HINT_FILE_LINES_MAX]
    wanted = next((line.strip() for line in old.split("\n") if line.strip()), "")[:_HINT_CHARS_MAX]
    stripped = [line.strip()[:_HINT_CHARS_MAX] for line in lines]
    closest = get_close_matches(wanted, {line for line in stripped if line}, n=1, cutoff=0.6)
    if not closest:
        return message
    index = stripped.index(closest[0])
    first = max(0, index - _HINT_LINES)
    shown = "\n".join(
        f"{n}|{line[:_COMPARED_CHARS_MAX]}"
        for n, line in enumerate(lines[first : index + _HINT_LINES + 1], start=first + 1)
    )
    return f"{message}. The closest text is at line {index + 1}:\n{shown}"
