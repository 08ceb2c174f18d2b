"""A world in which two people have left something everywhere, each with words of their own."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa

from hermes_worker.core.principals import Principal
from hermes_worker.core.replay import Replay
from hermes_worker.features.retention.erasure_rules import Person
from hermes_worker.store.access.principals import KeyScope, Tenants
from hermes_worker.store.access.saved_filters import SavedFilters
from hermes_worker.store.engine.database import db_now
from hermes_worker.store.statistics import count_ended_rows
from hermes_worker.store.tables import (
    auxiliary_calls,
    dead_targets,
    deliveries,
    events,
    firings,
    hook_calls,
    jobs,
    kept_answers,
    runs,
    session_documents,
    sessions,
    steers,
    waits,
)
from support.store import Store, asks

ANNA, BERT = "annaKANARI", "bertKANARI"
_LONG = "long " * 20_000


def person(name: str) -> Person:
    """By everything that they are known as."""
    return Person(holders=(name,), principals=(f"cli:{name}",), targets=(f"telegram:{name}",))


class People:
    """Puts them there."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.keys: dict[str, str] = {}

    def live(self, name: str) -> list[str]:
        """Some conversations with all that may hang on them; returns the runs."""
        store = self.store
        key = Tenants(store.database).create_key("default", name, [KeyScope.ADMIN]).view
        self.keys[name] = key.key_id
        asked = {"principal": f"api:{name}/{key.key_id}", "deliver": [f"telegram:{name}"]}
        told = {"input": f"{name} asks", "system_prompt": f"for {name}", "workspace": json.dumps({"path": f"/{name}"})}
        first = store.submit(**asked, **told, session_id=f"chat-{name}", idempotency_key=name, fingerprint="f").run_id
        store.ask_tools(first, asks(Replay.PURE))
        children = store.delegate(first, 2)
        for child in children:
            store.answer(child)
        store.answer(first)
        second = store.submit(**asked, **told, session_id=f"chat-{name}").run_id
        store.ask_tools(second, asks(Replay.PURE))
        store.settle(second, text=f"{name} {_LONG}")
        store.answer(second)
        alone = store.submit(principal=f"cli:{name}", input=f"{_LONG} {name} once more").run_id
        store.answer(alone)
        self.keep_answer(name, alone)
        holder = Principal(tenant="default", name=f"api:{name}/{key.key_id}")
        SavedFilters(store.database).save(holder, f"of {name}", f"text={name}")
        with store.database.write() as connection:
            for run_id in (first, second, alone):
                self._hang_on(connection, name, run_id)
            self._job(connection, name, alone)
            marked = {"tenant": "default", "key": f"telegram:{name}", "reason": name, "marked_at": 1.0}
            connection.execute(sa.insert(dead_targets).values(marked))
        return [first, *children, second, alone]

    def keep_answer(self, name: str, run_id: str) -> None:
        """As the API keeps them for a request that is repeated."""
        kept = {"tenant": "default", "principal": f"api:{name}/{self.keys[name]}", "key": run_id, "fingerprint": "f"}
        told = {"operation": "POST /v1/runs", "status": 200, "headers": "{}", "body": f"{name} {run_id}"}
        with self.store.database.write() as connection:
            connection.execute(sa.insert(kept_answers).values(**kept, **told, created_at=1.0))
            other = {**kept, "principal": "api:proxy/key_1", "key": f"proxied {run_id}"}
            connection.execute(sa.insert(kept_answers).values(**other, **told, created_at=1.0))

    def _hang_on(self, connection: sa.Connection, name: str, run_id: str) -> None:
        row = connection.execute(sa.select(runs.c.pk, runs.c.session_pk).where(runs.c.run_id == run_id)).one()
        place = {"run_pk": row.pk, "iteration": 9, "position": 0}
        add = [
            (steers, {"run_pk": row.pk, "text": name, "created_at": 1.0, "message_seq": 1}),
            (waits, {**place, "kind": "input", "request": json.dumps(name), "opened_at": 1.0, "closed_at": 2.0}
             | {"outcome": "answered", "answered_by": f"cli:{name}", "reason": name}),
            (auxiliary_calls, {**place, "number": 0, "task": "vision", "material": name, "answer": name}
             | {"asked_at": 1.0, "answered_at": 1.0}),
            (hook_calls, {"tenant": "default", "event_id": f"{run_id}.end", "hook": "h", "event": "agent:end"}
             | {"run_pk": row.pk, "event_seq": 1, "state": "failed", "reason": name}
             | {"created_at": 1.0, "settled_at": 1.0}),
            (deliveries, {"delivery_id": f"d{row.pk}", "tenant": "default", "run_pk": row.pk, "state": "failed"}
             | {"target": f"telegram:{name}", "body": name, "receipt": name, "error": name, "created_at": 1.0}
             | {"updated_at": 1.0, "settled_at": 1.0}),
            (session_documents, {"session_pk": row.session_pk, "key": f"todo{row.pk}", "body": json.dumps(name)}),
        ]  # fmt: skip
        for table, values in add:
            connection.execute(sa.insert(table).values(values))
        texts = {"failure_message": name, "memory": None, "recovery": None}
        connection.execute(sa.update(runs).where(runs.c.pk == row.pk).values(**texts))
        connection.execute(sa.update(sessions).where(sessions.c.pk == row.session_pk).values(title=name))

    def _job(self, connection: sa.Connection, name: str, run_id: str) -> None:
        definition = json.dumps({"prompt": name, "deliver": [f"telegram:{name}"]})
        values = {"job_id": secrets.token_hex(6), "tenant": "default", "name": name, "definition": definition}
        values |= {
            "state": "scheduled",
            "next_slot": 9e9,
            "next_fire_at": 9e9,
            "last_error": name,
            "paused_reason": name,
        }
        job = sa.insert(jobs).values(**values, created_at=1.0, updated_at=1.0).returning(jobs.c.pk)
        pk = connection.execute(job).scalar_one()
        run_pk = connection.execute(sa.select(runs.c.pk).where(runs.c.run_id == run_id)).scalar_one()
        fired: dict[str, Any] = {"job_pk": pk, "outcome": "fired", "reason": name, "settled_at": db_now()}
        add = [
            {**fired, "slot": 1.0, "run_pk": run_pk, "execution": None, "collected": None, "remark": name},
            {**fired, "slot": 2.0, "run_pk": None, "execution": "failed", "collected": name, "remark": name},
        ]
        for each in add:
            connection.execute(sa.insert(firings).values(**each, ended_at=1.0))
        notice = {
            "delivery_id": f"n{pk}",
            "tenant": "default",
            "job_pk": pk,
            "target": f"telegram:{name}",
            "body": name,
        }
        connection.execute(
            sa.insert(deliveries).values(**notice, state="pending", hinted_at=1.0, created_at=1.0, updated_at=1.0)
        )

    def meddle(self, name: str, run_id: str) -> None:
        """Answer and stop what another asked for."""
        with self.store.database.write() as connection:
            pk = connection.execute(sa.select(runs.c.pk).where(runs.c.run_id == run_id)).scalar_one()
            data = json.dumps({"text": "faster", "by": f"api:{name}/{self.keys[name]}"})
            connection.execute(
                sa.update(events).where(events.c.run_pk == pk, events.c.seq == 1).values(data=data, event="run.steered")
            )
            wait = {"run_pk": pk, "iteration": 8, "position": 0, "kind": "approval", "request": "{}", "opened_at": 1.0}
            ended = {"closed_at": 2.0, "outcome": "allowed", "answered_by": f"api:{name}/{self.keys[name]}"}
            connection.execute(sa.insert(waits).values(**wait, **ended))

    def settle(self) -> None:
        """Until everything that is over is counted."""
        while count_ended_rows(self.store.database):
            pass


def texts(store: Store) -> Iterator[tuple[str, str]]:
    """Every text of the database with its column, as it is stored: by what the database says it has, so no new table
    and no new column is missed."""
    engine = store.database.engine
    with engine.connect() as connection:
        there = sa.inspect(connection)
        for table in there.get_table_names():
            named = [c["name"] for c in there.get_columns(table) if isinstance(c["type"], sa.String | sa.Text)]
            if not named:
                continue
            columns = ", ".join(f'"{name}"' for name in named)
            for row in connection.exec_driver_sql(f'select {columns} from "{table}"'):
                yield from ((f"{table}.{name}", value) for name, value in zip(named, row, strict=True) if value)


def traces(store: Store, *names: str) -> dict[str, int]:
    """In which columns these words are still, and how often."""
    found: dict[str, int] = {}
    for column, value in texts(store):
        if any(name.lower() in str(value).lower() for name in names):
            found[column] = found.get(column, 0) + 1
    return found
