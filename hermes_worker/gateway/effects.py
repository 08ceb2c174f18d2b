"""Carry out what was decided about an inbound event: its row and all effects in one transaction.

Theory of operation. The event's row is written first, so a second handler of the same event waits for this transaction
and then writes nothing (``EventKnown``). A decision that starts a run is written in the transaction that makes the run.
Where the rows do not allow an effect any more, ``InboundRefused`` is raised, which rolls the transaction back: the
event has no row and no effects, and is decided again. Hints are sent after the commit; a hint that is lost is repeated
by the sweeper.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import assert_never

from sqlalchemy.engine import Connection

from hermes_worker.channels.targets import parse_chat
from hermes_worker.core.chat_accounts import DEFAULT_ACCOUNT, format_account
from hermes_worker.core.chat_commands import ChatRole
from hermes_worker.core.gateway import Silence
from hermes_worker.core.inbound_decision import (
    AnswerQuestion,
    BeginConversation,
    ChangeTitle,
    ConflictKind,
    InboundConflict,
    InboundDecision,
    InboundEffect,
    JoinGatheringRun,
    JoinWaitingRun,
    MakeHome,
    OfferPairingCode,
    SendReply,
    SetChatModel,
    StartChatRun,
    StopChatRun,
    UndoTurn,
    format_code_offer,
    format_undone,
)
from hermes_worker.core.limits import LimitReached
from hermes_worker.core.previews import EVERY_S
from hermes_worker.core.session_keys import name_session_counter
from hermes_worker.gateway.files import FileTurns
from hermes_worker.gateway.received import ReceivedEvent
from hermes_worker.gateway.turns import build_submission, choose_signs
from hermes_worker.observe import log
from hermes_worker.safety.approvals import ApprovalChoice
from hermes_worker.safety.redaction import redact
from hermes_worker.services.submission import InvalidSubmission, accept, announce
from hermes_worker.store.gateway import ChatBurst, EventKnown, GatewayRows, KnownChats
from hermes_worker.store.last_turns import lock_last_turn
from hermes_worker.store.outbox.deliveries import enqueue_deliveries, enqueue_preview
from hermes_worker.store.rows import Hint
from hermes_worker.store.runs.runs import Created, SessionBusy, SessionNotFound, find_run
from hermes_worker.store.runs.waits import (
    ApprovalAnswer,
    NothingAsked,
    NotOffered,
    NotWaiting,
    settle_approval,
    settle_input,
)
from hermes_worker.store.sessions import InvalidFork, SessionChanges, SessionExists, Sessions, TitleTaken
from hermes_worker.wiring import Client

_STEERED = "steer"
"""Outcome of a message that was said to the run at work."""


class InboundRefused(Exception):
    """An effect could not be carried out; nothing was written."""

    def __init__(self, kind: ConflictKind, effect: InboundEffect, reason: object = "") -> None:
        super().__init__(kind, reason)
        self.conflict = InboundConflict(kind=kind, effect=effect, reason=str(reason))


@dataclass(kw_only=True)
class _Writing:
    """A decision while it is written."""

    received: ReceivedEvent
    decision: InboundDecision
    outcome: str
    run_id: str | None
    reply: str | None = None
    hints: list[Hint] = field(default_factory=list)
    stopped: str | None = None
    stop_hints: list[Hint] = field(default_factory=list)
    """Hints that follow the news about the run that is being stopped."""

    @property
    def source(self) -> str:
        return self.decision.role.source

    @property
    def is_guest(self) -> bool:
        return self.decision.role is ChatRole.GUEST

    @property
    def chat(self) -> tuple[str, str]:
        """The account, and the name of the counter of the chat's sessions."""
        return self.received.account, name_session_counter(self.received.origin, is_guest=self.is_guest)


class EffectWriter:
    """Writes decisions about events in the chats of one tenant. Thread-safe."""

    def __init__(self, client: Client, tenant: str, rows: GatewayRows, files: FileTurns) -> None:
        self._client = client
        self._tenant = tenant
        self._rows = rows
        self._files = files
        self._known = KnownChats(client.database, tenant)

    def write(self, received: ReceivedEvent, decision: InboundDecision) -> str:
        """Write an event's row and the effects of a decision about it. Returns the outcome. Raises ``EventKnown``,
        ``InboundRefused``, ``LeaseLost``, ``UnavailableError``."""
        if decision.outcome is None:
            raise EventKnown
        self._known.record_name(received.account, received.event.chat.id, decision.chat_name)
        writing = _Writing(received=received, decision=decision, outcome=decision.outcome, run_id=decision.run_id)
        start = next((each for each in decision.effects if isinstance(each, StartChatRun)), None)
        if start is not None:
            announce(self._client, self._accept(writing, start))
        else:
            with self._client.database.write() as connection:
                self._write_all(connection, writing)
        if writing.stopped is not None:
            self._stop_below(writing.stopped, writing.stop_hints)
        self._client.publisher.send(writing.hints)
        return writing.outcome

    def _accept(self, writing: _Writing, start: StartChatRun) -> Created:
        """Make a run, and write the event in the same transaction."""
        received = writing.received
        submission = build_submission(self._client.settings, received, writing.decision.role, start)
        try:
            return accept(self._client, submission, partial(self._write_beside_run, writing, start))
        except SessionBusy:
            raise InboundRefused(ConflictKind.QUEUE_FULL, start) from None
        except LimitReached as error:
            log.warning("inbound.limited", account=received.account, reason=str(error))
            raise InboundRefused(ConflictKind.LIMIT_REACHED, start) from None
        except InvalidSubmission as error:
            raise InboundRefused(ConflictKind.INVALID, start, error) from None

    def _write_beside_run(
        self, writing: _Writing, start: StartChatRun, connection: Connection, created: Created
    ) -> None:
        writing.run_id = created.run_id
        if created.was_steered:
            writing.outcome = _STEERED
        self._write_all(connection, writing)
        self._complete_run(connection, writing, start, created.run_id)

    def _write_all(self, connection: Connection, writing: _Writing) -> None:
        row, first = writing.received.row, (writing.outcome, writing.run_id)
        self._rows.insert_event(connection, row, *first)
        for effect in writing.decision.effects:
            self._carry_out(connection, writing, effect)
        if (writing.outcome, writing.run_id) != first:
            self._rows.set_outcome(connection, row, writing.outcome, writing.run_id)
        if writing.reply is not None:
            writing.hints += self._send(connection, writing.received, writing.reply)

    def _send(self, connection: Connection, received: ReceivedEvent, text: str) -> list[Hint]:
        if received.target is None:
            return []
        return enqueue_deliveries(connection, [received.target], body=text, tenant=self._tenant)

    def _stop_below(self, run_id: str, hints: list[Hint]) -> None:
        below = self._client.runs.stop_descendants(run_id)
        more = [hint for each in below.values() for hint in each]
        self._client.publisher.publish_stops([run_id, *below], [*hints, *more])

    # --- effects -----------------------------------------------------------------------------------------------------

    def _carry_out(self, connection: Connection, writing: _Writing, effect: InboundEffect) -> None:
        match effect:
            case SendReply():
                writing.reply = redact(effect.text) if effect.hides_secrets else effect.text
            case OfferPairingCode():
                self._offer_code(connection, writing, effect)
            case StopChatRun():
                self._stop(connection, writing, effect)
            case BeginConversation():
                self._begin_conversation(connection, writing, effect)
            case SetChatModel():
                self._rows.set_model(connection, *writing.chat, effect.model)
            case UndoTurn():
                self._undo(connection, writing, effect)
            case MakeHome():
                self._make_home(connection, effect)
            case ChangeTitle():
                self._change_title(connection, writing, effect)
            case AnswerQuestion():
                self._answer(connection, writing, effect)
            case JoinWaitingRun():
                self._join_waiting(connection, writing, effect)
            case JoinGatheringRun():
                self._join_gathering(connection, writing, effect)
            case StartChatRun():
                pass  # its run was made before anything else was written
            case _:
                assert_never(effect)

    def _offer_code(self, connection: Connection, writing: _Writing, effect: OfferPairingCode) -> None:
        code = self._rows.create_code(connection, writing.received.account, writing.received.event.sender.id)
        if code is None:
            writing.outcome = Silence.STRANGER.value
        else:
            writing.reply = format_code_offer(code, effect.display_name)

    def _stop(self, connection: Connection, writing: _Writing, effect: StopChatRun) -> None:
        stopped = self._rows.stop(connection, writing.source, effect.session, writing.received.principal)
        if stopped is None:
            writing.reply = effect.reply_if_none
        else:
            writing.reply, writing.run_id = effect.reply, stopped.run_id
            writing.stopped, writing.stop_hints = stopped.run_id, stopped.hints

    def _begin_conversation(self, connection: Connection, writing: _Writing, effect: BeginConversation) -> None:
        is_ours = self._rows.start_new_conversation(connection, *writing.chat, effect.after, model=effect.model)
        if is_ours and effect.notice is not None:
            writing.hints += self._send(connection, writing.received, effect.notice)

    def _undo(self, connection: Connection, writing: _Writing, effect: UndoTurn) -> None:
        """Fork the session before its last turn. The transcript is not changed (I7), and what the turn did is not
        undone."""
        turn = lock_last_turn(connection, self._tenant, writing.source, effect.session)
        if turn is None:
            writing.reply = "Nothing can be taken back here now. /stop ends what is being done."
            return
        kept = Sessions(self._client.database, self._tenant, writing.source)
        try:
            kept.insert_fork(connection, effect.session, name=effect.fork, last=turn.kept)
        except SessionExists:
            raise InboundRefused(ConflictKind.CONVERSATION_MOVED, effect) from None
        except (SessionNotFound, InvalidFork) as error:
            raise InboundRefused(ConflictKind.NO_FORK, effect, error) from None
        if not self._rows.start_new_conversation(connection, *writing.chat, effect.after, model=effect.model):
            raise InboundRefused(ConflictKind.CONVERSATION_MOVED, effect)
        writing.reply = format_undone(turn.kept, turn.effects)

    def _make_home(self, connection: Connection, effect: MakeHome) -> None:
        sender, _, reference = effect.target.partition(":")
        chat = parse_chat(sender, reference)
        account = format_account(chat.platform, chat.account or DEFAULT_ACCOUNT)
        self._known.set_home(connection, account, chat.chat, chat.thread)

    def _change_title(self, connection: Connection, writing: _Writing, effect: ChangeTitle) -> None:
        kept = Sessions(self._client.database, self._tenant, writing.source)
        try:
            kept.write_change(connection, effect.session, SessionChanges(title=effect.title))
        except TitleTaken:
            raise InboundRefused(ConflictKind.TITLE_TAKEN, effect) from None

    def _answer(self, connection: Connection, writing: _Writing, effect: AnswerQuestion) -> None:
        run_pk, by = find_run(connection, effect.run_id), writing.received.principal
        try:
            if effect.choice is None:
                writing.hints += settle_input(connection, run_pk, effect.text, by=by, wait_id=effect.wait_id)
                return
            choice, reason = ApprovalChoice(effect.choice), effect.text or None
            answer = ApprovalAnswer(choice=choice, by=by, reason=reason, is_from_chat=True)
            writing.hints += settle_approval(connection, run_pk, answer, wait_id=effect.wait_id)
        except NotOffered as error:
            raise InboundRefused(ConflictKind.NOT_OFFERED, effect, error) from None
        except (NothingAsked, NotWaiting):
            raise InboundRefused(ConflictKind.TOO_LATE, effect) from None

    def _join_waiting(self, connection: Connection, writing: _Writing, effect: JoinWaitingRun) -> None:
        within_s = self._client.settings.gateway.burst_s
        burst = ChatBurst(principal=writing.received.principal, text=effect.text, within_s=within_s)
        writing.run_id = self._rows.join_waiting(connection, writing.source, effect.session, burst)
        if writing.run_id is None:
            raise InboundRefused(ConflictKind.RUN_BEGAN, effect)

    def _join_gathering(self, connection: Connection, writing: _Writing, effect: JoinGatheringRun) -> None:
        received = writing.received
        chat = self._files.build_file_chat(writing.source, effect.session, received.principal)
        files = self._files.build_files(received.account, received.event, is_guest=writing.is_guest)
        joined = self._files.join(connection, chat, effect.text, files)
        if joined is None:
            raise InboundRefused(ConflictKind.RUN_BEGAN, effect)
        writing.run_id = joined.run_id
        writing.hints += joined.hints

    def _complete_run(self, connection: Connection, writing: _Writing, effect: StartChatRun, run_id: str) -> None:
        """Write what belongs to a run that was just made: its files, and what the chat is shown of it."""
        received = writing.received
        if effect.delay_s is not None:
            files = self._files.build_files(received.account, received.event, is_guest=writing.is_guest)
            writing.hints += self._files.enqueue_fetches(connection, run_id, files)
        signs = choose_signs(self._client.settings.gateway, received.platform)
        if writing.outcome != _STEERED and received.target is not None and signs.shows_something:
            enqueue_preview(connection, run_id, received.target, after_s=EVERY_S, is_followed=signs.has_text)
