"""What runs find in earlier sessions. The run's row says who the run acts for, and so where it may look.

A run of the owner of a tenant, or of their schedule, looks into all sessions of the tenant. One of a guest's key looks
into those that this key alone began. One that an event from outside began looks into none: the sender of the event
would read what people said.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from hermes_worker.agent.tools.base import ToolContext
from hermes_worker.agent.tools.session_search import SessionQuery, SessionSearchRefused
from hermes_worker.core.run_writers import MemoryWriter
from hermes_worker.core.search_queries import extract_text
from hermes_worker.core.sources import is_session_id
from hermes_worker.store.engine.database import Database
from hermes_worker.store.runs.runs import SessionNotFound
from hermes_worker.store.runs.writers import RunWriters
from hermes_worker.store.search.finding import FOUND_MAX, FoundMessage, MessageSearch, Search, SearchOrder
from hermes_worker.store.search.reading import (
    SaidMessage,
    SearchRequester,
    SessionReader,
    SessionSummary,
    SessionTexts,
    find_requester,
)

_BOOKENDS: Final = 3
_AROUND: Final = 5
_FIRST, _LAST = 20, 10
"""How many messages of the beginning and of the end `read` shows: the original's numbers, like those above."""
_CHARS_MAX: Final = 1_500
"""Characters of one message; a longer message is cut, and says so."""
_DEMOTED: Final = "cron"


class AgentSessions:
    """``agent.tools.session_search.PastSessions`` of one database. Thread-safe."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._runs = RunWriters(database)

    def discover(self, query: SessionQuery, context: ToolContext) -> Mapping[str, object]:
        """The best match of each conversation that has one; one that is called like the query comes first."""
        reader = self._build_reader(context)
        reading = SessionTexts(self._database, reader)
        own = self._find_own(reading, context)
        wanted = MessageSearch(
            text=query.text,
            roles=query.roles,
            order=SearchOrder(query.sort or SearchOrder.HITS.value),
            limit=FOUND_MAX,
            without_sessions=own,
            principal=reader.principal,
        )
        result = Search(self._database, reader.tenant).find(wanted)
        titled = reading.find_by_title(query.text)
        titled = None if titled is None or titled.pk in own else titled
        also = {titled.pk} if titled is not None else set()
        roots = reading.find_roots({each.session_pk for each in result.found} | also)
        named = {roots[pk] for pk in also}
        found = [each for each in _keep_first_of_each_line(result.found, roots) if roots[each.session_pk] not in named]
        found = found[: query.limit - (titled is not None)]
        places = reading.load_sessions([each.session_pk for each in found])
        told = [_render_match(reading, places[each.session_pk], each) for each in found if each.session_pk in places]
        if titled is not None:
            told.insert(0, {**_render_heading(titled), "matched": "title", **_render_edges(reading, titled)})
        return {"mode": "discover", "query": query.text, "results": told, "is_complete": result.is_complete}

    def read(self, session_id: str, context: ToolContext) -> Mapping[str, object]:
        """The first and the last messages of a conversation."""
        reading = SessionTexts(self._database, self._build_reader(context))
        place = _find_place(reading, session_id)
        if place.last_seq <= _FIRST + _LAST:
            shown = reading.list_between(place.pk, 1, place.last_seq)
            return {"mode": "read", **_render_heading(place), "messages": _render_messages(shown)}
        first = reading.list_between(place.pk, 1, _FIRST)
        last = reading.list_between(place.pk, place.last_seq - _LAST + 1, place.last_seq)
        left_out = place.last_seq - _FIRST - _LAST
        return {
            "mode": "read",
            **_render_heading(place),
            "messages": _render_messages(first),
            "left_out": left_out,
            "end": _render_messages(last),
        }

    def scroll(self, session_id: str, around: int, window: int, context: ToolContext) -> Mapping[str, object]:
        """The messages around one. Refused for the conversation that the run is in: its model has read them."""
        reading = SessionTexts(self._database, self._build_reader(context))
        place = _find_place(reading, session_id)
        if place.pk in self._find_own(reading, context):
            raise SessionSearchRefused("That is this conversation, or one that it comes from: read it above.")
        if not 1 <= around <= place.last_seq:
            raise SessionSearchRefused(f"There is no message {around} in {session_id!r}; it has {place.last_seq}.")
        return {"mode": "scroll", **_render_heading(place), **_render_window(reading, place, around, window)}

    def browse(self, limit: int, context: ToolContext) -> Mapping[str, object]:
        """The newest conversations."""
        reading = SessionTexts(self._database, self._build_reader(context))
        found = reading.list_newest(limit, without=self._find_own(reading, context))
        told = [
            {**_render_heading(place), "preview": _render_messages(reading.list_first(place.pk, 1))} for place in found
        ]
        return {"mode": "browse", "results": told}

    def _build_reader(self, context: ToolContext) -> SessionReader:
        """Find out whose conversations the run may read. Raises ``SessionSearchRefused``."""
        what = self._runs.load_writers(context.run_id)
        if MemoryWriter.WEBHOOK in what:
            raise SessionSearchRefused("A run that an event from outside began does not see other conversations.")
        principal = None
        if MemoryWriter.GUEST in what:
            principal = self._find_asker(context).principal
            if principal is None:
                raise SessionSearchRefused("Nobody knows who began this run, so it does not see other conversations.")
        return SessionReader(tenant=context.origin.tenant, principal=principal)

    def _find_own(self, reading: SessionTexts, context: ToolContext) -> frozenset[int]:
        return reading.find_family(self._find_asker(context).session_pk)

    def _find_asker(self, context: ToolContext) -> SearchRequester:
        asker = find_requester(self._database, context.run_id)
        if asker is None:
            raise SessionSearchRefused("This run is gone.")
        return asker


def _find_place(reading: SessionTexts, session_id: str) -> SessionSummary:
    refused = SessionSearchRefused(f"There is no conversation {session_id!r}; take a session_id that was found.")
    if not is_session_id(session_id):
        raise refused
    try:
        return reading.load_session(session_id)
    except SessionNotFound:
        raise refused from None


def _keep_first_of_each_line(found: Iterable[FoundMessage], roots: Mapping[int, int]) -> list[FoundMessage]:
    """Keep the first match of each line of forks; matches in scheduled runs come last."""
    first: dict[int, FoundMessage] = {}
    for each in found:
        first.setdefault(roots.get(each.session_pk, each.session_pk), each)
    return sorted(first.values(), key=lambda each: each.source == _DEMOTED)


def _render_heading(place: SessionSummary) -> dict[str, object]:
    return {
        "session_id": place.session_id,
        "when": place.created_at,
        "title": place.title,
        "model": place.model,
        "message_count": place.last_seq,
    }


def _render_match(reading: SessionTexts, place: SessionSummary, match: FoundMessage) -> dict[str, Any]:
    return {
        **_render_heading(place),
        "source": match.source,
        "matched": match.role.value,
        "match_message_id": match.seq,
        "snippet": match.snippet,
        **_render_edges(reading, place),
        **_render_window(reading, place, match.seq, _AROUND),
    }


def _render_edges(reading: SessionTexts, place: SessionSummary) -> dict[str, object]:
    return {
        "bookend_start": _render_messages(reading.list_first(place.pk, _BOOKENDS)),
        "bookend_end": _render_messages(reading.list_last(place.pk, _BOOKENDS)),
    }


def _render_window(reading: SessionTexts, place: SessionSummary, around: int, size: int) -> dict[str, object]:
    first, last = max(1, around - size), min(place.last_seq, around + size)
    return {
        "messages": _render_messages(reading.list_between(place.pk, first, last), anchor=around),
        "messages_before": first - 1,
        "messages_after": place.last_seq - last,
    }


def _render_messages(said: Iterable[SaidMessage], *, anchor: int | None = None) -> list[dict[str, object]]:
    return [
        {
            "id": each.seq,
            "role": each.role,
            "content": _cut(extract_text(each.body)),
            **({"anchor": True} if each.seq == anchor else {}),
        }
        for each in said
    ]


def _cut(text: str) -> str:
    return text if len(text) <= _CHARS_MAX else f"{text[:_CHARS_MAX]}… [{len(text) - _CHARS_MAX} characters more]"
