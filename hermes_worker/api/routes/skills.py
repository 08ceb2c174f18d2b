"""One skill of the tenant, for people (docs/skills.md)."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel

from hermes_worker.api import schema
from hermes_worker.api.auth import READS, Caller
from hermes_worker.api.bodies import JsonRoute
from hermes_worker.api.context import Context
from hermes_worker.api.errors import ApiError
from hermes_worker.core.skills import PATH_CHARS_MAX, SkillNotFound
from hermes_worker.services.skills import SkillSheet, skill_sheet

router = APIRouter(prefix="/v1/skills", tags=["skills"], route_class=JsonRoute, responses=schema.errors(503))

_Name = Annotated[str, Path(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.:-]{0,129}$", description="As lists name it.")]


class SkillFileObject(BaseModel):
    """A file of a skill."""

    path: str
    size: int
    """Bytes."""
    is_executable: bool


class SkillSheetObject(BaseModel):
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


@router.get("/{name}", responses=schema.errors(404), dependencies=[READS])
async def show_skill(
    context: Context,
    caller: Caller,
    name: _Name,
    file: Annotated[
        str | None, Query(min_length=1, max_length=PATH_CHARS_MAX, description="Show this file instead of SKILL.md.")
    ] = None,
) -> SkillSheetObject:
    """The newest version of a skill or bundle of the tenant, whatever runs see of it, with the text of one file."""
    try:
        sheet = await context.store(skill_sheet, context.client.skills, caller.tenant, name, file)
    except SkillNotFound as error:
        raise ApiError(404, f"{error}.", code="skill_not_found") from None
    return _object(sheet)


def _object(sheet: SkillSheet) -> SkillSheetObject:
    return SkillSheetObject.model_validate(sheet, from_attributes=True)
