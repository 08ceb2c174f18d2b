"""Read from a turn's tool results what is known of the user's directory. Facts come from results only; what a result
does not say is not known, and why it does not is kept as a problem.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from hermes_worker.models.scripted.transcript import AnsweredCall, ScriptedTurn, parse_first_object

REPORT_PATH = "hermes-report.md"
RESULTS_FOLDER = "hermes-results/"
"""The folder in which the worker keeps results that are too long; part of the product, not of the user's work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SurveyMark:
    """A line that is marked for later, such as a ``TODO``."""

    path: str
    line: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSize:
    path: str
    lines: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FileExcerpt:
    """Part of a file, as ``read_file`` numbered it."""

    path: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """Everything known so far. ``None`` means not known, empty means none."""

    files: tuple[str, ...] | None = None
    files_total: int | None = None
    """Number of files; may exceed ``len(files)``, as a listing has a limit."""
    commits: tuple[str, ...] | None = None
    changes: tuple[str, ...] | None = None
    """Lines of ``git status --short``."""
    marks: tuple[SurveyMark, ...] | None = None
    marks_total: int | None = None
    sizes: tuple[FileSize, ...] | None = None
    excerpts: tuple[FileExcerpt, ...] = ()
    has_report: bool = False
    """Whether ``write_file`` said that it wrote the report."""
    problems: tuple[str, ...] = ()
    """Facts that could not be learnt, and why."""


def read_call_kind(call: AnsweredCall) -> str:
    """What a call of ours was for, from the id that ``make_call_id`` gave it; empty for any other call."""
    match = re.fullmatch(r"call_([a-z]+)\d*_\d+", call.id)
    return match[1] if match else ""


def make_call_id(role: str, turn: ScriptedTurn) -> str:
    """An id that says what the call is for and occurs once in the conversation, which has grown since the last."""
    return f"call_{role}_{turn.rows_total}"


def read_survey(turn: ScriptedTurn) -> Survey:
    """Read every result of the turn."""
    survey = Survey()
    for call in turn.calls:
        survey = _with_result(survey, call)
    return survey


Document = Mapping[str, object]


def _with_result(survey: Survey, call: AnsweredCall) -> Survey:
    reader = _READERS.get(read_call_kind(call))
    if reader is None:
        return survey
    name, read = reader
    document, problem = _read_document(call)
    if document is not None and not (problem := _read_error(document)):
        return read(survey, call, document)
    if any(known.endswith(f": {problem}") for known in survey.problems):
        return survey  # no repository has neither history nor status; saying it once is enough
    return replace(survey, problems=(*survey.problems, f"{name}: {problem}"))


def _read_document(call: AnsweredCall) -> tuple[Document | None, str]:
    if call.result is None:
        return None, "no answer came"
    document = parse_first_object(call.result)
    if document is not None:
        return document, ""
    if call.result.lstrip().startswith("<persisted-output>"):
        return None, "the result was too long to be passed on"
    return None, _flatten_text(call.result) or "the result was empty"


def _read_error(document: Document) -> str:
    error = document.get("error")
    if error:
        return _flatten_text(str(error))
    output = str(document.get("output") or "")
    if "not a git repository" in output:
        return "this is not a git repository"
    if "git: command not found" in output or "git: not found" in output:
        return "git is not installed"
    if output.lstrip().startswith(("fatal:", "error:")):  # git behind a pipe: the exit code is the last command's
        return _flatten_text(output)
    if document.get("exit_code") not in (None, 0):
        return _flatten_text(output) or f"exit code {document['exit_code']}"
    return ""


# ------------------------------------------------------------------------------------------------------- one by one


def _read_files(survey: Survey, call: AnsweredCall, document: Document) -> Survey:
    files = [path for path in map(_read_path, _list(document, "files", "matches")) if path and not _is_ours(path)]
    ours = len(_list(document, "files", "matches")) - len(files)
    total = document.get("total_count")
    return replace(
        survey,
        files=tuple(sorted(files)),
        files_total=max(len(files), total - ours) if isinstance(total, int) else len(files),
    )


def _read_marks(survey: Survey, call: AnsweredCall, document: Document) -> Survey:
    found = [mark for mark in map(_read_mark, _list(document, "matches")) if mark]
    marks = tuple(mark for mark in found if not _is_ours(mark.path))
    total = document.get("total_count")
    ours = len(found) - len(marks)
    return replace(
        survey, marks=marks, marks_total=max(len(marks), total - ours) if isinstance(total, int) else len(marks)
    )


def _read_log(survey: Survey, call: AnsweredCall, document: Document) -> Survey:
    return replace(survey, commits=tuple(_list_lines(document)))


def _read_status(survey: Survey, call: AnsweredCall, document: Document) -> Survey:
    return replace(survey, changes=tuple(line for line in _list_lines(document) if not _is_ours(line[3:])))


_SIZE = re.compile(r"\s*(\d+)\s+(\d+)\s+(?:\./)?(.+)")


def _read_sizes(survey: Survey, call: AnsweredCall, document: Document) -> Survey:
    rows = filter(None, map(_SIZE.fullmatch, _list_lines(document)))
    sizes = [FileSize(path=row[3], lines=int(row[1]), bytes=int(row[2])) for row in rows]
    return replace(survey, sizes=tuple(size for size in sizes if size.path != "total" and not _is_ours(size.path)))


def _read_excerpt(survey: Survey, call: AnsweredCall, document: Document) -> Survey:
    excerpt = FileExcerpt(path=str(call.arguments.get("path")), text=str(document.get("content") or ""))
    return replace(survey, excerpts=(*survey.excerpts, excerpt))


def _read_report(survey: Survey, call: AnsweredCall, document: Document) -> Survey:
    return replace(survey, has_report=document.get("success") is not False)


_READERS: Mapping[str, tuple[str, Callable[[Survey, AnsweredCall, Document], Survey]]] = {
    "files": ("list of files", _read_files),
    "log": ("git history", _read_log),
    "status": ("git status", _read_status),
    "marks": ("marked lines", _read_marks),
    "sizes": ("sizes of files", _read_sizes),
    "read": ("reading a file", _read_excerpt),
    "report": ("writing the report", _read_report),
}


# ----------------------------------------------------------------------------------------------------- reading values


def _list(document: Document, *names: str) -> Sequence[object]:
    return next((value for value in map(document.get, names) if isinstance(value, list)), [])


def _list_lines(document: Document) -> list[str]:
    return [line.rstrip() for line in str(document.get("output") or "").splitlines() if line.strip()]


def _read_path(entry: object) -> str:
    path = entry.get("path") if isinstance(entry, dict) else entry
    return path.removeprefix("./") if isinstance(path, str) else ""


_GREP_LINE = re.compile(r"(.+?):(\d+):(.*)")


def _read_mark(entry: object) -> SurveyMark | None:
    if isinstance(entry, str) and (match := _GREP_LINE.fullmatch(entry)):
        return SurveyMark(path=match[1].removeprefix("./"), line=int(match[2]), text=_flatten_text(match[3]))
    if not isinstance(entry, dict) or entry.get("context"):
        return None
    path, line = _read_path(entry), entry.get("line")
    if not path or not isinstance(line, int):
        return None
    return SurveyMark(path=path, line=line, text=_flatten_text(str(entry.get("content", entry.get("text", "")))))


def _is_ours(path: str) -> bool:
    path = path.strip().removeprefix("./")
    return path == REPORT_PATH or path.startswith(RESULTS_FOLDER)


def _flatten_text(text: str, chars_max: int = 200) -> str:
    line = " ".join(text.split())
    return line if len(line) <= chars_max else f"{line[: chars_max - 1]}…"
