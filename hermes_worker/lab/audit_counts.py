"""What was counted, against what happened: tokens, money and tool calls, and reservations at rest."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from hermes_worker.lab.findings import AuditFinding, BrokenInvariant
from hermes_worker.store.engine.sealing import coalesce_texts
from hermes_worker.store.tables import blobs, budgets, messages, run_inputs, runs, tool_calls

Usage = Mapping[tuple[str, int], set[tuple[int, int]]]
"""The provider's own count (``ScriptedServer.usage``)."""

_CERTAIN = runs.c.input_tokens + runs.c.cache_read_tokens + runs.c.cache_write_tokens + runs.c.output_tokens
_CHARGED = _CERTAIN + runs.c.unknown_input_tokens + runs.c.unknown_output_tokens
_COST = runs.c.cost_nano_usd + runs.c.doubtful_nano_usd
_NANO = 1_000
"""A US dollar for a million tokens is so many billionths for one."""


def check_counts(connection: Connection, usage: Usage, prices_usd: tuple[int, int]) -> list[AuditFinding]:
    """Check every count. ``usage`` is empty for a provider that is not the lab's."""
    return [
        _find_tokens_off(connection, usage),
        _find_bills_off(connection, prices_usd if usage else None),
        _find_calls_off(connection),
        _find_budgets_off(connection),
        _find_reservations_kept(connection),
        _find_lost_requests_free(connection),
    ]


def _find_tokens_off(connection: Connection, usage: Usage) -> AuditFinding:
    """The tokens of a run are those that the provider counted for its replies, each once."""
    broken = BrokenInvariant()
    replies = _count_replies(connection)
    wanted = sa.select(runs.c.pk, runs.c.run_id, _CERTAIN.label("tokens"), run_inputs.c.spec)
    wanted = wanted.join(run_inputs, run_inputs.c.run_pk == runs.c.pk)
    rows = connection.execute(wanted.where(runs.c.status == "completed")) if usage else ()
    for row in rows:
        asked = str(json.loads(row.spec)["input"])
        places = [[*map(sum, _find_used(usage, asked, number))] for number in range(replies[row.pk])]
        if not all(places):
            continue  # the provider saw another question, as a request for a summary
        least, most = sum(map(min, places)), sum(map(max, places))
        if not least <= row.tokens <= most:
            broken.add(f"{row.run_id}: {row.tokens} tokens in its row, and its provider counted {least}")
    return broken.make_finding("tokens that the provider did not count")


def _find_used(usage: Usage, asked: str, number: int) -> Iterable[tuple[int, int]]:
    if (asked, number) in usage:
        return usage[asked, number]
    # The loop may put more into the user's row than was asked.
    return next((used for (text, place), used in usage.items() if place == number and asked in text), ())


def _find_bills_off(connection: Connection, prices_usd: tuple[int, int] | None) -> AuditFinding:
    """The cost of a run is its tokens at their price, where that is known."""
    broken = BrokenInvariant()
    if prices_usd is None:
        return broken.make_finding("bills that do not add up")
    read = runs.c.input_tokens + runs.c.cache_read_tokens + runs.c.cache_write_tokens
    priced = read * prices_usd[0] * _NANO + runs.c.output_tokens * prices_usd[1] * _NANO
    wanted = sa.select(runs.c.run_id, runs.c.cost_nano_usd, priced.label("priced"))
    for row in connection.execute(wanted.where(runs.c.cost_nano_usd != priced, runs.c.unpriced_calls == 0)):
        broken.add(f"{row.run_id}: {row.cost_nano_usd} billionths of a dollar, and its tokens cost {row.priced}")
    return broken.make_finding("bills that do not add up")


def _find_calls_off(connection: Connection) -> AuditFinding:
    """Each call of a reply has one row, and each row stands in a reply."""
    broken = BrokenInvariant()
    asked: Counter[int] = Counter()
    for run_pk, body in _read_replies(connection):
        asked[run_pk] += len(body.get("tool_calls") or ())
    rows = sa.select(tool_calls.c.run_pk, sa.func.count().label("total")).group_by(tool_calls.c.run_pk)
    kept = {row.run_pk: int(row.total) for row in connection.execute(rows)}
    for run_pk in asked.keys() | kept.keys():
        if asked[run_pk] != kept.get(run_pk, 0):
            broken.add(f"run {run_pk}: its replies hold {asked[run_pk]} calls, and {kept.get(run_pk, 0)} have a row")
    return broken.make_finding("tool calls that no reply asked for")


def _find_budgets_off(connection: Connection) -> AuditFinding:
    """The spending of a budget is the usage of the runs that draw from it."""
    broken = BrokenInvariant()
    root = sa.case((runs.c.has_budget == 1, sa.func.coalesce(runs.c.root_pk, runs.c.pk)), else_=runs.c.pk)
    calls = sa.select(sa.func.count()).where(tool_calls.c.run_pk == runs.c.pk).scalar_subquery()
    used = {
        row.root_pk: (row.iterations, row.tokens, row.nano_usd, row.calls)
        for row in connection.execute(
            sa.select(
                root.label("root_pk"),
                sa.func.sum(runs.c.iteration - runs.c.refunds).label("iterations"),
                sa.func.sum(_CHARGED).label("tokens"),
                sa.func.sum(_COST).label("nano_usd"),
                sa.func.sum(calls).label("calls"),
            )
            .where(runs.c.has_budget > 0)
            .group_by(root)
        )
    }
    for row in connection.execute(sa.select(budgets)):
        spent = (row.iterations_spent, row.tokens_spent, row.nano_usd_spent, row.tool_calls_spent)
        mine = tuple(int(amount) for amount in used.get(row.root_pk, spent))
        if spent != mine:
            broken.add(f"budget {row.root_pk}: {spent} iterations, tokens, cost and calls, and its runs used {mine}")
    return broken.make_finding("budgets that do not add up")


def _find_reservations_kept(connection: Connection) -> AuditFinding:
    """What is reserved is what claims hold at this moment: nothing, at rest."""
    broken = BrokenInvariant()
    root = sa.case((runs.c.has_budget == 1, sa.func.coalesce(runs.c.root_pk, runs.c.pk)), else_=runs.c.pk)
    held = {
        row.root_pk: (int(row.turns), int(row.tokens or 0), int(row.nano_usd or 0))
        for row in connection.execute(
            sa.select(
                root.label("root_pk"),
                sa.func.count().label("turns"),
                sa.func.sum(runs.c.reserved_tokens).label("tokens"),
                sa.func.sum(runs.c.reserved_nano_usd).label("nano_usd"),
            )
            .where(runs.c.is_reserved == 1, runs.c.lease_token.is_not(None))
            .group_by(root)
        )
    }
    for row in connection.execute(sa.select(budgets)):
        reserved = (row.iterations_reserved, row.tokens_reserved, row.nano_usd_reserved)
        if reserved != held.get(row.root_pk, (0, 0, 0)):
            broken.add(f"budget {row.root_pk}: {reserved} reserved, and claims hold {held.get(row.root_pk, (0, 0, 0))}")
    return broken.make_finding("reservations that nobody holds")


def _find_lost_requests_free(connection: Connection) -> AuditFinding:
    """A request of unknown outcome may have been billed, so its tokens are estimated and booked."""
    broken = BrokenInvariant()
    lost = sa.select(runs.c.run_id, runs.c.unknown_attempts).where(runs.c.unknown_attempts > 0)
    for row in connection.execute(lost.where(runs.c.unknown_input_tokens == 0)):
        broken.add(f"{row.run_id}: {row.unknown_attempts} requests of unknown outcome, and none of their tokens booked")
    return broken.make_finding("requests of unknown outcome for nothing")


def _count_replies(connection: Connection) -> Counter[int]:
    return Counter(run_pk for run_pk, _ in _read_replies(connection))


def _read_replies(connection: Connection) -> Iterable[tuple[int, dict[str, Any]]]:
    rows = connection.execute(
        sa.select(messages.c.run_pk, coalesce_texts(messages.c.body, blobs.c.body).label("body"))
        .select_from(messages.outerjoin(blobs, blobs.c.hash == messages.c.blob_hash))
        .where(messages.c.role == "assistant", messages.c.run_pk != 0)
    )
    return [(row.run_pk, json.loads(row.body)) for row in rows]
