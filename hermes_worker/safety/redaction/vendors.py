"""Keys that are known by their own shape: what vendors put in front of them (``ghp_``, ``sk-ant-``).

Most formats come from the published rules of Betterleaks (``vendor_rules.json``; ``rule_import`` made it). The list
below holds what those rules lack or know only beside a word, and shorter forms of the commonest keys, so that a key
that was cut off is still known.

Nearly every key begins with 13 or more characters of a word in a row. Such runs are found with ``bytes.find``, and
a rule is tried once at the beginning of each run, looked up by the run's first three characters: the work grows with
the text, whatever the text is. Where a dot or the like stands before a run, the beginning of the dotted word is looked
up as well (``SG.``, ``dp.pt.``). The few keys that may have a slash or a plus early are searched for by their
beginning.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from types import MappingProxyType

from hermes_worker.safety.redaction.spans import Span, find_positions
from hermes_worker.safety.redaction.values import is_placeholder

__all__ = ["VendorRule", "find_vendor_keys", "holds_vendor_key", "load_vendor_rules"]

_TOKEN_CHARS = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-"
_IS_TOKEN_CHAR = bytes(1 if c in _TOKEN_CHARS else 0 for c in range(256))
_RUN = b"\x01" * 13
"""The shortest key, prefix included, has this many token characters in a row."""
_SEARCHED_FOR = frozenset({b"swmkey-1-", b"bbdc-", b"apk_"})
"""Random base64 from the first characters on. Other keys of base64 begin with what their vendor always writes there."""
_KEY_BYTES_MAX = 4_096
"""A pattern looks no further than this; the rest of a longer key's word is taken along."""

_OUR_PATTERNS = (
    # Prefixes that nothing else begins with.
    rb"sk-[A-Za-z0-9_-]{10,}",  # OpenAI, Anthropic, OpenRouter and those who copied them
    rb"gh[pousr]_[A-Za-z0-9]{10,}|github_pat_[A-Za-z0-9_]{10,}",
    rb"gl(?:pat|oas|dt|rtr?|cbt|ptt|ft|imt|agent|soat|ffct|wt)-[A-Za-z0-9_-]{10,}(?:\.[A-Za-z0-9_-]+)*",
    rb"xox[a-z]-[A-Za-z0-9-]{10,}|xapp-\d-[A-Za-z0-9-]{10,}",
    rb"AIza[A-Za-z0-9_-]{30,}",
    rb"(?:AKIA|ASIA)[A-Z0-9]{16}",
    rb"gAAAA[A-Za-z0-9_-]{20,}={0,2}",
    rb"[sr]k_(?:live|test)_[A-Za-z0-9]{10,}",
    rb"(?:hf|r8|npm|gsk|ntn|fpk|shpat|lin_api|whsec|jina|sb_secret)_[A-Za-z0-9]{10,}",
    rb"(?:tvly|pplx|hsk|pypi|nvapi)-[A-Za-z0-9_-]{10,}|dckr_pat_[A-Za-z0-9_-]{10,}",
    rb"do[op]_v1_[a-f0-9]{10,}",
    rb"xai-[A-Za-z0-9]{30,}|fw[_-][A-Za-z0-9]{20,}|fc-[A-Za-z0-9]{10,}",
    rb"hwk_[A-Za-z0-9_-]{10,}",  # the key of our own API
    rb"AGE-SECRET-KEY-1[A-Za-z0-9]{50,}",
    rb"GOCSPX-[A-Za-z0-9_-]{20,}",
    rb"sq0(?:atp|csp|idp)-[A-Za-z0-9_-]{20,}",
    rb"tskey-[a-z]+-[A-Za-z0-9_-]{16,}",
    rb"pscale_(?:tkn|pw|oauth)_[A-Za-z0-9_.=-]{20,}",
    rb"rnd_[A-Za-z0-9]{20,}|figd_[A-Za-z0-9_-]{20,}|pul-[a-f0-9]{20,}|lsv2_[a-z]{2}_[a-f0-9]{16,}[a-f0-9_]*",
    rb"ops_eyJ[A-Za-z0-9_-]{20,}|vc[a-z]_[A-Za-z0-9_-]{40,}|HRKU-[A-Za-z0-9_-]{20,}",
    rb"SK[0-9a-f]{32}(?![0-9A-Za-z_-])",  # Twilio
    rb"dapi[a-f0-9]{32}(?:-\d)?(?![0-9A-Za-z_-])",
    rb"cio[A-Za-z0-9]{32}(?![0-9A-Za-z_-])",
    # A bot of Discord: its number in base64, a time, a signature.
    rb"[MNO][A-Za-z0-9_-]{23,28}\.[A-Za-z0-9_-]{6}\.[A-Za-z0-9_-]{27,45}(?![0-9A-Za-z_-])",
    # HashiCorp's cloud.
    rb"[A-Za-z0-9]{14}\.atlasv1\.[A-Za-z0-9_=-]{40,}",
    # A JSON Web Token.
    rb"eyJ[A-Za-z0-9_-]{10,}(?:\.[A-Za-z0-9_=-]{2,}){1,4}",
    rb"pcsk_[A-Za-z0-9_]{20,}|e2b_[a-f0-9]{20,}",  # Pinecone, E2B
    # Prefixes of words as well: the rest must look like no word.
    rb"re_(?=[A-Za-z_]*\d)[A-Za-z0-9]{6,12}_[A-Za-z0-9]{16,}",  # Resend
    rb"a[ks]-(?=[A-Za-z]*\d|[A-Z]*[a-z]+[A-Z]{2})[A-Za-z0-9]{22}(?![0-9A-Za-z_-])",  # Modal
    rb"md-(?=[A-Za-z_-]*\d)(?=[a-z0-9_-]*[A-Z])[A-Za-z0-9_-]{22}(?![0-9A-Za-z_-])",  # Mandrill of Mailchimp
    rb"[uo]?ak_(?=[A-Za-z_-]*\d)[A-Za-z0-9_-]{16,}",  # Composio
    # Prefixes that identifiers begin with as well: the rest must hold a digit.
    rb"(?:sk|am|fal|exa|syt|mem0|brv|retaindb|bb_live)_(?=[A-Za-z_-]*\d)[A-Za-z0-9_-]{10,}",
)
_OUR_PATTERN = re.compile(rb"|".join(_OUR_PATTERNS))
_OURS_BEGIN_WITH = frozenset(
    b"sk- ghp gho ghu ghs ghr git gl xox xap aiz aki asi gaa sk_ rk_ hf_ r8_ npm gsk ntn fpk shp lin whs jin sb_ tvl"
    b" ppl hsk pyp nva dck doo dop xai fw_ fw- fc- age goc sq0 tsk psc rnd fig pul lsv ops vc hrk dap cio eyj am_ fal"
    b" exa syt mem brv ret bb_ hwk pcs e2b re_ ak- as- md- ak_ uak oak".split()
)
"""The beginnings of these keys, in lower case: their first two or three characters. Keys with another beginning are
looked for below.
"""
_SIGNED = (
    # Of Mailchimp: 32 digits, and where the account is.
    (b"-us", 32, re.compile(rb"[0-9a-f]{32}-us[0-9]{1,2}(?![0-9A-Za-z_-])")),
    # Of Azure DevOps, and of other services of Azure: what says whose it is stands at the end, or behind 52 characters.
    (b"azdo", 76, re.compile(rb"[A-Za-z0-9]{76}AZDO[A-Za-z0-9]{4}(?![0-9A-Za-z])")),
    (b"jqqj9", 52, re.compile(rb"[A-Za-z0-9]{52}JQQJ9[A-Za-z0-9]{27}(?![0-9A-Za-z])")),
)
"""Keys that are known by what stands in their middle, and how much of them stands before it."""
_DEVOPS_CHARS = 52
_DEVOPS = re.compile(rb"(?=[a-z]*[2-7])[a-z2-7]{52}")
_DEVOPS_WORD = re.compile(rb"azure|devops|vsts|visualstudio|(?<![a-z])pat(?![a-z])")
"""An older token of Azure DevOps is base32 without any sign, as a hash may be: a word before it must say what it is."""
_DEVOPS_LOOKS_BACK = 96
_MAY_BE_DOTTED = re.compile(rb"[A-Za-z0-9]{14}\.atlasv1\.|[MNO][A-Za-z0-9_-]{23,28}\.[A-Za-z0-9_-]{6}\.|SK[0-9a-f]{32}")
_DOLLAR, _COLON = b"$"[0], b":"[0]
_BEFORE_SPECIAL = frozenset(b".:~$\\%[;")
_DOTTED_NOT_PUBLISHED = (b"ya29.", b"sg.")
_BEFORE_DOT = re.compile(rb"(?:[A-Za-z0-9_-]{1,12}[.:~+]){1,3}$|\$$")
_BEFORE_LAST_WORD = re.compile(rb"[A-Za-z0-9_-]*$")
_DOTTED_BYTES_MAX = 16
_DOTTED_KEY = re.compile(rb"(?<![A-Za-z0-9_-])(?:SG|ya29)\.[A-Za-z0-9_-]{10,}[A-Za-z0-9_.-]*")
"""SendGrid and Google OAuth keys: the dot after their prefix hides them from the search for long runs."""
_ESCAPED = re.compile(rb"(?:(?<=\\)(?:[nrtbf]|u[0-9A-Fa-f]{4})|(?<=%)[0-9A-Fa-f]{2}|(?<=[\[;])\d{1,3}m)")
"""``\\nsk-...`` inside a JSON string, ``%3Dsk-...`` inside a URL and a colour's ``[32msk-...``: the first letters
belong to the escape."""
_BOT_ID = re.compile(rb"(?:bot)?\d{8,12}:$")
_BOT_TOKEN = re.compile(rb"[A-Za-z0-9_-]{30,}")
_LINE_ENDS = frozenset((rb"\n", rb"\r", rb"\t"))
"""Line ends, written out."""
_WORDS_ONLY = re.compile(rb"[a-z]{1,24}(?:[_-][a-z]{0,24})*|[A-Z]{1,24}(?:[_-][A-Z]{0,24})*")
"""Matches an identifier of a program, whatever it begins with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VendorRule:
    """One published format of keys."""

    id: str
    pattern: str
    """The pattern of the key alone, for ``re`` on bytes."""
    prefixes: tuple[bytes, ...]
    """Its first three characters in lower case, all that are possible."""
    literals: tuple[bytes, ...]
    """The beginning of the key when that is no long word; in lower case."""
    is_bounded: bool
    """Whether the key ends where its pattern does: further characters belong to something else."""
    entropy_min: float
    """Least entropy, in bits per character."""

    @property
    def is_searched_for(self) -> bool:
        """Whether its beginning is looked for in the whole text, because neither words nor dotted words lead to it."""
        return not _SEARCHED_FOR.isdisjoint(self.literals)

    def find_key_end(self, raw: bytes, at: int) -> int | None:
        """The end of the key that begins at ``at``; ``None`` when none does."""
        found = _compile_pattern(self.pattern).match(raw, at, at + _KEY_BYTES_MAX)
        if found is None:
            return None
        end = found.end()
        goes_on = end < len(raw) and _IS_TOKEN_CHAR[raw[end]]
        if (
            (self.is_bounded and goes_on)
            or _WORDS_ONLY.fullmatch(found[0])
            or _compute_entropy(found[0]) < self.entropy_min
        ):
            return None
        return end


@cache
def _compile_pattern(pattern: str) -> re.Pattern[bytes]:
    return re.compile(pattern.encode())


@cache
def load_vendor_rules() -> tuple[VendorRule, ...]:
    """The published rules that are used here."""
    document = json.loads(files("hermes_worker.safety.redaction").joinpath("vendor_rules.json").read_bytes())
    return tuple(
        VendorRule(
            id=rule["id"],
            pattern=rule["pattern"],
            prefixes=tuple(prefix.encode() for prefix in rule["prefixes"]),
            literals=tuple(literal.encode() for literal in rule["literals"]),
            is_bounded=rule["is_bounded"],
            entropy_min=rule["entropy_min"],
        )
        for rule in document["rules"]
    )


@cache
def _index_by_prefix() -> Mapping[bytes, Sequence[VendorRule]]:
    found: dict[bytes, list[VendorRule]] = {}
    for rule in load_vendor_rules():
        for prefix in () if rule.is_searched_for else rule.prefixes:
            found.setdefault(prefix, []).append(rule)
    return MappingProxyType(found)


@cache
def _list_suspect_beginnings() -> frozenset[bytes]:
    """The beginnings of words that may be keys."""
    whole = {begin for begin in _OURS_BEGIN_WITH if len(begin) == 3}
    more = {begin + bytes([char]) for begin in _OURS_BEGIN_WITH - whole for char in _TOKEN_CHARS.lower()}
    return frozenset({*_index_by_prefix(), *whole, *more})


@cache
def _list_dotted_beginnings() -> frozenset[bytes]:
    """The three characters before the long word of a dotted key."""
    literals = [literal for rule in load_vendor_rules() for literal in rule.literals if not rule.is_searched_for]
    ends = (_BEFORE_LAST_WORD.sub(b"", literal)[-3:] for literal in (*literals, *_DOTTED_NOT_PUBLISHED))
    return frozenset(end for end in ends if len(end) == 3)


@cache
def _index_by_literal() -> Mapping[bytes, Sequence[VendorRule]]:
    found: dict[bytes, list[VendorRule]] = {}
    for rule in load_vendor_rules():
        if rule.is_searched_for:
            found.setdefault(rule.literals[0], []).append(rule)
    return MappingProxyType(found)


def find_vendor_keys(raw: bytes, low: bytes) -> Iterator[Span]:
    """Yield the spans of keys in ``raw``; ``low`` is the same in lower case."""
    yield from _find_at_runs(raw, low)
    for sign, before, pattern in _SIGNED:
        for at in find_positions(low, sign):
            start = at - before
            if start >= 0 and not (
                start and _IS_TOKEN_CHAR[raw[start - 1]] and raw[start - 2 : start] not in _LINE_ENDS
            ):
                yield from (key.span() for key in (pattern.match(raw, start),) if key)
    for literal, rules in _index_by_literal().items():
        for at in find_positions(low, literal):
            if at and _IS_TOKEN_CHAR[raw[at - 1]] and raw[at - 2 : at] not in _LINE_ENDS:
                continue
            end = max((rule.find_key_end(raw, at) or 0 for rule in rules), default=0)
            if end:
                yield at, end


def holds_vendor_key(text: str) -> bool:
    """Whether ``text`` holds a key of a vendor that is none of the examples in documentation."""
    raw = text.encode("utf-8", "surrogatepass")
    return any(not is_placeholder(raw[start:end]) for start, end in find_vendor_keys(raw, raw.lower()))


def _find_at_runs(raw: bytes, low: bytes) -> Iterator[Span]:
    """Yield the keys at long words. Every long word of the text comes by here, so little is asked before a word is a
    suspect.
    """
    suspects, dotted = _list_suspect_beginnings(), _list_dotted_beginnings()
    runs = raw.translate(_IS_TOKEN_CHAR) + b"\x00"
    at = runs.find(_RUN)
    while at >= 0:
        end = runs.find(b"\x00", at)
        before = raw[at - 1] if at else 0
        if end - at == _DEVOPS_CHARS and _is_devops_key(raw, low, at, end):
            yield at, end
        elif before in _BEFORE_SPECIAL:
            yield from _find_special_keys(raw, low, at, end, is_dotted=low[at - 3 : at] in dotted or before == _DOLLAR)
        elif low[at : at + 3] in suspects or raw[end : end + 1] == b"." or raw[at : at + 2] == b"SK":
            yield from _find_key_at(raw, low, at, end)
        at = runs.find(_RUN, end)


def _is_devops_key(raw: bytes, low: bytes, at: int, end: int) -> bool:
    is_spelt_so = _DEVOPS.fullmatch(raw, at, end) is not None
    return is_spelt_so and _DEVOPS_WORD.search(low, max(0, at - _DEVOPS_LOOKS_BACK), at) is not None


def _find_special_keys(raw: bytes, low: bytes, at: int, end: int, *, is_dotted: bool) -> Iterator[Span]:
    """Keys of a run behind a sign that may belong to it, or that makes its first letters an escape's."""
    if is_dotted:
        yield from _find_dotted_key(raw, low, at)
    if raw[at - 1] == _COLON and _BOT_ID.search(raw, max(0, at - 16), at) and (token := _BOT_TOKEN.match(raw, at)):
        # The number names the bot and may stay.
        yield token.span()
    elif escaped := _ESCAPED.match(raw, at):
        yield from _find_key_at(raw, low, escaped.end(), end)
    else:
        yield from _find_key_at(raw, low, at, end)


def _find_key_at(raw: bytes, low: bytes, at: int, run_end: int) -> Iterator[Span]:
    """The key that begins with the run at ``at``, if one does."""
    first = low[at : at + 3]
    end = 0
    for rule in _index_by_prefix().get(first, ()):
        end = max(end, rule.find_key_end(raw, at) or 0)
    if first in _OURS_BEGIN_WITH or first[:2] in _OURS_BEGIN_WITH or _MAY_BE_DOTTED.match(raw, at):
        key = _OUR_PATTERN.match(raw, at, at + _KEY_BYTES_MAX)
        end = max(end, key.end() if key else 0)
    if end:
        # A key that is longer than its pattern knows is hidden to the end of its word.
        yield at, max(end, run_end)


def _find_dotted_key(raw: bytes, low: bytes, at: int) -> Iterator[Span]:
    """The key that begins a little before the run at ``at``, with a dot or the like between."""
    word = _BEFORE_DOT.search(raw, max(0, at - _DOTTED_BYTES_MAX), at)
    if word is None:
        return
    start = word.start()
    if raw[start - 1 : start + 1] in _LINE_ENDS:
        start += 1
    end = max(
        (rule.find_key_end(raw, start) or 0 for rule in _index_by_prefix().get(low[start : start + 3], ())), default=0
    )
    if key := _DOTTED_KEY.match(raw, start):
        end = max(end, key.end())
    if end:
        yield start, end


def _compute_entropy(text: bytes) -> float:
    """Shannon's entropy, in bits per character."""
    counts = Counter(text).values()
    return -sum(count / len(text) * math.log2(count / len(text)) for count in counts)
