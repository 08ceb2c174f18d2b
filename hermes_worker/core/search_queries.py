"""Words of a text for a search index, queries, and which texts match them, independent of the index. Pure.

Theory of operation. An index holds for each message a *set* of words that are made here (``make_words``) and knows
neither languages nor positions. Queries are parsed here as well (``parse_query``). A query gives the words that an
index is asked for (``IndexFilter``), which find every message that can match and perhaps some more, and a test of the
text itself (``count_hits``), which decides. So two databases give the same messages, because neither of them decides
anything.

Texts are compared after NFKC, case folding and without accents. A *unit* is a run of letters and digits, or a run of
characters of Chinese, Japanese and Korean (CJK), which are written without spaces. Units that stand beside each other
with nothing between them, or with one to three of ``-._``, belong together: ``a-b.c_d``. An index gets every run of
letters, every pair of neighbours in such a chain (``a-b``, ``b.c``, ``c_d``), every pair of neighbouring CJK
characters, and the last character of a CJK run, so that a single character is the beginning of some word.

``make_words`` decides what is stored: a change of its results needs a change of ``WORDS_MADE_BY``, and then every index
is rebuilt (``tests/core/test_searching.py`` pins some texts).
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Final, NamedTuple

WORDS_MADE_BY: Final = "search_words_2"
"""The name of the rules by which words are made. The second version leaves accents out."""
QUERY_CHARS_MAX: Final = 2048
"""The original's limit; longer queries are cut."""
TEXT_CHARS_MAX: Final = 100_000
"""Characters of a message that are searched; what stands after them is not found."""
_WORD_CHARS_MAX = 64
_WORDS_BYTES_MAX = 900_000
"""PostgreSQL keeps less than 1 MiB of words in a row (its manual, 12.11, "Limitations")."""
_TERMS_MAX = 32
_HITS_MAX = 1_000
SNIPPET_WORDS: Final = 40
"""The original's number."""
_BEGIN, _END = ">>>", "<<<"

_CJK = (
    "\u1100-\u11ff\u2e80-\u2fdf\u3005-\u3007\u3031-\u3035\u3041-\u3096\u309d-\u309f\u30a1-\u30fa\u30fc-\u30ff"
    "\u3105-\u312f\u3131-\u318e\u31a0-\u31bf\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\ua960-\ua97c\uac00-\ud7fb\uf900-\ufaff"
    "\U00016fe0-\U00016fe3\U0001b000-\U0001b2fb\U00020000-\U0003ffff"
)
_LETTER = rf"[^\W_{_CJK}]"
_JOINT = r"[-._]{1,3}"


_ACCENTS = re.compile("[\u0300-\u036f\u1ab0-\u1aff\u1dc0-\u1dff]+")
"""Marks of Latin, Greek and Cyrillic letters, which people leave out when they look for a word. The marks of other
scripts are letters of their own: vowels of Devanagari, the dots of Kana."""
_CROSSED = str.maketrans("øđłħŧı", "odlhti")
"""Letters with a stroke, and the i without a dot, which Unicode does not take apart."""
_ASCII_UNIT = re.compile(rf"[a-z0-9]+(?:{_JOINT}[a-z0-9]+)*")
"""The units of a folded text of ASCII only, found four times as fast."""


class _Patterns(NamedTuple):
    unit: re.Pattern[str]
    marks: str
    ends: str
    gap: str


@cache
def _build_patterns() -> _Patterns:
    """Build the patterns at the first search: finding all combining marks takes 20 ms."""
    marks = _build_mark_class()
    word = rf"{_LETTER}+(?:[{marks}]+{_LETTER}*)*"
    return _Patterns(
        unit=re.compile(rf"[{_CJK}]+|{word}(?:{_JOINT}{word})*"),
        marks=marks,
        ends=rf"(?!{_LETTER}|[{marks}])",
        gap=rf"(?:(?![{marks}{_CJK}])[\W_])*",
    )


def _build_mark_class() -> str:
    """A character class of marks that belong to the letter in front of them, such as vowel signs of Devanagari."""
    found = (code for code in range(0x300, 0x20000) if unicodedata.category(chr(code)).startswith("M"))
    # Variation selectors and the keycap frame follow symbols, which are not part of words.
    wanted = [code for code in found if code != 0x20E3 and not 0xFE00 <= code <= 0xFE0F]
    # Ranges keep the class ten times shorter, and compiling a pattern takes time per character of it.
    ranges: list[list[int]] = []
    for code in wanted:
        if ranges and ranges[-1][1] == code - 1:
            ranges[-1][1] = code
        else:
            ranges.append([code, code])
    return "".join(f"{chr(first)}-{chr(last)}" for first, last in ranges)


# --- texts -----------------------------------------------------------------------------------------------------------


def extract_text(body: str) -> str:
    """Extract the searchable text of a message from its canonical JSON: its text, and the names and arguments of its
    tool calls. Images and reasoning are left out."""
    row = json.loads(body)
    return "\n".join(_iterate_texts(row)) if isinstance(row, Mapping) else ""


def _iterate_texts(row: Mapping[str, object]) -> Iterator[str]:
    content = row.get("content")
    if isinstance(content, str):
        yield content
    elif isinstance(content, list):
        yield from (part["text"] for part in content if isinstance(part, Mapping) and isinstance(part.get("text"), str))
    calls = row.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        function = call.get("function") if isinstance(call, Mapping) else None
        if isinstance(function, Mapping):
            yield str(function.get("name", ""))
            yield from _iterate_argument_texts(str(function.get("arguments", "")))


def _iterate_argument_texts(text: str) -> Iterator[str]:
    """Yield keys and texts of arguments without the escapes of JSON; the text itself when it is no JSON."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        yield text
        return
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, Mapping):
            for key, inner in reversed(list(each.items())):
                waiting += [inner, key]
        elif isinstance(each, list):
            waiting += reversed(each)
        elif each is not None:
            yield str(each)


def fold_text(text: str) -> str:
    """Normalise ``text`` for comparison: without differences of case, width, composition and accents, and at most
    ``TEXT_CHARS_MAX`` characters."""
    start = text[:TEXT_CHARS_MAX]
    if start.isascii():
        return start.lower()
    apart = unicodedata.normalize("NFKD", unicodedata.normalize("NFKC", start).casefold())
    return unicodedata.normalize("NFKC", _ACCENTS.sub("", apart).translate(_CROSSED))[:TEXT_CHARS_MAX]


def make_words(text: str) -> list[str]:
    """The words of a folded text for an index: each once, in the order of their code points. No word has a character
    with a meaning for a database, and none begins with ``-``, ``.`` or ``_``."""
    found: set[str] = set()
    size = 0
    units = (_ASCII_UNIT if text.isascii() else _build_patterns().unit).findall(text)
    for unit in dict.fromkeys(units):
        for word in _make_unit_words(unit):
            if word not in found:
                size += len(word.encode())
                if size > _WORDS_BYTES_MAX:
                    return sorted(found)
                found.add(word)
    return sorted(found)


def _make_unit_words(unit: str) -> Iterator[str]:
    if unit.isalnum() and unit.isascii():
        yield unit[:_WORD_CHARS_MAX]
        return
    if _is_cjk(unit[0]):
        yield from (unit[place : place + 2] for place in range(len(unit)))
        return
    parts = _JOINTS.split(unit)
    for place in range(0, len(parts), 2):
        word = parts[place][:_WORD_CHARS_MAX]
        yield word
        if place:
            yield parts[place - 2][:_WORD_CHARS_MAX] + parts[place - 1] + word


def _is_cjk(char: str) -> bool:
    return _CJK_CHAR.match(char) is not None


_CJK_CHAR = re.compile(f"[{_CJK}]")
_JOINTS = re.compile(f"({_JOINT})")


# --- queries ---------------------------------------------------------------------------------------------------------


class WantedWord(NamedTuple):
    """A word that an index is asked for."""

    word: str
    is_prefix: bool = False
    """Any word with this beginning matches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """A search term for one place of a text: a word, a chain of words, or a phrase."""

    pattern: str
    """A regular expression for the folded text."""
    words: tuple[WantedWord, ...]
    """Every text with this term has all of them."""
    ascii_pattern: str = ""
    """For a term of ASCII alone: the pattern for texts in which other characters are replaced by a sign of their kind
    (``_replace_by_kind``); empty for other terms. ``pattern`` names all marks of Unicode, and compiling it takes longer
    than searching hundreds of messages."""

    @property
    def is_exact(self) -> bool:
        """Whether every text with ``words`` has this term."""
        return len(self.words) == 1 and not self.words[0].is_prefix and len(self.words[0].word) < _WORD_CHARS_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """Terms that a text must all have, and some that it must not have."""

    all_of: tuple[Term, ...]
    none_of: tuple[Term, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """A text matches when it matches any of the groups."""

    groups: tuple[Alternative, ...]


class IndexFilter(NamedTuple):
    """The words for an index in place of an ``Alternative``: they find all texts that match, and perhaps others."""

    all_of: tuple[WantedWord, ...]
    none_of: tuple[WantedWord, ...]


_ITEM = re.compile(r'"([^"]*)"?(\*)?|([^\s"]+)')
_OPERATORS = frozenset({"AND", "OR", "NOT"})


def parse_query(text: str) -> Query | None:
    """Parse a query; ``None`` when it has nothing to search for.

    All words must be there. ``OR`` separates alternatives and binds less than ``AND``, which may be left out, and
    ``NOT``; all three are in capitals, and are ignored when they have nothing on one side. A phrase stands in quotes, a
    star at the end of a word or a phrase matches every ending. Other characters separate words.
    """
    groups: list[tuple[list[Term], list[Term]]] = [([], [])]
    operator = "AND"
    terms = 0
    for item in _ITEM.finditer(text[:QUERY_CHARS_MAX]):
        word = item[3]
        if word in _OPERATORS:
            operator = word
            continue
        is_prefix = bool(item[2]) if word is None else word.endswith("*")
        term = _build_term(item[1] if word is None else word, is_prefix)
        if term is None or terms == _TERMS_MAX:
            continue
        terms += 1
        if operator == "OR" and groups[-1][0]:
            groups.append(([], []))
        # NOT before the first term of a group is ignored: there are no hits yet to exclude from.
        groups[-1][operator == "NOT" and bool(groups[-1][0])].append(term)
        operator = "AND"
    found = tuple(Alternative(all_of=tuple(wanted), none_of=tuple(unwanted)) for wanted, unwanted in groups if wanted)
    return Query(groups=found) if found else None


def _build_term(text: str, is_prefix: bool) -> Term | None:
    same = fold_text(text)
    patterns = _build_patterns()
    pattern: list[str] = []
    ascii_pattern: list[str] = []
    words: list[WantedWord] = []
    end = None
    units = list(patterns.unit.finditer(same))
    for number, unit in enumerate(units):
        if end is not None and end < unit.start():
            pattern.append(patterns.gap)
            ascii_pattern.append(_ASCII_GAP)
        end = unit.end()
        is_open = is_prefix and number == len(units) - 1
        ascii_pattern += [_match_whole_ascii(unit[0]), "" if is_open else _ASCII_ENDS]
        if _is_cjk(unit[0][0]):
            pattern.append(re.escape(unit[0]))
            words += _list_cjk_words(unit[0])
            continue
        pattern += [_match_whole(unit[0]), "" if is_open else patterns.ends]
        words += _list_chain_words(unit[0], is_open)
    if not units:
        return None
    has_ascii = all(unit[0].isascii() for unit in units)
    return Term(
        pattern="".join(pattern),
        words=tuple(dict.fromkeys(words)),
        ascii_pattern="".join(ascii_pattern) if has_ascii else "",
    )


def _match_whole(unit: str) -> str:
    """A pattern for ``unit`` where no letter stands before it. The unit is matched first, which is fast, and the
    look-behind after it."""
    literal = re.escape(unit)
    return rf"{literal}(?<!{_LETTER}{literal})(?<![{_build_patterns().marks}]{literal})"


_KIND_LETTER, _KIND_CJK, _KIND_OTHER = "\u00e0", "\u6f22", "\u2026"
_ASCII_ENDS = f"(?![a-z0-9{_KIND_LETTER}])"
_ASCII_GAP = f"[^a-z0-9{_KIND_LETTER}{_KIND_CJK}]*"


def _match_whole_ascii(unit: str) -> str:
    literal = re.escape(unit)
    return f"{literal}(?<![a-z0-9{_KIND_LETTER}]{literal})"


def _list_cjk_words(unit: str) -> list[WantedWord]:
    if len(unit) == 1:
        return [WantedWord(unit, True)]
    return [WantedWord(unit[place : place + 2]) for place in range(len(unit) - 1)]


def _list_chain_words(unit: str, is_open: bool) -> list[WantedWord]:
    """List the words to ask for a chain: its pairs, which say more than its parts."""
    words = list(_make_unit_words(unit))
    if len(words) == 1:
        return [WantedWord(words[0], is_open)]
    pairs = words[2::2]
    return [*map(WantedWord, pairs[:-1]), WantedWord(pairs[-1], is_open)]


def build_filters(query: Query) -> tuple[IndexFilter, ...]:
    """Build the filter of each group. An excluded term that an index cannot decide exactly is left out."""
    return tuple(
        IndexFilter(
            tuple(dict.fromkeys(word for term in group.all_of for word in term.words)),
            tuple(dict.fromkeys(term.words[0] for term in group.none_of if term.is_exact)),
        )
        for group in query.groups
    )


def count_hits(query: Query, text: str) -> int:
    """Count how often a folded text has what ``query`` asks, over the groups that it matches; 0 when it matches
    none."""
    return sum(_count_group_hits(group, text) for group in query.groups)


def _count_group_hits(group: Alternative, text: str) -> int:
    counts = [_count_term(term, text) for term in group.all_of]
    if not all(counts) or any(_has_term(term, text) for term in group.none_of):
        return 0
    return sum(counts)


def _has_term(term: Term, text: str) -> bool:
    return next(_iterate_matches(term, text), None) is not None


def _count_term(term: Term, text: str) -> int:
    found = 0
    for _ in _iterate_matches(term, text):
        found += 1
        if found == _HITS_MAX:
            break
    return found


def _iterate_matches(term: Term, text: str) -> Iterator[re.Match[str]]:
    """Yield the places of the term in a folded text."""
    if term.ascii_pattern:
        return re.compile(term.ascii_pattern).finditer(_replace_by_kind(text))  # it remembers the last patterns
    return iter(()) if text.isascii() else re.compile(term.pattern).finditer(text)


@lru_cache(maxsize=4)
def _replace_by_kind(text: str) -> str:
    """Replace every character beyond ASCII by a sign of its kind (letter or mark, CJK, other), keeping the length: a
    term of ASCII needs to distinguish no more."""
    return text if text.isascii() else text.translate(_get_kinds())


class _Kinds(dict[int, str]):
    """The sign of each code point, computed when a text first has it."""

    def __init__(self) -> None:
        super().__init__({code: chr(code) for code in range(128)})
        self._is_letter = re.compile(rf"{_LETTER}|[{_build_patterns().marks}]").match

    def __missing__(self, code: int) -> str:
        char = chr(code)
        kind = _KIND_LETTER if self._is_letter(char) else _KIND_CJK if _is_cjk(char) else _KIND_OTHER
        if len(self) < _KINDS_MAX:
            self[code] = kind
        return kind


@cache
def _get_kinds() -> _Kinds:
    return _Kinds()


_KINDS_MAX = 20_000
"""Code points that a process remembers."""


def build_snippet(query: Query, text: str) -> str:
    """Up to ``SNIPPET_WORDS`` words around the first hit, on one line, with every hit between ``>>>`` and ``<<<``. In
    the text's own letters, or folded where folding moved them."""
    same = fold_text(text)
    shown = text[: len(same)] if len(text[:TEXT_CHARS_MAX]) == len(same) else same
    places = sorted({place for group in query.groups for term in group.all_of for place in _iterate_places(term, same)})
    start = places[0][0] if places else 0
    begin, end = _choose_window(shown, start)
    pieces, at = [], begin
    for first, last in places:
        if first < at or last > end:
            continue
        pieces += [shown[at:first], _BEGIN, shown[first:last], _END]
        at = last
    line = " ".join("".join([*pieces, shown[at:end]]).split())
    return f"{'…' if begin else ''}{line}{'…' if end < len(shown) else ''}"


def _iterate_places(term: Term, text: str) -> Iterator[tuple[int, int]]:
    for number, found in enumerate(_iterate_matches(term, text)):
        if number == _HITS_MAX:
            return
        yield found.span()


_SHOWN_CHARS_MAX = 400
_WORD_END = re.compile(r"\s+")


def _choose_window(text: str, start: int) -> tuple[int, int]:
    """The part of the text for a snippet: a quarter of the words before ``start``, the rest after it."""
    low = max(0, start - _SHOWN_CHARS_MAX // 4)
    before = [found.end() for found in _WORD_END.finditer(text, low, start)]
    if low == 0:
        before.insert(0, 0)
    begin = before[-min(len(before), SNIPPET_WORDS // 4)] if before else start
    high = min(len(text), start + _SHOWN_CHARS_MAX)
    behind = [found.start() for found in _WORD_END.finditer(text, start, high)]
    if len(behind) >= SNIPPET_WORDS * 3 // 4:
        return begin, behind[SNIPPET_WORDS * 3 // 4 - 1]
    return begin, high
