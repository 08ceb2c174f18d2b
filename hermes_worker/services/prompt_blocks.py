"""The door by which rooms of the product put texts that stand in rows into the system prompt of a new session.

A room that has something to say (memory, skills) writes a *reader*: a function that is given the open transaction and
what is known of the session, and gives a text for each of its places (``core.prompt_places``). It is named in
``READERS``, one line. Nothing else has to be changed: the prompt has a gap at each place, and the store fills it.

* A reader is called in the transaction that opens a session, and only then. A later run of the session, a child run
  and a fork (which has the bytes of its original) call nobody.
* It may make one statement or two, quick ones, on the connection that it is given. It asks no network, reads no file
  and does not commit. What takes time comes in through a context source (``agent.prompt.sources``).
* Its text stands in the prompt as it is. Who reads what others wrote judges it first: ``safety.origins.judge``.
* What it gives is stored as bytes with the session (invariant I7): what changes later is seen by the next session.
* An exception of a reader refuses the submission: raise ``UnavailableError`` for a database that is away, and nothing
  else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Protocol

from sqlalchemy.engine import Connection

from hermes_worker.core.prompt_places import PromptPlace
from hermes_worker.features.memory.rows import is_guest, standing
from hermes_worker.features.memory.rules import (
    MEMORY_TOOL,
    MemoryEntry,
    MemoryPolicy,
    MemoryTarget,
    MemoryWriter,
    memory_block,
)

USUAL_PROFILE = "default"
_Standing = Mapping[MemoryTarget, Sequence[MemoryEntry]]


@dataclass(frozen=True, slots=True)
class _Read:
    """What one transaction has read already."""

    memories: dict[tuple[str, str], _Standing] = field(default_factory=dict)
    """By tenant and profile."""
    guests: dict[tuple[str, str | None], bool] = field(default_factory=dict)
    """By tenant and principal."""


_read: ContextVar[_Read | None] = ContextVar("hermes_read_for_prompts", default=None)


@contextmanager
def reading_once() -> Iterator[None]:
    """For one transaction that opens many sessions: the memories of a tenant, and whether somebody is a guest, are read
    once for all of them."""
    token = _read.set(_Read())
    try:
        yield
    finally:
        _read.reset(token)


def _standing(connection: Connection, tenant: str, profile: str) -> _Standing:
    known = (_read.get() or _Read()).memories
    if (tenant, profile) not in known:
        known[tenant, profile] = standing(connection, tenant, profile)
    return known[tenant, profile]


def _is_guest(connection: Connection, tenant: str, principal: str | None) -> bool:
    known = (_read.get() or _Read()).guests
    if (tenant, principal) not in known:
        known[tenant, principal] = is_guest(connection, tenant, principal)
    return known[tenant, principal]


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockFacts:
    """What a reader is told of the session that begins."""

    tenant: str
    principal: str | None
    """Who asks (``core.principals``)."""
    source: str
    """The kind of what asked: ``api``, ``cli``, ``cron``, ``webhook``."""
    tools: Set[str] = frozenset()
    """Names of the session's tools: what there is no tool for need not be spoken of."""
    toolsets: Sequence[str] = ()
    model: str = ""
    profile: str = USUAL_PROFILE
    memory: MemoryPolicy = field(default_factory=MemoryPolicy)
    """Which memories there are, and how much they hold."""
    skills_index: str = ""
    """Of the set of skills that the first run names (``features.skills.service``)."""


class BlockReader(Protocol):
    """What a room says in the prompt of a new session, by place; places without a text may be left out."""

    def __call__(self, connection: Connection, facts: BlockFacts, /) -> Mapping[PromptPlace, str]: ...


def _skills(connection: Connection, facts: BlockFacts) -> Mapping[PromptPlace, str]:
    """Known before the transaction: the index is that of the set which the run's row names. No statement."""
    return {PromptPlace.SKILLS: facts.skills_index}


_MEMORIES = {PromptPlace.MEMORY: MemoryTarget.MEMORY, PromptPlace.USER: MemoryTarget.USER}


def _memories(connection: Connection, facts: BlockFacts) -> Mapping[PromptPlace, str]:
    """What is remembered when the session begins, for those that can remember: one statement, and one more for a key
    that was given to somebody. A guest is shown nothing, as ``GET /v1/memory`` would refuse them."""
    policy = facts.memory
    if MEMORY_TOOL not in facts.tools:
        return {}
    if MemoryWriter.GUEST not in policy.writers and _is_guest(connection, facts.tenant, facts.principal):
        return {}
    entries = _standing(connection, facts.tenant, policy.profile)
    return {
        place: memory_block([entry.content for entry in entries[target]], target, policy.rules(target))
        for place, target in _MEMORIES.items()
        if target in policy.targets
    }


READERS: tuple[BlockReader, ...] = (_skills, _memories)
"""In any order: the places say where a text stands. Two readers do not fill one place."""


def blocks_of(facts: BlockFacts) -> Callable[[Connection], Mapping[PromptPlace, str]] | None:
    """What ``store.runs.runs.NewRun.blocks`` wants; ``None`` while nobody has anything to say."""
    if not READERS:
        return None
    return lambda connection: {
        place: text for reader in READERS for place, text in reader(connection, facts).items() if text
    }
