"""Read the facts from which an inbound event is decided: who speaks, and what goes on in the conversation.

Only what the event may need is read: a message of a stranger costs one statement, a turn about seven.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from hermes_worker.channels.catalog import list_platforms
from hermes_worker.core.answer_binding import ChatQuestion
from hermes_worker.core.budget import NANO
from hermes_worker.core.chat_accounts import DEFAULT_ACCOUNT, ChatOwner, add_account_suffix, format_account
from hermes_worker.core.chat_commands import ChatCommand, ChatRole, CommandAccess
from hermes_worker.core.gateway import (
    ButtonPressed,
    CommandSaid,
    EventIgnored,
    GroupPolicy,
    MessageSaid,
    OfferCode,
    Speakers,
    decide_event,
)
from hermes_worker.core.inbound import InboundButton, list_media
from hermes_worker.core.inbound_decision import (
    ChatModels,
    ChatSession,
    InboundConflict,
    InboundFacts,
    StartChatRun,
    choose_place,
    may_use,
)
from hermes_worker.core.pricing import CostStatus, format_cost
from hermes_worker.core.principals import DEFAULT_TENANT
from hermes_worker.core.session_keys import name_session, name_session_counter
from hermes_worker.core.session_resets import ChatActivity, ResetMode, ResetPolicies, ResetPolicy
from hermes_worker.core.spec import Multitask
from hermes_worker.gateway.files import FILE_WAIT_S, FileTurns
from hermes_worker.gateway.received import ReceivedEvent
from hermes_worker.gateway.turns import build_submission
from hermes_worker.services.submission import (
    DEFAULT_MODEL_ALIAS,
    InvalidSubmission,
    find_usable_model,
    list_offered_models,
)
from hermes_worker.settings import GatewaySettings, Settings
from hermes_worker.store.gateway import ChatBurst, GatewayRows
from hermes_worker.store.jobs.job_rows import JobRow
from hermes_worker.store.jobs.jobs import Jobs
from hermes_worker.store.runs.runs import SessionNotFound
from hermes_worker.store.sessions import Sessions, SessionTotals
from hermes_worker.wiring import Client

_JOBS_MAX = 20
_NAME_CHARS_MAX = 80
_USUAL = ("default", DEFAULT_MODEL_ALIAS)
_NOBODY = ChatOwner()


class FactReader:
    """Reads facts about events in the chats of one tenant. Thread-safe; raises ``UnavailableError``."""

    def __init__(self, client: Client, tenant: str, rows: GatewayRows, files: FileTurns) -> None:
        self._client = client
        self._tenant = tenant
        self._rows = rows
        self._files = files
        self._access = CommandAccess(client.settings.gateway.commands)

    def read(
        self, received: ReceivedEvent, conflicts: tuple[InboundConflict, ...] = ()
    ) -> tuple[ReceivedEvent, InboundFacts]:
        """Read what is known about an event. The event is returned as well, with the kind of its chat where the event
        does not say it. ``conflicts`` are those of earlier decisions about it."""
        paired = self._rows.find_role(received.account, received.event.sender.id)
        speakers = find_speakers(self._client.settings, received.platform, received.account_name, received.owner)
        received = self._choose_kind(received, speakers, paired)
        said = self._client.settings.gateway
        facts = InboundFacts(
            speakers=speakers,
            paired=paired,
            origin=received.origin,
            account=received.account,
            display_name=received.display_name,
            target=received.target,
            tenant=received.owner.tenant,
            access=self._access,
            busy_mode=said.busy_mode,
            reset_policy=_choose_reset_policy(said, received),
            file_wait_s=FILE_WAIT_S,
            conflicts=conflicts,
        )
        match decide_event(received.event, speakers, paired):
            case EventIgnored() | OfferCode():
                return received, facts
            case ButtonPressed() as press:
                return received, self._add_press(received, self._add_chat(received, facts, press.role), press)
            case CommandSaid() as said_command:
                return received, self._add_command(received, facts, said_command)
            case MessageSaid(role=role):
                facts = self._add_place(received, self._add_chat(received, facts, role), role)
                if not list_media(received.event):
                    facts = self._add_questions(received, facts, role)
                return received, self._add_turn(received, facts, role, said.busy_mode)

    def _choose_kind(self, received: ReceivedEvent, speakers: Speakers, paired: ChatRole | None) -> ReceivedEvent:
        """Choose the kind of chat of a press that does not say in which kind it was made: the one in which the question
        that it names is open."""
        event = received.event
        for kind in event.may_be if isinstance(event, InboundButton) else ():
            there = replace(received, event=replace(event, chat=replace(event.chat, kind=kind)))
            press = decide_event(there.event, speakers, paired)
            if isinstance(press, ButtonPressed):
                asked = self._list_questions(there, press.role)
                if any(each.wait_id == press.wait_id and each.is_open for each in asked):
                    return there
        return received

    def _add_chat(self, received: ReceivedEvent, facts: InboundFacts, role: ChatRole) -> InboundFacts:
        counter = name_session_counter(received.origin, is_guest=role is ChatRole.GUEST)
        generation, model = self._rows.load_chat(received.account, counter)
        is_handled = self._rows.is_handled(received.row)
        return replace(facts, generation=generation, model=model, is_handled=is_handled)

    def _add_place(self, received: ReceivedEvent, facts: InboundFacts, role: ChatRole) -> InboundFacts:
        """Add the activity of the session. Asks the database only where sessions end by themselves at all."""
        if facts.reset_policy.mode is ResetMode.NONE:
            return facts
        found = self._rows.load_activity(role.source, facts.present_session)
        if found is None or found.is_at_work:
            return facts
        began = None if found.process_at is None else datetime.fromtimestamp(found.process_at, UTC)
        activity = ChatActivity(
            now=datetime.fromtimestamp(found.now, UTC).astimezone(),  # in the time zone of this machine
            updated_at=datetime.fromtimestamp(found.said_at, UTC),
            newest_process_at=began,
        )
        return replace(facts, activity=activity)

    # --- questions ---------------------------------------------------------------------------------------------------

    def _list_questions(self, received: ReceivedEvent, role: ChatRole) -> list[ChatQuestion]:
        counter = name_session_counter(received.origin, is_guest=role is ChatRole.GUEST)
        generation, _ = self._rows.load_chat(received.account, counter)
        return self._list_questions_of(received, role, name_session(received.origin, generation))

    def _list_questions_of(self, received: ReceivedEvent, role: ChatRole, session: str) -> list[ChatQuestion]:
        """List what is asked in a session, and in a thread also the question of the chat below which it begins: a
        thread has a conversation of its own."""
        found, chat = self._rows.list_questions(role.source, session), received.event.chat
        if not chat.thread:
            return found
        outside = replace(received, event=replace(received.event, chat=replace(chat, thread="")))
        above = self._list_questions(outside, role)
        return [*(each for each in above if each.is_open and chat.thread in each.messages), *found]

    def _add_questions(self, received: ReceivedEvent, facts: InboundFacts, role: ChatRole) -> InboundFacts:
        found = self._list_questions_of(received, role, facts.present_session)
        was_code_asked = self._rows.was_code_asked([each for each in found if each.is_open])
        return replace(facts, questions=tuple(found), was_code_asked=was_code_asked)

    def _add_press(self, received: ReceivedEvent, facts: InboundFacts, press: ButtonPressed) -> InboundFacts:
        found = self._list_questions_of(received, press.role, facts.present_session)
        was_asked = any(each.wait_id == press.wait_id for each in found)
        was_asked = was_asked or self._rows.was_asked(press.role.source, facts.present_session, press.wait_id)
        return replace(facts, questions=tuple(found), was_asked=was_asked)

    # --- turns and commands ------------------------------------------------------------------------------------------

    def _add_turn(self, received: ReceivedEvent, facts: InboundFacts, role: ChatRole, multitask: str) -> InboundFacts:
        """Add what decides whether a message joins a run, waits behind others, or is said to the run at work."""
        place, event, burst_s = choose_place(facts), received.event, self._client.settings.gateway.burst_s
        chat = self._files.build_file_chat(role.source, place.session, received.principal)
        files = self._files.build_files(received.account, event, is_guest=role is ChatRole.GUEST)
        may_join = place.reset is None
        if may_join and self._files.is_gathering(chat, files):
            facts = replace(facts, is_gathering=True)
        if files.files:
            return facts
        if multitask == Multitask.STEER:
            facts = self._add_queue(facts, role, place.session)
        if may_join and burst_s and multitask == Multitask.QUEUE:
            burst = ChatBurst(principal=received.principal, within_s=burst_s)
            facts = replace(facts, may_join_waiting=self._rows.may_join_waiting(role.source, place.session, burst))
        return replace(facts, others_wait_s=self._files.find_others_wait_s(chat))

    def _add_queue(self, facts: InboundFacts, role: ChatRole, session: str) -> InboundFacts:
        run_id, waiting = self._rows.load_queue(role.source, session)
        return replace(facts, run_at_work=run_id, waiting=waiting)

    def _add_command(self, received: ReceivedEvent, facts: InboundFacts, said: CommandSaid) -> InboundFacts:
        if said.command is None or not may_use(received.event, facts, said.role, said.command):
            return facts
        role, facts = said.role, self._add_chat(received, facts, said.role)
        match said.command:
            case ChatCommand.STATUS:
                return self._add_queue(facts, role, facts.present_session)
            case ChatCommand.QUEUE | ChatCommand.STEER if said.arguments:
                facts = self._add_place(received, facts, role)
                return self._add_turn(received, facts, role, said.command.value)
            case ChatCommand.TITLE | ChatCommand.USAGE | ChatCommand.COMPRESS:
                facts = self._add_place(received, facts, role)
                return replace(facts, session=self._load_session(role, choose_place(facts).session))
            case ChatCommand.APPROVE | ChatCommand.DENY:
                return self._add_questions(received, facts, role)
            case ChatCommand.MODEL:
                facts = self._add_place(received, facts, role)
                return replace(facts, models=self._find_models(received, facts, role, said.arguments))
            case ChatCommand.JOBS:
                return replace(facts, jobs=_format_jobs(Jobs(self._client.database, self._tenant).list_jobs()))
            case _:
                return facts

    def _load_session(self, role: ChatRole, name: str) -> ChatSession | None:
        try:
            found = Sessions(self._client.database, self._tenant, role.source).get(name)
        except SessionNotFound:
            return None
        return ChatSession(title=found.title, asks_model=found.asks_model, usage=_format_usage(found.totals))

    def _find_models(self, received: ReceivedEvent, facts: InboundFacts, role: ChatRole, name: str) -> ChatModels:
        """Find the model ``name`` for the chat's conversation, with the checks of the API; an empty name only asks."""
        place, is_default = choose_place(facts), name.lower() in _USUAL
        start = StartChatRun(session=place.session, text="-", model=place.model)
        if name:
            start = replace(start, model=None if is_default else name)
        submission = build_submission(self._client.settings, received, role, start)
        try:
            usable = find_usable_model(self._client, submission)
            offered = () if name else tuple(list_offered_models(self._client, submission))
            return ChatModels(usable=usable, is_default=is_default, offered=offered)
        except InvalidSubmission as error:
            return ChatModels(refusal=str(error))


def find_speakers(
    settings: Settings, platform: str, name: str = DEFAULT_ACCOUNT, owner: ChatOwner = _NOBODY
) -> Speakers:
    """Find who may speak in the chats of an account that belong to ``owner``. The lists in settings concern chats of
    the account's own tenant; in chats of other tenants only people who were paired for them may speak."""

    def split_names(variable: str) -> tuple[str, ...]:
        own = settings.variables.get(add_account_suffix(f"{platform.upper()}_{variable}", name), "")
        return tuple(each.strip() for each in own.split(",") if each.strip())

    said, receiving = settings.gateway, list_platforms()[platform].receiving
    pairs = said.strangers == "pair" and (receiving is None or receiving.pairs)
    groups = GroupPolicy(said.groups)
    if owner.tenant != said.rules.find_owner_of_account(format_account(platform, name)).tenant:
        return Speakers(groups=GroupPolicy.KNOWN if groups is GroupPolicy.GUESTS else groups, pairs=pairs)
    is_of_operators = owner.tenant == DEFAULT_TENANT
    return Speakers(
        allowed=(*(said.allowed_users if is_of_operators else ()), *split_names("ALLOWED_USERS")),
        guests=(*(said.guests if is_of_operators else ()), *split_names("GUESTS")),
        groups=groups,
        open_groups=split_names("GROUP_ALLOWED_CHATS"),
        pairs=pairs,
    )


def _choose_reset_policy(said: GatewaySettings, received: ReceivedEvent) -> ResetPolicy:
    usual = ResetPolicy(
        mode=ResetMode(said.reset_mode),
        at_hour=said.reset_at_hour,
        idle_minutes=said.reset_idle_minutes,
        is_told=said.reset_told,
    )
    named = [text.partition("=") for text in said.reset_modes]
    own = {where: replace(usual, mode=ResetMode(mode)) for where, _, mode in named}
    policies = ResetPolicies(default=usual, by_chat_type=own, by_platform=own)
    return policies.find_policy(received.platform, received.event.chat.kind.value)


def _format_usage(totals: SessionTotals) -> str:
    """Write what a conversation has used, for people. Runs that are not kept any more are not in it."""
    status = CostStatus.UNKNOWN if totals.unpriced_runs else None
    cost = f", {format_cost(totals.nano_usd / NANO, status)}" if totals.nano_usd or totals.unpriced_runs else ""
    return (
        f"{totals.input:,} tokens in, {totals.output:,} out{cost}; "
        f"{totals.iterations:,} model calls, {totals.tool_calls:,} tool calls."
    )


def _format_jobs(rows: list[JobRow]) -> str:
    """Write the list of jobs, the next due ones first."""
    if not rows:
        return "Nothing is done by schedule."
    found = sorted(rows, key=lambda row: (row.next_fire_at is None, row.next_fire_at))
    lines = [_format_job(row) for row in found[:_JOBS_MAX]]
    left = len(found) - len(lines)
    return "\n".join([*lines, f"and {left} more"] if left else lines)


def _format_job(row: JobRow) -> str:
    name = " ".join(row.name.split())[:_NAME_CHARS_MAX]
    if row.state != "scheduled" or row.next_fire_at is None:
        return f"{name} ({row.job_id}): {row.state}"
    at = datetime.fromtimestamp(row.next_fire_at, UTC)
    return f"{name} ({row.job_id}): next at {at:%Y-%m-%d %H:%M} UTC"
