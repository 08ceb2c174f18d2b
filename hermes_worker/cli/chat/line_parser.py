"""Parse a line of a chat: a table of commands, and the meaning of a line. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from hermes_worker.cli.chat.turn import PendingQuestion
from hermes_worker.core.answer_binding import parse_code


class SlashVerb(StrEnum):
    HELP = "help"
    STOP = "stop"
    STEER = "steer"
    MODEL = "model"
    NEW = "new"
    RESUME = "resume"
    COMPRESS = "compress"
    USAGE = "usage"
    TREE = "tree"
    APPROVE = "approve"
    DENY = "deny"
    QUIT = "quit"


@dataclass(frozen=True, slots=True, kw_only=True)
class SlashCommand:
    verb: SlashVerb
    argument: str
    """The argument as the help shows it; in brackets where it may be left out, empty where there is none."""
    summary: str

    @property
    def needs_argument(self) -> bool:
        return bool(self.argument) and not self.argument.startswith("[")


COMMANDS: Sequence[SlashCommand] = (
    SlashCommand(verb=SlashVerb.HELP, argument="", summary="show these commands"),
    SlashCommand(verb=SlashVerb.STOP, argument="", summary="stop the run at work, as Ctrl-C does"),
    SlashCommand(verb=SlashVerb.STEER, argument="TEXT", summary="say something to the run at work, without waiting"),
    SlashCommand(verb=SlashVerb.MODEL, argument="[NAME]", summary="ask this model from now on; without NAME the usual"),
    SlashCommand(verb=SlashVerb.NEW, argument="", summary="begin another conversation"),
    SlashCommand(
        verb=SlashVerb.RESUME, argument="[SESSION]", summary="go on with a conversation; without it, list them"
    ),
    SlashCommand(verb=SlashVerb.COMPRESS, argument="[TOPIC]", summary="summarise the older part of the conversation"),
    SlashCommand(verb=SlashVerb.USAGE, argument="", summary="what the conversation used and cost"),
    SlashCommand(verb=SlashVerb.TREE, argument="", summary="the last run and what it delegated"),
    SlashCommand(
        verb=SlashVerb.APPROVE, argument="[CODE] [once|session|always]", summary="allow what the run asks for"
    ),
    SlashCommand(verb=SlashVerb.DENY, argument="[CODE] [REASON]", summary="refuse it, with a reason for the model"),
    SlashCommand(verb=SlashVerb.QUIT, argument="", summary="leave, as Ctrl-D does; a run at work goes on"),
)
_BY_NAME = {command.verb.value: command for command in COMMANDS} | {
    "exit": next(command for command in COMMANDS if command.verb is SlashVerb.QUIT)
}
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


Meaning = Say | Do | Decide | Respond | Misread | None


def parse_line(
    line: str, asking: Sequence[PendingQuestion] = (), asked_before: Sequence[PendingQuestion] | None = None
) -> Meaning:
    """Parse a line while the run asks ``asking``, the oldest first; ``None`` for an empty one.

    A line that begins with a blank is never a command. ``asked_before`` are the questions of the run when the person
    began to write the line, where that is known: a line that was begun before a question came does not answer it.
    """
    meant = _read_line(line, asking)
    if asked_before is None or not isinstance(meant, Decide | Respond) or meant.question in asked_before:
        return meant
    return Misread(why=f"the question {meant.question.code} came while you wrote; read it, and send the line again")


def _read_line(line: str, asking: Sequence[PendingQuestion]) -> Meaning:
    text = line.strip()
    if not text:
        return None
    if line.startswith("/") and not _is_path(line):
        return _parse_command(line, asking)
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


def _parse_command(line: str, asking: Sequence[PendingQuestion]) -> Meaning:
    name, _, argument = line[1:].partition(" ")
    name, argument = name.strip().lower(), argument.strip()
    command = _BY_NAME.get(name)
    if command is None:
        near = difflib.get_close_matches(name, _BY_NAME, n=1)
        meant = f"did you mean /{near[0]}?" if near else "/help shows them"
        return Misread(why=f"there is no command /{name[:40]}; {meant} A line that begins with a blank is none.")
    if command.needs_argument and not argument:
        return Misread(why=f"write /{command.verb.value} {command.argument}")
    if argument and not command.argument:
        return Misread(why=f"/{command.verb.value} stands alone; begin the line with a blank to say it to the agent")
    if command.verb in (SlashVerb.APPROVE, SlashVerb.DENY):
        return _parse_explicit_answer(command.verb, argument, asking)
    return Do(verb=command.verb, argument=argument)


def _parse_explicit_answer(verb: SlashVerb, argument: str, asking: Sequence[PendingQuestion]) -> Meaning:
    approvals = [each for each in asking if each.is_approval]
    if not approvals:
        return Misread(why="the run asks for nothing that could be allowed")
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


def render_help() -> list[str]:
    """Render the list of commands."""
    shown = [(f"/{command.verb.value} {command.argument}".rstrip(), command.summary) for command in COMMANDS]
    width = max(len(name) for name, _ in shown)
    return [
        *(f"{name.ljust(width)}  {summary}" for name, summary in shown),
        "",
        "Enter sends, Alt-Enter begins a line, Tab completes, Ctrl-C stops the run at work, Ctrl-D leaves.",
    ]


def list_completions(text: str, asking: Sequence[PendingQuestion], sessions: Sequence[str]) -> list[tuple[str, str]]:
    """List what ``text`` may become, each with its meaning: commands, answers to an approval, and sessions."""
    if text.startswith("/resume "):
        begun = text.removeprefix("/resume ")
        return [(f"/resume {name}", "") for name in sessions if name.startswith(begun)]
    if text.startswith("/") and " " not in text:
        names = [(f"/{command.verb.value}", command.summary) for command in COMMANDS]
        return [(name, summary) for name, summary in names if name.startswith(text.lower())]
    if asking and asking[0].is_approval and " " not in text:
        return [(word, "") for word in (*ALLOWING, "deny") if word.startswith(text.lower())]
    if asking and not asking[0].is_approval:
        return [(choice, "") for choice in asking[0].choices if choice.startswith(text)]
    return []
