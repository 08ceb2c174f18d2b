"""The text of PDF and office documents, for ``read_file``. The parsing is done in the sandbox, by
``document_program``."""

from __future__ import annotations

import json
import shlex
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from importlib.util import find_spec
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import Any, Final

from hermes_worker.agent.tools.base import ToolContext
from hermes_worker.agent.tools.script_channel import answer_channel, receive_message, send_message
from hermes_worker.core.media_kinds import START_BYTES, guess_type_of_content
from hermes_worker.workspaces.base import ConversingWorkspace, Ending

DOCUMENT_S_MAX: Final = 60.0
_MEMORY_BYTES_MAX: Final = 1024**3
_TEXT_CHARS_MAX: Final = 2_000_000
_ANSWER_BYTES_MAX: Final = 16_000_000
_OUTPUT_BYTES_MAX: Final = 2_000
LIBRARIES: Final[Mapping[str, str]] = MappingProxyType(
    {"pdf": "pypdf", "docx": "docx", "xlsx": "openpyxl", "pptx": "pptx"}
)
"""The library that reads each kind, by the name it is imported under."""
HOW_TO_INSTALL: Final = "pip install 'hermes-worker[documents]'"


class ExtractionFailed(Exception):
    """The document's text could not be had; the message is the end of a sentence that begins with its path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentText:
    """The text found in a document."""

    kind: str
    text: str
    is_whole: bool
    facts: Mapping[str, int] = field(default_factory=dict)
    """How many pages, sheets or slides it has."""


def find_document_kind(path: str, data: bytes) -> str | None:
    """``pdf``, ``docx``, ``xlsx`` or ``pptx``; ``None`` for anything else. By content, and of archives by name as
    well."""
    if b"%PDF-" in data[:1024]:
        return "pdf"
    suffix = PurePosixPath(path).suffix.lower()[1:]
    return suffix if suffix in LIBRARIES and guess_type_of_content(data[:START_BYTES]) == "application/zip" else None


def list_missing_libraries() -> tuple[str, ...]:
    """The kinds that cannot be read here, because their library is not installed. Imports nothing."""
    return tuple(kind for kind, module in LIBRARIES.items() if find_spec(module) is None)


def extract_text(kind: str, data: bytes, context: ToolContext) -> DocumentText:
    """Extract the text of a document in the sandbox. Raises ``ExtractionFailed``, ``WorkspaceError``."""
    workspace = context.workspace
    if not isinstance(workspace, ConversingWorkspace):
        raise ExtractionFailed(
            "is a document, which is read in workspaces of the worker's own machine only; use terminal there "
            "(pdftotext, unzip -p)"
        )
    heard: list[Mapping[str, Any]] = []
    order = {
        "kind": kind,
        "chars_max": _TEXT_CHARS_MAX,
        "memory_bytes": _MEMORY_BYTES_MAX,
        "cpu_s": int(DOCUMENT_S_MAX),
    }

    def talk(channel: socket.socket) -> None:
        send_message(channel, json.dumps(order).encode())
        send_message(channel, data)
        said = json.loads(receive_message(channel, _ANSWER_BYTES_MAX))
        if isinstance(said, dict):
            heard.append(said)

    with answer_channel(talk) as channel:
        result = workspace.converse(
            _build_document_command(),
            channel=channel,
            cwd=None,
            env={},
            timeout_s=DOCUMENT_S_MAX,
            output_bytes_max=_OUTPUT_BYTES_MAX,
            should_stop=context.cancelled.is_set,
            origin=context.origin,
        )
    if result.ending is Ending.TIMED_OUT:
        raise ExtractionFailed(f"is a {kind} document that takes more than {DOCUMENT_S_MAX:.0f} s to read")
    if result.ending is Ending.CANCELLED:
        raise ExtractionFailed("was not read: the call was interrupted")
    return _parse_answer(kind, heard[0] if heard else {})


def _parse_answer(kind: str, said: Mapping[str, Any]) -> DocumentText:
    """Read the answer of the sandbox, which is trusted as little as the document."""
    if isinstance(missing := said.get("missing"), str):
        raise ExtractionFailed(
            f"is a {kind} document, and {missing[:40]!r}, which reads such, is not installed on this worker "
            f"({HOW_TO_INSTALL}); use terminal (pdftotext, unzip -p) if it is there"
        )
    if isinstance(refused := said.get("refused"), str):
        raise ExtractionFailed(refused[:200])
    text = said.get("text")
    if not isinstance(text, str):
        raise ExtractionFailed(f"is a {kind} document whose reading took too much, or broke off")
    facts = {name: said[name] for name in ("pages", "sheets", "slides") if isinstance(said.get(name), int)}
    return DocumentText(kind=kind, text=text[:_TEXT_CHARS_MAX], is_whole=said.get("is_whole") is True, facts=facts)


@cache
def _build_document_command() -> str:
    program = files("hermes_worker.agent.tools").joinpath("document_program.py").read_text("utf-8")
    return f"exec {shlex.quote(sys.executable)} -I -c {shlex.quote(program)} 2>/dev/null"
