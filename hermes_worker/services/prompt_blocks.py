"""Texts from rows in the system prompt of a new session: how features add theirs.

A feature that has something to say (memory) declares a *reader*: a function that gets the open transaction and the
facts of the session, and returns a text for each of its places (``core.prompt_places``). Nothing else has to be
changed: the prompt has a gap at each place, and the store fills it.

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
from dataclasses import dataclass
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from sqlalchemy.engine import Connection

from hermes_worker.core.prompt_places import PromptPlace
from hermes_worker.extension import load_reference
from hermes_worker.installed import get_installed
from hermes_worker.settings import Settings

P = ParamSpec("P")
T = TypeVar("T")

_shared: ContextVar[dict[Any, Any] | None] = ContextVar("hermes_read_for_prompts", default=None)
"""What one transaction has read already, by the function that read it and its arguments."""


@contextmanager
def share_reads() -> Iterator[None]:
    """Let one transaction that opens many sessions read what they have in common once for all of them."""
    token = _shared.set({})
    try:
        yield
    finally:
        _shared.reset(token)


def read_once(
    read: Callable[Concatenate[Connection, P], T], connection: Connection, *args: P.args, **kwargs: P.kwargs
) -> T:
    """Call ``read``, or return what it returned for equal arguments in the same ``share_reads``."""
    known = _shared.get()
    if known is None:
        return read(connection, *args, **kwargs)
    key = (read, args, tuple(kwargs.items()))
    if key not in known:
        known[key] = read(connection, *args, **kwargs)
    found: T = known[key]
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockFacts:
    """The facts about a new session that a reader gets."""

    tenant: str
    principal: str | None
    """The principal that asks (``core.principals``)."""
    source: str
    """The kind of the source: ``api``, ``cli``, ``cron``, ``webhook``."""
    settings: Settings
    """The settings that the first run is accepted with."""
    tools: Set[str] = frozenset()
    """Names of the session's tools: a prompt need not speak of tools that are not there."""
    toolsets: Sequence[str] = ()
    model: str = ""
    skills_index: str = ""
    """The index of the set of skills that the first run names (``core.offered_skills``)."""


class BlockReader(Protocol):
    """Reads what a feature says in the prompt of a new session, by place; places without a text may be left out."""

    def __call__(self, connection: Connection, facts: BlockFacts, /) -> Mapping[PromptPlace, str]: ...


def _read_skills(connection: Connection, facts: BlockFacts) -> Mapping[PromptPlace, str]:
    """Return the index of the set that the run's row names. It is known before the transaction, so this makes no
    statement."""
    return {PromptPlace.SKILLS: facts.skills_index}


def list_readers() -> Sequence[BlockReader]:
    """The readers in any order: the places say where a text stands. Two readers do not fill one place."""
    return (_read_skills, *(load_reference(each.implementation) for each in get_installed().prompt_blocks.values()))


def build_block_reader(facts: BlockFacts) -> Callable[[Connection], Mapping[PromptPlace, str]]:
    """Build ``store.runs.runs.NewRun.blocks``."""
    readers = list_readers()
    return lambda connection: {
        place: text for reader in readers for place, text in reader(connection, facts).items() if text
    }
