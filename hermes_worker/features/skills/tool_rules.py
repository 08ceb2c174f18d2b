"""The name of the tool that changes skills, and its actions. Declarations import it, so it is small."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

SKILL_MANAGE_TOOL: Final = "skill_manage"


class SkillAction(StrEnum):
    """The original's actions of ``skill_manage``."""

    CREATE = "create"
    PATCH = "patch"
    EDIT = "edit"
    DELETE = "delete"
    WRITE_FILE = "write_file"
    REMOVE_FILE = "remove_file"
