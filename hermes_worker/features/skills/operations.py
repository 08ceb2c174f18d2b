"""The operations of the API about skills."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from hermes_worker.features.skills.schema import RemovedSkill, SkillSheetObject
from hermes_worker.operation import ApiRequest, build_get, make_reader


def skill(name: str, *, file: str | None = None) -> ApiRequest[SkillSheetObject]:
    """The newest version of a skill: what it says of itself, its files, and the text of one, ``SKILL.md`` by
    default."""
    return build_get("/v1/skills/{skill}", make_reader(SkillSheetObject), {"skill": name}, file=file)


def keep_skill(
    name: str, files: Sequence[Mapping[str, Any]], *, category: str | None = None, expects: str | None = None
) -> ApiRequest[SkillSheetObject]:
    """Add a skill, or make these files its newest version, of ``expects`` only where that is given:
    ``[{"path": "SKILL.md", "text": "..."}]``. Idempotent."""
    body = {"files": [dict(each) for each in files], "category": category, "expects": expects}
    return ApiRequest(
        method="PUT",
        template="/v1/skills/{skill}",
        read=make_reader(SkillSheetObject),
        names={"skill": name},
        body=body,
    )


def remove_skill(name: str, *, expects: str | None = None) -> ApiRequest[RemovedSkill]:
    """Take a skill away, of this version only where one is given."""
    asked = ApiRequest(
        method="DELETE", template="/v1/skills/{skill}", read=make_reader(RemovedSkill), names={"skill": name}
    )
    return replace(asked, params={"expects": expects})
