"""The settings of instructions that agents load."""

from __future__ import annotations

from dataclasses import dataclass

from hermes_worker.settings.declaring import declare_setting
from hermes_worker.settings.kinds import integer, list_of_names, one_of


@dataclass(frozen=True, slots=True, kw_only=True)
class SkillSettings:
    """Instructions that agents load when a task needs them."""

    writes: str = declare_setting(
        "skills.writes",
        "HERMES_SKILL_WRITES",
        one_of("allow", "ask", "off"),
        "allow",
        audience="security",
        reason="agents must not change skills, or a person must agree; they change them freely without it.",
    )
    """Whether agents may make and change skills: `allow`, `ask` (a person allows each change) or `off`."""
    writers: tuple[str, ...] = declare_setting(
        "skills.writers",
        "HERMES_SKILL_WRITERS",
        list_of_names("person|guest|child|webhook|cron", "`person`, `guest`, `child`, `webhook` and `cron`"),
        ("person",),
        audience="security",
        reason="runs that no person began should write skills; only those of people may without it.",
    )
    """Runs that may change skills, with the words of `memory.writers`."""
    external_dirs: tuple[str, ...] = declare_setting(
        "skills.external_dirs",
        "HERMES_SKILL_DIRS",
        list_of_names(r"[/~][^\x00-\x1f]{0,500}", "absolute directories"),
        (),
        audience="operator",
        reason="a team shares skills in a directory; only those of the home are found without it.",
    )
    """Further directories of skills, beside `HOME/skills`; a name in the home stands before theirs."""
    disabled: tuple[str, ...] = declare_setting(
        "skills.disabled",
        "HERMES_SKILLS_DISABLED",
        list_of_names(r"[A-Za-z0-9_][\w.:-]{0,129}", "names of skills"),
        (),
        audience="operator",
        reason="a skill misleads agents and cannot be removed; they are shown it without it.",
    )
    """Skills that no agent is shown."""
    creation_nudge_interval: int = declare_setting(
        "skills.creation_nudge_interval",
        "HERMES_SKILL_NUDGE_INTERVAL",
        integer(0, 10_000),
        0,
        audience="operator",
        reason="agents forget to write skills; nobody looks for them without it.",
    )
    """Model calls of a conversation without a call of `skill_manage`, behind which a run of its own looks for what
    should become a skill (docs/memory.md); 0 for never. 10 in Hermes Agent."""
