"""Select the rows of a person, a session or a tenant: what an export writes and an erasure deletes.

The unit is a whole conversation: a session with all chains of runs that are in it, and a chain with all sessions that
it is in. So the selection is followed in both directions until nothing is added.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple, TypeVar

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from hermes_worker.features.retention.erasure_rules import ErasureReceipt, HashedPerson, Person
from hermes_worker.features.retention.fact_rows import is_in_chains
from hermes_worker.store.engine.prepared import fetch_rows, select_columns
from hermes_worker.store.tables import (
    allowed_patterns,
    api_keys,
    artifact_gatherings,
    artifacts,
    auxiliary_calls,
    budgets,
    channels,
    chat_people,
    chats,
    dead_targets,
    deleted_responses,
    deliveries,
    events,
    firings,
    hook_calls,
    idempotency_keys,
    inbound,
    inbound_files,
    jobs,
    kept_answers,
    known_chats,
    mcp_servers,
    memory_versions,
    messages,
    page_logins,
    parked_on_keys,
    principals,
    processes,
    resources,
    run_inputs,
    run_tags,
    runs,
    saved_filters,
    search_due,
    search_rows,
    session_documents,
    sessions,
    steers,
    tool_calls,
    tool_sources,
    tree_events,
    waits,
    webhook_events,
)
from hermes_worker.store.whole_schema import list_owned_tables

_ID = re.compile(r"run_[0-9a-f]{32}")
T = TypeVar("T")
AT_ONCE = 500
"""Row ids in one statement."""
BY_RUN: Sequence[sa.Column[Any]] = (
    runs.c.pk,
    run_inputs.c.run_pk,
    run_tags.c.run_pk,
    tool_calls.c.run_pk,
    auxiliary_calls.c.run_pk,
    waits.c.run_pk,
    steers.c.run_pk,
    events.c.run_pk,
    tree_events.c.run_pk,
    hook_calls.c.run_pk,
    idempotency_keys.c.run_pk,
    budgets.c.root_pk,
    deleted_responses.c.run_pk,
    artifact_gatherings.c.run_pk,
    inbound_files.c.run_pk,
    artifacts.c.run_pk,
    parked_on_keys.c.run_pk,
    processes.c.run_pk,
)
BY_SESSION: Sequence[sa.Column[Any]] = (
    sessions.c.pk,
    session_documents.c.session_pk,
    messages.c.session_pk,
    resources.c.session_pk,
    search_rows.c.session_pk,
    search_due.c.session_pk,
)
OF_TENANT: Sequence[sa.Table] = (
    webhook_events,
    idempotency_keys,
    kept_answers,
    allowed_patterns,
    dead_targets,
    tool_sources,
    mcp_servers,
    memory_versions,
    page_logins,
    saved_filters,
    inbound,
    chats,
    known_chats,
    chat_people,
    channels,
    api_keys,
    principals,
)
"""Tables whose rows belong to a tenant and to no person. ``api_keys`` are deleted before ``principals``."""


def list_tenant_tables() -> list[sa.Table]:
    """List the tables whose rows belong to a tenant and to no person: those of the kernel, then those of features."""
    return [*OF_TENANT, *list_owned_tables("tenant")]


class _OwnedRoot(NamedTuple):
    pk: int
    principal: str | None


class _AskedTarget(NamedTuple):
    pk: int
    root_pk: int | None
    deliver: str | None


class _OwnedJob(NamedTuple):
    pk: int
    job_id: str
    definition: str


class _KeptAnswer(NamedTuple):
    principal: str
    key: str
    operation: str
    body: str | None


class _NamedSession(NamedTuple):
    source: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectedRows:
    """Rows of a tenant by their row ids, each in order."""

    tenant: str
    person: Person
    sessions: tuple[int, ...] = ()
    roots: tuple[int, ...] = ()
    """The first runs of chains."""
    jobs: tuple[int, ...] = ()
    holders: tuple[int, ...] = ()
    """Rows of ``principals``."""
    shared: int = 0
    """Chains that other principals submitted in the same sessions."""
    authors: tuple[str, ...] = field(default=())
    """The principals under which the person answered, stopped and approved runs of others."""


def select_rows(connection: Connection, tenant: str, person: Person) -> SelectedRows:
    """Select the rows of a person. Raises ``NobodyNamed``."""
    person.require_named()
    own_jobs = _find_jobs(connection, tenant, person)
    first = _find_named_sessions(connection, tenant, person)
    asked = _find_roots(connection, tenant, person, own_jobs)
    found, roots = _extend_selection(connection, tenant, first, asked)
    attached = _find_attached_jobs(connection, tenant, found)
    if new := attached - own_jobs:
        own_jobs |= new
        found, roots = _extend_selection(connection, tenant, found, roots | _find_roots_of_jobs(connection, own_jobs))
    return SelectedRows(
        tenant=tenant,
        person=person,
        sessions=tuple(sorted(found)),
        roots=tuple(sorted(roots)),
        jobs=tuple(sorted(own_jobs)),
        holders=tuple(_find_holders(connection, tenant, person)),
        shared=_count_shared(connection, person, roots - asked, first),
        authors=tuple(_list_authors(connection, tenant, person)),
    )


def find_person_again(connection: Connection, receipt: ErasureReceipt) -> Person:
    """Find the person a receipt was about, as far as their names are in this database (again)."""
    tenant, hashes = receipt.tenant, receipt.person
    named = sa.select(sessions.c.source, sessions.c.name).where(
        sessions.c.tenant == tenant, sessions.c.name.is_not(None)
    )
    asked = sa.select(runs.c.principal).where(runs.c.tenant == tenant, runs.c.principal.is_not(None)).distinct()
    held = sa.select(principals.c.name).where(principals.c.tenant == tenant)
    return Person(
        sessions=receipt.sessions,
        named=tuple(
            (row.source, row.name)
            for row in fetch_rows(connection.execute(named), _NamedSession)
            if hashes.has_name("named", row.source, row.name)
        ),
        principals=_match_hashes(hashes, "principal", connection.execute(asked).scalars()),
        holders=_match_hashes(hashes, "holder", connection.execute(held).scalars()),
        targets=_match_hashes(hashes, "target", load_targets(connection, tenant)),
        is_everybody=hashes.is_everybody,
    )


def _match_hashes(hashes: HashedPerson, kind: str, names: Iterable[str | None]) -> tuple[str, ...]:
    return tuple(sorted({name for name in names if name is not None and hashes.has_name(kind, name)}))


def load_targets(connection: Connection, tenant: str) -> set[str]:
    """Load every address to which something of a tenant was, is or will be sent."""
    sent = sa.select(deliveries.c.target).where(deliveries.c.tenant == tenant).distinct()
    wanted = sa.select(runs.c.deliver).where(runs.c.tenant == tenant, runs.c.deliver.is_not(None)).distinct()
    found = set(connection.execute(sent).scalars())
    found |= set(connection.execute(sa.select(dead_targets.c.key).where(dead_targets.c.tenant == tenant)).scalars())
    for text in connection.execute(wanted).scalars():
        found |= set(json.loads(text or "[]"))
    for row in _list_live_jobs(connection, tenant):
        found |= _parse_targets(row.definition)
    return found


# --- numbers ---------------------------------------------------------------------------------------------------------


def split_into_parts(values: Iterable[T]) -> Iterator[list[T]]:
    """Split values into lists that one statement takes."""
    rest = iter(values)
    while part := list(islice(rest, AT_ONCE)):
        yield part


def collect_row_ids(
    connection: Connection, wanted: Iterable[int], statement: Callable[[list[int]], sa.Select[Any]]
) -> set[int]:
    """Collect the row ids that ``statement`` finds for all of ``wanted``, part by part."""
    return {int(each) for part in split_into_parts(wanted) for each in connection.execute(statement(part)).scalars()}


_root = sa.func.coalesce(runs.c.root_pk, runs.c.pk)


def list_runs(connection: Connection, roots: Iterable[int]) -> list[int]:
    """List the row ids of all runs of these chains, in order."""
    return sorted(collect_row_ids(connection, roots, lambda part: sa.select(runs.c.pk).where(is_in_chains(part))))


def _extend_selection(
    connection: Connection, tenant: str, first: set[int], asked: set[int]
) -> tuple[set[int], set[int]]:
    """Extend sessions and roots by everything that they lead to."""
    found, roots = set(first), set(asked)
    fresh_sessions, fresh_roots = set(first), set(asked)
    while fresh_sessions or fresh_roots:
        fresh_sessions |= (forks := _find_forks(connection, tenant, fresh_sessions) - found)
        found |= forks
        within = collect_row_ids(
            connection, fresh_roots, lambda part: sa.select(runs.c.session_pk).where(is_in_chains(part)).distinct()
        )
        fresh_sessions |= within - found
        found |= within
        leads = collect_row_ids(
            connection,
            fresh_sessions,
            lambda part: sa.select(_root).where(runs.c.session_pk.in_(part), runs.c.tenant == tenant).distinct(),
        )
        leads |= _find_retries(connection, tenant, fresh_roots | leads)
        fresh_sessions, fresh_roots = set(), leads - roots
        roots |= leads
    return found, roots


def _find_retries(connection: Connection, tenant: str, roots: set[int]) -> set[int]:
    """Find chains that repeat submissions of these chains: they contain the same input."""
    return collect_row_ids(
        connection,
        list_runs(connection, roots),
        lambda part: sa.select(_root).where(runs.c.retry_of_pk.in_(part), runs.c.tenant == tenant),
    )


def _find_forks(connection: Connection, tenant: str, originals: set[int]) -> set[int]:
    """Find sessions that began with a copy of these sessions' transcripts."""
    found: set[int] = set()
    for part in split_into_parts(originals):
        ids = connection.execute(sa.select(sessions.c.session_id).where(sessions.c.pk.in_(part))).scalars().all()
        is_fork = sa.and_(sessions.c.tenant == tenant, sessions.c.forked_from.in_(ids))
        found |= set(connection.execute(sa.select(sessions.c.pk).where(is_fork)).scalars())
    return found


# --- what was named --------------------------------------------------------------------------------------------------


def _find_named_sessions(connection: Connection, tenant: str, person: Person) -> set[int]:
    ours = sessions.c.tenant == tenant
    if person.is_everybody:
        return set(connection.execute(sa.select(sessions.c.pk).where(ours)).scalars())
    named = [sa.and_(sessions.c.source == source, sessions.c.name == name) for source, name in person.named]
    found: set[int] = set()
    for first in range(0, len(person.sessions), AT_ONCE):
        part = sessions.c.session_id.in_(person.sessions[first : first + AT_ONCE])
        found |= set(connection.execute(sa.select(sessions.c.pk).where(ours, part)).scalars())
    if named:
        found |= set(connection.execute(sa.select(sessions.c.pk).where(ours, sa.or_(*named))).scalars())
    return found


def _find_roots(connection: Connection, tenant: str, person: Person, own_jobs: set[int]) -> set[int]:
    """Find chains that the person submitted, whose answers go to the person, or that the person's jobs began."""
    if person.is_everybody:
        every = sa.select(_root).where(runs.c.tenant == tenant).distinct()
        return set(connection.execute(every).scalars())
    found = _find_roots_of_jobs(connection, own_jobs)
    if person.principals or person.holders:
        asked: list[sa.ColumnElement[bool]] = [runs.c.principal.in_(person.principals)]
        asked += [runs.c.principal.startswith(f"api:{holder}/", autoescape=True) for holder in person.holders]
        found |= set(connection.execute(sa.select(_root).where(runs.c.tenant == tenant, sa.or_(*asked))).scalars())
    if person.targets:
        sent = sa.select(_root).join(deliveries, deliveries.c.run_pk == runs.c.pk)
        sent = sent.where(deliveries.c.tenant == tenant, deliveries.c.target.in_(person.targets))
        found |= set(connection.execute(sent).scalars())
        wanted = sa.select(*select_columns(runs, _AskedTarget)).where(
            runs.c.tenant == tenant, runs.c.deliver.is_not(None)
        )
        for row in fetch_rows(connection.execute(wanted), _AskedTarget):
            if not set(person.targets).isdisjoint(json.loads(row.deliver or "[]")):
                found.add(row.root_pk or row.pk)
    return found


def _find_roots_of_jobs(connection: Connection, own_jobs: Iterable[int]) -> set[int]:
    return collect_row_ids(
        connection,
        own_jobs,
        lambda part: sa.select(_root).join(firings, firings.c.run_pk == runs.c.pk).where(firings.c.job_pk.in_(part)),
    )


def _count_shared(connection: Connection, person: Person, others: set[int], named: set[int]) -> int:
    """Count how many of these chains other principals submitted, in sessions that were not named themselves."""
    if person.is_everybody:
        return 0
    shared = 0
    for part in split_into_parts(others):
        wanted = sa.select(*select_columns(runs, _OwnedRoot)).where(runs.c.pk.in_(part))
        wanted = wanted.where(runs.c.session_pk.not_in(named)) if named else wanted
        rows = fetch_rows(connection.execute(wanted), _OwnedRoot)
        shared += sum(row.principal is not None and not person.is_principal(row.principal) for row in rows)
    return shared


# --- jobs and holders ------------------------------------------------------------------------------------------------


def _list_live_jobs(connection: Connection, tenant: str) -> list[_OwnedJob]:
    wanted = sa.select(*select_columns(jobs, _OwnedJob)).where(jobs.c.tenant == tenant)
    return fetch_rows(connection.execute(wanted), _OwnedJob)


def _parse_targets(definition: str) -> set[str]:
    """The addresses to which a job's answers go, including the chat that it came from."""
    read = json.loads(definition)
    origin = read.get("origin") or {}
    found = {str(each) for each in read.get("deliver") or ()}
    if origin.get("platform") and origin.get("chat_id"):
        found.add(f"{origin['platform']}:{origin['chat_id']}")
    return found


def _find_jobs(connection: Connection, tenant: str, person: Person) -> set[int]:
    rows = _list_live_jobs(connection, tenant) if person.is_everybody or person.targets else []
    if person.is_everybody:
        return {row.pk for row in rows}
    return {row.pk for row in rows if not _parse_targets(row.definition).isdisjoint(person.targets)}


def _find_attached_jobs(connection: Connection, tenant: str, found: set[int]) -> set[int]:
    """Find jobs that write their answers into these sessions."""
    ids: set[str] = set()
    for part in split_into_parts(found):
        ids |= set(connection.execute(sa.select(sessions.c.session_id).where(sessions.c.pk.in_(part))).scalars())
    rows = _list_live_jobs(connection, tenant) if ids else []
    return {row.pk for row in rows if json.loads(row.definition).get("attach_to") in ids}


def _find_holders(connection: Connection, tenant: str, person: Person) -> list[int]:
    ours = sa.select(principals.c.pk).where(principals.c.tenant == tenant).order_by(principals.c.pk)
    if not person.is_everybody:
        ours = ours.where(principals.c.name.in_(person.holders))
    return [int(pk) for pk in connection.execute(ours).scalars()]


def _list_authors(connection: Connection, tenant: str, person: Person) -> list[str]:
    """List the principals under which the person acted; empty for a whole tenant, of which no rows of others are
    left."""
    if person.is_everybody or not (person.principals or person.holders):
        return []
    keys = sa.select(api_keys.c.key_id).where(api_keys.c.tenant == tenant)
    known = set(connection.execute(keys).scalars()) if person.holders else set()
    asked = sa.select(runs.c.principal).where(runs.c.tenant == tenant, runs.c.principal.is_not(None)).distinct()
    names = {name for name in connection.execute(asked).scalars() if person.is_principal(name)}
    names |= {f"api:{holder}/{key_id}" for holder in person.holders for key_id in known}
    return sorted(names | set(person.principals))


def build_answer_conditions(connection: Connection, selected: SelectedRows) -> list[sa.ColumnElement[bool]]:
    """Build conditions for the stored answers of the API that the person received, and those that mention the person's
    runs and sessions."""
    ours = set(_iterate_ids(connection, runs.c.run_id, list_runs(connection, selected.roots)))
    ours |= set(_iterate_ids(connection, sessions.c.session_id, selected.sessions))
    wanted = sa.select(*select_columns(kept_answers, _KeptAnswer)).where(kept_answers.c.tenant == selected.tenant)
    found = []
    for row in fetch_rows(connection.execute(wanted), _KeptAnswer):
        named = _ID.findall(row.operation) + _ID.findall(row.body or "")
        if row.principal in selected.authors or not ours.isdisjoint(named):
            this = sa.and_(kept_answers.c.principal == row.principal, kept_answers.c.key == row.key)
            found.append(sa.and_(kept_answers.c.tenant == selected.tenant, this))
    return found


def build_memory_conditions(connection: Connection, selected: SelectedRows) -> Iterator[sa.ColumnElement[bool]]:
    """Yield conditions, each for one statement, for the memories that the person's runs wrote, and those that the
    person wrote; no version is in two of them."""
    ours = memory_versions.c.tenant == selected.tenant
    run_ids = list(_iterate_ids(connection, runs.c.run_id, list_runs(connection, selected.roots)))
    for part in split_into_parts(range(len(run_ids))):
        yield sa.and_(ours, memory_versions.c.run_id.in_([run_ids[each] for each in part]))
    if selected.authors:
        yield sa.and_(ours, memory_versions.c.run_id.is_(None), memory_versions.c.author.in_(selected.authors))


def build_upload_condition(selected: SelectedRows) -> sa.ColumnElement[bool]:
    """Build the condition for the files that the person uploaded, or anybody of the tenant."""
    ours = sa.and_(artifacts.c.tenant == selected.tenant, artifacts.c.run_pk.is_(None))
    if selected.person.is_everybody:
        return ours
    of_holders = [
        artifacts.c.principal.startswith(f"api:{holder}/", autoescape=True) for holder in selected.person.holders
    ]
    return sa.and_(ours, sa.or_(artifacts.c.principal.in_(selected.person.principals), *of_holders))


def build_filter_conditions(selected: SelectedRows) -> Iterator[sa.ColumnElement[bool]]:
    """Yield conditions, each for one statement, for the filters that holders of keys saved."""
    ours = saved_filters.c.tenant == selected.tenant
    for part in split_into_parts(sorted(f"api:{holder}" for holder in selected.person.holders)):
        yield ours & saved_filters.c.holder.in_(part)


def _iterate_ids(connection: Connection, column: sa.Column[str], pks: Iterable[int]) -> Iterator[str]:
    for part in split_into_parts(pks):
        yield from connection.execute(sa.select(column).where(column.table.c.pk.in_(part))).scalars()
