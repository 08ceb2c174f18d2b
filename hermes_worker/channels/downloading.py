"""Getting a file that somebody sent from its platform, within a size and a time.

What the platform's module asks for is an exchange like any other; the file itself is the answer to its last request. It
is read up to one byte more than it may have, without redirects, and from a public address unless the operator's own
settings name the server. What the answer says of itself (its length, its coding) is compared and never believed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hermes_worker.channels.errors import DeliveryError, SendErrorKind, kind_of_status
from hermes_worker.channels.exchange import perform
from hermes_worker.channels.inbound.receiving import PublicFile
from hermes_worker.channels.receivers import receivers
from hermes_worker.core.errors import ConfigurationError
from hermes_worker.core.inbound import MediaRef
from hermes_worker.core.inbound_files import too_large
from hermes_worker.net.http import HttpRequest, HttpResponse, NoAnswer
from hermes_worker.net.urls import UnsafeUrl, UrlPolicy
from hermes_worker.net.wire import send, sender

_MAY_PASS = frozenset({SendErrorKind.TRANSIENT, SendErrorKind.RATE_LIMITED, SendErrorKind.AMBIGUOUS})
_WHY: Mapping[SendErrorKind, str] = {
    SendErrorKind.AUTH: "the platform refused our credentials",
    SendErrorKind.FORBIDDEN: "the platform does not let us have it",
    SendErrorKind.NOT_FOUND: "the platform does not have it any more",
    SendErrorKind.RATE_LIMITED: "the platform is too busy",
    SendErrorKind.TRANSIENT: "the platform could not be reached",
    SendErrorKind.AMBIGUOUS: "the platform did not answer",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class NoFile:
    """A file that was not had."""

    reason: str
    """For people and models: a sentence of ours, whatever the platform said."""
    may_pass: bool = False
    """Another try may succeed."""
    detail: str = ""
    """For the log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileDownloader:
    """Gets files of the accounts whose credentials are here. Thread-safe."""

    values: Mapping[str, str] = field(repr=False)
    """Settings by variable name."""
    bytes_max: int
    total_s: float
    """Seconds for each request."""

    def fetch(self, account: str, media: MediaRef) -> bytes | NoFile:
        """The file, whole."""
        platform, _, name = account.partition(":")
        receiver = receivers().get(platform)
        if receiver is None or receiver.receiving.download is None:
            return NoFile(reason="files of this platform are not fetched")
        own = UrlPolicy(allows_private=True)
        try:
            credentials = receiver.credentials(receiver.values_of(self.values, name))
            exchange = receiver.download(media, credentials)
            found: HttpRequest | PublicFile | DeliveryError = perform(exchange, sender(own, total_s=self.total_s))
        except ConfigurationError as error:
            return NoFile(reason="the credentials of the platform are not where files are fetched", detail=str(error))
        if isinstance(found, DeliveryError):
            return self._failed(found)
        if isinstance(found, PublicFile):
            return self._read(found.request, UrlPolicy())
        return self._read(found, own)

    def _failed(self, error: DeliveryError) -> NoFile:
        if error.kind is SendErrorKind.TOO_LONG or "too big" in error.message.lower():
            return NoFile(reason="it is larger than the platform gives to bots", detail=error.message)
        why = _WHY.get(error.kind, "the platform did not give it")
        return NoFile(reason=why, may_pass=error.kind in _MAY_PASS, detail=error.message)

    def _read(self, request: HttpRequest, policy: UrlPolicy) -> bytes | NoFile:
        try:
            response = send(request, policy, total_s=self.total_s, body_bytes_max=self.bytes_max + 1)
        except NoAnswer as error:
            return NoFile(reason="the platform did not send it in time", may_pass=True, detail=error.reason)
        except (UnsafeUrl, ValueError) as error:
            return NoFile(reason="the platform named an address that is not asked", detail=str(error))
        return self._judged(response)

    def _judged(self, response: HttpResponse) -> bytes | NoFile:
        if response.status != 200:
            if 300 <= response.status < 400:
                return NoFile(reason="the platform named an address that is not asked", detail="a redirect")
            kind = kind_of_status(response.status)
            return self._failed(DeliveryError(kind=kind, message=f"HTTP {response.status}", status=response.status))
        if len(response.body) > self.bytes_max:
            return NoFile(reason=too_large(self.bytes_max))
        if response.headers.get("content-encoding", "identity").strip().lower() != "identity":
            return NoFile(reason="the platform sent it compressed, and nothing is unpacked")
        said = response.headers.get("content-length", "").strip()
        if said and said != str(len(response.body)):
            return NoFile(
                reason="it ended before it was whole", may_pass=True, detail=f"{len(response.body)} of {said[:20]}"
            )
        return response.body
