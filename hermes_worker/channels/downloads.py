"""Download a file that a person sent, from its platform, within a size and a time.

The platform's module asks in an exchange like any other; the file itself is the answer to its last request. It is
written out piece by piece, up to one byte more than allowed, so a worker holds no file in memory while it waits for a
platform. It comes from a public address unless the operator's own settings name the server, and redirects are followed
only to hosts to which the vendor redirects, without credentials. What the answer says of itself (its length, its
coding) is compared and never believed.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import BinaryIO

from hermes_worker.channels.adapters import build_credentials, find_secret_variables
from hermes_worker.channels.errors import DeliveryError, SendErrorKind, classify_status
from hermes_worker.channels.exchange import perform
from hermes_worker.channels.file_addresses import FileSink, FileSource, NoRoom, follow_redirect
from hermes_worker.channels.receivers import Receiver, load_receivers
from hermes_worker.core.chat_accounts import select_account_values
from hermes_worker.core.errors import ConfigurationError
from hermes_worker.core.inbound import MediaRef
from hermes_worker.core.inbound_files import format_too_large
from hermes_worker.net.http import HttpResponse, NoAnswer
from hermes_worker.net.urls import UnsafeUrl, UrlPolicy
from hermes_worker.net.wire import make_sender, open_response

REDIRECTS_MAX = 2
_MAY_PASS = frozenset({SendErrorKind.TRANSIENT, SendErrorKind.RATE_LIMITED, SendErrorKind.AMBIGUOUS})
_NOT_ASKED = "the platform named an address that is not asked"
NO_ROOM = "there was no room to write it down"
_LATE = "the platform did not send it in time"
_WHY: Mapping[SendErrorKind, str] = {
    SendErrorKind.AUTH: "the platform refused our credentials",
    SendErrorKind.FORBIDDEN: "the platform does not let us have it",
    SendErrorKind.NOT_FOUND: "the platform does not have it any more",
    SendErrorKind.RATE_LIMITED: "the platform is too busy",
    SendErrorKind.TRANSIENT: "the platform could not be reached",
    SendErrorKind.AMBIGUOUS: "the platform did not answer",
    SendErrorKind.REFUSED: _NOT_ASKED,
}
_PACKED_BYTES = 65_536
"""A body that holds a file as base64 in JSON is a third larger, and by this many bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoFile:
    """Why a file could not be downloaded."""

    reason: str
    """For people and models: a sentence of ours, whatever the platform said."""
    may_pass: bool = False
    """Whether another try may succeed."""
    detail: str = ""
    """For the log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileDownloader:
    """Downloads files of the accounts whose credentials it has. Thread-safe."""

    values: Mapping[str, str] = field(repr=False)
    """Settings by variable name."""
    bytes_max: int
    total_s: float
    """Seconds for each request."""

    @property
    def _packed_bytes_max(self) -> int:
        return self.bytes_max * 4 // 3 + _PACKED_BYTES

    def fetch(self, account: str, media: MediaRef, into: BinaryIO) -> NoFile | None:
        """Download the whole file into ``into``. Returns ``None`` on success, else why there is no file; the caller
        then drops the bytes that were written."""
        platform, _, name = account.partition(":")
        receiver = load_receivers().get(platform)
        if receiver is None or not receiver.receiving.gives_files:
            return NoFile(reason="files of this platform are not fetched")
        sink = FileSink(into=into, bytes_max=self.bytes_max, ends_at=time.monotonic() + self.total_s)
        try:
            if receiver.receiving.read_file is not None:
                return self._read_file(receiver, name, media, sink)
            return self._download(receiver, name, media, sink)
        except NoRoom as error:
            return NoFile(reason=NO_ROOM, may_pass=True, detail=str(error))
        except ConfigurationError as error:
            return NoFile(reason="the credentials of the platform are not where files are fetched", detail=str(error))

    def _read_file(self, receiver: Receiver, name: str, media: MediaRef, sink: FileSink) -> NoFile | None:
        credentials = receiver.build_credentials(receiver.choose_values(self.values, name))
        failed = receiver.read_file(media, credentials, sink)
        if sink.is_over:
            return NoFile(reason=format_too_large(self.bytes_max))
        if failed is not None and sink.is_late:
            return NoFile(reason=_LATE, may_pass=True, detail=failed.message)
        return None if failed is None else _build_no_file(failed)

    def _download(self, receiver: Receiver, name: str, media: MediaRef, sink: FileSink) -> NoFile | None:
        credentials = build_credentials(
            receiver.platform, select_account_values(self.values, name, find_secret_variables())
        )
        exchange = receiver.download(media, credentials)
        found = perform(exchange, make_sender(UrlPolicy(allows_private=True), total_s=self.total_s))
        if isinstance(found, DeliveryError):
            return _build_no_file(found)
        try:
            return self._request_file(found, sink)
        except NoAnswer as error:
            return NoFile(reason=_LATE, may_pass=True, detail=error.reason)
        except (UnsafeUrl, ValueError) as error:
            return NoFile(reason=_NOT_ASKED, detail=str(error))

    def _request_file(self, source: FileSource, sink: FileSink) -> NoFile | None:
        """Follow the source's redirects and write the file to ``sink``. Raises ``NoAnswer``, ``UnsafeUrl``,
        ``ValueError``."""
        for _ in range(1 + REDIRECTS_MAX):
            answer = self._answer(source, sink)
            following = follow_redirect(source, answer)
            if following is None:
                return self._judge_answer(source, answer, sink)
            source = following
        return NoFile(reason=_NOT_ASKED, detail="it redirects too often")

    def _answer(self, source: FileSource, sink: FileSink) -> HttpResponse:
        """Make one request. The body of a file goes into ``sink`` and not into the response."""
        policy = UrlPolicy(allows_private=not source.is_public)
        with open_response(source.request, policy, total_s=self.total_s) as response:
            head = HttpResponse(status=response.status, headers=response.headers)
            if source.unpacked is not None:
                return replace(head, body=response.read(self._packed_bytes_max))
            if head.status == 200 and source.refusal(head) is None:
                for piece in response.iterate_body():
                    sink.write(piece)
                    if sink.is_over:
                        break
            return head

    def _judge_answer(self, source: FileSource, answer: HttpResponse, sink: FileSink) -> NoFile | None:
        if answer.status == 202:
            return NoFile(reason="the platform still prepares it", may_pass=True)
        if 300 <= answer.status < 400:
            return NoFile(reason=_NOT_ASKED, detail="a redirect")
        if answer.status != 200:
            message = f"HTTP {answer.status}"
            return _build_no_file(
                DeliveryError(kind=classify_status(answer.status), message=message, status=answer.status)
            )
        if (refused := source.refusal(answer)) is not None:
            return _build_no_file(refused)
        if source.unpacked is None:
            return self._check_received(answer, sink.size, sink)
        return self._check_received(answer, len(answer.body), sink) or self._write_unpacked(
            source.unpacked(answer.body), sink
        )

    def _check_received(self, answer: HttpResponse, size: int, sink: FileSink) -> NoFile | None:
        """Check that an answer with a body of ``size`` bytes is whole and not too large; ``None`` when it is."""
        if sink.is_over or size >= self._packed_bytes_max:
            return NoFile(reason=format_too_large(self.bytes_max))
        if answer.headers.get("content-encoding", "identity").strip().lower() != "identity":
            return NoFile(reason="the platform sent it compressed, and nothing is unpacked")
        said = answer.headers.get("content-length", "").strip()
        if said and said != str(size):
            return NoFile(reason="it ended before it was whole", may_pass=True, detail=f"{size} of {said[:20]}")
        return None

    def _write_unpacked(self, content: bytes | None, sink: FileSink) -> NoFile | None:
        if content is None:
            return NoFile(reason="the platform did not give it", detail="the answer holds no file")
        sink.write(content)
        return NoFile(reason=format_too_large(self.bytes_max)) if sink.is_over else None


def _build_no_file(error: DeliveryError) -> NoFile:
    if error.kind is SendErrorKind.TOO_LONG or "too big" in error.message.lower():
        return NoFile(reason="it is larger than the platform gives to bots", detail=error.message)
    why = _WHY.get(error.kind, "the platform did not give it")
    return NoFile(reason=why, may_pass=error.kind in _MAY_PASS, detail=error.message)
