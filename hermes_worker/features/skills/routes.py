"""One skill of the tenant, for people (docs/skills.md)."""

from __future__ import annotations

import base64
import binascii
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel, Field

from hermes_worker.api import schema
from hermes_worker.api.auth import READS, Caller, declare_scope
from hermes_worker.api.bodies import JsonRoute
from hermes_worker.api.context import Context
from hermes_worker.api.errors import ApiError
from hermes_worker.core.offered_skills import SkillError
from hermes_worker.core.principals import KeyScope
from hermes_worker.features.skills.rules import (
    FILE_BYTES_MAX,
    FILES_MAX,
    PATH_CHARS_MAX,
    SKILL_FILE,
    SkillFile,
    SkillMoved,
    SkillNotFound,
    find_main_file,
    require_files,
)
from hermes_worker.features.skills.schema import RemovedSkill, SkillFileObject, SkillSheetObject
from hermes_worker.features.skills.shelf_files import SkillShelf
from hermes_worker.features.skills.text_rules import find_threats
from hermes_worker.safety.threats import ThreatScope

router = APIRouter(prefix="/v1/skills", tags=["skills"], route_class=JsonRoute, responses=schema.declare_errors(503))

_CHANGES = declare_scope(KeyScope.MEMORY)
_Name = Annotated[str, Path(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.:-]{0,129}$", description="As lists name it.")]

_Hash = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class GivenFile(BaseModel, extra="forbid"):
    """A file of a skill, as ``text`` or as ``base64``."""

    path: str = Field(min_length=1, max_length=PATH_CHARS_MAX)
    text: str | None = Field(default=None, max_length=FILE_BYTES_MAX)
    base64: str | None = Field(default=None, max_length=2 * FILE_BYTES_MAX)
    is_executable: bool = Field(default=False, strict=True)


class KeepBody(BaseModel, extra="forbid"):
    """A version of a skill: all of its files."""

    files: list[GivenFile] = Field(min_length=1, max_length=FILES_MAX)
    category: str | None = Field(default=None, pattern=r"^([A-Za-z0-9_][A-Za-z0-9_.-]{0,63})?$")
    expects: _Hash | None = Field(default=None, description="Only if this is the newest version.")


@router.get("/{skill}", responses=schema.declare_errors(404), dependencies=[READS])
async def show_skill(
    context: Context,
    caller: Caller,
    skill: _Name,
    file: Annotated[
        str | None, Query(min_length=1, max_length=PATH_CHARS_MAX, description="Show this file instead of SKILL.md.")
    ] = None,
) -> SkillSheetObject:
    """The newest version of a skill or bundle of the tenant, even one that runs do not get, with the text of one
    file."""
    try:
        return await context.call_store(_describe_skill, context.client.skills, caller.tenant, skill, file)
    except SkillNotFound as error:
        raise ApiError(404, f"{error}.", code="skill_not_found") from None


@router.put("/{skill}", responses=schema.declare_errors(400, 404, 409), dependencies=[_CHANGES])
async def keep_skill(context: Context, caller: Caller, skill: _Name, body: KeepBody) -> SkillSheetObject:
    """Add a skill, or make this its newest version. It must be one of agentskills.io, and no text in it may look like
    an attack; what is not is refused (409, ``invalid_skill``). Runs that began before go on with what they have."""
    shelf = context.client.skills
    try:
        files = require_files([_decode_file(each) for each in body.files])
        keep = partial(shelf.keep_version, by="people", category=body.category, expects=body.expects)
        await context.call_store(keep, caller.tenant, skill, lambda _: files)
        return await context.call_store(_describe_skill, shelf, caller.tenant, skill)
    except SkillNotFound as error:
        raise ApiError(404, f"{error}.", code="skill_not_found") from None
    except SkillMoved as error:
        raise ApiError(409, f"{error}.", code="skill_changed", param="expects") from None
    except SkillError as error:
        raise ApiError(409, f"{error}.", code="invalid_skill", param="files") from None


@router.delete("/{skill}", responses=schema.declare_errors(404, 409), dependencies=[_CHANGES])
async def remove_skill(
    context: Context,
    caller: Caller,
    skill: _Name,
    expects: Annotated[
        str | None, Query(pattern=r"^[0-9a-f]{64}$", description="Only if this is the newest version.")
    ] = None,
) -> RemovedSkill:
    """Take a skill away. One that a folder brought stays away until the folder changes."""
    try:
        await context.call_store(partial(context.client.skills.remove_skill, expects=expects), caller.tenant, skill)
    except SkillNotFound as error:
        raise ApiError(404, f"{error}.", code="skill_not_found") from None
    except SkillError as error:
        raise ApiError(409, f"{error}.", code="skill_changed") from None
    return RemovedSkill(name=skill)


def _decode_file(file: GivenFile) -> SkillFile:
    """Decode a file of a skill. Raises ``SkillError``."""
    if (file.text is None) == (file.base64 is None):
        raise SkillError(f"the file {file.path!r} needs either 'text' or 'base64'")
    try:
        body = file.text.encode() if file.text is not None else base64.b64decode(file.base64 or "", validate=True)
    except (binascii.Error, ValueError):
        raise SkillError(f"the file {file.path!r} is neither text nor base64") from None
    return SkillFile(path=file.path, body=body, is_executable=file.is_executable)


def _describe_skill(shelf: SkillShelf, tenant: str, name: str, path: str | None = None) -> SkillSheetObject:
    """Return the newest version of a skill with the text of one of its files, ``SKILL.md`` unless another is named.
    Raises ``SkillNotFound``, also for a file that it does not have, ``SkillError``, ``UnavailableError``."""
    shelf.forget_look(tenant)
    shelf.sync(tenant)
    row = shelf.open_tenant_skills(tenant).find(name)
    if row is None:
        raise SkillNotFound(f"there is no skill {name[:80]!r}")
    facts, files = row.entry.facts, shelf.load_files(tenant, row.hash)
    wanted = next((file for file in files if file.path == path), None) if path else find_main_file(files)
    if wanted is None:
        raise SkillNotFound(f"the skill {name!r} has no file {(path or SKILL_FILE)[:200]!r}")
    return SkillSheetObject(
        name=row.name,
        description=facts.description,
        category=row.category or None,
        hash=row.hash,
        origin=row.origin,
        changed_at=row.changed_at,
        tags=list(facts.tags),
        related=list(facts.related),
        version=facts.version,
        license=facts.license,
        compatibility=facts.compatibility,
        bundle=list(facts.bundle),
        is_usable=shelf.is_usable(facts),
        threats=list(find_threats(files, ThreatScope.CONTEXT)),
        files=[
            SkillFileObject(path=file.path, size=len(file.body), is_executable=file.is_executable) for file in files
        ],
        file=wanted.path,
        content=wanted.text,
    )
