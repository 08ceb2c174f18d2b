"""``search_files``: look for text in files, or for files by name.

The search runs as a command in the workspace: ripgrep where it is installed, otherwise ``treesearch``. Both look at
the same files and their output is read by the same code, so the answer does not depend on the machine.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any, Final

from hermes_worker.agent.tools import treesearch
from hermes_worker.agent.tools.base import ToolContext, ToolResult
from hermes_worker.agent.tools.builtin import HITS_DEFAULT, SEARCH_FILES, SearchOutput
from hermes_worker.agent.tools.files import find_session_folder, format_path_from, locate_path, render_place
from hermes_worker.agent.tools.interruptible import run_interruptibly
from hermes_worker.agent.tools.results import build_error_result, build_json_result
from hermes_worker.workspaces.base import CommandResult, Ending, PathNotFound, Workspace, WorkspaceError

_TIMEOUT_S: Final = 60.0
_OUTPUT_BYTES_MAX: Final = 8 * 1024 * 1024
_HITS_PER_FILE_MAX: Final = 1_000
_LINE_CHARS_MAX: Final = 500
_LIMIT_MAX: Final = 1_000
_CONTEXT_MAX: Final = 20
_NOT_FOUND: Final = 127
_INTERRUPTED: Final = "the search was interrupted"
_CUT: Final = 128 + 13
"""Stopped because the output was long enough (SIGPIPE)."""
_RIPGREP_FINISHED: Final = (0, 1, _CUT)
"""Found, found nothing, cut."""
_RIPGREP_ERROR: Final = 2
"""The pattern is none, or an entry could not be read; what the others hold is printed all the same."""
_OWN_FINISHED: Final = (0, _CUT)
"""An interpreter that fails exits with 1."""
_OWN_BAD_PATTERN: Final = 2
_RECORD: Final = re.compile(rb"(/[^\0]*)\0(\d+)([:-])([^\n]*)\n")
"""A line of a file, whose name may have line ends. Names are absolute, so what stands between two records is none."""
_RAW_BYTE: Final = re.compile("[\udc80-\udcff]")
_COUNT: Final = re.compile(rb"(/[^\0]*)\0(\d+)\n")
# Only .gitignore files at or below the searched folder count, so that the answer is the same on every machine.
_RIPGREP: Final = (
    "rg --no-config --no-heading --with-filename --line-number --color never --null --no-messages --sort path "
    "--no-ignore-global --no-ignore-parent --no-ignore-dot --no-ignore-exclude --no-require-git"
)
# ripgrep opens whatever is called .gitignore, waits for ever for a FIFO and reads a file of ten gigabytes into memory.
# A tree that has such a one is left to ``treesearch``.
_ODD_RULES: Final = (
    r"\( -name '.?*' ! -name .gitignore -prune \) -o \( -name .gitignore ! \( -type f -size -2049 \) -print -quit \)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _FileQuery:
    """A search, with the path canonical. ``pattern`` is ``None`` when files are to be listed."""

    path: str
    pattern: str | None
    output: SearchOutput
    context: int
    glob: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _OutputLine:
    """One line of output."""

    path: str
    number: int
    text: str
    is_match: bool


class SearchFilesTool:
    """``search_files``."""

    spec: Final = SEARCH_FILES

    def run(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        path = locate_path(context, arguments.get("path") or ".")
        _require_searchable(context.workspace, path)
        is_by_name = arguments.get("target") == "files"
        query = _FileQuery(
            path=path,
            pattern=None if is_by_name else arguments["pattern"],
            output=SearchOutput.FILES
            if is_by_name
            else SearchOutput(arguments.get("output_mode", SearchOutput.CONTENT)),
            context=min(arguments.get("context", 0), _CONTEXT_MAX),
            glob=arguments.get("file_glob") or None,
        )
        page = _ResultPage(
            offset=arguments.get("offset", 0), limit=min(arguments.get("limit", HITS_DEFAULT), _LIMIT_MAX)
        )
        try:
            output = _run_search(query, context)
            wanted = _ResultFilter(context, query, name_glob=arguments["pattern"] if is_by_name else None)
            found = run_interruptibly(lambda: _render_answer(output, query.output, wanted, page), context.cancelled)
            return build_json_result({**found, **render_place(context)})
        except _SearchFailed as failure:
            return build_error_result(str(failure))


class _SearchFailed(Exception):
    """There is no answer, and the message says why."""


def _require_searchable(workspace: Workspace, path: str) -> None:
    """Raise ``WorkspaceError`` for anything but a file or a folder: a FIFO would hang the search."""
    try:
        workspace.read_bytes(path, limit=0)
    except PathNotFound:
        raise
    except WorkspaceError:
        workspace.require_folder(path)


# --- running it ---


def _run_search(query: _FileQuery, context: ToolContext) -> bytes:
    """Run the search and return the output of ripgrep, or of ``treesearch`` when ripgrep is missing or does not know
    the pattern's syntax (look-ahead, back-references). Raises ``_SearchFailed``.
    """
    done = _execute(_build_ripgrep_command(query), context)
    is_partial = done.exit_code == _RIPGREP_ERROR and done.output
    if done.exit_code in _RIPGREP_FINISHED or is_partial:
        return done.output
    done = _execute(_build_treesearch_command(query), context)
    if done.exit_code == _OWN_BAD_PATTERN:
        raise _SearchFailed(done.output.decode("utf-8", "replace")[:500])
    if done.exit_code not in _OWN_FINISHED:
        raise _SearchFailed(f"the search could not be run to its end (exit code {done.exit_code})")
    return done.output


def _build_treesearch_command(query: _FileQuery) -> str:
    document = {
        "path": query.path,
        "pattern": query.pattern,
        "output": "files" if query.output is SearchOutput.FILES else query.output.value,
        "context": query.context,
        "glob": _name_glob(query),
        "hits_max": _HITS_PER_FILE_MAX,
    }
    program = shlex.join(["-I", "-S", "-c", _load_treesearch_script(), json.dumps(document)])
    interpreters = " ".join(map(shlex.quote, (sys.executable, "python3", "python")))
    return (
        f'for python in {interpreters}; do command -v "$python" >/dev/null 2>&1 && break; done; '
        f'"$python" {program} 2>/dev/null'
    )


@cache
def _load_treesearch_script() -> str:
    return Path(treesearch.__file__).read_text(encoding="utf-8")


def _build_ripgrep_command(query: _FileQuery) -> str:
    options: list[str] = []
    if query.pattern is None:
        options += ["--files"]
    else:
        if query.output is SearchOutput.CONTENT:
            options += ["--max-count", str(_HITS_PER_FILE_MAX), "--context", str(query.context)]
        else:
            options += ["--count" if query.output is SearchOutput.COUNT else "--files-with-matches"]
        if glob := _name_glob(query):
            # A type and not --glob, which would take back in what .gitignore excludes.
            options += ["--type-add", f"wanted:{glob}", "--type", "wanted"]
        options += ["--regexp", query.pattern]
    arguments = f"{shlex.join([*options, '--'])} {_quote_path(query.path)}"
    return (
        f"command -v rg >/dev/null 2>&1 || exit {_NOT_FOUND}; "
        f'[ -z "$(find {_quote_path(query.path)} -mindepth 1 {_ODD_RULES} 2>/dev/null)" ] || exit {_NOT_FOUND}; '
        f"{_RIPGREP} {arguments} 2>/dev/null"
    )


def _quote_path(path: str) -> str:
    """A path as a word of bash. A command is text, so bytes of a name that are none are written as escapes."""
    return _RAW_BYTE.sub(lambda found: f"'$'\\x{ord(found[0]) & 0xFF:02x}''", shlex.quote(path))


def _name_glob(query: _FileQuery) -> str | None:
    """The glob if it is about names only; one about whole paths is applied to the answer."""
    return query.glob if query.glob and "/" not in query.glob and not query.glob.startswith("!") else None


def _execute(command: str, context: ToolContext) -> CommandResult:
    """Run a search command and return its output. Raises ``_SearchFailed`` when it did not end by itself."""
    done = context.workspace.execute(
        # Cutting the output here stops the search as soon as there is enough of it.
        f'{{ {command}; }} | head -c {_OUTPUT_BYTES_MAX}; exit "${{PIPESTATUS[0]}}"',
        cwd=None,
        env={},
        timeout_s=_TIMEOUT_S,
        output_bytes_max=_OUTPUT_BYTES_MAX,
        should_stop=context.cancelled.is_set,
        origin=context.origin,
    )
    if done.ending is Ending.CANCELLED:
        raise _SearchFailed(_INTERRUPTED)
    if done.ending is Ending.TIMED_OUT:
        raise _SearchFailed("the search took too long; search in a smaller folder or with a simpler pattern")
    return done


# --- reading the answer ---


@dataclass(frozen=True, slots=True, kw_only=True)
class _ResultPage:
    offset: int
    limit: int

    def slice_page(self, found: Sequence[Any]) -> Sequence[Any]:
        return found[self.offset : self.offset + self.limit]


class _ResultFilter:
    """Decides which files may be in the answer, and under which name. Every file and every folder is judged once:
    following each of 100,000 names from the root down took longer than the search.
    """

    def __init__(self, context: ToolContext, query: _FileQuery, *, name_glob: str | None) -> None:
        self._workspace = context.workspace
        self._cancelled = context.cancelled
        self._shown_from = str(context.workspace.resolve(find_session_folder(context) or "."))
        self._top = query.path
        self._globs = [glob for glob in (query.glob, name_glob) if glob]
        self._names: dict[bytes, str | None] = {}
        self._folders: dict[str, bool] = {query.path.rstrip("/"): True}
        """Whether each folder may be read. The one that is searched was resolved."""

    def find_name(self, raw: bytes) -> str | None:
        """The path to show; ``None`` for a file that is not asked for, or that may not be read. Raises
        ``_SearchFailed`` once the call is cancelled."""
        if self._cancelled.is_set():
            raise _SearchFailed(_INTERRUPTED)
        if raw not in self._names:
            self._names[raw] = self._judge_path(raw)
        return self._names[raw]

    def _judge_path(self, raw: bytes) -> str | None:
        path = raw.decode("utf-8", "surrogateescape")
        below = path.removeprefix(self._top).lstrip("/") or PurePosixPath(path).name
        if not all(_matches_glob(below, glob) for glob in self._globs):
            return None
        return format_path_from(self._shown_from, path) if path == self._top or self._may_read(path) else None

    def _may_read(self, path: str) -> bool:
        return self._may_enter(path.rpartition("/")[0]) and self._workspace.may_read(path)

    def _may_enter(self, folder: str) -> bool:
        unjudged = []
        while folder and folder not in self._folders:
            unjudged.append(folder)
            folder = folder.rpartition("/")[0]
        verdict = self._folders.get(folder, False)
        for inner in reversed(unjudged):
            verdict = self._folders[inner] = verdict and self._workspace.may_read(inner)
        return verdict


def _matches_glob(path: str, glob: str) -> bool:
    if glob.startswith("!"):
        return not treesearch.matches_glob(path, glob[1:])
    return treesearch.matches_glob(path, glob)


def _render_answer(output: bytes, form: SearchOutput, wanted: _ResultFilter, page: _ResultPage) -> dict[str, object]:
    is_cut = len(output) >= _OUTPUT_BYTES_MAX
    match form:
        case SearchOutput.CONTENT:
            lines = _parse_lines(output, wanted)
            matches = [line for line in lines if line.is_match]
            return _render_page(
                "matches", _add_context(page.slice_page(matches), lines), len(matches), page, is_cut=is_cut
            )
        case SearchOutput.FILES:
            # What stands behind the last name, if anything does, was cut in the middle.
            *records, _ = output.split(b"\0")
            names = sorted((name for raw in records if raw and (name := wanted.find_name(raw))), key=_split_path)
            return _render_page("files", page.slice_page(names), len(names), page, is_cut=is_cut)
        case SearchOutput.COUNT:
            counts = _parse_counts(output, wanted)
            document = _render_page("counts", dict(page.slice_page(counts)), len(counts), page, is_cut=is_cut)
            return {**document, "matches_total": sum(count for _, count in counts)}


def _render_page(key: str, found: object, total: int, page: _ResultPage, *, is_cut: bool) -> dict[str, object]:
    end = page.offset + page.limit
    document: dict[str, object] = {key: found, "total_count": total, "truncated": is_cut or end < total}
    if end < total:
        document["hint"] = f"results {page.offset + 1} to {end} of {total}; narrow the search or use offset={end}"
    elif is_cut:
        document["hint"] = "there are more results than can be collected; narrow the search"
    return document


def _parse_lines(output: bytes, wanted: _ResultFilter) -> list[_OutputLine]:
    lines = []
    for record in _RECORD.finditer(output):
        path = wanted.find_name(record[1])
        if path is not None:
            text = record[4].removesuffix(b"\r").decode("utf-8", "replace")
            lines.append(_OutputLine(path=path, number=int(record[2]), text=_cut(text), is_match=record[3] == b":"))
    orders = {path: _split_path(path) for path in {line.path for line in lines}}
    return sorted(lines, key=lambda line: (orders[line.path], line.number))


def _parse_counts(output: bytes, wanted: _ResultFilter) -> list[tuple[str, int]]:
    counts = [
        (name, int(record[2]))
        for record in _COUNT.finditer(output)
        if (name := wanted.find_name(record[1])) is not None
    ]
    return sorted(counts, key=lambda entry: _split_path(entry[0]))


def _add_context(matches: Sequence[_OutputLine], lines: Sequence[_OutputLine]) -> list[dict[str, object]]:
    """The matches of a page, with the lines around them in between."""
    near = {(line.path, line.number) for line in matches}
    around = _find_neighbours(matches, lines)
    return [
        {"path": line.path, "line": line.number, "content": line.text} | ({} if line.is_match else {"context": True})
        for line in lines
        if (line.path, line.number) in (near if line.is_match else around)
    ]


def _find_neighbours(matches: Sequence[_OutputLine], lines: Sequence[_OutputLine]) -> set[tuple[str, int]]:
    """The lines of context that are connected to a match of the page without a gap."""
    context = {(line.path, line.number) for line in lines if not line.is_match}
    found: set[tuple[str, int]] = set()
    for match in matches:
        for step in (-1, 1):
            number = match.number + step
            while (match.path, number) in context:
                found.add((match.path, number))
                number += step
    return found


def _cut(text: str) -> str:
    return text if len(text) <= _LINE_CHARS_MAX else f"{text[:_LINE_CHARS_MAX]}... [truncated]"


def _split_path(path: str) -> tuple[str, ...]:
    return tuple(path.split("/"))
