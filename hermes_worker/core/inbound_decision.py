"""Decide what a person's event in a chat causes: effects, as values. Pure.

Theory of operation. The gateway reads facts, decides, and writes (``gateway.inbound``):

    facts = what the rows and the settings say about the sender, the chat and its conversation
    decision = decide(event, facts)     the outcome, and effects in the order in which they are carried out
    write the event's row and all effects in one transaction

Rows may change between reading and writing: a question is answered by somebody else, the run that a message should join
has begun. The writer notices, writes nothing, and the event is decided again from new facts that hold the
``InboundConflict``. Each conflict rules out what was tried, so the loop ends:

| event | facts | decision |
|---|---|---|
| ``yes`` | question 7 is open, and was seen | answer question 7 |
| ``yes`` | the same, and ``TOO_LATE`` for question 7 | "This is not asked any more." |
| ``and blue`` | a run of the sender waits | join the run |
| ``and blue`` | the same, and ``RUN_BEGAN`` | start a run |
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from hermes_worker.core.answer_binding import (
    CHOICES,
    REFUSAL_TEXTS,
    AnswerForm,
    Binding,
    BoundAnswer,
    ChatQuestion,
    CodeWanted,
    NotAnAnswer,
    PossibleAnswer,
    bind_answer,
    bind_press,
    format_code_request,
)
from hermes_worker.core.chat_commands import ChatCommand, ChatRole, CommandAccess, CommandUser
from hermes_worker.core.chat_names import choose_learnable_name
from hermes_worker.core.gateway import (
    ButtonPressed,
    CommandSaid,
    EventIgnored,
    MessageSaid,
    OfferCode,
    Silence,
    Speakers,
    decide_event,
)
from hermes_worker.core.inbound import Inbound, InboundMessage, list_media
from hermes_worker.core.inbound_files import format_without_text
from hermes_worker.core.principals import DEFAULT_TENANT
from hermes_worker.core.session_keys import ChatOrigin, is_shared_by_members, name_session
from hermes_worker.core.session_resets import (
    ChatActivity,
    ResetPolicy,
    ResetReason,
    decide_reset,
    format_reset_notice,
)
from hermes_worker.core.slash_commands import find_nearest
from hermes_worker.core.spec import FOCUS_CHARS_MAX
from hermes_worker.core.titles import clean_title

CODE_ASKED: Final = "code_asked"
"""Outcome of an event that may answer a question: the chat was asked for the question's code."""
_NAME_CHARS_MAX = 80
_QUEUE: Final = ChatCommand.QUEUE.value
_STEER: Final = ChatCommand.STEER.value


# --- effects ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class SendReply:
    """Answer in the chat. Nothing is sent to a chat that no target can name."""

    text: str
    hides_secrets: bool = False
    """The text quotes what an agent wrote, so secrets in it are hidden."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferPairingCode:
    """Give a stranger a pairing code. Where none may be made now, the outcome is that of a stranger without one."""

    display_name: str
    """The account's name for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StopChatRun:
    """Stop the run at work in a session, or the first that has still to begin."""

    session: str
    reply: str = ""
    """The answer where a run was stopped; empty for none."""
    reply_if_none: str = ""
    """The answer where there was none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginConversation:
    """Make the next message of the chat begin a new session."""

    after: int | None = None
    """Only if the chat has begun exactly so many; ``None`` for in any case."""
    model: str | None = None
    """The model of the new session; ``None`` for the default."""
    notice: str | None = None
    """What the chat is told if this began the session; ``None`` for nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SetChatModel:
    """Set the model of the chat's present session; ``None`` for the default."""

    model: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class UndoTurn:
    """Continue the chat in a fork of its session that ends before the last turn."""

    session: str
    fork: str
    """The name of the new session."""
    after: int
    """How many sessions the chat has begun."""
    model: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MakeHome:
    """Make the chat the home channel of its platform."""

    target: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeTitle:
    """Give a session a title."""

    session: str
    title: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerQuestion:
    """Answer a question of an agent."""

    run_id: str
    wait_id: int
    choice: str | None = None
    """The choice of an approval; ``None`` for the answer to a question."""
    text: str = ""
    """The answer to a question, or the reason of a refusal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinWaitingRun:
    """Add a text to the newest run of a session, which has not begun: people write in bursts."""

    session: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinGatheringRun:
    """Add the event's files, and a text, to the run of a session that waits for files which came before: albums, and
    what is said of a picture."""

    session: str
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartChatRun:
    """Start a run with the event's files, or say its text to the run at work."""

    session: str
    text: str
    multitask: str = _QUEUE
    """What becomes of a run at work: a value of ``store.runs.Multitask``."""
    model: str | None = None
    """The model that people chose; ``None`` for the default."""
    compress: str | None = None
    """What a summary of the session should keep; ``None`` for a run that makes none."""
    files: str | None = None
    """``kept`` when the event's files are put into the workspace, ``seen`` when not; ``None`` for no files."""
    delay_s: float | None = None
    """At most so many seconds it waits for files, its own or those of runs before it; ``None`` for not at all."""


InboundEffect = (
    SendReply
    | OfferPairingCode
    | StopChatRun
    | BeginConversation
    | SetChatModel
    | UndoTurn
    | MakeHome
    | ChangeTitle
    | AnswerQuestion
    | JoinWaitingRun
    | JoinGatheringRun
    | StartChatRun
)


@dataclass(frozen=True, slots=True, kw_only=True)
class InboundDecision:
    """What an event causes."""

    outcome: str | None
    """The outcome in the event's row; ``None`` for an event that was handled before, of which nothing is written."""
    effects: tuple[InboundEffect, ...] = ()
    role: ChatRole = ChatRole.GUEST
    """What the sender may do. Guests have a source, and sessions, of their own."""
    chat_name: str = ""
    """The name by which the chat may be known from now on; empty for none."""
    run_id: str | None = None
    """The run that the event is about, where its effects do not say."""


_HANDLED: Final = InboundDecision(outcome=None)


# --- facts -----------------------------------------------------------------------------------------------------------


class ConflictKind(StrEnum):
    """Why an effect could not be carried out."""

    TOO_LATE = "too_late"
    """The question was answered by somebody else, or its time was over."""
    NOT_OFFERED = "not_offered"
    """The question does not offer this choice."""
    RUN_BEGAN = "run_began"
    """The run that should take the message has begun, or has too much already."""
    QUEUE_FULL = "queue_full"
    """Too many runs of the session wait."""
    LIMIT_REACHED = "limit_reached"
    """The tenant has used what it may."""
    INVALID = "invalid"
    """The run is refused."""
    NO_FORK = "no_fork"
    """The transcript cannot be cut there."""
    TITLE_TAKEN = "title_taken"
    CONVERSATION_MOVED = "conversation_moved"
    """The chat has begun another session meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InboundConflict:
    """An effect that could not be carried out: the rows have changed, or refused it."""

    kind: ConflictKind
    effect: InboundEffect
    reason: str = ""
    """The reason, for people; empty where the kind says all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatSession:
    """The session of a chat, as far as commands show it."""

    title: str | None = None
    asks_model: str | None = None
    """The model that was chosen when the session was opened; ``None`` for the default."""
    usage: str = ""
    """What it has used, for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatModels:
    """What a chat is told about models."""

    usable: str = ""
    """The model that was named, or that the chat asks now."""
    is_default: bool = False
    """The default model was named."""
    offered: tuple[str, ...] = ()
    refusal: str = ""
    """Why the named model cannot be used; empty where it can."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InboundFacts:
    """What is known about an event's sender and chat. Only what the event may need is read; the rest has its
    default."""

    speakers: Speakers
    origin: ChatOrigin
    account: str
    """The account's name in rows."""
    display_name: str = ""
    """The account's name for people."""
    target: str | None = None
    """The target of answers; ``None`` for a chat that no target can name."""
    tenant: str = DEFAULT_TENANT
    access: CommandAccess
    busy_mode: str = _QUEUE
    """What a message does to a run at work: a value of ``store.runs.Multitask``."""
    reset_policy: ResetPolicy
    file_wait_s: float = 0.0
    """For how many seconds a message waits for its files."""
    paired: ChatRole | None = None
    """The sender's role by pairing; ``None`` for a stranger."""
    is_handled: bool = False
    """The event came before, and its effects are written."""
    generation: int = 0
    """How many new sessions the chat has begun."""
    model: str | None = None
    """The model that people chose for the present session; ``None`` for the default."""
    activity: ChatActivity | None = None
    """``None`` while there is no session, while a run of it is at work, and where sessions never end by themselves."""
    questions: tuple[ChatQuestion, ...] = ()
    """The open questions of the conversation, oldest first, and with them those that were closed recently."""
    was_code_asked: bool = False
    """The chat was asked for the code of one of the open questions."""
    was_asked: bool = False
    """The question that a pressed button names was put to this conversation."""
    run_at_work: str | None = None
    waiting: int = 0
    """How many runs wait behind the run at work."""
    is_gathering: bool = False
    """A run of the sender waits for files and takes more."""
    may_join_waiting: bool = False
    """The newest run is the sender's, was written just now and has not begun."""
    others_wait_s: float | None = None
    """Within how many seconds runs of the session have begun that wait for files; ``None`` where none does."""
    session: ChatSession | None = None
    """``None`` while nothing was said."""
    models: ChatModels = ChatModels()
    jobs: str = ""
    """The list of the tenant's jobs, for people."""
    conflicts: tuple[InboundConflict, ...] = ()
    """What was decided before, and could not be carried out."""

    @property
    def present_session(self) -> str:
        """The name of the chat's present session."""
        return name_session(self.origin, self.generation)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatPlace:
    """The session to which a turn of a chat's conversation belongs."""

    session: str
    """The name of the session."""
    reset: ResetReason | None = None
    """Why the chat begins a new session with this turn; ``None`` where it continues one."""
    model: str | None = None
    """The model that people chose for it."""


def choose_place(facts: InboundFacts) -> ChatPlace:
    """Choose the session of a turn: the chat's, or a new one when that one ended by itself."""
    reset = None if facts.activity is None else decide_reset(facts.reset_policy, facts.activity)
    if reset is None:
        return ChatPlace(session=facts.present_session, model=facts.model)
    return ChatPlace(session=name_session(facts.origin, facts.generation + 1), reset=reset)


def may_use(event: Inbound, facts: InboundFacts, role: ChatRole, command: ChatCommand) -> bool:
    """Whether the sender may use a command. Words and buttons need the same rights as the commands."""
    return facts.access.allows(_build_user(event, facts, role), command)


def _build_user(event: Inbound, facts: InboundFacts, role: ChatRole) -> CommandUser:
    sender = event.sender
    return CommandUser(
        role=role,
        account=facts.account,
        chat=event.chat.id,
        person=sender.id,
        other_id=sender.other_id,
        alt_id=sender.alt_id,
    )


# --- decisions -------------------------------------------------------------------------------------------------------


def decide(event: Inbound, facts: InboundFacts) -> InboundDecision:
    """Decide what an event causes."""
    if facts.is_handled:
        return _HANDLED
    reading = decide_event(event, facts.speakers, facts.paired)
    match reading:
        case EventIgnored(reason=reason):
            return InboundDecision(outcome=reason.value)
        case OfferCode():
            return InboundDecision(outcome="paired", effects=(OfferPairingCode(display_name=facts.display_name),))
        case ButtonPressed(role=role):
            decision = _explain_conflict(reading, facts) or _decide_press(event, facts, reading)
            return replace(decision, role=role)
        case CommandSaid(role=role):
            decision = _explain_conflict(reading, facts) or _decide_command(event, facts, reading)
        case MessageSaid(role=role):
            decision = _explain_conflict(reading, facts) or _decide_message(event, facts, reading)
    return replace(decision, role=role, chat_name=choose_learnable_name(event.chat, role))


def _explain_conflict(
    reading: CommandSaid | MessageSaid | ButtonPressed, facts: InboundFacts
) -> InboundDecision | None:
    """Tell the person why it could not be done; ``None`` where something else is done instead."""
    if not facts.conflicts:
        return None
    match facts.conflicts[-1]:
        case InboundConflict(kind=ConflictKind.TOO_LATE, effect=AnswerQuestion(choice=choice)):
            is_words = isinstance(reading, MessageSaid) and choice is None
            return None if is_words else _reply(REFUSAL_TEXTS[NotAnAnswer.NOT_OPEN])
        case InboundConflict(kind=ConflictKind.NOT_OFFERED, reason=reason):
            return _reply(f"This cannot be chosen: {reason}.")
        case InboundConflict(kind=ConflictKind.QUEUE_FULL):
            return _reply("Too many messages wait here. Send this one later.", outcome="full")
        case InboundConflict(kind=ConflictKind.LIMIT_REACHED):
            return _reply("I may do no more for now. Send this one later.", outcome="limited")
        case InboundConflict(kind=ConflictKind.INVALID, reason=reason):
            return _reply(f"This cannot be taken: {reason}", outcome="refused")
        case InboundConflict(kind=ConflictKind.NO_FORK, reason=reason):
            return _reply(f"This cannot be taken back: {reason}")
        case InboundConflict(kind=ConflictKind.TITLE_TAKEN):
            return _reply("Another conversation is called so.")
    return None


def _reply(text: str, *, outcome: str = "command") -> InboundDecision:
    return InboundDecision(outcome=outcome, effects=(SendReply(text=text),))


# --- turns -----------------------------------------------------------------------------------------------------------


def _decide_message(event: Inbound, facts: InboundFacts, said: MessageSaid) -> InboundDecision:
    was_late = any(found.kind is ConflictKind.TOO_LATE for found in facts.conflicts)
    # What came with a file is a turn of its own, and no answer.
    if not list_media(event) and not was_late:
        answer = _build_possible_answer(event, facts, said.role, AnswerForm.WORDS, said.text)
        binding = bind_answer(answer, facts.questions)
        if binding is not NotAnAnswer.MESSAGE:
            return _decide_answer(said.role, answer, binding)
    return _decide_turn(event, facts, said.role, said.text, facts.busy_mode)


def _decide_turn(event: Inbound, facts: InboundFacts, role: ChatRole, text: str, multitask: str) -> InboundDecision:
    """Decide about a message to the agent: it joins a run that has not begun, or becomes a run."""
    media, place = list_media(event), choose_place(facts)
    said = _add_sender(event, facts.origin, text or format_without_text(media))
    tried = {type(found.effect) for found in facts.conflicts}
    if facts.is_gathering and place.reset is None and JoinGatheringRun not in tried:
        return _join(JoinGatheringRun(session=place.session, text=said if text else ""))
    start = StartChatRun(session=place.session, text=said, multitask=multitask, model=place.model)
    if media:
        files = "seen" if role is ChatRole.GUEST else "kept"
        return _start(facts, place, replace(start, multitask=_QUEUE, files=files, delay_s=facts.file_wait_s))
    may_join = facts.may_join_waiting and place.reset is None and JoinWaitingRun not in tried
    if may_join and multitask == _QUEUE:
        return _join(JoinWaitingRun(session=place.session, text=said))
    is_steered = multitask == _STEER and facts.run_at_work is not None
    if facts.others_wait_s is not None and not is_steered:
        # It waits until the runs before it have their files, so that a chat is answered in its order.
        start = replace(start, multitask=_QUEUE, delay_s=facts.others_wait_s)
    return _start(facts, place, start)


def _join(effect: JoinGatheringRun | JoinWaitingRun) -> InboundDecision:
    return InboundDecision(outcome="joined", effects=(effect,))


def _start(facts: InboundFacts, place: ChatPlace, start: StartChatRun) -> InboundDecision:
    if facts.target is None:
        return InboundDecision(outcome="unanswerable")
    if place.reset is None:
        return InboundDecision(outcome="run", effects=(start,))
    notice = format_reset_notice(facts.reset_policy, place.reset, facts.origin.platform)
    return InboundDecision(outcome="run", effects=(BeginConversation(after=facts.generation, notice=notice), start))


def _add_sender(event: Inbound, origin: ChatOrigin, text: str) -> str:
    """Put the sender's name before a message where several people share a session. A name is one line without
    brackets, so that no person can write in the name of another."""
    if not is_shared_by_members(origin):
        return text
    plain = re.sub(r"[^\w .'@+-]", " ", event.sender.name or event.sender.id)
    return f"[{' '.join(plain.split())[:_NAME_CHARS_MAX]}] {text}"


# --- answers to what an agent asks -----------------------------------------------------------------------------------


def _build_possible_answer(
    event: Inbound, facts: InboundFacts, role: ChatRole, form: AnswerForm, text: str
) -> PossibleAnswer:
    quoted = event.reply_to if isinstance(event, InboundMessage) else ""
    return PossibleAnswer(
        form=form,
        text=text,
        sent_at=event.sent_at,
        quoted="" if quoted == event.chat.thread else quoted,
        thread=event.chat.thread,
        may_choose=frozenset(choice for choice in CHOICES if _may_choose(event, facts, role, choice)),
        was_code_asked=facts.was_code_asked,
    )


def _decide_answer(role: ChatRole, said: PossibleAnswer, binding: Binding) -> InboundDecision:
    """Answer the question that words or a command mean, ask which one is meant, or say why it is none."""
    match binding:
        case BoundAnswer() as bound:
            return _answer(role, bound)
        case CodeWanted() as wanted:
            asked = SendReply(text=format_code_request(wanted, said), hides_secrets=True)
            return InboundDecision(outcome=CODE_ASKED, effects=(asked,), run_id=wanted.questions[0].run_id)
        case NotAnAnswer() as why:
            return _reply(REFUSAL_TEXTS[why])


def _decide_press(event: Inbound, facts: InboundFacts, press: ButtonPressed) -> InboundDecision:
    """Take a press as the answer to the question that has the button. Nothing else follows from a button that no open
    question of this conversation has."""
    bound = bind_press(press.wait_id, press.answer, facts.questions)
    if not isinstance(bound, BoundAnswer):
        if facts.was_asked:
            return _reply(REFUSAL_TEXTS[NotAnAnswer.NOT_OPEN])
        return InboundDecision(outcome=Silence.UNKNOWN_KIND.value)
    if bound.choice is not None:
        if press.role is ChatRole.GUEST:
            return _reply("Guests allow nothing.")
        if bound.choice not in CHOICES:
            return InboundDecision(outcome=Silence.UNKNOWN_KIND.value)
        if not _may_choose(event, facts, press.role, bound.choice):
            return _reply("This is not for you to choose.")
    return _answer(press.role, bound)


def _may_choose(event: Inbound, facts: InboundFacts, role: ChatRole, choice: str) -> bool:
    return may_use(event, facts, role, ChatCommand.DENY if choice == "deny" else ChatCommand.APPROVE)


def _answer(role: ChatRole, bound: BoundAnswer) -> InboundDecision:
    asked = bound.question
    if bound.choice == "always" and role is not ChatRole.OWNER:
        return _reply(
            f"Only an owner may allow something from now on. Answer /approve {asked.code} or "
            f"/approve {asked.code} session."
        )
    answer = AnswerQuestion(run_id=asked.run_id, wait_id=asked.wait_id, choice=bound.choice, text=bound.text)
    if bound.choice is None:
        return InboundDecision(outcome="answer", effects=(answer,))
    told = "This was not allowed." if bound.choice == "deny" else "This was allowed."
    return InboundDecision(outcome="answer", effects=(answer, SendReply(text=told)))


# --- commands --------------------------------------------------------------------------------------------------------


def _decide_command(event: Inbound, facts: InboundFacts, said: CommandSaid) -> InboundDecision:
    help_text = facts.access.format_help(_build_user(event, facts, said.role))
    if said.command is None:
        usable = (each.value for each in ChatCommand if may_use(event, facts, said.role, each))
        nearest = find_nearest(said.name, usable)
        meant = f"; did you mean /{nearest}?" if nearest else "."
        return _reply(f"There is no such command{meant}\n{help_text}")
    if not may_use(event, facts, said.role, said.command):
        return _reply(f"/{said.command.value} is not for you here.")
    match said.command:
        case ChatCommand.STOP:
            none = "Nothing is being done here."
            stop = StopChatRun(session=facts.present_session, reply="Stopped.", reply_if_none=none)
            return InboundDecision(outcome="command", effects=(stop,))
        case ChatCommand.NEW | ChatCommand.RESET:
            told = SendReply(text="This is a new conversation.")
            effects = (StopChatRun(session=facts.present_session), BeginConversation(), told)
            return InboundDecision(outcome="command", effects=effects)
        case ChatCommand.STATUS:
            return _reply(_describe_status(facts))
        case ChatCommand.QUEUE | ChatCommand.STEER if said.arguments:
            return _decide_turn(event, facts, said.role, said.arguments, said.command.value)
        case ChatCommand.TITLE | ChatCommand.USAGE | ChatCommand.COMPRESS:
            return _decide_session_command(facts, said.command, said.arguments)
        case ChatCommand.APPROVALS:
            return _reply(_list_open_questions(facts))
        case ChatCommand.APPROVE | ChatCommand.DENY:
            answer = _build_possible_answer(event, facts, said.role, AnswerForm(said.command.value), said.arguments)
            return _decide_answer(said.role, answer, bind_answer(answer, facts.questions))
        case ChatCommand.MODEL:
            return _decide_model(facts, said.arguments)
        case ChatCommand.UNDO:
            return _undo(facts)
        case ChatCommand.JOBS:
            return _reply(facts.jobs)
        case ChatCommand.SETHOME:
            return _decide_home(facts)
        case _:
            return _reply(help_text)


def _describe_status(facts: InboundFacts) -> str:
    if facts.run_at_work is not None:
        return f"Run {facts.run_at_work} is at work; {facts.waiting} more wait."
    return "What you sent has not begun: its files are on the way." if facts.waiting else "Nothing is being done here."


def _list_open_questions(facts: InboundFacts) -> str:
    lines = [f"{each.code}: {each.label}" for each in facts.questions if each.is_open]
    return "\n".join(lines) or "Nothing waits for an answer here."


def _decide_session_command(facts: InboundFacts, command: ChatCommand, arguments: str) -> InboundDecision:
    """Decide about a command that needs an existing session."""
    place, session = choose_place(facts), facts.session
    if session is None:
        return _reply("Nothing was said here yet.")
    if command is ChatCommand.USAGE:
        return _reply(session.usage)
    if command is ChatCommand.COMPRESS:
        focus = " ".join(arguments.split())[:FOCUS_CHARS_MAX]
        model = place.model or session.asks_model
        text = f"/compress {focus}".strip()
        return _start(facts, place, StartChatRun(session=place.session, text=text, model=model, compress=focus))
    if title := clean_title(arguments):
        told = SendReply(text=f"This conversation is called: {title}")
        return InboundDecision(outcome="command", effects=(ChangeTitle(session=place.session, title=title), told))
    return _reply(f"This conversation is called: {session.title}" if session.title else "It has no title yet.")


def _decide_model(facts: InboundFacts, name: str) -> InboundDecision:
    place, found = choose_place(facts), facts.models
    if found.refusal:
        return _reply(f"This cannot be chosen: {found.refusal}")
    if not name:
        offered = [f"/model {each}" for each in found.offered]
        lines = [f"This conversation asks {found.usable}.", *offered, "/model default asks the usual one again."]
        return _reply("\n".join(lines))
    model = None if found.is_default else found.usable
    told = f"This conversation asks {found.usable} from now on."
    if found.is_default:
        told = f"This conversation asks the usual model: {found.usable}"
    effect = BeginConversation(after=facts.generation, model=model) if place.reset else SetChatModel(model=model)
    return InboundDecision(outcome="command", effects=(effect, SendReply(text=told)))


def _undo(facts: InboundFacts) -> InboundDecision:
    fork = name_session(facts.origin, facts.generation + 1)
    undo = UndoTurn(session=facts.present_session, fork=fork, after=facts.generation, model=facts.model)
    return InboundDecision(outcome="command", effects=(undo,))


def _decide_home(facts: InboundFacts) -> InboundDecision:
    if facts.tenant != DEFAULT_TENANT:
        return _reply("Only chats of the installation's own tenant can be home channels.")
    if facts.target is None:
        return _reply("Nothing can be sent here by name, so this cannot be a home channel.")
    told = SendReply(text=f"What is sent to {facts.origin.platform!r} comes here from now on.")
    return InboundDecision(outcome="command", effects=(MakeHome(target=facts.target), told))


# --- what people are told of what was done ---------------------------------------------------------------------------


def format_code_offer(code: str, display_name: str) -> str:
    """Give a stranger a pairing code, and say who can let them in."""
    return (
        f"I do not know you yet. Your code is {code}. Whoever operates this agent lets you in with:\n"
        f"hermes-worker gateway pair {display_name} {code}"
    )


def format_undone(kept: int, effects: Mapping[str, int]) -> str:
    """Say that the last turn was undone. ``kept`` is the number of rows before it, and ``effects`` how often each tool
    changed something in it, which stays changed."""
    told = "What was said last, and the answer to it, is taken back."
    if not kept:
        told += " Nothing was said before it, so this is a new conversation."
    named = [name if times == 1 else f"{name} ({times} times)" for name, times in effects.items()]
    return f"{told}\nWhat was done for it stays done: {', '.join(named)}." if named else told
