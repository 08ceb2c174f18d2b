"""Masks credentials in text: on its way to the log, to a person, and, as a tool's result, to rows and models.

Pure and total: any string in, a string out, the same text when nothing in it looks like a credential, and masking
twice changes nothing more. Three kinds of evidence count: a vendor's key format (``vendors``), a name that says what
its value is (``names``), and a place that holds credentials (``places``).

Theory of operation. Running the patterns over every byte would cost seconds per megabyte, and nearly all text is clean.
So each rule has a cheap *trigger* that ``bytes.find`` can look for, and its regular expression runs only where the
trigger was seen: vendor keys at runs of 13 or more token characters, named values at the words a secret's name must
contain, addresses at ``://``. Rules report spans; spans are merged and replaced once, at the end, so rules cannot
corrupt one another's output. The work is done on UTF-8 bytes because their ``lower`` never moves an offset.

There are two readings. ``redact`` believes every name: for log lines, messages and configuration. ``redact_code`` is
for what may be a program, where ``token = next(tokens)`` is no leak: a name counts only when its value looks like a
secret.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from hermes_worker.safety.redaction.credential_places import (
    find_addresses,
    find_command_passwords,
    find_cookies,
    find_phone_numbers,
    find_private_keys,
)
from hermes_worker.safety.redaction.names import find_named_values, is_secret_name
from hermes_worker.safety.redaction.spans import merge_spans
from hermes_worker.safety.redaction.vendors import find_vendor_keys

__all__ = [
    "KNOWN_CHARS_MIN",
    "holds_marker",
    "is_secret_name",
    "mark_secret",
    "mask_known",
    "mask_secret",
    "redact",
    "redact_code",
]

_MASK_KEEPS_CHARS_MIN = 18
"""A shorter secret is hidden whole."""
KNOWN_CHARS_MIN = 8
"""A secret known by its value is masked wherever its characters stand. One that is shorter is not: a key of one letter
would be found in every word."""
_ALREADY_MASKED = re.compile(r"\*{3,}|.{6}\.\.\..{4}|.?«redacted[^»\n]*».?", re.DOTALL)
_PROGRAM = re.compile(r"\$\(|`")
_COMMAND = re.compile(r"\$\(|`|[;|&][A-Za-z./~$]")
"""The signs by which a shell begins another command in the middle of a value; the second where its arguments follow."""
_MARKER = re.compile("«redacted(?::[^»\n]{1,16})?»")

Mask = Callable[[str], str]


def mask_secret(secret: str) -> str:
    """``***``, or the first six and last four characters of a secret that is long enough to spare them."""
    if len(secret) < _MASK_KEEPS_CHARS_MIN:
        return "***"
    return f"{secret[:6]}...{secret[-4:]}"


def mark_secret(secret: str) -> str:
    """The marker of a secret in a text that may be written back: no reader takes it for a value, and ``holds_marker``
    recognises it. Lines stay lines.
    """
    if "\n" in secret:
        return "\n".join(mark_secret(line) if line.strip() else line for line in secret.split("\n"))
    ending = "\r" if secret.endswith("\r") else ""
    beginning = secret[:4] if len(secret) >= _MASK_KEEPS_CHARS_MIN and secret[:4].isascii() else ""
    beginning = re.sub(r"[^A-Za-z0-9_-]", "", beginning)
    return (f"«redacted:{beginning}…»" if beginning else "«redacted»") + ending


def holds_marker(text: str) -> bool:
    """Whether ``text`` contains what ``mark_secret`` writes."""
    return _MARKER.search(text) is not None


def redact(text: str, *, masked_as: Mask = mask_secret) -> str:
    """``text`` with every credential masked. For text that is only read: logs, error messages, configuration."""
    return _replace_all(text, masked_as, is_code=False)


def redact_code(text: str, *, masked_as: Mask = mask_secret) -> str:
    """``text`` with every credential masked that looks like one. For source code and for the output of commands, where
    ``token = next(tokens)`` is a program and not a leak.
    """
    return _replace_all(text, masked_as, is_code=True)


def mask_known(text: str, secrets: Iterable[str], masked_as: Mask = mask_secret) -> str:
    """``text`` without the values in ``secrets``, wherever they stand. Short ones are left (``KNOWN_CHARS_MIN``)."""
    for secret in secrets:
        if len(secret) >= KNOWN_CHARS_MIN and secret in text:
            text = text.replace(secret, masked_as(secret))
    return text


# --- replacing -------------------------------------------------------------------------------------------------------

_PASSES_MAX = 4
"""How many passes are made at most. Two are usual for a text that holds a credential, one for any other."""


def _replace_all(text: str, masked_as: Mask, *, is_code: bool) -> str:
    """Mask until nothing is left to mask: a mask put into the middle of a value may give away where it ends."""
    for _ in range(_PASSES_MAX):
        masked = _replace_once(text, masked_as, is_code=is_code)
        if masked == text:
            break
        text = masked
    return text


def _replace_once(text: str, masked_as: Mask, *, is_code: bool) -> str:
    raw = text.encode("utf-8", "surrogatepass")
    low = raw.lower()
    spans = [
        *find_vendor_keys(raw, low),
        *find_addresses(raw, is_code=is_code),
        *find_private_keys(raw),
        *find_cookies(raw, low, is_code=is_code),
        *find_command_passwords(raw),
        *find_phone_numbers(raw),
        *find_named_values(raw, low, is_code=is_code),
    ]
    if not spans:
        return text
    pieces = []
    done = 0
    for start, end in merge_spans(spans):
        secret = raw[start:end].decode("utf-8", "surrogatepass")
        begins_command = (
            _COMMAND if raw[end : end + 1] in (b" ", b"\t") and raw[start - 1 : start] != b'"' else _PROGRAM
        )
        masked = _mask_once(secret, masked_as, begins_command)
        pieces += [raw[done:start], masked.encode("utf-8", "surrogatepass")]
        done = end
    pieces.append(raw[done:])
    return b"".join(pieces).decode("utf-8", "surrogatepass")


def _mask_once(secret: str, masked_as: Mask, begins_command: re.Pattern[str]) -> str:
    if _ALREADY_MASKED.fullmatch(secret):
        return secret
    command = begins_command.search(secret)
    if command is not None:
        # A command is no secret, and no person may be asked to allow one of which a part was taken out.
        before, rest = secret[: command.start()], secret[command.start() :]
        return (_mask_once(before, masked_as, _PROGRAM) if before else "") + rest
    return f"{secret[:4]}****{secret[-4:]}" if secret.startswith("+") else masked_as(secret)
