"""The files of a workspace on another host, for checkpoints.

Theory of operation. One program on the host lists all files with what the system says of them. The store remembers the
hash of such a list and the trees that were made of it; where the host finds the list as it was, it says so and nothing
else, so a look at a workspace that did not change is one round trip, whatever it holds. Otherwise ``host_reading``
brings the contents of the files that changed.

Content is trusted by its hash. A file that was changed between the list and its content is asked for again, alone, and
taken as it comes; its stamp is forgotten, so the next look reads it again. Files that were younger than two seconds by
the host's clock are treated in the same way, for the reason that ``scanning`` gives. The list belongs to the workspace
whose id stands beside it: for another one that was made at the same place, everything is read anew.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from hermes_worker.features.checkpoints.files import host_scripts
from hermes_worker.features.checkpoints.files.host_reading import ContentReader, ListedFile, split_batches
from hermes_worker.features.checkpoints.rules import (
    DEPTH_MAX,
    FILES_MAX,
    LEFT_OUT_MAX,
    is_ignored_file,
    list_ignored_folders,
)
from hermes_worker.workspaces.base import ScriptAnswer, ScriptHost, WorkspaceError
from hermes_worker.workspaces.remote import scripts
from hermes_worker.workspaces.trees.objects import (
    EXECUTABLE,
    FILE,
    FOLDER,
    LINK,
    ChangedFile,
    StoreDamaged,
    TreeEntry,
    encode_tree,
)
from hermes_worker.workspaces.trees.scanning import Known, NotScanned, ScanMemory, ScanOrder, ScanResult

_LISTING_BYTES_MAX: Final = 32 * 1024 * 1024
_YOUNG_S: Final = 2
_STATUS: Final = re.compile(rb"([0-9a-f]{1,8}) ([0-9]{1,19}) [0-9]+ (-?[0-9]{1,19}) (-?[0-9]{1,19})( [-+:.0-9 ]*)?")
_HEAD: Final = re.compile(rb"([0-9a-f]{32}|-) ([0-9]{1,19})\n")
_REASONS: Final[Mapping[int, str]] = {
    scripts.OUTSIDE: "a link is on the way to it",
    scripts.FOLDER: "a folder stands in its place",
    scripts.NO_FOLDER: "a folder on the way to it cannot be made or entered",
    scripts.BROKEN: "what arrived was not what was sent, or the disk is full",
    scripts.FULL: "the workspace may hold no more",
    scripts.MISSING: "the workspace is not on the host: it was removed, or this process reaches another host",
}


@dataclass(slots=True)
class _LeftOutPaths:
    """Collects the paths of files that are left out."""

    first: list[str] = field(default_factory=list)
    total: int = 0

    def add(self, path: str) -> None:
        self.total += 1
        if len(self.first) < LEFT_OUT_MAX:
            self.first.append(path)


class HostFiles:
    """The files of the workspace that ``opened`` opens; it is called at the first use."""

    def __init__(self, opened: Callable[[], object]) -> None:
        self._opened = opened

    def holds(self, directory: Path) -> bool:
        return False

    def require_there(self) -> None:
        self._run_script(host_scripts.IS_THERE, bytes_max=0)

    def scan(self, order: ScanOrder) -> ScanResult:
        before = order.memory.listing
        given = (str(before.get("id", "-")), str(before.get("digest", "-")))
        answer = self._run_script(
            host_scripts.LIST, *given, *_prune_words(), bytes_max=_LISTING_BYTES_MAX, may_be_missing=True
        )
        if answer.code == scripts.MISSING:
            tree = order.objects.put("tree", b"")
            return ScanResult(tree_id=tree, files=0, left_out=(), left_out_total=0, memory=ScanMemory())
        head = _HEAD.match(answer.output)
        if head is None:
            raise NotScanned("the host did not say what the workspace holds")
        listing = answer.output[head.end() :]
        if listing == b"//same\n" and "tree" in before:
            order.objects.put("tree", b"")  # a sweep does not know that an empty workspace has it
            return _scan_from_memory(before)
        left = _LeftOutPaths()
        listed = _parse_listing(listing, int(head[2]), left)
        workspace_id = head[1].decode()
        known = order.memory.folders if before.get("id") == workspace_id else {}
        folders = self._remember_folders(order, known, listed, left)
        is_proven = all(all(folder["stamps"].values()) for folder in folders.values())
        said = {
            "id": workspace_id,
            "digest": hashlib.sha256(listing).hexdigest() if is_proven else "-",
            "tree": folders[""]["tree"] or order.objects.put("tree", b""),
            "files": len(listed),
            "left_out": left.first,
            "left_out_total": left.total,
        }
        return _scan_from_memory(said, ScanMemory(folders=folders, listing=said))

    def _remember_folders(
        self, order: ScanOrder, known: Known, listed: Sequence[ListedFile], left: _LeftOutPaths
    ) -> Known:
        """The memory of each folder, whose tree is in the store."""
        shas: dict[str, str | None] = {}
        stamps: dict[str, str] = {}
        wanted: list[ListedFile] = []
        for each in listed:
            folder, name = _split_path(each.path)
            before = known.get(folder)
            stamps[each.path] = "" if each.is_young else each.stamp
            if before is not None and each.stamp == before["stamps"].get(name):
                shas[each.path] = before["shas"][name]
            elif each.size > order.file_bytes_max:
                shas[each.path] = None
            else:
                wanted.append(each)
        reading = ContentReader(run=self._run_script, order=order, is_first=not known)
        shas |= reading.bring_contents(wanted)
        for path in reading.restless:
            stamps[path] = ""
        for path, sha in shas.items():
            if sha is None:
                left.add(path)
        return _build_trees(order, listed, shas, stamps)

    def put_back(
        self, changes: Sequence[ChangedFile], content: Callable[[str], bytes], *, umask: int | None
    ) -> dict[str, str]:
        failed: dict[str, str] = {}
        ordered = sorted(changes, key=lambda each: each.after is not None)
        for batch in split_batches(_load_contents(ordered, content, failed), lambda each: (0, len(each[1]))):
            try:
                failed |= self._put_batch(batch, umask)
            except NotScanned as error:
                # Their outcome is unknown; another restore finds out.
                failed |= {each.path: str(error) for each, _ in batch}
        return failed

    def _put_batch(self, batch: Sequence[tuple[ChangedFile, bytes]], umask: int | None) -> dict[str, str]:
        data = b"".join(_render_put_order(change, whole) for change, whole in batch)
        total = sum(len(whole) for _, whole in batch)
        workspace = self._open_workspace()
        mask = "" if umask is None else f"{umask:03o}"
        given = (str(len(batch)), str(workspace.may_hold_kb), mask, secrets.token_hex(8), str(total))
        answer = self._run_script(host_scripts.PUT, *given, data=data, bytes_max=8 * len(batch), is_judged=False)
        codes = [int(word) for word in answer.output.split() if word.isdigit()]
        codes += [answer.code or scripts.BROKEN] * (len(batch) - len(codes))
        reasons = {change.path: code for (change, _), code in zip(batch, codes, strict=False) if code != 0}
        return {path: _REASONS.get(code, "it could not be written or removed") for path, code in reasons.items()}

    def _open_workspace(self) -> ScriptHost:
        try:
            workspace = self._opened()
        except WorkspaceError as error:
            raise NotScanned(str(error)) from error
        if not isinstance(workspace, ScriptHost):
            raise NotScanned("no checkpoints are made of workspaces of this kind")
        return workspace

    def _run_script(
        self,
        script: str,
        *arguments: str,
        data: bytes = b"",
        bytes_max: int,
        may_be_missing: bool = False,
        is_judged: bool = True,
    ) -> ScriptAnswer:
        try:
            answer = self._open_workspace().run_script(script, *arguments, data=data, bytes_max=bytes_max)
        except WorkspaceError as error:
            raise NotScanned(str(error)) from error
        if answer.code == host_scripts.LACKING:
            raise NotScanned(f"checkpoints need these programs on the host: {host_scripts.PROGRAMS}")
        if is_judged and answer.code != 0 and not (may_be_missing and answer.code == scripts.MISSING):
            raise NotScanned(_REASONS.get(answer.code, f"the host did not do it (exit code {answer.code})"))
        return answer


def _prune_words() -> list[str]:
    """The words that tell ``find`` which folders not to look into."""
    words: list[str] = []
    for pattern in list_ignored_folders():
        words += ["-o", "-name", pattern]
    return words[1:]


def _scan_from_memory(said: Mapping[str, Any], memory: ScanMemory | None = None) -> ScanResult:
    return ScanResult(
        tree_id=said["tree"],
        files=said["files"],
        left_out=tuple(said["left_out"]),
        left_out_total=said["left_out_total"],
        memory=memory,
    )


def _parse_listing(listing: bytes, now: int, left: _LeftOutPaths) -> list[ListedFile]:
    """The files that are to be kept. Raises ``NotScanned`` for a list that is not whole or too long."""
    *records, end = listing.split(b"//")[1:] or [b""]
    code = re.fullmatch(rb"end ([01])\n", end)
    if code is None:
        raise NotScanned("the host could not list the files of the workspace")
    found: dict[str, ListedFile] = {}
    for record in records:
        said, _, name = record.removesuffix(b"\n").partition(b" ./")
        path = os.fsdecode(name)
        parts = path.split("/")
        if said == b"closed" and name:
            left.add(path)
            continue
        status = _STATUS.fullmatch(said)
        if status is None or not {"", ".", ".."}.isdisjoint(parts) or "\0" in path:
            raise NotScanned("the host lists what is no file")
        if len(parts) > DEPTH_MAX + 1:
            left.add("/".join(parts[: DEPTH_MAX + 1]))
        elif not is_ignored_file(parts[-1]):
            found[path] = _parse_listed_file(path, status, said, now)
    if len(found) > FILES_MAX:
        raise NotScanned(f"the workspace has more than {FILES_MAX:,} files")
    folders = {"/".join(parts[:end]) for parts in (path.split("/") for path in found) for end in range(1, len(parts))}
    # Something was a file, and a folder a moment later.
    return [each for path, each in found.items() if path not in folders]


def _parse_listed_file(path: str, status: re.Match[bytes], said: bytes, now: int) -> ListedFile:
    mode = int(status[1], 16)
    kind = LINK if mode & 0o170000 == 0o120000 else EXECUTABLE if mode & 0o100 else FILE
    is_young = max(int(status[3]), int(status[4])) >= now - _YOUNG_S
    return ListedFile(path=path, mode=kind, size=int(status[2]), stamp=said.decode("ascii"), is_young=is_young)


def _split_path(path: str) -> tuple[str, str]:
    folder, _, name = path.rpartition("/")
    return folder, name


def _build_trees(
    order: ScanOrder, listed: Iterable[ListedFile], shas: Mapping[str, str | None], stamps: Mapping[str, str]
) -> Known:
    made: dict[str, dict[str, Any]] = {"": {"tree": None, "stamps": {}, "shas": {}, "folders": {}}}
    entries: dict[str, list[TreeEntry]] = {"": []}
    for each in listed:
        folder, name = _split_path(each.path)
        above = folder
        while above not in made:
            made[above] = {"tree": None, "stamps": {}, "shas": {}, "folders": {}}
            entries[above] = []
            above = _split_path(above)[0]
        sha = shas[each.path]
        made[folder]["stamps"][name] = stamps[each.path]
        made[folder]["shas"][name] = sha
        if sha is not None:
            entries[folder].append(TreeEntry(each.mode, os.fsencode(name), sha))
    for folder in sorted(made, key=lambda path: (path.count("/"), path != ""), reverse=True):
        if not entries[folder]:
            continue
        tree = made[folder]["tree"] = order.objects.put("tree", encode_tree(entries[folder]))
        if folder:
            above, name = _split_path(folder)
            made[above]["folders"][name] = tree
            entries[above].append(TreeEntry(FOLDER, os.fsencode(name), tree))
    return made


def _load_contents(
    changes: Iterable[ChangedFile], content: Callable[[str], bytes], failed: dict[str, str]
) -> Iterator[tuple[ChangedFile, bytes]]:
    """Yield each change with the content to write; a change whose content is damaged goes to ``failed``."""
    for change in changes:
        try:
            yield change, b"" if change.after is None else content(change.after.sha)
        except StoreDamaged as error:
            failed[change.path] = str(error)


def _render_put_order(change: ChangedFile, whole: bytes) -> bytes:
    path = b"./" + os.fsencode(change.path)
    if change.after is None:
        return b"- 0 %d -\n%s" % (len(path), path)
    letter = {LINK: b"l", EXECUTABLE: b"x"}.get(change.after.mode, b"f")
    return b"%s %d %d %s\n%s%s" % (letter, len(whole), len(path), change.after.sha.encode(), path, whole)
