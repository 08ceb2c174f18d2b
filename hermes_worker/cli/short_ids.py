"""Ids that people write short, made whole by the API."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hermes_worker.core.errors import ConfigurationError
from hermes_worker.core.short_ids import PREFIXES, ShortKind, is_whole
from hermes_worker.store.short_ids import AmbiguousId

if TYPE_CHECKING:
    from hermes_worker.client import HermesClient

_MAY_BE_ASKED_FOR = re.compile(r"(?!\.{1,2}$)[^/\x00-\x1f\x7f]{1,200}")


def whole_session(client: HermesClient, written: str) -> str:
    """The session that is meant by its id, by the beginning of that (it is the id of its first run), or by a name,
    which stays as it is. Raises ``AmbiguousId``."""
    return whole_id(client, written, "run") if written.startswith(PREFIXES["run"]) else written


def whole_id(client: HermesClient, written: str, kind: ShortKind) -> str:
    """The id that is meant by an id or by its beginning; what begins none is as it was written, for whoever looks it up
    to say so. Raises ``AmbiguousId``, ``ConfigurationError`` for what can be no id."""
    from hermes_worker.client import RefusedError

    if not _MAY_BE_ASKED_FOR.fullmatch(written):
        raise ConfigurationError(f"there is no {kind} {written[:80]!r}")
    digits = written.strip().lower().removeprefix(PREFIXES[kind])
    if is_whole(written, kind) or not re.fullmatch(r"[0-9a-f]{1,32}", digits):
        return written
    try:
        return client.whole_id(written.strip().lower(), kind)
    except RefusedError as error:
        if error.code == "ambiguous_id":
            raise AmbiguousId(str(error).removesuffix(".")) from None
        if error.code == "id_not_found":
            return written
        raise
