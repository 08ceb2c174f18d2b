"""``skill_manage``: keeps an agent's notes on how a task is done (docs/skills.md).

Of class ``keyed``: a change is known by the key of the call that asked for it, so a call whose worker vanished is made
again and changes nothing twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final, Protocol

from hermes_worker.agent.tools.base import ToolContext, ToolResult
from hermes_worker.agent.tools.fuzzy import EditRefused, replace_text
from hermes_worker.agent.tools.interruptible import interruptible
from hermes_worker.agent.tools.results import json_result
from hermes_worker.features.skills import SKILL_MANAGE
from hermes_worker.features.skills.change_rules import (
    SkillAction,
    SkillRewrite,
    SkillWish,
    linked_path,
    patched_path,
    text_to_patch,
    with_file,
    without_file,
)
from hermes_worker.features.skills.rules import SKILL_FILE, SkillError, SkillFile

_LATER: Final = "New conversations have it. This one goes on with the skills that it began with."


class SkillKeeper(Protocol):
    """Changes skills. ``features.skills.work``."""

    def change(self, wish: SkillWish, rewrite: SkillRewrite, context: ToolContext) -> str | None:
        """Change a skill; return the hash of the new version, ``None`` for a skill that is deleted; once for each call.
        Raises ``SkillError``, and ``UnavailableError`` when the database does not answer.
        """


class SkillManageTool:
    """Makes, changes and removes skills for later conversations."""

    def __init__(self, skills: SkillKeeper) -> None:
        self._skills = skills

    spec: Final = SKILL_MANAGE

    def run(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        wish = SkillWish(**{**arguments, "action": SkillAction(arguments["action"])})
        try:
            interruptible(lambda: _require_no_secret(wish, context), context.cancelled)
            digest = self._skills.change(wish, partial(_rewritten, wish, context), context)
        except SkillError as error:
            return json_result({"success": False, "error": str(error)}, is_error=True)
        told: dict[str, object] = {"success": True, "message": _done(wish), "note": _LATER}
        if digest is not None:
            told["version"] = digest[:12]
        return json_result(told)


def _done(wish: SkillWish) -> str:
    name, path = wish.name, wish.file_path or SKILL_FILE
    into = f" Its content is in {wish.absorbed_into!r}." if wish.absorbed_into else ""
    return {
        SkillAction.CREATE: f"Skill {name!r} created.",
        SkillAction.EDIT: f"Skill {name!r} updated.",
        SkillAction.PATCH: f"Patched {path} in skill {name!r}.",
        SkillAction.DELETE: f"Skill {name!r} deleted.{into}",
        SkillAction.WRITE_FILE: f"File {path!r} written to skill {name!r}.",
        SkillAction.REMOVE_FILE: f"File {path!r} removed from skill {name!r}.",
    }[wish.action]


def _rewritten(wish: SkillWish, context: ToolContext, files: Sequence[SkillFile]) -> Sequence[SkillFile]:
    """The files that a skill is to have. Raises ``SkillError``, ``ToolInterrupted``."""
    match wish.action:
        case SkillAction.CREATE | SkillAction.EDIT:
            return with_file(files, SKILL_FILE, _given(wish.content, "content", wish))
        case SkillAction.PATCH:
            path = patched_path(wish)
            text, old = text_to_patch(files, path), _given(wish.old_string, "old_string", wish)
            new = wish.new_string or ""
            done = interruptible(lambda: replace_text(text, old, new, replace_all=wish.replace_all), context.cancelled)
            if isinstance(done, EditRefused):
                raise SkillError(done.message)
            return with_file(files, path, done.text)
        case SkillAction.WRITE_FILE:
            return with_file(files, linked_path(wish.file_path), _given(wish.file_content, "file_content", wish))
        case SkillAction.REMOVE_FILE:
            return without_file(files, linked_path(wish.file_path))
        case SkillAction.DELETE:
            return ()


def _given(value: str | None, name: str, wish: SkillWish) -> str:
    if value is None:
        raise SkillError(f"{name} is required for {wish.action.value!r}.")
    return value


def _require_no_secret(wish: SkillWish, context: ToolContext) -> None:
    for text in (wish.content, wish.new_string, wish.file_content):
        if text is not None and context.redactor.text(text) != text:
            raise SkillError(
                "Blocked: the text holds what looks like a secret. Others read skills; say where the secret is kept, "
                "and not the secret."
            )
