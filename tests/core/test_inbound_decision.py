"""What an event of a chat causes, decided without a database: each row is an event, what is known, and the effects."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from hermes_worker.core.answer_binding import ChatQuestion, format_question_code
from hermes_worker.core.chat_commands import ChatRole, CommandAccess, CommandUser
from hermes_worker.core.gateway import GroupPolicy, Speakers
from hermes_worker.core.inbound import (
    ChatKind,
    Inbound,
    InboundButton,
    InboundChat,
    InboundCommand,
    InboundEdit,
    InboundMessage,
    InboundMove,
    InboundSender,
    MediaRef,
)
from hermes_worker.core.inbound_decision import (
    AnswerQuestion,
    BeginConversation,
    ChangeTitle,
    ChatModels,
    ChatSession,
    ConflictKind,
    InboundConflict,
    InboundEffect,
    InboundFacts,
    JoinGatheringRun,
    JoinWaitingRun,
    MakeHome,
    OfferPairingCode,
    SendReply,
    SetChatModel,
    StartChatRun,
    StopChatRun,
    UndoTurn,
    decide,
    format_code_offer,
    format_undone,
)
from hermes_worker.core.media_kinds import MediaKind
from hermes_worker.core.run import WaitKind
from hermes_worker.core.session_keys import ChatOrigin, name_session, name_session_counter
from hermes_worker.core.session_resets import ChatActivity, ResetMode, ResetPolicy

NOW = 10_000.0
ADA = InboundSender(id="42", alt_id="ada", name="Ada")
EVE = InboundSender(id="7", name="Eve")
DIRECT = InboundChat(id="42")
GROUP = InboundChat(id="-1", kind=ChatKind.GROUP, name="Ops")
TOPIC = replace(GROUP, thread="5")
PICTURE = MediaRef(kind=MediaKind.IMAGE, id="p")
KEY = "agent:main:telegram:dm:42"
NEXT = f"{KEY}~1"


def message(text: str = "hello", **more: Any) -> InboundMessage:
    usual = {"event_key": "1", "chat": DIRECT, "sender": ADA, "sent_at": NOW, "is_addressed": True}
    return InboundMessage(text=text, **(usual | more))


def press(value: str, **more: Any) -> InboundButton:
    return InboundButton(**({"event_key": "1", "chat": DIRECT, "sender": ADA, "value": value} | more))


def origin_of(chat: InboundChat, sender: InboundSender = ADA) -> ChatOrigin:
    return ChatOrigin(platform="telegram", chat_type=chat.kind.value, chat=chat.id, thread=chat.thread, user=sender.id)


def known(chat: InboundChat = DIRECT, **more: Any) -> InboundFacts:
    """An owner in a chat of their own, where nothing goes on."""
    usual: dict[str, Any] = {
        "speakers": Speakers(allowed=["42"]),
        "origin": origin_of(chat),
        "account": "telegram:default",
        "display_name": "telegram",
        "target": f"telegram:{chat.id}",
        "access": CommandAccess(),
        "reset_policy": ResetPolicy(),
        "file_wait_s": 90.0,
    }
    return InboundFacts(**(usual | more))


def member(**more: Any) -> InboundFacts:
    return known(speakers=Speakers(), paired=ChatRole.MEMBER, **more)


def guest(**more: Any) -> InboundFacts:
    return known(speakers=Speakers(guests=["42"]), **more)


def approval(wait_id: int = 1, *, seen: float | None = NOW - 60, closed: float | None = None) -> ChatQuestion:
    return ChatQuestion(
        wait_id=wait_id,
        run_id=f"run_{wait_id}",
        kind=WaitKind.APPROVAL,
        label="rm -rf build",
        opened_at=NOW - 61,
        delivered_at=seen,
        closed_at=closed,
        messages=frozenset({f"m{wait_id}"}),
    )


def asked(wait_id: int = 1, **more: Any) -> ChatQuestion:
    return replace(approval(wait_id, **more), kind=WaitKind.INPUT, label="Which colour?")


def code(wait_id: int = 1) -> str:
    return format_question_code(wait_id)


def start(text: str = "hello", **more: Any) -> StartChatRun:
    return StartChatRun(**({"session": KEY, "text": text} | more))


def conflict(kind: ConflictKind, effect: InboundEffect | None = None, reason: str = "") -> dict[str, Any]:
    return {"conflicts": (InboundConflict(kind=kind, effect=effect or start(), reason=reason),)}


Expected = tuple[str | None, tuple[InboundEffect, ...]]


def told(text: str, *first: InboundEffect, outcome: str = "command", hides_secrets: bool = False) -> Expected:
    return outcome, (*first, SendReply(text=text, hides_secrets=hides_secrets))


def run(*effects: InboundEffect) -> Expected:
    return "run", effects


def nothing(outcome: str | None) -> Expected:
    return outcome, ()


def answered(choice: str | None, text: str = "", wait_id: int = 1) -> AnswerQuestion:
    return AnswerQuestion(run_id=f"run_{wait_id}", wait_id=wait_id, choice=choice, text=text)


def summary(event: Inbound, facts: InboundFacts) -> Expected:
    decision = decide(event, facts)
    return decision.outcome, decision.effects


NOT_OPEN = "This is not asked any more."
WRITTEN_BEFORE = (
    "You wrote this before I asked what I ask now, so it allows nothing. Answer with the code of the question."
)
STRANGERS = Speakers()
EVERYBODY = Speakers(allowed=["*"])
OPEN_GROUPS = Speakers(groups=GroupPolicy.GUESTS)
NO_GROUPS = Speakers(allowed=["42"], groups=GroupPolicy.OFF)
BOT = replace(ADA, is_bot=True)
OFFER = OfferPairingCode(display_name="telegram")


@pytest.mark.parametrize(
    ("event", "facts", "expected"),
    [
        (message(), known(), run(start())),
        (message(), known(speakers=STRANGERS), ("paired", (OFFER,))),
        (message("/stop"), known(speakers=STRANGERS), ("paired", (OFFER,))),
        (message(), known(speakers=Speakers(pairs=False)), nothing("stranger")),
        (message(sender=EVE), known(), ("paired", (OFFER,))),
        (message(chat=GROUP), known(GROUP, speakers=STRANGERS), nothing("stranger")),
        (message(chat=GROUP), known(GROUP, speakers=NO_GROUPS), nothing("groups_off")),
        (message(), known(speakers=NO_GROUPS), run(start())),
        (message(chat=GROUP, is_addressed=False), known(GROUP), nothing("not_addressed")),
        (message("/status", chat=GROUP, is_addressed=False), known(GROUP), told("Nothing is being done here.")),
        (message(sender=BOT), known(), nothing("bot")),
        (message(sender=replace(ADA, id="")), known(), nothing("nameless")),
        (message("  "), known(), nothing("empty")),
        (InboundEdit(event_key="1", chat=DIRECT, sender=ADA, text="no"), known(), nothing("unknown_kind")),
        (InboundMove(event_key="1", chat=GROUP, sender=ADA, to_chat="-2"), known(GROUP), nothing("unknown_kind")),
        (press("1:once", sender=EVE), known(questions=(approval(),)), nothing("stranger")),
        (press("nothing of ours"), known(), nothing("unknown_kind")),
        (message(), known(is_handled=True), nothing(None)),
        (message("/stop"), known(is_handled=True), nothing(None)),
        (press("1:once"), known(is_handled=True, questions=(approval(),)), nothing(None)),
    ],
)
def test_who_is_let_in_and_what_is_ignored(event: Inbound, facts: InboundFacts, expected: Expected) -> None:
    assert summary(event, facts) == expected


@pytest.mark.parametrize(
    ("event", "facts", "role"),
    [
        (message(), known(), ChatRole.OWNER),
        (message(), known(speakers=EVERYBODY), ChatRole.MEMBER),
        (message(), member(), ChatRole.MEMBER),
        (message("/help"), guest(), ChatRole.GUEST),
        (message(chat=GROUP), known(GROUP, speakers=OPEN_GROUPS), ChatRole.GUEST),
        (message(chat=GROUP), known(GROUP, speakers=Speakers(open_groups=["-1"])), ChatRole.MEMBER),
        (press("1:once"), member(questions=(approval(),)), ChatRole.MEMBER),
    ],
)
def test_effects_are_carried_out_with_the_role_of_the_sender(
    event: Inbound, facts: InboundFacts, role: ChatRole
) -> None:
    assert decide(event, facts).role is role


@pytest.mark.parametrize(
    ("event", "facts", "name"),
    [
        (message(chat=GROUP), known(GROUP), "ops"),
        (message("/status", chat=GROUP), known(GROUP), "ops"),
        (message(chat=GROUP), known(GROUP, speakers=OPEN_GROUPS), ""),
        (message(), known(), ""),
        (message(chat=GROUP), known(GROUP, is_handled=True), ""),
    ],
)
def test_a_group_is_known_by_its_name_unless_a_guest_says_it(event: Inbound, facts: InboundFacts, name: str) -> None:
    assert decide(event, facts).chat_name == name


IDLE = {
    "activity": ChatActivity(now=datetime.fromtimestamp(NOW, UTC), updated_at=datetime.fromtimestamp(0, UTC)),
    "reset_policy": ResetPolicy(mode=ResetMode.IDLE, idle_minutes=60),
}
NOTICE = (
    "◐ Session automatically reset (inactive for 1h).\n"
    "This is a new conversation; what was said before is kept, and I do not see it here."
)
RESET = BeginConversation(after=0, notice=NOTICE)
QUIET = replace(IDLE["reset_policy"], is_told=False)
RECENT = {**IDLE, "activity": replace(IDLE["activity"], updated_at=IDLE["activity"].now - timedelta(minutes=5))}
FILES = {"files": "kept", "delay_s": 90.0}
WITH_PICTURE = message("look", media=(PICTURE,))
JOIN_WAITING = JoinWaitingRun(session=KEY, text="hello")
JOIN_GATHERING = JoinGatheringRun(session=KEY, text="hello")


@pytest.mark.parametrize(
    ("event", "facts", "expected"),
    [
        (message(), known(busy_mode="interrupt"), run(start(multitask="interrupt"))),
        (message(), known(generation=1, model="acme/large"), run(start(session=NEXT, model="acme/large"))),
        (message(chat=GROUP), known(GROUP), run(start(session=name_session(origin_of(GROUP), 0)))),
        (
            message(chat=TOPIC),
            known(TOPIC),
            run(start("[Ada] hello", session=name_session(origin_of(TOPIC), 0))),
        ),
        (
            message(chat=TOPIC, sender=replace(ADA, name="[Bob]\nroot")),
            known(TOPIC),
            run(start("[Bob root] hello", session=name_session(origin_of(TOPIC), 0))),
        ),
        (message(), known(target=None), nothing("unanswerable")),
        # A burst is one turn.
        (message(), known(may_join_waiting=True), ("joined", (JOIN_WAITING,))),
        (message(), known(may_join_waiting=True, busy_mode="interrupt"), run(start(multitask="interrupt"))),
        (message(), known(may_join_waiting=True, **conflict(ConflictKind.RUN_BEGAN, JOIN_WAITING)), run(start())),
        # Files are fetched first, and what is said meanwhile waits.
        (WITH_PICTURE, known(), run(start("look", **FILES))),
        (WITH_PICTURE, known(busy_mode="steer", run_at_work="run_1"), run(start("look", **FILES))),
        (WITH_PICTURE, guest(), run(start("look", files="seen", delay_s=90.0))),
        (WITH_PICTURE, known(may_join_waiting=True), run(start("look", **FILES))),
        (WITH_PICTURE, known(questions=(asked(),)), run(start("look", **FILES))),
        (WITH_PICTURE, known(is_gathering=True), ("joined", (JoinGatheringRun(session=KEY, text="look"),))),
        (message("", media=(PICTURE,)), known(is_gathering=True), ("joined", (JoinGatheringRun(session=KEY),))),
        (message(), known(is_gathering=True, may_join_waiting=True), ("joined", (JOIN_GATHERING,))),
        (
            message(),
            known(is_gathering=True, may_join_waiting=True, **conflict(ConflictKind.RUN_BEGAN, JOIN_GATHERING)),
            ("joined", (JOIN_WAITING,)),
        ),
        (message(), known(others_wait_s=8.0, busy_mode="interrupt"), run(start(delay_s=8.0))),
        # Steering says it to the run at work.
        (message(), known(busy_mode="steer", run_at_work="run_1"), run(start(multitask="steer"))),
        (
            message(),
            known(busy_mode="steer", run_at_work="run_1", others_wait_s=8.0),
            run(start(multitask="steer")),
        ),
        (message(), known(busy_mode="steer", others_wait_s=8.0), run(start(delay_s=8.0))),
        # A session ends by itself.
        (message(), known(**IDLE), run(RESET, start(session=NEXT))),
        (message(), known(model="acme/large", **IDLE), run(RESET, start(session=NEXT))),
        (message(), known(**RECENT), run(start())),
        (message(), known(**{**IDLE, "reset_policy": QUIET}), run(BeginConversation(after=0), start(session=NEXT))),
        (message(), known(may_join_waiting=True, is_gathering=True, **IDLE), run(RESET, start(session=NEXT))),
        # What the rows refused.
        (
            message(),
            known(**conflict(ConflictKind.QUEUE_FULL)),
            told("Too many messages wait here. Send this one later.", outcome="full"),
        ),
        (
            message(),
            known(**conflict(ConflictKind.LIMIT_REACHED)),
            told("I may do no more for now. Send this one later.", outcome="limited"),
        ),
        (
            message(),
            known(**conflict(ConflictKind.INVALID, reason="the model is unknown")),
            told("This cannot be taken: the model is unknown", outcome="refused"),
        ),
    ],
)
def test_a_message_joins_a_run_or_becomes_one(event: Inbound, facts: InboundFacts, expected: Expected) -> None:
    assert summary(event, facts) == expected


ONE = {"questions": (approval(),)}
TWO = {"questions": (approval(1), approval(2))}
ALLOWED, DENIED = "This was allowed.", "This was not allowed."
REQUEST = f"- {code()} (rm -rf build): /approve {code()} or /deny {code()}"
WHICH = f"I cannot tell which question you answer. If it is this one, name it:\n{REQUEST}"
SEND_AGAIN = "What you wrote was not passed on. If it answers none of these, send it again."
ONLY_OWNERS = f"Only an owner may allow something from now on. Answer /approve {code()} or /approve {code()} session."
NO_STOPS = CommandAccess(["approve=owner", "deny=owner"])


@pytest.mark.parametrize(
    ("event", "facts", "expected"),
    [
        # Nothing is asked.
        (message("yes"), known(), run(start("yes"))),
        (message("/approve"), known(), told("Nothing waits for your permission here.")),
        (message(f"/approve {code()}"), known(), told(NOT_OPEN)),
        # One question is open.
        (message("yes"), known(**ONE), told(ALLOWED, answered("once"), outcome="answer")),
        (message("No!"), known(**ONE), told(DENIED, answered("deny"), outcome="answer")),
        (message("/approve session"), known(**ONE), told(ALLOWED, answered("session"), outcome="answer")),
        (message("/deny too risky"), known(**ONE), told(DENIED, answered("deny", "too risky"), outcome="answer")),
        (message("what is it?"), known(**ONE), run(start("what is it?"))),
        (message("green"), known(questions=(asked(),)), ("answer", (answered(None, "green"),))),
        (message("/approve"), known(questions=(asked(),)), told("Nothing waits for your permission here.")),
        (message("always"), known(**ONE), told(ALLOWED, answered("always"), outcome="answer")),
        (message("always"), member(**ONE), told(ONLY_OWNERS)),
        (message("yes"), member(access=NO_STOPS, **ONE), run(start("yes"))),
        (message("/approve"), member(access=NO_STOPS, **ONE), told("/approve is not for you here.")),
        (
            message("/approve this or that"),
            known(**ONE),
            told(
                "Nothing was allowed. Answer /approve CODE, /approve CODE session or /approve CODE always, "
                "with the code of the question."
            ),
        ),
        # The newest answers only what it can have meant, by the time at which it was written.
        (message("yes", sent_at=NOW - 120), known(**ONE), run(start("yes"))),
        (message("/approve", sent_at=NOW - 120), known(**ONE), told(WRITTEN_BEFORE)),
        (
            message("/approve", sent_at=None),
            known(**ONE),
            told(WHICH, outcome="code_asked", hides_secrets=True),
        ),
        (
            message("yes", sent_at=None),
            known(**ONE),
            told(f"{WHICH}\n{SEND_AGAIN}", outcome="code_asked", hides_secrets=True),
        ),
        (message("yes", sent_at=None), known(was_code_asked=True, **ONE), run(start("yes"))),
        (
            message("/approve"),
            known(questions=(approval(seen=None),)),
            told(
                "I cannot tell which question you answer. If it is this one, name it:\n"
                "- one that is still on its way to you: answer it with the code that it shows",
                outcome="code_asked",
                hides_secrets=True,
            ),
        ),
        (
            message(f"/approve {code(2)}", sent_at=NOW - 120),
            known(questions=(approval(1, closed=NOW - 2), approval(2))),
            told(ALLOWED, answered("once", wait_id=2), outcome="answer"),
        ),
        (message("/approve", reply_to="m1"), known(questions=(approval(closed=NOW), approval(2))), told(NOT_OPEN)),
        # Two are open, and only what names one answers.
        (message(f"yes {code(2)}"), known(**TWO), told(ALLOWED, answered("once", wait_id=2), outcome="answer")),
        (
            message("/deny", reply_to="m1"),
            known(**TWO),
            told(DENIED, answered("deny"), outcome="answer"),
        ),
        # A thread below a question answers it, and quoting the thread's beginning quotes nothing.
        (
            message("yes", chat=replace(GROUP, thread="m1"), reply_to="m1", sent_at=None),
            known(replace(GROUP, thread="m1"), **ONE),
            told(ALLOWED, answered("once"), outcome="answer"),
        ),
        # Somebody else was faster.
        (message("/approve"), known(**ONE, **conflict(ConflictKind.TOO_LATE, answered("once"))), told(NOT_OPEN)),
        (message("yes"), known(**conflict(ConflictKind.TOO_LATE, answered("once"))), told(NOT_OPEN)),
        (
            message("green"),
            known(questions=(asked(2),), **conflict(ConflictKind.TOO_LATE, answered(None, "green"))),
            run(start("green")),
        ),
        (
            message("always"),
            known(**ONE, **conflict(ConflictKind.NOT_OFFERED, answered("always"), "it offers once and deny")),
            told("This cannot be chosen: it offers once and deny."),
        ),
    ],
)
def test_an_answer_is_for_the_question_that_was_meant(event: Inbound, facts: InboundFacts, expected: Expected) -> None:
    assert summary(event, facts) == expected


def test_with_two_questions_open_the_code_is_asked_for_and_the_event_is_about_the_first() -> None:
    decision = decide(message("/approve"), known(**TWO))
    [reply] = decision.effects
    assert isinstance(reply, SendReply)
    assert reply.text.startswith("I cannot tell which question you answer. Name the one that you mean:\n- ")
    assert (decision.outcome, decision.run_id, reply.hides_secrets) == ("code_asked", "run_1", True)


@pytest.mark.parametrize(
    ("event", "facts", "expected"),
    [
        (press("1:once"), known(**ONE), told(ALLOWED, answered("once"), outcome="answer")),
        (press("2:deny"), known(**TWO), told(DENIED, answered("deny", wait_id=2), outcome="answer")),
        (press("1:2"), known(questions=(asked(),)), ("answer", (answered(None, "2"),))),
        (press("1:2"), guest(questions=(asked(),)), ("answer", (answered(None, "2"),))),
        (press("1:once"), guest(**ONE), told("Guests allow nothing.")),
        (press("1:always"), member(**ONE), told(ONLY_OWNERS)),
        (press("1:twice"), known(**ONE), nothing("unknown_kind")),
        (press("1:once"), member(access=NO_STOPS, **ONE), told("This is not for you to choose.")),
        (press("1:once"), known(questions=(approval(closed=NOW),), was_asked=True), told(NOT_OPEN)),
        (press("9:once"), known(**ONE), nothing("unknown_kind")),
        (press("1:once"), known(**ONE, **conflict(ConflictKind.TOO_LATE, answered("once"))), told(NOT_OPEN)),
        (
            press("1:2"),
            known(questions=(asked(),), **conflict(ConflictKind.TOO_LATE, answered(None, "2"))),
            told(NOT_OPEN),
        ),
    ],
)
def test_a_press_answers_the_question_that_bears_the_button(
    event: Inbound, facts: InboundFacts, expected: Expected
) -> None:
    assert summary(event, facts) == expected


HELP = CommandAccess().format_help(CommandUser(role=ChatRole.OWNER))
GUESTS_HELP = CommandAccess().format_help(CommandUser(role=ChatRole.GUEST))
STOP = StopChatRun(session=KEY, reply="Stopped.", reply_if_none="Nothing is being done here.")
FOUND = ChatModels(usable="acme/large", offered=("acme/large", "acme/small"))
LIST = (
    "This conversation asks acme/large.\n/model acme/large\n/model acme/small\n/model default asks the usual one again."
)
CHOSEN, USUAL = "This conversation asks acme/large from now on.", "This conversation asks the usual model: acme/large"
TITLED = {"session": ChatSession(title="Trip", asks_model="acme/small", usage="7 tokens in")}
UNDO = UndoTurn(session=KEY, fork=NEXT, after=0, model=None)


@pytest.mark.parametrize(
    ("event", "facts", "expected"),
    [
        (message("/frobnicate"), known(), told(f"There is no such command.\n{HELP}")),
        (message("/stpo"), known(), told(f"There is no such command; did you mean /stop?\n{HELP}")),
        (message("/joobs"), guest(), told(f"There is no such command.\n{GUESTS_HELP}")),
        (message("/help"), known(), told(HELP)),
        (message("/start@HermesBot"), guest(), told(GUESTS_HELP)),
        (message("/queue"), known(), told(HELP)),
        (InboundCommand(event_key="1", chat=DIRECT, sender=ADA, name="stop"), known(), ("command", (STOP,))),
        (message("/stop"), known(access=CommandAccess(["stop=nobody"])), told("/stop is not for you here.")),
        (message("/jobs"), member(jobs="backup"), told("/jobs is not for you here.")),
        (message("/jobs"), known(jobs="backup"), told("backup")),
        (message("/model"), guest(models=FOUND), told("/model is not for you here.")),
        (
            message("/new"),
            known(generation=1),
            told("This is a new conversation.", StopChatRun(session=NEXT), BeginConversation()),
        ),
        (message("/status"), known(), told("Nothing is being done here.")),
        (message("/status"), known(waiting=1), told("What you sent has not begun: its files are on the way.")),
        (message("/status"), known(run_at_work="run_1", waiting=2), told("Run run_1 is at work; 2 more wait.")),
        (message("/queue and then"), known(busy_mode="interrupt"), run(start("and then"))),
        (
            message("/queue and then"),
            known(may_join_waiting=True),
            ("joined", (JoinWaitingRun(session=KEY, text="and then"),)),
        ),
        (message("/steer left"), known(run_at_work="run_1"), run(start("left", multitask="steer"))),
        (message("/queue look", media=(PICTURE,)), known(), run(start("look", **FILES))),
        (message("/title"), known(), told("Nothing was said here yet.")),
        (message("/title"), known(**TITLED), told("This conversation is called: Trip")),
        (message("/title"), known(session=ChatSession()), told("It has no title yet.")),
        (
            message("/title Home"),
            known(**TITLED),
            told("This conversation is called: Home", ChangeTitle(session=KEY, title="Home")),
        ),
        (
            message("/title Home"),
            known(**TITLED, **conflict(ConflictKind.TITLE_TAKEN)),
            told("Another conversation is called so."),
        ),
        (message("/usage"), known(**TITLED), told("7 tokens in")),
        (
            message("/compress the  bug"),
            known(**TITLED),
            run(start("/compress the bug", compress="the bug", model="acme/small")),
        ),
        (
            message("/compress"),
            known(model="acme/large", **TITLED),
            run(start("/compress", compress="", model="acme/large")),
        ),
        (message("/compress"), known(target=None, **TITLED), nothing("unanswerable")),
        (message("/model"), known(models=FOUND), told(LIST)),
        (message("/model acme/large"), known(models=FOUND), told(CHOSEN, SetChatModel(model="acme/large"))),
        (
            message("/model default"),
            known(models=replace(FOUND, is_default=True)),
            told(USUAL, SetChatModel(model=None)),
        ),
        (
            message("/model acme/large"),
            known(models=FOUND, **IDLE),
            told(CHOSEN, BeginConversation(after=0, model="acme/large")),
        ),
        (message("/model x"), known(models=ChatModels(refusal="no such")), told("This cannot be chosen: no such")),
        (message("/undo"), known(), ("command", (UNDO,))),
        (
            message("/undo"),
            known(generation=1, model="acme/large", **conflict(ConflictKind.CONVERSATION_MOVED, UNDO)),
            ("command", (UndoTurn(session=NEXT, fork=f"{KEY}~2", after=1, model="acme/large"),)),
        ),
        (
            message("/undo"),
            known(**conflict(ConflictKind.NO_FORK, UNDO, "a call is open")),
            told("This cannot be taken back: a call is open"),
        ),
        (
            message("/approvals"),
            known(questions=(approval(1), approval(2, closed=NOW - 1))),
            told(f"{approval(1).code}: rm -rf build"),
        ),
        (message("/approvals"), known(), told("Nothing waits for an answer here.")),
        (
            message("/sethome"),
            known(),
            told("What is sent to 'telegram' comes here from now on.", MakeHome(target="telegram:42")),
        ),
        (
            message("/sethome"),
            known(tenant="acme"),
            told("Only chats of the installation's own tenant can be home channels."),
        ),
        (
            message("/sethome"),
            known(target=None),
            told("Nothing can be sent here by name, so this cannot be a home channel."),
        ),
    ],
)
def test_a_command_has_its_effects_or_a_sentence(event: Inbound, facts: InboundFacts, expected: Expected) -> None:
    assert summary(event, facts) == expected


def test_a_stranger_is_told_who_lets_them_in() -> None:
    assert format_code_offer("ABCD2345", "telegram:ops").endswith(
        "Your code is ABCD2345. Whoever operates this agent lets you in with:\n"
        "hermes-worker gateway pair telegram:ops ABCD2345"
    )


@pytest.mark.parametrize(
    ("kept", "effects", "lines"),
    [
        (3, {}, ["What was said last, and the answer to it, is taken back."]),
        (
            3,
            {"terminal": 2, "write_file": 1},
            [..., "What was done for it stays done: terminal (2 times), write_file."],
        ),
        (
            0,
            {},
            [
                "What was said last, and the answer to it, is taken back. "
                "Nothing was said before it, so this is a new conversation."
            ],
        ),
    ],
)
def test_what_an_undone_turn_did_is_named(kept: int, effects: dict[str, int], lines: list[Any]) -> None:
    found = format_undone(kept, effects).splitlines()
    assert len(found) == len(lines)
    assert all(line in (..., one) for line, one in zip(lines, found, strict=True))


def test_a_guests_sessions_are_counted_apart_and_long_keys_stay_short() -> None:
    origin = origin_of(DIRECT)
    assert name_session_counter(origin, is_guest=False) == KEY
    assert name_session_counter(origin, is_guest=True).startswith("guest:")
    long = replace(origin, chat="4" * 300)
    assert len(name_session(long, 12)) <= 256
    assert name_session(long, 12) != name_session(long, 13)
