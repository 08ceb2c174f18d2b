"""List runs by status, tag, session, job, parent, source, model, time, cost and text, page by page, the newest first.

A page begins below a row id, so new runs move nothing. Which runs are on the page is decided from as few columns as
that takes; only these runs are read whole. A page costs at most ``LOOKED_AT_MAX`` rows, whatever is asked for and
however many runs there are: when too few of them match, the page ends early and says where to go on. A search for a
text reads the texts of at most ``READ_MAX`` runs (``store.search.run_texts``), and looks at up to ``LOOKED_AT_MAX``
rows for each ``_READ_AT_ONCE`` of them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from hermes_worker.core.forks import FORK_KEY, ForkTerms
from hermes_worker.core.principals import DEFAULT_TENANT
from hermes_worker.core.run import TERMINAL, RunKind, RunStatus
from hermes_worker.core.run_views import RunView, UndeliveredView
from hermes_worker.core.search_queries import parse_query
from hermes_worker.core.spec import SPECIFIED, BeganWith, RunNotes, RunSpec
from hermes_worker.store.engine.database import RowStore
from hermes_worker.store.engine.prepared import fetch_row, fetch_rows
from hermes_worker.store.outbox.deliveries import list_undelivered
from hermes_worker.store.owners import is_of_tenant
from hermes_worker.store.prefixes import load_system_prompt
from hermes_worker.store.runs.inputs import load_spec
from hermes_worker.store.runs.runs import find_run, session_is
from hermes_worker.store.runs.views import has_kind, load_views
from hermes_worker.store.search.index_queue import is_searchable
from hermes_worker.store.search.index_repair import call_with_repair
from hermes_worker.store.search.run_texts import find_matching_runs, find_runs_to_read
from hermes_worker.store.tables import RUN_IS_OPEN, firings, jobs, run_tags, runs, session_documents, sessions

LOOKED_AT_MAX = 20_000
"""Rows that one page looks at."""
READ_MAX = 1_000
"""Runs of which one page reads the texts."""
_READ_AT_ONCE = 200
_CLOCK_SLACK_S = 600.0
"""Row ids are drawn when a transaction writes a run, so their order is that of creation times up to this many
seconds."""
_NEAR = 512
"""When a row id and a time are at most this many rows apart, the search for the row id stops."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFilter:
    """Selects runs: a run matches when every condition given here holds."""

    tenant: str = DEFAULT_TENANT
    source: str = "api"
    """The source whose session names ``session_id`` means."""
    statuses: Collection[RunStatus] = ()
    kinds: Collection[RunKind] = ()
    tags: Sequence[str] = ()
    """The run has each of these tags."""
    session_id: str | None = None
    job_id: str | None = None
    model: str | None = None
    origin: str | None = None
    """The kind of source that the first run of their chain came from (``core.sources``)."""
    parent: str | None = None
    """A run id: the runs are its children, or runs that answers of its background children began."""
    created_after: float | None = None
    """Epoch seconds, inclusive."""
    created_before: float | None = None
    """Epoch seconds, exclusive."""
    cost_usd_min: float | None = None
    cost_usd_max: float | None = None
    """Bounds on the known cost of the run itself, in US dollars, both inclusive."""
    text: str | None = None
    """The input or the answer of the run matches this query (``core.search_queries.parse_query``)."""

    @property
    def is_plain(self) -> bool:
        """No condition narrows the list beyond the tenant, or one session."""
        others = (
            self.job_id,
            self.model,
            self.origin,
            self.parent,
            self.created_after,
            self.created_before,
            self.cost_usd_min,
            self.cost_usd_max,
            self.text,
        )
        return not self.statuses and not self.kinds and not self.tags and all(value is None for value in others)


class FoundRun(NamedTuple):
    """The row id and the id of a run."""

    pk: int
    run_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPage:
    """One page of a list of runs."""

    views: Sequence[RunView]
    below: int | None
    """The row id below which the next page begins; ``None`` when this is the last page."""


class Listing(RowStore):
    """Lists the runs of one database. Thread-safe; reads only."""

    def list_page(
        self, wanted: RunFilter, *, limit: int = 50, below: int | None = None, before: str | None = None
    ) -> RunPage:
        """Load one page. ``below`` is the row id at which the page before ended, ``before`` the id of the run that
        ended it. Raises ``RunNotFound`` for an unknown ``before``, and ``UnavailableError``."""
        return call_with_repair(self.database, partial(self._load_page, wanted, limit, below, before))

    def _load_page(self, wanted: RunFilter, limit: int, below: int | None, before: str | None) -> RunPage:
        with self.database.read() as connection:
            if before is not None:
                below = find_run(connection, before, wanted.tenant)
            if wanted.is_plain:
                return _load_plain_page(connection, wanted, limit=limit, below=below)
            if wanted.text is not None:
                is_indexed = is_searchable(self.database)
                found, next_below = _find_by_text(connection, wanted, limit=limit, below=below, is_indexed=is_indexed)
            else:
                found, next_below = find_runs(connection, wanted, limit=limit, below=below)
            pks = [row.pk for row in found]
            shown = load_views(connection, runs.c.pk.in_(pks), limit=limit) if pks else {}
            return RunPage(views=_complete_views(connection, shown), below=next_below)

    def list_undelivered(self, run_id: str) -> Sequence[UndeliveredView]:
        """List what a run said and did not arrive. Raises ``RunNotFound``."""
        with self.database.read() as connection:
            pk = find_run(connection, run_id)
            return list_undelivered(connection, [pk]).get(pk, ())

    def load_notes(self, run_id: str) -> RunNotes:
        """Load the notes on a run. Raises ``RunNotFound``."""
        with self.database.read() as connection:
            pk = find_run(connection, run_id)
            # A run whose input cannot be read is shown all the same.
            spec = _find_spec(connection, pk) or RunSpec(input="", model="")
            tags, repeated = load_tags(connection, [pk]), load_repeated(connection, [pk])
            session_pk, forked = connection.execute(_LOAD_FORK.where(runs.c.pk == pk)).one()
            prompt = load_system_prompt(connection, int(session_pk))
        fork = None if forked is None else ForkTerms.from_json(forked)
        return RunNotes(
            tags=tags.get(pk, ()),
            **{name: getattr(spec, name) for name in _NOTED},
            retry_of=repeated.get(pk),
            forked_from=None if fork is None else fork.run_id,
            fork_step=None if fork is None else fork.step,
            began_with=BeganWith(
                **{name: getattr(spec, name) for name in _RECORDED},
                prompt=hashlib.sha256(prompt.encode("utf-8", "surrogatepass")).hexdigest(),
            ),
        )


def _find_spec(connection: Connection, pk: int) -> RunSpec | None:
    try:
        return load_spec(connection, pk)
    except ValueError:
        return None


# The session of a fork has the id of the run that began it; later runs there are no forks.
_LOAD_FORK = (
    sa.select(runs.c.session_pk, session_documents.c.body)
    .join(sessions, sessions.c.pk == runs.c.session_pk)
    .outerjoin(
        session_documents,
        sa.and_(
            session_documents.c.session_pk == sessions.c.pk,
            session_documents.c.key == FORK_KEY,
            sessions.c.session_id == runs.c.run_id,
        ),
    )
)
_NOTED = SPECIFIED & {each.name for each in fields(RunNotes)} - {"tags"}  # tags stand in rows
_RECORDED = SPECIFIED & {each.name for each in fields(BeganWith)}
"""Fields that a run's spec has under the same name."""


def _load_plain_page(connection: Connection, wanted: RunFilter, *, limit: int, below: int | None) -> RunPage:
    """Load a page whose rows stand together in an index, so that they are read whole at once."""
    conditions = [is_of_tenant(wanted.tenant, runs)]
    if wanted.session_id is not None:
        conditions.append(runs.c.session_pk == _select_session(wanted, wanted.session_id))
    if below is not None:
        conditions.append(runs.c.pk < below)
    shown = load_views(connection, *conditions, limit=limit + 1)
    has_more = len(shown) > limit
    if has_more:
        shown.popitem()
    return RunPage(views=_complete_views(connection, shown), below=min(shown) if has_more else None)


def _find_by_text(
    connection: Connection, wanted: RunFilter, *, limit: int, below: int | None, is_indexed: bool
) -> tuple[list[FoundRun], int | None]:
    """Find runs whose texts match ``wanted.text``, newest first, and where to go on, if there may be more."""
    query = parse_query(wanted.text or "")
    if query is None:
        return [], None
    only = find_runs_to_read(connection, wanted.tenant, query) if is_indexed else None
    found: list[FoundRun] = []
    for _ in range(0, READ_MAX, _READ_AT_ONCE):
        if only is None:
            rows, below = find_runs(connection, wanted, limit=_READ_AT_ONCE, below=below)
        else:
            left = [pk for pk in only if below is None or pk < below]
            portion = left[:_READ_AT_ONCE]
            rows, _ = find_runs(connection, wanted, limit=_READ_AT_ONCE, below=below, only=portion)
            below = portion[-1] if len(left) > len(portion) else None
        those = find_matching_runs(connection, query, [row.pk for row in rows])
        found += [row for row in rows if row.pk in those]
        if len(found) > limit:
            return found[:limit], found[limit - 1].pk
        if below is None:
            return found, None
    return found, below


def find_runs(
    connection: Connection,
    wanted: RunFilter,
    *,
    limit: int,
    below: int | None = None,
    only: Collection[int] | None = None,
) -> tuple[list[FoundRun], int | None]:
    """Find up to ``limit`` runs, newest first, and where to go on, if there may be more. ``wanted.text`` is ignored.
    ``only`` restricts the result to these row ids, unless it is ``None``."""
    candidates = _select_candidates(connection, wanted, below)
    among = (candidates if only is None else candidates.where(runs.c.pk.in_(only))).subquery()
    conditions = _build_conditions(wanted, among)
    statement = sa.select(among.c.pk, among.c.run_id).order_by(among.c.pk.desc()).limit(limit + 1)
    found = fetch_rows(connection.execute(statement.where(*conditions)), FoundRun)
    if len(found) > limit:
        return found[:limit], found[limit - 1].pk
    if not conditions:
        return found, None
    # Fewer than ``limit``: either there are no more, or the look stopped at ``LOOKED_AT_MAX``.
    count, last = connection.execute(sa.select(sa.func.count(), sa.func.min(among.c.pk))).one()
    return found, int(last) if count == LOOKED_AT_MAX else None


_LOOKED_AT = (
    *(
        runs.c[name]
        for name in (
            *("pk", "run_id", "status", "session_pk", "parent_pk", "cause_pk", "model", "origin"),
            *("created_at", "cost_nano_usd"),
        )
    ),
    sa.func.coalesce(runs.c.parent_pk, runs.c.cause_pk).label("began_by_pk"),
)


def _select_candidates(connection: Connection, wanted: RunFilter, below: int | None) -> sa.Select[Any]:
    """Select the newest ``LOOKED_AT_MAX`` runs from the index that fits the filter."""
    pk, statement = _choose_index(wanted)
    if below is not None:
        statement = statement.where(pk < below)
    for at, is_after in ((wanted.created_after, True), (wanted.created_before, False)):
        if at is not None:
            bound = find_pk_near(connection, at, is_after=is_after)
            statement = statement.where(pk >= bound if is_after else pk <= bound)
    return statement.order_by(pk.desc()).limit(LOOKED_AT_MAX)


def _choose_index(wanted: RunFilter) -> tuple[sa.ColumnElement[int], sa.Select[Any]]:
    statement = sa.select(*_LOOKED_AT).where(is_of_tenant(wanted.tenant, runs))
    if wanted.job_id is not None:
        of_job = sa.select(jobs.c.pk).where(jobs.c.job_id == wanted.job_id, jobs.c.tenant == wanted.tenant)
        statement = statement.join(firings, firings.c.run_pk == runs.c.pk)
        return firings.c.run_pk, statement.where(firings.c.job_pk == of_job.scalar_subquery())
    if wanted.parent is not None:
        named = sa.select(sa.func.coalesce(_parents.c.root_pk, _parents.c.pk)).where(_build_parent_condition(wanted))
        return runs.c.pk, statement.where(runs.c.root_pk == named.scalar_subquery())
    if wanted.tags:
        statement = statement.join(run_tags, run_tags.c.run_pk == runs.c.pk)
        return run_tags.c.run_pk, statement.where(run_tags.c.tenant == wanted.tenant, run_tags.c.tag == wanted.tags[0])
    if wanted.session_id is not None:
        return runs.c.pk, statement.where(runs.c.session_pk == _select_session(wanted, wanted.session_id))
    if wanted.statuses and TERMINAL.isdisjoint(wanted.statuses):
        return runs.c.pk, statement.where(RUN_IS_OPEN)
    return runs.c.pk, statement


_parents = runs.alias("parents")


def _build_parent_condition(wanted: RunFilter) -> sa.ColumnElement[bool]:
    return sa.and_(_parents.c.run_id == wanted.parent, _parents.c.tenant == wanted.tenant)


def _select_session(wanted: RunFilter, session_id: str) -> sa.ScalarSelect[int]:
    named = sa.select(sessions.c.pk).where(session_is(wanted.tenant, wanted.source, session_id))
    return named.scalar_subquery()


def _build_conditions(wanted: RunFilter, among: sa.Subquery) -> list[sa.ColumnElement[bool]]:
    """Build the conditions that the index does not cover, on the columns of a candidate row."""
    row = among.c
    found: list[sa.ColumnElement[bool]] = []
    if wanted.statuses:
        found.append(row.status.in_(sorted(status.value for status in wanted.statuses)))
    goes_by_other = wanted.job_id is not None or wanted.parent is not None
    if wanted.session_id is not None and (wanted.tags or goes_by_other):
        found.append(row.session_pk == _select_session(wanted, wanted.session_id))
    if wanted.kinds:
        found.append(has_kind(row, wanted.kinds))
    if wanted.parent is not None:
        named = sa.select(_parents.c.pk).where(_build_parent_condition(wanted))
        found.append(row.began_by_pk == named.scalar_subquery())
    for tag in wanted.tags if goes_by_other else wanted.tags[1:]:
        found.append(sa.exists().where(run_tags.c.run_pk == row.pk, run_tags.c.tag == tag))
    if wanted.model is not None:
        found.append(row.model == wanted.model)
    if wanted.origin is not None:
        found.append(row.origin == wanted.origin)
    if wanted.created_after is not None:
        found.append(row.created_at >= wanted.created_after)
    if wanted.created_before is not None:
        found.append(row.created_at < wanted.created_before)
    if wanted.cost_usd_min is not None:
        found.append(row.cost_nano_usd >= round(wanted.cost_usd_min * 1e9))
    if wanted.cost_usd_max is not None:
        found.append(row.cost_nano_usd <= round(wanted.cost_usd_max * 1e9))
    return found


class _Made(NamedTuple):
    pk: int
    created_at: float


def find_pk_near(connection: Connection, at: float, *, is_after: bool) -> int:
    """Find a row id near the first run that was created at time ``at``: never above it with ``is_after``, else never
    below it. There is no index on times, and none is needed: row ids grow with them."""
    at += -_CLOCK_SLACK_S if is_after else _CLOCK_SLACK_S
    low, high = 0, int(connection.execute(sa.select(sa.func.coalesce(sa.func.max(runs.c.pk), 0))).scalar_one()) + 1
    while high - low > _NEAR:
        middle = (low + high) // 2
        row = fetch_row(connection.execute(_FROM, {"pk": middle}), _Made)
        if row is None or row.created_at >= at:
            high = middle
        else:
            low = row.pk
    return low if is_after else high


_FROM = sa.select(runs.c.pk, runs.c.created_at).where(runs.c.pk >= sa.bindparam("pk")).order_by(runs.c.pk).limit(1)


def _complete_views(connection: Connection, shown: Mapping[int, tuple[RunView, int | None]]) -> list[RunView]:
    """Add what stands in other rows (tags, the repeated run, how many were delegated, what did not arrive) to the
    views, and keep their order."""
    if not shown:
        return []
    tags = load_tags(connection, list(shown))
    repeated = load_repeated(connection, [pk for pk, (_, repeats) in shown.items() if repeats is not None])
    count = sa.select(runs.c.root_pk, sa.func.count()).where(runs.c.root_pk.in_(shown), runs.c.parent_pk.is_not(None))
    delegated = {int(root): int(number) for root, number in connection.execute(count.group_by(runs.c.root_pk))}
    undelivered = list_undelivered(connection, list(shown))
    return [
        replace(
            view.with_tags(tags.get(pk, ())),
            retry_of=repeated.get(pk),
            delegated=delegated.get(pk, 0),
            undelivered=undelivered.get(pk, ()),
        )
        for pk, (view, _) in shown.items()
    ]


def load_tags(connection: Connection, pks: Sequence[int]) -> Mapping[int, Sequence[str]]:
    """Load the tags of those runs that have any, by row id."""
    rows = connection.execute(
        sa.select(run_tags.c.run_pk, run_tags.c.tag).where(run_tags.c.run_pk.in_(pks)).order_by(run_tags.c.tag)
    )
    found: dict[int, list[str]] = {}
    for pk, tag in rows:
        found.setdefault(int(pk), []).append(tag)
    return found


def load_repeated(connection: Connection, pks: Sequence[int]) -> Mapping[int, str]:
    """Load the ids of the runs that these runs repeat, where those still exist, by row id."""
    if not pks:
        return {}
    first = runs.alias("first")
    rows = connection.execute(
        sa.select(runs.c.pk, first.c.run_id)
        .join(first, first.c.pk == runs.c.retry_of_pk)
        .where(runs.c.pk.in_(pks), runs.c.retry_of_pk.is_not(None))
    )
    return {int(pk): run_id for pk, run_id in rows}
