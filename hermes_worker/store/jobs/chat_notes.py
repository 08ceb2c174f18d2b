"""Find the session of a chat into which a job's answer is written: people begin new conversations, and the job stays
attached."""

from __future__ import annotations

import re

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from hermes_worker.core.sources import CHAT_SOURCE
from hermes_worker.store.runs.runs import session_is
from hermes_worker.store.tables import chats, sessions

_LATER = re.compile(r"(?P<key>.+)~[0-9]{1,9}", re.DOTALL)


def find_present_session(connection: Connection, tenant: str, session_id: str) -> str:
    """Find the id of the chat's present conversation for an earlier session of the chat; ``session_id`` itself when it
    belongs to no chat, or nothing was said in the new conversation yet."""
    this = (sessions.c.session_id == session_id) & (sessions.c.tenant == tenant)
    named = sa.select(sessions.c.name).where(this, sessions.c.source == CHAT_SOURCE)
    name = connection.execute(named).scalar()
    if name is None:
        return session_id
    later = _LATER.fullmatch(name)
    key = name if later is None else later["key"]
    its = (chats.c.session_key == key) & (chats.c.tenant == tenant)
    generation = connection.execute(sa.select(chats.c.generation).where(its).limit(1)).scalar()
    if not generation:
        return session_id
    present = session_is(tenant, CHAT_SOURCE, f"{key}~{generation}")
    return connection.execute(sa.select(sessions.c.session_id).where(present)).scalar() or session_id
