"""Who asked, and whose names count: every source has names of its own.

A *source* is whoever hands work in: ``api``, ``cli``, ``cron``, ``webhook:ROUTE``. What callers choose themselves
(names of sessions, idempotency keys) means something within their tenant and source only: the same word from another
source is another thing, so nobody can take a name before its owner does. What the product chose (ids) means the same
for every source of a tenant.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from hermes_worker.core.principals import DEFAULT_TENANT

SOURCE_CHARS_MAX = 100

_SESSION_ID = re.compile(r"run_[0-9a-f]{32}")
_PROOF_PREFIX = "signature:"


def kind_of(source: str) -> str:
    """``webhook`` of ``webhook:review``: what the product does for a source goes by its kind."""
    return source.partition(":")[0]


def webhook_source(route: str) -> str:
    """The name space of a route."""
    return f"webhook:{route}"


def is_session_id(text: str) -> bool:
    """Whether ``text`` can only be an id that the product gave: no caller may choose a name of this form."""
    return _SESSION_ID.fullmatch(text) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionLabel:
    """What a session is known as. ``id`` is its first run's; source and name are ``None`` where nobody named it."""

    id: str
    source: str | None = None
    name: str | None = None

    def known_to(self, source: str) -> str:
        """What a caller from ``source`` says to go on with it: the name if it is one of theirs, else the id."""
        return self.name if self.name is not None and self.source == source else self.id

    def described_to(self, source: str) -> str:
        """The same for a person, with what others call it."""
        if self.name is None or self.source == source:
            return self.known_to(source)
        return f"{self.id} ({self.source} {self.name!r})"


# --- requests that come again ----------------------------------------------------------------------------------------


class Repetition(StrEnum):
    """What a request is to those that were accepted before."""

    NEW = "new"
    DUPLICATE = "duplicate"
    """The same source, key and request: it has been done."""
    CONFLICT = "conflict"
    """The key of another request. Nothing was done for this one."""
    REPLAY = "replay"
    """This very signed request was accepted under another key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestKeys:
    """By what a request is known again, for a day."""

    tenant: str = DEFAULT_TENANT
    source: str
    key: str | None = None
    """The caller's own name for the request."""
    fingerprint: str = ""
    """Hash of what was asked for."""
    proof: str | None = None
    """The signature that let the request in, whatever it calls itself."""

    @property
    def names(self) -> tuple[str, ...]:
        """What is written down, in one order for everybody. A caller's key is printable text without this prefix
        where there are proofs: ids of events have no colon."""
        proof = None
        if self.proof is not None:
            proof = _PROOF_PREFIX + hashlib.sha256(self.proof.encode("utf-8", "surrogatepass")).hexdigest()
        return tuple(name for name in (self.key, proof) if name is not None)


def repetition(asked: RequestKeys, known: Mapping[str, str]) -> Repetition:
    """What ``asked`` is, where ``known`` has the fingerprints of those of its names that were written down."""
    if asked.key is not None and asked.key in known:
        return Repetition.DUPLICATE if known[asked.key] == asked.fingerprint else Repetition.CONFLICT
    return Repetition.REPLAY if known else Repetition.NEW
