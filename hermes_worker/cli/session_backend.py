"""What the verbs of ``sessions`` need, as typed calls, and how a database and a server answer them.

Both answer with the documents of the HTTP API (``client.documents``), so what is shown does not depend on the way.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from hermes_worker.cli.options import this_user
from hermes_worker.cli.records import Records, open_records
from hermes_worker.cli.server import server_client
from hermes_worker.core.errors import ConfigurationError, HermesError
from hermes_worker.core.messages import Role
from hermes_worker.core.principals import Principal
from hermes_worker.core.session_imports import InvalidImport

if TYPE_CHECKING:
    from hermes_worker.client import HermesClient
    from hermes_worker.store.sessions import Changes, SessionView

_FILTERS = {"include_children": "has_children", "archived": "is_archived"}
"""Names of the API, and those of our store."""
Document = Mapping[str, Any]
_SOURCE = "cli"
_MESSAGES_AT_ONCE = 500


class SessionBackend(Protocol):
    """The sessions of one tenant. Each call raises ``HermesError``s that say what is wrong."""

    def known(self, reference: str) -> Document:
        """The session with this id, this name or, the newest of several, this title."""

    def page(self, limit: int, filters: Mapping[str, Any]) -> list[Document]: ...
    def messages(self, session_id: str) -> Iterator[Document]: ...
    def search(self, text: str, filters: Mapping[str, Any]) -> Document: ...
    def lineage(self, session_id: str) -> list[Document]: ...
    def change(self, session_id: str, changes: Mapping[str, Any]) -> Document: ...
    def fork(self, session_id: str, wanted: Mapping[str, Any]) -> Document: ...
    def delete(self, session_id: str) -> None: ...
    def take_in(self, documents: Iterable[object]) -> Iterator[str | HermesError]:
        """The name of each session that was made, or why none was."""


def open_sessions(home: Path | None) -> SessionBackend:
    """The server that was chosen, or the database of a home. Raises ``ConfigurationError``, ``UnavailableError``."""
    client = server_client()
    return LocalSessions(open_records(home)) if client is None else RemoteSessions(client)


class RemoteSessions:
    """Asks a server."""

    def __init__(self, client: HermesClient) -> None:
        self._client = client

    def known(self, reference: str) -> Document:
        from hermes_worker.client import RefusedError

        if reference and not any(char.isspace() or char in "/\\" for char in reference):
            try:
                return cast("Document", self._client.session(reference))
            except RefusedError as error:
                if error.status != 404:
                    raise
        called = self._client.sessions(title=reference[:80], limit=1)
        return _first(cast("list[Document]", list(islice(called, 1))), reference)

    def page(self, limit: int, filters: Mapping[str, Any]) -> list[Document]:
        found = self._client.sessions(limit=min(limit, 200), **filters)
        return cast("list[Document]", list(islice(found, limit)))

    def messages(self, session_id: str) -> Iterator[Document]:
        return cast("Iterator[Document]", iter(self._client.messages(session_id)))

    def search(self, text: str, filters: Mapping[str, Any]) -> Document:
        return self._client.search_sessions(text, **filters)

    def lineage(self, session_id: str) -> list[Document]:
        return cast("list[Document]", self._client.session_lineage(session_id))

    def change(self, session_id: str, changes: Mapping[str, Any]) -> Document:
        return cast("Document", self._client.change_session(session_id, **changes))

    def fork(self, session_id: str, wanted: Mapping[str, Any]) -> Document:
        return cast("Document", self._client.fork_session(session_id, **wanted))

    def delete(self, session_id: str) -> None:
        self._client.remove_session(session_id)

    def take_in(self, documents: Iterable[object]) -> Iterator[str | HermesError]:
        from hermes_worker.client import RefusedError

        for document in documents:
            try:
                yield str(self._client.import_session(_object(document))["id"])
            except (RefusedError, InvalidImport) as error:
                yield error


class LocalSessions:
    """Asks a database."""

    def __init__(self, records: Records) -> None:
        from hermes_worker.store.sessions import Sessions

        self._records = records
        self._sessions = Sessions(records.database, records.tenant, _SOURCE)

    def known(self, reference: str) -> Document:
        from hermes_worker.store.runs.runs import SessionNotFound

        try:
            return _document(self._sessions.get(reference))
        except SessionNotFound:
            return _first([_document(view) for view in self._sessions.called(reference)], reference)

    def page(self, limit: int, filters: Mapping[str, Any]) -> list[Document]:
        from hermes_worker.store.sessions import SessionPage

        said = {_FILTERS.get(name, name): value for name, value in filters.items()}
        return [_document(view) for view in self._sessions.page(SessionPage(limit=limit, **said))]

    def messages(self, session_id: str) -> Iterator[Document]:
        from hermes_worker.api.wire.session_objects import message_object

        after = 0
        while views := self._sessions.messages(session_id, after=after, limit=_MESSAGES_AT_ONCE):
            for view in views:
                yield message_object(view, session_id).model_dump(mode="json")
            after = views[-1].seq

    def search(self, text: str, filters: Mapping[str, Any]) -> Document:
        from hermes_worker.api.wire.session_objects import found_object
        from hermes_worker.store.search.finding import MessageSearch, Search, SearchOrder

        role = filters.get("role")
        wanted = MessageSearch(
            text=text,
            roles=(Role(role),) if role else (Role.USER, Role.ASSISTANT),
            order=SearchOrder(filters.get("sort") or SearchOrder.HITS.value),
            limit=int(filters["limit"]),
            session=filters.get("session_id"),
            has_children=bool(filters.get("include_children")),
        )
        result = Search(self._records.database, self._records.tenant, _SOURCE).find(wanted)
        data = [found_object(each, _SOURCE).model_dump(mode="json") for each in result.found]
        return {"object": "list", "query": text, "data": data, "is_complete": result.is_complete}

    def lineage(self, session_id: str) -> list[Document]:
        return [_document(view) for view in self._sessions.family(session_id)]

    def change(self, session_id: str, changes: Mapping[str, Any]) -> Document:
        return _document(self._sessions.change(session_id, _changes(changes)))

    def fork(self, session_id: str, wanted: Mapping[str, Any]) -> Document:
        name = f"cli_{int(time.time())}_{secrets.token_hex(4)}"
        fork = self._sessions.fork
        return _document(fork(session_id, name=name, title=wanted.get("title"), last=wanted.get("message_id")))

    def delete(self, session_id: str) -> None:
        from hermes_worker.services.deleting import delete_session
        from hermes_worker.wiring import open_client

        with closing(open_client(self._records.settings)) as opened:
            delete_session(opened, self._records.tenant, self._sessions.get(session_id).label.id, by=this_user())

    def take_in(self, documents: Iterable[object]) -> Iterator[str | HermesError]:
        from hermes_worker.services.session_imports import import_session
        from hermes_worker.store.sessions import SessionExists
        from hermes_worker.wiring import open_client

        principal = Principal(tenant=self._records.tenant, name=this_user())
        with closing(open_client(self._records.settings)) as opened:
            for document in documents:
                try:
                    view = import_session(opened, principal, _object(document), source=_SOURCE)
                    yield view.label.known_to(_SOURCE)
                except (InvalidImport, SessionExists) as error:
                    yield error


def _object(document: object) -> Mapping[str, Any]:
    """Raises ``InvalidImport``."""
    if isinstance(document, InvalidImport):
        raise document
    if not isinstance(document, Mapping):
        raise InvalidImport("a session must be an object")
    return document


def _first(called: list[Document], reference: str) -> Document:
    if not called:
        raise ConfigurationError(f"there is no session with the id, the name or the title {reference!r}")
    return called[0]


def _document(view: SessionView) -> Document:
    from hermes_worker.api.wire.session_objects import session_object

    return session_object(view, _SOURCE).model_dump(mode="json", by_alias=True)


def _changes(changes: Mapping[str, Any]) -> Changes:
    from hermes_worker.store.sessions import Changes

    return Changes(**{_FILTERS.get(name, name): value for name, value in changes.items()})
