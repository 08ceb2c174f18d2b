"""The table of slash commands: those of ``hermes-worker chat`` and those of chats on platforms. Pure.

Help, completion and the reference page are made of it. ``core.chat_commands`` says who may use which on platforms.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class SlashCommand:
    """A command ``/name``."""

    name: str
    argument: str = ""
    """The argument in the terminal as the help shows it; in brackets where it may be left out, empty for none."""
    summary: str = ""
    """What it does in the terminal; empty where the terminal does not have it."""
    chat_text: str = ""
    """What the help of chats on platforms says behind the name; empty where they do not have it."""
    aliases: tuple[str, ...] = ()
    """Other names in the terminal."""

    @property
    def needs_argument(self) -> bool:
        return bool(self.argument) and not self.argument.startswith("[")


SLASH_COMMANDS: Final[Sequence[SlashCommand]] = (
    SlashCommand(name="help", summary="show these commands"),
    SlashCommand(
        name="new",
        aliases=("reset", "clear"),
        summary="begin another conversation",
        chat_text="– begin a new conversation",
    ),
    SlashCommand(name="stop", summary="stop the run at work, as Ctrl-C does", chat_text="– stop what is being done"),
    SlashCommand(
        name="status",
        summary="what the conversation and its last run are doing, and why",
        chat_text="– what is being done",
    ),
    SlashCommand(
        name="queue",
        argument="TEXT",
        aliases=("q",),
        summary="say it after the run at work, as a plain line does",
        chat_text="TEXT – say it after what is being done",
    ),
    SlashCommand(
        name="steer",
        argument="TEXT",
        summary="say something to the run at work; it reads it with its next tool result",
        chat_text="TEXT – say it to what is being done",
    ),
    SlashCommand(
        name="background",
        argument="TEXT",
        aliases=("bg",),
        summary="begin a run in a conversation of its own, and go on here",
    ),
    SlashCommand(
        name="goal",
        argument="[TEXT]",
        summary="work towards TEXT turn after turn, until another run finds it reached; /goal pause, resume or clear",
    ),
    SlashCommand(
        name="undo",
        summary="go on in a copy of the conversation without its last turn",
        chat_text="– take back what was said last, and the answer to it",
    ),
    SlashCommand(name="retry", summary="take the last turn back and say the same again"),
    SlashCommand(name="branch", argument="[TITLE]", aliases=("fork",), summary="go on in a copy of the conversation"),
    SlashCommand(name="history", summary="show what was said in the conversation"),
    SlashCommand(
        name="resume", argument="[SESSION]", summary="go on with a conversation; without SESSION, list the newest"
    ),
    SlashCommand(name="sessions", summary="list the newest conversations"),
    SlashCommand(
        name="title",
        argument="[TEXT]",
        summary="give the conversation a title; without TEXT, show it",
        chat_text="TEXT – call this conversation so; /title alone says what it is called",
    ),
    SlashCommand(
        name="usage", summary="what the conversation used and cost", chat_text="– what this conversation has used"
    ),
    SlashCommand(name="context", summary="how long the last prompt was, and what it held"),
    SlashCommand(
        name="compress",
        argument="[TOPIC]",
        aliases=("compact",),
        summary="summarise the older part of the conversation",
        chat_text="FOCUS – summarise what was said, most of all this",
    ),
    SlashCommand(
        name="model",
        argument="[NAME]",
        summary="ask this model from now on; without NAME the usual one",
        chat_text="NAME – ask this model from now on; /model alone says which ones there are",
    ),
    SlashCommand(
        name="reasoning",
        argument="[EFFORT]",
        summary="how much the model thinks from now on, such as low or high; without EFFORT as usual",
    ),
    SlashCommand(name="tools", summary="the toolsets, and which of them a new conversation has"),
    SlashCommand(name="skills", summary="the skills; /NAME TEXT says something with one of them"),
    SlashCommand(name="memory", summary="what agents remember"),
    SlashCommand(name="tree", summary="the last run and what it delegated"),
    SlashCommand(name="agents", aliases=("tasks",), summary="the runs that are open now, of all conversations"),
    SlashCommand(
        name="show", argument="[NUMBER]", summary="show a tool call whole, by its number; without NUMBER the last one"
    ),
    SlashCommand(name="diff", summary="what the last run changed in files, where checkpoints are kept"),
    SlashCommand(
        name="rollback",
        argument="[CHECKPOINT]",
        summary="put files back as they were at a checkpoint; without CHECKPOINT, list the checkpoints",
    ),
    SlashCommand(name="export", argument="[FILE]", summary="write the conversation into a file as JSON lines"),
    SlashCommand(name="image", argument="FILE [TEXT]", summary="say something with a picture"),
    SlashCommand(name="share", argument="[TEXT]", summary="send the agent the last !command and its output"),
    SlashCommand(name="copy", summary="copy the last answer, where the terminal allows it"),
    SlashCommand(
        name="approvals",
        summary="what waits for an answer, of all conversations",
        chat_text="– what I asked here and nobody has answered",
    ),
    SlashCommand(
        name="approve",
        argument="[CODE] [once|session|always]",
        summary="allow the command that the run asks about",
        chat_text="– allow what I asked about, once; /approve session or /approve always for longer",
    ),
    SlashCommand(
        name="deny",
        argument="[CODE] [REASON]",
        summary="refuse the command, with a reason for the model",
        chat_text="REASON – do not allow it",
    ),
    SlashCommand(
        name="jobs",
        aliases=("cron",),
        summary="the jobs, and when they are due",
        chat_text="– what is done by schedule, and when",
    ),
    SlashCommand(name="sethome", chat_text="– send here what goes to this platform without naming a chat"),
    SlashCommand(name="quit", aliases=("exit",), summary="leave, as Ctrl-D does; a run at work goes on"),
)


def find_nearest(name: str, names: Iterable[str]) -> str | None:
    """Find the name that was probably meant; ``None`` where none is near."""
    import difflib  # with Unicode's tables: only a mistyped name needs it

    return next(iter(difflib.get_close_matches(name, list(names), n=1)), None)
