"""Accounts that are listened to, events that came from them, and the people of their chats.

One gateway at a time listens to an account, under a lease. What an event causes is written together with the event's
row and, where the gateway asks for events itself, with the cursor. The transaction expects the lease's token, so a
gateway that was frozen and wakes up writes nothing, and the unique key makes an event that comes again cause nothing.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from hermes_worker.core.answer_binding import ChatQuestion
from hermes_worker.core.errors import HermesError, LeaseLost
from hermes_worker.core.gateway import (
    CODE_EVERY_S,
    CODE_LIVES_S,
    CODES_MAX,
    FAILURES_MAX,
    LOCKED_S,
    ChatRole,
    HashedCode,
    asked_in_chat,
    in_one_turn,
    new_code,
)
from hermes_worker.core.principals import DEFAULT_TENANT
from hermes_worker.core.questions import Question
from hermes_worker.core.run import RunStatus, WaitKind
from hermes_worker.store.access.audit import Act, record
from hermes_worker.store.engine.database import Database, db_now
from hermes_worker.store.engine.prepared import columns_for, row_of, rows_of
from hermes_worker.store.epochs import is_no_copy
from hermes_worker.store.outbox.deliveries import DeliveryState, message_ids_in
from hermes_worker.store.rows import Hint, insert_ignoring, lock_run, plain
from hermes_worker.store.runs.chains import stop_run
from hermes_worker.store.runs.inputs import change_input, stored_spec
from hermes_worker.store.runs.runs import session_is
from hermes_worker.store.tables import (
    channels,
    chat_people,
    chats,
    deliveries,
    inbound,
    processes,
    runs,
    sessions,
    waits,
)

_ERROR_CHARS_MAX = 300
_CLOSED_QUESTIONS = 20
_LATELY = 5_000
"""So many questions of an installation, before the oldest open one of a chat, are looked through for that chat's."""
CODE_ASKED = "code_asked"
"""What became of an event that may answer a question: its chat was asked for the question's code."""
_BROKEN = "broken"
"""Our code broke on an event: whoever brings it again tries it again."""
_FREE = {"lease_token": None, "lease_until": None, "holder": None}


class EventKnown(Exception):
    """This event came before: what it causes is there already."""


class PairingRefused(HermesError):
    """A pairing code is wrong, or too old, or too many wrong ones were tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountHold:
    """The right to listen to an account. Good only while ``token`` is in its row."""

    account: str
    token: str
    cursor: str


@dataclass(frozen=True, slots=True, kw_only=True)
class InboundEvent:
    """An event that is being taken."""

    account: str
    key: str
    hold: AccountHold | None = None
    """``None`` for one that the platform brought by itself."""
    cursor: str | None = None
    """How far the account is read with this event; ``None`` for as far as before."""
    is_beside: bool = False
    """It came to a webhook, and what else is said to the account does not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountView:
    """An account as people see it. Times in epoch seconds."""

    account: str
    mode: str
    holder: str | None
    lease_until: float | None
    looked_at: float | None
    error: str | None
    error_at: float | None
    locked_until: float | None


class ChatPerson(NamedTuple):
    """Somebody who was let in, or whose code is still good. Times in epoch seconds."""

    account: str
    tenant: str
    """For the chats of which tenant."""
    person: str
    role: ChatRole | None
    """``None`` for a stranger who has a code."""
    asked_at: float
    paired_at: float | None
    expires_at: float | None


class _CodeRow(NamedTuple):
    person: str
    tenant: str
    salt: str
    code_hash: str

    @property
    def hashed(self) -> HashedCode:
        return HashedCode(salt=self.salt, hash=self.code_hash)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoppedChat:
    """The run of a chat that is being stopped."""

    run_id: str
    hints: list[Hint]


class ChatState(NamedTuple):
    """How a chat stands."""

    generation: int = 0
    """How often it began anew."""
    model: str | None = None
    """What its people chose for the present conversation; ``None`` for the usual one."""


class SessionActivity(NamedTuple):
    """What happened in a chat's session. Times in epoch seconds, by the database's clock."""

    now: float
    said_at: float
    is_at_work: bool
    process_at: float | None
    """When the youngest of its background processes that live was started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatBurst:
    """Something that may belong to what the same person wrote shortly before."""

    principal: str
    text: str
    within_s: float
    """How soon after the message before."""


class _WaitingRow(NamedTuple):
    pk: int
    run_id: str


class _QuestionRow(NamedTuple):
    pk: int
    run_id: str
    kind: str
    request: str
    opened_at: float
    closed_at: float | None


class _ShownRow(NamedTuple):
    wait_pk: int
    receipt: str | None
    arrived_at: float | None


class GatewayRows:
    """The accounts of one database, and the chats that belong to one tenant. Thread-safe."""

    def __init__(self, database: Database, tenant: str = DEFAULT_TENANT) -> None:
        self._database = database
        self._tenant = tenant

    # --- leases ------------------------------------------------------------------------------------------------------

    def lease_left_s(self, account: str) -> float | None:
        """For how long an account is still held; ``None`` when nobody holds it. One statement."""
        left_s = sa.select(channels.c.lease_until - db_now()).where(channels.c.account == account)
        with self._database.read() as connection:
            found = connection.execute(left_s).scalar()
        return None if found is None or found <= 0 else float(found)

    def hold(self, account: str, *, mode: str, token_hash: str, holder: str, lease_s: float) -> AccountHold | None:
        """Take an account that nobody listens to; ``None`` when somebody does, or listens to the same token under
        another name."""
        token = secrets.token_hex(16)
        row = {"account": account, "tenant": DEFAULT_TENANT, "mode": mode, "created_at": db_now()}
        same_token = sa.select(channels.c.account).where(
            channels.c.account != account,
            channels.c.token_hash == token_hash,
            channels.c.lease_until > db_now(),
        )
        free = sa.or_(channels.c.lease_until.is_(None), channels.c.lease_until <= db_now())
        with self._database.write() as connection:
            connection.execute(insert_ignoring(connection, channels).values(**row))
            cursor = connection.execute(
                sa.update(channels)
                .where(channels.c.account == account, free, ~same_token.exists(), is_no_copy())
                .values(
                    mode=mode,
                    token_hash=token_hash,
                    holder=plain(holder[:200]),
                    lease_token=token,
                    lease_until=db_now() + lease_s,
                )
                .returning(channels.c.cursor)
            ).first()
        return None if cursor is None else AccountHold(account=account, token=token, cursor=cursor[0] or "")

    def renew(self, hold: AccountHold, lease_s: float, *, error: str | None = None) -> None:
        """Keep an account, and say what was wrong with the last look. Raises ``LeaseLost``."""
        said = None if error is None else plain(error[:_ERROR_CHARS_MAX])
        with self._database.statement() as connection:
            self._require(
                connection.execute(
                    sa.update(channels)
                    .where(_held(hold))
                    .values(
                        lease_until=db_now() + lease_s,
                        looked_at=db_now(),
                        error=said,
                        error_at=None if said is None else db_now(),
                    )
                ).rowcount,
                hold,
            )

    def advance(self, hold: AccountHold, cursor: str) -> None:
        """Write how far the account is read. Raises ``LeaseLost``."""
        with self._database.statement() as connection:
            moved = connection.execute(sa.update(channels).where(_held(hold)).values(cursor=plain(cursor)))
            self._require(moved.rowcount, hold)

    def release(self, hold: AccountHold) -> None:
        """Let somebody else listen. Idempotent."""
        with self._database.statement() as connection:
            connection.execute(
                sa.update(channels)
                .where(channels.c.account == hold.account, channels.c.lease_token == hold.token)
                .values(_FREE)
            )

    def release_held_by(self, holder: str) -> None:
        """The same for every account of a gateway that has ended."""
        with self._database.statement() as connection:
            connection.execute(sa.update(channels).where(channels.c.holder == plain(holder[:200])).values(_FREE))

    def accounts(self) -> list[AccountView]:
        columns = [channels.c[each.name] for each in fields(AccountView)]
        with self._database.read() as connection:
            rows = connection.execute(sa.select(*columns).order_by(channels.c.account)).mappings()
            return [AccountView(**row) for row in rows]

    @staticmethod
    def _require(matched: int, hold: AccountHold) -> None:
        if not matched:
            raise LeaseLost(f"the account {hold.account!r} is listened to by somebody else now")

    # --- events ------------------------------------------------------------------------------------------------------

    def take(self, connection: Connection, event: InboundEvent, outcome: str, run_id: str | None = None) -> None:
        """Write an event down, in the transaction of what it causes. Raises ``EventKnown``, ``LeaseLost``."""
        if event.hold is not None:
            cursor = channels.c.cursor if event.cursor is None else plain(event.cursor)
            moved = connection.execute(sa.update(channels).where(_held(event.hold)).values(cursor=cursor))
            self._require(moved.rowcount, event.hold)
        elif not event.is_beside:
            _enter_webhook(connection, event.account)
        if _entered(connection, event, tenant=self._tenant, outcome=outcome, run_id=run_id):
            return
        broken = _row_of(event) & (inbound.c.outcome == _BROKEN)
        taken = connection.execute(sa.update(inbound).where(broken).values(outcome=outcome, run_id=run_id))
        if not taken.rowcount:
            raise EventKnown

    def broke(self, event: InboundEvent) -> int:
        """Our code broke on an event: how often it did, over all who tried; 0 when somebody took it meanwhile. It is
        not taken by that."""
        tries = sa.func.coalesce(inbound.c.tries, 0) + 1
        with self._database.write() as connection:
            if _entered(connection, event, tenant=self._tenant, outcome=_BROKEN, tries=1):
                return 1
            broken = _row_of(event) & (inbound.c.outcome == _BROKEN)
            counted = sa.update(inbound).where(broken).values(tries=tries).returning(inbound.c.tries)
            return int(connection.execute(counted).scalar() or 0)

    def became(self, connection: Connection, event: InboundEvent, outcome: str, run_id: str | None) -> None:
        """Say what became of an event, in the transaction that took it."""
        connection.execute(sa.update(inbound).where(_row_of(event)).values(outcome=outcome, run_id=run_id))

    def is_known(self, event: InboundEvent) -> bool:
        """Whether an event was taken."""
        with self._database.read() as connection:
            outcome = connection.execute(sa.select(inbound.c.outcome).where(_row_of(event))).scalar()
        return outcome not in (None, _BROKEN)

    # --- chats -------------------------------------------------------------------------------------------------------

    def chat(self, account: str, session_key: str) -> ChatState:
        """How a chat stands. One statement."""
        wanted = sa.select(*columns_for(chats, ChatState)).where(_chat(account, session_key))
        with self._database.read() as connection:
            return row_of(connection.execute(wanted), ChatState) or ChatState()

    def begin_anew(
        self,
        connection: Connection,
        account: str,
        session_key: str,
        after: int | None = None,
        *,
        model: str | None = None,
    ) -> bool:
        """The next message of the chat begins a new conversation, which asks ``model``; with ``after`` only if it
        began so often. Whether it does by this."""
        this = _chat(account, session_key)
        if after is not None:
            this &= chats.c.generation == after
        self._enter_chat(connection, account, session_key)
        values = {"generation": chats.c.generation + 1, "model": model, "updated_at": db_now()}
        return bool(connection.execute(sa.update(chats).where(this).values(**values)).rowcount)

    def choose_model(self, connection: Connection, account: str, session_key: str, model: str | None) -> None:
        """The present conversation of a chat asks ``model`` from now on; with ``None`` the usual one."""
        self._enter_chat(connection, account, session_key)
        values = {"model": model, "updated_at": db_now()}
        connection.execute(sa.update(chats).where(_chat(account, session_key)).values(**values))

    def _enter_chat(self, connection: Connection, account: str, session_key: str) -> None:
        row = {"account": account, "session_key": session_key, "tenant": self._tenant, "generation": 0}
        connection.execute(insert_ignoring(connection, chats).values(**row, updated_at=db_now()))

    def activity(self, source: str, name: str) -> SessionActivity | None:
        """When something was last said in a chat's session; ``None`` while it does not exist. One statement."""
        this = session_is(self._tenant, source, name)
        own = runs.alias()
        newest = sa.select(sa.func.max(own.c.pk)).where(own.c.session_pk == sessions.c.pk).correlate(sessions)
        started = sa.select(sa.func.max(processes.c.started_at)).where(
            processes.c.session_pk == sessions.c.pk, processes.c.ended_at.is_(None)
        )
        wanted = (
            sa.select(
                db_now(),
                sa.func.coalesce(runs.c.finished_at, runs.c.created_at),
                sessions.c.active_run_pk.is_not(None),
                started.correlate(sessions).scalar_subquery(),
            )
            .select_from(sessions)
            .join(runs, runs.c.pk == newest.scalar_subquery())
            .where(this)
        )
        with self._database.read() as connection:
            found = connection.execute(wanted).first()
        return None if found is None else SessionActivity(*found)

    def stop(self, connection: Connection, source: str, name: str, by: str) -> StoppedChat | None:
        """Stop the run at work in a chat's session, or the first that has still to begin, such as one that waits for
        files; ``None`` when there is none. What it caused is to be stopped afterwards, by whoever asks or by the
        sweeper."""
        active: int | None = connection.execute(_active_run(self._tenant, source, name)).scalar()
        pk = active or connection.execute(_first_queued(self._tenant, source, name)).scalar()
        loaded = None if pk is None else lock_run(connection, pk)
        if loaded is None or loaded.run.status.is_terminal:
            return None
        _, hints = stop_run(connection, loaded, by)
        record(connection, Act.RUN_STOP, loaded.run.run_id, before={"status": loaded.run.status.value})
        return StoppedChat(run_id=loaded.run.run_id, hints=hints)

    def at_work(self, source: str, name: str) -> tuple[str | None, int]:
        """The id of the run at work in a chat's session, and how many wait behind it."""
        this = session_is(self._tenant, source, name)
        waiting = (
            sa.select(sa.func.count())
            .select_from(runs)
            .join(sessions, sessions.c.pk == runs.c.session_pk)
            .where(
                this,
                runs.c.status == RunStatus.QUEUED.value,
                runs.c.pk.is_distinct_from(sessions.c.active_run_pk),
            )
        )
        active = sa.select(runs.c.run_id).where(runs.c.pk == _active_run(self._tenant, source, name).scalar_subquery())
        with self._database.read() as connection:
            return connection.execute(active).scalar(), int(connection.execute(waiting).scalar_one())

    def is_waited_for(self, source: str, name: str, burst: ChatBurst) -> bool:
        """Whether the newest run of a chat's session has not begun, and what ``burst`` says belongs to it. One
        statement."""
        with self._database.read() as connection:
            return connection.execute(_waiting(self._tenant, source, name, burst)).first() is not None

    def add_to_waiting(self, connection: Connection, source: str, name: str, burst: ChatBurst) -> str | None:
        """Add to the input of that run: its id; ``None`` where it began meanwhile, and nothing was written.
        Nobody begins the run meanwhile, since that takes the row of its session."""
        this = session_is(self._tenant, source, name)
        connection.execute(sa.select(sessions.c.pk).where(this).with_for_update())
        found = row_of(connection.execute(_waiting(self._tenant, source, name, burst)), _WaitingRow)
        spec = None if found is None else stored_spec(connection, found.pk)
        if found is None or spec is None or not isinstance(spec.input, str) or spec.compress is not None:
            return None
        whole = in_one_turn(spec.input, burst.text)
        if whole is None:
            return None
        change_input(connection, found.pk, replace(spec, input=whole))
        connection.execute(sa.update(runs).where(runs.c.pk == found.pk).values(updated_at=db_now()))
        return found.run_id

    def questions(self, source: str, name: str) -> list[ChatQuestion]:
        """The open questions that were put to the chat of a session, oldest first, and with them those that were
        closed lately; an empty list, by one statement, where none is open."""
        wanted = _questions(self._tenant, source, name)
        is_open = waits.c.closed_at.is_(None)
        with self._database.read() as connection:
            # In no order, or SQLite reads the whole table and not its index of open ones.
            rows = rows_of(connection.execute(wanted.where(is_open)), _QuestionRow)
            if not rows:
                return []
            # Of the whole table only its end is read: what was asked long before is quoted or named by nobody.
            lately = waits.c.pk > min(row.pk for row in rows) - _LATELY
            closed = wanted.where(~is_open, lately).order_by(waits.c.pk.desc()).limit(_CLOSED_QUESTIONS)
            rows += rows_of(connection.execute(closed), _QuestionRow)
            shown = _messages_of(connection, [row.pk for row in rows])
        found = [_chat_question(row, shown.get(row.pk, ())) for row in rows]
        return sorted((each for each in found if each is not None), key=lambda each: each.wait_id)

    def was_code_asked(self, questions: Sequence[ChatQuestion]) -> bool:
        """Whether the code of one of these questions was asked for since the newest of them opened."""
        if not questions:
            return False
        run_ids = {each.run_id for each in questions}
        since = max(each.opened_at for each in questions)
        asked = sa.select(inbound.c.pk).where(
            inbound.c.received_at >= since, inbound.c.outcome == CODE_ASKED, inbound.c.run_id.in_(run_ids)
        )
        with self._database.read() as connection:
            return connection.execute(asked.limit(1)).first() is not None

    def was_asked(self, connection: Connection, source: str, name: str, wait_id: int) -> bool:
        """Whether a question, open or not, is one of a chat's session."""
        its = _questions(self._tenant, source, name).where(waits.c.pk == wait_id)
        return connection.execute(its).first() is not None

    # --- who is in and who asks to be --------------------------------------------------------------------------------

    def now(self) -> float:
        """The database's clock."""
        return self._database.now()

    def deny(self, account: str, person: str) -> bool:
        """Take back the code of somebody who asks to be let in; whether there was one. They get another one no sooner
        than they would have."""
        asks = _has_open_code(account) & _person(account, person)
        no_code = {"salt": None, "code_hash": None, "expires_at": None}
        with self._database.write() as connection:
            taken = connection.execute(sa.update(chat_people).where(asks).values(no_code)).rowcount
            if taken:
                record(connection, Act.CHAT_DENY, account, before={"person": person})
            return bool(taken)

    # --- people ------------------------------------------------------------------------------------------------------

    def _one(self, account: str, person: str) -> sa.ColumnElement[bool]:
        return _person(account, person) & (chat_people.c.tenant == self._tenant)

    def role_of(self, account: str, person: str) -> ChatRole | None:
        """What a paired person may do; ``None`` for a stranger."""
        with self._database.read() as connection:
            role = connection.execute(sa.select(chat_people.c.role).where(self._one(account, person))).scalar()
        return None if role is None else ChatRole(role)

    def offer_code(self, connection: Connection, account: str, person: str) -> str | None:
        """A code for a stranger, whose hash is kept; ``None`` when it is too soon for another, too many are open, or
        the account is locked."""
        this = self._one(account, person)
        _locked_account(connection, account)
        open_ones = sa.select(sa.func.count()).where(_has_open_code(account))
        asked = connection.execute(
            sa.select(chat_people.c.asked_at > db_now() - CODE_EVERY_S).where(this).with_for_update()
        ).scalar()
        if asked or _is_locked(connection, account):
            return None
        others = open_ones.where(sa.not_(this))
        if connection.execute(others).scalar_one() >= CODES_MAX:
            return None
        code, hashed = new_code()
        connection.execute(sa.delete(chat_people).where(this, chat_people.c.role.is_(None)))
        connection.execute(
            sa.insert(chat_people).values(
                account=account,
                person=plain(person),
                tenant=self._tenant,
                salt=hashed.salt,
                code_hash=hashed.hash,
                expires_at=db_now() + CODE_LIVES_S,
                asked_at=db_now(),
            )
        )
        return code

    def pair(self, account: str, code: str, role: ChatRole) -> str:
        """Let in whoever was given ``code``, for the chats of the tenant in one of which it was given; their id. Raises
        ``PairingRefused``: after five wrong codes every code is refused for an hour."""
        with self._database.write() as connection:
            _locked_account(connection, account)
            if _is_locked(connection, account):
                raise PairingRefused("too many wrong codes were tried; try again in an hour")
            columns = (chat_people.c.person, chat_people.c.tenant, chat_people.c.salt, chat_people.c.code_hash)
            asked = [_CodeRow(*row) for row in connection.execute(sa.select(*columns).where(_has_open_code(account)))]
            found = next((one for one in asked if one.hashed.is_of(code)), None)
            if found is not None:
                connection.execute(
                    sa.update(chat_people)
                    .where(_person(account, found.person), chat_people.c.tenant == found.tenant)
                    .values(role=role.value, paired_at=db_now(), salt=None, code_hash=None, expires_at=None)
                )
                connection.execute(sa.update(channels).where(channels.c.account == account).values(failures=0))
                told = {"person": found.person, "role": role.value, "tenant": found.tenant}
                record(connection, Act.CHAT_PAIR, account, after=told)
                return found.person
            failures = channels.c.failures + 1
            is_last = failures >= FAILURES_MAX
            connection.execute(
                sa.update(channels)
                .where(channels.c.account == account)
                .values(
                    failures=sa.case((is_last, 0), else_=failures),
                    locked_until=sa.case((is_last, db_now() + LOCKED_S), else_=channels.c.locked_until),
                )
            )
        raise PairingRefused("no open request has this code; codes are good for an hour")

    def revoke(self, account: str, person: str) -> bool:
        """Let somebody in no more, whosever chats they were let into; whether they were let in."""
        with self._database.write() as connection:
            gone = connection.execute(sa.delete(chat_people).where(_person(account, person)))
            if gone.rowcount:
                record(connection, Act.CHAT_REVOKE, account, before={"person": person})
            return bool(gone.rowcount)

    def known(self, account: str | None = None) -> list[ChatPerson]:
        """Who was let in and whose code is still good, of one account or of all, by account and tenant; the first who
        asked first."""
        columns = [chat_people.c[name] for name in ChatPerson._fields]
        is_known = chat_people.c.role.is_not(None) | (chat_people.c.expires_at > db_now())
        wanted = (
            sa.select(*columns)
            .where(is_known)
            .order_by(chat_people.c.account, chat_people.c.tenant, chat_people.c.asked_at, chat_people.c.person)
        )
        if account is not None:
            wanted = wanted.where(chat_people.c.account == account)
        with self._database.read() as connection:
            found = [ChatPerson(*row) for row in connection.execute(wanted)]
        return [one._replace(role=None if one.role is None else ChatRole(one.role)) for one in found]

    def forget_askers(self, account: str) -> int:
        """Take back all codes of an account that nobody used; how many. Whoever had one may ask again at once."""
        with self._database.write() as connection:
            gone = connection.execute(
                sa.delete(chat_people).where(chat_people.c.account == account, chat_people.c.role.is_(None))
            ).rowcount
            if gone:
                record(connection, Act.CHAT_FORGET, account, before={"codes": gone})
            return gone


def _enter_webhook(connection: Connection, account: str) -> None:
    """The row of an account whose events come by themselves. One that is there as it should be is only read."""
    mode, this = "webhook", channels.c.account == account
    if connection.execute(sa.select(channels.c.mode).where(this)).scalar() == mode:
        return
    row = {"account": account, "tenant": DEFAULT_TENANT, "mode": mode, "created_at": db_now()}
    connection.execute(insert_ignoring(connection, channels).values(**row))
    connection.execute(sa.update(channels).where(this, channels.c.mode != mode).values(mode=mode, cursor=None))


def _entered(connection: Connection, event: InboundEvent, **values: object) -> bool:
    """Whether an event had no row, and now has one."""
    row = {"account": event.account, "event_key": plain(event.key), **values}
    written = insert_ignoring(connection, inbound).values(**row, received_at=db_now()).returning(inbound.c.pk)
    return connection.execute(written).first() is not None


def _held(hold: AccountHold) -> sa.ColumnElement[bool]:
    is_ours = (channels.c.account == hold.account) & (channels.c.lease_token == hold.token)
    return is_ours & (channels.c.lease_until > db_now())


def _row_of(event: InboundEvent) -> sa.ColumnElement[bool]:
    return (inbound.c.account == event.account) & (inbound.c.event_key == plain(event.key))


def _chat(account: str, session_key: str) -> sa.ColumnElement[bool]:
    return (chats.c.account == account) & (chats.c.session_key == session_key)


def _has_open_code(account: str) -> sa.ColumnElement[bool]:
    is_asked = (chat_people.c.account == account) & chat_people.c.role.is_(None)
    return is_asked & (chat_people.c.expires_at > db_now())


def _person(account: str, person: str) -> sa.ColumnElement[bool]:
    return (chat_people.c.account == account) & (chat_people.c.person == plain(person))


def _active_run(tenant: str, source: str, name: str) -> sa.Select[Any]:
    return sa.select(sessions.c.active_run_pk).where(session_is(tenant, source, name))


def _questions(tenant: str, source: str, name: str) -> sa.Select[Any]:
    """What was asked by the runs of a session and by all that they caused."""
    first = runs.alias()
    columns = (waits.c.pk, runs.c.run_id, waits.c.kind, waits.c.request, waits.c.opened_at, waits.c.closed_at)
    return (
        sa.select(*columns)
        .join(runs, runs.c.pk == waits.c.run_pk)
        .join(first, first.c.pk == sa.func.coalesce(runs.c.root_pk, runs.c.pk))
        .join(sessions, sessions.c.pk == first.c.session_pk)
        .where(session_is(tenant, source, name))
        .where(waits.c.kind.in_((WaitKind.APPROVAL.value, WaitKind.INPUT.value)))
    )


def _messages_of(connection: Connection, wait_pks: Sequence[int]) -> dict[int, list[_ShownRow]]:
    """The deliveries of questions, by question."""
    its_run = sa.select(waits.c.run_pk).where(waits.c.pk.in_(wait_pks))
    arrived_at = sa.case((deliveries.c.state == DeliveryState.DELIVERED.value, deliveries.c.settled_at)).label(
        "arrived_at"
    )
    wanted = sa.select(deliveries.c.wait_pk, deliveries.c.receipt, arrived_at).where(
        deliveries.c.run_pk.in_(its_run), deliveries.c.wait_pk.in_(wait_pks)
    )
    found: dict[int, list[_ShownRow]] = {}
    for row in rows_of(connection.execute(wanted), _ShownRow):
        found.setdefault(row.wait_pk, []).append(row)
    return found


def _chat_question(row: _QuestionRow, shown: Sequence[_ShownRow]) -> ChatQuestion | None:
    """``None`` for one that no person answers."""
    question = Question(kind=WaitKind(row.kind), request=json.loads(row.request))
    if asked_in_chat(question) is None:
        return None
    arrived = [each.arrived_at for each in shown if each.arrived_at is not None]
    return ChatQuestion(
        wait_id=row.pk,
        run_id=row.run_id,
        kind=question.kind,
        label=str(question.request.get("description") or question.request.get("question") or ""),
        opened_at=row.opened_at,
        delivered_at=max(arrived) if arrived and len(arrived) == len(shown) else None,
        closed_at=row.closed_at,
        messages=frozenset(message_id for each in shown for message_id in message_ids_in(each.receipt)),
    )


def _first_queued(tenant: str, source: str, name: str) -> sa.Select[Any]:
    return (
        sa.select(sa.func.min(runs.c.pk))
        .select_from(runs)
        .join(sessions, sessions.c.pk == runs.c.session_pk)
        .where(session_is(tenant, source, name), runs.c.status == RunStatus.QUEUED.value)
    )


def _waiting(tenant: str, source: str, name: str, burst: ChatBurst) -> sa.Select[Any]:
    newer = runs.alias()
    newest = sa.select(sa.func.max(newer.c.pk)).where(newer.c.session_pk == sessions.c.pk).correlate(sessions)
    return (
        sa.select(runs.c.pk, runs.c.run_id)
        .select_from(sessions)
        .join(runs, runs.c.pk == newest.scalar_subquery())
        .where(
            session_is(tenant, source, name),
            runs.c.status == RunStatus.QUEUED.value,
            runs.c.hinted_at.is_(None),
            runs.c.not_before.is_(None),
            runs.c.principal == burst.principal,
            runs.c.updated_at >= db_now() - burst.within_s,
            sessions.c.active_run_pk.is_not(None),
            sessions.c.active_run_pk != runs.c.pk,
        )
    )


def _locked_account(connection: Connection, account: str) -> None:
    """One at a time counts the codes of an account."""
    connection.execute(sa.select(channels.c.account).where(channels.c.account == account).with_for_update())


def _is_locked(connection: Connection, account: str) -> bool:
    wanted = sa.select(channels.c.locked_until > db_now()).where(channels.c.account == account)
    return bool(connection.execute(wanted).scalar())
