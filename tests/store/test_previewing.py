"""Answers that are shown while they are written, in the chats of a Telegram-like server with flood limits."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest
import sqlalchemy as sa
from support.store import Store, asks
from support.telegram_server import TOKEN, TelegramServer
from test_delivering import IDLE, Office

from hermes_worker.channels.errors import DUPLICATE_REMARK
from hermes_worker.channels.markup import render_telegram_html
from hermes_worker.channels.targets import Target
from hermes_worker.core.chat_replies import ReplyMode, build_reply_metadata
from hermes_worker.core.chat_signs import ChatSigns, ProgressMode
from hermes_worker.core.delivery_states import DeliveryState
from hermes_worker.core.effects import SendDelivery
from hermes_worker.core.messages import ModelReply, Usage
from hermes_worker.core.previews import EVERY_S, PreviewResult
from hermes_worker.core.rate_limits import RateLimits
from hermes_worker.core.replay import Replay
from hermes_worker.models.governor import CallPermit, CredentialRef
from hermes_worker.store.outbox.deliveries import enqueue_preview
from hermes_worker.store.runs.views import load_progress
from hermes_worker.store.tables import deliveries, runs
from hermes_worker.tasks.message_parts import split_report
from hermes_worker.tasks.previews import ChatPace

CHAT = "telegram:42"
BEGUN = "This is the beginning of an answer that goes on"


@dataclass
class Clock:
    """The time of the machine, and what was let pass."""

    passed_s: float = 0.0

    @property
    def now(self) -> float:
        return time.monotonic() + self.passed_s


@dataclass
class Cooling:
    """A governor by a clock of the test's own: it knows how long chats are to be left alone."""

    clock: Clock
    until: dict[str, float] = field(default_factory=dict)

    def acquire(self, place: CredentialRef, *, ticket: str, tokens: int, order: int | None = None) -> CallPermit:
        wait_s = max(0.0, self.until.get(place.key, 0.0) - self.clock.now)
        return CallPermit(place=place, ticket=ticket, wait_s=wait_s)

    def withdraw(self, permit: CallPermit) -> None:
        return

    def settle(self, permit: CallPermit, *, usage: Usage | None = None, limits: RateLimits | None = None) -> None:
        return

    def cool_down(self, place: CredentialRef, seconds: float) -> None:
        self.until[place.key] = self.clock.now + seconds


class Showing(Office):
    """A worker that delivers to a chat, and time that passes on demand."""

    def __init__(self, store: Store, tmp_path: Path, telegram: TelegramServer) -> None:
        values = {"TELEGRAM_BOT_TOKEN": TOKEN, "TELEGRAM_BASE_URL": telegram.url}
        super().__init__(store, tmp_path, values)
        self.telegram = telegram
        self.clock = Clock()
        self.written = ""
        pace = ChatPace(governor=Cooling(self.clock))
        progress = partial(load_progress, store.database)
        self.parts = replace(self.parts, pace=pace, written=lambda _: self.written, progress=progress)
        self.changed_at: list[float] = []
        self.free_at = 0.0
        self.too_early = 0

    def begin(self, *, is_followed: bool = True, **more: Any) -> str:
        run_id = self.store.submit(deliver=[CHAT], **more).run_id
        with self.store.database.write() as connection:
            enqueue_preview(connection, run_id, CHAT, after_s=EVERY_S, is_followed=is_followed)
        return run_id

    def begin_showing(self, signs: ChatSigns) -> str:
        return self.begin(is_followed=signs.has_text, source="gateway", metadata=signs.metadata)

    def tick(self) -> float:
        """Let the time pass until the row is due, and do what is due; for how long that was."""
        waits = sa.select(sa.func.min(deliveries.c.not_before)).where(deliveries.c.settled_at.is_(None))
        with self.store.database.read() as connection:
            not_before = connection.execute(waits).scalar()
        passed_s = 0.0 if not_before is None else max(0.0, not_before - self.store.database.read_clock())
        self.pass_s(passed_s)
        self.store.sweep(IDLE)
        self.work()
        return passed_s

    def pass_s(self, seconds: float) -> None:
        self.clock.passed_s += seconds
        earlier = {column.name: column - seconds for column in (deliveries.c.shown_at, deliveries.c.not_before)}
        with self.store.database.write() as connection:
            connection.execute(sa.update(deliveries).where(deliveries.c.settled_at.is_(None)).values(**earlier))

    def flood(self, random: Random, odds: float) -> float | None:
        """What the server answers a change: it counts those that come before the time that it named."""
        if self.clock.now < self.free_at - 0.1:
            self.too_early += 1
        if random.random() >= odds:
            self.changed_at.append(self.clock.now)
            return None
        retry_after_s = float(random.randint(3, 150))
        self.free_at = self.clock.now + retry_after_s
        return retry_after_s

    def expected(self, text: str) -> list[str]:
        pieces = split_report(text, Target(platform="telegram", chat="42"), self.parts.dispatcher, None)
        return [render_telegram_html(piece.text) for piece in pieces]

    def state_of(self, run_id: str) -> DeliveryState:
        [view] = self.outbox.list(run_id=run_id)
        return view.state

    @property
    def is_settled(self) -> bool:
        with self.store.database.read() as connection:
            return (
                connection.execute(sa.select(deliveries.c.pk).where(deliveries.c.settled_at.is_(None))).first() is None
            )

    @property
    def chat(self) -> list[str]:
        return list(self.telegram.messages.values())


@pytest.fixture
def telegram() -> Iterator[TelegramServer]:
    with TelegramServer() as running:
        yield running


@pytest.fixture
def showing(sqlite_store: Store, tmp_path: Path, telegram: TelegramServer) -> Showing:
    return Showing(sqlite_store, tmp_path, telegram)


def finish(here: Showing, run_id: str, text: str) -> None:
    here.store.answer(run_id, ModelReply(text=text))
    for _ in range(200):
        if here.is_settled:
            return
        here.tick()
    raise AssertionError("it is not delivered")


def test_a_preview_is_edited_and_its_last_edit_is_the_delivery(store: Store, tmp_path: Path) -> None:
    with TelegramServer() as telegram:
        here = Showing(store, tmp_path, telegram)
        run_id = here.begin()
        here.tick()
        assert here.chat == []
        here.written = f"{BEGUN} and o"
        here.tick()
        assert here.chat == [f"{BEGUN} and"]
        here.written = f"{BEGUN} and on it go"
        here.tick()
        assert here.chat == [f"{BEGUN} and on it"]
        finish(here, run_id, f"{BEGUN} and on it goes.")
        assert here.chat == [f"{BEGUN} and on it goes."]
        assert len(telegram.sent) == 1
        assert here.only.state is DeliveryState.DELIVERED
        assert here.only.receipt == "1"


def test_the_first_preview_replies_to_the_message_that_was_asked(showing: Showing) -> None:
    asked = {"chat": "42", **build_reply_metadata("telegram", "7", ReplyMode.FIRST)}
    run_id = showing.begin(source="gateway", metadata=asked)
    showing.written = f"{BEGUN} "
    showing.tick()
    finish(showing, run_id, "a" * 5_000)
    first, second = showing.telegram.sent
    assert first["reply_parameters"]["message_id"] == 7
    assert "reply_parameters" not in second


TYPING = ChatSigns(has_text=False, has_typing=True)


def test_a_chat_is_shown_that_somebody_writes_until_the_answer_is_sent_once(showing: Showing) -> None:
    run_id = showing.begin_showing(TYPING)
    showing.written = f"{BEGUN} "
    showing.tick()
    waits = [showing.tick() for _ in range(3)]
    assert waits == [pytest.approx(4.0, abs=1.0)] * 3
    assert showing.telegram.actions == [{"chat_id": "42", "action": "typing"}] * 4
    assert showing.chat == [], "what is written is not shown"
    finish(showing, run_id, "The answer.")
    assert showing.chat == ["The answer."]
    assert len(showing.telegram.actions) == 4


def test_a_platform_that_shows_no_typing_gets_the_answer_as_ever(showing: Showing) -> None:
    showing.telegram.takes_actions = False
    run_id = showing.begin_showing(TYPING)
    for _ in range(3):
        showing.tick()
    finish(showing, run_id, "The answer.")
    assert showing.chat == ["The answer."]
    assert showing.only.error_kind is None


def test_nobody_writes_while_a_run_waits_for_a_person_and_not_for_ever(showing: Showing) -> None:
    run_id = showing.begin_showing(TYPING)
    showing.tick()
    showing.store.change(runs, run_id, status="paused")
    showing.tick()
    assert len(showing.telegram.actions) == 1
    showing.store.change(runs, run_id, status="running")
    with showing.store.database.write() as connection:
        connection.execute(sa.update(deliveries).values(first_attempt_at=deliveries.c.first_attempt_at - 601.0))
    showing.tick()
    assert len(showing.telegram.actions) == 1


@pytest.mark.parametrize("has_ended", [False, True])
def test_a_worker_that_dies_while_it_shows_typing_leaves_no_duplicate(showing: Showing, has_ended: bool) -> None:
    run_id = showing.begin_showing(TYPING)
    dead = showing.store.worker("dead")
    showing.pass_s(2.0)
    showing.store.sweep(IDLE)
    effect = SendDelivery(run_id=run_id, delivery_id=showing.only.delivery_id, attempt=1)
    assert showing.outbox.claim(effect, dead.pk) is not None
    if has_ended:
        showing.store.answer(run_id, ModelReply(text="The answer."))
    showing.store.vanish(dead)
    showing.store.sweep(IDLE)
    if not has_ended:
        showing.store.answer(run_id, ModelReply(text="The answer."))
    assert showing.only.state is DeliveryState.PENDING
    assert not showing.only.is_in_doubt


@pytest.mark.parametrize(
    ("mode", "first", "second"),
    [
        (ProgressMode.SHORT, "… tool0, tool1", "… tool1, 1 done"),
        (ProgressMode.FULL, "… tool0\n… tool1", "✓ tool0\n… tool1"),
    ],
)
def test_tools_are_shown_above_what_is_written_and_are_gone_with_the_answer(
    showing: Showing, mode: ProgressMode, first: str, second: str
) -> None:
    run_id = showing.begin_showing(ChatSigns(progress=mode))
    showing.store.ask_tools(run_id, asks(Replay.ONCE, Replay.ONCE))
    showing.tick()
    assert showing.chat == [first]
    showing.store.settle(run_id, 0)
    showing.written = f"{BEGUN} "
    showing.tick()
    assert showing.chat == [f"{second}\n\n{BEGUN}"]
    showing.store.settle(run_id, 1)
    finish(showing, run_id, "The answer.")
    assert showing.chat == ["The answer."]
    assert len(showing.telegram.sent) == 1


def test_an_answer_that_says_nothing_takes_its_preview_away(showing: Showing) -> None:
    run_id = showing.begin()
    showing.written = f"{BEGUN} "
    showing.tick()
    assert showing.chat == [BEGUN]
    finish(showing, run_id, "[SILENT]")
    assert showing.chat == []


def test_a_preview_that_somebody_deleted_is_not_shown_again_and_the_answer_is(showing: Showing) -> None:
    run_id = showing.begin()
    showing.written = f"{BEGUN} "
    showing.tick()
    showing.telegram.messages.clear()
    showing.written = f"{BEGUN} and on "
    showing.tick()
    assert showing.chat == []
    finish(showing, run_id, "The answer.")
    assert showing.chat == ["The answer."]


def test_a_preview_of_which_nobody_heard_is_the_last_and_the_answer_says_so(showing: Showing) -> None:
    run_id = showing.begin()
    showing.written = f"{BEGUN} "
    showing.telegram.hangs_up = 1
    showing.tick()
    showing.written = f"{BEGUN} and on "
    showing.tick()
    assert len(showing.telegram.sent) == 1
    finish(showing, run_id, "The answer.")
    assert showing.chat[1:] == [f"{DUPLICATE_REMARK}\n\nThe answer."]


def test_an_edit_of_which_nobody_heard_is_repeated_without_a_remark(showing: Showing) -> None:
    run_id = showing.begin()
    showing.written = f"{BEGUN} "
    showing.tick()
    showing.pass_s(2.0)
    showing.telegram.hangs_up = 1
    finish(showing, run_id, "The answer.")
    assert showing.chat == ["The answer."]


def test_a_run_that_ends_while_its_preview_is_shown_is_delivered(showing: Showing) -> None:
    run_id = showing.begin()
    showing.pass_s(2.0)
    showing.store.sweep(IDLE)
    [view] = showing.all
    effect = SendDelivery(run_id="", delivery_id=view.delivery_id, attempt=1)
    claim = showing.outbox.claim(effect, showing.parts.leases.owner)
    assert claim is not None
    assert claim.previewed_run_id
    hints = showing.store.answer(run_id, ModelReply(text="The answer."))
    assert [hint for hint in hints if isinstance(hint.effect, SendDelivery)] == []
    showing.outbox.record_preview(claim, PreviewResult(standing=claim.standing, delay_s=None))
    showing.tick()
    assert showing.chat == ["The answer."]


def flooded(here: Showing, random: Random, replies: int) -> None:
    here.telegram.flood = lambda: here.flood(random, 0.35)
    for _ in range(replies):
        here.telegram.messages.clear()
        here.changed_at.clear()
        words = " ".join("word" * random.randint(1, 4) for _ in range(random.randint(1, 1_200)))
        text = words[: random.randint(1, 12_000)].strip()
        run_id = here.begin()
        for _ in range(random.randint(0, 4)):
            here.written = text[: random.randint(0, len(text))]
            here.tick()
            shown_at = list(here.changed_at)
            assert all(later - sooner >= EVERY_S - 0.1 for sooner, later in pairwise(shown_at))
        finish(here, run_id, text)
        assert here.chat == here.expected(text)
        assert here.state_of(run_id) is DeliveryState.DELIVERED
    assert here.too_early == 0


def test_flood_limits_leave_exactly_the_parts_of_each_answer(showing: Showing) -> None:
    flooded(showing, Random(21), 8)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_thousand_answers_under_flood_limits(showing: Showing) -> None:
    flooded(showing, Random(4711), 1_000)
