"""Write what is shown of a conversation: for a terminal with rich, for a pipe as plain text."""

from __future__ import annotations

import sys
from base64 import b64encode
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Protocol

import click

from hermes_worker.cli.chat.call_output import CallOutput, LineMark
from hermes_worker.cli.chat.turn import (
    STOPPED_HERE,
    CallBegun,
    CallFolded,
    CallVerdict,
    ChatEnd,
    ChatNotice,
    PendingQuestion,
    Prose,
    Shown,
    Tone,
)
from hermes_worker.cli.wording import flatten_text, render_question, strip_controls

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.markdown import Markdown

_SIGNS = {CallVerdict.DONE: "✓", CallVerdict.FAILED: "✗", CallVerdict.REFUSED: "✗", CallVerdict.IN_DOUBT: "!"}
_STYLES = {Tone.PLAIN: "dim", Tone.GOOD: "green", Tone.WARNING: "yellow", Tone.BAD: "red"}
_LINE_STYLES = {
    LineMark.PLAIN: "dim",
    LineMark.ADDED: "green",
    LineMark.REMOVED: "red",
    LineMark.PLACE: "cyan",
    LineMark.BAD: "red",
}
_ABOUT_CHARS_MIN = 20
_CODE_LANGUAGE = "text"
"""Code is not coloured by its language: the model chooses the name, and some highlighters take time that grows with the
square of the text."""


class Painter(Protocol):
    """Shows what ``turn`` and the shell decide. All text that it gets is clean."""

    def show(self, shown: Shown) -> None: ...

    def show_lines(self, lines: Sequence[str]) -> None:
        """Show facts that the person asked for."""

    def copy(self, text: str) -> bool:
        """Ask the terminal to copy a text. Returns False where none could."""


class PlainPainter:
    """For a program that reads the answer: only the answer goes to stdout, once it is complete. Questions and errors go
    to stderr."""

    def show(self, shown: Shown) -> None:
        match shown:
            case ChatEnd():
                if shown.output:
                    click.echo(shown.output)
                if shown.error:
                    click.echo(f"hermes-worker: {shown.error}", err=True)
            case PendingQuestion():
                self.show_lines(render_question_lines(shown))
            case ChatNotice() if shown.tone in (Tone.WARNING, Tone.BAD):
                click.echo(shown.text, err=True)
            case _:
                pass

    def show_lines(self, lines: Sequence[str]) -> None:
        for line in lines:
            click.echo(strip_controls(line), err=True)

    def copy(self, text: str) -> bool:
        return False


class TerminalPainter:
    """For people: Markdown block by block, and one line for each call."""

    def __init__(self, *, tells_of_begun_calls: bool, has_colour: bool) -> None:
        """Without ``tells_of_begun_calls`` another part of the screen shows the calls at work."""
        self._tells_of_begun_calls = tells_of_begun_calls
        self._has_colour = has_colour
        self._console = _build_console(has_colour=has_colour)

    def show(self, shown: Shown) -> None:
        match shown:
            case Prose():
                self._show_prose(shown)
            case CallBegun():
                if self._tells_of_begun_calls:
                    self._show_line(f"  → {shown.name}  {shown.about}".rstrip(), "dim")
            case CallFolded():
                self._call(shown)
            case CallOutput():
                for each in shown.lines:
                    self._show_line(f"    {each.text}", _LINE_STYLES[each.mark])
            case ChatNotice():
                self._show_line(f"  {shown.text}", _STYLES[shown.tone])
            case PendingQuestion():
                for line in render_question_lines(shown):
                    self._show_line(f"  {line}", "yellow")
            case ChatEnd():
                self._end(shown)

    def show_lines(self, lines: Sequence[str]) -> None:
        for line in lines:
            self._show_line(strip_controls(line), "")

    def copy(self, text: str) -> bool:
        """Send OSC 52, which terminals obey that let programs write to their clipboard."""
        self._console.file.write(f"\x1b]52;c;{b64encode(text.encode()).decode()}\x07")
        self._console.file.flush()
        return True

    @property
    def _width(self) -> int:
        """The columns into which the line of a call has to fit."""
        return self._console.width

    def _show_prose(self, shown: Prose) -> None:
        from rich.text import Text

        text = shown.block.text.strip("\n")
        if not text.strip():
            return
        if shown.block.is_plain:
            self._console.print(Text(text))
        else:
            self._console.print(render_markdown(text))
        self._console.print()

    def _call(self, shown: CallFolded) -> None:
        sign = _SIGNS[shown.verdict]
        took = f"{shown.took_s:.2f} s" if shown.took_s or not shown.why else ""
        others = sum(len(part) + 2 for part in (shown.name, shown.why, took) if part)
        about = flatten_text(shown.about, max(_ABOUT_CHARS_MIN, self._width - others - 6))
        rest = "  ".join(part for part in (shown.name, about, shown.why, took) if part)
        self._show_line(f"  {sign} {rest}", "dim" if shown.verdict is CallVerdict.DONE else "red")

    def _end(self, shown: ChatEnd) -> None:
        how = STOPPED_HERE if shown.is_stopped_here else shown.name.removeprefix("run.")
        used = f"{shown.tokens_in:,} tokens in, {shown.tokens_out:,} out"
        if shown.error:
            self._show_line(f"  {shown.error}", "red")
        self._show_line(f"  {how}, {used}", "dim" if shown.is_completed else "red")

    def _show_line(self, text: str, style: str) -> None:
        from rich.text import Text

        self._console.print(Text(text, style=style))


class LinePainter(TerminalPainter):
    """For people whose terminal or screen reader needs whole lines: nothing is rendered, coloured or drawn again."""

    def __init__(self) -> None:
        super().__init__(tells_of_begun_calls=True, has_colour=False)

    @property
    def _width(self) -> int:
        return sys.maxsize

    def copy(self, text: str) -> bool:
        return False

    def _show_prose(self, shown: Prose) -> None:
        if text := shown.block.text.strip("\n"):
            self._show_line(text, "")

    def _show_line(self, text: str, style: str) -> None:
        click.echo(strip_controls(text))


def render_question_lines(question: PendingQuestion) -> list[str]:
    """Render a question of the run."""
    until = f" ({question.until})" if question.until else ""
    if question.is_approval:
        why = f" ({question.why})" if question.why else ""
        *some, last = [choice for choice in question.choices if choice != "deny"] or ("once", "session", "always")
        offered = f"{', '.join(some)} or {last}" if some else last
        how = f"  {question.code}: allow it {offered}, or deny it{until}"
        return [*render_question(f"? wants to run{why}:", question.text), how]
    numbered = [f"  {number} {choice}" for number, choice in enumerate(question.choices, start=1)]
    how = f"  {question.code}: answer with {'a number or ' if numbered else ''}words{until}"
    return [*render_question("?", question.text), *numbered, how]


def _build_console(*, has_colour: bool) -> Console:
    from rich.console import Console

    return Console(
        highlight=False,
        markup=False,
        emoji=False,
        force_terminal=True,
        no_color=not has_colour,
        legacy_windows=False,
    )


def render_markdown(text: str) -> RenderableType:
    """Render Markdown in which everything stays visible: HTML and pictures as they were written, and of links the
    address."""
    from markdown_it import MarkdownIt

    shown = _define_visible_markdown()("", code_theme="ansi_dark", hyperlinks=False)
    parser = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"]).disable(["image", "entity"])
    shown.markup, shown.parsed = text, parser.parse(text)
    return shown


@cache
def _define_visible_markdown() -> type[Markdown]:
    """Define the class when something is painted: rich takes a tenth of a second to import."""
    from rich.console import ConsoleOptions, RenderResult
    from rich.markdown import CodeBlock, Markdown
    from rich.segment import Segment

    class CodeAsText(CodeBlock):
        """A block of code, in whichever language it says to be."""

        @classmethod
        def create(cls, markdown: Markdown, token: object) -> CodeBlock:
            return cls(_CODE_LANGUAGE, markdown.code_theme)

    class VisibleMarkdown(Markdown):
        elements = {**Markdown.elements, "fence": CodeAsText, "code_block": CodeAsText}  # noqa: RUF012 - as rich has it

        def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
            """Clean the text once more: Markdown has escapes of its own, which could write what was removed before."""
            for piece in console.render(_Parsed(self), options):
                yield Segment(strip_controls(piece.text), piece.style)

    class _Parsed:
        def __init__(self, shown: Markdown) -> None:
            self._shown = shown

        def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
            yield from Markdown.__rich_console__(self._shown, console, options)

    return VisibleMarkdown
