"""Values that a name calls secret: ``password=``, ``"api_key":``, ``Authorization:``, ``--token X``.

A trigger is a piece of text that the name of every secret contains. It is looked for in the whole text; only where it
stands, the word around it is read as a name, and then what comes behind the name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from hermes_worker.safety.commands import parse_name_set
from hermes_worker.safety.redaction.spans import Span, find_positions
from hermes_worker.safety.redaction.values import is_harmless_value, is_placeholder, looks_random, looks_secret

__all__ = ["find_named_values", "is_secret_name"]

_TRIGGERS = (b"key", b"token", b"secret", b"pass", b"pwd", b"credential", b"auth", b"bearer", b"ssws", b"mnemonic")


_SECRET_WORDS = parse_name_set(
    "password passwords passwd passphrase pwd secret secrets token tokens credential credentials apikey apikeys"
    " authtoken accesskey secretkey privatekey auth authorization bearer mnemonic"
)
_SECRET_ENDINGS = (
    "password",
    "passwd",
    "passphrase",
    "token",
    "secret",
    "apikey",
    "secretkey",
    "accesskey",
    "pass",
    "pwd",
)
"""Words that people put behind another word without a sign between: ``PGPASSWORD``, ``GITHUBTOKEN``, ``SSHPASS``."""
_NOT_SECRET = parse_name_set(
    "bypass compass encompass trespass surpass overpass underpass passes subtoken pretoken detoken multipass onepass"
)
_PHRASES = parse_name_set("passphrase mnemonic")
"""Secrets that are several plain words."""
_KEY_QUALIFIERS = parse_name_set("api access secret private signing encryption auth client session master bot account")
"""Words that make a ``key`` a secret; ``primary_key`` and ``sort_key`` are not."""
_HARMLESS_ENDINGS = parse_name_set(
    "type mode method url uri endpoint host port path file dir name id ids env count counts limit limits max min usage"
    " budget ttl expires expiry expiration in at enabled disabled required length len size provider scheme policy"
    " version chars status hint used left total cost price"
)
"""``token_type``, ``password_file`` and ``secret_name`` talk about a secret without containing it."""
_WORD = re.compile(rb"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")


_DIRECTORIES = frozenset((b"PWD", b"OLDPWD"))
"""Variables in which a shell keeps where it is. The first is a password in the connection strings of ODBC."""
_DIRECTORY = re.compile(rb"[~/].*|[A-Za-z]:[\\/].*", re.DOTALL)


def is_secret_name(name: str) -> bool:
    """Whether a field, variable or header of this name holds a credential: ``dbPassword``, ``X-API-Key``."""
    return name.encode("utf-8", "surrogatepass") not in _DIRECTORIES and _is_secret_name(
        name.encode("utf-8", "surrogatepass")
    )


def _is_secret_name(name: bytes) -> bool:
    words = [word.decode().lower() for word in _WORD.findall(name)]
    if not words or words[-1] in _HARMLESS_ENDINGS:
        return False
    if not _SECRET_WORDS.isdisjoint(words) or _has_secret_ending(words):
        return True
    return any(word in ("key", "keys") and before in _KEY_QUALIFIERS for before, word in pairwise(words))


def _has_secret_ending(words: list[str]) -> bool:
    last = words[-1]
    # ``pass`` alone is what tests do; behind another word it is a password.
    return last.endswith(_SECRET_ENDINGS) and last not in _NOT_SECRET and (last != "pass" or len(words) > 1)


# --- from the name to the value --------------------------------------------------------------------------------------

_NAME_CHARS = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-"
_NAME_BYTES_MAX = 96
_COLOUR = rb"(?:(?:\x1b|\\u001b|\\x1b|\\033)\[[\d;]{0,12}m)?"
_TO_VALUE = re.compile(
    rb"(?P<rest>[A-Za-z0-9_.-]{0,64}+)(?P<quote>\\{0,3}[\"'`])?\]?"
    rb"(?P<gap>[ \t]{0,8})(?P<sign>:=|=>|=(?!=)|:(?!:)|,(?=[ \t]?b?[\"'])|>(?=[^\s<>=]))"
    rb"(?P<lead>[ \t]{0,8}b?(?=[\"'])|[ \t]{0,8}(?:[|>][+-]?[ \t]{0,4}\r?\n[ \t]{1,32})?)" + _COLOUR
)
"""Matches from the trigger to the beginning of the value."""
_TO_ARGUMENT = re.compile(rb"(?P<rest>[A-Za-z0-9_.-]{0,64}+)[ \t]{1,4}(?:is[ \t]{1,4})?(?P<quote>[\"'`]?)(?=[^\s-])")
"""``--password X``, ``password X`` in a .netrc, "the password is X"."""
_TO_NEXT_LINE = re.compile(rb"(?P<rest>[A-Za-z0-9_.-]{0,64}+):[ \t]{0,4}\r?\n[ \t]{0,16}")
_TO_NAMED_VALUE = re.compile(
    rb"(?P<rest>[A-Za-z0-9_.-]{0,64}+)(?P<quote>\\{0,3}[\"']?),?\s{1,40}-?[ ]?\\{0,3}[\"']?"
    rb"value\\{0,3}[\"']?\s?[:=][ \t]{0,4}",
    re.IGNORECASE,
)
"""``"name": "API_TOKEN", "value": "..."`` of Kubernetes and of XML."""
_AFTER_SCHEME = {
    b"bearer": re.compile(rb"bearer[ \t]+([A-Za-z0-9._~+/=-]{16,})", re.IGNORECASE),
    b"ssws": re.compile(rb"\bssws[ \t]+(?=[A-Za-z_-]*\d)([A-Za-z0-9_-]{16,})", re.IGNORECASE),
}
"""The beginning of a header's value that holds a credential, also where its name is not told. The second is Okta's."""
_WORDS_BEFORE = re.compile(rb"(?:api|access|secret|private|recovery|seed)[ _-]$", re.IGNORECASE)


def find_named_values(raw: bytes, low: bytes, *, is_code: bool) -> Iterator[Span]:
    """Yield the values of secret names. ``is_code``: the text may be a program, so a value must itself look like a
    secret.
    """
    for trigger in _TRIGGERS:
        # Values are skipped once looked at: ``token=token=token=...`` must not take quadratic time.
        done = 0
        for at in find_positions(low, trigger):
            if at < done:
                continue
            if value := _find_value_after(raw, at, is_code=is_code):
                done = value.end
                if value.is_secret:
                    yield value.start, value.end
            elif trigger in _AFTER_SCHEME and (token := _AFTER_SCHEME[trigger].match(raw, at)):
                yield token.span(1)


class _NamedValue(NamedTuple):
    start: int
    end: int
    is_secret: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _NamePlace:
    """A name and the signs around it."""

    name: bytes
    start: int
    is_code: bool

    def starts_line(self, raw: bytes) -> bool:
        start = self.start
        return start == 0 or _LINE_START.search(raw, max(0, start - 64), start) is not None

    def is_variable(self, raw: bytes) -> bool:
        """Whether the name is written as the environment's variables are, where a shell or a list of them has one."""
        return _VARIABLE.fullmatch(self.name) is not None and raw[self.start - 1 : self.start] in _BEFORE_VARIABLE


_BEFORE_VARIABLE = frozenset((b"", b" ", b"\t", b"\n", b"\r", b'"', b"'", b"`", b";", b"|", b"+", b"-", b"n"))
"""The last is what is left of a written-out line end."""
_VARIABLE = re.compile(rb"[A-Z][A-Z0-9_]*")
_LINE_START = re.compile(
    rb"(?:^|[\r\n\"'`]|\\n|\n[+-]|\d\|)[ \t]*(?:- [\"']?)?"
    rb"(?:export[ \t]+|set[ \t]+|declare -x[ \t]+|-e[ \t]+|ENV[ \t]+)?$"
)


def _find_value_after(raw: bytes, at: int, *, is_code: bool) -> _NamedValue | None:
    """The value of the name around ``at``; ``None`` when there is no secret's name or it has no value."""
    to_value = _TO_VALUE.match(raw, at)
    if to_value is None:
        return _find_spoken_value(raw, at)
    place = _read_place(raw, at, to_value.end("rest"), is_code=is_code)
    if not _is_secret_name(place.name):
        return _find_spoken_value(raw, at) if to_value["sign"] == b":" else None
    if to_value["sign"] == b"," and (pair := _TO_NAMED_VALUE.match(raw, at)):
        return _find_simple_value(raw, pair.end())
    if to_value["sign"] == b">" and raw[place.start - 1 : place.start] != b"<":
        return None
    if place.name.lower().endswith(b"authorization"):
        return _find_header_value(raw, to_value.end(), is_code=is_code)
    return _find_assigned_value(raw, place, to_value) or _find_spoken_value(raw, at)


def _read_place(raw: bytes, at: int, end: int, *, is_code: bool) -> _NamePlace:
    head = raw[max(0, at - _NAME_BYTES_MAX) : at]
    start = at - (len(head) - len(head.rstrip(_NAME_CHARS)))
    # A line that a diff takes out begins with a sign that names may contain.
    start += len(raw[start:at]) - len(raw[start:at].lstrip(b"-."))
    return _NamePlace(name=raw[start:end], start=start, is_code=is_code)


def _find_spoken_value(raw: bytes, at: int) -> _NamedValue | None:
    """A value that stands beside its name without a sign, or a line below it."""
    head = raw[max(0, at - 24) : at]
    for pattern in (_TO_NEXT_LINE, _TO_NAMED_VALUE, _TO_ARGUMENT):
        found = pattern.match(raw, at)
        if found is None:
            continue
        name = _read_place(raw, at, found.end("rest"), is_code=True).name
        qualified = _WORDS_BEFORE.search(head)
        if _is_secret_name(name) or (qualified and _is_secret_name(qualified[0] + name)):
            return _find_simple_value(raw, found.end())
    return None


_SIMPLE = re.compile(rb"\\{0,3}[\"'`]?([^\s\"'`\\,;&<>(){}\[\]|]{1,4096}+)")


def _find_simple_value(raw: bytes, start: int) -> _NamedValue | None:
    """A single word, which is a secret when it looks like one."""
    value = _SIMPLE.match(raw, start)
    if value is None:
        return None
    is_call = raw[value.end() : value.end() + 1] in (b"(", b"[", b"{")
    word = value[1].rstrip(b".:")
    is_secret = looks_secret(word) and not is_call and not is_harmless_value(word)
    return _NamedValue(value.start(1), value.start(1) + len(word), is_secret)


# --- assignments -----------------------------------------------------------------------------------------------------

_QUOTED = re.compile(
    rb"\\+\"(?P<escaped>[^\"\n]*?)\\+\""
    rb"|\"(?P<double>(?:[^\"\\\n]|\\.)*)\""
    rb"|'(?P<single>(?:[^'\\\n]|\\.)*)'"
    rb"|`(?P<tick>[^`\n]*)`"
    rb"|&quot;(?P<html>[^&\"\n]*)&quot;"
)
_UNQUOTED = re.compile(rb"[\"']?(?P<value>(?:[^\s\"'`,;&<>(){}\[\]|\\]|&(?![\w.%-]+=)|\\(?![nrt\"']))+)")
_REST_OF_WORD = re.compile(rb"[\"']?(?P<value>(?:[^\s&]|&(?![\w.%-]+=))+)")
"""The rest of a value in a line of an env file, which only white space or the next field of a form ends."""
_REST_OF_STRING = re.compile(rb"(?P<value>(?:[^\s&\"'`\\]|&(?![\w.%-]+=)|\\(?![nrt\"']))+)")
"""The rest of such a value inside quotes."""
_PHRASE = re.compile(rb"(?P<value>[a-z]+(?: [a-z]+){2,})")
_ENV_VALUE_BYTES_MIN = 5


def _find_assigned_value(raw: bytes, place: _NamePlace, to_value: re.Match[bytes]) -> _NamedValue | None:
    start = to_value.end()
    starts_line = place.starts_line(raw)
    is_compact = to_value["sign"] == b"=" and to_value.end("gap") + 1 == start
    is_quoted = False
    if quoted := _QUOTED.match(raw, start):
        start, end = quoted.span(quoted.lastgroup or 0)
        is_certain, is_quoted = to_value["sign"] != b",", True
    elif _names_phrase(place.name) and (phrase := _PHRASE.match(raw, start)):
        return _NamedValue(*phrase.span("value"), True)
    elif value := _choose_unquoted_pattern(place, is_env=starts_line and is_compact).match(raw, start):
        start, end = value.span("value")
        is_certain = is_compact or starts_line or to_value["quote"] is not None
    else:
        return None
    if _is_harmless(raw, place.name, start, end):
        return _NamedValue(start, end, False)
    is_certain = is_certain and not place.name.lower().endswith(b"auth")
    value_bytes = raw[start:end]
    if place.is_code:
        is_bare = not is_quoted or to_value["sign"] == b","
        is_env = is_compact and place.is_variable(raw)
        is_secret = _is_secret_in_code(place, value_bytes, is_bare=is_bare, is_env=is_env)
    else:
        is_secret = is_certain or looks_random(value_bytes)
    return _NamedValue(start, end, is_secret)


def _names_phrase(name: bytes) -> bool:
    return not _PHRASES.isdisjoint(word.decode().lower() for word in _WORD.findall(name))


def _choose_unquoted_pattern(place: _NamePlace, *, is_env: bool) -> re.Pattern[bytes]:
    if not is_env:
        return _UNQUOTED
    return _REST_OF_STRING if place.is_code else _REST_OF_WORD


def _is_secret_in_code(place: _NamePlace, value: bytes, *, is_bare: bool, is_env: bool) -> bool:
    if _names_phrase(place.name) and _PHRASE.fullmatch(value):
        return True
    if is_env and not place.name.endswith(b"AUTH"):
        return len(value) >= _ENV_VALUE_BYTES_MIN and not is_placeholder(value)
    return looks_secret(value, is_bare=is_bare)


def _is_harmless(raw: bytes, name: bytes, start: int, end: int) -> bool:
    value = raw[start:end]
    if not value or is_harmless_value(value) or (name in _DIRECTORIES and _DIRECTORY.fullmatch(value)):
        return True
    if raw[end : end + 1] in (b"(", b"[", b"{"):
        # ``token = next(...)`` computes it.
        return True
    # ``max_tokens: 100`` is a setting. A password may well be a number.
    return b"token" in name.lower() and value.replace(b".", b"").replace(b"_", b"").isdigit()


# --- headers ---------------------------------------------------------------------------------------------------------

_OPENING_QUOTE = re.compile(rb"\\*(?P<quote>[\"'`]?)")
_SCHEME_WORD = re.compile(rb"(?:Bearer|Basic|Token|Bot|ApiKey|Negotiate|DPoP|SSWS)[ \t]+", re.IGNORECASE)
_HEADER_WORD = re.compile(rb"[^\s\"'`\\]+")


_PARAMETERS = re.compile(rb"[A-Za-z0-9-]+ .*(?:response|signature)=", re.IGNORECASE)
"""Schemes that hide their secret among parameters, Digest and AWS signatures: everything behind them goes."""


def _find_header_value(raw: bytes, start: int, *, is_code: bool) -> _NamedValue | None:
    quote = b""
    if opening := _OPENING_QUOTE.match(raw, start):
        start, quote = opening.end(), opening["quote"]
    if scheme := _SCHEME_WORD.match(raw, start):
        value = _HEADER_WORD.match(raw, scheme.end())
    else:
        value = re.compile(rb"[^\r\n\\" + quote + rb"]+").match(raw, start)
    if value is None:
        return None
    is_secret = not is_harmless_value(value[0])
    if is_code and not _PARAMETERS.match(value[0]):
        is_secret = is_secret and looks_secret(value[0].rstrip(b",;)"), is_bare=not (scheme or quote))
    return _NamedValue(value.start(), value.end(), is_secret)
