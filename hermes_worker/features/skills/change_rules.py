"""What an agent does to a skill, as values: which files it has afterwards, and whether it may. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from hermes_worker.features.memory.rules import MemoryWriter, why_not_writer
from hermes_worker.features.skills.rules import (
    FILE_BYTES_MAX,
    SKILL_FILE,
    WRITABLE_FOLDERS,
    SkillError,
    SkillFile,
    checked_files,
    checked_path,
)

SKILL_MANAGE_TOOL: Final = "skill_manage"
SkillRewrite = Callable[[Sequence[SkillFile]], Sequence[SkillFile]]
"""Gives the files that a skill is to have for those that it has."""


class SkillAction(StrEnum):
    """The original's actions of ``skill_manage``."""

    CREATE = "create"
    PATCH = "patch"
    EDIT = "edit"
    DELETE = "delete"
    WRITE_FILE = "write_file"
    REMOVE_FILE = "remove_file"


@dataclass(frozen=True, slots=True, kw_only=True)
class SkillWish:
    """What a call wants of a skill."""

    action: SkillAction
    name: str
    content: str | None = None
    """For ``create`` and ``edit``: the whole of ``SKILL.md``."""
    old_string: str | None = None
    new_string: str | None = None
    replace_all: bool = False
    category: str | None = None
    file_path: str | None = None
    file_content: str | None = None
    absorbed_into: str | None = None
    """For ``delete``: the skill that has its content now."""

    @property
    def overwrites(self) -> bool:
        """Whether it is about a skill as a whole, as its author knows it, rather than about a text that must still be
        there."""
        return self.action not in (SkillAction.CREATE, SkillAction.PATCH)


def linked_path(path: str | None) -> str:
    """A path where agents may put files. Raises ``SkillError``."""
    composed = checked_path(path or "")
    folder, slash, _ = composed.partition("/")
    if not slash or folder not in WRITABLE_FOLDERS:
        raise SkillError(f"file_path must be below one of {', '.join(WRITABLE_FOLDERS)}, not {composed[:80]!r}")
    return composed


def with_file(files: Sequence[SkillFile], path: str, text: str) -> tuple[SkillFile, ...]:
    """The files with this one written. Raises ``SkillError``."""
    body = text.encode()
    if len(body) > FILE_BYTES_MAX:
        raise SkillError(f"the file {path!r} has more than {FILE_BYTES_MAX:,} bytes")
    before = next((file for file in files if file.path == path), None)
    is_executable = before is not None and before.is_executable
    others = (file for file in files if file.path != path)
    return checked_files((*others, SkillFile(path=path, body=body, is_executable=is_executable)))


def without_file(files: Sequence[SkillFile], path: str) -> tuple[SkillFile, ...]:
    """The files without this one. Raises ``SkillError`` where it is not there."""
    others = tuple(file for file in files if file.path != path)
    if len(others) == len(files):
        raise SkillError(f"File {path!r} not found in the skill.")
    return others


def text_to_patch(files: Sequence[SkillFile], path: str) -> str:
    """The text of a file that is to be changed. Raises ``SkillError``."""
    found = next((file for file in files if file.path == path), None)
    if found is None:
        raise SkillError(f"File {path!r} not found in the skill.")
    if found.text is None:
        raise SkillError(f"File {path!r} is no text.")
    return found.text


def changed_texts(before: Sequence[SkillFile], after: Sequence[SkillFile]) -> tuple[SkillFile, ...]:
    """The files of ``after`` that are new or say something else than before."""
    known = {file.path: file.body for file in before}
    return tuple(file for file in after if known.get(file.path) != file.body)


def patched_path(wish: SkillWish) -> str:
    """The file that a patch is about: ``SKILL.md`` unless another is named. Raises ``SkillError``."""
    return SKILL_FILE if wish.file_path in (None, "", SKILL_FILE) else linked_path(wish.file_path)


class SkillWrites(StrEnum):
    """Whether agents may change skills."""

    ALLOW = "allow"
    ASK = "ask"
    """A person allows each change."""
    OFF = "off"


@dataclass(frozen=True, slots=True, kw_only=True)
class SkillPolicy:
    """What an installation says of agents that change skills."""

    writes: SkillWrites = SkillWrites.ALLOW
    writers: frozenset[MemoryWriter] = frozenset({MemoryWriter.PERSON})
    """Whose runs may."""


def require_skill_writer(asking: Collection[MemoryWriter], policy: SkillPolicy) -> None:
    """Raises ``SkillError`` for a run that may not change skills."""
    if policy.writes is SkillWrites.OFF:
        raise SkillError("Agents may not change skills here. Go on without.")
    if why := why_not_writer(asking, policy.writers):
        raise SkillError(f"This run may not change skills: {why}. Go on without.")
