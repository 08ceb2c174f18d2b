"""Instructions that agents load for kinds of tasks."""

from __future__ import annotations

from hermes_worker.core.replay import Replay
from hermes_worker.extension import (
    CommandDeclaration,
    Extension,
    RouterDeclaration,
    ToolDeclaration,
    ToolSpec,
    UpkeepDeclaration,
)
from hermes_worker.features.skills.tool_rules import SKILL_MANAGE_TOOL, SkillAction

SKILLS_LIST = ToolSpec(
    name="skills_list",
    description=(
        "List the skills that you can load, with their descriptions. A skill is a set of instructions for a kind of "
        "task; skill_view(name) loads it."
    ),
    parameters={
        "type": "object",
        "properties": {"category": {"type": "string", "description": "Only skills of this category."}},
    },
    toolset="skills",
    is_untrusted=False,
    # A run's set of skills never changes: the same question has the same answer.
    replay=Replay.PURE,
    timeout_s=30,
    is_parallel_safe=True,
)

SKILL_VIEW = ToolSpec(
    name="skill_view",
    description=(
        "Load a skill: its whole instructions and the names of its linked files (references, templates, scripts, "
        "assets). To read one of those, call it again with file_path. Load a skill before you begin with what it is "
        "for, and follow it."
    ),
    parameters={
        "type": "object",
        "properties": {
            "name": {"type": "string", "description": "As skills_list names it."},
            "file_path": {"type": "string", "description": "A linked file, such as 'references/api.md'."},
        },
        "required": ["name"],
    },
    toolset="skills",
    is_untrusted=False,
    # What it reads never changes, and what it lays out in the workspace has the skill's hash in its path: a second
    # attempt finds it there, or writes the same bytes.
    replay=Replay.PURE,
    timeout_s=120,
    is_parallel_safe=True,
)

SKILL_MANAGE = ToolSpec(
    name=SKILL_MANAGE_TOOL,
    description=(
        "Keep a procedure for later conversations as a skill, or mend one. Actions: create (content: the whole "
        "SKILL.md with front matter, optional category), patch (old_string and new_string, in SKILL.md or in "
        "file_path; prefer it for fixes), edit (content: a whole new SKILL.md), delete (absorbed_into: the skill that "
        "has its content now, if any), write_file and remove_file (file_path below references/, templates/, scripts/ "
        "or assets/). Create one when a hard task succeeded by a way worth keeping, or when the user asks; mend one "
        "that turned out wrong. This conversation goes on with the skills that it began with; new ones have the change."
    ),
    parameters={
        "type": "object",
        "properties": {
            "action": {"type": "string", "enum": [action.value for action in SkillAction]},
            "name": {"type": "string", "description": "Lower-case letters, digits and hyphens, at most 64."},
            "content": {"type": "string", "description": "create, edit: front matter (name, description) and text."},
            "old_string": {"type": "string", "description": "patch: the text to find."},
            "new_string": {"type": "string", "description": "patch: what stands there afterwards."},
            "replace_all": {"type": "boolean", "description": "patch: every place. Default: there must be one."},
            "category": {"type": "string", "description": "create: one word."},
            "file_path": {"type": "string", "description": "write_file, remove_file, patch: 'references/api.md'."},
            "file_content": {"type": "string", "description": "write_file: the whole file."},
            "absorbed_into": {"type": "string", "description": "delete: the skill that has its content now."},
        },
        "required": ["action", "name"],
    },
    toolset="skills",
    is_untrusted=False,
    # The store knows a change by the key of its call.
    replay=Replay.KEYED,
    timeout_s=60,
    refuses_markers=(
        "nothing was kept: the text contains a «redacted» marker, which stands for a secret that is hidden from you"
    ),
)

EXTENSION = Extension(
    name="hermes-skills",
    version="1",
    summary="Instructions that agents load for kinds of tasks",
    tools=(
        ToolDeclaration(
            spec=SKILLS_LIST,
            implementation="hermes_worker.features.skills.reading_tool:SkillsListTool",
            needs=("skills",),
        ),
        ToolDeclaration(
            spec=SKILL_VIEW,
            implementation="hermes_worker.features.skills.reading_tool:SkillViewTool",
            needs=("skills",),
        ),
        ToolDeclaration(
            spec=SKILL_MANAGE,
            implementation="hermes_worker.features.skills.managing_tool:SkillManageTool",
            needs=("skills",),
        ),
    ),
    joins=(),
    routers=(
        RouterDeclaration(
            name="skills",
            implementation="hermes_worker.features.skills.routes:router",
            paths=("/v1/skills/{skill}",),
        ),
    ),
    commands=(
        CommandDeclaration(
            name="skills",
            summary="List, show, add, remove and check the instructions that agents load for kinds of tasks.",
            implementation="hermes_worker.features.skills.verbs:skills",
            section="Conversations",
        ),
    ),
    upkeep=(
        UpkeepDeclaration(
            name="skill_contents",
            prune_rows="hermes_worker.features.skills.rows:prune_skills",
        ),
    ),
    tables=(
        "hermes_worker.features.skills.tables:skills",
        "hermes_worker.features.skills.tables:skill_contents",
        "hermes_worker.features.skills.tables:skill_changes",
    ),
)
