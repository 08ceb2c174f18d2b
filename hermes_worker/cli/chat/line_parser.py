"""Parse a line of a chat: the meaning of a line, and what it may become. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from hermes_worker.cli.chat.turn import PendingQuestion
from hermes_worker.core.answer_binding import parse_code
from hermes_worker.core.slash_commands import SLASH_COMMANDS, SlashCommand, find_nearest


class SlashVerb(StrEnum):
    """The commands of the terminal, by their names in the table."""

    HELP = "help"
    NEW = "new"
    STOP = "stop"
    STATUS = "status"
    QUEUE = "queue"
    STEER = "steer"
    BACKGROUND = "background"
    GOAL = "goal"
    UNDO = "undo"
    RETRY = "retry"
    BRANCH = "branch"
    HISTORY = "history"
    RESUME = "resume"
    SESSIONS = "sessions"
    TITLE = "title"
    USAGE = "usage"
    CONTEXT = "context"
    COMPRESS = "compress"
    MODEL = "model"
    REASONING = "reasoning"
    TOOLS = "tools"
    SKILLS = "skills"
    MEMORY = "memory"
    TREE = "tree"
    AGENTS = "agents"
    SHOW = "show"
    DIFF = "diff"
    ROLLBACK = "rollback"
    EXPORT = "export"
    IMAGE = "image"
    SHARE = "share"
    COPY = "copy"
    APPROVALS = "approvals"
    APPROVE = "approve"
    DENY = "deny"
    JOBS = "jobs"
    QUIT = "quit"


COMMANDS: Sequence[SlashCommand] = tuple(row for row in SLASH_COMMANDS if row.summary)
_BY_NAME = {name: command for command in COMMANDS for name in (command.name, *command.aliases)}
ALLOWING = ("once", "session", "always")
_YES = {"y": "once", "yes": "once"}
_NO = ("n", "no", "deny")


@dataclass(frozen=True, slots=True, kw_only=True)
class Say:
    """Text for the agent."""

    text: str
    kind: Literal["say"] = "say"


@dataclass(frozen=True, slots=True, kw_only=True)
class Do:
    """A command."""

    verb: SlashVerb
    argument: str = ""
    kind: Literal["do"] = "do"


@dataclass(frozen=True, slots=True, kw_only=True)
class Decide:
    """The answer to an approval: ``once``, ``session``, ``always`` or ``deny``."""

    question: PendingQuestion
    choice: str
    reason: str = ""
    kind: Literal["decide"] = "decide"


@dataclass(frozen=True, slots=True, kw_only=True)
class Respond:
    """The answer to a question."""

    question: PendingQuestion
    text: str
    kind: Literal["reply"] = "reply"


@dataclass(frozen=True, slots=True, kw_only=True)
class Misread:
    """A line that nothing is done for; ``why`` says what to write instead."""

    why: str
    kind: Literal["misread"] = "misread"


@dataclass(frozen=True, slots=True, kw_only=True)
class UseSkill:
    """Text for the agent, to be followed with a skill."""

    name: str
    text: str
    kind: Literal["use_skill"] = "use_skill"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunHere:
    """A command that the person runs on their own machine; nothing is said to the agent."""

    command: str
    kind: Literal["run_here"] = "run_here"


Meaning = Say | UseSkill | RunHere | Do | Decide | Respond | Misread | None


def parse_line(
    line: str,
    asking: Sequence[PendingQuestion] = (),
    asked_before: Sequence[PendingQuestion] | None = None,
    skills: Collection[str] = (),
) -> Meaning:
    """Parse a line while the run asks ``asking``, the oldest first; ``None`` for an empty one.

    A line that begins with a blank is never a command. ``asked_before`` are the questions of the run when the person
    began to write the line, where that is known: a line that was begun before a question came does not answer it.
    ``skills`` are commands as well: those that no command of ours is called like.
    """
    meant = _read_line(line, asking, skills)
    if asked_before is None or not isinstance(meant, Decide | Respond) or meant.question in asked_before:
        return meant
    return Misread(why=f"the question {meant.question.code} came while you wrote; read it, and send the line again")


def _read_line(line: str, asking: Sequence[PendingQuestion], skills: Collection[str]) -> Meaning:
    text = line.strip()
    if not text:
        return None
    if line.startswith("/") and not _is_path(line):
        return _parse_command(line, asking, skills)
    if line.startswith("!") and text != "!":
        return RunHere(command=text[1:].strip())
    named, rest = _take_code(text, asking)
    if named is None and asking:
        named = asking[0]
        if unclear := (_find_unknown_code(text) if named.is_approval else None) or _find_ambiguity(named, asking):
            return unclear
    if named is None:
        return Say(text=text)
    return _parse_decision(named, rest) if named.is_approval else Respond(question=named, text=rest or text)


def _take_code(text: str, asking: Sequence[PendingQuestion]) -> tuple[PendingQuestion | None, str]:
    """Find the question whose code stands in front of a text or at its end, and the text without the code; ``None`` for
    none."""
    first, _, behind = text.partition(" ")
    before, _, last = text.rpartition(" ")
    for question in asking:
        if question.code == parse_code(first):
            return question, behind.strip()
        if question.code == parse_code(last):
            return question, before.strip()
    return None, text


def _find_ambiguity(question: PendingQuestion, asking: Sequence[PendingQuestion]) -> Misread | None:
    """Say what to write where other questions of the same kind are open as well; ``None`` where none are."""
    alike = [each.code for each in asking if each.is_approval is question.is_approval]
    if len(alike) < 2:
        return None
    return Misread(why=f"several questions are open; name the one that you answer: {', '.join(alike)}")


def _find_unknown_code(text: str) -> Misread | None:
    """Say what to write instead of the code of a question that is not open any more; ``None`` for a text without such a
    code."""
    words = text.split()
    code = next((found for word in (words[:1] if len(words) > 2 else words) if (found := parse_code(word))), None)
    return Misread(why=f"no question with the code {code} is open") if code else None


def _is_path(line: str) -> bool:
    """Whether the line begins with a path: ``/etc/hosts is broken`` is text for the agent."""
    return "/" in line[1:].split(maxsplit=1)[0] if line[1:].strip() else False


def _parse_command(line: str, asking: Sequence[PendingQuestion], skills: Collection[str]) -> Meaning:
    name, _, argument = line[1:].partition(" ")
    name, argument = name.strip().lower(), argument.strip()
    command = _BY_NAME.get(name)
    if command is None:
        if skill := next((each for each in skills if each.lower() == name), None):
            return UseSkill(name=skill, text=argument) if argument else Misread(why=f"write /{skill} TEXT")
        near = find_nearest(name, (*_BY_NAME, *skills))
        meant = f"did you mean /{near}?" if near else "/help shows them all."
        return Misread(
            why=f"there is no command /{name[:40]}; {meant} Begin the line with a blank to say it to the agent."
        )
    if command.needs_argument and not argument:
        return Misread(why=f"write /{name} {command.argument}")
    if argument and not command.argument:
        return Misread(why=f"/{name} takes no text; begin the line with a blank to say it to the agent")
    verb = SlashVerb(command.name)
    if verb in (SlashVerb.APPROVE, SlashVerb.DENY):
        return _parse_explicit_answer(verb, argument, asking)
    return Say(text=argument) if verb is SlashVerb.QUEUE else Do(verb=verb, argument=argument)


def _parse_explicit_answer(verb: SlashVerb, argument: str, asking: Sequence[PendingQuestion]) -> Meaning:
    approvals = [each for each in asking if each.is_approval]
    if not approvals:
        return Misread(why="the run asks for no permission now")
    question, argument = _take_code(argument, approvals)
    if question is None:
        question = approvals[0]
        if unclear := _find_unknown_code(argument) or _find_ambiguity(question, approvals):
            return unclear
    if verb is SlashVerb.DENY:
        return Decide(question=question, choice="deny", reason=argument)
    choice = argument.lower() or "once"
    if choice not in ALLOWING:
        return Misread(why=f"write /approve {', /approve '.join(ALLOWING)}")
    return Decide(question=question, choice=choice)


def _parse_decision(question: PendingQuestion, text: str) -> Meaning:
    word, _, reason = text.partition(" ")
    word = word.lower()
    if word in _NO:
        return Decide(question=question, choice="deny", reason=reason.strip())
    choice = _YES.get(word, word)
    if choice in ALLOWING and not reason:
        return Decide(question=question, choice=choice)
    return Misread(why="the run waits: write once, session or always to allow it, or deny and a reason; /stop stops it")


_HELP_NAME_CHARS = 22
_HELP_SUMMARY_CHARS = 55
"""Together they fit into a terminal of 80 columns."""


def render_help() -> list[str]:
    """Render the list of commands."""
    lines = []
    for command in COMMANDS:
        name, beside = (
            f"/{command.name} {command.argument}".rstrip(),
            textwrap.wrap(command.summary, _HELP_SUMMARY_CHARS),
        )
        if len(name) > _HELP_NAME_CHARS:
            lines.append(name)
            name = ""
        for summary in beside:
            lines.append(f"{name.ljust(_HELP_NAME_CHARS)}  {summary}")
            name = ""
    return [
        *lines,
        "",
        "Enter sends, Alt-Enter begins a line, Ctrl-X Ctrl-E opens the editor.",
        "Tab completes commands and @files, Ctrl-V pastes a picture.",
        "!command runs here, as you; /share sends it to the agent.",
        "Esc and Ctrl-C stop the run at work, Ctrl-D leaves.",
    ]


def list_completions(
    text: str,
    asking: Sequence[PendingQuestion],
    sessions: Sequence[str],
    skills: Collection[str] = (),
) -> list[tuple[str, str]]:
    """List what ``text`` may become, each with its meaning: commands, answers to an approval, and sessions."""
    if text.startswith("/resume "):
        begun = text.removeprefix("/resume ")
        return [(f"/resume {name}", "") for name in sessions if name.startswith(begun)]
    if text.startswith("/") and " " not in text:
        names = [(f"/{command.name}", command.summary) for command in COMMANDS]
        names += [(f"/{skill}", "a skill") for skill in skills if skill.lower() not in _BY_NAME]
        return [(name, summary) for name, summary in names if name.lower().startswith(text.lower())]
    if asking and asking[0].is_approval and " " not in text:
        return [(word, "") for word in (*ALLOWING, "deny") if word.startswith(text.lower())]
    if asking and not asking[0].is_approval:
        return [(choice, "") for choice in asking[0].choices if choice.startswith(text)]
    return []
