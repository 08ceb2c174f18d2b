"""The interface by which tools fetch addresses."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from hermes_worker.agent.tools.base import Cancellation
from hermes_worker.core.errors import HermesError


class FetchFailed(HermesError):
    """Nothing could be fetched; the message may be shown to the model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedPage:
    """The content of an address."""

    url: str
    """The address after redirects."""
    media_type: str
    """Lower case, without parameters; empty when the server did not say."""
    charset: str | None
    content: bytes = field(repr=False)
    is_cut: bool
    """Whether there is more of it."""

    @property
    def text(self) -> str:
        """The content by its character set; what does not fit becomes U+FFFD."""
        try:
            return self.content.decode(self.charset or "utf-8", "replace")
        except LookupError:
            return self.content.decode("utf-8", "replace")


class AddressFetching(Protocol):
    """``hermes_worker.agent.fetching.AddressFetcher``."""

    def fetch(self, url: str, cancelled: Cancellation, *, bytes_max: int) -> FetchedPage:
        """Fetch a page of at most ``bytes_max`` bytes. Raises ``FetchFailed``."""
