"""Attach the files that a person names in a line: pictures as pictures, and texts that the agent cannot see."""

from __future__ import annotations

import base64
import re
import shutil
import subprocess
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

from hermes_worker.core.errors import ConfigurationError
from hermes_worker.core.media_kinds import PICTURES, START_BYTES, guess_type_of_content

_NAMED = re.compile(r'(?<!\S)@(?:"([^"\n]+)"|(\S+))')
"""``@path``, or ``@"a path with blanks"``."""
_PICTURE_BYTES_MAX = 8_000_000
_TEXT_BYTES_MAX = 200_000
_ENTRIES_MAX = 2_000
_CLIPBOARD_READERS = (
    ("wl-paste", "--type", "image/png"),
    ("xclip", "-selection", "clipboard", "-target", "image/png", "-out"),
    ("pngpaste", "-"),
)
"""Programs that write the clipboard's picture to their output, on Wayland, X11 and macOS."""
CLIPBOARD_PROGRAMS = ", ".join(command[0] for command in _CLIPBOARD_READERS)
_CLIPBOARD_S = 3.0

Content = str | list[dict[str, Any]]


def build_content(text: str, workspace: Path | None) -> Content:
    """Build what is said of a line: its text, with the files that it names by ``@path``, or as a whole line as when
    one is dropped on the terminal. Files in ``workspace`` stay names: the agent reads them there. Raises
    ``ConfigurationError`` for a file that cannot be sent."""
    pictures, texts = [], []
    for path in _find_named_files(text):
        if (media_type := find_picture_type(path)) is not None:
            pictures.append(build_picture(path, media_type))
        elif workspace is None or not path.resolve().is_relative_to(workspace):
            texts.append(f"{path}:\n{_read_text(path)}")
    said = "\n\n".join([text, *texts])
    return [{"type": "text", "text": said}, *pictures] if pictures else said


def find_picture_type(path: Path) -> str | None:
    """Find the media type of a picture by its first bytes; ``None`` for any other file. Raises
    ``ConfigurationError``."""
    media_type = guess_type_of_content(_read_start(path, START_BYTES))
    return media_type if media_type in PICTURES else None


def build_picture(path: Path, media_type: str) -> dict[str, Any]:
    """Build the part of a message that holds a picture. Raises ``ConfigurationError``."""
    data = _read_bytes(path, _PICTURE_BYTES_MAX)
    return {"type": "image_url", "image_url": {"url": f"data:{media_type};base64,{base64.b64encode(data).decode()}"}}


def read_clipboard_picture() -> bytes | None:
    """Read the picture in the clipboard of this machine; ``None`` where there is none, or no program reads it."""
    for command in _CLIPBOARD_READERS:
        if shutil.which(command[0]) is None:
            continue
        with suppress(OSError, subprocess.TimeoutExpired):
            found = subprocess.run(command, capture_output=True, timeout=_CLIPBOARD_S, check=False).stdout
            if guess_type_of_content(found[:START_BYTES]) in PICTURES:
                return found
    return None


def find_file(name: str) -> Path | None:
    """Find the file that a name means on this machine; ``None`` where there is none."""
    try:
        path = Path(name).expanduser()
        return path if path.is_file() else None
    except (OSError, RuntimeError, ValueError):
        return None


def list_file_completions(text: str) -> list[tuple[str, str]]:
    """List what the ``@path`` at the end of ``text`` may become: the word so far, and each whole word."""
    word = re.split(r"\s", text)[-1]
    if not word.startswith("@"):
        return []
    folder, slash, begun = word[1:].rpartition("/")
    try:
        entries = sorted(islice(Path(f"{folder}{slash}" or ".").expanduser().iterdir(), _ENTRIES_MAX))
        return [
            (word, f"@{folder}{slash}{entry.name}{'/' if entry.is_dir() else ''}")
            for entry in entries
            if entry.name.startswith(begun or entry.name.lstrip(".")[:1]) and not re.search(r'[\s"]', entry.name)
        ]
    except (OSError, RuntimeError, ValueError):
        return []


def _find_named_files(text: str) -> list[Path]:
    names = [quoted or plain for quoted, plain in _NAMED.findall(text)]
    dropped = text.strip().strip("'\"").replace("\\ ", " ")
    if "\n" not in dropped and Path(dropped).is_absolute():
        names.append(dropped)
    found = (find_file(name) or find_file(name.rstrip(".,;:!?)")) for name in names)
    return list(dict.fromkeys(path for path in found if path is not None))


def _read_text(path: Path) -> str:
    data = _read_bytes(path, _TEXT_BYTES_MAX)
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise ConfigurationError(f"{str(path)!r} is neither a text nor a picture") from None


def _read_bytes(path: Path, limit: int) -> bytes:
    data = _read_start(path, limit + 1)
    if len(data) > limit:
        raise ConfigurationError(f"{str(path)!r} has more than {limit:,} bytes")
    return data


def _read_start(path: Path, count: int) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(count)
    except OSError as error:
        raise ConfigurationError(f"{str(path)!r} cannot be read: {error.strerror}") from None
