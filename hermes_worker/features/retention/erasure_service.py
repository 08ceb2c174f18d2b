"""Delete a session at its owner's request: at once, whatever the rules of retention say."""

from __future__ import annotations

from hermes_worker.core.errors import HermesError
from hermes_worker.features.retention.erasure_rows import Erasures
from hermes_worker.features.retention.erasure_rules import Person
from hermes_worker.store.runs.runs import SessionActive
from hermes_worker.store.sessions import Sessions
from hermes_worker.wiring import Client

_LAST_STEP = "authors"
"""The last step of an erasure before texts that others may share: those are deleted within the hour."""


class SessionOfChild(HermesError):
    """The session belongs to delegated work, and is deleted with the session that delegated it."""


def delete_session(client: Client, tenant: str, reference: str, *, by: str, source: str = "api") -> str:
    """Delete a session with its runs and the sessions of what they delegated; returns its id. ``source`` is the name
    space of ``reference``. A fork of the session stays.

    Raises ``SessionNotFound``, ``SessionActive`` while a run is at work in it, ``SessionOfChild``, ``ErasureHeld`` and
    ``NotYetErased``; after the last it can be called again.
    """
    sessions = Sessions(client.database, tenant, source)
    view = sessions.get(reference)
    if view.is_of_child:
        raise SessionOfChild("this session belongs to delegated work: delete the session that delegated it")
    person = Person(sessions=(view.label.id,))
    erasures = Erasures(client.database)
    if at_work := erasures.preview_erasure(tenant, person).open_runs:
        raise SessionActive(f"run {at_work[0]!r} is at work in this session, or for it; stop it first")
    sessions.detach_forks(reference)
    erasure = erasures.begin(tenant, person, by=by, takes_shared=True)
    for step in erasures.delete_stepwise(erasure):
        if step == _LAST_STEP:
            break
    erasures.finish(erasure)
    return view.label.id
