"""Import a conversation from elsewhere as a session (``core.session_imports``)."""

from __future__ import annotations

import time

from hermes_worker.core.principals import Principal
from hermes_worker.core.session_imports import ImportedSession, InvalidImport, parse_session
from hermes_worker.core.titles import number_title
from hermes_worker.services.submission import InvalidSubmission, Submission, prepare_run
from hermes_worker.store.sessions import SessionOrigin, Sessions, SessionView, TitleTaken
from hermes_worker.wiring import Client

_TITLES_TRIED = 20


def import_session(client: Client, principal: Principal, document: object, *, source: str = "api") -> SessionView:
    """Import ``document`` as a session. A title that another session has gets a number. Raises ``InvalidImport``, and
    ``SessionExists`` where a session has its name: importing twice makes one session."""
    found = parse_session(document, now=time.time())
    first = Submission(
        input="-", session_id=found.name, history=found.rows, model=found.model, principal=principal, source=source
    )
    try:
        new = prepare_run(client, first)
    except InvalidSubmission as error:
        raise InvalidImport(str(error)) from None
    is_whole = len(new.spec.history) == len(found.rows)
    origin = SessionOrigin(
        parent=found.parent,
        ended_at=found.ended_at,
        end_reason=found.end_reason,
        moments=found.moments if is_whole else (),
    )
    sessions = Sessions(client.database, principal.tenant, source)
    for title in _propose_titles(found):
        try:
            return sessions.open(new, title=title, model=None, origin=origin)
        except TitleTaken:
            continue
    return sessions.open(new, title=None, model=None, origin=origin)


def _propose_titles(found: ImportedSession) -> list[str | None]:
    if found.title is None:
        return [None]
    return [found.title, *(number_title(found.title, number) for number in range(2, _TITLES_TRIED))]
