"""The API's operations on sessions, as typed calls for the verbs of ``sessions``."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from hermes_worker.cli.api_connection import connect_api
from hermes_worker.core.errors import ConfigurationError, HermesError
from hermes_worker.core.session_imports import InvalidImport

if TYPE_CHECKING:
    from hermes_worker.cli.api_connection import ApiConnection
    from hermes_worker.schemas.search import FoundMessages

Document = Mapping[str, Any]


def open_sessions(home: Path | None) -> SessionRows:
    """Open the sessions of a home or server. Raises ``ConfigurationError``, ``UnavailableError``."""
    return SessionRows(connect_api(home))


class SessionRows:
    """The sessions of one tenant, as documents of the API (``client.documents``)."""

    def __init__(self, asked: ApiConnection) -> None:
        self._client = asked.client
        self._source = asked.source

    def find(self, reference: str) -> Document:
        """Find the session with this id, this name or, the newest of several, this title."""
        from hermes_worker.client import RefusedError

        if reference and not any(char.isspace() or char in "/\\" for char in reference):
            try:
                return cast("Document", self._client.session(reference))
            except RefusedError as error:
                if error.status != 404:
                    raise
        called = self._client.sessions(title=reference[:80], limit=1)
        return _require_first(cast("list[Document]", list(islice(called, 1))), reference)

    def page(self, limit: int, filters: Mapping[str, Any]) -> list[Document]:
        found = self._client.sessions(limit=min(limit, 200), **filters)
        return cast("list[Document]", list(islice(found, limit)))

    def messages(self, session_id: str) -> Iterator[Document]:
        return cast("Iterator[Document]", iter(self._client.messages(session_id)))

    def search(self, text: str, filters: Mapping[str, Any]) -> FoundMessages:
        return self._client.search_sessions(text, **filters)

    def lineage(self, session_id: str) -> list[Document]:
        return cast("list[Document]", self._client.session_lineage(session_id))

    def change(self, session_id: str, changes: Mapping[str, Any]) -> Document:
        return cast("Document", self._client.change_session(session_id, **changes))

    def fork(self, session_id: str, wanted: Mapping[str, Any]) -> Document:
        name = f"{self._source}_{int(time.time())}_{secrets.token_hex(4)}"
        return cast("Document", self._client.fork_session(session_id, id=name, **wanted))

    def delete(self, session_id: str) -> None:
        self._client.remove_session(session_id)

    def import_all(self, documents: Iterable[object]) -> Iterator[str | HermesError]:
        """Import conversations. Yields the name of each session that was made, or the error that refused it."""
        from hermes_worker.client import RefusedError

        for document in documents:
            try:
                yield str(self._client.import_session(_require_object(document))["id"])
            except (RefusedError, InvalidImport) as error:
                yield error


def _require_object(document: object) -> Mapping[str, Any]:
    """Require a JSON object. Raises ``InvalidImport``."""
    if isinstance(document, InvalidImport):
        raise document
    if not isinstance(document, Mapping):
        raise InvalidImport("a session must be an object")
    return document


def _require_first(called: list[Document], reference: str) -> Document:
    if not called:
        raise ConfigurationError(f"there is no session with the id, the name or the title {reference!r}")
    return called[0]
