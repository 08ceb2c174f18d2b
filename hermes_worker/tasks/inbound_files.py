"""Before a run that came with files begins: get each file from its platform, look at what it is, and keep it.

A file is fetched by one worker for deliveries at a time, since these have the platforms' credentials, and settled once.
A worker that dies in between leaves it to another, which fetches it again: contents are kept under their hashes. When
the time of the run has come it begins without what is missing, and the claim is gone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from io import SEEK_END
from tempfile import TemporaryFile
from typing import BinaryIO

from hermes_worker.agent.images import SmallImage, count_pixels, is_whole, shrink_image
from hermes_worker.broker.queue import QueueName
from hermes_worker.channels.downloads import NO_ROOM, FileDownloader, NoFile
from hermes_worker.channels.transcription import NOT_SET_UP, Transcription
from hermes_worker.core.effects import FetchFile
from hermes_worker.core.errors import LeaseLost
from hermes_worker.core.inbound import MediaRef
from hermes_worker.core.inbound_files import PIXELS_MAX, FileOutcome, build_inbox_path
from hermes_worker.core.media_kinds import PICTURES, SOUNDS, START_BYTES, MediaKind, find_suffix, guess_type_of_content
from hermes_worker.observe import bind_facts, count, log
from hermes_worker.store.artifacts.gatherings import ContentGone
from hermes_worker.store.inbound_files import FetchedFile, FileClaim, InboundFiles
from hermes_worker.store.rows import Hint
from hermes_worker.store.work_items import ATTEMPTS_MAX
from hermes_worker.tasks.context import Sender
from hermes_worker.tasks.iteration.persistence import persist
from hermes_worker.tasks.leases import Leases
from hermes_worker.tasks.step_runner import begin_step

_PIECE_BYTES = 262_144
_UNREADABLE = "it is no picture that can be read"
SIDE_PX_MAX = 2_000
"""The longest side of a picture that the model is shown, in pixels."""
_CALLED: Mapping[MediaKind, str] = {
    MediaKind.VOICE: "voice",
    MediaKind.AUDIO: "sound",
    MediaKind.VIDEO: "video",
    MediaKind.IMAGE: "picture",
    MediaKind.DOCUMENT: "file",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchingContext:
    """The parts that a worker needs to fetch files."""

    files: InboundFiles
    downloads: FileDownloader
    sender: Sender
    leases: Leases
    hear: Callable[[bytes, str], Transcription] = lambda content, media_type: NOT_SET_UP
    """Transcribes a recording of a given media type."""
    commit_patience_s: float = 600.0


def fetch_file(parts: FetchingContext, effect: FetchFile, at: float) -> None:
    """Fetch the file that ``effect`` names, if that is still to be done. ``at`` is when its message was hinted.

    Safe to deliver any number of times: of all deliveries of the message one gets the claim.
    """
    begin_step(parts, QueueName.DELIVERY, Hint(effect=effect, at=at), lambda: _fetch_file(parts, effect))


def _fetch_file(parts: FetchingContext, effect: FetchFile) -> None:
    claim = parts.files.claim(effect, parts.leases.owner)
    if claim is None:
        count("hint.stale")
        return
    with (
        bind_facts(run_id=claim.run_id),
        # Not under the run's id: it has not begun, and a later stop finds that out by itself.
        parts.leases.hold_claim(claim.token, f"file {claim.file_id}", may_hand_over=False) as abort,
    ):
        try:
            hints = persist(
                partial(_settle_file, parts, claim, _download_file(parts, claim)),
                abort,
                patience_s=parts.commit_patience_s,
            )
        except LeaseLost as lost:
            count("inbound_file.refused")
            log.warning("inbound_file.refused", reason=str(lost))
            return
        except ContentGone as error:
            log.warning("inbound_file.failed", reason=str(error), attempt=claim.attempt)
            parts.files.release_file(claim)
            return
    parts.sender.send(hints)


def _settle_file(parts: FetchingContext, claim: FileClaim, file: FetchedFile | None) -> list[Hint]:
    if file is None:
        parts.files.release_file(claim)
        return []
    return parts.files.settle(claim, file)


def _download_file(parts: FetchingContext, claim: FileClaim) -> FetchedFile | None:
    """Fetch the file and return what is to be recorded of it; ``None`` when it is to be tried again."""
    try:
        with TemporaryFile() as content:
            missing = parts.downloads.fetch(claim.account, claim.media, content)
            if missing is not None:
                return _settle_missing(claim, missing)
            file = _inspect_file(parts, claim, content)
    except OSError as error:
        unwritten = NoFile(reason=NO_ROOM, may_pass=True, detail=str(error.strerror))
        return _settle_missing(claim, unwritten)
    outcome = file.outcome
    if outcome.reason:
        count("inbound_file.failed")
    else:
        count("inbound_file.fetched")
    log.info("inbound_file.fetched", media_type=outcome.media_type, size=outcome.size_bytes, reason=outcome.reason)
    return file


def _settle_missing(claim: FileClaim, missing: NoFile) -> FetchedFile | None:
    log.warning("inbound_file.failed", reason=missing.reason, detail=missing.detail, attempt=claim.attempt)
    if missing.may_pass and claim.attempt < ATTEMPTS_MAX:
        return None
    count("inbound_file.failed")
    return FetchedFile(outcome=FileOutcome(reason=missing.reason))


def _inspect_file(parts: FetchingContext, claim: FileClaim, file: BinaryIO) -> FetchedFile:
    size = file.seek(0, SEEK_END)
    file.seek(0)
    if not size:
        return FetchedFile(outcome=FileOutcome(reason="it is empty"))
    media_type = guess_type_of_content(file.read(START_BYTES))
    file.seek(0)
    shown, heard = None, Transcription()
    if media_type in PICTURES:
        shown, why = _shrink_picture(file.read())
        if shown is None:
            return FetchedFile(outcome=FileOutcome(reason=why))
    elif media_type in SOUNDS:
        heard = parts.hear(file.read(), media_type)
    path = build_inbox_path(_choose_name(claim.media, media_type), _hash_file(file)) if claim.is_kept else ""
    outcome = FileOutcome(
        media_type=media_type,
        size_bytes=size,
        path=path,
        shown_type=shown.media_type if shown is not None else "",
        heard=heard.text,
        unheard=heard.unheard,
    )
    return FetchedFile(
        outcome=outcome,
        content_hash=parts.files.store_file(file) if path else None,
        picture_hash=parts.files.store_content(shown.content) if shown is not None else None,
    )


def _hash_file(file: BinaryIO) -> str:
    """The SHA-256 of a file, as hexadecimal digits."""
    file.seek(0)
    digest = hashlib.sha256()
    while piece := file.read(_PIECE_BYTES):
        digest.update(piece)
    return digest.hexdigest()


def _shrink_picture(content: bytes) -> tuple[SmallImage | None, str]:
    """The picture in the size that the model is shown, or the reason why it is shown none."""
    why = _explain_undecodable(content)
    small = shrink_image(content, SIDE_PX_MAX) if why is None else None
    if small is None or (small.content is content and not is_whole(content)):
        return None, why or _UNREADABLE
    return small, ""


def _explain_undecodable(content: bytes) -> str | None:
    """The reason not to decode a picture at all; ``None`` when it may be decoded."""
    pixels = count_pixels(content)
    if pixels is None:
        return _UNREADABLE
    if pixels > PIXELS_MAX:
        return f"it has {pixels / 1e6:,.0f} megapixels, and at most {PIXELS_MAX / 1e6:,.0f} are looked at"
    return None


def _choose_name(media: MediaRef, media_type: str) -> str:
    """A name for a file that its sender did not name: by what it is."""
    return media.name or f"{_CALLED[media.kind]}{find_suffix(media_type)}"
