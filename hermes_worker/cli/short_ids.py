"""Find what people mean by a shortened id, a job's name, or a session's name or title, by asking the API."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from hermes_worker.core.errors import ConfigurationError
from hermes_worker.core.short_ids import PREFIXES, AmbiguousId, ShortKind, is_whole_id

if TYPE_CHECKING:
    from hermes_worker.client import HermesClient

_IN_A_PATH = re.compile(r"(?!\.{1,2}$)[^/\x00-\x1f\x7f]{1,200}")
_DIGITS = re.compile(r"[0-9a-f]{1,32}")
_CHARS_MAX = 256
_LISTED_DIGITS = 6
"""Fewer digits are a name: a day, a number."""
_WHERE_TO_LOOK: Final = {
    "session": "'hermes-worker sessions list' shows those there are",
    "job": "'hermes-worker cron list' shows those there are",
}


def require_id(client: HermesClient, written: str, kind: ShortKind) -> str:
    """Find the id of the session or the job that is meant. Raises ``AmbiguousId`` with the candidates,
    ``ConfigurationError`` where there is none."""
    if (found := _ask_for_id(client, written, kind)) is None:
        raise ConfigurationError(f"there is no {kind} {written[:80]!r}; {_WHERE_TO_LOOK[kind]}")
    return found


def complete_session_id(client: HermesClient, written: str) -> str:
    """Find the session that a run is to join, by the beginning of its id as lists show it, or by a title of several
    words. Anything else is returned as it is: it may name a session that is yet to be opened. Raises ``AmbiguousId``,
    and ``ConfigurationError`` for a title or the beginning of an id that nothing has."""
    prefix = PREFIXES["run"]
    digits = written.removeprefix(prefix)
    is_id = _DIGITS.fullmatch(digits) is not None
    if (is_id and written.startswith(prefix)) or any(char.isspace() for char in written):
        return require_id(client, written, "session")
    if not is_id or len(digits) < _LISTED_DIGITS:
        return written
    found = _ask_for_id(client, written, "session")
    return found if found is not None and found.startswith(prefix + digits) else written


def complete_id(client: HermesClient, written: str, kind: ShortKind) -> str:
    """Complete an id from its beginning; a text that means nothing known is returned as it is, and looking it up then
    fails with a sentence. Raises ``AmbiguousId``, ``ConfigurationError`` for what can be no id."""
    found = None if is_whole_id(written, kind) else _ask_for_id(client, written, kind)
    if found is None and not _IN_A_PATH.fullmatch(written):
        raise ConfigurationError(f"there is no {kind} {written[:80]!r}")
    return found or written


def _ask_for_id(client: HermesClient, written: str, kind: ShortKind) -> str | None:
    """Ask for the id that is meant; ``None`` for none. Raises ``AmbiguousId``."""
    from hermes_worker.client import RefusedError

    if kind in PREFIXES:
        written = written.strip().lower()
        if not _DIGITS.fullmatch(written.removeprefix(PREFIXES[kind])):
            return None
    try:
        return client.whole_id(written, kind) if 0 < len(written) <= _CHARS_MAX else None
    except RefusedError as error:
        if error.code == "ambiguous_id":
            raise AmbiguousId(str(error).removesuffix(".")) from None
        if error.code in ("id_not_found", "invalid_value"):
            return None
        raise
