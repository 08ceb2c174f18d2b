"""A chat's calls of the API: one conversation, and its runs, followed to their end over any number of connections."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, assert_never

from hermes_worker.cli.chat.line_parser import Decide, Do, Meaning, Misread, Respond, Say, SlashVerb, render_help
from hermes_worker.cli.chat.painting import Painter
from hermes_worker.cli.chat.turn import ChatEnd, ChatNotice, PendingQuestion, Tone, TurnState, apply_event
from hermes_worker.cli.layout import format_moment
from hermes_worker.cli.top.fleet import render_tree
from hermes_worker.cli.wording import flatten_text, strip_controls
from hermes_worker.client import HermesClient, operations
from hermes_worker.core.errors import UnavailableError
from hermes_worker.core.run import RunStatus

if TYPE_CHECKING:
    from hermes_worker.schemas.capabilities import ToolsetObject
    from hermes_worker.schemas.sessions import MessageObject, SessionObject

_AGAIN_AFTER_S = 0.5
_LISTED_SESSIONS = 15
_OPEN = [status.value for status in RunStatus if not status.is_terminal]
_ASKING = "clarify"
"""The toolset with which agents ask people."""
_SHOWN_MESSAGES = 6
"""Messages that are shown of a resumed conversation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TalkOptions:
    """The options of the command line for runs."""

    model: str | None = None
    toolsets: Sequence[str] | None = None
    """The toolsets of a new conversation; ``None`` for the server's default."""
    answers_questions: bool = False
    """Whether a person is there whom the agent may ask: a new conversation then has the toolset for it beside the
    default ones."""
    gives_up_after_s: float | None = None
    """Seconds for which a broken stream is resumed; ``None`` for ever."""


@dataclass(slots=True)
class Followed:
    """The run at work, as it is shown."""

    run_id: str
    state: TurnState = field(default_factory=TurnState)
    is_connected: bool = True


class Talk:
    """A conversation. ``do`` may be called while another thread follows."""

    def __init__(self, client: HermesClient, streams: HermesClient, painter: Painter, options: TalkOptions) -> None:
        """``streams`` does not retry by itself: then this class sees that a connection broke."""
        self._client = client
        self._streams = streams
        self._painter = painter
        self._options = options
        self.session_id: str | None = None
        self.is_new = True
        """Whether the next run opens the conversation."""
        self.model = options.model
        self.at_work: Followed | None = None
        self.last_run_id: str | None = None
        """The id of the last run of the conversation."""
        self.known_sessions: list[str] = []
        """Sessions of the last list, for completion."""
        self._left = threading.Event()

    # ------------------------------------------------------------------------------------------------ what is asked for

    def say(self, text: str) -> str:
        """Begin a run of the conversation, or of a new one. Returns its id. Raises ``RefusedError``,
        ``UnavailableError``."""
        fields: dict[str, Any] = {"tags": ["chat"]}
        if self.session_id is not None:
            fields["session_id"] = self.session_id
        if self.is_new and (toolsets := self._choose_toolsets()) is not None:
            fields["toolsets"] = toolsets
        if self.model is not None:
            fields["model"] = self.model
        run_id = self._client.submit(text, **fields)
        self.is_new = False
        if self.session_id is None:
            self.session_id = self._client.run(run_id)["session_id"]
        return run_id

    def _choose_toolsets(self) -> list[str] | None:
        """Choose the toolsets of a new conversation; ``None`` to leave it to the server."""
        if self._options.toolsets is not None:
            return list(self._options.toolsets)
        if not self._options.answers_questions:
            return None
        return add_question_toolset(self._client.toolsets())

    def do(self, meant: Meaning) -> str | None:
        """Do what a person's line means. Returns the id of the run that this began, if any. Raises ``RefusedError``,
        ``UnavailableError``."""
        match meant:
            case None:
                return None
            case Say():
                return self.say(meant.text)
            case Do():
                return self._do(meant)
            case Decide():
                self._decide(meant)
            case Respond():
                self._reply(meant)
            case Misread():
                self.note(meant.why, Tone.WARNING)
            case _:
                assert_never(meant)
        return None

    def stop(self) -> None:
        """Ask the run at work to stop. Raises as ``do``."""
        if self.at_work is None:
            self.note("no run is at work", Tone.PLAIN)
            return
        self._client.stop(self.at_work.run_id)

    def note(self, text: str, tone: Tone = Tone.PLAIN) -> None:
        self._painter.show(ChatNotice(text=strip_controls(text), tone=tone))

    @property
    def asking(self) -> tuple[PendingQuestion, ...]:
        return self.at_work.state.asking if self.at_work is not None else ()

    def resume_session(self, session_id: str) -> str | None:
        """Switch to a conversation, and show its end. Returns its open run, if there is one. Raises as ``do``."""
        session = self._client.session(session_id)
        self.session_id, self.is_new = session["id"], False
        newest = next(iter(self._client.runs(session_id=self.session_id, limit=1)), None)
        self.last_run_id = newest["run_id"] if newest else None
        for line in _render_tail(list(self._client.messages(self.session_id))):
            self._painter.lines([line])
        self.note(f"{self.session_id}: {session['message_count']} messages, {flatten_text(session['title'] or '', 80)}")
        open_run = next(iter(self._client.runs(session_id=self.session_id, status=_OPEN, limit=1)), None)
        return open_run["run_id"] if open_run else None

    def _do(self, meant: Do) -> str | None:
        match meant.verb:
            case SlashVerb.HELP:
                self._painter.lines(render_help())
            case SlashVerb.STOP:
                self.stop()
            case SlashVerb.STEER:
                self._steer(meant.argument)
            case SlashVerb.MODEL:
                self.model = meant.argument or None
                self.note(f"the next run asks {self.model or 'the usual model'}")
            case SlashVerb.NEW:
                self.session_id, self.is_new, self.last_run_id = None, True, None
                self.note("the next line begins another conversation")
            case SlashVerb.RESUME:
                if meant.argument:
                    return self.resume_session(meant.argument)
                self._list_sessions()
            case SlashVerb.COMPRESS:
                return self._compress(meant.argument)
            case SlashVerb.USAGE:
                self._usage()
            case SlashVerb.TREE:
                self._tree()
            case SlashVerb.APPROVE | SlashVerb.DENY | SlashVerb.QUIT:
                raise AssertionError(f"/{meant.verb} is no request")
            case _:
                assert_never(meant.verb)
        return None

    def _decide(self, meant: Decide) -> None:
        if self.at_work is None:
            return
        question = meant.question
        self._client.approve(self.at_work.run_id, meant.choice, wait_id=question.wait_id, reason=meant.reason or None)

    def _reply(self, meant: Respond) -> None:
        if self.at_work is not None:
            self._client.answer(self.at_work.run_id, meant.text, wait_id=meant.question.wait_id)

    def _steer(self, text: str) -> None:
        if self.at_work is None:
            self.note("no run is at work; say it as it is")
            return
        self._client.steer(self.at_work.run_id, text)

    def _compress(self, topic: str) -> str | None:
        if self.session_id is None:
            self.note("there is no conversation yet")
            return None
        return self._client.compress_session(self.session_id, focus=topic)

    def _list_sessions(self) -> None:
        page = self._client.send(operations.sessions(limit=_LISTED_SESSIONS))
        self.known_sessions = [session["id"] for session in page.items]
        self._painter.lines([_format_session(session) for session in page.items] or ["there are no conversations"])

    def _usage(self) -> None:
        if self.session_id is None:
            self.note("there is no conversation yet")
            return
        self._painter.lines(_render_usage(self._client.session(self.session_id)))

    def _tree(self) -> None:
        if self.last_run_id is None:
            self.note("there is no run yet")
            return
        self._painter.lines(render_tree(self._client.tree(self.last_run_id)))

    # --------------------------------------------------------------------------------------------- what comes of it

    def follow(self, run_id: str) -> ChatEnd | None:
        """Show a run until it ends; ``None`` when ``leave`` was called before. Raises ``RefusedError``, and
        ``UnavailableError`` when there is a limit to how long a stream is resumed."""
        followed = self.begin(run_id)
        try:
            for document in self._events(followed):
                followed.state, shown = apply_event(followed.state, document)
                for each in shown:
                    self._painter.show(each)
                if followed.state.end is not None:
                    return followed.state.end
            return None
        finally:
            self.at_work = None

    def begin(self, run_id: str) -> Followed:
        """Make this run the one at work: a stop applies to it, even before its first event."""
        if self.at_work is None or self.at_work.run_id != run_id:
            self.at_work, self.last_run_id = Followed(run_id=run_id), run_id
        return self.at_work

    def leave(self) -> None:
        """Stop following; runs continue."""
        self._left.set()

    def _events(self, followed: Followed) -> Iterator[dict[str, Any]]:
        """Iterate over the events of a run, each once, over as many connections as it takes."""
        last_id, silent_for_s = "0", 0.0
        while not self._left.is_set():
            try:
                for told in self._streams.told_events(followed.run_id, after=last_id):
                    silent_for_s = 0.0
                    self._set_connected(followed, True)
                    yield told.document
                    last_id = told.id or last_id
            except UnavailableError as error:
                limit = self._options.gives_up_after_s
                if limit is not None and silent_for_s >= limit:
                    raise
                if silent_for_s:  # the first time a server may only have asked us to come again
                    self._set_connected(followed, False, flatten_text(str(error), 200))
            silent_for_s += _AGAIN_AFTER_S
            self._left.wait(_AGAIN_AFTER_S)

    def _set_connected(self, followed: Followed, is_connected: bool, why: str = "") -> None:
        if followed.is_connected == is_connected:
            return
        followed.is_connected = is_connected
        if is_connected:
            self.note("connected again", Tone.GOOD)
        else:
            self.note(f"the connection is lost, trying again: {why}", Tone.WARNING)


def add_question_toolset(toolsets: Sequence[ToolsetObject]) -> list[str] | None:
    """Add the toolset with which agents ask people to those of the server; ``None`` where the server has no such
    toolset."""
    if all(each.name != _ASKING for each in toolsets):
        return None
    return [each.name for each in toolsets if each.enabled or each.name == _ASKING]


def _format_session(session: SessionObject) -> str:
    about = flatten_text(session["title"] or session["preview"], 60)
    return (
        f"{flatten_text(session['id'], 60)}  {format_moment(session['last_active'])}  "
        f"{session['message_count']} messages  {about}"
    )


def _render_usage(session: SessionObject) -> list[str]:
    return [
        f"{session['api_call_count']:,} model calls, {session['tool_call_count']:,} tool calls, "
        f"{session['message_count']:,} messages",
        f"{session['input_tokens']:,} tokens in (and {session['cache_read_tokens']:,} from a cache), "
        f"{session['output_tokens']:,} out",
        f"${session['estimated_cost_usd']:.4f}",
    ]


def _render_tail(messages: Sequence[MessageObject]) -> list[str]:
    """Render the last messages of a conversation."""
    said = [each for each in messages if each["role"] in ("user", "assistant") and each.get("content")]
    return [f"{each['role']}: {flatten_text(str(each['content']), 400)}" for each in said[-_SHOWN_MESSAGES:]]
