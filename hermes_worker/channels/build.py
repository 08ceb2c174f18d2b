"""Build dispatchers, and what answers take along, from the settings."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from hermes_worker.local.paths import get_output_dir
from hermes_worker.settings import GatewaySettings, Settings
from hermes_worker.store.engine.database import Database

if TYPE_CHECKING:
    from hermes_worker.channels.dispatcher import Dispatcher
    from hermes_worker.channels.files import FileOutbox
    from hermes_worker.channels.learnt_chats import LearntChats
    from hermes_worker.channels.transcription import Transcription


FETCH_S = 60.0
"""Most seconds that one file of a person may take to be fetched, or to be transcribed."""


def build_learnt_chats(database: Database) -> LearntChats:
    """The chats that were learnt from people of the default tenant, whose names and home channels are targets."""
    from hermes_worker.channels.learnt_chats import LearntChats
    from hermes_worker.store.gateway import KnownChats

    known = KnownChats(database)
    return LearntChats(homes_known=known.list_homes, named_known=known.find_by_name)


def build_dispatcher(settings: Settings) -> Dispatcher:
    """Build the dispatcher, which takes deliveries to their targets with the credentials of ``settings``."""
    from hermes_worker.channels.dispatcher import Dispatcher

    return Dispatcher(
        values=settings.environ,
        directory=get_output_dir(settings.home),
        allows_private=settings.delivery.allow_private_urls,
        channels=settings.delivery.channels,
        rules=settings.gateway.rules,
    )


def build_file_outbox(
    settings: Settings, workspace: str, fetch_files: Callable[[str], None] = lambda workspace: None
) -> FileOutbox:
    """The files that an answer of a run in ``workspace`` may take along. ``fetch_files`` brings those that are kept
    elsewhere to this machine, and raises nothing."""
    from hermes_worker.channels.files import FileOutbox
    from hermes_worker.channels.media import list_denied_prefixes
    from hermes_worker.workspaces.ref import WorkspaceRef

    return FileOutbox(
        root=WorkspaceRef.from_json(workspace).root,
        more_roots=settings.delivery.media_dirs,
        denied=list_denied_prefixes(str(Path.home()), str(settings.home)),
        is_strict=settings.delivery.media_strict,
        fetch=partial(fetch_files, workspace),
    )


def make_transcriber(said: GatewaySettings) -> Callable[[bytes, str], Transcription]:
    """Build the function that transcribes recordings that people send."""
    from hermes_worker.channels.transcription import NOT_SET_UP, Transcriber

    if said.transcription_url is None:
        return lambda content, media_type: NOT_SET_UP
    key = said.transcription_key
    return Transcriber(
        url=said.transcription_url,
        key="" if key is None else key.reveal(),
        model=said.transcription_model,
        total_s=FETCH_S,
    ).transcribe
