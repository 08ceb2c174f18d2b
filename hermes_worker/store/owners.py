"""Whose rows they are, as conditions and values of statements."""

from __future__ import annotations

import sqlalchemy as sa

from hermes_worker.core.principals import DEFAULT_TENANT
from hermes_worker.store.tables import OF_OTHERS, jobs, runs


def owned_by(tenant: str, table: sa.Table) -> sa.ColumnElement[bool]:
    """The rows of a tenant. That they are not the default one's is spelled as in the partial indexes, so that these
    are used; in a table of the default tenant's rows its own need none."""
    if tenant == DEFAULT_TENANT:
        return table.c.tenant == tenant
    return sa.and_(sa.literal_column(f"{table.name}.{OF_OTHERS}", sa.Boolean()), table.c.tenant == tenant)


def tenant_of_run(run_pk: int) -> sa.ScalarSelect[str]:
    """To be written into a row that belongs to a run."""
    return sa.select(runs.c.tenant).where(runs.c.pk == run_pk).scalar_subquery()


def tenant_of_job(job_pk: int) -> sa.ScalarSelect[str]:
    """To be written into a row that belongs to a job."""
    return sa.select(jobs.c.tenant).where(jobs.c.pk == job_pk).scalar_subquery()
