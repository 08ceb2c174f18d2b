"""Sources: where requests come from, and the name spaces of the names that callers choose.

A *source* submits work: ``api``, ``cli``, ``cron``, ``webhook:ROUTE``. Names that callers choose themselves (names of
sessions, idempotency keys) are valid within their tenant and source only: the same word from another source means
something else, so a name cannot be taken by another source before its owner uses it. Names that the product chose (ids)
mean the same for every source of a tenant.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from hermes_worker.core.principals import DEFAULT_TENANT

CHAT_SOURCE: Final = "gateway"
"""The source of runs that chats begin: names of sessions are the keys of chats."""
GUEST_SOURCE: Final = "chat-guest"
"""The source of runs that guests begin."""
CHAT_SOURCES: Final = frozenset({CHAT_SOURCE, GUEST_SOURCE})
EVALUATION_SOURCE: Final = "evaluation"
"""The source of runs whose effects are recorded or refused: no production, so nothing outside them counts or hears of
them."""

_SESSION_ID = re.compile(r"run_[0-9a-f]{32}")
_PROOF_PREFIX = "signature:"


def parse_source_kind(source: str) -> str:
    """The kind of a source, ``webhook`` for ``webhook:review``. What the product does for a source depends on its
    kind."""
    return source.partition(":")[0]


def format_webhook_source(route: str) -> str:
    """The source of a webhook route's requests."""
    return f"webhook:{route}"


def is_session_id(text: str) -> bool:
    """Whether ``text`` can only be an id that the product gave: callers may not choose a name of this form."""
    return _SESSION_ID.fullmatch(text) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionLabel:
    """The names of a session. ``id`` is its first run's; source and name are ``None`` when no caller named it. A
    session that a caller opened without a run and without a name is called by its id."""

    id: str
    source: str | None = None
    name: str | None = None

    def choose_reference(self, source: str) -> str:
        """The reference to the session for a caller from ``source``: its name if that is of the same source, else the
        id."""
        return self.name if self.name is not None and self.source == source else self.id

    def describe_for(self, source: str) -> str:
        """A description of the session for a person from ``source``: as in ``choose_reference``, with the name that
        another source gave."""
        if self.name in (None, self.id) or self.source == source:
            return self.choose_reference(source)
        return f"{self.id} ({self.source} {self.name!r})"


# --- requests that come again ----------------------------------------------------------------------------------------


class Repetition(StrEnum):
    """The relation of a request to those that were accepted before."""

    NEW = "new"
    DUPLICATE = "duplicate"
    """The same source, key and request: it was accepted before."""
    CONFLICT = "conflict"
    """Another request used this key. Nothing was done for this one."""
    REPLAY = "replay"
    """This very signed request was accepted under another key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestKeys:
    """The identity of a request, by which a repetition is recognised for a day."""

    tenant: str = DEFAULT_TENANT
    source: str
    key: str | None = None
    """The caller's own name for the request."""
    fingerprint: str = ""
    """Hash of the request."""
    proof: str | None = None
    """The signature that let the request in, whatever key it has."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names that are stored, in one order for all processes. Where there are signatures, a caller's key is
        printable text without this prefix: ids of events have no colon."""
        proof = None
        if self.proof is not None:
            proof = _PROOF_PREFIX + hashlib.sha256(self.proof.encode("utf-8", "surrogatepass")).hexdigest()
        return tuple(name for name in (self.key, proof) if name is not None)


def decide_repetition(asked: RequestKeys, known: Mapping[str, str]) -> Repetition:
    """Decide whether a request repeats an earlier one. ``known`` maps its stored names to their fingerprints."""
    if asked.key is not None and asked.key in known:
        return Repetition.DUPLICATE if known[asked.key] == asked.fingerprint else Repetition.CONFLICT
    return Repetition.REPLAY if known else Repetition.NEW
