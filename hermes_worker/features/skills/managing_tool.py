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
from hermes_worker.agent.tools.interruptible import run_interruptibly
from hermes_worker.agent.tools.results import build_json_result
from hermes_worker.core.offered_skills import SkillError
from hermes_worker.features.skills import SKILL_MANAGE
from hermes_worker.features.skills.change_rules import (
    SkillAction,
    SkillChangeRequest,
    SkillRewrite,
    add_file,
    choose_patched_path,
    remove_file,
    require_linked_path,
    require_text,
)
from hermes_worker.features.skills.rules import SKILL_FILE, SkillFile

_LATER: Final = "New conversations have it. This one goes on with the skills that it began with."


class SkillKeeper(Protocol):
    """Changes skills. ``features.skills.work``."""

    def change(self, wish: SkillChangeRequest, rewrite: SkillRewrite, context: ToolContext) -> str | None:
        """Change a skill; return the hash of the new version, ``None`` for a skill that is deleted; once for each call.
        Raises ``SkillError``, and ``UnavailableError`` when the database does not answer.
        """


class SkillManageTool:
    """Makes, changes and removes skills for later conversations."""

    def __init__(self, skills: SkillKeeper) -> None:
        self._skills = skills

    spec: Final = SKILL_MANAGE

    def run(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        wish = SkillChangeRequest(**{**arguments, "action": SkillAction(arguments["action"])})
        try:
            run_interruptibly(lambda: _require_no_secret(wish, context), context.cancelled)
            digest = self._skills.change(wish, partial(_rewrite_files, wish, context), context)
        except SkillError as error:
            return build_json_result({"success": False, "error": str(error)}, is_error=True)
        told: dict[str, object] = {"success": True, "message": _format_done(wish), "note": _LATER}
        if digest is not None:
            told["version"] = digest[:12]
        return build_json_result(told)


def _format_done(wish: SkillChangeRequest) -> str:
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


def _rewrite_files(wish: SkillChangeRequest, context: ToolContext, files: Sequence[SkillFile]) -> Sequence[SkillFile]:
    """The files that a skill is to have. Raises ``SkillError``, ``ToolInterrupted``."""
    match wish.action:
        case SkillAction.CREATE | SkillAction.EDIT:
            return add_file(files, SKILL_FILE, _require_argument(wish.content, "content", wish))
        case SkillAction.PATCH:
            path = choose_patched_path(wish)
            text, old = require_text(files, path), _require_argument(wish.old_string, "old_string", wish)
            new = wish.new_string or ""
            done = run_interruptibly(
                lambda: replace_text(text, old, new, replace_all=wish.replace_all), context.cancelled
            )
            if isinstance(done, EditRefused):
                raise SkillError(done.message)
            return add_file(files, path, done.text)
        case SkillAction.WRITE_FILE:
            return add_file(
                files, require_linked_path(wish.file_path), _require_argument(wish.file_content, "file_content", wish)
            )
        case SkillAction.REMOVE_FILE:
            return remove_file(files, require_linked_path(wish.file_path))
        case SkillAction.DELETE:
            return ()


def _require_argument(value: str | None, name: str, wish: SkillChangeRequest) -> str:
    if value is None:
        raise SkillError(f"{name} is required for {wish.action.value!r}.")
    return value


def _require_no_secret(wish: SkillChangeRequest, context: ToolContext) -> None:
    for text in (wish.content, wish.new_string, wish.file_content):
        if text is not None and context.redactor.redact_text(text) != text:
            raise SkillError(
                "Blocked: the text holds what looks like a secret. Others read skills; say where the secret is kept, "
                "and not the secret."
            )
