"""``hermes-worker chat``: talk with an agent, or ask one thing of it in a pipe."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hermes_worker.cli.entry import EXIT_FAILED, EXIT_INTERRUPTED
from hermes_worker.cli.layout import is_dumb
from hermes_worker.cli.options import PROMPT_BYTES_MAX, TEXT, parse_toolset_names, reachable, toolsets_option
from hermes_worker.cli.prompt_words import PromptCommand
from hermes_worker.cli.wording import flatten_text, strip_controls
from hermes_worker.core.errors import ConfigurationError

if TYPE_CHECKING:
    from hermes_worker.cli.chat.directory import ChosenDirectory
    from hermes_worker.cli.chat.painting import Painter
    from hermes_worker.cli.chat.remembered import ChatFolder
    from hermes_worker.cli.chat.talk import Talk, TalkOptions
    from hermes_worker.client import HermesClient

_PATIENCE_S = 20.0
_GIVES_UP_AFTER_S = 300.0
"""Seconds that a server may be away, for a question in a pipe."""


@click.command(cls=PromptCommand, epilog="Example: git diff | hermes-worker chat -q 'Review this change'")
@reachable
@click.option("-q", "--query", type=TEXT, help="Say this, show the answer and end. Standard input is added to it.")
@click.option("--session", type=TEXT, help="Go on with the conversation of this name or id, or begin one of this name.")
@click.option("--continue", "goes_on", is_flag=True, help="Go on with the last conversation of this machine.")
@click.option("--model", type=TEXT, help="Model to ask. Default: the configured one.")
@toolsets_option
@click.option(
    "--workspace",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Directory that a new conversation works in. Default: the current one, once you have said yes to it.",
)
@click.option("--no-workspace", is_flag=True, help="Give a new conversation a directory of its own.")
@click.option(
    "--plain", is_flag=True, help="Write whole lines and draw nothing, for screen readers; so it is with TERM=dumb."
)
def chat(
    home: Path | None,
    query: str | None,
    session: str | None,
    goes_on: bool,
    model: str | None,
    toolsets: str | None,
    workspace: Path | None,
    no_workspace: bool,
    plain: bool,
) -> int:
    """Talk with an agent: over the HTTP API of 'hermes-worker up', or of --server.

    The agent works in the current directory if you say yes to that, which is asked once for each directory. Lines that
    begin with / are commands; /help shows them. With -q, or when something is piped in, one thing is asked:
    the answer goes to standard output, as plain text where that is no terminal. The exit code is 0 when the run
    completes and 1 when it fails or is stopped.
    """
    from hermes_worker.cli.api_connection import find_api
    from hermes_worker.cli.chat.directory import choose_directory
    from hermes_worker.cli.chat.remembered import ChatFolder
    from hermes_worker.cli.chat.talk import TalkOptions
    from hermes_worker.cli.short_ids import complete_session_id

    if session and goes_on:
        raise ConfigurationError("--session names a conversation and --continue takes the last one; give one of them")
    text = _read_question(query)
    reached = find_api(home, as_person=True)
    folder = ChatFolder(reached.home)
    session_id = _find_last_session(folder, reached.place) if goes_on else session
    confirm = _confirm_directory if text is None and session_id is None else None
    directory = choose_directory(reached.settings, folder, named=workspace, is_declined=no_workspace, confirm=confirm)
    options = TalkOptions(
        model=model,
        toolsets=parse_toolset_names(toolsets),
        is_attended=text is None,
        shows_output=sys.stdout.isatty(),
        directory=directory.path,
        gives_up_after_s=None if text is None else _GIVES_UP_AFTER_S,
    )
    with reached.open(_PATIENCE_S) as client, reached.open(0.0) as streams:
        session_id = None if session_id is None else complete_session_id(client, session_id)
        begun = _ChatStart(client, streams, options, session_id, folder, reached.place, plain or is_dumb())
        return _ask(begun, text) if text is not None else _converse(begun, directory)


@dataclass(frozen=True, slots=True)
class _ChatStart:
    """The parts that both kinds of chat need."""

    client: HermesClient
    streams: HermesClient
    options: TalkOptions
    session_id: str | None
    folder: ChatFolder
    place: str
    is_plain: bool
    """Whether only whole lines are written, and nothing is drawn again."""

    def talk(self, painter: Painter) -> Talk:
        from hermes_worker.cli.chat.talk import Talk

        return Talk(self.client, self.streams, painter, self.options)

    def note_session(self, session_id: str) -> None:
        self.folder.note_session(self.place, session_id)


def _read_question(query: str | None) -> str | None:
    """Read the question; ``None`` for a conversation at a terminal. Raises ``ConfigurationError``."""
    if query is not None and not query.strip():
        raise ConfigurationError("--query is empty; say what is to be done")
    if sys.stdin is None or sys.stdin.isatty():
        if query is None and not sys.stdout.isatty():
            raise ConfigurationError("a conversation needs a terminal; ask one thing with -q")
        return query
    data = sys.stdin.buffer.read(PROMPT_BYTES_MAX + 1)
    if len(data) > PROMPT_BYTES_MAX:
        raise ConfigurationError("standard input is longer than 10 MB; put the material into a file in the workspace")
    piped = data.decode("utf-8", "replace").strip()
    text = "\n\n".join(part for part in (query, piped) if part)
    if not text:
        raise ConfigurationError("standard input is empty; say what is to be done, with -q or in a pipe")
    return text


def _find_last_session(folder: ChatFolder, place: str) -> str:
    found = folder.read_last_session(place)
    if found is None:
        raise ConfigurationError(f"there was no conversation with {place} yet; begin one without --continue")
    return found


def _choose_painter(*, tells_of_begun_calls: bool, is_plain: bool) -> Painter:
    from hermes_worker.cli.chat.painting import LinePainter, PlainPainter, TerminalPainter

    if not sys.stdout.isatty():
        return PlainPainter()
    if is_plain:
        return LinePainter()
    has_colour = click.get_current_context().find_root().color is not False
    return TerminalPainter(tells_of_begun_calls=tells_of_begun_calls, has_colour=has_colour)


def _ask(begun: _ChatStart, text: str) -> int:
    """Ask a single question. Returns the exit code. Ctrl-C stops the run."""
    talk = begun.talk(_choose_painter(tells_of_begun_calls=True, is_plain=begun.is_plain))
    talk.session_id = begun.session_id
    run_id = talk.say(text)
    if talk.session_id is not None:
        begun.note_session(talk.session_id)
    try:
        end = talk.follow(run_id)
    except KeyboardInterrupt:
        begun.client.stop(run_id)
        click.echo(f"{run_id} was asked to stop", err=True)
        return EXIT_INTERRUPTED
    return 0 if end is not None and end.is_completed else EXIT_FAILED


def _confirm_directory(directory: Path) -> bool:
    """Ask whether the agent may work in a directory: only a word of the person decides."""
    click.echo(f"The agent can read and change files in {strip_controls(str(directory))}.")
    return click.confirm("May it work here? The answer is kept for this directory", default=None)


def _describe_start(begun: _ChatStart, directory: ChosenDirectory) -> list[str]:
    """Describe which model answers, and where the agent works, as far as the key may know."""
    from hermes_worker.client import RefusedError

    found: dict[str, str | None] = {}
    try:
        for prefix in ("model.default", "terminal."):
            found |= {each.key: each.value for each in begun.client.settings(prefix)}
    except RefusedError:
        pass  # settings are for operators
    model = begun.options.model or found.get("model.default") or "the usual one"
    sandbox = f" · sandbox {found.get('terminal.sandbox') or 'auto'}" if found else ""
    where = "one of its own" if directory.path is None else str(directory.path)
    lines = [f"model {model}{sandbox} · session {begun.session_id or 'new'} · {begun.place}"]
    if begun.session_id is None:
        lines.append(f"directory: {where}" + (f" ({directory.why_not})" if directory.why_not else ""))
    return [flatten_text(line, 400) for line in lines]


def _converse(begun: _ChatStart, directory: ChosenDirectory) -> int:
    from hermes_worker.cli.chat.prompting import ChatPrompt, PlainLines
    from hermes_worker.client import RefusedError

    talk = begun.talk(_choose_painter(tells_of_begun_calls=False, is_plain=begun.is_plain))
    health = begun.client.health()  # fails before a line is typed in vain
    first_run = None
    if begun.session_id is not None:
        try:
            first_run = talk.resume_session(begun.session_id)
        except RefusedError as error:
            if error.status != 404:
                raise
            talk.session_id = begun.session_id  # a name that a conversation gets
    talk.note(f"Hermes worker {health.get('version', '')}; /help shows the commands, Ctrl-D leaves")
    for line in _describe_start(begun, directory):
        talk.note(line)
    talk.load_skills()
    lines = PlainLines() if begun.is_plain else None
    ChatPrompt(talk, begun.folder.find_history(), begun.note_session, lines).run(first_run)
    return 0
