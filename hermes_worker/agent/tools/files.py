"""``read_file``, ``write_file`` and ``patch``."""

from __future__ import annotations

import difflib
import io
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import PurePosixPath
from typing import Any, Final

from hermes_worker.agent.tools import v4a_patches as v4a
from hermes_worker.agent.tools.base import ToolContext, ToolResult
from hermes_worker.agent.tools.builtin import (
    CWD_KEY,
    PATCH,
    READ_FILE,
    READ_LINES_DEFAULT,
    READ_LINES_MAX,
    WRITE_FILE,
)
from hermes_worker.agent.tools.documents import ExtractionFailed, extract_text, find_document_kind
from hermes_worker.agent.tools.fuzzy import EditRefused, is_already_there, replace_text
from hermes_worker.agent.tools.interruptible import ToolInterrupted, run_interruptibly
from hermes_worker.agent.tools.results import build_error_result, build_json_result, find_result_key
from hermes_worker.agent.tools.textfile import UTF8, NotText, TextFile, convert_to_utf8, is_binary
from hermes_worker.core.messages import dump_canonical_json
from hermes_worker.safety.redaction import prints_configuration
from hermes_worker.workspaces.base import FILE_BYTES_MAX, PathNotFound, Workspace, WorkspaceError

DOCUMENT_BYTES_MAX: Final = 20 * 1024 * 1024
_LINE_CHARS_MAX: Final = 2_000
_READ_CHARS_MAX: Final = 100_000
_SEEN_CHARS_MAX: Final = 2 * _LINE_CHARS_MAX
"""How many characters of a line are searched for secrets; fewer of them are shown."""
_CONTEXT_LINES: Final = 100
"""How many lines before and behind a page are searched with it; a private key has fewer lines."""
_DIFF_CHARS_MAX: Final = 20_000
_DIFF_FILE_CHARS_MAX: Final = 2_000_000
_HINTS_MAX: Final = 5
_NAMES_COMPARED_MAX: Final = 2_000
"""How many names of a folder are compared; each takes some 20 microseconds."""
_LINE: Final = re.compile(r"[^\n]*\n|[^\n]+")
"""A line as ``read_file`` counts them; ``str.splitlines`` also cuts at form feeds, U+2028, U+0085 and lone CR."""
_RAW: Final = re.compile("[\udc80-\udcff]|\\\\(?=x(?:[89a-f][0-9a-f]|5c))")
_ESCAPE: Final = re.compile(r"\\x([89a-f][0-9a-f]|5c)")
_NUMBERED: Final = re.compile(r" {0,6}([1-9]\d{0,8})\|")
_TABLE_SUFFIXES: Final = frozenset({".csv", ".dat", ".psv", ".tbl", ".tsv"})
"""Endings of files whose lines may begin with a number and a bar."""
_IMAGE_SUFFIXES: Final = frozenset({".bmp", ".gif", ".ico", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp"})


def find_session_folder(context: ToolContext) -> str | None:
    """The folder that relative paths of this session start from; ``None`` for the workspace's root. A folder that is
    gone or was never valid is the root again."""
    folder = context.session.get(CWD_KEY)
    if not isinstance(folder, str):
        return None
    try:
        context.workspace.resolve(folder)
    except WorkspaceError:
        return None
    return folder


def locate_path(context: ToolContext, path: str, *, for_write: bool = False) -> str:
    """The canonical path of ``path`` as the model wrote it. A name with bytes that are no text is accepted as results
    show it. Raises ``WorkspaceError``.
    """
    folder = find_session_folder(context)
    if (meant := _unescape_path(path)) != path:
        found = str(context.workspace.resolve(meant, cwd=folder, for_write=for_write))
        if _file_exists(context.workspace, found):
            return found
    return str(context.workspace.resolve(path, cwd=folder, for_write=for_write))


def _file_exists(workspace: Workspace, path: str) -> bool:
    try:
        workspace.read_bytes(path, limit=0)
    except PathNotFound:
        return False
    except WorkspaceError:
        return True  # a folder, or what cannot be read
    return True


def _escape_path(path: str) -> str:
    """A path as text that every reader takes: ``\\xe9`` for a byte that is no UTF-8, and ``\\x5c`` for a backslash that
    would look like the beginning of one."""
    return _RAW.sub(lambda found: f"\\x{ord(found[0]) & 0xFF:02x}", path)


def _unescape_path(text: str) -> str:
    """The path that ``_escape_path`` wrote in this form. Bytes that are UTF-8 together become their character, so that
    one file has one spelling for those who guard it.
    """
    raw = _ESCAPE.sub(lambda found: "\\" if found[1] == "5c" else chr(0xDC00 + int(found[1], 16)), text)
    return text if raw == text else os.fsdecode(raw.encode("utf-8", "surrogateescape"))


def format_path(path: str, context: ToolContext) -> str:
    """A canonical path in the form in which the session's tools take it: relative to the session's folder when it is
    below that, otherwise absolute."""
    return format_path_from(str(context.workspace.resolve(find_session_folder(context) or ".")), path)


def format_path_from(folder: str, path: str) -> str:
    """``format_path``, for a caller that has many paths and looks up the session's folder once. Both are canonical."""
    return "." if path == folder else _escape_path(path.removeprefix(f"{folder.rstrip('/')}/"))


def render_place(context: ToolContext, *paths: str) -> dict[str, object]:
    """The folder where relative paths begin, and the canonical ``paths`` from the workspace's root, for a result; empty
    where both are the same.
    """
    root = str(context.workspace.resolve("."))
    current = format_path_from(root, str(context.workspace.resolve(find_session_folder(context) or ".")))
    if current == ".":
        return {}
    named = [format_path_from(root, path) for path in paths]
    return {"current_folder": current} | ({"from_workspace": named[0] if len(named) == 1 else named} if named else {})


# --- read_file ---


class ReadFileTool:
    """``read_file``: a page of a text file with numbered lines."""

    spec: Final = READ_FILE

    def run(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        return run_interruptibly(lambda: self._read(arguments, context), context.cancelled)

    def _read(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        path: str = arguments["path"]
        canonical = locate_path(context, path)
        try:
            data = context.workspace.read_bytes(canonical, limit=FILE_BYTES_MAX + 1)
        except PathNotFound:
            kept = _load_kept_result(canonical, context)
            if kept is None:
                return _build_missing_file_error(path, canonical, context)
            data = kept
        size = len(data)
        data, encoding = convert_to_utf8(data)
        kind = find_document_kind(canonical, data) if is_binary(data) or data.startswith(b"%PDF-") else None
        if kind is not None:
            return _read_document(kind, data, arguments, context)
        if is_binary(data):
            return build_error_result(f"{path!r} {_describe_file(canonical)}; it cannot be shown as text")
        limit = min(arguments.get("limit", READ_LINES_DEFAULT), READ_LINES_MAX)
        is_configuration = prints_configuration(path)
        conceal = partial(context.redactor.redact_text, is_configuration=is_configuration)
        page = _render_page(path, data, offset=arguments.get("offset", 1), limit=limit, conceal=conceal)
        more = render_place(context, canonical)
        if encoding != UTF8 and not page.is_error:
            more |= {"encoding": encoding, "file_size": size}
        return replace(page, text=dump_canonical_json({**json.loads(page.text), **more})) if more else page


def _read_document(kind: str, data: bytes, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
    """A page of a document's text."""
    path: str = arguments["path"]
    if len(data) > DOCUMENT_BYTES_MAX:
        return build_error_result(
            f"{path!r} is a document of more than {DOCUMENT_BYTES_MAX // 1024**2} MB; it is not read"
        )
    try:
        found = extract_text(kind, data, context)
    except ExtractionFailed as error:
        return build_error_result(f"{path!r} {error}")
    limit = min(arguments.get("limit", READ_LINES_DEFAULT), READ_LINES_MAX)
    text = found.text.encode("utf-8", "replace")
    page = _render_page(
        path, text, offset=arguments.get("offset", 1), limit=limit, conceal=context.redactor.redact_text
    )
    if page.is_error:
        return page
    document = {**json.loads(page.text), "document": found.kind, "file_size": len(data), **found.facts}
    if not found.text.strip():
        document["hint"] = "the document holds no text; its pages may be pictures"
    elif not found.is_whole:
        document["note"] = "the document has more text than is read; this is its beginning"
    return build_json_result(document)


def _load_kept_result(canonical: str, context: ToolContext) -> bytes | None:
    """The stored text of a long result whose file is not in this workspace, because another workspace held it or it was
    removed; ``None`` where there is none.
    """
    key = find_result_key(canonical)
    text = context.kept(key) if key is not None else None
    return None if text is None else text.encode("utf-8", "replace")


def _describe_file(path: str) -> str:
    if PurePosixPath(path).suffix.lower() in _IMAGE_SUFFIXES:
        return "is an image (look at it with vision_analyze if you have it)"
    return "is a binary file (use terminal to look inside, for example with file, xxd or unzip -l)"


def _build_missing_file_error(path: str, canonical: str, context: ToolContext) -> ToolResult:
    """The error for a file that is not there, with names the model may have meant."""
    target = PurePosixPath(canonical)
    names: Sequence[str] = ()
    with suppress(WorkspaceError):
        names = context.workspace.entries(str(target.parent))
    folded = {name.rstrip("/").casefold(): name for name in names}
    compared = islice(folded, _NAMES_COMPARED_MAX)
    similar = difflib.get_close_matches(target.name.casefold(), compared, n=_HINTS_MAX, cutoff=0.5)
    document: dict[str, object] = {"error": f"{path!r} does not exist", **render_place(context, canonical)}
    if similar:
        document["similar"] = [format_path(str(target.parent / folded[name]), context) for name in similar]
    return build_json_result(document, is_error=True)


def _render_page(path: str, data: bytes, *, offset: int, limit: int, conceal: Callable[[str], str]) -> ToolResult:
    is_whole = len(data) <= FILE_BYTES_MAX
    data = data[:FILE_BYTES_MAX]
    lines_total = data.count(b"\n") + (not data.endswith(b"\n") and bool(data))
    if data and offset > lines_total:
        return build_error_result(f"{path!r} has only {lines_total} lines; there is no line {offset}")
    rows = list(_number_rows(data, offset, limit, conceal))
    end = offset + len(rows) - 1
    document: dict[str, object] = {
        "content": "\n".join(rows),
        "total_lines": lines_total if is_whole else f"more than {lines_total}",
        "file_size": len(data) if is_whole else f"more than {FILE_BYTES_MAX}",
        "truncated": end < lines_total or not is_whole,
    }
    if not data:
        document["hint"] = "the file is empty"
    elif end < lines_total:
        document["hint"] = f"lines {offset} to {end} of {lines_total}; read on with offset={end + 1}"
    elif not is_whole:
        document["hint"] = "the rest of this very long file can only be read with terminal (sed -n 'FROM,TOp')"
    return build_json_result(document)


def _number_rows(data: bytes, offset: int, limit: int, conceal: Callable[[str], str]) -> Iterator[str]:
    """The page's lines, as many as fit the limit of one result and at least one."""
    room = _READ_CHARS_MAX
    for number, (line, chars) in enumerate(_redact_lines(data, offset, limit, conceal), start=offset):
        if max(chars, len(line)) > _LINE_CHARS_MAX:
            line = f"{line[:_LINE_CHARS_MAX]}... [truncated, {chars} characters]"
        row = f"{number}|{line}"
        room -= len(row) + 1
        if room < 0 and number > offset:
            return
        yield row


def _redact_lines(data: bytes, offset: int, limit: int, conceal: Callable[[str], str]) -> list[tuple[str, int]]:
    """The page's lines without secrets, each with its length in the file. They are read together with lines before and
    behind them, because a secret may have several lines, and before they are shortened, because half a secret is not
    recognised."""
    before = min(offset - 1, _CONTEXT_LINES)
    lines = list(_read_lines(data, offset - 1 - before, offset - 1, limit + _CONTEXT_LINES))
    begun = [line[:_SEEN_CHARS_MAX] for line in lines]
    seen = conceal("\n".join(begun)).split("\n")
    if len(seen) != len(lines):
        seen = [conceal(line) for line in begun]
    shown = [(line, len(whole)) for line, whole in zip(seen, lines, strict=True)]
    return shown[before : before + limit]


def _read_lines(data: bytes, first: int, page_first: int, count: int) -> Iterator[str]:
    """The lines from number ``first`` on, from 0, and ``count`` from ``page_first`` on; fewer when they are more than
    one result can show."""
    room = _READ_CHARS_MAX
    # An iterator over the bytes finds the page without making an object of every line before it.
    for number, raw in enumerate(islice(io.BytesIO(data), first, page_first + count), start=first):
        line = raw.rstrip(b"\r\n").decode("utf-8", "replace")
        yield line.removeprefix("\ufeff") if number == 0 else line
        room -= min(len(line), _LINE_CHARS_MAX) if number >= page_first else 0
        if room < 0:
            return


# --- write_file ---


class WriteFileTool:
    """``write_file``: the whole content of a file."""

    spec: Final = WRITE_FILE

    def run(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        canonical = locate_path(context, arguments["path"], for_write=True)
        content: str = arguments["content"]
        if _is_numbered(content) and PurePosixPath(canonical).suffix.lower() not in _TABLE_SUFFIXES:
            return build_error_result(
                f"{arguments['path']!r} was not written: its lines begin with the numbers that read_file shows ('1|'); "
                "write the lines without them"
            )
        existed = _has_file(context.workspace, canonical)
        before = _read_text_before(context.workspace, canonical) if existed else TextFile(text="")
        try:
            data = before.replace_content(content).encode()
        except NotText as error:
            return build_error_result(
                f"{arguments['path']!r} was not written: {error}; remove the file first to change that"
            )
        context.workspace.write_bytes(canonical, data)
        document: dict[str, object] = {
            "success": True,
            "path": format_path(canonical, context),
            "action": "overwritten" if existed else "created",
            "bytes_written": len(data),
            **render_place(context, canonical),
        }
        kept = ["CRLF line ends"] * before.has_crlf + ["the byte order mark"] * before.has_bom
        kept += [before.encoding.upper()] * (before.encoding != UTF8)
        return build_json_result({**document, "kept": ", ".join(kept)} if kept else document)


def _is_numbered(content: str) -> bool:
    """Return whether the text is a page of ``read_file``: several lines, each with its number and a bar in front."""
    rows = [_NUMBERED.match(line) for line in content.removesuffix("\n").split("\n")]
    numbers = [int(row[1]) for row in rows if row is not None]
    return 1 < len(numbers) == len(rows) and numbers == list(range(numbers[0], numbers[0] + len(numbers)))


def _read_text_before(workspace: Workspace, path: str) -> TextFile:
    """The text of a file before the write, which decides what of its form is kept; an empty one for a file that is no
    text.
    """
    try:
        return _load_editable(workspace, path)
    except NotText:
        return TextFile(text="")


def _has_file(workspace: Workspace, path: str) -> bool:
    try:
        workspace.read_bytes(path, limit=0)
    except PathNotFound:
        return False
    return True


# --- patch ---


class PatchTool:
    """``patch``: change parts of files, in one place or in many."""

    spec: Final = PATCH

    def run(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        mode = arguments.get("mode") or ("patch" if "patch" in arguments else "replace")
        if mode == "patch":
            if not arguments.get("patch"):
                return build_error_result("mode 'patch' needs 'patch'")
            return _patch_files(arguments["patch"], context)
        missing = [name for name in ("path", "old_string", "new_string") if name not in arguments]
        if missing:
            return build_error_result(f"mode 'replace' needs {', '.join(map(repr, missing))}")
        return _replace_in_file(arguments, context)


def _replace_in_file(arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
    path: str = arguments["path"]
    canonical = locate_path(context, path, for_write=True)
    try:
        file = _load_editable(context.workspace, canonical)
    except PathNotFound:
        return _build_missing_file_error(path, canonical, context)
    except NotText as error:
        return build_error_result(f"{path!r} cannot be patched: {error}")
    old, new = (file.replace_text(arguments[name]).text for name in ("old_string", "new_string"))
    replace_all = arguments.get("replace_all", False)
    outcome = run_interruptibly(lambda: replace_text(file.text, old, new, replace_all=replace_all), context.cancelled)
    if isinstance(outcome, EditRefused):
        if is_already_there(file.text, old, new):
            return build_json_result(
                {"success": True, "note": "new_string is already in the file; nothing was changed"}
            )
        return build_error_result(f"{path!r} was not changed: {outcome.message}")
    changed = file.replace_text(outcome.text)
    try:
        context.workspace.write_bytes(canonical, changed.encode())
    except NotText as error:
        return build_error_result(f"{path!r} was not changed: {error}")
    change = v4a.PatchedFile(path=canonical, before=file, after=changed)
    document = _render_report([change], context)
    if outcome.strategy != "exact":
        document["strategy"] = outcome.strategy
    return build_json_result({**document, "replacements": outcome.count})


def _patch_files(patch: str, context: ToolContext) -> ToolResult:
    try:
        operations = v4a.parse_patch(patch)
    except v4a.PatchSyntaxError as error:
        return build_error_result(f"the patch cannot be read, no file was changed: {error}")
    plan = run_interruptibly(lambda: _plan_patch(operations, context), context.cancelled)
    if plan.errors:
        return build_error_result(
            "no file was changed, because parts of the patch do not fit:\n" + "\n".join(plan.errors)
        )
    if not plan.changes:
        return build_json_result({"success": True, "note": "the files are already as the patch wants them"})
    return _apply_changes(plan, context)


def _plan_patch(operations: Sequence[v4a.Operation], context: ToolContext) -> v4a.PatchPlan:
    plan = v4a.PatchPlan(lambda path: _load_existing_text(context.workspace, path))
    for operation in operations:
        try:
            names = {path: locate_path(context, path, for_write=True) for path in _list_operation_paths(operation)}
        except WorkspaceError as error:
            plan.errors.append(str(error))
            continue
        plan.apply_operation(operation, names)
    return plan


def _list_operation_paths(operation: v4a.Operation) -> tuple[str, ...]:
    match operation:
        case v4a.MoveFile(path=path, to=to):
            return path, to
        case v4a.UpdateFile(path=path, move_to=str(to)):
            return path, to
    return (operation.path,)


def _load_existing_text(workspace: Workspace, path: str) -> TextFile | None:
    try:
        return _load_editable(workspace, path)
    except PathNotFound:
        return None
    except WorkspaceError as error:
        raise ValueError(str(error)) from error


def _load_editable(workspace: Workspace, path: str) -> TextFile:
    """Load a text file that is to be changed. Raises ``PathNotFound``, ``NotText`` or ``WorkspaceError``."""
    data = workspace.read_bytes(path, limit=FILE_BYTES_MAX + 1)
    if len(data) > FILE_BYTES_MAX:
        raise NotText(f"it is longer than {FILE_BYTES_MAX} bytes")
    return TextFile.decode(data)


def _apply_changes(plan: v4a.PatchPlan, context: ToolContext) -> ToolResult:
    """Write all changes, new content before deletions; when one fails, put back those that were made."""
    changes = sorted(plan.changes, key=lambda change: change.after is None)
    for index, change in enumerate(changes):
        try:
            _write_or_remove(context.workspace, change.path, change.after)
        except (WorkspaceError, NotText) as error:
            return _undo_changes(changes[:index], context, str(error))
    document = _render_report(plan.changes, context)
    if plan.moves:
        document["moved"] = [f"{path} -> {to}" for path, to in plan.moves]
    if plan.notes:
        document["notes"] = plan.notes
    return build_json_result(document)


def _write_or_remove(workspace: Workspace, path: str, file: TextFile | None) -> None:
    if file is None:
        workspace.remove(path)
    else:
        workspace.write_bytes(path, file.encode())


def _undo_changes(made: Sequence[v4a.PatchedFile], context: ToolContext, reason: str) -> ToolResult:
    stuck = []
    for change in reversed(made):
        try:
            _write_or_remove(context.workspace, change.path, change.before)
        except WorkspaceError:
            stuck.append(format_path(change.path, context))
    if stuck:
        return build_error_result(
            f"the patch failed half-way ({reason}) and these files stay changed: {', '.join(stuck)}"
        )
    return build_error_result(f"the patch could not be written and no file was changed: {reason}")


def _render_report(changes: Sequence[v4a.PatchedFile], context: ToolContext) -> dict[str, object]:
    try:
        diff = run_interruptibly(
            lambda: _shorten_diff("".join(_render_diff(c, context) for c in changes)), context.cancelled
        )
    except ToolInterrupted:  # the files are written, and that is what has to be told
        diff = "(left out: the call was interrupted)"
    place = render_place(context, *(change.path for change in changes))
    document: dict[str, object] = {"success": True, "diff": diff, **place}
    for verb, selected in (
        ("files_created", [c for c in changes if c.before is None]),
        ("files_deleted", [c for c in changes if c.after is None]),
        ("files_modified", [c for c in changes if c.before is not None and c.after is not None]),
    ):
        if selected:
            document[verb] = [format_path(change.path, context) for change in selected]
    return document


def _render_diff(change: v4a.PatchedFile, context: ToolContext) -> str:
    name = format_path(change.path, context)
    before, after = change.before.text if change.before else "", change.after.text if change.after else ""
    if max(len(before), len(after)) > _DIFF_FILE_CHARS_MAX:
        return f"--- {name} changed; it is too long for a diff\n"
    lines = difflib.unified_diff(
        _LINE.findall(before),
        _LINE.findall(after),
        fromfile=_format_diff_name(f"a/{name}") if change.before else "/dev/null",
        tofile=_format_diff_name(f"b/{name}") if change.after else "/dev/null",
    )
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def _format_diff_name(name: str) -> str:
    """A name as git writes it: in quotes when it holds what would end its line."""
    return name if name.isprintable() else json.dumps(name, ensure_ascii=False)


def _shorten_diff(diff: str) -> str:
    if len(diff) <= _DIFF_CHARS_MAX:
        return diff
    return f"{diff[:_DIFF_CHARS_MAX]}\n... [{len(diff) - _DIFF_CHARS_MAX} more characters of diff]\n"
