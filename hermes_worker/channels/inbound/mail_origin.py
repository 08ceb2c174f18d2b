"""Who sent a mail, as far as that is proven, and whether a program wrote it. Pure.

Anybody can write any address into ``From``. It counts only where the server that received the mail reports that it
checked it: in ``Authentication-Results`` (RFC 8601) under the name that the operator configured, in the topmost of
these headers, since everything below may be the sender's. That server must remove foreign headers with its name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from email.message import Message
from email.utils import getaddresses

from hermes_worker.channels.inbound.mail_structure import decode_words

HEADER_CHARS_MAX = 4_000
"""Most characters of one header that are looked at."""
_ADDRESS = re.compile(r"[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]{1,64}@[A-Za-z0-9-]{1,63}(?:\.[A-Za-z0-9-]{1,63})*")
_AUTOMATIC = re.compile(
    r"list-(?:id|post|unsubscribe(?:-post)?|owner|help)|x-(?:mail-)?auto-?(?:repl|respon|generat|notif|forward).*"
    r"|x-(?:cron-env|failed-recipients)|feedback-id",
    re.IGNORECASE,
)
"""Headers that only programs and lists write, whatever their values."""
_BULK = frozenset({"bulk", "list", "junk", "auto_reply"})
_NOBODY = re.compile(
    r"(?:.*[._+=-])?(?:mailer[._-]?daemon|no[._-]?(?:return[._-]?)?reply|do[._-]?not[._-]?reply"
    r"|auto[._-]?(?:reply|respon(?:se|der)|confirm|mailer|notify))(?:[._+=-].*|[0-9]*)"
    r"|(?:postmaster|bounces?|notifications?|automated|mailer)(?:[._+=-].*)?",
    re.IGNORECASE,
)
"""Local parts of addresses that no person reads, however their words are joined."""


def find_header(mail: Message, name: str) -> str:
    """Find the first header of this name; empty for none."""
    return next(iter(list_headers(mail, name)), "")


def list_headers(mail: Message, name: str) -> list[str]:
    """List all headers of a name, the topmost first, each as one line."""
    return [" ".join(str(value)[:HEADER_CHARS_MAX].split()) for value in mail.get_all(name) or ()]


def read_sender(mail: Message) -> tuple[str, str]:
    """Read the address of the named sender, in lower case, and the name; both empty unless there is exactly one."""
    written = list_headers(mail, "from")
    addresses = getaddresses(written) if len(written) == 1 else []
    if len(addresses) != 1 or not _ADDRESS.fullmatch(addresses[0][1]):
        return "", ""
    return addresses[0][1].lower(), decode_words(addresses[0][0])


def is_automatic(mail: Message, address: str) -> bool:
    """Whether a program wrote the mail, or it came over a list: an answer could begin a loop (RFC 3834)."""
    submitted = find_header(mail, "auto-submitted").partition(";")[0].strip().lower()
    return (
        submitted not in ("", "no")
        or find_header(mail, "precedence").lower() in _BULK
        or any(_AUTOMATIC.fullmatch(name) for name in mail.keys())  # noqa: SIM118
        or find_header(mail, "return-path").replace(" ", "") == "<>"
        or find_header(mail, "content-type").lower().startswith("multipart/report")
        or _NOBODY.fullmatch(address.partition("@")[0]) is not None
    )


def is_proven(mail: Message, address: str, authserv_id: str) -> bool:
    """Whether the server that received the mail reports that ``address`` is really its sender's: DMARC passed for its
    domain, or, where nothing is reported of DMARC, SPF or DKIM did. Total."""
    domain = address.rpartition("@")[2]
    for header in list_headers(mail, "authentication-results"):
        statements = _split_statements(header)
        if not statements or statements[0].partition(" ")[0].lower() != authserv_id.strip().lower():
            continue
        return bool(domain) and _has_passed(statements[1:], domain)
    return False


def _has_passed(statements: list[str], domain: str) -> bool:
    found: dict[str, list[tuple[str, Mapping[str, str]]]] = {}
    for statement in statements:
        head, *properties = statement.split()
        method, _, result = head.lower().partition("=")
        pairs = [one.partition("=") for one in properties]
        if len({name.lower() for name, _, _ in pairs}) != len(pairs):
            return False  # something is said twice
        found.setdefault(method.partition("/")[0], []).append(
            (result, {name.lower(): value for name, _, value in pairs})
        )
    policy = found.get("dmarc", [])
    if len(policy) > 1:
        return False
    if policy and policy[0][0] != "none":
        result, said = policy[0]
        return result == "pass" and said.get("header.from", "").lower() == domain
    return any(
        result == "pass" and (said.get(name) or "").rpartition("@")[2].lower() == domain
        for method, names in (("spf", ("smtp.mailfrom",)), ("dkim", ("header.d",)))
        for result, said in found.get(method, ())
        for name in names
    )


def _split_statements(header: str) -> list[str]:
    """Split a header into its parts between semicolons, without comments; empty where it is malformed."""
    parts = [""]
    depth, is_quoted, is_escaped = 0, False, False
    for sign in header:
        if is_escaped:
            is_escaped = False
            sign = "_"  # a quoted or commented character has no meaning
        elif sign == "\\" and (is_quoted or depth):
            is_escaped = True
            continue
        elif sign == '"' and not depth:
            is_quoted = not is_quoted
            continue
        elif sign == "(" and not is_quoted:
            depth += 1
            continue
        elif sign == ")" and not is_quoted:
            depth -= 1
            if depth < 0:
                return []
            continue
        elif sign == ";" and not is_quoted and not depth:
            parts.append("")
            continue
        if not depth:
            parts[-1] += "_" if is_quoted and not (sign.isalnum() or sign in "@.+-") else sign
    if depth or is_quoted or is_escaped:
        return []
    return [part.strip() for part in parts if part.strip()]
