"""Bring the contents of files on another host to the store of checkpoints.

Theory of operation. A program that is started costs a millisecond or more, and a connection some, so ten thousand small
files come in a few answers that name and send the files of a folder together (``host_scripts.SENT``). For larger files,
and for links, the host first sends git's hash of the content, and then what the store lacks. When nothing is remembered
of a workspace the store lacks nearly all of it, so much larger files come without being asked about.

Files stand one after the other in an answer, so one that changed meanwhile moves all that follow it: content that
arrived with the announced hash is taken, that file is asked for alone, and the rest is asked for again.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

from hermes_worker.features.checkpoints.files import host_scripts
from hermes_worker.workspaces.base import ScriptAnswer
from hermes_worker.workspaces.trees.objects import LINK, compute_name
from hermes_worker.workspaces.trees.scanning import NotScanned, ScanOrder

T = TypeVar("T")
AT_ONCE: Final = 200
"""How many files one script is given."""
_SENT_AT_ONCE: Final = 2_000
_ORDERS_BYTES_MAX: Final = 48 * 1024
"""Bytes of the paths that one script is given: they become arguments of a program."""
_CONTENT_BYTES_MAX: Final = 4 * 1024 * 1024
"""Bytes that one script sends or is sent, unless it is one file."""
_SMALL_BYTES: Final = 16 * 1024
"""Files up to this size come without being asked about."""
_SMALL_AT_FIRST_BYTES: Final = 1024 * 1024
"""Files up to this size come without being asked about when nothing is remembered of the workspace."""
_RESTLESS_MAX: Final = 50
"""Files that change while they are read; with more of them a look is given up."""
_SHA: Final = re.compile(r"[0-9a-f]{40}")
_SUM: Final = re.compile(rb"\\?([0-9a-f]{40})[ \n]")
_ANSWER_BYTES: Final = 64
"""Bytes of an answer of ``SENT`` for one file, beside its name and its content."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedFile:
    """A file as its host lists it."""

    path: str
    mode: int
    """Its mode, as git writes it."""
    size: int
    stamp: str
    is_young: bool

    @property
    def kind(self) -> str:
        return "l" if self.mode == LINK else "f"

    def render_order(self) -> bytes:
        return b"%s %d ./%s\0" % (self.kind.encode(), self.size, os.fsencode(self.path))

    def is_sent_together(self, size_max: int) -> bool:
        """Whether the file comes together with others. Names that a program may write in more than one way, or on more
        than one line, are asked about alone.
        """
        return self.mode != LINK and self.size <= size_max and not re.search(r"[\n\\]", self.path)


@dataclass(slots=True)
class ContentReader:
    """Brings the contents of files to the store, where they are not there yet."""

    run: Callable[..., ScriptAnswer]
    order: ScanOrder
    is_first: bool
    """Whether nothing is remembered of the workspace."""
    restless: set[str] = field(default_factory=set)
    """Files that changed while they were read."""

    def bring_contents(self, wanted: Sequence[ListedFile]) -> dict[str, str | None]:
        """Bring the contents into the store; return git's name of each, ``None`` for a file that cannot be read."""
        size_max = _SMALL_AT_FIRST_BYTES if self.is_first else _SMALL_BYTES
        together = [each for each in wanted if each.is_sent_together(size_max)]
        return self._bring_small(together) | self._bring_by_hash(
            [each for each in wanted if not each.is_sent_together(size_max)]
        )

    # --- files that come together ------------------------------------------------------------------------------------

    def _bring_small(self, wanted: Sequence[ListedFile]) -> dict[str, str | None]:
        found: dict[str, str | None] = {}
        for batch in _split_files(wanted, _SENT_AT_ONCE):
            while batch:
                taken = self._bring_batch(batch)
                found |= taken
                rest = batch[len(taken) :]
                if rest:
                    found[rest[0].path] = self._bring_one(rest[0])
                batch = rest[1:]
        return found

    def _bring_batch(self, batch: Sequence[ListedFile]) -> dict[str, str | None]:
        """The names of the contents that arrived with the announced hash, from the first one up to one that did not."""
        data = b"".join(b"./%s\0" % os.fsencode(each.path) for each in batch)
        limit = sum(each.size + _ANSWER_BYTES for each in batch) + len(data)
        output = self._run_script(host_scripts.SENT, data, str(limit), bytes_max=limit).output
        found: dict[str, str | None] = {}
        at = 0
        while len(found) < len(batch):
            start = output.find(b"\n", at) + 1
            end = output.find(b"//\n", start)
            flags = output[at : start - 1]
            run = batch[len(found) : len(found) + len(flags)]
            there = [each for each, flag in zip(run, flags, strict=False) if flag == ord("f")]
            sums = [_SUM.match(line) for line in output[start:end].splitlines(keepends=True)]
            if not start or end < 0 or not flags or len(run) < len(flags) or len(sums) != len(there):
                break
            at = end + 3
            promised = dict(zip((each.path for each in there), sums, strict=True))
            for each in run:
                if each.path not in promised:
                    found[each.path] = None
                    continue
                content, said = output[at : at + each.size], promised[each.path]
                if said is None or hashlib.sha1(content, usedforsecurity=False).hexdigest().encode() != said[1]:
                    return found
                found[each.path] = self.order.objects.put("blob", content)
                at += each.size
        if not found and not output:
            raise NotScanned("the host did not say what the files hold")
        return found

    # --- files that are asked about first ----------------------------------------------------------------------------

    def _bring_by_hash(self, wanted: Sequence[ListedFile]) -> dict[str, str | None]:
        found: dict[str, str | None] = {}
        lacking: dict[str, ListedFile] = {}
        for batch in _split_files(wanted, AT_ONCE):
            for each, sha in zip(batch, self._request_hashes(batch), strict=True):
                found[each.path] = sha
                if sha is not None and not self.order.objects.has(sha):
                    lacking.setdefault(sha, each)
        changed = self._bring_lacking(list(lacking.values()), found)
        for each in wanted:
            if found[each.path] in changed:
                found[each.path] = self._bring_one(each)
        return found

    def _request_hashes(self, batch: Sequence[ListedFile]) -> list[str | None]:
        answer = self._run_script(host_scripts.HASHES, _render_orders(batch), bytes_max=44 * len(batch))
        said = [line[:40].strip() for line in answer.output.decode("ascii", "replace").splitlines()]
        if len(said) != len(batch) or not all(each == "-" or _SHA.fullmatch(each) for each in said):
            raise NotScanned("the host did not say what the files hold")
        return [None if each == "-" else each for each in said]

    def _bring_lacking(self, lacking: Sequence[ListedFile], said: Mapping[str, str | None]) -> set[str | None]:
        """Ask for contents; return the hashes of those that did not arrive as announced."""
        changed: set[str | None] = set()
        for batch in _split_files(lacking, AT_ONCE):
            while batch:
                del batch[: self._store_contents(batch, said)]
                changed |= {said[each.path] for each in batch[:1]}
                del batch[:1]
                if len(changed) > _RESTLESS_MAX:
                    raise NotScanned("the files change faster than they can be read")
        return changed

    def _store_contents(self, batch: Sequence[ListedFile], said: Mapping[str, str | None]) -> int:
        """How many of the contents, from the first on, arrived as announced."""
        answer = self._run_script(
            host_scripts.CONTENTS, _render_orders(batch), bytes_max=sum(each.size for each in batch)
        )
        at = 0
        for number, each in enumerate(batch):
            content = answer.output[at : at + each.size]
            at += each.size
            if compute_name("blob", content) != said[each.path]:
                return number
            self.order.objects.put("blob", content)
        return len(batch)

    def _bring_one(self, each: ListedFile) -> str | None:
        self.restless.add(each.path)
        if len(self.restless) > _RESTLESS_MAX:
            raise NotScanned("the files change faster than they can be read")
        limit = self.order.file_bytes_max
        answer = self._request_one(each, limit + 1)
        if answer.code != 0 or len(answer.output) > limit:
            return None
        return self.order.objects.put("blob", answer.output)

    def _request_one(self, each: ListedFile, limit: int) -> ScriptAnswer:
        given = (each.kind, str(limit), f"./{each.path}")
        return self.run(host_scripts.ONE, *given, bytes_max=limit, is_judged=False)

    def _run_script(self, script: str, data: bytes, *more: str, bytes_max: int) -> ScriptAnswer:
        if self.order.should_stop():
            raise NotScanned("the call was stopped")
        return self.run(script, str(len(data)), *more, data=data, bytes_max=bytes_max)


def _render_orders(batch: Sequence[ListedFile]) -> bytes:
    return b"".join(each.render_order() for each in batch)


def _split_files(wanted: Sequence[ListedFile], at_once: int) -> Iterator[list[ListedFile]]:
    return split_batches(wanted, lambda each: (len(each.render_order()), each.size), at_once=at_once)


def split_batches(
    wanted: Iterable[T], weigh: Callable[[T], tuple[int, int]], *, at_once: int = AT_ONCE
) -> Iterator[list[T]]:
    """Divide the files so that what one script is given and sends stays within its limits. ``weigh`` returns the bytes
    of the order for one file, and of its content.
    """
    batch: list[T] = []
    orders = contents = 0
    for each in wanted:
        order, content = weigh(each)
        is_full = orders + order > _ORDERS_BYTES_MAX or contents + content > _CONTENT_BYTES_MAX
        if batch and (len(batch) >= at_once or is_full):
            yield batch
            batch, orders, contents = [], 0, 0
        batch.append(each)
        orders += order
        contents += content
    if batch:
        yield batch
