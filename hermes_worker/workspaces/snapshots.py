"""Snapshots of a workspace: archives of its files, in a folder of its own. One implementation for every kind.

All of it is commands of the workspace, so the same sandbox confines them, and a snapshot counts against the workspace's
limit and goes with it. The id of a snapshot is the SHA-256 of its archive, which is compared with it before anything is
removed. A command of an agent can delete snapshots, but not change one.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass
from typing import Final

from hermes_worker.workspaces.base import CommandResult, PathNotFound, Workspace, WorkspaceError
from hermes_worker.workspaces.sandbox.network import PEOPLE, RunOrigin

FOLDER: Final = ".hermes-snapshots"
KEPT_MAX: Final = 10
"""How many snapshots are kept; older ones are removed when another is taken."""
_TIMEOUT_S: Final = 600.0
_OUTPUT_BYTES_MAX: Final = 65_536
_ID: Final = re.compile(r"[0-9a-f]{64}")
_LINE: Final = re.compile(rb"([0-9a-f]{64}) ([0-9]+) ([0-9]+)")
_GONE: Final = 61
_CHANGED: Final = 62

_SHOW: Final = """
show() {
  for one; do
    [ -f "$one" ] && [ ! -L "$one" ] || continue
    name=${one##*/}; printf '%s %s\\n' "${name%.tar}" "$(stat -c '%s %Y' -- "$one")"
  done
}
"""
_TAKE: Final = f"""(
umask 077
{_SHOW}
mkdir -p {FOLDER} && [ ! -L {FOLDER} ] || exit 1
new={FOLDER}/.NEW
trap 'rm -f -- "$new"' EXIT
set -- ./{FOLDER}/.archive
: > "$1"
for name in .* *; do
  case $name in .|..|{FOLDER}) continue;; esac
  if [ -e "$name" ] || [ -L "$name" ]; then set -- "$@" "./$name"; fi
done
tar -cf "$new" "$@" || exit 1
sum=$(sha256sum < "$new") || exit 1
sum=${{sum%% *}}
mv -f -- "$new" "{FOLDER}/$sum.tar" || exit 1
ls -t {FOLDER}/*.tar | tail -n +{KEPT_MAX + 1} | while read -r old; do rm -f -- "$old"; done
show "{FOLDER}/$sum.tar"
)"""
_LIST: Final = f"""(
{_SHOW}
[ ! -L {FOLDER} ] || exit 0
show {FOLDER}/*.tar
)"""
_RESTORE: Final = f"""(
archive={FOLDER}/ID.tar
[ ! -L {FOLDER} ] && [ -f "$archive" ] && [ ! -L "$archive" ] || exit {_GONE}
case "$(sha256sum < "$archive")" in "ID "*) ;; *) exit {_CHANGED};; esac
find . -mindepth 1 -maxdepth 1 ! -name {FOLDER} -exec rm -rf -- {{}} + || exit 1
tar -xpof "$archive" || exit 1
)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """All files of a workspace, as they were."""

    snapshot_id: str
    """The SHA-256 of its archive, in hexadecimal."""
    size: int
    """Bytes."""
    taken_at: float
    """Epoch seconds, by the clock of the workspace's host."""


def take_snapshot(workspace: Workspace, origin: RunOrigin = PEOPLE) -> Snapshot:
    """Keep the files of a workspace as they are. Raises ``WorkspaceError``, also when they change meanwhile."""
    result = _run_command(workspace, _TAKE.replace(".NEW", f".{secrets.token_hex(8)}.new"), origin)
    found = _parse_listing(result.output)
    if result.exit_code != 0 or not found:
        raise WorkspaceError(f"no snapshot was taken: {_format_failure(result)}")
    return found[-1]


def list_snapshots(workspace: Workspace, origin: RunOrigin = PEOPLE) -> tuple[Snapshot, ...]:
    """All snapshots, the newest first. Raises ``WorkspaceError``."""
    result = _run_command(workspace, _LIST, origin)
    if result.exit_code != 0:
        raise WorkspaceError(f"the snapshots cannot be listed: {_format_failure(result)}")
    return tuple(sorted(_parse_listing(result.output), key=lambda each: (-each.taken_at, each.snapshot_id)))


def restore_snapshot(workspace: Workspace, snapshot_id: str, origin: RunOrigin = PEOPLE) -> None:
    """Make the files of a workspace what they were; newer files are removed. Idempotent: after a failure in the middle
    it can be done again. Raises ``PathNotFound`` when there is no such snapshot, ``WorkspaceError`` when its archive
    was changed, and then nothing is changed.
    """
    if not _ID.fullmatch(snapshot_id):
        raise PathNotFound(f"{snapshot_id[:80]!r} is no snapshot")
    result = _run_command(workspace, _RESTORE.replace("ID", snapshot_id), origin)
    match result.exit_code:
        case 0:
            return
        case code if code == _GONE:
            raise PathNotFound(f"there is no snapshot {snapshot_id!r} any more")
        case code if code == _CHANGED:
            raise WorkspaceError(f"the snapshot {snapshot_id!r} is not what was taken; nothing was changed")
    raise WorkspaceError(f"the snapshot was not restored as a whole, do it again: {_format_failure(result)}")


def _run_command(workspace: Workspace, command: str, origin: RunOrigin) -> CommandResult:
    return workspace.execute(
        command,
        cwd=None,
        env={},
        timeout_s=_TIMEOUT_S,
        output_bytes_max=_OUTPUT_BYTES_MAX,
        should_stop=lambda: False,
        origin=origin,
    )


def _parse_listing(output: bytes) -> list[Snapshot]:
    lines = (_LINE.fullmatch(line) for line in output.splitlines())
    return [
        Snapshot(snapshot_id=found[1].decode(), size=int(found[2]), taken_at=float(found[3]))
        for found in lines
        if found
    ]


def _format_failure(result: CommandResult) -> str:
    return result.output.decode("utf-8", "replace").strip()[-300:] or f"exit code {result.exit_code}"
