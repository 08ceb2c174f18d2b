"""Skills as rows: the newest version of each, every folder under its hash, and the sets with which runs began.

Theory of operation. ``skills`` names the newest version of each skill. A *set* is all of them at one moment, stored
under its own hash; a run's row names one set, so the skills it sees never change, whatever is edited. Folders and sets
are stored once and never changed. Each has the time of its last use; storing a set marks its folders as used in the
same transaction, so that ``prune_skills`` deletes nothing that a run may yet read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from hermes_worker.core.offered_skills import SkillError
from hermes_worker.core.principals import DEFAULT_TENANT
from hermes_worker.features.skills.rules import (
    SKILLS_MAX,
    SkillEntry,
    SkillFacts,
    SkillFile,
    SkillMoved,
    SkillNotFound,
    SkillSet,
    compute_content_hash,
    dump_folder,
    parse_folder,
)
from hermes_worker.features.skills.tables import skill_changes, skill_contents, skills
from hermes_worker.store.access.audit import Act, record_action
from hermes_worker.store.engine.database import Database, db_now
from hermes_worker.store.engine.prepared import fetch_row, fetch_rows, select_columns
from hermes_worker.store.rows import build_insert_ignoring, make_storable
from hermes_worker.store.tables import runs

__all__ = [
    "KEPT_S",
    "NewSkillVersion",
    "RunSkillFacts",
    "SkillCall",
    "SkillChange",
    "SkillRow",
    "Skills",
    "prune_skills",
]

KEPT_S = 86_400.0
"""Seconds for which an unreferenced folder or set is kept: longer than any run takes to begin after its set was
stored."""
_SEEN_S = 600.0
"""Seconds after which a time of use is renewed."""
_TRIES = 5


class SkillRow(NamedTuple):
    """The newest version of a skill. ``changed_at`` in epoch seconds."""

    name: str
    category: str
    hash: str
    facts: str
    origin: str
    source_hash: str | None
    version: int
    is_removed: int
    changed_at: float

    @property
    def entry(self) -> SkillEntry:
        return SkillEntry(category=self.category, hash=self.hash, facts=SkillFacts.from_json(self.facts))


class SkillChange(NamedTuple):
    """The outcome of a call that changes a skill; ``hash`` is ``None`` when the skill was removed."""

    name: str
    hash: str | None


class RunSkillFacts(NamedTuple):
    """The facts that decide which skills a run sees."""

    pk: int
    skills_hash: str | None
    """The hash of the set with which it, or the first run of its chain, began."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SkillCall:
    """The tool call that changes a skill."""

    run_pk: int
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NewSkillVersion:
    """A version of a skill that is to be stored."""

    facts: SkillFacts
    files: Sequence[SkillFile]
    category: str = ""
    origin: str = "people"
    source_hash: str | None = None


class _SetRow(NamedTuple):
    pk: int
    tenant: str
    body: str


class _FolderRow(NamedTuple):
    pk: int
    tenant: str
    hash: str


class Skills:
    """The skills of one tenant. Thread-safe; every method raises ``UnavailableError``."""

    def __init__(self, database: Database, tenant: str = DEFAULT_TENANT) -> None:
        self._database = database
        self.tenant = tenant

    def for_tenant(self, tenant: str) -> Skills:
        """The skills of another tenant in the same database."""
        return Skills(self._database, tenant)

    # --- the newest versions ---

    def list_skills(self, *, with_removed: bool = False) -> list[SkillRow]:
        """List all skills by name."""
        wanted = sa.select(*select_columns(skills, SkillRow)).where(skills.c.tenant == self.tenant)
        if not with_removed:
            wanted = wanted.where(skills.c.is_removed == 0)
        return fetch_rows(self._database.select(wanted.order_by(skills.c.name)), SkillRow)

    def find(self, name: str) -> SkillRow | None:
        """Load the newest version of a skill; ``None`` when there is none."""
        with self._database.read() as connection:
            row = self._load_row(connection, name)
        return row if row is not None and not row.is_removed else None

    def load_fingerprint(self) -> Sequence[tuple[str, str, str, int]]:
        """Load name, category, hash and version number of every skill, by name: equal only when the sets are equal.
        Decrypts no text."""
        wanted = sa.select(skills.c.name, skills.c.category, skills.c.hash, skills.c.version)
        wanted = wanted.where(skills.c.tenant == self.tenant, skills.c.is_removed == 0).order_by(skills.c.name)
        return [tuple(row) for row in self._database.select(wanted)]

    def write_skill(
        self, kept: NewSkillVersion, *, expects: str | None, is_new: bool = False, call: SkillCall | None = None
    ) -> SkillChange:
        """Store the newest version of a skill. With ``expects`` only the version of this hash may be replaced; with
        ``is_new`` there must be none. Under ``call`` it happens once, and a repetition returns the first outcome.
        Raises ``SkillMoved``, ``SkillError``."""
        name, digest = kept.facts.name, compute_content_hash(kept.files)
        with self._database.write() as connection:
            if call is not None and (before := self._claim_change(connection, call, name, digest)) is not None:
                return before
            row = self._load_row(connection, name, locks=True)
            _require_expected(name, row, expects=expects, is_new=is_new)
            self._store_text(connection, digest, dump_folder(kept.files), is_set=False)
            values = {
                "category": kept.category,
                "hash": digest,
                "facts": make_storable(kept.facts.to_json()),
                "origin": kept.origin,
                "source_hash": kept.source_hash,
                "is_removed": 0,
                "changed_at": db_now(),
            }
            if row is None:
                self._require_room(connection)
                added = build_insert_ignoring(connection, skills).values(tenant=self.tenant, name=name, **values)
                if connection.execute(added.returning(skills.c.pk)).first() is None:
                    raise SkillMoved(f"somebody else made the skill {name!r} at the same time; look and try again")
            else:
                self._release_version(connection, row.hash)
                changed = sa.update(skills).where(self._is_skill(name)).values(**values, version=skills.c.version + 1)
                connection.execute(changed)
            was = None if row is None or row.is_removed else row.hash
            facts = {"hash": digest, "origin": kept.origin}
            record_action(connection, Act.SKILL_KEEP, name, tenant=self.tenant, before={"hash": was}, after=facts)
        return SkillChange(name=name, hash=digest)

    def remove(self, name: str, *, expects: str | None = None, call: SkillCall | None = None) -> SkillChange:
        """Remove a skill; runs that began with it continue with it. Raises ``SkillNotFound``, ``SkillMoved``."""
        with self._database.write() as connection:
            if call is not None and (before := self._claim_change(connection, call, name, None)) is not None:
                return before
            row = self._load_row(connection, name, locks=True)
            if row is None or row.is_removed:
                raise SkillNotFound(f"there is no skill {name!r}")
            _require_expected(name, row, expects=expects, is_new=False)
            self._release_version(connection, row.hash)
            if row.source_hash is None:
                connection.execute(sa.delete(skills).where(self._is_skill(name)))
            else:  # the next import of its folder would add it again
                gone = sa.update(skills).where(self._is_skill(name))
                connection.execute(gone.values(is_removed=1, version=skills.c.version + 1, changed_at=db_now()))
            record_action(connection, Act.SKILL_REMOVE, name, tenant=self.tenant, before={"hash": row.hash})
        return SkillChange(name=name, hash=None)

    def remove_vanished(self, name: str, origin: str) -> bool:
        """Remove a skill whose folder at ``origin`` was deleted. Returns whether there was one."""
        with self._database.write() as connection:
            row = self._load_row(connection, name, locks=True)
            if row is None or row.origin != origin:
                return False
            self._release_version(connection, row.hash)
            connection.execute(sa.delete(skills).where(self._is_skill(name)))
            return True

    def find_change(self, key: str) -> SkillChange | None:
        """Find what a call changed; ``None`` when it changed nothing yet."""
        with self._database.read() as connection:
            return self._find_change(connection, key)

    def list_versions_of_run(self, run_pk: int, name: str) -> frozenset[str]:
        """List the hashes of the versions of a skill that a run's own calls made."""
        wanted = sa.select(skill_changes.c.hash).where(skill_changes.c.run_pk == run_pk, skill_changes.c.name == name)
        return frozenset(self._database.select(wanted.where(skill_changes.c.hash.is_not(None))).scalars())

    # --- what runs use ---

    def store_current_set(self) -> SkillSet | None:
        """Store all skills as they are now as a set, which a run may name; ``None`` when there are none."""
        for _ in range(_TRIES):
            found = SkillSet(entries=tuple(row.entry for row in self.list_skills()))
            if not found.entries:
                return None
            if self._store_set(found):
                return found
        raise SkillMoved("the skills change faster than they can be read; try again")

    def _store_set(self, found: SkillSet) -> bool:
        """Store a set. Returns False when one of its folders was deleted meanwhile."""
        hashes = sorted({entry.hash for entry in found.entries})
        with self._database.write() as connection:
            ours = (skill_contents.c.tenant == self.tenant) & skill_contents.c.hash.in_(hashes)
            held = connection.execute(sa.select(skill_contents.c.hash).where(ours).order_by("hash").with_for_update())
            if len(held.all()) < len(hashes):
                return False
            stale = skill_contents.c.used_at < db_now() - _SEEN_S
            connection.execute(sa.update(skill_contents).where(ours, stale).values(used_at=db_now()))
            self._store_text(connection, found.hash, found.to_json(), is_set=True)
        return True

    def load_set(self, digest: str) -> SkillSet:
        """Load a set by its hash. Raises ``SkillNotFound``."""
        found = SkillSet.from_json(self._load_body(digest, is_set=True))
        if found.hash != digest:
            raise SkillError(f"the stored set of skills {digest[:12]} is not what its hash says")
        return found

    def load_folder(self, digest: str) -> tuple[SkillFile, ...]:
        """Load the files of one version of a skill. Raises ``SkillNotFound``, and ``SkillError`` for a row that was
        tampered with."""
        return parse_folder(self._load_body(digest, is_set=False), digest)

    def load_skills_of_run(self, run_id: str) -> RunSkillFacts:
        """Load what a run began with. Raises ``SkillNotFound`` when there is no such run."""
        first = runs.alias("first")
        wanted = (
            sa.select(
                runs.c.pk,
                sa.func.coalesce(runs.c.skills_hash, first.c.skills_hash).label("skills_hash"),
            )
            .select_from(runs.outerjoin(first, first.c.pk == runs.c.root_pk))
            .where(runs.c.run_id == run_id, runs.c.tenant == self.tenant)
        )
        row = fetch_row(self._database.select(wanted), RunSkillFacts)
        if row is None:
            raise SkillNotFound(f"there is no run {run_id!r}")
        return row

    def _load_body(self, digest: str, *, is_set: bool) -> str:
        this = (skill_contents.c.tenant == self.tenant) & (skill_contents.c.hash == digest)
        wanted = sa.select(skill_contents.c.body).where(this, skill_contents.c.is_set == int(is_set))
        body = self._database.select(wanted).scalar()
        if body is None:
            raise SkillNotFound(f"the skills {digest[:12]} are not in the database any more")
        return str(body)

    # --- parts ---

    def _is_skill(self, name: str) -> sa.ColumnElement[bool]:
        return sa.and_(skills.c.tenant == self.tenant, skills.c.name == name)

    def _load_row(self, connection: Connection, name: str, *, locks: bool = False) -> SkillRow | None:
        wanted = sa.select(*select_columns(skills, SkillRow)).where(self._is_skill(name))
        return fetch_row(connection.execute(wanted.with_for_update() if locks else wanted), SkillRow)

    def _require_room(self, connection: Connection) -> None:
        ours = sa.select(sa.func.count()).select_from(skills).where(skills.c.tenant == self.tenant)
        if connection.execute(ours).scalar_one() >= SKILLS_MAX:
            raise SkillError(f"there are {SKILLS_MAX} skills already; remove one first")

    def _store_text(self, connection: Connection, digest: str, body: str, *, is_set: bool) -> None:
        """Store a text under its hash, and mark it as used. Idempotent."""
        this = (skill_contents.c.tenant == self.tenant) & (skill_contents.c.hash == digest)
        seen = sa.select(skill_contents.c.used_at - db_now()).where(this).with_for_update()
        age = connection.execute(seen).scalar()
        if age is None:
            values = {"tenant": self.tenant, "hash": digest, "is_set": int(is_set), "body": make_storable(body)}
            connection.execute(build_insert_ignoring(connection, skill_contents).values(**values, used_at=db_now()))
        elif age < -_SEEN_S:
            connection.execute(sa.update(skill_contents).where(this).values(used_at=db_now()))

    def _release_version(self, connection: Connection, digest: str) -> None:
        """Release a version that is not the newest any more: it is kept for a day, and for as long as runs need it."""
        this = (skill_contents.c.tenant == self.tenant) & (skill_contents.c.hash == digest)
        connection.execute(sa.update(skill_contents).where(this).values(used_at=db_now()))

    def _find_change(self, connection: Connection, key: str) -> SkillChange | None:
        this = skill_changes.c.call_key == key
        return fetch_row(
            connection.execute(sa.select(*select_columns(skill_changes, SkillChange)).where(this)), SkillChange
        )

    def _claim_change(
        self, connection: Connection, call: SkillCall, name: str, digest: str | None
    ) -> SkillChange | None:
        """Record that the call makes this change. Returns what it changed before, or ``None`` when this is the first
        time. Another worker with the same call waits here."""
        values = {"run_pk": call.run_pk, "call_key": call.key, "name": name, "hash": digest}
        added = build_insert_ignoring(connection, skill_changes).values(**values, changed_at=db_now())
        if connection.execute(added.returning(skill_changes.c.pk)).first() is not None:
            return None
        return self._find_change(connection, call.key)


def _require_expected(name: str, row: SkillRow | None, *, expects: str | None, is_new: bool) -> None:
    is_there = row is not None and not row.is_removed
    if is_new and is_there:
        raise SkillMoved(f"there is a skill {name!r} already")
    if expects is not None and (row is None or not is_there or row.hash != expects):
        raise SkillMoved(f"the skill {name!r} was changed or removed in between; look at it and try again")


def prune_skills(database: Database, *, acts: bool = True, older_than_s: float = KEPT_S) -> int:
    """Delete sets that no run names and folders without references, a day after their last use. Returns how many.
    Without ``acts`` only the sets are counted, and nothing is deleted. Safe in several processes at once."""
    old = skill_contents.c.used_at < db_now() - older_than_s
    is_named = sa.exists().where(runs.c.skills_hash == skill_contents.c.hash, runs.c.skills_hash.is_not(None))
    sets = sa.and_(skill_contents.c.is_set == 1, old, sa.not_(is_named))
    if not acts:
        wanted = sa.select(sa.func.count()).select_from(skill_contents).where(sets)
        return int(database.select(wanted).scalar_one())
    deleted = database.execute(sa.delete(skill_contents).where(sets))
    return deleted + _prune_folders(database, old)


def _prune_folders(database: Database, old: sa.ColumnElement[bool]) -> int:
    is_newest = sa.exists().where(skills.c.tenant == skill_contents.c.tenant, skills.c.hash == skill_contents.c.hash)
    folders = sa.and_(skill_contents.c.is_set == 0, old, sa.not_(is_newest))
    with database.read() as connection:
        wanted = sa.select(*select_columns(skill_contents, _FolderRow)).where(folders).order_by("pk").limit(1_000)
        found = fetch_rows(connection.execute(wanted), _FolderRow)
        if not found:
            return 0
        tenants = {row.tenant for row in found}
        named = sa.select(*select_columns(skill_contents, _SetRow))
        named = named.where(skill_contents.c.is_set == 1, skill_contents.c.tenant.in_(tenants))
        used = {
            (row.tenant, entry.hash)
            for row in fetch_rows(connection.execute(named), _SetRow)
            for entry in SkillSet.from_json(row.body).entries
        }
    kept = [row.pk for row in found if (row.tenant, row.hash) in used]
    free = [row.pk for row in found if (row.tenant, row.hash) not in used]
    with database.write() as connection:
        # Contents in use are looked at again in a day. The delete skips others that were used (marked) meanwhile.
        connection.execute(sa.update(skill_contents).where(skill_contents.c.pk.in_(kept)).values(used_at=db_now()))
        return connection.execute(sa.delete(skill_contents).where(skill_contents.c.pk.in_(free), folders)).rowcount
