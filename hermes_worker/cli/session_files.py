"""Read and write files of conversations: JSON Lines, and Hermes Agent's ``state.db``. The files come from strangers."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TextIO

from hermes_worker.core.session_imports import (
    FILE_BYTES_MAX,
    MESSAGES_MAX,
    MESSAGES_OF_FILE_MAX,
    SESSION_BYTES_MAX,
    SESSIONS_MAX,
    InvalidImport,
)

if TYPE_CHECKING:
    from hermes_worker.schemas.sessions import MessageObject, SessionObject

_SQLITE = b"SQLite format 3\x00"
_DATABASE_S_MAX = 60.0
"""A statement of a prepared file could run for ever."""
_STEPS_BETWEEN = 100_000
_OF_SESSIONS = ("id", "title", "model", "parent_session_id", "started_at", "ended_at", "end_reason")
_OF_MESSAGES = ("role", "content", "tool_call_id", "tool_calls", "timestamp")


def read_documents(path: Path) -> Iterator[object]:
    """Read the conversations of a file, one at a time, of a ``state.db`` oldest first. A line that is no JSON is an
    ``InvalidImport`` among them, so that the others are still read. Raises ``InvalidImport``, ``OSError``."""
    with path.open("rb") as file:
        is_database = file.read(len(_SQLITE)) == _SQLITE
        file.seek(0)
        found = _read_database(path) if is_database else _read_lines(file)
        messages = 0
        for number, document in enumerate(found):
            if number >= SESSIONS_MAX:
                raise InvalidImport(f"a file may have {SESSIONS_MAX} sessions; the rest was not read")
            rows = document.get("messages") if isinstance(document, Mapping) else None
            messages += len(rows) if isinstance(rows, list) else 0
            if messages > MESSAGES_OF_FILE_MAX:
                raise InvalidImport(f"a file may have {MESSAGES_OF_FILE_MAX} messages; the rest was not read")
            yield document


def _read_lines(file: BinaryIO) -> Iterator[object]:
    read = 0
    while line := file.readline(SESSION_BYTES_MAX + 1):
        read += len(line)
        if len(line) > SESSION_BYTES_MAX or read > FILE_BYTES_MAX:
            raise InvalidImport(
                f"a session may have {SESSION_BYTES_MAX} bytes and a file {FILE_BYTES_MAX}; the rest was not read"
            )
        if not line.strip():
            continue
        try:
            yield json.loads(line)
        except (ValueError, RecursionError):
            yield InvalidImport("the line is no JSON")


def _read_database(path: Path) -> Iterator[object]:
    ends_at = time.monotonic() + _DATABASE_S_MAX
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=5)) as connection:
            connection.execute("pragma trusted_schema = off")
            connection.execute("pragma query_only = on")
            connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, SESSION_BYTES_MAX)
            connection.set_progress_handler(lambda: time.monotonic() > ends_at, _STEPS_BETWEEN)
            of_sessions = _find_columns(connection, "sessions", _OF_SESSIONS)
            of_messages = _find_columns(connection, "messages", _OF_MESSAGES)
            if "id" not in of_sessions or "role" not in of_messages:
                raise InvalidImport("the database has no sessions in the form of Hermes Agent")
            order = "started_at" if "started_at" in of_sessions else "id"
            asked = f"select {', '.join(of_sessions)} from sessions order by {order} limit {SESSIONS_MAX + 1}"
            for row in connection.execute(asked).fetchall():
                document: dict[str, Any] = dict(zip(of_sessions, row, strict=True))
                yield {**document, "messages": _read_messages(connection, document["id"], of_messages)}
    except sqlite3.Error as error:
        raise InvalidImport(f"the database cannot be read: {error}") from None


def _find_columns(connection: sqlite3.Connection, table: str, wanted: Iterable[str]) -> list[str]:
    """Find those of ``wanted`` that a table has. A view of that name is none: it could compute anything."""
    kind = connection.execute("select type from sqlite_master where name = ?", (table,)).fetchone()
    if kind is None or kind[0] != "table":
        return []
    there = {row[1] for row in connection.execute(f"pragma table_info({table})")}
    return [name for name in wanted if name in there]


def _read_messages(connection: sqlite3.Connection, session_id: object, columns: list[str]) -> list[dict[str, Any]]:
    """Read what Hermes Agent's model was shown last: rows that a compaction replaced are left out."""
    there = {row[1] for row in connection.execute("pragma table_info(messages)")}
    active = "and active = 1" if "active" in there else ""
    asked = f"select {', '.join(columns)} from messages where session_id = ? {active} order by id limit ?"
    rows = connection.execute(asked, (session_id, MESSAGES_MAX + 1))
    return [dict(zip(columns, row, strict=True)) for row in rows]


def write_session(out: TextIO, session: SessionObject, messages: Iterable[MessageObject]) -> None:
    """Write one line, message by message, so that a long conversation is never whole in memory."""
    out.write(f'{json.dumps(session.model_dump(by_alias=True), ensure_ascii=False)[:-1]}, "messages": [')
    for number, message in enumerate(messages):
        out.write((", " if number else "") + json.dumps(message.model_dump(), ensure_ascii=False))
    out.write("]}\n")
