"""Look at files, and read those that were judged. ``media`` decides which may leave the machine."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from urllib.parse import urljoin

from hermes_worker.channels.exchange import Attachment
from hermes_worker.channels.media import (
    ExtractedMedia,
    FileFacts,
    MediaFile,
    MediaPicture,
    MediaPolicy,
    MediaRefusal,
    extract_media,
    judge_media,
)
from hermes_worker.core.media_kinds import PICTURES, START_BYTES, MediaKind, find_suffix, guess_type_of_content
from hermes_worker.net.http import HttpRequest, NoAnswer
from hermes_worker.net.urls import UnsafeUrl, UrlPolicy
from hermes_worker.net.wire import send
from hermes_worker.system.plainfiles import open_plain

PICTURE_BYTES_MAX = 10_000_000
"""Most bytes of a picture. Telegram takes as much as a photo; other platforms take as much or refuse it."""
_PICTURE_S = 20.0
_REDIRECTS_MAX = 2


class FileGone(Exception):
    """A file is not the one that was judged any more: it was removed or replaced, or it grew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileOutbox:
    """Judges which files of one session may leave. Thread-safe."""

    root: str
    """The workspace: relative paths are relative to it, and every file in it but credentials may leave."""
    more_roots: Sequence[str] = ()
    denied: Sequence[str] = ()
    is_strict: bool = True
    """Whether outside the roots only files of the last ten minutes may leave."""
    fetch: Callable[[], None] = lambda: None
    """Brings the files of the workspace to this machine, where they are kept elsewhere. Raises nothing."""

    def extract(self, text: str, *, has_pictures: bool = False) -> ExtractedMedia:
        return extract_media(text, self._look, has_pictures=has_pictures)

    def _look(self, path: str) -> FileFacts | None:
        self.fetch()
        return look_at(self._resolve_path(path))

    def judge(self, path: str) -> MediaFile | MediaRefusal:
        self.fetch()
        policy = MediaPolicy(
            allowed_roots=tuple(os.path.realpath(root) for root in (self.root, *self.more_roots)),
            denied_prefixes=tuple(os.path.realpath(place) for place in self.denied),
            is_strict=self.is_strict,
        )
        return judge_media(self._resolve_path(path), policy=policy, look=look_at, now=datetime.now(UTC))

    def _resolve_path(self, path: str) -> str:
        return path if path.startswith("/") else str(PurePosixPath(self.root, path))


def look_at(path: str) -> FileFacts | None:
    """Look at the file at ``path``, following every link; ``None`` for nothing, or nothing that can be seen."""
    if "\0" in path:
        return None
    try:
        real_path = os.path.realpath(path, strict=True)
        found = Path(real_path).lstat()
    except (OSError, ValueError):
        return None
    return FileFacts(
        real_path=real_path,
        is_regular=stat.S_ISREG(found.st_mode),
        size=found.st_size,
        modified_at=datetime.fromtimestamp(found.st_mtime, UTC),
    )


def read_judged_file(file: MediaFile, kind: MediaKind) -> Attachment:
    """Read a file that was judged, whole. Raises ``FileGone``.

    Between judging and opening, a link may have been put in its place, or in that of a directory above it: the opened
    file must lie where it was judged.
    """
    try:
        opened = open_plain(file.path, follows_links=False)
    except OSError as error:
        raise FileGone(error.strerror or "it cannot be opened") from None
    with opened:
        if _find_place(opened.fileno(), file.path) != file.path:
            raise FileGone("it was replaced while it was looked at")
        content = opened.read(file.size + 1)
    if len(content) > file.size:
        raise FileGone("it is still being written")
    return Attachment(name=file.name, kind=kind, content=content)


def fetch_picture(picture: MediaPicture, policy: UrlPolicy) -> Attachment:
    """Fetch the picture at an address that a model wrote: without credentials, at addresses that ``policy`` allows, and
    only as large as platforms take it. Raises ``FileGone``."""
    url = picture.url
    for _ in range(1 + _REDIRECTS_MAX):
        try:
            request = HttpRequest(method="GET", url=url, delivers=False)
            answer = send(request, policy, total_s=_PICTURE_S, body_bytes_max=PICTURE_BYTES_MAX + 1)
        except (NoAnswer, UnsafeUrl, ValueError) as error:
            raise FileGone(str(error)) from None
        if not 300 <= answer.status < 400 or not answer.headers.get("location"):
            break
        url = urljoin(url, answer.headers["location"])
    media_type = guess_type_of_content(answer.body[:START_BYTES])
    if answer.status != 200 or media_type not in PICTURES or len(answer.body) > PICTURE_BYTES_MAX:
        raise FileGone("there is no picture")
    name = f"picture{find_suffix(media_type)}"
    return Attachment(name=name, kind=MediaKind.IMAGE, content=answer.body)


def _find_place(descriptor: int, path: str) -> str:
    """Find where an open file lies. Where the kernel does not say, resolve its path again."""
    try:
        return str(Path(f"/proc/self/fd/{descriptor}").readlink())
    except OSError:
        return os.path.realpath(path)
