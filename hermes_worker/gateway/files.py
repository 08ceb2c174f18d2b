"""The files of a message: rows that are written with the run which waits for them. Nothing is fetched here, so a
listener never waits for a file."""

from __future__ import annotations

from sqlalchemy.engine import Connection

from hermes_worker.channels.catalog import list_platforms
from hermes_worker.core.inbound import Inbound, InboundMessage, list_media
from hermes_worker.core.inbound_files import FILES_MAX, explain_not_fetched
from hermes_worker.core.media_kinds import MediaKind
from hermes_worker.store.inbound_files import (
    FileChat,
    JoinedRun,
    NewFile,
    NewFiles,
    begin_if_ready,
    enqueue_files,
    find_gathering_run,
    find_wait_s,
    join_gathering_run,
)
from hermes_worker.store.rows import Hint
from hermes_worker.wiring import Client

FILE_WAIT_S = 90.0
"""Seconds that a message waits for its files. Then it begins, and the agent is told which are missing."""


class FileTurns:
    """Turns with files, in the chats of one tenant. Thread-safe."""

    def __init__(self, client: Client, tenant: str) -> None:
        self._client = client
        self._tenant = tenant

    def build_files(self, account: str, event: Inbound, *, is_guest: bool) -> NewFiles:
        """Build rows for the files of an event, including those that will not be fetched at all."""
        media, said = list_media(event), self._client.settings.gateway
        receiving = list_platforms()[account.partition(":")[0]].receiving
        is_fetched_here = receiving is not None and receiving.gives_files
        refusals = [
            explain_not_fetched(
                one, bytes_max=said.file_mb_max * 1024**2, is_fetched_here=is_fetched_here, is_guest=is_guest
            )
            for one in media
        ]
        known = [NewFile(media=one, refused=refusal) for one, refusal in zip(media, refusals, strict=True)]
        album = event.album if isinstance(event, InboundMessage) else ""
        says_nothing = isinstance(event, InboundMessage) and not event.text.strip()
        is_picture = any(one.kind is MediaKind.IMAGE for one in media)
        return NewFiles(
            account=account,
            files=known[:FILES_MAX],
            album=album,
            gathers_s=said.burst_s if album or (is_picture and says_nothing) else 0.0,
        )

    def build_file_chat(self, source: str, session: str, principal: str) -> FileChat:
        return FileChat(tenant=self._tenant, source=source, session=session, principal=principal)

    def is_gathering(self, chat: FileChat, files: NewFiles) -> bool:
        """Whether a run of the same person waits for files and takes more. One statement."""
        with self._client.database.read() as connection:
            return find_gathering_run(connection, chat, files.album_hash) is not None

    def find_others_wait_s(self, chat: FileChat) -> float | None:
        """Find within how many seconds those runs of a chat's session have begun that wait for their files; ``None``
        where none does. One statement."""
        with self._client.database.read() as connection:
            return find_wait_s(connection, chat)

    def enqueue_fetches(self, connection: Connection, run_id: str, files: NewFiles) -> list[Hint]:
        """Enqueue the fetching of a new run's files, in the transaction that takes the message."""
        return enqueue_files(connection, run_id, files, self._tenant) + begin_if_ready(connection, run_id)

    def join(self, connection: Connection, chat: FileChat, text: str, files: NewFiles) -> JoinedRun | None:
        """Add a message to the run that gathers files, in the transaction that takes it; ``None`` where none does any
        more."""
        return join_gathering_run(connection, chat, text, files, wait_s=FILE_WAIT_S)
