"""Copy files from one workspace to another, of any kinds: by their hashes, and only those that differ."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from hermes_worker.workspaces.base import FILE_BYTES_MAX, Workspace, WorkspaceAway, WorkspaceError
from hermes_worker.workspaces.sandbox.network import PEOPLE, RunOrigin
from hermes_worker.workspaces.snapshots import FOLDER

_TIMEOUT_S: Final = 600.0
_LISTING_BYTES_MAX: Final = 64 * 1024 * 1024
_AT_ONCE: Final = 50
_ENTRY: Final = re.compile(rb"([0-9a-f]{64}) ([x-]) ([0-9]+) \./(.+)", re.DOTALL)
_LIST: Final = f"""find . -name {FOLDER} -prune -o -type f -exec sh -c '
for file; do
  sum=$(sha256sum < "$file") || continue
  run=-; [ ! -x "$file" ] || run=x
  printf "%s %s %s %s\\0" "${{sum%% *}}" "$run" "$(stat -c %s -- "$file")" "$file"
done' sh {{}} +"""


@dataclass(frozen=True, slots=True, kw_only=True)
class HashedFile:
    """A file as its host describes it."""

    sha256: str
    is_executable: bool
    size: int
    """Bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyOutcome:
    """The outcome of a copy."""

    files: int
    """How many files were written."""
    bytes: int
    """How many bytes the written files have."""
    same: int
    """How many files were there already."""
    left_out: Mapping[str, str]
    """By path, why a file was not taken: it is larger than is read, holds credentials, or changed meanwhile."""


def hash_files(workspace: Workspace, origin: RunOrigin = PEOPLE) -> dict[str, HashedFile]:
    """All regular files of a workspace by their paths below its root, without links and snapshots. Raises
    ``WorkspaceError``.
    """
    heard = bytearray()

    def hear(data: bytes) -> None:
        if len(heard) <= _LISTING_BYTES_MAX:
            heard.extend(data)

    result = workspace.execute(
        _LIST,
        cwd=None,
        env={},
        timeout_s=_TIMEOUT_S,
        output_bytes_max=1024,
        should_stop=lambda: False,
        origin=origin,
        on_output=hear,
    )
    if result.exit_code != 0 or len(heard) > _LISTING_BYTES_MAX:
        raise WorkspaceError(f"the files of {workspace.root!r} cannot be listed (exit code {result.exit_code})")
    found = (_ENTRY.fullmatch(entry) for entry in bytes(heard).split(b"\0"))
    return {
        each[4].decode("utf-8", "surrogateescape"): HashedFile(
            sha256=each[1].decode(), is_executable=each[2] == b"x", size=int(each[3])
        )
        for each in found
        if each
    }


def copy_files(source: Workspace, target: Workspace, origin: RunOrigin = PEOPLE) -> CopyOutcome:
    """Write the files of ``source`` that ``target`` lacks, or has with another content; files that only ``target`` has
    stay. A file is known by its hash, so a copy may be repeated after a failure, and sends nothing twice. Raises
    ``WorkspaceError``.
    """
    ours, theirs = hash_files(source, origin), hash_files(target, origin)
    left_out: dict[str, str] = {}
    written: list[str] = []
    same = 0
    for path, file in sorted(ours.items()):
        there = theirs.get(path)
        if there == file:
            same += 1
        elif file.size > FILE_BYTES_MAX:
            left_out[path] = f"it is larger than {FILE_BYTES_MAX // 1024**2} MB"
        elif reason := _copy_file(source, target, path):
            left_out[path] = reason
        else:
            written.append(path)
    _set_executable(target, {path: ours[path].is_executable for path in written}, origin)
    return CopyOutcome(files=len(written), bytes=sum(ours[path].size for path in written), same=same, left_out=left_out)


def _copy_file(source: Workspace, target: Workspace, path: str) -> str | None:
    """Write one file; return the reason when it is not written, else ``None``."""
    try:
        target.write_bytes(path, source.read_bytes(path))
    except WorkspaceAway:
        raise
    except WorkspaceError as error:
        return str(error)
    return None


def _set_executable(target: Workspace, files: Mapping[str, bool], origin: RunOrigin) -> None:
    """Make files executable, or not."""
    for sign, wanted in (("+", True), ("-", False)):
        names = [f"./{path}" for path, is_executable in files.items() if is_executable is wanted]
        for first in range(0, len(names), _AT_ONCE):
            listed = shlex.join(names[first : first + _AT_ONCE])
            target.execute(
                f"chmod u{sign}x -- {listed}",
                cwd=None,
                env={},
                timeout_s=_TIMEOUT_S,
                output_bytes_max=1024,
                should_stop=lambda: False,
                origin=origin,
            )
