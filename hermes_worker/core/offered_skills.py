"""Say what a run is offered of skills, and who may be asked for them. Pure.

The kernel knows skills as this and no more: a set whose hash a run's row names, an index for prompts, and texts to put
before an input. ``SkillLibrary`` is implemented by ``features.skills.shelf_files.SkillShelf``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, Protocol

from hermes_worker.core.errors import HermesError

ALONGSIDE = "The user gave this instruction alongside the skill(s) above:"


class SkillError(HermesError):
    """A skill cannot be kept or used as it is; the message says what to change."""


def prepend_skills(texts: Sequence[str], prompt: str) -> str:
    """Put the texts of skills before the prompt that is to be done by them."""
    return "\n\n".join((*(text.strip() for text in texts), ALONGSIDE, prompt)) if texts else prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedSkills:
    """The skills that a job, a route or a submission names, as texts to put before its prompt."""

    texts: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    set_hash: str | None = None
    """The set that the texts are from: the run is given the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferedSkills:
    """The skills for one run."""

    set_hash: str | None = None
    """The hash of the set of all skills, which the run's row names; ``None`` for no set."""
    texts: tuple[str, ...] = ()
    """The texts that the run is to follow, to be put before its input."""
    build_index: Callable[[Set[str]], str] = lambda tools: ""
    """Builds the block of the system prompt of a session with these tools; empty where it could load no skill."""

    def prepend_texts(self, asked: str | Sequence[Mapping[str, Any]]) -> str | Sequence[Mapping[str, Any]]:
        """Put the texts that the run is to follow before its input."""
        if not self.texts:
            return asked
        if isinstance(asked, str):
            return prepend_skills(self.texts, asked)
        return [{"type": "text", "text": prepend_skills(self.texts, "")}, *asked]


NO_SKILLS = OfferedSkills()


class SkillLibrary(Protocol):
    """The skills of every tenant. Its methods raise ``UnavailableError``."""

    def find_offered(self, tenant: str, names: Sequence[str] = ()) -> OfferedSkills:
        """Find the skills that a tenant has now, with the texts of those that ``names`` name. Raises ``SkillError`` for
        a name that no skill has."""

    def find_stored(self, tenant: str, digest: str) -> OfferedSkills:
        """Find the skills of a set that was stored before, by its hash. Raises ``SkillError``."""

    def load_named(self, tenant: str, names: Sequence[str]) -> NamedSkills:
        """The texts of skills and bundles, in order and each once; missing names are listed."""
