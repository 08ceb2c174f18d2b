"""Export everything of a person, a session or a tenant, row by row."""

from __future__ import annotations

import base64
import itertools
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from hermes_worker.features.retention.erasure_rules import Person
from hermes_worker.features.retention.selection_rows import (
    AT_ONCE,
    BY_RUN,
    BY_SESSION,
    SelectedRows,
    build_answer_conditions,
    build_filter_conditions,
    build_memory_conditions,
    build_upload_condition,
    list_runs,
    list_tenant_tables,
    select_rows,
    split_into_parts,
)
from hermes_worker.store.artifacts.contents import ContentStore, RowContents
from hermes_worker.store.engine.database import Database
from hermes_worker.store.tables import (
    api_keys,
    artifacts,
    audit_log,
    blobs,
    dead_targets,
    deliveries,
    firings,
    jobs,
    kept_answers,
    memory_versions,
    messages,
    page_logins,
    principals,
    saved_filters,
)
from hermes_worker.store.whole_schema import list_owned_tables

_NOT_EXPORTED = frozenset({"lease_token", "lease_owner", "erasure_pk"})
"""Columns that are no data of the person: claims of workers, and our own marks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedRow:
    """A row. ``kind`` is its table."""

    kind: str
    row: Mapping[str, object]

    def to_json(self) -> str:
        return json.dumps({"kind": self.kind, "row": dict(self.row)}, ensure_ascii=False, default=str)


def iterate_conditions(
    connection: Connection, selected: SelectedRows
) -> Iterator[tuple[sa.Table, sa.ColumnElement[bool]]]:
    """Yield which rows belong to a selection, as tables with conditions that one statement takes. No row is in two of
    them."""
    for column in (*BY_RUN, *(table.c.run_pk for table in list_owned_tables("run_pk"))):
        for part in split_into_parts(list_runs(connection, selected.roots)):
            yield column.table, column.in_(part)
    for column in (*BY_SESSION, *(table.c.session_pk for table in list_owned_tables("session_pk"))):
        for part in split_into_parts(selected.sessions):
            yield column.table, column.in_(part)
    for part in split_into_parts(selected.jobs):
        yield jobs, jobs.c.pk.in_(part)
    yield from _iterate_firings_and_deliveries(connection, selected)
    yield artifacts, build_upload_condition(selected)
    if selected.person.is_everybody:
        for table in list_tenant_tables():
            ours = table.c.tenant == selected.tenant
            yield table, sa.and_(ours, table.c.run_pk.is_(None)) if "run_pk" in table.c else ours
        return
    for this in build_answer_conditions(connection, selected):
        yield kept_answers, this
    for this in build_memory_conditions(connection, selected):
        yield memory_versions, this
    for part in split_into_parts(selected.holders):
        held = sa.select(api_keys.c.key_id).where(api_keys.c.principal_pk.in_(part))
        yield page_logins, page_logins.c.key_id.in_(held)
        yield api_keys, api_keys.c.principal_pk.in_(part)
        yield principals, principals.c.pk.in_(part)
    for this in build_filter_conditions(selected):
        yield saved_filters, this
    if selected.person.targets:
        marked = dead_targets.c.key.in_(selected.person.targets)
        yield dead_targets, sa.and_(dead_targets.c.tenant == selected.tenant, marked)


def _iterate_firings_and_deliveries(
    connection: Connection, selected: SelectedRows
) -> Iterator[tuple[sa.Table, sa.ColumnElement[bool]]]:
    """Yield the conditions for firings and deliveries, which name a run, a job, or both."""
    for table in (firings, deliveries):
        for part in split_into_parts(selected.jobs):
            yield table, table.c.job_pk.in_(part)
        of_others = [table.c.job_pk.not_in(part) for part in split_into_parts(selected.jobs)]
        is_others = sa.or_(table.c.job_pk.is_(None), sa.and_(sa.true(), *of_others))
        for part in split_into_parts(list_runs(connection, selected.roots)):
            yield table, sa.and_(table.c.run_pk.in_(part), is_others)


def count_rows(connection: Connection, selected: SelectedRows) -> Counter[str]:
    """Count the rows of each table that belong to a selection; ``blobs`` are those that their messages and artifacts
    name."""
    found: Counter[str] = Counter()
    for table, where in iterate_conditions(connection, selected):
        found[table.name] += connection.execute(sa.select(sa.func.count()).select_from(table).where(where)).scalar_one()
    for wanted in itertools.chain(*_select_contents(connection, selected)):
        found["blobs"] += connection.execute(sa.select(sa.func.count()).select_from(wanted.subquery())).scalar_one()
    return +found


def _select_contents(
    connection: Connection, selected: SelectedRows
) -> tuple[list[sa.Select[Any]], list[sa.Select[Any]]]:
    """Build the statements for the hashes of long texts of messages, and those for the hashes of the files that their
    runs left and that they uploaded; no hash is twice in one statement."""
    texts = [messages.c.session_pk.in_(part) for part in split_into_parts(selected.sessions)]
    files = [artifacts.c.run_pk.in_(part) for part in split_into_parts(list_runs(connection, selected.roots))]
    return (
        [sa.select(messages.c.blob_hash).where(which, messages.c.blob_hash.is_not(None)).distinct() for which in texts],
        [
            sa.select(artifacts.c.blob_hash).where(which, artifacts.c.blob_hash.is_not(None)).distinct()
            for which in (*files, build_upload_condition(selected))
        ],
    )


def export_rows(
    database: Database, tenant: str, person: Person, contents: ContentStore | None = None
) -> Iterator[ExportedRow]:
    """Yield every row, from one snapshot, in an order in which a row comes before those that name it. Raises
    ``NobodyNamed``."""
    with database.snapshot() as connection:
        selected = select_rows(connection, tenant, person)
        for table, where in iterate_conditions(connection, selected):
            told = [each for each in table.columns if each.name not in _NOT_EXPORTED and "is_secret" not in each.info]
            wanted = sa.select(*told).where(where).order_by(*table.primary_key.columns)
            for row in connection.execution_options(yield_per=AT_ONCE).execute(wanted).mappings():
                yield ExportedRow(kind=table.name, row=dict(row))
        yield from _export_blobs(connection, selected, contents or RowContents(database))
        yield from _export_audit(connection, selected)


def _export_audit(connection: Connection, selected: SelectedRows) -> Iterator[ExportedRow]:
    """Yield the rows of the audit log about what the person did. They are no part of an erasure: the log cannot be
    changed, and its rows are deleted by their own rule."""
    theirs = audit_log.c.tenant == selected.tenant
    if not selected.person.is_everybody:
        theirs = sa.and_(theirs, audit_log.c.actor.in_(selected.authors))
    for row in connection.execute(sa.select(audit_log).where(theirs).order_by(audit_log.c.pk)).mappings():
        yield ExportedRow(kind=audit_log.name, row=dict(row))


def _export_blobs(connection: Connection, selected: SelectedRows, contents: ContentStore) -> Iterator[ExportedRow]:
    """Long texts of messages, and the files that runs left, as Base64."""
    told: set[str] = set()
    texts, files = _select_contents(connection, selected)
    for wanted in (*texts, *files):
        for digest in connection.execute(wanted).scalars().all():
            if digest not in told:
                told.add(digest)
                body = connection.execute(sa.select(blobs.c.body).where(blobs.c.hash == digest)).scalar_one()
                if any(wanted is each for each in files):
                    body = base64.b64encode(contents.load(selected.tenant, digest, body)).decode()
                yield ExportedRow(kind=blobs.name, row={"hash": digest, "body": body})
