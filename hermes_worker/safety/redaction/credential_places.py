"""Find credentials by their place, whatever their name: addresses, signed links, private keys, cookies, commands."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

from hermes_worker.safety.redaction.spans import Span, find_positions
from hermes_worker.safety.redaction.values import is_harmless_value, looks_random, looks_secret

__all__ = ["find_addresses", "find_command_passwords", "find_cookies", "find_phone_numbers", "find_private_keys"]

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


def find_addresses(raw: bytes, *, is_code: bool) -> Iterator[Span]:
    """Yield passwords and tokens before the host, signatures and keys behind the question mark, hooks of chats."""
    done = 0
    for at in find_positions(raw, b"://"):
        start = at + 3
        yield from _find_userinfo(raw, at, start, is_code=is_code)
        if start < done:
            continue
        hook = _HOOK.match(raw, start)
        if hook:
            yield hook.span(1)
        path = _PATH.match(raw, start)
        done = path.end() if path else start
        for field in _find_fields(raw, done):
            done = field.end()
            if field[2] and _grants_access(field[1].lower(), field[2]):
                yield field.span(2)


_EXAMPLE_PASSWORD = re.compile(rb"p|pw|pwd|pass(?:word|wd)?|secret|thing|x+", re.IGNORECASE)
"""Texts that programs and their tests write in the place of a password."""


def _find_userinfo(raw: bytes, at: int, start: int, *, is_code: bool) -> Iterator[Span]:
    scheme = _SCHEME.search(raw[max(0, at - 32) : at])
    userinfo = _USERINFO.match(raw, start)
    is_database = scheme is not None and _DATABASE_SCHEME.fullmatch(scheme[0]) is not None
    if userinfo is None and is_database:
        userinfo = _LOOSE_USERINFO.match(raw, start)
    if userinfo is None:
        return
    user, colon, password = userinfo[1].partition(b":")
    if is_code and _EXAMPLE_PASSWORD.fullmatch(password):
        return
    if colon and password and not is_harmless_value(password):
        yield start + len(user) + 1, userinfo.end(1)
    elif not colon and not is_database and _is_bare_token(user, is_code=is_code):
        yield start, userinfo.end(1)


def _is_bare_token(user: bytes, *, is_code: bool) -> bool:
    if len(user) < _BARE_TOKEN_CHARS_MIN or is_harmless_value(user):
        return False
    return not is_code or looks_random(user)


_HOOK = re.compile(
    rb"(?:hooks\.slack\.com/(?:services|workflows|triggers)|(?:\w+\.)?discord(?:app)?\.com/api/webhooks"
    rb"|[a-z0-9.-]+\.webhook\.office\.com/webhookb2)/([A-Za-z0-9_@/+-]{20,200})"
)
"""Addresses that let any holder write into a chat."""
_PATH = re.compile(rb"[^\s\"'`<>?]{1,1024}+")
_QUERY_BYTES_MAX = 8_192
_FIELD = re.compile(rb"(?:&amp;|&)?([\w.%-]{1,64}+)(?:=([^\s\"'`<>&#\\]{0,4096}+))?")
_SIGNATURES = frozenset(b"sig signature x-amz-signature x-amz-security-token x-goog-signature".split())
"""Fields whose value lets any holder of the address in."""
_SIGNATURE_BYTES_MIN = 8
_KEYS = frozenset(b"key code token".split())
"""Fields that often hold a key, and as often something short and harmless."""
_KEY_BYTES_MIN = 16


def _find_fields(raw: bytes, at: int) -> Iterator[re.Match[bytes]]:
    """The fields behind the question mark at ``at``, if there is one."""
    if raw[at : at + 1] != b"?":
        return
    at += 1
    stop = at + _QUERY_BYTES_MAX
    while at < stop and (field := _FIELD.match(raw, at)):
        yield field
        at = field.end()


def _grants_access(name: bytes, value: bytes) -> bool:
    if is_harmless_value(value):
        return False
    if name in _SIGNATURES:
        return len(value) >= _SIGNATURE_BYTES_MIN
    return name in _KEYS and len(value) >= _KEY_BYTES_MIN and looks_secret(value)


# --- private keys ----------------------------------------------------------------------------------------------------

_KEY_BEGIN = re.compile(rb"-----BEGIN (?:[A-Z0-9]+ ){0,4}PRIVATE KEY(?: BLOCK)?-----")
_KEY_END = re.compile(rb"-----END (?:[A-Z0-9]+ ){0,4}PRIVATE KEY")
_LINE_END = rb"(?:\r?\n|(?:\\{1,3}r)?\\{1,3}n)"
"""A line end, or one that is written out in a string."""
_BEFORE_LINE = rb"[ \t\"'>|+-]{0,16}+"
_CUT_BODY = re.compile(
    rb"[ \t]{0,8}"
    + _LINE_END
    + rb"("
    + _BEFORE_LINE
    + rb"[A-Za-z0-9+/=]{4}[^\r\n\\]{0,256}"
    + rb"(?:"
    + _LINE_END
    + _BEFORE_LINE
    + rb"(?:[A-Za-z0-9+/=]+|[A-Z][A-Za-z-]{2,24}: [^\r\n\\]{1,200})?(?=[\r\n\\]|$))*+)"
)
"""The lines behind the first line of a key whose last line is missing: base64, headers that old keys have."""
_KEY_BYTES_MAX = 16_384


def find_private_keys(raw: bytes) -> Iterator[Span]:
    """Yield the body of each PEM block, and what is left of a block whose first or last line is missing."""
    if b"PRIVATE KEY" not in raw:
        return
    begins = [*find_positions(raw, b"-----BEGIN "), len(raw)]
    done = 0
    for at, following in pairwise(begins):
        begin = _KEY_BEGIN.match(raw, at)
        if begin is None:
            continue
        end = raw.find(b"-----END ", at, following)
        if end >= 0 and end - begin.end() <= _KEY_BYTES_MAX and _KEY_END.match(raw, end):
            done = end
            yield begin.end(), end
        elif body := _CUT_BODY.match(raw, begin.end()):
            done = body.end()
            yield body.span(1)
    for at in find_positions(raw, b"-----END "):
        # Its first line is missing: the lines before it that look like one.
        if _KEY_END.match(raw, at) and (start := _find_lines_before(raw, max(done, at - _KEY_BYTES_MAX), at)) < at:
            yield start, at
        done = max(done, at)


_TAIL_LINE = re.compile(rb"[ \t\"'>|+-]{0,16}+(?:\d{1,6}\|)?[A-Za-z0-9+/=]+[ \t\"']*")


def _find_lines_before(raw: bytes, first: int, at: int) -> int:
    """The position at which the lines of base64 right before ``at`` begin."""
    start = at
    while start > first:
        line = raw.rfind(b"\n", first, start - 1) + 1 or first
        if not _TAIL_LINE.fullmatch(raw[line:start].rstrip(b"\r\n")):
            break
        start = line
    return start


# --- cookies ---------------------------------------------------------------------------------------------------------

_COOKIE = re.compile(rb"(?P<set>set-)?cookie[\"']?[ \t]{0,4}:[ \t]{0,4}[\"']?", re.IGNORECASE)
_PAIR = re.compile(rb"[ \t]{0,4}([^\s=;,\"'\\]{1,128}+)=([^\s;,\"'\\]{0,4096}+);?")
_COOKIES_MAX = 64


def find_cookies(raw: bytes, low: bytes, *, is_code: bool) -> Iterator[Span]:
    """Yield values of cookies in headers; the attributes behind the first one (``Path``, ``Max-Age``) are no values."""
    done = 0
    for at in find_positions(low, b"cookie"):
        if at < done or not (header := _COOKIE.match(raw, at - 4 if low[at - 4 : at] == b"set-" else at)):
            continue
        at = header.end()
        for _ in range(1 if header["set"] else _COOKIES_MAX):
            pair = _PAIR.match(raw, at)
            if pair is None:
                break
            if (looks_secret if is_code else looks_random)(pair[2]) and not is_harmless_value(pair[2]):
                yield pair.span(2)
            at = done = pair.end()


# --- command lines ---------------------------------------------------------------------------------------------------

_QUOTE = rb"\\{0,3}[\"']?"
_ARGUMENT = rb"([^\s\"'\\|;&<>]{1,256}+)"
_COMMANDS = {
    b"sshpass": re.compile(rb"sshpass[ \t]+-p[ \t]{0,4}" + _QUOTE + _ARGUMENT),
    b"mysql": re.compile(rb"mysql[a-z]{0,8}\b[^\n|;&]{0,200}?[ \t]-p" + _QUOTE + rb"(?![ \t-])" + _ARGUMENT),
    b"curl": re.compile(
        rb"curl\b[^\n|;&]{0,400}?[ \t](?:-u|--user|--proxy-user)[ \t=]{0,4}"
        + _QUOTE
        + rb"[^\s:\"'\\|;&<>]{1,128}+:"
        + _ARGUMENT
    ),
    **{
        name: re.compile(
            name
            + rb"(?:[ \t]+-\S{1,64}(?:[ \t]+[^\s-]\S{0,128})?){0,4}[ \t]+(?:(?:registry|auth|acr)[ \t]+)?login\b"
            + rb"(?:\\\r?\n|[^\n|;&]){0,400}?[ \t]-p[ \t=]{0,4}"
            + _QUOTE
            + _ARGUMENT
        )
        for name in b"docker podman nerdctl buildah skopeo helm oras crane az oc".split()
    },
    b"redis-cli": re.compile(rb"redis-cli\b[^\n|;&]{0,200}?[ \t]-a[ \t]{0,4}" + _QUOTE + _ARGUMENT),
}
_PLACEHOLDER = re.compile(rb"\$.*|<.*|[A-Z_]+|pass(?:word)?|pw|token|secret|xxx+", re.DOTALL)


def find_command_passwords(raw: bytes) -> Iterator[Span]:
    """Yield passwords among the arguments of programs that take one without saying so."""
    for name, pattern in _COMMANDS.items():
        done = 0
        for at in find_positions(raw, name):
            if at < done or not (found := pattern.match(raw, at)):
                continue
            done = found.end()
            if not _PLACEHOLDER.fullmatch(found[1]) and not is_harmless_value(found[1]):
                yield found.span(1)


# --- phone numbers ---------------------------------------------------------------------------------------------------

_PHONE_NUMBER = re.compile(rb"(?<![\w+])(?<!= )\+(?![01]+\b)[1-9]\d{9,14}(?!\w|\.\d)")


def find_phone_numbers(raw: bytes) -> Iterator[Span]:
    """Numbers as E.164 writes them."""
    for at in find_positions(raw, b"+"):
        if number := _PHONE_NUMBER.match(raw, at):
            yield number.span()
