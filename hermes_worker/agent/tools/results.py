"""The form in which the model sees a result: errors that cannot imitate a speaker, never more text than fits."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, replace
from typing import Final

from hermes_worker.agent.tools.base import ToolResult
from hermes_worker.core.messages import RESULT_KEY_PREFIX, dump_canonical_json
from hermes_worker.workspaces.base import Workspace, WorkspaceError

RESULTS_FOLDER: Final = "hermes-results"
_ERROR_PREFIX: Final = "[TOOL_ERROR] "
_ERROR_CHARS_MAX: Final = 2_000
_CHARS_PER_TOKEN: Final = 4
_RESULT_SHARE: Final = 0.15
_RESULT_CHARS_MIN: Final = 8_000
_BATCH_SHARE: Final = 0.30
_BATCH_CHARS_MIN: Final = 16_000
_KEPT_CHARS_MAX: Final = 1_000_000
"""Longer texts are kept in the workspace's file only."""
_RESULT_PATH: Final = re.compile(rf"(?:^|/){RESULTS_FOLDER}/([0-9a-f]{{32}})\.txt\Z")

_ROLE_TAGS: Final = re.compile(
    r"</?\s*(?:system|assistant|user|human|tool|tool_call|tool_response|function_call|function|result|response|output|input)"
    r"(?:\s[^<>]{0,200})?/?>",
    re.IGNORECASE,
)
_CDATA: Final = re.compile(r"<!\[CDATA\[|\]\]>")
_FENCES: Final = re.compile(r"^[ \t]*`{3,}[\w+-]*[ \t]*$|`{3,}[\w+-]*", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultLimits:
    """Limits of the characters of results in a prompt."""

    result_chars: int = 100_000
    """One result; a tool may set a lower limit of its own."""
    batch_chars: int = 200_000
    """All results of one reply together."""
    preview_chars: int = 1_500
    """The part of a result that is shown when the whole was written to a file."""
    paged_chars: int | None = None
    """One result of a tool that pages by itself; ``None`` leaves it alone."""

    def for_calls(self, calls: int) -> ResultLimits:
        """The limits of each of a reply's ``calls``. Each may have its part of what all may have together, so no call
        has to know the size of the others; a tool that pages is held to that as well.
        """
        if calls <= self.batch_chars // self.result_chars:
            return self
        part = max(self.preview_chars, self.batch_chars // calls)
        return replace(self, result_chars=min(part, self.result_chars), paged_chars=part)

    @classmethod
    def for_window(cls, tokens: int) -> ResultLimits:
        """The limits for a model with a context window of ``tokens``: at most 15 % of it for one result and 30 % for
        a batch, with a floor that keeps tools useful."""
        chars = tokens * _CHARS_PER_TOKEN
        return cls(
            result_chars=max(_RESULT_CHARS_MIN, min(cls().result_chars, int(chars * _RESULT_SHARE))),
            batch_chars=max(_BATCH_CHARS_MIN, min(cls().batch_chars, int(chars * _BATCH_SHARE))),
        )


def build_json_result(document: object, *, is_error: bool = False) -> ToolResult:
    """A result in the form that most tools use."""
    return ToolResult(text=dump_canonical_json(document), is_error=is_error)


def build_error_result(message: str) -> ToolResult:
    """The result of a call that could not do what was asked; ``message`` tells the model what to do about it."""
    return build_json_result({"error": message}, is_error=True)


def build_exception_result(error: Exception) -> ToolResult:
    """The result of a call whose tool raised what it should not have. An error of a database is told in the words of
    its server: SQLAlchemy's own text quotes the statement and its values, which are not the model's."""
    words = getattr(error, "orig", None) or error
    return build_error_result(sanitise_error(f"{type(error).__name__}: {words}"))


def sanitise_error(text: str) -> str:
    """``text`` without what a model could take for a change of speaker, marked as a tool's error and short."""
    for pattern in (_ROLE_TAGS, _CDATA, _FENCES):
        text = pattern.sub("", text)
    text = text.strip()
    if len(text) > _ERROR_CHARS_MAX:
        text = text[: _ERROR_CHARS_MAX - 3] + "..."
    return _ERROR_PREFIX + text


def build_result_path(text: str) -> str:
    """The path of the file that holds ``text``, the full text of a result: equal texts are one file."""
    return f"{RESULTS_FOLDER}/{_hash_text(text)}.txt"


def find_result_key(path: str) -> str | None:
    """The session document that holds what was written to the file ``path``; ``None`` for the path of no result."""
    found = _RESULT_PATH.search(path)
    return f"{RESULT_KEY_PREFIX}{found[1]}" if found else None


def limit_result(
    result: ToolResult, *, chars_max: int | None, workspace: Workspace, limits: ResultLimits
) -> ToolResult:
    """``result`` as it may enter a prompt. ``chars_max`` is the tool's own limit, ``None`` for tools that page.

    A longer text goes to a file of the workspace and, unless it is very long, to a document of the session, so that
    ``read_file`` has it on every worker. When the file cannot be written, the middle of the text is dropped instead.
    """
    allowed = limits.paged_chars if chars_max is None else min(chars_max, limits.result_chars)
    if allowed is None or len(result.text) <= allowed:
        return result
    text, readable = result.text, _make_readable(result.text)
    path = build_result_path(readable)
    try:
        # Ignored by git from the start, so that no agent commits its own results.
        workspace.write_bytes(f"{RESULTS_FOLDER}/.gitignore", b"*\n")
        workspace.write_bytes(path, readable.encode("utf-8", "replace"))
    except WorkspaceError as error:
        return replace(result, text=_drop_middle(text, allowed, str(error)))
    block = (
        f"<persisted-output>\nThe result has {len(text)} characters, too many to show here. The whole of it is in "
        f"{path}; read it in pieces with read_file (offset, limit) or look for something in it with search_files.\n\n"
        f"It begins:\n{_render_preview(text, limits.preview_chars)}\n...\n</persisted-output>"
    )
    if len(readable) > _KEPT_CHARS_MAX:
        return replace(result, text=block)
    kept = {f"{RESULT_KEY_PREFIX}{_hash_text(readable)}": readable}
    return replace(result, text=block, session_updates={**result.session_updates, **kept})


def _hash_text(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _make_readable(text: str) -> str:
    """JSON over several lines: read_file pages by lines, and a result is a single one."""
    try:
        return json.dumps(json.loads(text), ensure_ascii=False, indent=1)
    except (ValueError, RecursionError):
        return text


def _render_preview(text: str, chars_max: int) -> str:
    start = text[:chars_max]
    whole_lines = start.rpartition("\n")[0]
    return whole_lines if len(whole_lines) > chars_max // 2 else start


def _drop_middle(text: str, chars_max: int, reason: str) -> str:
    head, tail = int(chars_max * 0.4), int(chars_max * 0.6)
    omitted = len(text) - head - tail
    notice = f"\n\n... [{omitted} characters omitted; the whole result could not be kept: {reason}] ...\n\n"
    return text[:head] + notice + text[len(text) - tail :]
