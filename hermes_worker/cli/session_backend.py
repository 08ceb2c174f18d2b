"""The API's operations on sessions, as typed calls for the verbs of ``sessions``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hermes_worker.cli.api_connection import connect_api
from hermes_worker.cli.short_ids import require_id
from hermes_worker.core.errors import HermesError
from hermes_worker.core.session_imports import InvalidImport

if TYPE_CHECKING:
    from hermes_worker.cli.api_connection import ApiConnection
    from hermes_worker.schemas.sessions import SessionObject


def open_sessions(home: Path | None) -> SessionRows:
    """Open the sessions of a home or server. Raises ``ConfigurationError``, ``UnavailableError``."""
    return SessionRows(connect_api(home))


class SessionRows:
    """The sessions of one tenant. ``client`` does to them what needs no more than a request."""

    def __init__(self, asked: ApiConnection) -> None:
        self.client = asked.client

    def find(self, reference: str) -> SessionObject:
        """Find the session with this id, this name, this title (the newest of several), or an id that begins so."""
        return self.client.session(require_id(self.client, reference, "session"))

    def load_page(self, limit: int, filters: Mapping[str, Any]) -> list[SessionObject]:
        return list(islice(self.client.sessions(limit=min(limit, 200), **filters), limit))

    def import_all(self, documents: Iterable[object]) -> Iterator[str | HermesError]:
        """Import conversations. Yields the name of each session that was made, or the error that refused it."""
        from hermes_worker.client import RefusedError

        for document in documents:
            try:
                yield self.client.import_session(_require_object(document)).id
            except (RefusedError, InvalidImport) as error:
                yield error


def _require_object(document: object) -> Mapping[str, Any]:
    """Require a JSON object. Raises ``InvalidImport``."""
    if isinstance(document, InvalidImport):
        raise document
    if not isinstance(document, Mapping):
        raise InvalidImport("a session must be an object")
    return document
