"""The messages that a report becomes at a target: its text in parts, then its files, one each.

Parts are numbered, and a delivery goes on at the first that has not been sent; so whatever became of a file meanwhile,
it keeps its number: one that cannot be sent is replaced by a line that says so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from hermes_worker.channels.catalog import LOCAL, TextLimit
from hermes_worker.channels.dispatcher import Dispatcher
from hermes_worker.channels.errors import DUPLICATE_REMARK
from hermes_worker.channels.exchange import Attachment, flatten_text
from hermes_worker.channels.files import FileGone, FileOutbox, read_judged_file
from hermes_worker.channels.markup import DIALECTS, MARKDOWN, spell_tables
from hermes_worker.channels.media import ExtractedMedia, MediaFile, MediaPicture, MediaRefusal, choose_sent_kind
from hermes_worker.channels.splitting import measure, split_text
from hermes_worker.channels.targets import Target
from hermes_worker.core.chat_buttons import ChatButton
from hermes_worker.core.media_kinds import MediaKind

_REMARK_ROOM = len(DUPLICATE_REMARK.encode()) + 2
_NAME_CHARS_MAX = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagePart:
    """One message: a text, or a file with a text."""

    text: str
    file: MediaFile | MediaPicture | None = None
    """A picture is fetched when it is sent."""
    kind: MediaKind = MediaKind.DOCUMENT
    buttons: tuple[ChatButton, ...] = ()
    """Buttons that people can press below the message."""

    @property
    def has_file(self) -> bool:
        """Whether the part brings a file, and is not text alone."""
        return self.file is not None

    def open_content(
        self, conceal: Callable[[str], str], fetch: Callable[[MediaPicture], Attachment]
    ) -> tuple[str, Attachment | None]:
        """Read the text and the file as they are sent. ``conceal`` takes credentials out of files that are text,
        ``fetch`` gets a picture from its address.
        """
        try:
            if isinstance(self.file, MediaPicture):
                return self.text, fetch(self.file)
            if self.file is None:
                return self.text, None
            return self.text, _redact_attachment(read_judged_file(self.file, self.kind), conceal)
        except FileGone as gone:
            return self.build_text_without_file(str(gone)), None

    def build_text_without_file(self, reason: str) -> str:
        """The text that is sent in place of the file."""
        match self.file:
            case None:
                return self.text
            case MediaPicture():
                note = self.file.link
            case MediaFile():
                note = _format_not_sent(self.file.name, reason)
        return f"{self.text}\n\n{note}" if self.text else note


def split_report(text: str, target: Target, dispatcher: Dispatcher, outbox: FileOutbox | None) -> Sequence[MessagePart]:
    """``text`` with the files it asks for. Without an outbox, and in a file, a text asks for none."""
    dialect = DIALECTS.get(target.platform, MARKDOWN)
    if outbox is None or target.platform == LOCAL:
        return _split_text(spell_tables(text, dialect), dispatcher.limit(target))
    takes_files = dispatcher.takes_files(target.platform)
    wishes = outbox.extract(text, has_pictures=dialect.has_images or not takes_files)
    wishes = replace(wishes, text=spell_tables(wishes.text, dialect))
    if not takes_files:
        names = ", ".join(_name(path) for path in wishes.paths)
        left_out = f"📎 Not sent, because this target takes no files: {names}" if names else ""
        whole = "\n\n".join(part for part in (wishes.text, left_out) if part)
        return _split_text(whole, dispatcher.limit(target))
    files = [_build_file_part(outbox.judge(path), wishes) for path in wishes.paths]
    files += [MessagePart(text="", file=picture, kind=MediaKind.IMAGE) for picture in wishes.pictures]
    caption = dispatcher.get_caption_limit(target.platform)
    if len(files) == 1 and _is_caption(wishes.text, files[0], caption):
        return [replace(files[0], text=wishes.text)]
    return [*_split_text(wishes.text, dispatcher.limit(target)), *files]


def add_buttons(pieces: Sequence[MessagePart], buttons: tuple[ChatButton, ...]) -> Sequence[MessagePart]:
    """``pieces``, with the buttons added to the last of them."""
    return [*pieces[:-1], replace(pieces[-1], buttons=buttons)] if pieces and buttons else pieces


def _split_text(text: str, limit: TextLimit) -> list[MessagePart]:
    """Split a text into parts with room for the remark that a part may be a duplicate: any part may need it, and parts
    must be the same in every attempt.
    """
    assert measure(DUPLICATE_REMARK, limit.unit) < _REMARK_ROOM
    room = replace(limit, size_max=limit.size_max - _REMARK_ROOM)
    return [MessagePart(text=part) for part in split_text(text, room)] if text.strip() else []


def _is_caption(text: str, file: MessagePart, limit: TextLimit | None) -> bool:
    """Whether the text and the only file are one message."""
    if limit is None or not text or not file.has_file or file.kind in (MediaKind.VOICE, MediaKind.AUDIO):
        return False
    return measure(text, limit.unit) <= limit.size_max - _REMARK_ROOM


def _build_file_part(judged: MediaFile | MediaRefusal, wishes: ExtractedMedia) -> MessagePart:
    if isinstance(judged, MediaRefusal):
        return MessagePart(text=_format_not_sent(_name(judged.path), judged.reason))
    return MessagePart(text="", file=judged, kind=choose_sent_kind(judged, wishes))


def _format_not_sent(name: str, reason: str) -> str:
    return f"📎 {name} was not sent: {reason}."


def _name(path: str) -> str:
    return flatten_text(PurePosixPath(path).name)[:_NAME_CHARS_MAX]


def _redact_attachment(attachment: Attachment, conceal: Callable[[str], str]) -> Attachment:
    """Redact the credentials in an attachment that is text. Other files cannot be searched and are returned
    unchanged."""
    if attachment.kind is not MediaKind.DOCUMENT:
        return attachment
    try:
        text = attachment.content.decode("utf-8")
    except UnicodeDecodeError:
        return attachment
    hidden = conceal(text)
    return attachment if hidden == text else replace(attachment, content=hidden.encode("utf-8"))
