"""The content of a message that came with files, put together when its run begins.

A file that is not fetched by then is given up in the same transaction: a download that never ends holds up no run, and
the worker that still fetches it finds its claim gone.
"""

from __future__ import annotations

import json
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from hermes_worker.core.inbound_files import (
    FileOutcome,
    FileState,
    MessageContent,
    SentFile,
    build_content,
    parse_reference,
)
from hermes_worker.core.media_kinds import MediaKind
from hermes_worker.safety.untrusted import wrap_untrusted
from hermes_worker.store.engine.database import db_now
from hermes_worker.store.engine.prepared import fetch_rows
from hermes_worker.store.tables import blobs, inbound_files

TOOK_TOO_LONG = FileOutcome(reason="it could not be fetched in time")


class _FileRow(NamedTuple):
    reference: str
    outcome: str | None
    picture: str | None


def load_content(connection: Connection, run_pk: int, said: MessageContent) -> MessageContent:
    """Return what was said, with the outcome of each file that came with it. The caller begins the run in this
    transaction."""
    ours = inbound_files.c.run_pk == run_pk
    open_still = ours & inbound_files.c.state.in_((FileState.PENDING.value, FileState.RUNNING.value))
    connection.execute(
        sa.update(inbound_files)
        .where(open_still)
        .values(
            state=FileState.REFUSED.value,
            outcome=TOOK_TOO_LONG.to_json(),
            settled_at=db_now(),
            hinted_at=None,
            lease_token=None,
            lease_owner=None,
        )
    )
    wanted = (
        sa.select(inbound_files.c.reference, inbound_files.c.outcome, blobs.c.body.label("picture"))
        .outerjoin(blobs, blobs.c.hash == inbound_files.c.picture_hash)
        .where(ours)
        .order_by(inbound_files.c.pk)
    )
    files = [_to_sent_file(row) for row in fetch_rows(connection.execute(wanted), _FileRow)]
    # The transcript has the pictures from now on.
    named = sa.select(inbound_files.c.picture_hash).where(ours, inbound_files.c.picture_hash.is_not(None))
    connection.execute(sa.update(blobs).where(blobs.c.hash.in_(named)).values(released_at=db_now()))
    connection.execute(sa.update(inbound_files).where(ours).values(picture_hash=None))
    return build_content(said, files, [_quote_words(file) for file in files]) if files else said


def _to_sent_file(row: _FileRow) -> SentFile:
    outcome = TOOK_TOO_LONG if row.outcome is None else FileOutcome.from_json(row.outcome)
    return SentFile(media=parse_reference(row.reference), outcome=outcome, picture=row.picture or "")


def _quote_words(file: SentFile) -> str:
    """The words of a sound file. A voice message holds its sender's words; other sound files may hold anybody's, and
    their words are marked as untrusted."""
    heard = file.outcome.heard
    if not heard or file.media.kind is MediaKind.VOICE:
        return json.dumps(heard, ensure_ascii=False) if heard else ""
    return wrap_untrusted(heard, "sound file").text
