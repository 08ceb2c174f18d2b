"""The survey in words: the report that is written to the user's directory, and the answer that ends the turn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import PurePosixPath

from hermes_worker.models.scripted.survey import REPORT_PATH, Survey

NOT_A_MODEL = (
    "This was written by the scripted stand-in, not by a language model: a fixed procedure looked at the directory and "
    "put together what the tools returned. It did not understand your request. For real answers set an API key, for "
    "example OPENROUTER_API_KEY, or HERMES_BASE_URL for a model server of your own."
)
CHANGES_MAX = 20
"""How many lines of ``git status`` are asked for."""
_ROWS_MAX = 10
_MARKS_MAX = 50


def render_report(survey: Survey, request: str) -> str:
    """Render the Markdown file. The same survey gives the same bytes."""
    sections = (
        _render_overview(survey),
        _render_table("Files by type", ("Type", "Files"), _count_file_types(survey)),
        _render_table("Biggest files (of those up to 10 MB)", ("File", "Lines", "Bytes"), _list_biggest(survey)),
        _render_list("Recent commits", survey.commits, "There are none."),
        _render_list("Uncommitted changes", survey.changes, "There are none."),
        _render_marked_lines(survey),
        _render_excerpts(survey),
        _render_list("Not known", survey.problems or None, ""),
    )
    head = f"# Survey of this directory\n\n> {NOT_A_MODEL}\n\nAsked for: {_format_quote(request)}\n"
    return "\n".join([head, *filter(None, sections)])


def render_answer(survey: Survey, request: str, *, could_write: bool) -> str:
    """Render the final text of the turn."""
    lines = list(_list_facts(survey)) or ["No tool result told me anything about the directory."]
    if survey.has_report:
        lines.append(f"The details are in `{REPORT_PATH}`.")
    elif could_write:
        lines.append(f"`{REPORT_PATH}` has not been written.")
    lines += [f"Not known: {problem}." for problem in survey.problems[:_ROWS_MAX]]
    listed = "\n".join(f"- {line}" for line in lines)
    asked = f"You asked: {_format_quote(request)}. " if request.strip() else ""
    return f"I surveyed the directory.\n\n{listed}\n\n{asked}{NOT_A_MODEL}"


def _list_facts(survey: Survey) -> Iterator[str]:
    if survey.files is not None:
        most = ", ".join(f"{count} {kind}" for kind, count in _count_file_types(survey)[:3])
        yield _format_count(survey.files_total or 0, "file") + (f" ({most})" if most else "") + "."
    if survey.sizes:
        biggest = survey.sizes[0]
        yield f"Biggest file: `{biggest.path}` with {_format_count(biggest.lines, 'line')} ({biggest.bytes} bytes)."
    if survey.marks is not None:
        first = f"; first: `{survey.marks[0].path}:{survey.marks[0].line}`" if survey.marks else ""
        yield f"Marked TODO, FIXME, XXX or HACK: {_format_count(survey.marks_total or 0, 'line')}{first}."
    if survey.commits:
        yield f"Latest commit: {survey.commits[0]}."
    if survey.changes is not None:
        at_least = "At least " if len(survey.changes) >= CHANGES_MAX else ""
        yield f"{at_least}{_format_count(len(survey.changes), 'uncommitted change')}."


def _format_count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _render_overview(survey: Survey) -> str:
    return "## Overview\n\n" + "\n".join(f"- {fact}" for fact in _list_facts(survey)) + "\n"


def _count_file_types(survey: Survey) -> list[tuple[str, str]]:
    """File types by number of files listed; ties in alphabetical order."""
    kinds = Counter(PurePosixPath(path).suffix.lower() or "(none)" for path in survey.files or ())
    return [(kind, str(count)) for kind, count in sorted(kinds.items(), key=lambda item: (-item[1], item[0]))][
        :_ROWS_MAX
    ]


def _list_biggest(survey: Survey) -> list[tuple[str, ...]]:
    return [(f"`{size.path}`", str(size.lines), str(size.bytes)) for size in (survey.sizes or ())[:_ROWS_MAX]]


def _render_table(title: str, columns: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    rows = list(rows)
    if not rows:
        return ""
    lines = (columns, ("---",) * len(columns), *rows)
    return f"## {title}\n\n" + "".join(f"| {' | '.join(map(_escape_cell, line))} |\n" for line in lines)


def _render_list(title: str, items: tuple[str, ...] | None, empty: str) -> str:
    if items is None:
        return ""
    body = "".join(f"- {_strip_markup(item)}\n" for item in items) or f"{empty}\n"
    return f"## {title}\n\n{body}"


def _render_marked_lines(survey: Survey) -> str:
    if survey.marks is None:
        return ""
    shown = survey.marks[:_MARKS_MAX]
    more = (survey.marks_total or 0) - len(shown)
    lines = [f"- [ ] `{mark.path}:{mark.line}` {_strip_markup(mark.text)}\n" for mark in shown]
    if more > 0:
        lines.append(f"- … and {more} more\n")
    return "## Marked lines\n\n" + ("".join(lines) or "There are none.\n")


def _render_excerpts(survey: Survey) -> str:
    blocks = [
        f"`{excerpt.path}`\n\n```\n{excerpt.text.replace('```', '` ` `')}\n```\n"
        for excerpt in survey.excerpts
        if excerpt.text
    ]
    return "## Excerpts\n\n" + "\n".join(blocks) if blocks else ""


def _format_quote(text: str) -> str:
    line = " ".join(text.split())
    return f"“{line[:117]}…”" if len(line) > 118 else f"“{line}”"


def _strip_markup(text: str) -> str:
    return " ".join(text.split())


def _escape_cell(text: str) -> str:
    return _strip_markup(text).replace("|", "\\|")
