"""Complete ids that people shorten, by asking the API."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hermes_worker.core.errors import ConfigurationError
from hermes_worker.core.short_ids import PREFIXES, AmbiguousId, ShortKind, is_whole_id

if TYPE_CHECKING:
    from hermes_worker.client import HermesClient

_MAY_BE_ASKED_FOR = re.compile(r"(?!\.{1,2}$)[^/\x00-\x1f\x7f]{1,200}")


def complete_session_id(client: HermesClient, written: str) -> str:
    """Complete a session's id from its beginning (it is the id of its first run); a name stays as it is. Raises
    ``AmbiguousId``."""
    return complete_id(client, written, "run") if written.startswith(PREFIXES["run"]) else written


def complete_id(client: HermesClient, written: str, kind: ShortKind) -> str:
    """Complete an id from its beginning; a text that begins no id is returned as it is, and looking it up then fails
    with a sentence. Raises ``AmbiguousId``, ``ConfigurationError`` for what can be no id."""
    from hermes_worker.client import RefusedError

    if not _MAY_BE_ASKED_FOR.fullmatch(written):
        raise ConfigurationError(f"there is no {kind} {written[:80]!r}")
    digits = written.strip().lower().removeprefix(PREFIXES[kind])
    if is_whole_id(written, kind) or not re.fullmatch(r"[0-9a-f]{1,32}", digits):
        return written
    try:
        return client.whole_id(written.strip().lower(), kind)
    except RefusedError as error:
        if error.code == "ambiguous_id":
            raise AmbiguousId(str(error).removesuffix(".")) from None
        if error.code == "id_not_found":
            return written
        raise
