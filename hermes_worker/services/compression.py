"""Summarise a conversation now: a run of the session that does nothing else."""

from __future__ import annotations

from hermes_worker.core.principals import Principal
from hermes_worker.core.spec import FOCUS_CHARS_MAX
from hermes_worker.services.submission import InvalidSubmission, Submission, accept
from hermes_worker.store.runs.runs import Created
from hermes_worker.store.sessions import Sessions, SessionView
from hermes_worker.wiring import Client

__all__ = ["compress_session"]


def compress_session(
    client: Client, session_id: str, focus: str, principal: Principal, *, source: str = "api", key: str | None = None
) -> tuple[SessionView, Created]:
    """Accept a run that summarises the session, above all what concerns ``focus``; returns the session and the run. The
    run begins when the session is free; its answer is the summary, or the reason why there is none. Idempotent under
    ``key``. Not announced.

    Raises ``SessionNotFound``, and as ``services.submission.accept``.
    """
    focus = " ".join(focus.split())
    if len(focus) > FOCUS_CHARS_MAX:
        raise InvalidSubmission("focus", f"the focus has more than {FOCUS_CHARS_MAX:,} characters")
    session = Sessions(client.database, principal.tenant, source).get(session_id)
    submission = Submission(
        input=f"/compress {focus}".strip(),
        compress=focus,
        session_id=session.label.choose_reference(source),
        model=session.asks_model,
        principal=principal,
        source=source,
        idempotency_key=key,
    )
    return session, accept(client, submission)
