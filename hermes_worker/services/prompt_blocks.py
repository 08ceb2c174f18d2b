"""Texts from rows in the system prompt of a new session: how rooms of the product add theirs.

A room that has something to say (memory, skills) writes a *reader*: a function that gets the open transaction and the
facts of the session, and returns a text for each of its places (``core.prompt_places``). It is named in ``READERS``,
one line. Nothing else has to be changed: the prompt has a gap at each place, and the store fills it.

* A reader is called in the transaction that opens a session, and only then. A later run of the session, a child run
  and a fork (which has the bytes of its original) call no reader.
* It may make one or two quick statements, on the connection that it is given. It uses no network, reads no file and
  does not commit. What takes time comes in through a context source (``agent.prompt.sources``).
* Its text stands in the prompt as it is. A reader of texts that others wrote judges them first:
  ``safety.origins.judge_text``.
* Its text is stored as bytes with the session (invariant I7): what changes later is seen by the next session.
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
from hermes_worker.core.run_writers import MemoryWriter
from hermes_worker.features.memory.rows import load_entries
from hermes_worker.features.memory.rules import (
    MEMORY_TOOL,
    MemoryEntry,
    MemoryPolicy,
    MemoryTarget,
    render_memory_block,
)
from hermes_worker.store.runs.writers import is_guest

USUAL_PROFILE = "default"
_Standing = Mapping[MemoryTarget, Sequence[MemoryEntry]]


@dataclass(frozen=True, slots=True)
class _ReadCache:
    """What one transaction has read already."""

    memories: dict[tuple[str, str], _Standing] = field(default_factory=dict)
    """By tenant and profile."""
    guests: dict[tuple[str, str | None], bool] = field(default_factory=dict)
    """By tenant and principal."""


_read: ContextVar[_ReadCache | None] = ContextVar("hermes_read_for_prompts", default=None)


@contextmanager
def share_reads() -> Iterator[None]:
    """Let one transaction that opens many sessions read the memories of a tenant, and whether a principal is a guest,
    once for all of them."""
    token = _read.set(_ReadCache())
    try:
        yield
    finally:
        _read.reset(token)


def _read_memories(connection: Connection, tenant: str, profile: str) -> _Standing:
    known = (_read.get() or _ReadCache()).memories
    if (tenant, profile) not in known:
        known[tenant, profile] = load_entries(connection, tenant, profile)
    return known[tenant, profile]


def _is_guest(connection: Connection, tenant: str, principal: str | None) -> bool:
    known = (_read.get() or _ReadCache()).guests
    if (tenant, principal) not in known:
        known[tenant, principal] = is_guest(connection, tenant, principal)
    return known[tenant, principal]


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockFacts:
    """The facts about a new session that a reader gets."""

    tenant: str
    principal: str | None
    """The principal that asks (``core.principals``)."""
    source: str
    """The kind of the source: ``api``, ``cli``, ``cron``, ``webhook``."""
    tools: Set[str] = frozenset()
    """Names of the session's tools: a prompt need not speak of tools that are not there."""
    toolsets: Sequence[str] = ()
    model: str = ""
    profile: str = USUAL_PROFILE
    memory: MemoryPolicy = field(default_factory=MemoryPolicy)
    """Which memories there are, and how much they hold."""
    skills_index: str = ""
    """The index of the set of skills that the first run names (``core.offered_skills``)."""


class BlockReader(Protocol):
    """Reads what a room says in the prompt of a new session, by place; places without a text may be left out."""

    def __call__(self, connection: Connection, facts: BlockFacts, /) -> Mapping[PromptPlace, str]: ...


def _skills(connection: Connection, facts: BlockFacts) -> Mapping[PromptPlace, str]:
    """Return the index of the set that the run's row names. It is known before the transaction, so this makes no
    statement."""
    return {PromptPlace.SKILLS: facts.skills_index}


_MEMORIES = {PromptPlace.MEMORY: MemoryTarget.MEMORY, PromptPlace.USER: MemoryTarget.USER}


def _memories(connection: Connection, facts: BlockFacts) -> Mapping[PromptPlace, str]:
    """Read the memories as the session begins, if it has the memory tool: one statement, and one more for a key that
    was given out. A guest gets nothing, as ``GET /v1/memory`` would refuse it."""
    policy = facts.memory
    if MEMORY_TOOL not in facts.tools:
        return {}
    if MemoryWriter.GUEST not in policy.writers and _is_guest(connection, facts.tenant, facts.principal):
        return {}
    entries = _read_memories(connection, facts.tenant, policy.profile)
    return {
        place: render_memory_block([entry.content for entry in entries[target]], target, policy.build_rules(target))
        for place, target in _MEMORIES.items()
        if target in policy.targets
    }


READERS: tuple[BlockReader, ...] = (_skills, _memories)
"""In any order: the places say where a text stands. Two readers do not fill one place."""


def build_block_reader(facts: BlockFacts) -> Callable[[Connection], Mapping[PromptPlace, str]] | None:
    """Build ``store.runs.runs.NewRun.blocks``; ``None`` while there are no readers."""
    if not READERS:
        return None
    return lambda connection: {
        place: text for reader in READERS for place, text in reader(connection, facts).items() if text
    }
