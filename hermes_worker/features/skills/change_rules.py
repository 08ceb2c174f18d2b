"""An agent's changes to a skill, as values: the files after a change, and whether it may be made. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum

from hermes_worker.core.offered_skills import SkillError
from hermes_worker.core.run_writers import MemoryWriter, explain_not_writer
from hermes_worker.features.skills.rules import (
    FILE_BYTES_MAX,
    SKILL_FILE,
    WRITABLE_FOLDERS,
    SkillFile,
    require_files,
    require_path,
)
from hermes_worker.features.skills.tool_rules import SKILL_MANAGE_TOOL as SKILL_MANAGE_TOOL
from hermes_worker.features.skills.tool_rules import SkillAction as SkillAction

SkillRewrite = Callable[[Sequence[SkillFile]], Sequence[SkillFile]]
"""A function from the present files of a skill to the new ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SkillChangeRequest:
    """The change that a call asks for."""

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
    """For ``delete``: the skill that now has its content."""

    @property
    def overwrites(self) -> bool:
        """Whether the change replaces the whole skill, and not a text that must still be there."""
        return self.action not in (SkillAction.CREATE, SkillAction.PATCH)


def require_linked_path(path: str | None) -> str:
    """Return a path where agents may put files. Raises ``SkillError``."""
    composed = require_path(path or "")
    folder, slash, _ = composed.partition("/")
    if not slash or folder not in WRITABLE_FOLDERS:
        raise SkillError(f"file_path must be below one of {', '.join(WRITABLE_FOLDERS)}, not {composed[:80]!r}")
    return composed


def add_file(files: Sequence[SkillFile], path: str, text: str) -> tuple[SkillFile, ...]:
    """Add or replace a file. Raises ``SkillError``."""
    body = text.encode()
    if len(body) > FILE_BYTES_MAX:
        raise SkillError(f"the file {path!r} has more than {FILE_BYTES_MAX:,} bytes")
    before = next((file for file in files if file.path == path), None)
    is_executable = before is not None and before.is_executable
    others = (file for file in files if file.path != path)
    return require_files((*others, SkillFile(path=path, body=body, is_executable=is_executable)))


def remove_file(files: Sequence[SkillFile], path: str) -> tuple[SkillFile, ...]:
    """Remove a file. Raises ``SkillError`` when it does not exist."""
    others = tuple(file for file in files if file.path != path)
    if len(others) == len(files):
        raise SkillError(f"File {path!r} not found in the skill.")
    return others


def require_text(files: Sequence[SkillFile], path: str) -> str:
    """Return the text of a file that is to be changed. Raises ``SkillError``."""
    found = next((file for file in files if file.path == path), None)
    if found is None:
        raise SkillError(f"File {path!r} not found in the skill.")
    if found.text is None:
        raise SkillError(f"File {path!r} is no text.")
    return found.text


def find_changed_files(before: Sequence[SkillFile], after: Sequence[SkillFile]) -> tuple[SkillFile, ...]:
    """Find the files of ``after`` that are new or differ from ``before``."""
    known = {file.path: file.body for file in before}
    return tuple(file for file in after if known.get(file.path) != file.body)


def choose_patched_path(wish: SkillChangeRequest) -> str:
    """The file that a patch changes: ``SKILL.md`` unless another is named. Raises ``SkillError``."""
    return SKILL_FILE if wish.file_path in (None, "", SKILL_FILE) else require_linked_path(wish.file_path)


class SkillWrites(StrEnum):
    """Whether agents may change skills."""

    ALLOW = "allow"
    ASK = "ask"
    """A person allows each change."""
    OFF = "off"


@dataclass(frozen=True, slots=True, kw_only=True)
class SkillPolicy:
    """The policy of an installation for agents that change skills."""

    writes: SkillWrites = SkillWrites.ALLOW
    writers: frozenset[MemoryWriter] = frozenset({MemoryWriter.PERSON})
    """The roles of runs that may change skills."""


def require_skill_writer(asking: Collection[MemoryWriter], policy: SkillPolicy) -> None:
    """Require that a run with the roles ``asking`` may change skills. Raises ``SkillError``."""
    if policy.writes is SkillWrites.OFF:
        raise SkillError("Agents may not change skills here. Go on without.")
    if why := explain_not_writer(asking, policy.writers):
        raise SkillError(f"This run may not change skills: {why}. Go on without.")
