"""Chat commands about more than the run at work: choose a model, undo a turn, set the home channel, list jobs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from sqlalchemy.engine import Connection

from hermes_worker.channels.targets import parse_chat
from hermes_worker.core.chat_accounts import DEFAULT_ACCOUNT, ChatOwner, format_account
from hermes_worker.core.principals import DEFAULT_TENANT
from hermes_worker.services.submission import (
    DEFAULT_MODEL_ALIAS,
    InvalidSubmission,
    Submission,
    find_usable_model,
    list_offered_models,
)
from hermes_worker.store.jobs.job_rows import JobRow
from hermes_worker.store.jobs.jobs import Jobs
from hermes_worker.store.known_chats import KnownChats
from hermes_worker.store.last_turns import LastTurn
from hermes_worker.store.sessions import Sessions
from hermes_worker.wiring import Client

_JOBS_MAX = 20
_NAME_CHARS_MAX = 80
_USUAL = ("default", DEFAULT_MODEL_ALIAS)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatModelChoice:
    """A choice of a model, and the answer to the person."""

    told: str
    model: str | None = None
    """``None`` for the default model."""
    is_made: bool = False
    """Whether a model was chosen, and not only asked about."""


def choose_chat_model(client: Client, asked: Submission, name: str) -> ChatModelChoice:
    """Choose the model ``name`` for a conversation whose turns are ``asked``, with the checks of the API; an empty name
    only asks. Raises ``UnavailableError``."""
    try:
        if name.lower() in _USUAL:
            usual = find_usable_model(client, replace(asked, model=None))
            return ChatModelChoice(told=f"This conversation asks the usual model: {usual}", is_made=True)
        if name:
            model = find_usable_model(client, replace(asked, model=name))
            return ChatModelChoice(told=f"This conversation asks {model} from now on.", model=model, is_made=True)
        lines = [f"This conversation asks {find_usable_model(client, asked)}."]
        lines += [f"/model {each}" for each in list_offered_models(client, asked)]
        lines.append("/model default asks the usual one again.")
        return ChatModelChoice(told="\n".join(lines))
    except InvalidSubmission as error:
        return ChatModelChoice(told=f"This cannot be chosen: {error}")


def undo_turn(connection: Connection, kept: Sessions, turn: LastTurn, session: str, fork: str) -> str:
    """Begin the session ``fork`` with the transcript of ``session`` before its last turn, and write the answer. The
    transcript is not changed (I7), and what the turn did is not undone. Raises ``SessionNotFound``, ``InvalidFork``."""
    if turn.kept:
        kept.insert_fork(connection, session, name=fork, last=turn.kept)
    told = "What was said last, and the answer to it, is taken back."
    if not turn.kept:
        told += " Nothing was said before it, so this is a new conversation."
    return f"{told}\n{_describe_effects(turn.effects)}" if turn.effects else told


def _describe_effects(effects: Mapping[str, int]) -> str:
    named = [name if times == 1 else f"{name} ({times} times)" for name, times in effects.items()]
    return f"What was done for it stays done: {', '.join(named)}."


def set_home_channel(connection: Connection, client: Client, target: str | None, owner: ChatOwner) -> str:
    """Make the chat that ``target`` names the home channel of its platform, and write the answer."""
    if owner.tenant != DEFAULT_TENANT:
        return "Only chats of the installation's own tenant can be home channels."
    if target is None:
        return "Nothing can be sent here by name, so this cannot be a home channel."
    sender, _, reference = target.partition(":")
    chat = parse_chat(sender, reference)
    account = format_account(chat.platform, chat.account or DEFAULT_ACCOUNT)
    KnownChats(client.database).set_home(connection, account, chat.chat, chat.thread)
    return f"What is sent to {chat.platform!r} comes here from now on."


def render_jobs(client: Client, tenant: str) -> str:
    """Write the list of a tenant's jobs, the next due ones first."""
    found = sorted(
        Jobs(client.database, tenant).list_jobs(), key=lambda row: (row.next_fire_at is None, row.next_fire_at)
    )
    if not found:
        return "Nothing is done by schedule."
    lines = [_format_job(row) for row in found[:_JOBS_MAX]]
    left = len(found) - len(lines)
    return "\n".join([*lines, f"and {left} more"] if left else lines)


def _format_job(row: JobRow) -> str:
    name = " ".join(row.name.split())[:_NAME_CHARS_MAX]
    if row.state != "scheduled" or row.next_fire_at is None:
        return f"{name} ({row.job_id}): {row.state}"
    at = datetime.fromtimestamp(row.next_fire_at, UTC)
    return f"{name} ({row.job_id}): next at {at:%Y-%m-%d %H:%M} UTC"
