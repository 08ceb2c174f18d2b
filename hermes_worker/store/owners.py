"""The tenant of rows: the base of the stores that read one tenant's, and conditions and values of statements."""

from __future__ import annotations

import sqlalchemy as sa

from hermes_worker.core.principals import DEFAULT_TENANT
from hermes_worker.store.engine.database import Database
from hermes_worker.store.tables import OF_OTHERS, jobs, runs


class TenantRows:
    """The statements about rows of one kind that belong to one tenant."""

    def __init__(self, database: Database, tenant: str = DEFAULT_TENANT) -> None:
        self.database = database
        self.tenant = tenant


class SourceRows(TenantRows):
    """Statements that resolve names of sessions as callers from one source mean them."""

    def __init__(self, database: Database, tenant: str = DEFAULT_TENANT, source: str = "api") -> None:
        super().__init__(database, tenant)
        self.source = source


def is_of_tenant(tenant: str, table: sa.Table) -> sa.ColumnElement[bool]:
    """Condition that a row belongs to a tenant. For other tenants than the default one it is spelled as in the partial
    indexes, so that these are used; the default tenant's rows need no index to be found."""
    if tenant == DEFAULT_TENANT:
        return table.c.tenant == tenant
    return sa.and_(sa.literal_column(f"{table.name}.{OF_OTHERS}", sa.Boolean()), table.c.tenant == tenant)


def select_tenant_of_run(run_pk: int) -> sa.ScalarSelect[str]:
    """Select the tenant of a run, for a row that belongs to the run."""
    return sa.select(runs.c.tenant).where(runs.c.pk == run_pk).scalar_subquery()


def select_tenant_of_job(job_pk: int) -> sa.ScalarSelect[str]:
    """Select the tenant of a job, for a row that belongs to the job."""
    return sa.select(jobs.c.tenant).where(jobs.c.pk == job_pk).scalar_subquery()
