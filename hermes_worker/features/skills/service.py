"""Skills for runs and for people: the set that a new run's row names, the index in its prompt, and the texts that it is
to follow; and the sheet of one skill."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from hermes_worker.features.skills.rules import (
    SKILL_FILE,
    SkillError,
    SkillNotFound,
    SkillSet,
    instructed,
    main_file,
    shown_of,
    skill_index,
)
from hermes_worker.features.skills.shelf_files import SkillShelf, surroundings
from hermes_worker.features.skills.text_rules import threats_in
from hermes_worker.safety.threats import Scope

_VIEW_TOOL = "skill_view"


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferedSkills:
    """The skills for one run."""

    found: SkillSet | None = None
    """The set of all skills; ``None`` for none."""
    texts: tuple[str, ...] = ()
    """The texts that the run is to follow, to be put before its input."""
    disabled: Set[str] = frozenset()

    @property
    def set_hash(self) -> str | None:
        """The set's hash, which the run's row names; ``None`` for no set."""
        return self.found.hash if self.found is not None else None

    def index(self, tools: Set[str]) -> str:
        """Build the block of the system prompt of a session with these tools; empty where it could load no skill."""
        if self.found is None or _VIEW_TOOL not in tools:
            return ""
        return skill_index(shown_of(self.found, surroundings(tools, self.disabled)))

    def before(self, asked: str | Sequence[Mapping[str, Any]]) -> str | Sequence[Mapping[str, Any]]:
        """Put the texts that the run is to follow before its input."""
        if not self.texts:
            return asked
        if isinstance(asked, str):
            return instructed(self.texts, asked)
        return [{"type": "text", "text": instructed(self.texts, "")}, *asked]


NO_SKILLS = OfferedSkills()


def offered(shelf: SkillShelf, tenant: str, names: Sequence[str] = ()) -> OfferedSkills:
    """Find the skills that a tenant has now. Raises ``SkillError`` for a name that no skill has,
    ``UnavailableError``."""
    if not names:
        return OfferedSkills(found=shelf.current(tenant), disabled=shelf.disabled)
    named = shelf.named(tenant, names)
    if named.missing:
        raise SkillError(f"there is no skill {named.missing[0]!r}; 'GET /v1/skills' lists those there are")
    found = shelf.stored_set(tenant, named.set_hash) if named.set_hash is not None else None
    return OfferedSkills(found=found, texts=named.texts, disabled=shelf.disabled)


# --- for people ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class SkillFileFacts:
    """A file of a skill."""

    path: str
    size: int
    """Bytes."""
    is_executable: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SkillSheet:
    """The newest version of a skill, for people."""

    name: str
    description: str
    category: str | None
    hash: str
    """SHA-256 of its folder."""
    origin: str
    """Its source: ``people`` or ``agents`` through the product, ``home:...`` a directory, ``plugin:...``."""
    changed_at: float
    """Epoch seconds."""
    tags: tuple[str, ...] = ()
    related: tuple[str, ...] = ()
    version: str = ""
    """The version in its front matter."""
    license: str = ""
    compatibility: str = ""
    bundle: tuple[str, ...] = ()
    """What a bundle stands for; empty for a skill."""
    is_usable: bool = True
    """Whether runs here can get it: it is neither disabled nor for another platform."""
    threats: tuple[str, ...] = ()
    """What in its texts looks like an attack: ``PATH: PATTERN``."""
    files: tuple[SkillFileFacts, ...] = ()
    file: str = SKILL_FILE
    """The file that ``content`` is of."""
    content: str | None = None
    """``None`` for a file that is no text."""


def skill_sheet(shelf: SkillShelf, tenant: str, name: str, path: str | None = None) -> SkillSheet:
    """Load the newest version of a skill with the text of one of its files, ``SKILL.md`` unless another is named.
    Raises ``SkillNotFound``, also for a file that it does not have, ``SkillError``, ``UnavailableError``."""
    shelf.look_again(tenant)
    shelf.sync(tenant)
    row = shelf.rows_of(tenant).find(name)
    if row is None:
        raise SkillNotFound(f"there is no skill {name[:80]!r}")
    facts, files = row.entry.facts, shelf.folder(tenant, row.hash)
    wanted = next((file for file in files if file.path == path), None) if path else main_file(files)
    if wanted is None:
        raise SkillNotFound(f"the skill {name!r} has no file {(path or SKILL_FILE)[:200]!r}")
    return SkillSheet(
        name=row.name,
        description=facts.description,
        category=row.category or None,
        hash=row.hash,
        origin=row.origin,
        changed_at=row.changed_at,
        tags=facts.tags,
        related=facts.related,
        version=facts.version,
        license=facts.license,
        compatibility=facts.compatibility,
        bundle=facts.bundle,
        is_usable=shelf.is_usable(facts),
        threats=threats_in(files, Scope.CONTEXT),
        files=tuple(
            SkillFileFacts(path=file.path, size=len(file.body), is_executable=file.is_executable) for file in files
        ),
        file=wanted.path,
        content=wanted.text,
    )
