"""Chat accounts that gateways listen to, the events that came from them, the people of their chats, and
chats that are known by name.

Theory of operation. One gateway at a time listens to an account, under a lease in the account's row (``channels``). The
effects of an event are written in one transaction together with the event's row and, where the gateway polls the
platform, with the cursor. The transaction expects the lease's token, so a gateway that was frozen and wakes up writes
nothing, and a unique key makes a repeated event have no effect:

    acquire the lease -> poll from the cursor -> for each event, in one transaction:
        insert the event's row (unique)     EventKnown: it came before, do nothing
        compare lease token and lease end   LeaseLost: another gateway listens now, do nothing
        write the run, answer or command that the event causes, and the new cursor

So a crash between two events repeats at most the polling of an event, never its effect.
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
from hermes_worker.core.chat_commands import ChatRole
from hermes_worker.core.chat_names import CHAT_CHARS_MAX, KnownChat
from hermes_worker.core.delivery_states import DeliveryState
from hermes_worker.core.errors import HermesError, LeaseLost
from hermes_worker.core.gateway import (
    CODE_EVERY_S,
    CODE_LIVES_S,
    CODES_MAX,
    FAILURES_MAX,
    LOCKED_S,
    HashedCode,
    create_code,
    join_texts,
    render_question,
)
from hermes_worker.core.inbound_decision import CODE_ASKED
from hermes_worker.core.principals import DEFAULT_TENANT
from hermes_worker.core.questions import Question
from hermes_worker.core.run import RunStatus, WaitKind
from hermes_worker.store.access.audit import Act, record_action
from hermes_worker.store.engine.database import db_now
from hermes_worker.store.engine.prepared import fetch_row, fetch_rows, select_columns
from hermes_worker.store.outbox.deliveries import parse_message_ids
from hermes_worker.store.owners import TenantRows
from hermes_worker.store.restore_detection import is_no_copy
from hermes_worker.store.rows import Hint, build_insert_ignoring, lock_run, make_storable
from hermes_worker.store.runs.chains import stop_run
from hermes_worker.store.runs.inputs import require_spec, update_spec
from hermes_worker.store.runs.runs import session_is
from hermes_worker.store.tables import (
    channels,
    chat_people,
    chats,
    deliveries,
    inbound,
    known_chats,
    processes,
    runs,
    sessions,
    waits,
)

_ERROR_CHARS_MAX = 300
_CLOSED_QUESTIONS = 20
_LATELY = 5_000
"""Newest questions of an installation, older than the oldest open one of a chat, that are searched for closed ones of
that chat."""
_BROKEN = "broken"
"""Outcome of an event on which our code failed: when it comes again, it is tried again."""
_FREE = {"lease_token": None, "lease_until": None, "holder": None}


class EventKnown(Exception):
    """This event came before: its effects are written already."""


class PairingRefused(HermesError):
    """A pairing code is wrong, or too old, or too many wrong ones were tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountLease:
    """The lease of an account: the right to listen to it. Good only while ``token`` is in its row."""

    account: str
    token: str
    cursor: str


@dataclass(frozen=True, slots=True, kw_only=True)
class InboundEvent:
    """An event that is being processed."""

    account: str
    key: str
    hold: AccountLease | None = None
    """The lease of the account; ``None`` for an event that the platform pushed."""
    cursor: str | None = None
    """The position in the account after this event; ``None`` when it does not move."""
    is_beside: bool = False
    """It came to a webhook although the account is polled: its other events do not come this way."""


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
    """A person who was admitted to chats, or whose code is still valid. Times in epoch seconds."""

    account: str
    tenant: str
    """The tenant whose chats the person may use."""
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
    def hashed_code(self) -> HashedCode:
        return HashedCode(salt=self.salt, hash=self.code_hash)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoppedChat:
    """The run of a chat that is being stopped."""

    run_id: str
    hints: list[Hint]


class ChatState(NamedTuple):
    """The state of a chat."""

    generation: int = 0
    """How many new conversations the chat has begun."""
    model: str | None = None
    """The model that its people chose for the present conversation; ``None`` for the default."""


class SessionActivity(NamedTuple):
    """The last activity in a chat's session. Times in epoch seconds, by the database's clock."""

    now: float
    said_at: float
    is_at_work: bool
    process_at: float | None
    """When the youngest of its running background processes was started; ``None`` when there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatBurst:
    """A message that may belong to the one that the same person wrote shortly before."""

    principal: str
    text: str = ""
    within_s: float
    """The most seconds after the message before."""


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


class GatewayRows(TenantRows):
    """The accounts of one database, and the chats that belong to one tenant. Thread-safe."""

    # --- leases ------------------------------------------------------------------------------------------------------

    def load_lease_left_s(self, account: str) -> float | None:
        """Load for how many seconds the lease of an account lasts; ``None`` when it is free. One statement."""
        left_s = sa.select(channels.c.lease_until - db_now()).where(channels.c.account == account)
        found = self.database.select(left_s).scalar()
        return None if found is None or found <= 0 else float(found)

    def acquire_lease(
        self, account: str, *, mode: str, token_hash: str, holder: str, lease_s: float
    ) -> AccountLease | None:
        """Acquire the lease of an account; ``None`` when another gateway has it, or listens to the same token under
        another name."""
        token = secrets.token_hex(16)
        row = {"account": account, "tenant": DEFAULT_TENANT, "mode": mode, "created_at": db_now()}
        same_token = sa.select(channels.c.account).where(
            channels.c.account != account,
            channels.c.token_hash == token_hash,
            channels.c.lease_until > db_now(),
        )
        free = sa.or_(channels.c.lease_until.is_(None), channels.c.lease_until <= db_now())
        with self.database.write() as connection:
            connection.execute(build_insert_ignoring(connection, channels).values(**row))
            cursor = connection.execute(
                sa.update(channels)
                .where(channels.c.account == account, free, ~same_token.exists(), is_no_copy())
                .values(
                    mode=mode,
                    token_hash=token_hash,
                    holder=make_storable(holder[:200]),
                    lease_token=token,
                    lease_until=db_now() + lease_s,
                )
                .returning(channels.c.cursor)
            ).first()
        return None if cursor is None else AccountLease(account=account, token=token, cursor=cursor[0] or "")

    def renew(self, hold: AccountLease, lease_s: float, *, error: str | None = None) -> None:
        """Renew a lease for ``lease_s`` seconds, and record the error of the last look. Raises ``LeaseLost``."""
        said = None if error is None else make_storable(error[:_ERROR_CHARS_MAX])
        self._require_lease(
            self.database.execute(
                sa.update(channels)
                .where(_is_leased_by(hold))
                .values(
                    lease_until=db_now() + lease_s,
                    looked_at=db_now(),
                    error=said,
                    error_at=None if said is None else db_now(),
                )
            ),
            hold,
        )

    def advance_cursor(self, hold: AccountLease, cursor: str) -> None:
        """Write how far the account is read. Raises ``LeaseLost``."""
        moved = self.database.execute(
            sa.update(channels).where(_is_leased_by(hold)).values(cursor=make_storable(cursor))
        )
        self._require_lease(moved, hold)

    def release(self, hold: AccountLease) -> None:
        """Release the lease of an account. Idempotent."""
        self.database.execute(
            sa.update(channels)
            .where(channels.c.account == hold.account, channels.c.lease_token == hold.token)
            .values(_FREE)
        )

    def release_leases_of(self, holder: str) -> None:
        """Release the leases of every account of a gateway that has ended. Idempotent."""
        self.database.execute(sa.update(channels).where(channels.c.holder == make_storable(holder[:200])).values(_FREE))

    def list_accounts(self) -> list[AccountView]:
        columns = [channels.c[each.name] for each in fields(AccountView)]
        rows = self.database.select(sa.select(*columns).order_by(channels.c.account)).mappings()
        return [AccountView(**row) for row in rows]

    @staticmethod
    def _require_lease(matched: int, hold: AccountLease) -> None:
        if not matched:
            raise LeaseLost(f"the account {hold.account!r} is listened to by somebody else now")

    # --- events ------------------------------------------------------------------------------------------------------

    def insert_event(
        self, connection: Connection, event: InboundEvent, outcome: str, run_id: str | None = None
    ) -> None:
        """Insert an event's row, in the transaction that writes its effects. Raises ``EventKnown``, ``LeaseLost``."""
        if event.hold is not None:
            cursor = channels.c.cursor if event.cursor is None else make_storable(event.cursor)
            moved = connection.execute(sa.update(channels).where(_is_leased_by(event.hold)).values(cursor=cursor))
            self._require_lease(moved.rowcount, event.hold)
        elif not event.is_beside:
            _insert_webhook_account(connection, event.account)
        if _insert_event(connection, event, tenant=self.tenant, outcome=outcome, run_id=run_id):
            return
        broken = _is_event(event) & (inbound.c.outcome == _BROKEN)
        taken = connection.execute(sa.update(inbound).where(broken).values(outcome=outcome, run_id=run_id))
        if not taken.rowcount:
            raise EventKnown

    def record_failure(self, event: InboundEvent) -> int:
        """Record that our code failed on an event. Returns how often it did, over all processes; 0 when another process
        handled the event meanwhile. The event is not handled by this."""
        tries = sa.func.coalesce(inbound.c.tries, 0) + 1
        with self.database.write() as connection:
            if _insert_event(connection, event, tenant=self.tenant, outcome=_BROKEN, tries=1):
                return 1
            broken = _is_event(event) & (inbound.c.outcome == _BROKEN)
            counted = sa.update(inbound).where(broken).values(tries=tries).returning(inbound.c.tries)
            return int(connection.execute(counted).scalar() or 0)

    def set_outcome(self, connection: Connection, event: InboundEvent, outcome: str, run_id: str | None) -> None:
        """Write the outcome of an event, in the transaction that inserted it."""
        connection.execute(sa.update(inbound).where(_is_event(event)).values(outcome=outcome, run_id=run_id))

    def is_handled(self, event: InboundEvent) -> bool:
        """Whether the event was handled."""
        outcome = self.database.select(sa.select(inbound.c.outcome).where(_is_event(event))).scalar()
        return outcome not in (None, _BROKEN)

    # --- chats -------------------------------------------------------------------------------------------------------

    def load_chat(self, account: str, session_key: str) -> ChatState:
        """Load the state of a chat. One statement."""
        wanted = sa.select(*select_columns(chats, ChatState)).where(_is_chat(account, session_key))
        return fetch_row(self.database.select(wanted), ChatState) or ChatState()

    def start_new_conversation(
        self,
        connection: Connection,
        account: str,
        session_key: str,
        after: int | None = None,
        *,
        model: str | None = None,
    ) -> bool:
        """Make the next message of the chat begin a new conversation, with ``model``. With ``after`` only if the chat
        has begun exactly so many. Returns whether it was done."""
        this = _is_chat(account, session_key)
        if after is not None:
            this &= chats.c.generation == after
        self._insert_chat(connection, account, session_key)
        values = {"generation": chats.c.generation + 1, "model": model, "updated_at": db_now()}
        return bool(connection.execute(sa.update(chats).where(this).values(**values)).rowcount)

    def set_model(self, connection: Connection, account: str, session_key: str, model: str | None) -> None:
        """Set the model of the chat's present conversation; ``None`` for the default."""
        self._insert_chat(connection, account, session_key)
        values = {"model": model, "updated_at": db_now()}
        connection.execute(sa.update(chats).where(_is_chat(account, session_key)).values(**values))

    def _insert_chat(self, connection: Connection, account: str, session_key: str) -> None:
        row = {"account": account, "session_key": session_key, "tenant": self.tenant, "generation": 0}
        connection.execute(build_insert_ignoring(connection, chats).values(**row, updated_at=db_now()))

    def load_activity(self, source: str, name: str) -> SessionActivity | None:
        """Load the last activity in a chat's session; ``None`` while the session does not exist. One statement."""
        this = session_is(self.tenant, source, name)
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
        found = self.database.select(wanted).first()
        return None if found is None else SessionActivity(*found)

    def stop(self, connection: Connection, source: str, name: str, by: str) -> StoppedChat | None:
        """Stop the run at work in a chat's session, or the first that has still to begin, such as one that waits for
        files; ``None`` when there is none. The caller has to stop what the run caused afterwards; if it does not, the
        sweeper does."""
        active: int | None = connection.execute(_select_active_run(self.tenant, source, name)).scalar()
        pk = active or connection.execute(_select_first_queued(self.tenant, source, name)).scalar()
        loaded = None if pk is None else lock_run(connection, pk)
        if loaded is None or loaded.run.status.is_terminal:
            return None
        _, hints = stop_run(connection, loaded, by)
        record_action(connection, Act.RUN_STOP, loaded.run.run_id, before={"status": loaded.run.status.value})
        return StoppedChat(run_id=loaded.run.run_id, hints=hints)

    def load_queue(self, source: str, name: str) -> tuple[str | None, int]:
        """Find the id of the run at work in a chat's session, or ``None``, and how many runs wait behind it."""
        this = session_is(self.tenant, source, name)
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
        active = sa.select(runs.c.run_id).where(
            runs.c.pk == _select_active_run(self.tenant, source, name).scalar_subquery()
        )
        with self.database.read() as connection:
            return connection.execute(active).scalar(), int(connection.execute(waiting).scalar_one())

    def may_join_waiting(self, source: str, name: str, burst: ChatBurst) -> bool:
        """Whether the newest run of a chat's session has not begun and ``burst`` belongs to it. One statement."""
        return self.database.select(_select_waiting(self.tenant, source, name, burst)).first() is not None

    def join_waiting(self, connection: Connection, source: str, name: str, burst: ChatBurst) -> str | None:
        """Append a message to the input of the newest run, if it has not begun. Returns its id; ``None`` when it began
        meanwhile, and then nothing was written. The run cannot begin in between, since that takes the row of its
        session."""
        this = session_is(self.tenant, source, name)
        connection.execute(sa.select(sessions.c.pk).where(this).with_for_update())
        found = fetch_row(connection.execute(_select_waiting(self.tenant, source, name, burst)), _WaitingRow)
        spec = None if found is None else require_spec(connection, found.pk)
        if found is None or spec is None or not isinstance(spec.input, str) or spec.compress is not None:
            return None
        whole = join_texts(spec.input, burst.text)
        if whole is None:
            return None
        update_spec(connection, found.pk, replace(spec, input=whole))
        connection.execute(sa.update(runs).where(runs.c.pk == found.pk).values(updated_at=db_now()))
        return found.run_id

    def list_questions(self, source: str, name: str) -> list[ChatQuestion]:
        """List the open questions that were put to the chat of a session, oldest first, and the recently closed ones
        with them; an empty list, with one statement, when none is open."""
        wanted = _select_questions(self.tenant, source, name)
        is_open = waits.c.closed_at.is_(None)
        with self.database.read() as connection:
            # No ORDER BY: with one, SQLite would read the whole table instead of the index of open waits.
            rows = fetch_rows(connection.execute(wanted.where(is_open)), _QuestionRow)
            if not rows:
                return []
            # Read only the end of the table: people do not refer to questions that were closed long ago.
            lately = waits.c.pk > min(row.pk for row in rows) - _LATELY
            closed = wanted.where(~is_open, lately).order_by(waits.c.pk.desc()).limit(_CLOSED_QUESTIONS)
            rows += fetch_rows(connection.execute(closed), _QuestionRow)
            shown = _load_messages(connection, [row.pk for row in rows])
        found = [_to_chat_question(row, shown.get(row.pk, ())) for row in rows]
        return sorted((each for each in found if each is not None), key=lambda each: each.wait_id)

    def was_code_asked(self, questions: Sequence[ChatQuestion]) -> bool:
        """Whether the chat was asked for the code of one of these questions since the newest of them opened."""
        if not questions:
            return False
        run_ids = {each.run_id for each in questions}
        since = max(each.opened_at for each in questions)
        asked = sa.select(inbound.c.pk).where(
            inbound.c.received_at >= since, inbound.c.outcome == CODE_ASKED, inbound.c.run_id.in_(run_ids)
        )
        return self.database.select(asked.limit(1)).first() is not None

    def was_asked(self, source: str, name: str, wait_id: int) -> bool:
        """Whether a question, open or closed, belongs to a chat's session. One statement."""
        its = _select_questions(self.tenant, source, name).where(waits.c.pk == wait_id)
        return self.database.select(its).first() is not None

    # --- who is in and who asks to be --------------------------------------------------------------------------------

    def read_clock(self) -> float:
        """The database's clock."""
        return self.database.read_clock()

    def deny(self, account: str, person: str) -> bool:
        """Withdraw the pairing code of a person who asks to be admitted. Returns whether there was one. The time before
        which they get another code stays."""
        asks = _has_open_code(account) & _is_person(account, person)
        no_code = {"salt": None, "code_hash": None, "expires_at": None}
        with self.database.write() as connection:
            taken = connection.execute(sa.update(chat_people).where(asks).values(no_code)).rowcount
            if taken:
                record_action(connection, Act.CHAT_DENY, account, before={"person": person})
            return bool(taken)

    # --- people ------------------------------------------------------------------------------------------------------

    def _is_person(self, account: str, person: str) -> sa.ColumnElement[bool]:
        return _is_person(account, person) & (chat_people.c.tenant == self.tenant)

    def find_role(self, account: str, person: str) -> ChatRole | None:
        """Find the role of a paired person; ``None`` for a stranger."""
        role = self.database.select(sa.select(chat_people.c.role).where(self._is_person(account, person))).scalar()
        return None if role is None else ChatRole(role)

    def create_code(self, connection: Connection, account: str, person: str) -> str | None:
        """Create a pairing code for a stranger and store its hash; ``None`` when it is too soon for another, too many
        are open, or the account is locked."""
        this = self._is_person(account, person)
        _lock_account(connection, account)
        open_ones = sa.select(sa.func.count()).where(_has_open_code(account))
        asked = connection.execute(
            sa.select(chat_people.c.asked_at > db_now() - CODE_EVERY_S).where(this).with_for_update()
        ).scalar()
        if asked or _is_locked(connection, account):
            return None
        others = open_ones.where(sa.not_(this))
        if connection.execute(others).scalar_one() >= CODES_MAX:
            return None
        code, hashed = create_code()
        connection.execute(sa.delete(chat_people).where(this, chat_people.c.role.is_(None)))
        connection.execute(
            sa.insert(chat_people).values(
                account=account,
                person=make_storable(person),
                tenant=self.tenant,
                salt=hashed.salt,
                code_hash=hashed.hash,
                expires_at=db_now() + CODE_LIVES_S,
                asked_at=db_now(),
            )
        )
        return code

    def pair(self, account: str, code: str, role: ChatRole) -> str:
        """Admit the person who was given ``code``, to the chats of the tenant in one of which it was given. Returns the
        person's id. Raises ``PairingRefused``: after five wrong codes every code is refused for an hour."""
        with self.database.write() as connection:
            _lock_account(connection, account)
            if _is_locked(connection, account):
                raise PairingRefused("too many wrong codes were tried; try again in an hour")
            columns = (chat_people.c.person, chat_people.c.tenant, chat_people.c.salt, chat_people.c.code_hash)
            asked = [_CodeRow(*row) for row in connection.execute(sa.select(*columns).where(_has_open_code(account)))]
            found = next((one for one in asked if one.hashed_code.matches(code)), None)
            if found is not None:
                connection.execute(
                    sa.update(chat_people)
                    .where(_is_person(account, found.person), chat_people.c.tenant == found.tenant)
                    .values(role=role.value, paired_at=db_now(), salt=None, code_hash=None, expires_at=None)
                )
                connection.execute(sa.update(channels).where(channels.c.account == account).values(failures=0))
                told = {"person": found.person, "role": role.value, "tenant": found.tenant}
                record_action(connection, Act.CHAT_PAIR, account, after=told)
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
        """Revoke a person's admission, to the chats of every tenant. Returns whether the person was admitted."""
        with self.database.write() as connection:
            gone = connection.execute(sa.delete(chat_people).where(_is_person(account, person)))
            if gone.rowcount:
                record_action(connection, Act.CHAT_REVOKE, account, before={"person": person})
            return bool(gone.rowcount)

    def list_people(self, account: str | None = None) -> list[ChatPerson]:
        """List the people who were admitted or whose code is still valid, of one account or of all, by account and
        tenant; the first who asked come first."""
        columns = [chat_people.c[name] for name in ChatPerson._fields]
        is_known = chat_people.c.role.is_not(None) | (chat_people.c.expires_at > db_now())
        wanted = (
            sa.select(*columns)
            .where(is_known)
            .order_by(chat_people.c.account, chat_people.c.tenant, chat_people.c.asked_at, chat_people.c.person)
        )
        if account is not None:
            wanted = wanted.where(chat_people.c.account == account)
        found = [ChatPerson(*row) for row in self.database.select(wanted)]
        return [one._replace(role=None if one.role is None else ChatRole(one.role)) for one in found]

    def delete_codes(self, account: str) -> int:
        """Withdraw all unused pairing codes of an account. Returns how many. Their holders may ask again at once."""
        with self.database.write() as connection:
            gone = connection.execute(
                sa.delete(chat_people).where(chat_people.c.account == account, chat_people.c.role.is_(None))
            ).rowcount
            if gone:
                record_action(connection, Act.CHAT_FORGET, account, before={"codes": gone})
            return gone


def _insert_webhook_account(connection: Connection, account: str) -> None:
    """Insert the row of an account whose platform pushes events. A row that is right already is only read."""
    mode, this = "webhook", channels.c.account == account
    if connection.execute(sa.select(channels.c.mode).where(this)).scalar() == mode:
        return
    row = {"account": account, "tenant": DEFAULT_TENANT, "mode": mode, "created_at": db_now()}
    connection.execute(build_insert_ignoring(connection, channels).values(**row))
    connection.execute(sa.update(channels).where(this, channels.c.mode != mode).values(mode=mode, cursor=None))


def _insert_event(connection: Connection, event: InboundEvent, **values: object) -> bool:
    """Insert an event's row. Returns False when there was one."""
    row = {"account": event.account, "event_key": make_storable(event.key), **values}
    written = build_insert_ignoring(connection, inbound).values(**row, received_at=db_now()).returning(inbound.c.pk)
    return connection.execute(written).first() is not None


def _is_leased_by(hold: AccountLease) -> sa.ColumnElement[bool]:
    is_ours = (channels.c.account == hold.account) & (channels.c.lease_token == hold.token)
    return is_ours & (channels.c.lease_until > db_now())


def _is_event(event: InboundEvent) -> sa.ColumnElement[bool]:
    return (inbound.c.account == event.account) & (inbound.c.event_key == make_storable(event.key))


def _is_chat(account: str, session_key: str) -> sa.ColumnElement[bool]:
    return (chats.c.account == account) & (chats.c.session_key == session_key)


def _has_open_code(account: str) -> sa.ColumnElement[bool]:
    is_asked = (chat_people.c.account == account) & chat_people.c.role.is_(None)
    return is_asked & (chat_people.c.expires_at > db_now())


def _is_person(account: str, person: str) -> sa.ColumnElement[bool]:
    return (chat_people.c.account == account) & (chat_people.c.person == make_storable(person))


def _select_active_run(tenant: str, source: str, name: str) -> sa.Select[Any]:
    return sa.select(sessions.c.active_run_pk).where(session_is(tenant, source, name))


def _select_questions(tenant: str, source: str, name: str) -> sa.Select[Any]:
    """Select the questions of the runs of a session and of all runs that they caused."""
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


def _load_messages(connection: Connection, wait_pks: Sequence[int]) -> dict[int, list[_ShownRow]]:
    """Load the deliveries of questions, by question."""
    its_run = sa.select(waits.c.run_pk).where(waits.c.pk.in_(wait_pks))
    arrived_at = sa.case((deliveries.c.state == DeliveryState.DELIVERED.value, deliveries.c.settled_at)).label(
        "arrived_at"
    )
    wanted = sa.select(deliveries.c.wait_pk, deliveries.c.receipt, arrived_at).where(
        deliveries.c.run_pk.in_(its_run), deliveries.c.wait_pk.in_(wait_pks)
    )
    found: dict[int, list[_ShownRow]] = {}
    for row in fetch_rows(connection.execute(wanted), _ShownRow):
        found.setdefault(row.wait_pk, []).append(row)
    return found


def _to_chat_question(row: _QuestionRow, shown: Sequence[_ShownRow]) -> ChatQuestion | None:
    """Build a question of a chat; ``None`` for one that is not answered by a person."""
    question = Question(kind=WaitKind(row.kind), request=json.loads(row.request))
    if render_question(question) is None:
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
        messages=frozenset(message_id for each in shown for message_id in parse_message_ids(each.receipt)),
    )


def _select_first_queued(tenant: str, source: str, name: str) -> sa.Select[Any]:
    return (
        sa.select(sa.func.min(runs.c.pk))
        .select_from(runs)
        .join(sessions, sessions.c.pk == runs.c.session_pk)
        .where(session_is(tenant, source, name), runs.c.status == RunStatus.QUEUED.value)
    )


def _select_waiting(tenant: str, source: str, name: str, burst: ChatBurst) -> sa.Select[Any]:
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


def _lock_account(connection: Connection, account: str) -> None:
    """Lock the account, so that its pairing codes are counted by one transaction at a time."""
    connection.execute(sa.select(channels.c.account).where(channels.c.account == account).with_for_update())


def _is_locked(connection: Connection, account: str) -> bool:
    wanted = sa.select(channels.c.locked_until > db_now()).where(channels.c.account == account)
    return bool(connection.execute(wanted).scalar())


_ALIKE_MAX = 20


class KnownChats(TenantRows):
    """The chats of one tenant. Thread-safe; every method raises ``UnavailableError``."""

    def record_name(self, account: str, chat: str, name: str) -> None:
        """Record that a chat is called ``name``; an empty name is ignored. Idempotent, and only reads where nothing is
        new."""
        if not name:
            return
        this = _is_known_chat(account, chat) & (known_chats.c.tenant == self.tenant)
        if self.database.select(sa.select(known_chats.c.name).where(this)).scalar() == make_storable(name):
            return
        with self.database.write() as connection:
            self._insert_chat(connection, account, chat)
            values = {"name": make_storable(name), "tenant": self.tenant, "learnt_at": db_now()}
            connection.execute(sa.update(known_chats).where(_is_known_chat(account, chat)).values(**values))

    def set_home(self, connection: Connection, account: str, chat: str, thread: str | None) -> None:
        """Make a chat the home channel of its platform, replacing any other. Idempotent."""
        platform = _read_platform(account)
        others = (known_chats.c.tenant == self.tenant) & (known_chats.c.platform == platform)
        connection.execute(sa.update(known_chats).where(others, known_chats.c.is_home).values(is_home=False))
        self._insert_chat(connection, account, chat)
        values = {"is_home": True, "thread": thread, "tenant": self.tenant, "learnt_at": db_now()}
        connection.execute(sa.update(known_chats).where(_is_known_chat(account, chat)).values(**values))
        record_action(connection, Act.CHAT_HOME, account, after={"chat": chat, "thread": thread})

    def list_homes(self) -> list[KnownChat]:
        """List the home channel of each platform that has one."""
        return self._list_chats(known_chats.c.is_home, with_threads=True)

    def find_by_name(self, platform: str, name: str) -> list[KnownChat]:
        """Find the chats of a platform that are called ``name``, normalised by ``core.chat_names.normalize_name``."""
        return self._list_chats((known_chats.c.platform == platform) & (known_chats.c.name == make_storable(name)))

    def _list_chats(self, where: sa.ColumnElement[bool], *, with_threads: bool = False) -> list[KnownChat]:
        wanted = sa.select(*select_columns(known_chats, KnownChat)).where(known_chats.c.tenant == self.tenant, where)
        found = fetch_rows(self.database.select(wanted.order_by(known_chats.c.account).limit(_ALIKE_MAX)), KnownChat)
        return list(found) if with_threads else [row._replace(thread=None) for row in found]

    def _insert_chat(self, connection: Connection, account: str, chat: str) -> None:
        row = {"account": account, "chat": make_storable(chat[:CHAT_CHARS_MAX]), "tenant": self.tenant}
        whole = {**row, "platform": _read_platform(account), "learnt_at": db_now()}
        connection.execute(build_insert_ignoring(connection, known_chats).values(**whole))


def _read_platform(account: str) -> str:
    return account.partition(":")[0]


def _is_known_chat(account: str, chat: str) -> sa.ColumnElement[bool]:
    return (known_chats.c.account == account) & (known_chats.c.chat == make_storable(chat[:CHAT_CHARS_MAX]))
