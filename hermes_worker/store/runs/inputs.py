"""The stored submissions of runs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple, TypedDict

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from hermes_worker.core.compactions import build_request_body
from hermes_worker.core.errors import HermesError
from hermes_worker.core.messages import Message, Role, build_user_body
from hermes_worker.core.spec import RunSpec
from hermes_worker.core.structured_output import build_schema_request
from hermes_worker.store.engine.prepared import Prepared
from hermes_worker.store.row_keys import RunKey
from hermes_worker.store.runs.file_parts import load_content
from hermes_worker.store.tables import run_inputs


class _SpecRow(NamedTuple):
    spec: str


class _NewSpec(TypedDict):
    run_pk: int
    spec: str


_READ_SPEC = Prepared(
    sa.select(run_inputs.c.spec).where(run_inputs.c.run_pk == sa.bindparam("run")), takes=RunKey, gives=_SpecRow
)
_INSERT_SPEC = Prepared(
    sa.insert(run_inputs).values(run_pk=sa.bindparam("run_pk"), spec=sa.bindparam("spec")), takes=_NewSpec
)


class CorruptInput(HermesError):
    """The stored input of a run is missing or makes no sense."""


def insert_specs(connection: Connection, specs: Iterable[tuple[int, RunSpec]]) -> None:
    """Store the submissions of new runs, each with its row id."""
    _INSERT_SPEC.run_each(connection, [{"run_pk": pk, "spec": spec.to_json()} for pk, spec in specs])


def update_spec(connection: Connection, run_pk: int, spec: RunSpec) -> None:
    """Replace the submission of a run that has not begun. The caller's transaction holds the row of its session."""
    connection.execute(sa.update(run_inputs).where(run_inputs.c.run_pk == run_pk).values(spec=spec.to_json()))


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


def load_opening_message(connection: Connection, run_pk: int, seq: int) -> Message:
    """Load the user's message with which the run begins, for place ``seq``. Raises ``CorruptInput``."""
    spec = require_spec(connection, run_pk)
    try:
        if spec.files is not None:
            spec = replace(spec, input=load_content(connection, run_pk, spec.input))
            update_spec(connection, run_pk, spec)  # a later repetition of the run has no files any more
        return build_first_message(spec, seq)
    except (ValueError, TypeError) as error:
        raise _corrupt_input_error(run_pk, error) from error


def _corrupt_input_error(run_pk: int, error: Exception) -> CorruptInput:
    return CorruptInput(f"the stored input of run number {run_pk} cannot be read: {error}")
