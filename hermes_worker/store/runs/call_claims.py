"""Claims on tool calls: the worker that runs the tool, and the worker that asks a model for it, take the same row with
the same UPDATE.

The two differ in which of them is due, in how long the claim lasts, and in what they read with it.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple, Protocol, TypedDict

import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.sql.dml import ReturningUpdate

from hermes_worker.core.effects import AskAuxiliary, CallEffect
from hermes_worker.core.errors import LeaseLost
from hermes_worker.core.replay import Replay
from hermes_worker.core.run import STATE_VERSION, CallStatus, RunStatus, WaitKind
from hermes_worker.store.engine.database import db_now
from hermes_worker.store.engine.prepared import Prepared
from hermes_worker.store.row_keys import HeldCallKey
from hermes_worker.store.rows import LoadedRun, is_suspect, lock_run_after_call
from hermes_worker.store.tables import runs, tool_calls, waits

OVERTIME_S = 30.0
"""Seconds past its time limit after which a claim is taken away: a live worker ends the call long before that."""


_HAS_TASK = (
    sa.select(waits.c.run_pk)
    .where(
        waits.c.run_pk == tool_calls.c.run_pk,
        waits.c.iteration == tool_calls.c.iteration,
        waits.c.position == tool_calls.c.position,
        waits.c.kind == WaitKind.TASK.value,
    )
    .exists()
)
_CAN_BE_UNBEGUN = (tool_calls.c.replay == Replay.ONCE.value) & (tool_calls.c.asks.is_(None) | ~_HAS_TASK)
"""Condition on a ``once`` call that is being claimed: it may still be one that has not begun. A call with a task at a
server may have begun long ago."""


def build_claim_statement(
    effect: type[CallEffect], *read: sa.ColumnElement[Any], lasts_s: sa.ColumnElement[float] | float
) -> ReturningUpdate[Any]:
    """Build the statement that takes a call for ``effect``, for ``lasts_s`` seconds and a little more, and returns
    ``read`` of it. Of any number of workers exactly one gets a row. ``build_claim_values`` are its parameters. A stop
    locks the calls before the run, so one that comes first leaves nothing here to claim."""
    return (
        sa.update(tool_calls)
        .where(
            tool_calls.c.run_pk == sa.select(runs.c.pk).where(runs.c.run_id == sa.bindparam("id")).scalar_subquery(),
            tool_calls.c.iteration == sa.bindparam("iter"),
            tool_calls.c.position == sa.bindparam("pos"),
            tool_calls.c.attempt == sa.bindparam("att"),
            is_suspect(tool_calls) == sa.bindparam("suspect"),
            tool_calls.c.hinted_at.is_not(None),
            tool_calls.c.asks == 1 if effect is AskAuxiliary else sa.func.coalesce(tool_calls.c.asks, 0) == 0,
            sa.select(runs.c.pk)
            .where(
                runs.c.pk == tool_calls.c.run_pk,
                runs.c.status == RunStatus.RUNNING.value,
                runs.c.state_version <= STATE_VERSION,
            )
            .exists(),
        )
        .values(
            status=CallStatus.RUNNING.value,
            lease_token=sa.bindparam("token"),
            unbegun_token=sa.case((_CAN_BE_UNBEGUN, sa.bindparam("token"))),
            lease_owner=sa.bindparam("owner"),
            claimed_at=db_now(),
            deadline_at=db_now() + lasts_s + OVERTIME_S,
            hinted_at=None,
            hints=0,
        )
        .returning(*read)
    )


def build_claim_values(effect: CallEffect, *, token: str, owner: int) -> ClaimValues:
    return {
        "id": effect.run_id,
        "iter": effect.iteration,
        "pos": effect.position,
        "att": effect.attempt,
        "suspect": int(effect.is_suspect),
        "token": token,
        "owner": owner,
    }


class HeldCall(Protocol):
    """A claim on a tool call, to run its tool or to ask a model for it."""

    @property
    def token(self) -> str: ...

    @property
    def run_pk(self) -> int: ...

    @property
    def run_id(self) -> str: ...

    @property
    def iteration(self) -> int: ...

    @property
    def position(self) -> int: ...


class ClaimValues(TypedDict):
    """The parameters of ``build_claim_statement``."""

    id: str
    iter: int
    pos: int
    att: int
    suspect: int
    token: str
    owner: int


class _Position(NamedTuple):
    position: int


IS_HELD: Final = sa.and_(
    tool_calls.c.run_pk == sa.bindparam("run"),
    tool_calls.c.iteration == sa.bindparam("iter"),
    tool_calls.c.position == sa.bindparam("pos"),
    tool_calls.c.lease_token == sa.bindparam("token"),
)
"""The call of a ``HeldCallKey``, as long as its claim was not taken away."""

_LOCK_HELD = Prepared(
    sa.select(tool_calls.c.position).where(IS_HELD).with_for_update(),
    takes=HeldCallKey,
    gives=_Position,
)


def lock_claimed_run(connection: Connection, claim: HeldCall) -> LoadedRun:
    """Lock a claimed call and then its run, and load the run. Raises ``LeaseLost`` when the claim was taken away."""
    if _LOCK_HELD.first(connection, build_held_key(claim)) is None:
        raise lease_lost_error(claim)
    return lock_run_after_call(connection, claim.run_pk)


_begin_call = sa.update(tool_calls).where(IS_HELD).values(unbegun_token=None)
BEGIN_CALL = Prepared(_begin_call, takes=HeldCallKey)
"""A worker executes it immediately before it begins a tool that must not run twice."""
TAKE_UNBEGUN = Prepared(_begin_call.where(tool_calls.c.unbegun_token == sa.bindparam("token")), takes=HeldCallKey)
"""The sweeper executes it in the transaction that takes the claim away. Both statements write the row, so one waits for
the other: a worker that comes second does not find its token, and a sweeper that comes second finds the call begun."""


def build_held_key(claim: HeldCall) -> HeldCallKey:
    """The claimed row, as parameters."""
    return {"run": claim.run_pk, "iter": claim.iteration, "pos": claim.position, "token": claim.token}


def lease_lost_error(claim: HeldCall) -> LeaseLost:
    """Build the error to raise when the claim was taken away."""
    return LeaseLost(
        f"the claim on call {claim.position} of iteration {claim.iteration} of run {claim.run_id!r} was taken over; "
        "what was brought for it was refused"
    )
