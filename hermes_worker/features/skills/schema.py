"""Skills, as the API answers them, the client returns them and commands print them."""

from __future__ import annotations

from typing import Literal

from hermes_worker.resource import Resource


class SkillFileObject(Resource):
    """A file of a skill."""

    path: str
    size: int
    """Bytes."""
    is_executable: bool


class SkillSheetObject(Resource):
    """The newest version of a skill."""

    object: Literal["hermes.skill"] = "hermes.skill"
    name: str
    description: str
    category: str | None
    hash: str
    """SHA-256 of its folder."""
    origin: str
    """Who brought it: ``people`` or ``agents`` through the product, ``home:...`` a directory, ``plugin:...``."""
    changed_at: float
    """Epoch seconds."""
    tags: list[str]
    related: list[str]
    version: str
    """As its front matter says."""
    license: str
    compatibility: str
    bundle: list[str]
    """What a bundle stands for; empty for a skill."""
    is_usable: bool
    """Runs can be given it: it is neither disabled nor for another platform."""
    threats: list[str]
    """What in its texts looks like an attack: path and pattern."""
    files: list[SkillFileObject]
    file: str
    """The file that ``content`` is of."""
    content: str | None
    """``null`` for a file that is no text."""


class RemovedSkill(Resource):
    """A skill that was removed. Runs that began with it keep it."""

    object: Literal["hermes.skill.removed"] = "hermes.skill.removed"
    name: str
