"""The settings of what agents remember between conversations."""

from __future__ import annotations

from dataclasses import dataclass

from hermes_worker.settings.declaring import declare_setting
from hermes_worker.settings.kinds import SWITCH, integer, list_of_names, text_matching


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySettings:
    """What agents remember between conversations."""

    is_enabled: bool = declare_setting(
        "memory.memory_enabled",
        "HERMES_MEMORY",
        SWITCH,
        True,
        audience="operator",
        reason="agents must remember nothing; they keep notes without it.",
    )
    """Whether agents keep notes of their own."""
    knows_user: bool = declare_setting(
        "memory.user_profile_enabled",
        "HERMES_MEMORY_USER",
        SWITCH,
        True,
        audience="security",
        reason="nothing about people may be kept; agents keep what they learn without it.",
    )
    """Whether agents keep what they know about the user."""
    chars_max: int = declare_setting(
        "memory.memory_char_limit",
        "HERMES_MEMORY_CHARS",
        integer(100, 100_000),
        2200,
        audience="operator",
        reason="notes fill up, or prompts are too long; agents have 2,200 characters without it.",
    )
    """Characters of all notes together, which stand in every system prompt."""
    user_chars_max: int = declare_setting(
        "memory.user_char_limit",
        "HERMES_MEMORY_USER_CHARS",
        integer(100, 100_000),
        1375,
        audience="operator",
        reason="the profile fills up, or prompts are too long; agents have 1,375 characters without it.",
    )
    """The same for what is known about the user."""
    write_approval: bool = declare_setting(
        "memory.write_approval",
        "HERMES_MEMORY_APPROVAL",
        SWITCH,
        False,
        audience="security",
        reason="a person must see what is remembered; runs write it themselves without it.",
    )
    """Whether what runs want to remember waits for a person: see `hermes-worker memory approve`."""
    writers: tuple[str, ...] = declare_setting(
        "memory.writers",
        "HERMES_MEMORY_WRITERS",
        list_of_names("person|guest|child|webhook|cron", "`person`, `guest`, `child`, `webhook` and `cron`"),
        ("person",),
        audience="security",
        reason="runs that no person began should remember, too; only those of people may without it.",
    )
    """Runs that may change what is remembered: of a `person`, of a `guest` (a key without the scope `memory`), those
    that another run delegated (`child`), that an event began (`webhook`) or a schedule (`cron`)."""
    profile: str = declare_setting(
        "memory.profile",
        "HERMES_MEMORY_PROFILE",
        text_matching(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,59}", "a name of at most 60 letters, digits, '_', '.' and '-'"),
        "default",
        audience="operator",
        reason="several fleets share a database; they share one memory without it.",
    )
    """Which of a tenant's memories runs of this fleet have."""
    nudge_interval: int = declare_setting(
        "memory.nudge_interval",
        "HERMES_MEMORY_NUDGE_INTERVAL",
        integer(0, 1_000),
        0,
        audience="operator",
        reason="agents forget to take notes; nobody looks for what to remember without it.",
    )
    """Turns of a conversation without a call of `memory`, behind which a run of its own looks for what to remember
    (docs/memory.md); 0 for never. 10 in Hermes Agent."""
