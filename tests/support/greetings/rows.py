from __future__ import annotations

import sqlalchemy as sa

from hermes_worker.core.effects import Iterate
from hermes_worker.store.engine.database import Database, db_now
from hermes_worker.store.rows import Hint
from hermes_worker.store.tables import runs
from support.greetings.tables import greetings


def add_greeting(database: Database, run_id: str, name: str) -> None:
    of_run = sa.select(runs.c.pk).where(runs.c.run_id == run_id).scalar_subquery()
    values = {"run_pk": of_run, "name": name, "token": "hidden", "greets_at": db_now()}
    database.execute(sa.insert(greetings).values(values))


def sweep_rows(database: Database) -> list[Hint]:
    """Greet everybody whose time has come."""
    due = sa.and_(greetings.c.greeted_at.is_(None), greetings.c.greets_at <= db_now())
    with database.write() as connection:
        wanted = sa.select(runs.c.run_id).join(greetings, greetings.c.run_pk == runs.c.pk).where(due)
        names = connection.execute(wanted).scalars().all()
        connection.execute(sa.update(greetings).where(due).values(greeted_at=db_now()))
    return [Hint(effect=Iterate(run_id=name, iteration=1, attempt=1), at=0.0) for name in names]


def resend_rows(database: Database, *, grace_s: float, before: float) -> list[Hint]:
    """List a hint of each run that was greeted."""
    wanted = sa.select(runs.c.run_id).join(greetings, greetings.c.run_pk == runs.c.pk)
    with database.read() as connection:
        names = connection.execute(wanted.where(greetings.c.greeted_at.is_not(None))).scalars().all()
    return [Hint(effect=Iterate(run_id=name, iteration=2, attempt=1), at=0.0) for name in names]


def prune_rows(database: Database, *, acts: bool) -> int:
    """Delete what was greeted."""
    done = greetings.c.greeted_at.is_not(None)
    with database.write() as connection:
        if acts:
            return connection.execute(sa.delete(greetings).where(done)).rowcount
        return int(connection.execute(sa.select(sa.func.count()).where(done)).scalar_one())
