"""The audit log: who did what, for which tenant, from where, and the values before and after.

The code that lets people in (the API's guard, the command line) names the actor with ``set_actor``; every action of a
person is recorded in the transaction that performs it, so no action is without its row and no row without its action.
Workers and schedulers act without an actor, and their work is not recorded.

Rows are added and never changed: triggers refuse an update, and a deletion before a row is ``AUDIT_FLOOR_S`` old
(``features.retention.rules``). They hold no text of people or models, only ids, names and chosen values.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import StrEnum

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from hermes_worker.core.messages import dump_canonical_json
from hermes_worker.store.engine.database import RowStore, db_now
from hermes_worker.store.engine.prepared import fetch_views, select_view_columns
from hermes_worker.store.rows import make_storable
from hermes_worker.store.tables import audit_log

__all__ = [
    "Act",
    "Actor",
    "AuditEntry",
    "AuditLog",
    "AuditRow",
    "record_action",
    "record_actions",
    "set_actor",
    "set_thread_actor",
]

_SUBJECT_CHARS_MAX = 200
_ADDRESS_CHARS_MAX = 64
_VALUE_CHARS_MAX = 2_000
"""The most characters of one value; a longer one is cut, and says so."""

SETTLED_S = 5.0
"""An export stops this many seconds before now: a transaction that is still open may yet add a row before the last
one."""

Facts = Mapping[str, object]


class Act(StrEnum):
    """The kinds of actions that are recorded."""

    RUN_SUBMIT = "run.submit"
    RUN_STOP = "run.stop"
    RUN_PAUSE = "run.pause"
    RUN_RESUME = "run.resume"
    RUN_STEER = "run.steer"
    RUN_RESTORE = "run.restore"
    RESPONSE_DELETE = "response.delete"
    SESSION_OPEN = "session.open"
    SESSION_CHANGE = "session.change"
    SESSION_FORK = "session.fork"
    APPROVAL_ANSWER = "approval.answer"
    QUESTION_ANSWER = "question.answer"
    JOB_CREATE = "job.create"
    JOB_CHANGE = "job.change"
    JOB_REMOVE = "job.remove"
    KEY_CREATE = "key.create"
    KEY_ROTATE = "key.rotate"
    KEY_REVOKE = "key.revoke"
    PAGE_LOGIN = "page.login"
    PAGE_LOGOUT = "page.logout"
    FILTER_SAVE = "filter.save"
    FILTER_REMOVE = "filter.remove"
    TENANT_CREATE = "tenant.create"
    TENANT_DISABLE = "tenant.disable"
    TENANT_ENABLE = "tenant.enable"
    LIMIT_SET = "limit.set"
    PROVIDER_KEY_OPEN = "provider_key.open"
    ALERTS_TRY = "alerts.try"
    ALERT_TARGETS_SET = "alerts.targets"
    PROVIDER_KEY_ADD = "provider_key.add"
    PROVIDER_KEY_REMOVE = "provider_key.remove"
    MCP_SERVER_KEEP = "mcp_server.keep"
    MCP_SERVER_APPROVE = "mcp_server.approve"
    MCP_SERVER_TEST = "mcp_server.test"
    MCP_SERVER_REMOVE = "mcp_server.remove"
    MEMORY_CHANGE = "memory.change"
    MEMORY_UNDO = "memory.undo"
    MEMORY_DECIDE = "memory.decide"
    MEMORY_REDACT = "memory.redact"
    ROUTE_ADD = "route.add"
    ROUTE_REMOVE = "route.remove"
    WORKER_DRAIN = "worker.drain"
    CHAT_PAIR = "chat.pair"
    CHAT_DENY = "chat.deny"
    CHAT_REVOKE = "chat.revoke"
    CHAT_FORGET = "chat.forget"
    CHAT_HOME = "chat.home"
    DELIVERY_RETRY = "delivery.retry"
    SKILL_KEEP = "skill.keep"
    SKILL_REMOVE = "skill.remove"
    PRUNE = "prune"
    RULE_SET = "rule.set"
    RULE_UNSET = "rule.unset"
    HOLD_PLACE = "hold.place"
    HOLD_RELEASE = "hold.release"
    CONFIGURATION_WRITE = "configuration.write"
    ERASURE_BEGIN = "erasure.begin"
    FILE_UPLOAD = "file.upload"
    FILE_DELETE = "file.delete"
    REPLAY_GRADE = "replay.grade"


@dataclass(frozen=True, slots=True, kw_only=True)
class Actor:
    """The person or program that acts."""

    tenant: str
    """The tenant for which the actor acts."""
    name: str
    """A principal (``core.principals``): ``cli:USER``, ``api:HOLDER/KEY``."""
    address: str | None = None
    """The network address of the request as the server saw it; ``None`` for a command on the machine itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """An action that is to be recorded."""

    act: Act
    subject: str
    before: Facts = field(default_factory=dict)
    after: Facts = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRow:
    """A recorded action. ``at`` in epoch seconds by the database's clock."""

    number: int
    """Grows with time; a later page begins after it."""
    at: float
    tenant: str
    actor: str
    address: str | None
    act: str
    subject: str
    """The object of the action: the id of a run, a job or a key, or a name."""
    before: Facts
    after: Facts


_COLUMNS = (
    audit_log.c.pk.label("number"),
    *select_view_columns(audit_log, AuditRow),
    *(audit_log.c.facts.label(name) for name in ("before", "after")),
)
_actor: ContextVar[Actor | None] = ContextVar("hermes_actor", default=None)


@contextmanager
def set_actor(actor: Actor | None) -> Iterator[None]:
    """Make ``actor`` the actor inside the block, and in the threads and tasks that inherit its context; ``None`` for no
    actor."""
    token = _actor.set(actor)
    try:
        yield
    finally:
        _actor.reset(token)


def set_thread_actor(actor: Actor) -> None:
    """Make ``actor`` the actor of this thread from here on: for a program that serves one person."""
    _actor.set(actor)


def record_action(
    connection: Connection,
    act: Act,
    subject: str | int,
    *,
    tenant: str | None = None,
    before: Facts | None = None,
    after: Facts | None = None,
) -> None:
    """Record an action in the transaction that performs it; nothing when there is no actor. ``tenant`` is the tenant
    whose log it belongs to, where that is not the actor's. Values must be JSON, without texts of people or models."""
    record_actions(
        connection, [AuditEntry(act=act, subject=str(subject), before=before or {}, after=after or {})], tenant=tenant
    )


def record_actions(connection: Connection, deeds: Sequence[AuditEntry], *, tenant: str | None = None) -> None:
    """Record several actions of one transaction in one statement; nothing when there is no actor. ``tenant`` as in
    ``record_action``."""
    actor = _actor.get()
    if actor is None or not deeds:
        return
    by = {
        "tenant": tenant or actor.tenant,
        "actor": make_storable(actor.name),
        "address": actor.address and make_storable(actor.address)[:_ADDRESS_CHARS_MAX],
    }
    rows = [
        {
            **by,
            "act": deed.act.value,
            "subject": make_storable(deed.subject)[:_SUBJECT_CHARS_MAX],
            "facts": dump_canonical_json(
                {
                    name: _shorten_values(values)
                    for name, values in (("before", deed.before), ("after", deed.after))
                    if values
                }
            ),
        }
        for deed in deeds
    ]
    connection.execute(sa.insert(audit_log).values(at=db_now()), rows)


def _shorten_values(facts: Facts) -> dict[str, object]:
    return {name: _shorten(value) for name, value in facts.items()}


def _shorten(value: object) -> object:
    text = make_storable(value if isinstance(value, str) else dump_canonical_json(value))
    if len(text) > _VALUE_CHARS_MAX:
        return f"{text[:_VALUE_CHARS_MAX]}... ({len(text)} characters)"
    return text if isinstance(value, str) else value


class AuditLog(RowStore):
    """Reads the log of one database. Thread-safe."""

    def list_actions(
        self,
        tenant: str | None,
        *,
        after: int = 0,
        before: int | None = None,
        newest_first: bool = False,
        limit: int = 100,
        act: str | None = None,
        subject: str | None = None,
        actor: str | None = None,
        since: float | None = None,
        until: float | None = None,
    ) -> Sequence[AuditRow]:
        """List actions of ``tenant``, or of all tenants for ``None``, oldest first unless ``newest_first``, with
        numbers above ``after`` and below ``before``. ``since`` and ``until`` are epoch seconds, the latter exclusive.

        A transaction that is still open may later add a row with a lower number than the last one returned. A caller
        that copies the log passes an ``until`` that is ``SETTLED_S`` ago.
        """
        wanted = sa.select(*_COLUMNS).where(audit_log.c.pk > after)
        conditions = (
            (audit_log.c.tenant, tenant),
            (audit_log.c.act, act),
            (audit_log.c.subject, subject),
            (audit_log.c.actor, actor),
        )
        for column, value in conditions:
            if value is not None:
                wanted = wanted.where(column == value)
        if before is not None:
            wanted = wanted.where(audit_log.c.pk < before)
        if since is not None:
            wanted = wanted.where(audit_log.c.at >= since)
        if until is not None:
            wanted = wanted.where(audit_log.c.at < until)
        order = audit_log.c.pk.desc() if newest_first else audit_log.c.pk.asc()
        found = self.database.select(wanted.order_by(order).limit(limit))
        return fetch_views(
            found,
            AuditRow,
            before=lambda facts: json.loads(facts).get("before", {}),
            after=lambda facts: json.loads(facts).get("after", {}),
        )
