"""Masks credentials in text that leaves the process: log lines, error messages, stored failures.

Pure and total: any string in, a string out, the same text when nothing in it looks like a credential, and masking
twice changes nothing more. Three kinds of evidence count: a vendor's key format, a name that says what its value is
(``password=``, ``"api_key":``, ``Authorization:``), and a place that holds credentials (URL userinfo, PEM blocks).

Theory of operation. Running the patterns over every byte would cost 0.2 s per megabyte, and nearly all text is clean.
So each rule has a cheap *trigger* that ``bytes.find`` can look for, and its regular expression runs only where the
trigger was seen: vendor keys at runs of 13 or more token characters, named values at the words a secret's name must
contain, addresses at ``://``. Rules report spans; spans are merged and replaced once, at the end, so rules cannot
corrupt one another's output. The work is done on UTF-8 bytes because their ``lower`` never moves an offset.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

__all__ = ["is_secret_name", "mask", "redact", "redact_code"]

_MASK_KEEPS_CHARS_MIN = 18
"""A shorter secret is hidden whole (reference, around §7.5)."""

_ALREADY_MASKED = re.compile(r"\*{3,}|.{6}\.\.\..{4}", re.DOTALL)


def mask(secret: str) -> str:
    """``***``, or the first six and last four characters of a secret that is long enough to spare them."""
    if len(secret) < _MASK_KEEPS_CHARS_MIN:
        return "***"
    return f"{secret[:6]}...{secret[-4:]}"


def redact(text: str) -> str:
    """``text`` with every credential masked. For logs, error messages and anything else that is only read."""
    return _replace(text, with_names=True)


def redact_code(text: str) -> str:
    """``text`` with credentials masked by their own shape only. For source code and tool output, where
    ``token = next(tokens)`` is a program and not a leak."""
    return _replace(text, with_names=False)


# --- replacing -------------------------------------------------------------------------------------------------------

_PASSES_MAX = 4
"""Two are usual for a text that holds a credential, one for any other."""

Span = tuple[int, int]
"""Start and end of a secret, in bytes."""


def _replace(text: str, *, with_names: bool) -> str:
    """Masked until nothing is left to mask: a mask put into the middle of a value may give away where it ends."""
    for _ in range(_PASSES_MAX):
        masked = _replaced(text, with_names=with_names)
        if masked == text:
            break
        text = masked
    return text


def _replaced(text: str, *, with_names: bool) -> str:
    raw = text.encode("utf-8", "surrogatepass")
    low = raw.lower()
    spans = [*_vendor_keys(raw), *_addresses(raw), *_private_keys(raw), *_phone_numbers(raw)]
    if with_names:
        spans += _named_values(raw, low)
    if not spans:
        return text
    pieces = []
    done = 0
    for start, end in _merged(spans):
        secret = raw[start:end].decode("utf-8", "surrogatepass")
        pieces += [raw[done:start], _masked_once(secret).encode("utf-8", "surrogatepass")]
        done = end
    pieces.append(raw[done:])
    return b"".join(pieces).decode("utf-8", "surrogatepass")


def _masked_once(secret: str) -> str:
    if _ALREADY_MASKED.fullmatch(secret):
        return secret
    return f"{secret[:4]}****{secret[-4:]}" if secret.startswith("+") else mask(secret)


def _merged(spans: list[Span]) -> Iterator[Span]:
    """Overlapping spans become one; touching spans stay two."""
    ordered = sorted(spans)
    start, end = ordered[0]
    for next_start, next_end in ordered[1:]:
        if next_start < end:
            end = max(end, next_end)
        else:
            yield start, end
            start, end = next_start, next_end
    yield start, end


def _positions(haystack: bytes, needle: bytes) -> Iterator[int]:
    at = haystack.find(needle)
    while at >= 0:
        yield at
        at = haystack.find(needle, at + len(needle))


# --- vendor keys -----------------------------------------------------------------------------------------------------

_TOKEN_CHARS = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-"
_IS_TOKEN_CHAR = bytes(1 if c in _TOKEN_CHARS else 0 for c in range(256))
_RUN = b"\x01" * 13
"""The shortest key of the list below, prefix included, has this many token characters in a row."""

_VENDOR_KEYS = (
    # Prefixes that nothing else begins with.
    rb"sk-[A-Za-z0-9_-]{10,}",  # OpenAI, Anthropic, OpenRouter and those who copied them
    rb"gh[pousr]_[A-Za-z0-9]{10,}|github_pat_[A-Za-z0-9_]{10,}",
    rb"gl(?:pat|oas|dt|rtr?|cbt|ptt|ft|imt|agent|soat|ffct|wt)-[A-Za-z0-9_-]{10,}(?:\.[A-Za-z0-9_-]+)*",
    rb"xox[a-z]-[A-Za-z0-9-]{10,}|xapp-\d-[A-Za-z0-9-]{10,}",
    rb"AIza[A-Za-z0-9_-]{30,}",
    rb"(?:AKIA|ASIA)[A-Z0-9]{16}",
    rb"gAAAA[A-Za-z0-9_-]{20,}={0,2}",
    rb"[sr]k_(?:live|test)_[A-Za-z0-9]{10,}",
    rb"(?:hf|r8|npm|gsk|ntn|fpk|shpat|lin_api|whsec)_[A-Za-z0-9]{10,}",
    rb"(?:tvly|pplx|hsk|pypi|nvapi)-[A-Za-z0-9_-]{10,}|dckr_pat_[A-Za-z0-9_-]{10,}",
    rb"do[op]_v1_[a-f0-9]{10,}",
    rb"xai-[A-Za-z0-9]{30,}|fw[_-][A-Za-z0-9]{20,}|fc-[A-Za-z0-9]{10,}",
    rb"AGE-SECRET-KEY-1[A-Za-z0-9]{50,}",
    # A JSON Web Token, or any other base64 of '{"'.
    rb"eyJ[A-Za-z0-9_-]{10,}(?:\.[A-Za-z0-9_=-]{2,}){0,4}",
    # Prefixes that identifiers begin with as well: the rest must hold a digit.
    rb"(?:sk|am|fal|exa|syt|mem0|brv|retaindb|bb_live)_(?=[A-Za-z_-]*\d)[A-Za-z0-9_-]{10,}",
)
_AFTER_ESCAPE = rb"(?:(?<=\\)(?:[nrtbf]|u[0-9A-Fa-f]{4})|(?<=%)[0-9A-Fa-f]{2})?"
"""``\\nsk-...`` inside a JSON string and ``%3Dsk-...`` inside a URL: the first letters belong to the escape."""
_VENDOR_KEY = re.compile(_AFTER_ESCAPE + rb"(" + rb"|".join(_VENDOR_KEYS) + rb")")
_FIRST_TWO = frozenset(
    b"sk gh gi gl xo xa AI AK AS gA rk hf r8 np gs nt fp tv pp hs py dc sh li wh nv do fw fc AG ey am fa ex sy me br re"
    b" bb".split()
)
"""How the keys above begin."""
_BEFORE = frozenset(b"\\%:")
"""A run behind one of these may be an escaped key or a bot's token."""
_BOT_ID = re.compile(rb"(?:bot)?\d{8,12}:$")
_BOT_TOKEN = re.compile(rb"[A-Za-z0-9_-]{30,}")
_DOTTED_KEY = re.compile(rb"(?<![A-Za-z0-9_-])(?:SG|ya29)\.[A-Za-z0-9_-]{10,}[A-Za-z0-9_.-]*")
"""SendGrid and Google OAuth keys: the dot after their prefix hides them from the search for long runs."""


def _vendor_keys(raw: bytes) -> Iterator[Span]:
    runs = raw.translate(_IS_TOKEN_CHAR) + b"\x00"
    at = runs.find(_RUN)
    while at >= 0:
        # Every long word of the text comes by here, so the regular expressions are kept for the suspects.
        if (raw[at : at + 2] in _FIRST_TWO or (at and raw[at - 1] in _BEFORE)) and (span := _key_at(raw, at)):
            yield span
        at = runs.find(_RUN, runs.find(b"\x00", at))
    for prefix in (b"SG.", b"ya29."):
        for at in _positions(raw, prefix):
            if key := _DOTTED_KEY.match(raw, at):
                yield key.span()


def _key_at(raw: bytes, start: int) -> Span | None:
    if key := _VENDOR_KEY.match(raw, start):
        return key.span(1)
    if _BOT_ID.search(raw, max(0, start - 16), start) and (token := _BOT_TOKEN.match(raw, start)):
        # The number names the bot and may stay.
        return token.span()
    return None


# --- addresses -------------------------------------------------------------------------------------------------------

_SCHEME = re.compile(rb"[A-Za-z][A-Za-z0-9+.-]*$")
_DATABASE_SCHEME = re.compile(
    rb"(?:postgres|postgresql|mysql|mariadb|mongodb|redis|rediss|valkey|amqp|amqps|mssql|oracle|clickhouse|nats|ldap"
    rb"|ldaps|smtp|smtps|cockroachdb)(?:\+[a-z0-9_]+)?",
    re.IGNORECASE,
)
_USERINFO = re.compile(rb"([^\s\"'`<>/?#\\]{0,1024})@")
_LOOSE_USERINFO = re.compile(rb"([^\s\"'`<>@]{0,512})@")
"""People forget to escape the slash in a database password."""
_BARE_TOKEN_CHARS_MIN = 8
"""``https://TOKEN@host`` is a credential, ``https://git@host`` is a user name."""


def _addresses(raw: bytes) -> Iterator[Span]:
    for at in _positions(raw, b"://"):
        start = at + 3
        scheme = _SCHEME.search(raw[max(0, at - 32) : at])
        userinfo = _USERINFO.match(raw, start)
        is_database = scheme is not None and _DATABASE_SCHEME.fullmatch(scheme[0]) is not None
        if userinfo is None and is_database:
            userinfo = _LOOSE_USERINFO.match(raw, start)
        if userinfo is None:
            continue
        user, colon, password = userinfo[1].partition(b":")
        if colon and password and not _HARMLESS_VALUE.fullmatch(password):
            yield start + len(user) + 1, userinfo.end(1)
        elif not colon and not is_database and len(user) >= _BARE_TOKEN_CHARS_MIN:
            yield start, userinfo.end(1)


_PRIVATE_KEY = re.compile(
    rb"-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----(.*?)(?:-----END (?:[A-Z0-9]+ )*PRIVATE KEY|\Z)", re.DOTALL
)


def _private_keys(raw: bytes) -> Iterator[Span]:
    done = 0
    for at in _positions(raw, b"-----BEGIN "):
        # A key without its end was cut off by whoever logged it: everything after the begin line is key.
        if at >= done and (block := _PRIVATE_KEY.match(raw, at)):
            done = block.end()
            yield block.span(1)


_PHONE_NUMBER = re.compile(rb"(?<![\w+])\+[1-9]\d{9,14}(?!\w)")


def _phone_numbers(raw: bytes) -> Iterator[Span]:
    for at in _positions(raw, b"+"):
        if number := _PHONE_NUMBER.match(raw, at):
            yield number.span()


# --- named values ----------------------------------------------------------------------------------------------------

_TRIGGERS = (b"key", b"token", b"secret", b"passw", b"pwd", b"credential", b"auth", b"bearer")


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_SECRET_WORDS = _words(
    "password passwords passwd passphrase pwd secret secrets token tokens credential credentials apikey apikeys"
    " authtoken accesskey secretkey privatekey auth authorization bearer"
)
_KEY_QUALIFIERS = _words("api access secret private signing encryption auth client session master bot")
"""What makes a ``key`` a secret; ``primary_key`` and ``sort_key`` are not."""
_HARMLESS_ENDINGS = _words(
    "type mode method url uri endpoint host port path file dir name id ids env count counts limit limits max min usage"
    " budget ttl expires expiry expiration in at enabled disabled required length len size provider scheme policy"
    " version chars status hint used left total cost price"
)
"""``token_type``, ``password_file`` and ``secret_name`` talk about a secret without containing it."""
_WORD = re.compile(rb"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")


def is_secret_name(name: str) -> bool:
    """Whether a field, variable or header of this name holds a credential: ``dbPassword``, ``X-API-Key``."""
    return _is_secret_name(name.encode("utf-8", "surrogatepass"))


def _is_secret_name(name: bytes) -> bool:
    words = [word.decode().lower() for word in _WORD.findall(name)]
    if not words or words[-1] in _HARMLESS_ENDINGS:
        return False
    if not _SECRET_WORDS.isdisjoint(words):
        return True
    return any(word in ("key", "keys") and before in _KEY_QUALIFIERS for before, word in pairwise(words))


_NAME_CHARS = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-"
_NAME_BYTES_MAX = 96
_TO_VALUE = re.compile(
    rb"(?P<rest>[A-Za-z0-9_.-]{0,64}+)(?P<quote>\\{0,3}[\"'`])?\]?"
    rb"(?P<gap>[ \t]{0,8})(?P<sign>:=|=>|=(?!=)|:(?!:)|,(?=[ \t]?b?[\"']))(?P<lead>[ \t]{0,8}b?(?=[\"'])|[ \t]{0,8})"
)
"""From the trigger to where the value begins."""
_AFTER_BEARER = re.compile(rb"bearer[ \t]+([A-Za-z0-9._~+/=-]{16,})", re.IGNORECASE)


def _named_values(raw: bytes, low: bytes) -> Iterator[Span]:
    for trigger in _TRIGGERS:
        # Values are skipped once looked at: ``token=token=token=...`` must not take quadratic time.
        done = 0
        for at in _positions(low, trigger):
            if at < done:
                continue
            if value := _value_after(raw, at):
                done = value.end
                if value.is_secret:
                    yield value.start, value.end
            elif trigger == b"bearer" and (token := _AFTER_BEARER.match(raw, at)):
                yield token.span(1)


class _Value(NamedTuple):
    start: int
    end: int
    is_secret: bool


def _value_after(raw: bytes, at: int) -> _Value | None:
    """The value of the name around ``at``; ``None`` when there is no secret's name or it has no value."""
    to_value = _TO_VALUE.match(raw, at)
    if to_value is None:
        return None
    head = raw[max(0, at - _NAME_BYTES_MAX) : at]
    name_start = at - (len(head) - len(head.rstrip(_NAME_CHARS)))
    name = raw[name_start : to_value.end("rest")]
    if not _is_secret_name(name):
        return None
    if name.lower().endswith(b"authorization"):
        return _header_value(raw, to_value.end())
    return _assigned_value(raw, name, name_start, to_value)


_QUOTED = re.compile(
    rb"\\+\"(?P<escaped>[^\"\n]*?)\\+\""
    rb"|\"(?P<double>(?:[^\"\\\n]|\\.)*)\""
    rb"|'(?P<single>(?:[^'\\\n]|\\.)*)'"
    rb"|`(?P<tick>[^`\n]*)`"
)
_UNQUOTED = re.compile(rb"[\"']?(?P<value>(?:[^\s\"'`,;&<>(){}\[\]|\\]|&(?![\w.%-]+=)|\\(?![nrt\"']))+)")
_REST_OF_WORD = re.compile(rb"[\"']?(?P<value>(?:[^\s&]|&(?![\w.%-]+=))+)")
"""In a line of an env file nothing but white space, or the next field of a form, ends a value."""
_LINE_START = re.compile(rb"(?:^|[\r\n\"'`]|\\n)[ \t]*(?:- )?(?:export[ \t]+|set[ \t]+|declare -x[ \t]+)?$")


def _assigned_value(raw: bytes, name: bytes, name_start: int, to_value: re.Match[bytes]) -> _Value | None:
    start = to_value.end()
    starts_line = name_start == 0 or _LINE_START.search(raw, max(0, name_start - 64), name_start) is not None
    is_compact = to_value["sign"] == b"=" and to_value.end("gap") + 1 == start
    if quoted := _QUOTED.match(raw, start):
        start, end = quoted.span(quoted.lastgroup or 0)
        is_certain = to_value["sign"] != b","
    elif value := (_REST_OF_WORD if starts_line and is_compact else _UNQUOTED).match(raw, start):
        start, end = value.span("value")
        is_certain = is_compact or starts_line or to_value["quote"] is not None
    else:
        return None
    is_certain = is_certain and not name.lower().endswith(b"auth")
    is_secret = not _is_harmless(raw, name, start, end) and (is_certain or _looks_random(raw[start:end]))
    return _Value(start, end, is_secret)


def _looks_random(value: bytes) -> bool:
    """Long, or letters and digits mixed: what a person would not write in a sentence."""
    return len(value) >= 20 or (len(value) >= 8 and any(c in b"0123456789" for c in value) and not value.isdigit())


_HARMLESS_VALUE = re.compile(
    rb"\*+|<[^>]*>|\$\{.*|\$\(.*|\$[A-Z_][A-Z0-9_]*|%[sdr]|%\(\w+\)s|\{[^}]*\}"
    rb"|(?:os\.|System\.)?getenv\(.*|os\.environ.*|process\.env.*|ENV\[.*|env\(.*"
    rb"|none|null|nil|true|false|undefined|str|string|bytes|int|float|bool|any|optional|secretstr"
    rb"|\[?redacted\]?|x{3,}|\.\.\.",
    re.IGNORECASE | re.DOTALL,
)
"""Look-ups, placeholders, templates and type names."""


def _is_harmless(raw: bytes, name: bytes, start: int, end: int) -> bool:
    value = raw[start:end]
    if not value or _HARMLESS_VALUE.fullmatch(value):
        return True
    if raw[end : end + 1] in (b"(", b"[", b"{"):
        # ``token = next(...)`` computes it.
        return True
    # ``max_tokens: 100`` is a setting. A password may well be a number.
    return b"token" in name.lower() and value.replace(b".", b"").replace(b"_", b"").isdigit()


_OPENING_QUOTE = re.compile(rb"\\*(?P<quote>[\"'`]?)")
_SCHEME_WORD = re.compile(rb"(?:Bearer|Basic|Token|Bot|ApiKey|Negotiate|DPoP)[ \t]+", re.IGNORECASE)
_HEADER_WORD = re.compile(rb"[^\s\"'`\\]+")


def _header_value(raw: bytes, start: int) -> _Value | None:
    quote = b""
    if opening := _OPENING_QUOTE.match(raw, start):
        start, quote = opening.end(), opening["quote"]
    if scheme := _SCHEME_WORD.match(raw, start):
        value = _HEADER_WORD.match(raw, scheme.end())
    else:
        # Digest and AWS signatures hide their secret among parameters, so everything goes.
        value = re.compile(rb"[^\r\n\\" + quote + rb"]+").match(raw, start)
    if value is None:
        return None
    return _Value(value.start(), value.end(), not _HARMLESS_VALUE.fullmatch(value[0]))
