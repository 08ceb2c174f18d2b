"""Chats that are known by name, and home channels, as people in the chats named them."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from hermes_worker.core.chat_names import CHAT_CHARS_MAX, KnownChat
from hermes_worker.store.access.audit import Act, record_action
from hermes_worker.store.engine.database import db_now
from hermes_worker.store.engine.prepared import fetch_rows, select_columns
from hermes_worker.store.owners import TenantRows
from hermes_worker.store.rows import build_insert_ignoring, make_storable
from hermes_worker.store.tables import known_chats

_ALIKE_MAX = 20


class KnownChats(TenantRows):
    """The chats of one tenant. Thread-safe; every method raises ``UnavailableError``."""

    def record_name(self, account: str, chat: str, name: str) -> None:
        """Record that a chat is called ``name``; an empty name is ignored. Idempotent, and only reads where nothing is
        new."""
        if not name:
            return
        this = _is_chat(account, chat) & (known_chats.c.tenant == self.tenant)
        if self.database.select(sa.select(known_chats.c.name).where(this)).scalar() == make_storable(name):
            return
        with self.database.write() as connection:
            self._insert_chat(connection, account, chat)
            values = {"name": make_storable(name), "tenant": self.tenant, "learnt_at": db_now()}
            connection.execute(sa.update(known_chats).where(_is_chat(account, chat)).values(**values))

    def set_home(self, connection: Connection, account: str, chat: str, thread: str | None) -> None:
        """Make a chat the home channel of its platform, replacing any other. Idempotent."""
        platform = _read_platform(account)
        others = (known_chats.c.tenant == self.tenant) & (known_chats.c.platform == platform)
        connection.execute(sa.update(known_chats).where(others, known_chats.c.is_home).values(is_home=False))
        self._insert_chat(connection, account, chat)
        values = {"is_home": True, "thread": thread, "tenant": self.tenant, "learnt_at": db_now()}
        connection.execute(sa.update(known_chats).where(_is_chat(account, chat)).values(**values))
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


def _is_chat(account: str, chat: str) -> sa.ColumnElement[bool]:
    return (known_chats.c.account == account) & (known_chats.c.chat == make_storable(chat[:CHAT_CHARS_MAX]))
