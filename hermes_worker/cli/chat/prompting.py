"""The chat at a terminal: lines are read while runs are followed, and their output is written above the line."""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING

from hermes_worker.cli.chat.attachments import CLIPBOARD_PROGRAMS, list_file_completions, read_clipboard_picture
from hermes_worker.cli.chat.line_parser import Do, Meaning, SlashVerb, list_completions, parse_line
from hermes_worker.cli.chat.talk import Followed, Talk
from hermes_worker.cli.chat.turn import PendingQuestion, Tone
from hermes_worker.cli.wording import flatten_text, strip_controls
from hermes_worker.core.errors import HermesError

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.buffer import Buffer
    from prompt_toolkit.completion import CompleteEvent, Completer, Completion
    from prompt_toolkit.document import Document
    from prompt_toolkit.formatted_text import StyleAndTextTuples
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

_REFRESH_S = 0.5
_LEAVE_WITHIN_S = 2.0
_TOOLBAR_CHARS_MAX = 400
_ESCAPE_S = 0.3
"""Seconds after which Esc is a key of its own, and not the beginning of Alt-Enter."""


class PlainLines:
    """Lines as the terminal itself edits them; nothing is drawn."""

    def prompt(self) -> str:
        """Read a line. Raises ``EOFError`` when the person leaves."""
        line = sys.stdin.readline()
        if not line:
            raise EOFError
        return line.removesuffix("\n")


class ChatPrompt:
    """Reads lines until the person leaves."""

    def __init__(
        self, talk: Talk, history: Path | None, on_session: Callable[[str], None], plain: PlainLines | None
    ) -> None:
        """``on_session`` is called with the id of each conversation that is talked in. With ``plain`` lines are read
        from it, without editing and drawing."""
        self._plain = plain
        self._talk = talk
        self._history = history
        self._on_session = on_session
        self._runs: SimpleQueue[str | None] = SimpleQueue()
        self._began_at = time.monotonic()
        self._pictures = ExitStack()
        """The folders of pasted pictures, which are removed when the person leaves."""
        self._asked_before: tuple[PendingQuestion, ...] | None = None
        """The questions of the run when the person began to write the line; ``None`` where no line was begun, or that
        is not seen."""

    def run(self, first_run: str | None) -> None:
        """Run the chat. ``first_run`` is a run that is at work already."""
        from prompt_toolkit.patch_stdout import patch_stdout

        follower = threading.Thread(target=self._follow, name="chat-follower", daemon=True)
        session = self._plain or self._build_session()
        with self._pictures, nullcontext() if self._plain else patch_stdout(raw=True):
            if first_run is not None:
                self._begin(first_run)
            follower.start()
            while True:
                try:
                    self._asked_before = None
                    line = session.prompt()
                    if not self._do(parse_line(line, self._talk.asking, self._asked_before, self._talk.skills)):
                        break
                except KeyboardInterrupt:
                    self._on_interrupt()
                except EOFError:
                    break
            self._leave(follower)

    def _do(self, meant: Meaning) -> bool:
        """Do what the line means. Returns whether the chat continues."""
        if isinstance(meant, Do) and meant.verb is SlashVerb.QUIT:
            return False
        try:
            if (run_id := self._talk.do(meant)) is not None:
                self._begin(run_id)
        except HermesError as error:
            self._talk.note(str(error), Tone.BAD)
        if self._talk.session_id is not None:
            self._on_session(self._talk.session_id)
        return True

    def _begin(self, run_id: str) -> None:
        if self._talk.at_work is None:
            self._began_at = time.monotonic()
            self._talk.begin(run_id)
        self._runs.put(run_id)

    def _on_interrupt(self) -> None:
        """Handle Ctrl-C: stop the run at work; without one, say how to leave."""
        if self._talk.at_work is None:
            self._talk.note("Ctrl-D leaves")
            return
        try:
            self._talk.stop()
        except HermesError as error:
            self._talk.note(str(error), Tone.BAD)

    def _leave(self, follower: threading.Thread) -> None:
        if (at_work := self._talk.at_work) is not None:
            self._talk.note(
                f"the run goes on; 'hermes-worker chat --continue' or 'runs watch {at_work.run_id}' shows it"
            )
        self._talk.leave()
        self._runs.put(None)
        follower.join(_LEAVE_WITHIN_S)

    def _follow(self) -> None:
        """Follow one run after the other, in a thread of its own."""
        while (run_id := self._runs.get()) is not None:
            try:
                end = self._talk.follow(run_id)
                # What the person said meanwhile comes first; the goal is looked at behind it.
                if self._runs.empty() and (next_run := self._talk.pursue_goal(end)) is not None:
                    self._begin(next_run)
            except HermesError as error:
                self._talk.note(str(error), Tone.BAD)
            self._began_at = time.monotonic()

    # ------------------------------------------------------------------------------------------------------- the line

    def _build_session(self) -> PromptSession[str]:
        from prompt_toolkit import PromptSession
        from prompt_toolkit.history import FileHistory, InMemoryHistory

        session: PromptSession[str] = PromptSession(
            message=self._render_message,
            bottom_toolbar=self._render_toolbar,
            history=FileHistory(str(self._history)) if self._history else InMemoryHistory(),
            completer=self._build_completer(),
            complete_while_typing=False,
            key_bindings=self._build_keys(),
            refresh_interval=_REFRESH_S,
            reserve_space_for_menu=4,
            tempfile_suffix=".md",
        )
        session.app.timeoutlen = _ESCAPE_S
        session.default_buffer.on_text_changed += self._note_writing
        return session

    def _note_writing(self, buffer: Buffer) -> None:
        if not buffer.text:
            self._asked_before = None
        elif self._asked_before is None:
            self._asked_before = self._talk.asking

    def _render_message(self) -> StyleAndTextTuples:
        asking = self._talk.asking
        if not asking:
            return [("bold", "> ")]
        return [("bold ansiyellow", "allow? > " if asking[0].is_approval else "answer > ")]

    def _render_toolbar(self) -> StyleAndTextTuples:
        followed = self._talk.at_work
        if followed is None:
            where = self._talk.session_id or "a new conversation"
            model = f" · {self._talk.model}" if self._talk.model else ""
            return [("", flatten_text(f"{where}{model} · /help", _TOOLBAR_CHARS_MAX))]
        return [("", flatten_text(_describe_work(followed, time.monotonic() - self._began_at), _TOOLBAR_CHARS_MAX))]

    def _build_keys(self) -> KeyBindings:
        from prompt_toolkit.filters import Condition
        from prompt_toolkit.key_binding import KeyBindings

        keys = KeyBindings()

        @keys.add("escape", "enter")
        def begin_line(event: KeyPressEvent) -> None:
            event.current_buffer.insert_text("\n")

        @keys.add("c-x", "c-e")
        def open_editor(event: KeyPressEvent) -> None:
            # The binding that comes with the library sends the line as soon as the editor ends.
            event.current_buffer.open_in_editor()

        @keys.add("c-v")
        def paste_picture(event: KeyPressEvent) -> None:
            if (picture := read_clipboard_picture()) is None:
                self._talk.note(f"the clipboard holds no picture that one of {CLIPBOARD_PROGRAMS} reads")
                return
            folder = self._pictures.enter_context(tempfile.TemporaryDirectory(prefix="hermes-chat-"))
            path = Path(folder, "pasted.png")
            path.write_bytes(picture)
            event.current_buffer.insert_text(f"@{path} ")

        @keys.add("escape", filter=Condition(lambda: self._talk.at_work is not None))
        def interrupt(_event: KeyPressEvent) -> None:
            self._on_interrupt()

        return keys

    def _build_completer(self) -> Completer:
        from prompt_toolkit.completion import Completer, Completion

        talk = self._talk

        class SayingCompleter(Completer):
            def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterator[Completion]:
                text = document.text_before_cursor
                for word, whole in list_file_completions(text):
                    yield Completion(strip_controls(whole), start_position=-len(word))
                for whole, what in list_completions(text, talk.asking, talk.known_sessions, talk.skills):
                    yield Completion(
                        strip_controls(whole), start_position=-len(text), display_meta=strip_controls(what)
                    )

        return SayingCompleter()


def _describe_work(followed: Followed, for_s: float) -> str:
    """Describe on one line what the run is doing."""
    state = followed.state
    if not followed.is_connected:
        return f"not connected, trying again ({for_s:.0f} s)"
    if state.asking:
        return f"it waits for an answer: {flatten_text(state.asking[0].text, _TOOLBAR_CHARS_MAX)}"
    calls = ", ".join(f"{call.name} {call.about}" for call in state.calls.values())
    written = state.reply.unfinished.text[-80:]
    return f"at work {for_s:.0f} s · {state.doing or calls or written or 'the model is asked'} · Esc stops it"
