"""The stored submissions of runs, and the message with which each begins."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple, TypedDict

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from hermes_worker.core.compactions import build_request_body
from hermes_worker.core.errors import HermesError
from hermes_worker.core.inbound_files import (
    FileOutcome,
    FileState,
    MessageContent,
    SentFile,
    build_content,
    parse_reference,
)
from hermes_worker.core.media_kinds import MediaKind
from hermes_worker.core.messages import Message, Role, build_user_body
from hermes_worker.core.spec import RunSpec
from hermes_worker.core.structured_output import build_schema_request
from hermes_worker.core.titles import build_run_title
from hermes_worker.safety.redaction import redact
from hermes_worker.safety.untrusted import wrap_untrusted
from hermes_worker.store.engine.database import db_now
from hermes_worker.store.engine.prepared import Prepared, fetch_rows
from hermes_worker.store.engine.stored_texts import make_storable
from hermes_worker.store.row_keys import RunKey
from hermes_worker.store.tables import blobs, inbound_files, run_inputs

TOOK_TOO_LONG = FileOutcome(reason="it could not be fetched in time")


class _SpecRow(NamedTuple):
    spec: str


class InputValues(TypedDict):
    """The columns of a submission."""

    spec: str
    title: str | None


class _NewSpec(InputValues):
    run_pk: int


_READ_SPEC = Prepared(
    sa.select(run_inputs.c.spec).where(run_inputs.c.run_pk == sa.bindparam("run")), takes=RunKey, gives=_SpecRow
)
_INSERT_SPEC = Prepared(
    sa.insert(run_inputs).values(**{name: sa.bindparam(name) for name in ("run_pk", "spec", "title")}), takes=_NewSpec
)


class _FileRow(NamedTuple):
    reference: str
    outcome: str | None
    picture: str | None


class CorruptInput(HermesError):
    """The stored input of a run is missing or makes no sense."""


def build_input_values(spec: RunSpec) -> InputValues:
    """Build the columns of a submission. Its title stands beside it, so that a list of runs reads no inputs."""
    title = build_run_title(spec, redact)
    return {"spec": spec.to_json(), "title": title and make_storable(title)}


def insert_specs(connection: Connection, specs: Iterable[tuple[int, RunSpec]]) -> None:
    """Store the submissions of new runs, each with its row id."""
    _INSERT_SPEC.run_each(connection, [{"run_pk": pk, **build_input_values(spec)} for pk, spec in specs])


def update_spec(connection: Connection, run_pk: int, spec: RunSpec) -> None:
    """Replace the submission of a run that has not begun. The caller's transaction holds the row of its session."""
    connection.execute(sa.update(run_inputs).where(run_inputs.c.run_pk == run_pk).values(**build_input_values(spec)))


def build_first_message(spec: RunSpec, seq: int) -> Message:
    """Build the user's message with which a run begins, for place ``seq`` of the transcript."""
    if spec.compress is not None:
        return Message(seq=seq, role=Role.USER, body=build_request_body(spec.compress))
    content = spec.input if isinstance(spec.input, str) else [dict(part) for part in spec.input]
    if spec.output_schema is not None:
        asked = build_schema_request(spec.output_schema)
        content = f"{content}\n\n{asked}" if isinstance(content, str) else [*content, {"type": "text", "text": asked}]
    return Message(seq=seq, role=Role.USER, body=build_user_body(content))


def load_spec(connection: Connection, run_pk: int) -> RunSpec:
    """Load the submission of a run. Raises ``ValueError`` when it is missing or unreadable."""
    row = _READ_SPEC.first(connection, {"run": run_pk})
    if row is None:
        raise ValueError("there is none")
    return RunSpec.from_json(row.spec)


def require_spec(connection: Connection, run_pk: int) -> RunSpec:
    """Load the submission of a run. Raises ``CorruptInput`` when it is missing or unreadable."""
    try:
        return load_spec(connection, run_pk)
    except (ValueError, TypeError) as error:
        raise _corrupt_input_error(run_pk, error) from error


def load_opening_messages(connection: Connection, run_pk: int, seq: int) -> Sequence[Message]:
    """Load the user's message with which the run begins, for place ``seq``; none for a run that goes on where the
    transcript ends, whose input is an empty list. Raises ``CorruptInput``."""
    spec = require_spec(connection, run_pk)
    try:
        if spec.files is not None:
            spec = replace(spec, input=load_content(connection, run_pk, spec.input))
            update_spec(connection, run_pk, spec)  # a later repetition of the run has no files any more
        return [build_first_message(spec, seq)] if spec.input != [] else []
    except (ValueError, TypeError) as error:
        raise _corrupt_input_error(run_pk, error) from error


def load_content(connection: Connection, run_pk: int, said: MessageContent) -> MessageContent:
    """Return what was said, with the outcome of each file that came with it. The caller begins the run in this
    transaction: a file that is not fetched by then is given up, so that a download that never ends holds up no run, and
    the worker that still fetches it finds its claim gone."""
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


def _corrupt_input_error(run_pk: int, error: Exception) -> CorruptInput:
    return CorruptInput(f"the stored input of run number {run_pk} cannot be read: {error}")
