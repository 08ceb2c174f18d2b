"""Estimate what a model call cost whose claim is taken away before its reply was written (design D17).

Its request may have been sent, and then it was billed; that cannot be known any more. So it is assumed that one request
was sent: a worker that died between its claim and its request is counted too, and of several requests only the last.
The estimate is booked by the statement that takes the claim away, which is a compare-and-set on the claim's token. One
token belongs to one claim of one attempt of one iteration, so nothing is ever booked twice, however often it is lost.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from hermes_worker.core.budget import to_usd
from hermes_worker.core.compactions import select_visible
from hermes_worker.core.deferred_tools import select_shown_definitions
from hermes_worker.core.messages import Message
from hermes_worker.core.metering import UsageSoFar, estimate_lost_attempt, estimate_lost_cost, estimate_tokens
from hermes_worker.core.pricing import CostStatus, Pricing, Spent
from hermes_worker.core.recovery_state import parse_recovery_state
from hermes_worker.store.engine.prepared import Prepared
from hermes_worker.store.prefixes import load_system_prompt
from hermes_worker.store.row_keys import CallKey, SessionKey
from hermes_worker.store.rows import LoadedRun, RunRow, load_messages
from hermes_worker.store.tables import auxiliary_calls, blobs, sessions


class _Head(NamedTuple):
    system_prompt: str
    tools: str


class _Request(NamedTuple):
    request: str


class AskingCall(Protocol):
    """A row of a call for which a model is asked."""

    @property
    def iteration(self) -> int: ...

    @property
    def position(self) -> int: ...


_HEAD = Prepared(
    sa.select(sessions.c.system_prompt, blobs.c.body.label("tools"))
    .join(blobs, blobs.c.hash == sessions.c.tools_hash)
    .where(sessions.c.pk == sa.bindparam("session")),
    takes=SessionKey,
    gives=_Head,
)


def estimate_lost_call(connection: Connection, loaded: LoadedRun, pricing: Pricing | None) -> Spent:
    """Estimate what the model call claimed in ``loaded`` took: a request as large as the stored transcript, and a reply
    as long as the run's others. Reads only. ``pricing`` says what tokens cost; without it, the run's other calls do."""
    read = estimate_request_tokens(connection, loaded.session_pk, loaded.message_seq)
    usage = estimate_lost_attempt(read, loaded.usual)
    priced = pricing(loaded.model, _read_provider_position(loaded.run.memory), usage) if pricing is not None else None
    return Spent(usage=usage, cost=estimate_lost_cost(usage, priced, loaded.usual))


_REQUEST = Prepared(
    sa.select(auxiliary_calls.c.request)
    .where(
        auxiliary_calls.c.run_pk == sa.bindparam("run"),
        auxiliary_calls.c.iteration == sa.bindparam("iter"),
        auxiliary_calls.c.position == sa.bindparam("pos"),
        auxiliary_calls.c.answered_at.is_(None),
    )
    .order_by(auxiliary_calls.c.number)
    .limit(1),
    takes=CallKey,
    gives=_Request,
)


def estimate_lost_auxiliary(connection: Connection, loaded: LoadedRun, position: int, pricing: Pricing | None) -> Spent:
    """Estimate what the auxiliary call claimed for the tool call at ``position`` took: its request is stored, and its
    answer is taken to be as long as the run's replies, at the price of the run's own model. Reads only."""
    asked = _REQUEST.first(connection, {"run": loaded.pk, "iter": loaded.run.iteration, "pos": position})
    usage = estimate_lost_attempt(estimate_tokens((asked.request,)) if asked is not None else 0, loaded.usual)
    priced = pricing(loaded.model, 0, usage) if pricing is not None else None
    return Spent(usage=usage, cost=estimate_lost_cost(usage, priced, loaded.usual))


def estimate_lost_auxiliary_bare(connection: Connection, row: RunRow, call: AskingCall) -> Spent:
    """Estimate a lost auxiliary call of a run whose rows make no sense, from the bare rows of run and call."""
    try:
        asked = _REQUEST.first(connection, {"run": row.pk, "iter": call.iteration, "pos": call.position})
    except ValueError:
        asked = None
    usual = _average_usage(row)
    usage = estimate_lost_attempt(estimate_tokens((asked.request,)) if asked is not None else 0, usual)
    return Spent(usage=usage, cost=estimate_lost_cost(usage, None, usual))


def estimate_lost_call_bare(connection: Connection, row: RunRow) -> Spent:
    """Estimate a lost model call of a run whose rows make no sense, from its bare row of ``RUN_COLUMNS``."""
    try:
        read = estimate_request_tokens(connection, row.session_pk, row.message_seq)
    except (ValueError, LookupError, TypeError, AttributeError):
        read = 0
    usual = _average_usage(row)
    usage = estimate_lost_attempt(read, usual)
    return Spent(usage=usage, cost=estimate_lost_cost(usage, None, usual))


def _average_usage(row: RunRow) -> UsageSoFar:
    return UsageSoFar(
        replies=row.iteration,
        output_tokens=row.output_tokens,
        tokens=int(row.tokens),
        usd=to_usd(row.cost_nano_usd),
        cost_status=CostStatus.UNKNOWN if row.cost_status else None,
    )


def estimate_request_tokens(connection: Connection, session_pk: int, message_seq: int) -> int:
    """Estimate the tokens of the request that is built from a session's rows up to ``message_seq``."""
    head = _HEAD.one(connection, {"session": session_pk})
    rows = load_messages(connection, session_pk, 1, message_seq)
    prompt = head.system_prompt or load_system_prompt(connection, session_pk)
    return estimate_tokens((prompt, select_shown_definitions(head.tools))) + estimate_tokens(
        row.body for row in _select_visible_rows(rows)
    )


def _select_visible_rows(rows: list[Message]) -> list[Message]:
    try:
        return list(select_visible(rows))
    except (ValueError, LookupError, TypeError):
        return rows  # a row makes no sense; what was sent is unknown, but not larger than all


def _read_provider_position(memory: str | None) -> int:
    """The position in the chain of fallbacks of the provider that was asked; 0 when it cannot be read."""
    try:
        return parse_recovery_state(memory).provider
    except ValueError:
        return 0
