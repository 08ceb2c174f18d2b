"""What was submitted, as stored."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from hermes_worker.core.messages import Message, Role, user_body
from hermes_worker.core.spec import RunSpec
from hermes_worker.store.tables import run_inputs

_READ_SPEC = sa.select(run_inputs.c.spec).where(run_inputs.c.run_pk == sa.bindparam("run_pk"))


def read_spec(connection: Connection, run_pk: int) -> RunSpec:
    """Raises ``ValueError`` when the stored text is not a spec."""
    return RunSpec.from_json(connection.execute(_READ_SPEC, {"run_pk": run_pk}).scalar_one())


def user_message(spec: RunSpec, seq: int) -> Message:
    content = spec.input if isinstance(spec.input, str) else [dict(part) for part in spec.input]
    return Message(seq=seq, role=Role.USER, body=user_body(content))
