"""Ask that a conversation be summarised now, whoever asks: a run of the session that answers nothing else."""

from __future__ import annotations

from hermes_worker.core.principals import Principal
from hermes_worker.services.submission import InvalidSubmission, Submission, accept
from hermes_worker.store.runs.runs import Created
from hermes_worker.store.sessions import Sessions, SessionView
from hermes_worker.wiring import Client

__all__ = ["FOCUS_CHARS_MAX", "compress_session"]

FOCUS_CHARS_MAX = 2_000


def compress_session(
    client: Client, session_id: str, focus: str, principal: Principal, *, source: str = "api", key: str | None = None
) -> tuple[SessionView, Created]:
    """The session, and the run that summarises it, most of all what it says of ``focus``. The run begins when
    the session is free; its answer is the summary, or why there is none. Idempotent under ``key``. It is not announced
    yet.

    Raises ``SessionNotFound``, and as ``services.submission.accept``.
    """
    focus = " ".join(focus.split())
    if len(focus) > FOCUS_CHARS_MAX:
        raise InvalidSubmission("focus", f"the focus has more than {FOCUS_CHARS_MAX:,} characters")
    session = Sessions(client.database, principal.tenant, source).get(session_id)
    submission = Submission(
        input=f"/compress {focus}".strip(),
        compress=focus,
        session_id=session.label.known_to(source),
        model=session.asks_model,
        principal=principal,
        source=source,
        idempotency_key=key,
    )
    return session, accept(client, submission)
