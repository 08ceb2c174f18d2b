"""A chat's calls of the API: one conversation, and its runs, followed to their end over any number of connections."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, assert_never

from hermes_worker.cli.chat.attachments import Content, build_content, build_picture, find_file, find_picture_type
from hermes_worker.cli.chat.call_output import fold_output, open_output, render_diff
from hermes_worker.cli.chat.goal import (
    TURNS_MAX,
    VERDICT_SCHEMA,
    Goal,
    GoalVerdict,
    build_judge_input,
    build_next_line,
    parse_verdict,
)
from hermes_worker.cli.chat.line_parser import Decide, Do, Meaning, Misread, Respond, RunHere, Say, SlashVerb, UseSkill
from hermes_worker.cli.chat.listings import LISTINGS, ListingScope, format_session, render_messages
from hermes_worker.cli.chat.own_commands import OwnCommand, run_here
from hermes_worker.cli.chat.painting import Painter
from hermes_worker.cli.chat.turn import CallFolded, ChatEnd, ChatNotice, PendingQuestion, Tone, TurnState, apply_event
from hermes_worker.cli.layout import format_count, format_moment
from hermes_worker.cli.session_files import write_session
from hermes_worker.cli.short_ids import require_id
from hermes_worker.cli.wording import flatten_text, strip_controls
from hermes_worker.client import HermesClient, RefusedError, operations
from hermes_worker.core.errors import ConfigurationError, UnavailableError
from hermes_worker.core.ignored_folders import UNKEPT_REMARK
from hermes_worker.core.run import OPEN_STATUSES
from hermes_worker.core.sources import EVALUATION_SOURCE

if TYPE_CHECKING:
    from hermes_worker.schemas.capabilities import ToolsetObject
    from hermes_worker.schemas.sessions import SessionObject

_AGAIN_AFTER_S = 0.5
_LISTED_SESSIONS = 15
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
    is_attended: bool = False
    """Whether a person writes the lines. The agent may ask them, so a new conversation has the toolset for it beside
    the default ones, and files that a line names by ``@path`` are sent with it."""
    shows_output: bool = False
    """Whether the first lines of what a call did are shown as it ends."""
    directory: Path | None = None
    """The directory of this machine that new conversations work in; ``None`` for one of their own each."""
    gives_up_after_s: float | None = None
    """Seconds for which a broken stream is resumed; ``None`` for ever."""


@dataclass(slots=True)
class Followed:
    """The run at work, as it is shown."""

    run_id: str
    state: TurnState = field(default_factory=TurnState)
    is_connected: bool = True
    is_stopped_here: bool = False
    """Whether the person at this chat asked for a stop."""


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
        self.effort: str | None = None
        """How much the model thinks; ``None`` for as much as usual."""
        self.skills: tuple[str, ...] = ()
        """The names of skills, which are commands."""
        self.at_work: Followed | None = None
        self.last_run_id: str | None = None
        """The id of the last run of the conversation."""
        self._ended_calls: list[tuple[str, str]] = []
        """The run and the place of each call that was shown, by its number."""
        self._last_command: OwnCommand | None = None
        self._last_answer = ""
        self._goal: Goal | None = None
        self.known_sessions: list[str] = []
        """Sessions of the last list, for completion."""
        self._left = threading.Event()

    # ------------------------------------------------------------------------------------------------ what is asked for

    def say(self, text: str, **more: Any) -> str:
        """Begin a run of the conversation, or of a new one; ``more`` are other fields of the request. Returns its id.
        Raises ``RefusedError``, ``UnavailableError``, and ``ConfigurationError`` for a file that cannot be sent."""
        content = build_content(text, self._options.directory) if self._options.is_attended else text
        return self._begin_run(content, **more)

    def _begin_run(self, content: Content, **more: Any) -> str:
        fields = {**self._build_fields(), **more}
        if self.session_id is not None:
            fields["session_id"] = self.session_id
        run_id = self._submit(content, fields)
        self.is_new = False
        if self.session_id is None:
            self.session_id = self._client.run(run_id)["session_id"]
        return run_id

    def _build_fields(self) -> dict[str, Any]:
        """Build the fields of a run that the person chose. The first run of a conversation has its toolsets and its
        directory as well."""
        fields: dict[str, Any] = {"tags": ["chat"]}
        if self.is_new and (toolsets := self._choose_toolsets()) is not None:
            fields["toolsets"] = toolsets
        if self.is_new and self._options.directory is not None:
            fields["workspace"] = str(self._options.directory)
        if self.model is not None:
            fields["model"] = self.model
        if self.effort is not None:
            fields["settings"] = {"agent.reasoning_effort": self.effort}
        return fields

    def _submit(self, content: Content, fields: Mapping[str, Any]) -> str:
        if isinstance(content, str):
            return self._client.submit(content, **fields)
        return self._client.submit("", input=[{"role": "user", "content": content}], **fields)

    def _choose_toolsets(self) -> list[str] | None:
        """Choose the toolsets of a new conversation; ``None`` to leave it to the server."""
        if self._options.toolsets is not None:
            return list(self._options.toolsets)
        if not self._options.is_attended:
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
            case UseSkill():
                return self.say(meant.text, skills=[meant.name])
            case RunHere():
                self._run_here(meant.command)
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
        """Ask the run at work to stop. Raises ``RefusedError``, ``UnavailableError``."""
        if self.at_work is None:
            self.note("no run is at work", Tone.PLAIN)
            return
        self.at_work.is_stopped_here = True
        self._client.stop(self.at_work.run_id)

    def note(self, text: str, tone: Tone = Tone.PLAIN) -> None:
        self._painter.show(ChatNotice(text=strip_controls(text), tone=tone))

    @property
    def asking(self) -> tuple[PendingQuestion, ...]:
        return self.at_work.state.asking if self.at_work is not None else ()

    def resume_session(self, session_id: str) -> str | None:
        """Switch to a conversation, and show its end. Returns its open run, if there is one. Raises ``RefusedError``,
        ``UnavailableError``."""
        session = self._client.session(session_id)
        self.session_id, self.is_new = session["id"], False
        newest = next(iter(self._client.runs(session_id=self.session_id, limit=1)), None)
        self.last_run_id = newest["run_id"] if newest else None
        self._painter.show_lines(render_messages(list(self._client.messages(self.session_id)), _SHOWN_MESSAGES))
        self.note(f"{self.session_id}: {session['message_count']} messages, {flatten_text(session['title'] or '', 80)}")
        open_run = next(iter(self._client.runs(session_id=self.session_id, status=OPEN_STATUSES, limit=1)), None)
        return open_run["run_id"] if open_run else None

    def load_skills(self) -> None:
        """Load the names of the skills, which are commands of the chat. A key that may not see them has none."""
        try:
            self.skills = tuple(each.name for each in self._client.skills())
        except RefusedError:
            self.skills = ()

    def _do(self, meant: Do) -> str | None:
        if (listing := LISTINGS.get(meant.verb)) is not None:
            place = ListingScope(client=self._client, session_id=self.session_id, run_id=self.last_run_id)
            self._painter.show_lines(listing(place))
            return None
        return _DEEDS[meant.verb](self, meant.argument)

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
            self.note("no run is at work; write the line without /steer")
            return
        self._client.steer(self.at_work.run_id, text)

    def _stop(self, _argument: str) -> None:
        self.stop()

    def _choose_model(self, name: str) -> None:
        self.model = name or None
        self.note(f"from the next run on {self.model or 'the usual model'} is asked")

    def _choose_effort(self, effort: str) -> None:
        self.effort = effort or None
        self.note(f"from the next run on the model thinks: {self.effort or 'as much as usual'}")

    def _begin_another(self, _argument: str) -> None:
        self.session_id, self.is_new, self.last_run_id = None, True, None
        self.note("the next line begins another conversation")

    def _resume(self, session_id: str) -> str | None:
        if session_id:
            return self.resume_session(require_id(self._client, session_id, "session"))
        self._list_sessions()
        return None

    def _list_sessions(self, _argument: str = "") -> None:
        page = self._client.send(operations.sessions(limit=_LISTED_SESSIONS))
        self.known_sessions = [session["id"] for session in page.items]
        self._painter.show_lines([format_session(session) for session in page.items] or ["there are no conversations"])

    def _compress(self, topic: str) -> str | None:
        session_id = self._require_session()
        return None if session_id is None else self._client.compress_session(session_id, focus=topic)

    def _require_session(self) -> str | None:
        """Return the conversation; where there is none yet, say so and return ``None``."""
        if self.session_id is None:
            self.note("there is no conversation yet")
        return self.session_id

    def _require_last_run(self) -> str | None:
        if self.last_run_id is None:
            self.note("there is no run yet")
        return self.last_run_id

    def _begin_in_background(self, text: str) -> None:
        fresh = Talk(self._client, self._streams, self._painter, self._options)
        fresh.model, fresh.effort = self.model, self.effort
        run_id = fresh.say(text, tags=["chat", "background"])
        self.note(f"{run_id} began beside this; /resume {fresh.session_id} shows it")

    def _change_goal(self, argument: str) -> str | None:
        """Set a goal and begin to work on it, or change the one that is set; without an argument, say what it is.
        Returns the run that this began, if any."""
        goal, word = self._goal, argument.lower()
        if argument and word not in ("pause", "resume", "clear"):
            run_id = self.say(argument)
            self._goal = Goal(text=argument, session_id=self.session_id)
            return run_id
        if goal is None:
            self.note("there is no goal; /goal TEXT sets one")
            return None
        if word == "clear":
            self._goal = None
            self.note("the goal is forgotten")
            return None
        if word == "resume":
            goal.is_paused, goal.turns, goal.session_id = False, 0, self.session_id
            return self._begin_run(f"Go on towards this goal:\n{goal.text}") if self.at_work is None else None
        if word == "pause":
            goal.is_paused = True
        state = "it waits, /goal resume goes on" if goal.is_paused else f"turn {goal.turns} of {TURNS_MAX}"
        self.note(f"the goal, {state}: {flatten_text(goal.text, 200)}")
        return None

    def pursue_goal(self, end: ChatEnd | None) -> str | None:
        """Have the turn that ended judged where a goal is set, and go on if it is not reached. Returns the id of the
        run that this began, if any. Raises ``RefusedError``, ``UnavailableError``."""
        goal = self._goal
        if goal is None or goal.is_paused or end is None:
            return None
        if why := goal.find_obstacle(self.session_id, is_completed=end.is_completed):
            self._pause_goal(goal, why)
            return None
        verdict = self._judge(goal, end.output)
        if self._goal is not goal or goal.is_paused:
            return None  # the person changed it meanwhile
        if verdict is None:
            self._pause_goal(goal, "as the judge gave no verdict")
            return None
        reason = flatten_text(verdict.reason, 200)
        if verdict.is_reached:
            self._goal = None
            self.note(f"the goal is reached: {reason}", Tone.GOOD)
            return None
        goal.turns += 1
        self.note(f"the goal is not reached yet, turn {goal.turns} of {TURNS_MAX}: {reason}")
        return self._begin_run(build_next_line(goal.text, verdict))  # a model's @words name no files

    def _pause_goal(self, goal: Goal, why: str) -> None:
        goal.is_paused = True
        self.note(f"the goal waits, {why}; /goal resume goes on, /goal clear forgets it", Tone.WARNING)

    def _judge(self, goal: Goal, answer: str) -> GoalVerdict | None:
        """Ask in a conversation of its own, without tools, whether the goal is reached; ``None`` without a verdict."""
        fields = {"model": self.model} if self.model else {}
        run_id = self._client.submit(
            build_judge_input(goal.text, answer),
            toolsets=["none"],
            output_schema=dict(VERDICT_SCHEMA),
            tags=["chat", "goal", EVALUATION_SOURCE],
            **fields,
        )
        self._client.wait(run_id)
        return parse_verdict(self._client.run(run_id).output)

    def _title_session(self, title: str) -> None:
        session_id = self._require_session()
        if session_id is None:
            return
        session = self._client.change_session(session_id, title=title) if title else self._client.session(session_id)
        self.note(f"this conversation is called {flatten_text(session.title or 'nothing yet', 200)}")

    def _fork_session(self, title: str) -> None:
        if (session_id := self._require_session()) is not None:
            self._enter(self._client.fork_session(session_id, **({"title": title} if title else {})), "copied")

    def _enter(self, session: SessionObject, done: str) -> None:
        """Go on in a session that was just made; ``done`` says how."""
        before, self.session_id, self.is_new, self.last_run_id = self.session_id, session.id, False, None
        self.note(f"{done}: this is now the conversation {session.id}; /resume {before} goes back to the one before")

    def _undo(self, _argument: str) -> None:
        self._take_back()

    def _retry(self, _argument: str) -> str | None:
        content = self._take_back()
        return None if content is None else self._begin_run(content)

    def _take_back(self) -> Content | None:
        """Go on in a copy of the conversation that ends before its last turn. Returns what was said in that turn;
        ``None`` where nothing was said, or a run is at work."""
        session_id = self._require_session()
        if session_id is None:
            return None
        if self.at_work is not None:
            self.note("a run is at work; /stop stops it")
            return None
        rows = list(self._client.messages(session_id))
        at = next((number for number in reversed(range(len(rows))) if rows[number].role == "user"), None)
        if at is None:
            self.note("nothing was said yet")
            return None
        fork = self._client.fork_session(session_id, message_id=rows[at - 1].id if at else 0)
        self._enter(fork, "the last turn was taken back")
        content: Content = rows[at].content
        return content

    def _export(self, name: str) -> None:
        session_id = self._require_session()
        if session_id is None:
            return
        path = Path(name or f"{session_id.replace('/', '_')}.jsonl").expanduser()
        session, messages = self._client.session(session_id), self._client.messages(session_id)
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                write_session(file, session, messages)
        except OSError as error:
            raise ConfigurationError(f"{str(path)!r} cannot be written: {error.strerror}") from None
        self.note(f"the conversation is in {path}")

    def _show_image(self, argument: str) -> str | None:
        name, _, text = argument.partition(" ")
        path = find_file(name)
        media_type = None if path is None else find_picture_type(path)
        if path is None or media_type is None:
            self.note(f"{name!r} is no picture (PNG, JPEG, GIF or WebP)", Tone.WARNING)
            return None
        return self._begin_run(
            [{"type": "text", "text": text.strip() or "See the picture."}, build_picture(path, media_type)]
        )

    def _run_here(self, command: str) -> None:
        done = run_here(command, lambda line: self._painter.show_lines([line]))
        self._last_command = done
        self.note(f"{f'exit code {done.code}; ' if done.code else ''}the agent has not seen this, /share sends it")

    def _share(self, text: str) -> str | None:
        if self._last_command is None:
            self.note("no command was run yet; !command runs one")
            return None
        return self._begin_run(self._last_command.describe(text))

    def _copy(self, _argument: str) -> None:
        if self._last_answer and self._painter.copy(self._last_answer):
            self.note(f"asked the terminal to copy the last answer, {len(self._last_answer):,} characters")
        else:
            self.note("this terminal cannot copy" if self._last_answer else "there is no answer yet")

    def _show_diff(self, _argument: str) -> None:
        if (run_id := self._require_last_run()) is None:
            return
        found = self._client.diff(run_id)
        self._painter.show(render_diff(found.text))
        differ = f"{format_count(found.files_total, 'file')} {'differs' if found.files_total == 1 else 'differ'}"
        self.note(f"{differ if found.files_total else 'no file differs'}; {UNKEPT_REMARK}")

    def _roll_back(self, checkpoint_id: str) -> None:
        if (run_id := self._require_last_run()) is None:
            return
        if not checkpoint_id:
            found = self._client.checkpoints(run_id).data
            lines = [f"{each.id}  {format_moment(each.created_at)}  before {each.tool}" for each in found]
            self._painter.show_lines([*lines, UNKEPT_REMARK] if lines else ["there are no checkpoints"])
            return
        done = self._client.restore(run_id, checkpoint_id)
        self._painter.show_lines([*(f"cannot be put back: {each}" for each in done.failed)])
        counts = f"put back: {format_count(len(done.written), 'file')}, removed: {len(done.removed)}"
        self.note(f"{counts}; /rollback {done.before} takes this back")

    # --------------------------------------------------------------------------------------------- what comes of it

    def follow(self, run_id: str) -> ChatEnd | None:
        """Show a run until it ends; ``None`` when ``leave`` was called before. Raises ``RefusedError``, and
        ``UnavailableError`` when there is a limit to how long a stream is resumed."""
        followed = self.begin(run_id)
        try:
            for document in self._iterate_events(followed):
                state = replace(followed.state, is_stopped_here=followed.is_stopped_here)
                followed.state, shown = apply_event(state, document)
                for each in shown:
                    self._painter.show(each)
                    if isinstance(each, CallFolded):
                        self._show_output(run_id, each)
                if followed.state.end is not None:
                    self._last_answer = followed.state.end.output or self._last_answer
                    return followed.state.end
            return None
        finally:
            self.at_work = None

    def _show_output(self, run_id: str, call: CallFolded) -> None:
        """Show the first lines of what a call did. A server that does not say it is done without."""
        if not (self._options.shows_output and call.place):
            return
        self._ended_calls.append((run_id, call.place))
        try:
            detail = self._client.call(run_id, call.place)
        except (RefusedError, UnavailableError):
            return
        self._painter.show(fold_output(detail, f"/show {len(self._ended_calls)}"))

    def _open_call(self, argument: str) -> None:
        """Show a whole call by its number in this chat; without one, the last."""
        count = len(self._ended_calls)
        number = int(argument) if argument.isdecimal() and len(argument) < 9 else (0 if argument else count)
        if not 1 <= number <= count:
            self.note(f"write /show and a number from 1 to {count}" if count else "no call has ended yet")
            return
        detail = self._client.call(*self._ended_calls[number - 1])
        self.note(f"{number}: {flatten_text(detail.tool, 64)}, {flatten_text(detail.status, 40)}")
        self._painter.show(open_output(detail))

    def begin(self, run_id: str) -> Followed:
        """Make this run the one at work: a stop applies to it, even before its first event."""
        if self.at_work is None or self.at_work.run_id != run_id:
            self.at_work, self.last_run_id = Followed(run_id=run_id), run_id
        return self.at_work

    def leave(self) -> None:
        """Stop following; runs continue."""
        self._left.set()

    def _iterate_events(self, followed: Followed) -> Iterator[dict[str, Any]]:
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


_DEEDS: Final[Mapping[SlashVerb, Callable[[Talk, str], str | None]]] = MappingProxyType(
    {
        SlashVerb.STOP: Talk._stop,
        SlashVerb.STEER: Talk._steer,
        SlashVerb.BACKGROUND: Talk._begin_in_background,
        SlashVerb.GOAL: Talk._change_goal,
        SlashVerb.MODEL: Talk._choose_model,
        SlashVerb.REASONING: Talk._choose_effort,
        SlashVerb.NEW: Talk._begin_another,
        SlashVerb.RESUME: Talk._resume,
        SlashVerb.SESSIONS: Talk._list_sessions,
        SlashVerb.TITLE: Talk._title_session,
        SlashVerb.BRANCH: Talk._fork_session,
        SlashVerb.UNDO: Talk._undo,
        SlashVerb.RETRY: Talk._retry,
        SlashVerb.COMPRESS: Talk._compress,
        SlashVerb.SHOW: Talk._open_call,
        SlashVerb.DIFF: Talk._show_diff,
        SlashVerb.ROLLBACK: Talk._roll_back,
        SlashVerb.EXPORT: Talk._export,
        SlashVerb.IMAGE: Talk._show_image,
        SlashVerb.SHARE: Talk._share,
        SlashVerb.COPY: Talk._copy,
    }
)
"""The commands that change something, or go on elsewhere."""
