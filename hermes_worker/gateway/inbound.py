"""Handle an inbound event: it becomes a run, a command's answer, a pairing code, or nothing; once, however often it
comes.

Theory of operation. Platforms repeat events: a webhook whose answer was lost, a poll whose cursor was not committed,
two gateways at a change of lease, two replicas of the API. So each event has a key, and the row of that key
(``inbound``) is written first in the transaction that holds everything the event causes:

    begin
      move the account's cursor     fails with LeaseLost where the lease is no longer ours
      insert the event's row        waits for another transaction with the same key; fails with EventKnown after it
      run | answer | code | none    whatever the event causes, and the outcome in its row
    commit
    send hints                      a hint that is lost is repeated by the sweeper

| handler A | handler B, same event | the row |
|---|---|---|
| inserts the row, accepts run 7 | inserts the row: waits for A | invisible |
| commits, announces run 7 | wakes up: ``EventKnown``, does nothing | ``run``, run 7 |
| dies before its commit | goes on as if it were first | none, then B's |

What an event means is decided before the transaction, from what is read then (``read_event``, ``bind_answer`` and
``bind_press`` of ``core``); the transaction checks again what may have changed. Where it did (a question was answered,
the run that gathered messages has begun), the transaction rolls back and the event is handled as another kind.

A bug of ours must not silence an account: when the handler raises, the row is written with the outcome ``broken`` and
counts the tries, over all processes. The third try leaves the event behind (``given_up``) and the cursor moves on.
``broken`` is the only outcome that a later handler may replace.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial

from sqlalchemy.engine import Connection

from hermes_worker.channels.catalog import ChatForm, describe_display, list_platforms
from hermes_worker.channels.targets import ChatRef, TargetError, format_reference, parse_chat
from hermes_worker.core.answer_binding import (
    REFUSAL_TEXTS,
    AnswerForm,
    BoundAnswer,
    ChatQuestion,
    CodeWanted,
    NotAnAnswer,
    PossibleAnswer,
    bind_answer,
    bind_press,
    format_code_request,
)
from hermes_worker.core.chat_accounts import DEFAULT_ACCOUNT, ChatOwner, add_account_suffix, format_account
from hermes_worker.core.chat_commands import CommandAccess, CommandUser
from hermes_worker.core.chat_context import build_context_block
from hermes_worker.core.chat_names import choose_learnable_name
from hermes_worker.core.chat_replies import ReplyMode, build_reply_metadata
from hermes_worker.core.chat_signs import ChatSigns, choose_progress_mode
from hermes_worker.core.errors import LeaseLost, UnavailableError
from hermes_worker.core.gateway import (
    GUEST_TOOLSETS,
    ButtonPressed,
    ChatCommand,
    ChatRole,
    CommandSaid,
    EventIgnored,
    GroupPolicy,
    MessageSaid,
    OfferCode,
    Reading,
    Silence,
    Speakers,
    decide_event,
)
from hermes_worker.core.inbound import Inbound, InboundButton, InboundMessage
from hermes_worker.core.inbound_files import format_without_text
from hermes_worker.core.limits import LimitReached
from hermes_worker.core.personal_ids import hides_ids
from hermes_worker.core.previews import EVERY_S
from hermes_worker.core.principals import DEFAULT_TENANT, Principal
from hermes_worker.core.session_keys import SESSION_KEY_CHARS_MAX, ChatOrigin, build_session_key, is_shared_by_members
from hermes_worker.core.session_resets import (
    ChatActivity,
    ResetMode,
    ResetPolicies,
    ResetPolicy,
    ResetReason,
    decide_reset,
    format_reset_notice,
)
from hermes_worker.core.titles import clean_title
from hermes_worker.gateway.commands import choose_chat_model, render_jobs, set_home_channel, undo_turn
from hermes_worker.gateway.files import FileTurns, list_media
from hermes_worker.observe import count, log
from hermes_worker.safety.approvals import ApprovalChoice, UnattendedMode
from hermes_worker.safety.redaction import redact
from hermes_worker.services.compression import FOCUS_CHARS_MAX
from hermes_worker.services.submission import InvalidSubmission, Submission, accept, announce
from hermes_worker.settings import Settings
from hermes_worker.store.access.audit import Actor, set_actor
from hermes_worker.store.gateway import CODE_ASKED, AccountLease, ChatBurst, EventKnown, GatewayRows, InboundEvent
from hermes_worker.store.inbound_files import FileChat, NewFiles
from hermes_worker.store.known_chats import KnownChats
from hermes_worker.store.last_turns import lock_last_turn
from hermes_worker.store.outbox.deliveries import enqueue_deliveries, enqueue_preview
from hermes_worker.store.rows import Hint
from hermes_worker.store.runs.runs import Created, Multitask, SessionBusy, SessionNotFound, find_run
from hermes_worker.store.runs.waits import (
    ApprovalAnswer,
    NothingAsked,
    NotOffered,
    NotWaiting,
    settle_approval,
    settle_input,
)
from hermes_worker.store.sessions import InvalidFork, SessionChanges, Sessions, SessionTotals, TitleTaken
from hermes_worker.wiring import Client

_NOBODY = ChatOwner()
_NAME_CHARS_MAX = 80
_TRIES_MAX = 3


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


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedEvent:
    """An event, and how it came."""

    platform: str
    account_name: str = DEFAULT_ACCOUNT
    event: Inbound
    hold: AccountLease | None = None
    """``None`` for an event that the platform brought to a webhook."""
    cursor: str | None = None
    """How far the account is read with this event."""
    is_beside: bool = False
    """Whether it is a press that came to a webhook, of an account whose messages come in another way."""
    owner: ChatOwner = _NOBODY
    """The owner of the chat, once that is known."""
    role: ChatRole = ChatRole.GUEST
    """What the sender may do, once that is known."""

    @property
    def account(self) -> str:
        return format_account(self.platform, self.account_name)

    @property
    def display_name(self) -> str:
        """The account's name for people: the default one is called by its platform."""
        return self.platform if self.account_name == DEFAULT_ACCOUNT else self.account

    @property
    def _nondefault_name(self) -> str:
        """The account's name; empty for the default one."""
        return "" if self.account_name == DEFAULT_ACCOUNT else self.account_name

    @property
    def sender(self) -> str:
        """The account as targets name it."""
        return f"{self.platform}@{self._nondefault_name}" if self._nondefault_name else self.platform

    @property
    def row(self) -> InboundEvent:
        return InboundEvent(
            account=self.account,
            key=self.event.event_key,
            hold=self.hold,
            cursor=self.cursor,
            is_beside=self.is_beside,
        )

    @property
    def origin(self) -> ChatOrigin:
        chat, sender = self.event.chat, self.event.sender
        return ChatOrigin(
            platform=self.platform,
            chat_type=chat.kind.value,
            chat=chat.id,
            thread=chat.thread,
            user=sender.id,
            scope=chat.scope,
            profile=self.owner.profile,
            account=self._nondefault_name,
        )

    @property
    def command_user(self) -> CommandUser:
        """The sender, as rules about commands name people."""
        chat, sender = self.event.chat, self.event.sender
        return CommandUser(
            role=self.role,
            account=self.account,
            chat=chat.id,
            person=sender.id,
            other_id=sender.other_id,
            alt_id=sender.alt_id,
        )

    @property
    def target(self) -> str | None:
        """The target of the answer: the chat, and the thread in it; ``None`` for a chat that no target can name."""
        chat = self.event.chat
        thread = chat.answered_as or chat.thread
        reference = f"{chat.id}:{thread}" if thread else chat.id
        try:
            target = parse_chat(self.sender, reference)
        except TargetError:
            return None
        # What is no id of the platform would be looked up among the names of chats, and is none.
        return None if target.form is ChatForm.NAME else format_reference(ChatRef(target))


class _RunBeganMeanwhile(Exception):
    """The run that waited has begun: what was to be added to it becomes a run of its own."""


@dataclass(frozen=True, slots=True)
class _Reply:
    """What was done in a transaction beside the event's row: its outcome, and what to send."""

    outcome: str
    text: str | None = None
    stopped: str | None = None
    hints: tuple[Hint, ...] = ()
    about: str | None = None
    """The run that it concerns, where none was stopped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _ChatPlace:
    """Where a turn of a chat's conversation belongs."""

    session: str
    """The name of the session."""
    generation: int
    """How many sessions the chat had before this one."""
    reset: ResetReason | None = None
    """Why the chat begins a new session with this turn; ``None`` where it continues one."""
    model: str | None = None
    """The model that people chose for it."""


class InboundHandler:
    """Handles events of all accounts of one installation. Thread-safe."""

    def __init__(self, client: Client, tenant: str = DEFAULT_TENANT) -> None:
        self._client = client
        self._tenant = tenant
        self._rows = GatewayRows(client.database, tenant)
        self._files = FileTurns(client, tenant)
        self._access = CommandAccess(client.settings.gateway.commands)
        self._known = KnownChats(client.database, tenant)

    def handle(self, arrival: ReceivedEvent) -> str | None:
        """Do what an event asks for. Returns its outcome, or ``None`` for one that was taken before. Safe to repeat and
        safe for several at once. An event on which our code breaks is given up at the third try, in whichever
        processes. Raises ``LeaseLost``, ``UnavailableError``, and before the third try what broke."""
        owner = self._client.settings.gateway.rules.find_owner(arrival.account, arrival.event.chat.id)
        if owner.tenant != self._tenant:
            return InboundHandler(self._client, owner.tenant).handle(arrival)
        arrival = replace(arrival, owner=owner)
        with set_actor(Actor(tenant=self._tenant, name=self._name_principal(arrival))):
            try:
                return self._handle(arrival)
            except (LeaseLost, UnavailableError):
                raise
            except Exception:
                tries = self._rows.record_failure(arrival.row)
                if 0 < tries < _TRIES_MAX:
                    raise
                log.exception("inbound.given_up", account=arrival.account, event_key=arrival.event.event_key)
            count("inbound.given_up")
            return self._give_up(arrival)

    def _handle(self, arrival: ReceivedEvent) -> str | None:
        event = arrival.event
        paired = self._rows.find_role(arrival.account, event.sender.id)
        try:
            speakers = find_speakers(self._client.settings, arrival.platform, arrival.account_name, arrival.owner)
            arrival, reading = self._read(arrival, speakers, paired)
            match reading:
                case EventIgnored(reason=reason):
                    outcome = self._settle(arrival, lambda _: _Reply(reason.value))
                case OfferCode():
                    outcome = self._settle(arrival, lambda connection: self._offer_code(connection, arrival))
                case CommandSaid(role=role) as said:
                    self._known.record_name(arrival.account, event.chat.id, choose_learnable_name(event.chat, role))
                    outcome = self._run_command(replace(arrival, role=role), said)
                case ButtonPressed(role=role) as press:
                    outcome = self._on_press(replace(arrival, role=role), press)
                case MessageSaid(text=text, role=role):
                    self._known.record_name(arrival.account, event.chat.id, choose_learnable_name(event.chat, role))
                    arrival = replace(arrival, role=role)
                    place, busy_mode = self._choose_place(arrival), Multitask(self._client.settings.gateway.busy_mode)
                    # What came with a file is a turn of its own, and no answer.
                    answered = None if list_media(event) else self._answer(arrival, AnswerForm.WORDS, text)
                    outcome = answered or self._converse(arrival, place, text, busy_mode)
        except EventKnown:
            count("inbound.duplicate")
            return None
        count("inbound.taken")
        log.info("inbound.taken", account=arrival.account, outcome=outcome)
        return outcome

    def _read(
        self, arrival: ReceivedEvent, speakers: Speakers, paired: ChatRole | None
    ) -> tuple[ReceivedEvent, Reading]:
        """Read what an event asks for. A press that does not say in what kind of chat it was made counts for the kind
        in which the question that it names is open."""
        event = arrival.event
        usual = decide_event(event, speakers, paired)
        for kind in event.may_be if isinstance(event, InboundButton) else ():
            there = replace(arrival, event=replace(event, chat=replace(event.chat, kind=kind)))
            reading = decide_event(there.event, speakers, paired)
            if isinstance(reading, ButtonPressed):
                asked = self._list_questions(replace(there, role=reading.role))
                if any(each.wait_id == reading.wait_id and each.is_open for each in asked):
                    return there, reading
        return arrival, usual

    def _give_up(self, arrival: ReceivedEvent) -> str | None:
        try:
            return self._settle(arrival, lambda _: _Reply("given_up"))
        except EventKnown:
            return None

    # --- the conversation --------------------------------------------------------------------------------------------

    def _converse(self, arrival: ReceivedEvent, place: _ChatPlace, text: str, multitask: Multitask) -> str:
        media = list_media(arrival.event)
        said = self._add_sender(arrival, text or format_without_text(media))
        files = self._files.build_files(arrival.account, arrival.event, is_guest=arrival.role is ChatRole.GUEST)
        if place.reset is None and self._join_gathering_run(arrival, place.session, said if text else "", files):
            return "joined"
        if files.files:
            submission = self._submission(arrival, place, said, Multitask.QUEUE)
            return self._submit(arrival, place, self._files.wait_for_files(submission), files)
        if (
            multitask is Multitask.QUEUE
            and place.reset is None
            and self._join_waiting_run(arrival, place.session, said)
        ):
            return "joined"
        submission = self._submission(arrival, place, said, multitask)
        is_steered = multitask is Multitask.STEER and self._rows.load_queue(arrival.role.source, place.session)[0]
        behind = (
            None if is_steered else self._files.wait_behind_others(submission, self._chat_of(arrival, place.session))
        )
        return self._submit(arrival, place, submission if behind is None else behind, None if behind is None else files)

    def _join_waiting_run(self, arrival: ReceivedEvent, session: str, text: str) -> bool:
        """Whether a text was added to a run of the same person that has not begun: people write in bursts."""
        within_s = self._client.settings.gateway.burst_s
        burst = ChatBurst(principal=self._name_principal(arrival), text=text, within_s=within_s)
        source = arrival.role.source
        if not within_s or not self._rows.may_join_waiting(source, session, burst):
            return False
        try:
            with self._client.database.write() as connection:
                self._rows.insert_event(connection, arrival.row, "joined")
                run_id = self._rows.join_waiting(connection, source, session, burst)
                if run_id is None:
                    raise _RunBeganMeanwhile
                self._rows.set_outcome(connection, arrival.row, "joined", run_id)
        except _RunBeganMeanwhile:
            return False
        return True

    def _join_gathering_run(self, arrival: ReceivedEvent, session: str, text: str, files: NewFiles) -> bool:
        """Whether a text and files were added to a run that waits for files which came before: albums, and what is said
        of a picture."""
        chat = self._chat_of(arrival, session)
        if not self._files.is_gathering(chat, files):
            return False
        try:
            with self._client.database.write() as connection:
                self._rows.insert_event(connection, arrival.row, "joined")
                joined = self._files.join(connection, chat, text, files)
                if joined is None:
                    raise _RunBeganMeanwhile
                self._rows.set_outcome(connection, arrival.row, "joined", joined.run_id)
        except _RunBeganMeanwhile:
            return False
        self._client.publisher.send(joined.hints)
        return True

    def _chat_of(self, arrival: ReceivedEvent, session: str) -> FileChat:
        return self._files.build_file_chat(arrival.role.source, session, self._name_principal(arrival))

    def _submission(self, arrival: ReceivedEvent, place: _ChatPlace, text: str, multitask: Multitask) -> Submission:
        is_guest = arrival.role is ChatRole.GUEST
        return Submission(
            input=text,
            instructions=self._describe_chat(arrival),
            session_id=place.session,
            principal=Principal(tenant=self._tenant, name=self._name_principal(arrival), scopes=frozenset()),
            source=arrival.role.source,
            model=place.model,
            toolsets=GUEST_TOOLSETS if is_guest else None,
            approvals=UnattendedMode.DENY.value if is_guest else None,
            multitask=multitask,
            deliver=arrival.target,
            metadata={
                "platform": arrival.platform,
                "chat": arrival.event.chat.id,
                **self._build_reply_metadata(arrival),
            },
        )

    def _build_reply_metadata(self, arrival: ReceivedEvent) -> dict[str, str]:
        """Build the metadata about how the chat is answered: as a reply to what somebody wrote (not to a command, whose
        id is that of no message), and with what it sees until then."""
        mode = ReplyMode(self._client.settings.gateway.reply_to)
        event = arrival.event
        sent = (event.quoted_as or event.message_id) if isinstance(event, InboundMessage) else ""
        signs = self._choose_signs(arrival)
        return build_reply_metadata(arrival.sender, sent, mode) | (signs.metadata if signs.shows_something else {})

    def _submit(
        self, arrival: ReceivedEvent, place: _ChatPlace, submission: Submission, files: NewFiles | None = None
    ) -> str:
        if arrival.target is None:
            return self._settle(arrival, lambda _: _Reply("unanswerable"))
        if self._rows.is_handled(arrival.row):
            raise EventKnown  # before the work of making a run; the key decides
        outcome = "run"
        owed: list[Hint] = []

        def also(connection: Connection, created: Created) -> None:
            nonlocal outcome
            outcome = "steer" if created.was_steered else "run"
            self._rows.insert_event(connection, arrival.row, outcome, created.run_id)
            owed.extend(self._record_reset(connection, arrival, place))
            if files is not None:
                owed.extend(self._files.enqueue_fetches(connection, created.run_id, files))
            signs = self._choose_signs(arrival)
            if not created.was_steered and arrival.target is not None and signs.shows_something:
                is_followed = signs.has_text
                enqueue_preview(connection, created.run_id, arrival.target, after_s=EVERY_S, is_followed=is_followed)

        try:
            created = accept(self._client, submission, also)
        except SessionBusy:
            return self._settle(arrival, lambda _: _Reply("full", "Too many messages wait here. Send this one later."))
        except LimitReached as error:
            log.warning("inbound.limited", account=arrival.account, reason=str(error))
            return self._settle(arrival, lambda _: _Reply("limited", "I may do no more for now. Send this one later."))
        except InvalidSubmission as error:
            said = f"This cannot be taken: {error}"
            return self._settle(arrival, lambda _: _Reply("refused", said))
        announce(self._client, created)
        self._client.publisher.send(owed)
        return outcome

    def _choose_signs(self, arrival: ReceivedEvent) -> ChatSigns:
        """Choose what is shown in the chat while the run is at work, of what the platform can show."""
        said, sending = self._client.settings.gateway, list_platforms()[arrival.platform].sending
        if sending is None:
            return ChatSigns(has_text=False)
        return ChatSigns(
            has_text=said.streams and sending.edits,
            has_typing=said.types and sending.typing is not None,
            progress=choose_progress_mode(said.tool_progress, said.tool_progress_modes, arrival.platform),
        )

    def _record_reset(self, connection: Connection, arrival: ReceivedEvent, place: _ChatPlace) -> list[Hint]:
        """Record that the chat began a new session by itself, and tell it; only one of several at once does."""
        if place.reset is None or arrival.target is None:
            return []
        is_ours = self._rows.start_new_conversation(
            connection, arrival.account, _name_session_counter(arrival), place.generation
        )
        policy = self._reset_policy(arrival)
        told = format_reset_notice(policy, place.reset, arrival.platform, had_activity=True) if is_ours else None
        return [] if told is None else enqueue_deliveries(connection, [arrival.target], body=told, tenant=self._tenant)

    def _add_sender(self, arrival: ReceivedEvent, text: str) -> str:
        """Put the sender's name before a message where several people share a session. A name is one line without
        brackets, so that no person can write in the name of another."""
        if not is_shared_by_members(arrival.origin):
            return text
        name = arrival.event.sender.name or arrival.event.sender.id
        plain = re.sub(r"[^\w .'@+-]", " ", name)
        return f"[{' '.join(plain.split())[:_NAME_CHARS_MAX]}] {text}"

    def _describe_chat(self, arrival: ReceivedEvent) -> str:
        """Describe the chat to the agent, for a session that begins with this message."""
        return build_context_block(
            arrival.platform,
            arrival.event.chat,
            arrival.event.sender,
            is_shared=is_shared_by_members(arrival.origin),
            hides_ids=hides_ids(arrival.platform, is_wanted=self._client.settings.gateway.redacts_ids),
            is_guest=arrival.role is ChatRole.GUEST,
            display=describe_display(arrival.platform),
        )

    def _name_session(self, arrival: ReceivedEvent) -> str:
        return _make_session_name(
            arrival, self._rows.load_chat(arrival.account, _name_session_counter(arrival)).generation
        )

    def _choose_place(self, arrival: ReceivedEvent) -> _ChatPlace:
        """Choose the session of a turn: the chat's, or a new one when that one ended by itself."""
        generation, model = self._rows.load_chat(arrival.account, _name_session_counter(arrival))
        session = _make_session_name(arrival, generation)
        reset = self._due_reset(arrival, session)
        if reset is not None:
            session, model = _make_session_name(arrival, generation + 1), None
        return _ChatPlace(session=session, generation=generation, reset=reset, model=model)

    def _due_reset(self, arrival: ReceivedEvent, session: str) -> ResetReason | None:
        """Find why the session ends now; ``None`` where it does not. Asks the database only where sessions end by
        themselves at all."""
        policy = self._reset_policy(arrival)
        if policy.mode is ResetMode.NONE:
            return None
        found = self._rows.load_activity(arrival.role.source, session)
        if found is None or found.is_at_work:
            return None
        began = None if found.process_at is None else datetime.fromtimestamp(found.process_at, UTC)
        return decide_reset(
            policy,
            ChatActivity(
                now=datetime.fromtimestamp(found.now, UTC).astimezone(),  # in the time zone of this machine
                updated_at=datetime.fromtimestamp(found.said_at, UTC),
                newest_process_at=began,
            ),
        )

    def _reset_policy(self, arrival: ReceivedEvent) -> ResetPolicy:
        said = self._client.settings.gateway
        usual = ResetPolicy(
            mode=ResetMode(said.reset_mode),
            at_hour=said.reset_at_hour,
            idle_minutes=said.reset_idle_minutes,
            is_told=said.reset_told,
        )
        named = [text.partition("=") for text in said.reset_modes]
        own = {where: replace(usual, mode=ResetMode(mode)) for where, _, mode in named}
        policies = ResetPolicies(default=usual, by_chat_type=own, by_platform=own)
        return policies.find_policy(arrival.platform, arrival.event.chat.kind.value)

    def _name_principal(self, arrival: ReceivedEvent) -> str:
        written = re.sub(r"[^\w.@+:-]", "_", arrival.event.sender.id)
        return f"{arrival.platform}:{written}"[:100]

    # --- answers to what an agent asks --------------------------------------------------------------------------------

    def _list_questions(self, arrival: ReceivedEvent) -> list[ChatQuestion]:
        """List what is asked in the conversation, and in a thread also the question of the chat below which it begins:
        a thread has a conversation of its own."""
        source, chat = arrival.role.source, arrival.event.chat
        found = self._rows.list_questions(source, self._name_session(arrival))
        if not chat.thread:
            return found
        outside = replace(arrival, event=replace(arrival.event, chat=replace(chat, thread="")))
        above = self._rows.list_questions(source, self._name_session(outside))
        return [*(each for each in above if each.is_open and chat.thread in each.messages), *found]

    def _answer(self, arrival: ReceivedEvent, form: AnswerForm, text: str) -> str | None:
        """Take words or a command as the answer to a question, ask which one is meant, or say why it is none; ``None``
        where it is a message of the conversation."""
        questions = self._list_questions(arrival)
        event = arrival.event
        quoted = event.reply_to if isinstance(event, InboundMessage) else ""
        said = PossibleAnswer(
            form=form,
            text=text,
            sent_at=event.sent_at,
            quoted="" if quoted == event.chat.thread else quoted,
            thread=event.chat.thread,
            may_choose=frozenset(choice.value for choice in ApprovalChoice if self._may_choose(arrival, choice)),
            was_code_asked=self._rows.was_code_asked([each for each in questions if each.is_open]),
        )
        match bind_answer(said, questions):
            case BoundAnswer() as bound:
                return self._give_answer(arrival, bound) or self._refuse_late_answer(arrival, said, bound)
            case CodeWanted() as wanted:
                asked = _Reply(CODE_ASKED, redact(format_code_request(wanted, said)), about=wanted.questions[0].run_id)
                return self._settle(arrival, lambda _: asked)
            case NotAnAnswer.MESSAGE:
                return None
            case NotAnAnswer() as why:
                return self._settle(arrival, lambda _: _Reply("command", REFUSAL_TEXTS[why]))

    def _refuse_late_answer(self, arrival: ReceivedEvent, said: PossibleAnswer, bound: BoundAnswer) -> str | None:
        """Say that another answer was faster; ``None`` for words, which then go to the agent."""
        if bound.choice is None and not said.is_command:
            return None
        return self._settle(arrival, lambda _: _Reply("command", REFUSAL_TEXTS[NotAnAnswer.NOT_OPEN]))

    def _on_press(self, arrival: ReceivedEvent, press: ButtonPressed) -> str:
        """Take a press as the answer to the question that has the button."""
        bound = bind_press(press.wait_id, press.answer, self._list_questions(arrival))
        if not isinstance(bound, BoundAnswer):
            return self._settle(arrival, lambda connection: self._answer_outdated(connection, arrival, press))
        if bound.choice is None:
            told = self._give_answer(arrival, bound)
        elif arrival.role is ChatRole.GUEST:
            told = self._settle(arrival, lambda _: _Reply("command", "Guests allow nothing."))
        elif bound.choice not in tuple(ApprovalChoice):
            told = self._settle(arrival, lambda _: _Reply(Silence.UNKNOWN_KIND.value))
        elif not self._may_choose(arrival, ApprovalChoice(bound.choice)):
            told = self._settle(arrival, lambda _: _Reply("command", "This is not for you to choose."))
        else:
            told = self._give_answer(arrival, bound)
        return told or self._settle(arrival, lambda _: _Reply("command", REFUSAL_TEXTS[NotAnAnswer.NOT_OPEN]))

    def _answer_outdated(self, connection: Connection, arrival: ReceivedEvent, press: ButtonPressed) -> _Reply:
        """Answer a button that no open question of this conversation has; nothing else follows from it."""
        if not self._rows.was_asked(connection, arrival.role.source, self._name_session(arrival), press.wait_id):
            return _Reply(Silence.UNKNOWN_KIND.value)
        return _Reply("command", REFUSAL_TEXTS[NotAnAnswer.NOT_OPEN])

    def _may_choose(self, arrival: ReceivedEvent, choice: ApprovalChoice) -> bool:
        """Whether the person may choose so: words and buttons need the same rights as the commands."""
        command = ChatCommand.DENY if choice is ApprovalChoice.DENY else ChatCommand.APPROVE
        return self._access.allows(arrival.command_user, command)

    def _give_answer(self, arrival: ReceivedEvent, bound: BoundAnswer) -> str | None:
        """Answer a question; ``None`` when another answer was faster, or its time was over."""
        asked, by = bound.question, self._name_principal(arrival)
        if bound.choice == ApprovalChoice.ALWAYS and arrival.role is not ChatRole.OWNER:
            told = f"Only an owner may allow something from now on. Answer /approve {asked.code} or "
            told += f"/approve {asked.code} session."
            return self._settle(arrival, lambda _: _Reply("command", told))

        def do(connection: Connection) -> _Reply:
            run_pk = find_run(connection, asked.run_id)
            if bound.choice is None:
                hints = settle_input(connection, run_pk, bound.text, by=by, wait_id=asked.wait_id)
                return _Reply("answer", hints=tuple(hints))
            reason = bound.text or None
            answer = ApprovalAnswer(choice=ApprovalChoice(bound.choice), by=by, reason=reason, is_from_chat=True)
            hints = settle_approval(connection, run_pk, answer, wait_id=asked.wait_id)
            told = "This was not allowed." if answer.choice is ApprovalChoice.DENY else "This was allowed."
            return _Reply("answer", told, hints=tuple(hints))

        try:
            return self._settle(arrival, do)
        except NotOffered as error:
            told = f"This cannot be chosen: {error}."
            return self._settle(arrival, lambda _: _Reply("command", told))
        except (NothingAsked, NotWaiting):
            return None

    # --- what is answered at once ------------------------------------------------------------------------------------

    def _run_command(self, arrival: ReceivedEvent, said: CommandSaid) -> str:
        if said.command is None:
            told = f"There is no such command.\n{self._access.format_help(arrival.command_user)}"
            return self._settle(arrival, lambda _: _Reply("command", told))
        if not self._access.allows(arrival.command_user, said.command):
            told = f"/{said.command.value} is not for you here."
            return self._settle(arrival, lambda _: _Reply("command", told))
        match said.command:
            case ChatCommand.STOP:
                return self._settle(arrival, lambda connection: self._stop(connection, arrival))
            case ChatCommand.NEW | ChatCommand.RESET:
                return self._settle(arrival, lambda connection: self._start_new_session(connection, arrival))
            case ChatCommand.STATUS:
                told = self._describe_status(arrival)
                return self._settle(arrival, lambda _: _Reply("command", told))
            case ChatCommand.QUEUE | ChatCommand.STEER if said.arguments:
                multitask = Multitask(said.command.value)
                return self._converse(arrival, self._choose_place(arrival), said.arguments, multitask)
            case ChatCommand.TITLE | ChatCommand.USAGE | ChatCommand.COMPRESS as command:
                return self._run_session_command(arrival, command, said.arguments)
            case ChatCommand.APPROVE | ChatCommand.DENY as command:
                outcome = self._answer(arrival, AnswerForm(command.value), said.arguments)
                assert outcome is not None, "a command is no message"
                return outcome
            case ChatCommand.MODEL:
                return self._choose_model(arrival, said.arguments)
            case ChatCommand.UNDO:
                return self._undo(arrival)
            case ChatCommand.JOBS:
                told = render_jobs(self._client, self._tenant)
                return self._settle(arrival, lambda _: _Reply("command", told))
            case ChatCommand.SETHOME:
                home = partial(set_home_channel, client=self._client, target=arrival.target, owner=arrival.owner)
                return self._settle(arrival, lambda connection: _Reply("command", home(connection)))
            case _:
                told = self._access.format_help(arrival.command_user)
                return self._settle(arrival, lambda _: _Reply("command", told))

    def _stop(self, connection: Connection, arrival: ReceivedEvent) -> _Reply:
        stopped = self._rows.stop(
            connection, arrival.role.source, self._name_session(arrival), self._name_principal(arrival)
        )
        if stopped is None:
            return _Reply("command", "Nothing is being done here.")
        return _Reply("command", "Stopped.", stopped.run_id, tuple(stopped.hints))

    def _start_new_session(self, connection: Connection, arrival: ReceivedEvent) -> _Reply:
        stopped = self._stop(connection, arrival)
        self._rows.start_new_conversation(connection, arrival.account, _name_session_counter(arrival))
        return replace(stopped, text="This is a new conversation.")

    def _describe_status(self, arrival: ReceivedEvent) -> str:
        run_id, waiting = self._rows.load_queue(arrival.role.source, self._name_session(arrival))
        if run_id is not None:
            return f"Run {run_id} is at work; {waiting} more wait."
        return "What you sent has not begun: its files are on the way." if waiting else "Nothing is being done here."

    def _choose_model(self, arrival: ReceivedEvent, name: str) -> str:
        place = self._choose_place(arrival)
        choice = choose_chat_model(self._client, self._submission(arrival, place, "-", Multitask.QUEUE), name)

        def do(connection: Connection) -> _Reply:
            chat = (arrival.account, _name_session_counter(arrival))
            if choice.is_made and place.reset is not None:
                self._rows.start_new_conversation(connection, *chat, place.generation, model=choice.model)
            elif choice.is_made:
                self._rows.set_model(connection, *chat, choice.model)
            return _Reply("command", choice.told)

        return self._settle(arrival, do)

    def _undo(self, arrival: ReceivedEvent) -> str:
        """Undo the last turn: the chat continues in a fork of its session that ends before it."""
        try:
            return self._settle(arrival, lambda connection: self._undo_in(connection, arrival))
        except (SessionNotFound, InvalidFork) as error:
            told = f"This cannot be taken back: {error}"
            return self._settle(arrival, lambda _: _Reply("command", told))

    def _undo_in(self, connection: Connection, arrival: ReceivedEvent) -> _Reply:
        generation, model = self._rows.load_chat(arrival.account, _name_session_counter(arrival))
        session, source = _make_session_name(arrival, generation), arrival.role.source
        turn = lock_last_turn(connection, self._tenant, source, session)
        if turn is None:
            return _Reply("command", "Nothing can be taken back here now. /stop ends what is being done.")
        kept = Sessions(self._client.database, self._tenant, source)
        told = undo_turn(connection, kept, turn, session, _make_session_name(arrival, generation + 1))
        self._rows.start_new_conversation(
            connection, arrival.account, _name_session_counter(arrival), generation, model=model
        )
        return _Reply("command", told)

    def _run_session_command(self, arrival: ReceivedEvent, command: ChatCommand, arguments: str) -> str:
        """Run a command that needs an existing conversation."""
        if self._rows.is_handled(arrival.row):
            raise EventKnown  # what a message did once, its repetition does not do to what was said since
        place = self._choose_place(arrival)
        kept = Sessions(self._client.database, self._tenant, arrival.role.source)
        try:
            session = kept.get(place.session)
        except SessionNotFound:
            return self._settle(arrival, lambda _: _Reply("command", "Nothing was said here yet."))
        match command:
            case ChatCommand.COMPRESS:
                focus = " ".join(arguments.split())[:FOCUS_CHARS_MAX]
                asked = self._submission(arrival, place, f"/compress {focus}".strip(), Multitask.QUEUE)
                return self._submit(
                    arrival, place, replace(asked, compress=focus, model=place.model or session.asks_model)
                )
            case ChatCommand.TITLE if title := clean_title(arguments):
                told = self._change_title(kept, place.session, title)
            case ChatCommand.TITLE:
                told = f"This conversation is called: {session.title}" if session.title else "It has no title yet."
            case _:
                told = format_usage(session.totals)
        return self._settle(arrival, lambda _: _Reply("command", told))

    @staticmethod
    def _change_title(kept: Sessions, name: str, title: str) -> str:
        try:
            kept.change(name, SessionChanges(title=title))
        except TitleTaken:
            return "Another conversation is called so."
        return f"This conversation is called: {title}"

    def _offer_code(self, connection: Connection, arrival: ReceivedEvent) -> _Reply:
        code = self._rows.create_code(connection, arrival.account, arrival.event.sender.id)
        if code is None:
            return _Reply(Silence.STRANGER.value)
        said = (
            f"I do not know you yet. Your code is {code}. Whoever operates this agent lets you in with:\n"
            f"hermes-worker gateway pair {arrival.display_name} {code}"
        )
        return _Reply("paired", said)

    def _settle(self, arrival: ReceivedEvent, do: Callable[[Connection], _Reply]) -> str:
        """Do something and answer, in the transaction that takes the event."""
        owed: list[Hint] = []
        with self._client.database.write() as connection:
            # The event's row first: a second handler waits for it, and does nothing.
            done = self._write_event(connection, arrival, do)
            if done.text is not None and arrival.target is not None:
                owed = enqueue_deliveries(connection, [arrival.target], body=done.text, tenant=self._tenant)
        if done.stopped is not None:
            self._stop_below(done.stopped, done.hints)
        else:
            owed += done.hints
        self._client.publisher.send(owed)
        return done.outcome

    def _write_event(
        self, connection: Connection, arrival: ReceivedEvent, do: Callable[[Connection], _Reply]
    ) -> _Reply:
        self._rows.insert_event(connection, arrival.row, "taken")
        done = do(connection)
        self._rows.set_outcome(connection, arrival.row, done.outcome, done.stopped or done.about)
        return done

    def _stop_below(self, run_id: str, hints: tuple[Hint, ...]) -> None:
        below = self._client.runs.stop_descendants(run_id)
        more = [hint for each in below.values() for hint in each]
        self._client.publisher.publish_stops([run_id, *below], [*hints, *more])


def format_usage(totals: SessionTotals) -> str:
    """Write what a conversation has used, for people. Runs that are not kept any more are not in it."""
    cost = f", {totals.nano_usd / 1e9:,.4f} $" if totals.nano_usd else ""
    return (
        f"{totals.input:,} tokens in, {totals.output:,} out{cost}; "
        f"{totals.iterations:,} model calls, {totals.tool_calls:,} tool calls."
    )


def _make_session_name(arrival: ReceivedEvent, generation: int) -> str:
    key = build_session_key(arrival.origin)
    if not generation:
        return key
    name = f"{key}~{generation}"
    if len(name) <= SESSION_KEY_CHARS_MAX:
        return name
    return f"agent:{hashlib.sha256(key.encode()).hexdigest()}~{generation}"


def _name_session_counter(arrival: ReceivedEvent) -> str:
    """Name the counter of the chat's sessions. Guests have one of their own, which starts at zero."""
    key = build_session_key(arrival.origin)
    if arrival.role is not ChatRole.GUEST:
        return key
    return f"guest:{hashlib.sha256(key.encode()).hexdigest()}"
