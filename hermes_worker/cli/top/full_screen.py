"""``top`` on a whole terminal: draws what ``view`` lays out, and passes it the keys."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from hermes_worker.cli.top.view import (
    LeaveTop,
    OpenListed,
    OpenRun,
    ShowTab,
    TopAction,
    TopLine,
    TopState,
    choose_window,
    fold_lines,
    mark_as_old,
    press_key,
    render_foot,
    render_opened,
    render_rows,
    update_fleet,
)
from hermes_worker.cli.top.watching import FleetWatch, format_error
from hermes_worker.core.errors import HermesError

if TYPE_CHECKING:
    from prompt_toolkit import Application
    from prompt_toolkit.formatted_text import StyleAndTextTuples
    from prompt_toolkit.key_binding import KeyBindings

_STYLES = {"": "", "bold": "bold", "dim": "ansibrightblack", "warning": "ansiyellow", "chosen": "reverse"}
_FOOT_LINES = 2
_SILENT_S = 8.0
"""Seconds after a look was due from which on the facts are shown as old."""
_SURE_CHARS = 100
"""Room in the foot beside what is to be confirmed."""
_KEYS = ("up", "down", "enter", "escape", "backspace", "tab")


class FullScreen:
    """Shows a fleet until the person leaves."""

    def __init__(self, watch: FleetWatch, every_s: float) -> None:
        self._watch = watch
        self._every_s = every_s
        self._state = TopState()
        self._done = ""
        """The result of an action, until a look that began after it is shown: a key means the row that stands there."""
        self._lock = threading.Lock()
        """Guards the state and the last result: one thread looks, another handles keys."""
        self._left = threading.Event()
        self._look_now = threading.Event()
        self._application = self._build_application()

    def run(self) -> None:
        looker = threading.Thread(target=self._poll_once, name="top-looker", daemon=True)
        looker.start()
        try:
            self._application.run()
        finally:
            self._left.set()
            self._look_now.set()

    def _poll_once(self) -> None:
        while not self._left.is_set():
            with self._lock:
                done, self._done = self._done, ""
            fleet = self._watch.poll_once()
            with self._lock:
                self._state = update_fleet(self._state, fleet)
                if done:
                    self._state = replace(self._state, said=done)
            self._application.invalidate()
            self._look_now.wait(self._every_s)
            self._look_now.clear()

    def _on_key(self, key: str) -> None:
        with self._lock:
            size = self._application.output.get_size()
            room = max(0, size.columns * (size.rows - 1) - _SURE_CHARS)
            self._state, action = press_key(replace(self._state, room=room), key)
        if isinstance(action, LeaveTop):
            self._application.exit()
        elif action is not None:
            # Not in the thread that draws: a server that is slow would freeze the screen.
            threading.Thread(target=self._act, args=(action,), name="top-action", daemon=True).start()

    def _act(self, action: TopAction) -> None:
        try:
            if isinstance(action, ShowTab):
                self._watch.tab = action.tab
            elif isinstance(action, OpenRun | OpenListed):
                opened = self._watch.open(action)
                with self._lock:
                    self._state = replace(self._state, opened=opened)
            else:
                done = self._watch.do(action)
                with self._lock:
                    self._done = done
        except HermesError as error:
            with self._lock:
                self._state = replace(self._state, said=format_error(error))
        self._look_now.set()
        self._application.invalidate()

    # ---------------------------------------------------------------------------------------------------- the terminal

    def _build_application(self) -> Application[None]:
        from prompt_toolkit import Application
        from prompt_toolkit.layout import FormattedTextControl, HSplit, Layout, Window

        above = Window(FormattedTextControl(self._render_above))
        below = Window(FormattedTextControl(self._render_below), height=self._compute_foot_height)
        layout = Layout(HSplit([above, below]))
        return Application(layout=layout, key_bindings=self._build_bindings(), full_screen=True, refresh_interval=1.0)

    def _render_above(self) -> StyleAndTextTuples:
        size = self._application.output.get_size()
        with self._lock:
            state = self._state
        state = replace(state, fleet=mark_as_old(state.fleet, time.time(), self._every_s + _SILENT_S))
        shown = render_opened(state, size.columns) if state.opened is not None else render_rows(state)
        return _render_lines(
            choose_window(fold_lines(shown, size.columns), max(1, size.rows - self._compute_foot_height()))
        )

    def _compute_foot_height(self) -> int:
        """Compute the height of the foot: a question is shown to its end, whatever room it takes."""
        return max(_FOOT_LINES, min(len(self._fold_foot()), self._application.output.get_size().rows - 1))

    def _fold_foot(self) -> list[TopLine]:
        columns = self._application.output.get_size().columns
        with self._lock:
            shown = render_foot(self._state, columns)
        return fold_lines(shown, columns)

    def _render_below(self) -> StyleAndTextTuples:
        return _render_lines(self._fold_foot())

    def _build_bindings(self) -> KeyBindings:
        from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
        from prompt_toolkit.keys import Keys

        keys = KeyBindings()

        def bind(name: str) -> None:
            keys.add(name, eager=True)(lambda event: self._on_key(name))

        for name in _KEYS:
            bind(name)

        @keys.add("c-c")
        @keys.add("c-d")
        def leave(event: KeyPressEvent) -> None:
            event.app.exit()

        @keys.add(Keys.Any)
        def character(event: KeyPressEvent) -> None:
            self._on_key(event.data)

        return keys


def _render_lines(shown: Sequence[TopLine]) -> StyleAndTextTuples:
    return [(_STYLES[line.style], f"{line.text}\n") for line in shown]
