"""What becomes of text that others may have written, by its origin: one table for all ways in.

``POLICIES`` says for each origin which patterns of ``safety.threats`` its text is judged with, and what is done about a
match and about invisible characters:

* *blocked*: the text does not reach a prompt, or is not kept; a line says so in its place;
* *marked*: it is shown, and what it looks like is named beside it (``safety.untrusted`` puts it into its wrapper);
* *stripped*: the characters are taken out, and the rest is judged.

``judge_text`` is the one function that reads the table. Pure: no clock, nothing is written. Judging is a tripwire and
no wall: what an agent can do is for its tools and its sandbox to decide.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from hermes_worker.safety.threats import (
    JOB_SCANS,
    JobScan,
    ThreatScope,
    find_job_threats,
    find_matching_ids,
    strip_invisible,
)


class TextOrigin(StrEnum):
    """Every way by which text of others gets in."""

    MEMORY_WRITE = "memory_write"
    """An entry of the memory, when it is to be kept."""
    MEMORY = "memory"
    """An entry of the memory that is about to enter a prompt; it may be older than a pattern."""
    RECALLED_MEMORY = "recalled_memory"
    """Text that a memory provider found for a message."""
    SKILL_WRITE = "skill_write"
    """A skill or one of its files, when an agent or an import adds it."""
    SKILL = "skill"
    """A skill that is shown to an agent, and its line in the index."""
    CONTEXT_FILE = "context_file"
    """A file of the project for agents (``AGENTS.md``), and ``SOUL.md``."""
    CONTEXT_SOURCE = "context_source"
    """The text of a context source of an extension."""
    TOOL_RESULT = "tool_result"
    """The result of a tool that says it is untrusted."""
    FOLDER_NOTE = "folder_note"
    """A file for agents that is shown behind the first result that touched its folder."""
    WEBHOOK = "webhook"
    """A value of an event's payload."""
    SCRIPT = "script"
    """The output of a job's script."""
    JOB_ANSWER = "job_answer"
    """The answer of another job or run."""
    JOB_WRITE = "job_write"
    """The prompt of a job, as a person or an agent wrote it."""
    JOB_PROMPT = "job_prompt"
    """The prompt of a job with its skills, its script's output and its context in place."""


class Treatment(StrEnum):
    """The treatment of suspicious text."""

    BLOCKED = "blocked"
    MARKED = "marked"
    STRIPPED = "stripped"


@dataclass(frozen=True, slots=True, kw_only=True)
class OriginPolicy:
    """The treatment of text of one origin."""

    patterns: ThreatScope | JobScan
    """The patterns that it is judged with."""
    threat: Treatment
    """The treatment when one matches."""
    invisible: Treatment
    """The treatment of invisible characters."""
    thing: str
    """The name of the text in the line that replaces it."""


_KEPT = Treatment.BLOCKED
_SHOWN = Treatment.MARKED
_CLEANED = Treatment.STRIPPED

POLICIES: Mapping[TextOrigin, OriginPolicy] = MappingProxyType(
    {
        TextOrigin.MEMORY_WRITE: OriginPolicy(
            patterns=ThreatScope.STRICT, threat=_KEPT, invisible=_KEPT, thing="entry"
        ),
        TextOrigin.MEMORY: OriginPolicy(patterns=ThreatScope.STRICT, threat=_KEPT, invisible=_KEPT, thing="entry"),
        TextOrigin.RECALLED_MEMORY: OriginPolicy(
            patterns=ThreatScope.CONTEXT, threat=_KEPT, invisible=_CLEANED, thing="memory"
        ),
        TextOrigin.SKILL_WRITE: OriginPolicy(patterns=ThreatScope.STRICT, threat=_KEPT, invisible=_KEPT, thing="skill"),
        TextOrigin.SKILL: OriginPolicy(patterns=ThreatScope.CONTEXT, threat=_SHOWN, invisible=_CLEANED, thing="skill"),
        TextOrigin.CONTEXT_FILE: OriginPolicy(
            patterns=ThreatScope.CONTEXT, threat=_KEPT, invisible=_KEPT, thing="file"
        ),
        TextOrigin.CONTEXT_SOURCE: OriginPolicy(
            patterns=ThreatScope.CONTEXT, threat=_KEPT, invisible=_KEPT, thing="text"
        ),
        TextOrigin.TOOL_RESULT: OriginPolicy(
            patterns=ThreatScope.CONTEXT, threat=_SHOWN, invisible=_SHOWN, thing="result"
        ),
        TextOrigin.FOLDER_NOTE: OriginPolicy(
            patterns=ThreatScope.CONTEXT, threat=_SHOWN, invisible=_SHOWN, thing="file"
        ),
        TextOrigin.WEBHOOK: OriginPolicy(patterns=ThreatScope.CONTEXT, threat=_SHOWN, invisible=_SHOWN, thing="event"),
        TextOrigin.SCRIPT: OriginPolicy(patterns=ThreatScope.CONTEXT, threat=_SHOWN, invisible=_SHOWN, thing="output"),
        TextOrigin.JOB_ANSWER: OriginPolicy(
            patterns=ThreatScope.CONTEXT, threat=_SHOWN, invisible=_SHOWN, thing="answer"
        ),
        TextOrigin.JOB_WRITE: OriginPolicy(patterns=JobScan.WRITTEN, threat=_KEPT, invisible=_KEPT, thing="prompt"),
        TextOrigin.JOB_PROMPT: OriginPolicy(
            patterns=JobScan.ASSEMBLED, threat=_KEPT, invisible=_CLEANED, thing="prompt"
        ),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """The findings about a text, and the text that may be used."""

    text: str
    """The text that may enter a prompt: without stripped characters; where it is blocked, the line that says it was
    left out. It is not wrapped.
    """
    threats: tuple[str, ...] = ()
    """Ids of what looks like an attack, each once: for the log and for people. They quote nothing."""
    removed: tuple[str, ...] = ()
    """Labels of the characters that were taken out, such as ``U+200B``."""
    is_blocked: bool = False
    """Whether it must neither be kept nor be shown."""


def judge_text(text: str, origin: TextOrigin) -> Judgement:
    """Decide what becomes of ``text``, which came in by ``origin``.

    >>> judge("The tests run with make.", Origin.MEMORY_WRITE).is_blocked
    False
    """
    policy = POLICIES[origin]
    read, labels = strip_invisible(text.removeprefix("\ufeff"))
    threats = _find_threats(read, policy.patterns)
    match policy.invisible:
        case Treatment.BLOCKED:
            threats = (*(f"invisible_unicode_{label}" for label in labels), *threats)
        case Treatment.MARKED:
            # Zero-width characters are in ordinary pages as well and say nothing by themselves.
            hidden = (label for label in labels if label not in _ORDINARY_INVISIBLE)
            threats = (*(f"invisible_unicode_{label}" for label in hidden), *threats)
        case Treatment.STRIPPED:
            text = read
    removed = labels if policy.invisible is Treatment.STRIPPED else ()
    if threats and policy.threat is Treatment.BLOCKED:
        return Judgement(text=_render_left_out(policy, threats), threats=threats, removed=removed, is_blocked=True)
    return Judgement(text=text, threats=threats, removed=removed)


_ORDINARY_INVISIBLE = frozenset({"U+200B", "U+200C", "U+200D", "U+2060", "U+FEFF"})


def _find_threats(text: str, patterns: ThreatScope | JobScan) -> tuple[str, ...]:
    return (
        find_matching_ids(text, patterns)
        if isinstance(patterns, ThreatScope)
        else find_job_threats(text, JOB_SCANS[patterns])
    )


def _render_left_out(policy: OriginPolicy, threats: tuple[str, ...]) -> str:
    return f"[BLOCKED: this {policy.thing} was left out because it looks like an attack ({', '.join(threats)})]"
