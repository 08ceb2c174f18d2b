"""Random changes of one memory by many workers, and what must be true afterwards."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import NamedTuple

import sqlalchemy as sa

from hermes_worker.features.memory.rows import Memories
from hermes_worker.features.memory.rules import (
    MemoryAction,
    MemoryAuthor,
    MemoryEntry,
    MemoryKey,
    MemoryOperation,
    MemoryRefused,
    MemoryRules,
    count_chars,
)
from hermes_worker.store.engine.database import Database
from hermes_worker.store.tables import memory_versions

PLACE = MemoryKey(tenant="default")
RULES = MemoryRules(limit=400)
Versions = tuple[tuple[str, int], ...]
"""Entries with their versions."""


class Answer(NamedTuple):
    """What a call was told."""

    changed: Versions
    """What it made; nothing where it was refused."""
    stood: Versions
    """What stood there then."""
    refused: str | None
    """Why."""


def random_operations(chance: random.Random, known: Iterable[MemoryEntry]) -> list[MemoryOperation]:
    """One to three wishes, made for what a worker saw last, which may be stale by now."""
    seen = list(known)
    return [_random_operation(chance, seen) for _ in range(chance.choice((1, 1, 1, 2, 3)))]


def _random_operation(chance: random.Random, seen: list[MemoryEntry]) -> MemoryOperation:
    content = f"fact {chance.randrange(10**9)} " + "x" * chance.randrange(40)
    action = chance.choice(list(MemoryAction)) if seen else MemoryAction.ADD
    if action is MemoryAction.ADD:
        return MemoryOperation(action=action, content=content)
    meant = chance.choice(seen)
    new = None if action is MemoryAction.REMOVE else content
    if chance.random() < 0.5:
        return MemoryOperation(action=action, content=new, entry_id=meant.entry_id, version=meant.version)
    return MemoryOperation(action=action, content=new, old_text=meant.content)


class ChangingWorker:
    """Makes changes for what it saw last, and remembers what it was told of each."""

    def __init__(self, memories: Memories, seed: int) -> None:
        self._memories = memories
        self._chance = random.Random(seed)
        self._seen: tuple[MemoryEntry, ...] = ()

    def call(self, key: str) -> Answer:
        """What the call was told."""
        operations = random_operations(self._chance, self._seen)
        author = MemoryAuthor(name=f"agent:{key}", run_id=f"run_{key}", call_key=key)
        try:
            changed = self._memories.change(PLACE, operations, RULES, author)
        except MemoryRefused as refused:
            self._seen = refused.entries  # a stale change is told what stands there
            return Answer((), _versions(self._seen), refused.kind.value)
        self._seen = changed.entries
        return Answer(changed.changed, _versions(self._seen), None)


def _versions(entries: Iterable[MemoryEntry]) -> Versions:
    return tuple((entry.entry_id, entry.version) for entry in entries)


def require_kept(database: Database, answers: Mapping[str, Answer], asked: Iterable[str]) -> Counter[str]:
    """Replay all versions in the order of their commits and compare with what calls were told; how many of which kind.

    Raises ``AssertionError``."""
    columns = ("entry_id", "version", "position", "state", "act", "content", "call_key", "ordinal", "author", "at")
    wanted = sa.select(*(memory_versions.c[name] for name in columns)).order_by(memory_versions.c.pk)
    with database.read() as connection:
        rows = connection.execute(wanted).mappings().all()
    standing: dict[str, tuple[int, str]] = {}
    told = Counter[str]()
    made: dict[str, Versions] = {}
    states: set[frozenset[tuple[str, int]]] = {frozenset()}
    for key, group in groupby(rows, lambda row: str(row["call_key"])):
        assert key not in made, f"{key} made its change twice"
        changes = list(group)
        assert [row["ordinal"] for row in changes] == list(range(len(changes)))
        made[key] = tuple((str(row["entry_id"]), int(row["version"])) for row in changes)
        for row in changes:
            before = standing.pop(row["entry_id"], None)
            assert row["version"] == (1 if before is None else before[0] + 1), "a version was lost"
            if row["content"] is not None:
                standing[row["entry_id"]] = (row["version"], row["content"])
            told[row["act"]] += 1
        assert count_chars([content for _, content in standing.values()]) <= RULES.limit, "the limit was exceeded"
        states.add(frozenset((entry_id, version) for entry_id, (version, _) in standing.items()))
    assert set(made) <= set(asked)
    for key, answer in answers.items():
        assert made.get(key, ()) == answer.changed, f"{key} was told something else than what it made"
        assert frozenset(answer.stood) in states, f"{key} was shown entries that never stood there together"
    current = {row["entry_id"]: (row["version"], row["content"]) for row in rows if row["state"] == "current"}
    assert current == standing, "an entry is there that was removed, or gone that nobody removed"
    # Each entry that is gone was removed by a call that was told so, or one of which nobody was told is known.
    assert set(made) <= set(answers), "a change was made that nobody was told of"
    return told


def keys(worker: int, count: int) -> Iterator[str]:
    """Names of a worker's calls."""
    return (f"{worker:02d}.{number}" for number in range(count))
