"""An answer that is shown while it is written: whatever becomes of previews, the chat ends with the answer's parts."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from hermes_worker.core.previews import (
    EVERY_S,
    IDLE_S_MAX,
    FinishByEdit,
    FinishByRemoval,
    FinishBySending,
    FinishLater,
    LookLater,
    PreviewOutcome,
    PreviewState,
    ShowAgain,
    ShowNew,
    apply_outcome,
    compute_text_hash,
    decide_finish,
    decide_preview,
    select_shown_text,
)

LONG = "a text that is long enough to be shown"


@dataclass
class Chat:
    """What really stands there."""

    messages: dict[str, str] = field(default_factory=dict)
    number: int = 0

    def add(self, text: str) -> str:
        self.number += 1
        self.messages[str(self.number)] = text
        return str(self.number)


@dataclass
class Flow:
    """A row, its chat and a clock."""

    chat: Chat = field(default_factory=Chat)
    standing: PreviewState = field(default_factory=PreviewState)
    now: float = 0.0
    edits: list[float] = field(default_factory=list)

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.standing = replace(self.standing, idle_s=self.standing.idle_s + seconds)

    def look(self, text: str, outcome: PreviewOutcome, arrived: bool) -> float | None:
        step = decide_preview(self.standing, text)
        if isinstance(step, LookLater):
            return step.delay_s
        new_id = None
        if outcome is PreviewOutcome.SHOWN or (outcome is PreviewOutcome.OPEN and arrived):
            self.edits.append(self.now)
            if isinstance(step, ShowNew):
                new_id = self.chat.add(step.text)
            else:
                assert step.message_id in self.chat.messages
                self.chat.messages[step.message_id] = step.text
        if outcome is PreviewOutcome.GONE and isinstance(step, ShowAgain):
            del self.chat.messages[step.message_id]
        elif outcome is PreviewOutcome.GONE:
            outcome = PreviewOutcome.REFUSED
        after = apply_outcome(self.standing, step, outcome, message_id=new_id, retry_after_s=7.0)
        self.standing = after.standing
        return after.delay_s

    def end(self, parts: list[str], *, is_first_text: bool) -> None:
        step = decide_finish(self.standing, parts_sent=0, is_first_text=is_first_text)
        if isinstance(step, FinishLater):
            self.wait(step.delay_s)
            step = decide_finish(self.standing, parts_sent=0, is_first_text=is_first_text)
        match step:
            case FinishByEdit(message_id=message_id):
                self.edits.append(self.now)
                self.chat.messages[message_id] = parts.pop(0)
            case FinishByRemoval(message_id=message_id):
                del self.chat.messages[message_id]
            case FinishBySending():
                pass
            case _:
                raise AssertionError("it waits for ever")
        for part in parts:
            self.chat.add(part)


@given(
    st.lists(st.tuples(st.sampled_from(PreviewOutcome), st.booleans(), st.booleans()), max_size=12),
    st.integers(0, 4),
    st.booleans(),
)
def test_a_chat_ends_with_exactly_the_parts_of_the_answer_in_order(
    looks: list[tuple[PreviewOutcome, bool, bool]], count: int, begins_with_text: bool
) -> None:
    flow = Flow()
    delay_s: float | None = 0.0
    for number, (outcome, arrived, has_more) in enumerate(looks):
        flow.wait(delay_s)
        delay_s = flow.look(f"{LONG} {number}" if has_more else LONG, outcome, arrived)
        if delay_s is None:
            break
        assert delay_s > 0
    # The run ends right after the last look.
    is_in_doubt = flow.standing.is_in_doubt
    known = set(flow.chat.messages) - ({flow.standing.message_id} if flow.standing.message_id else set())
    parts = [f"part {number}" for number in range(count)]
    flow.end(list(parts), is_first_text=begins_with_text and bool(parts))
    left = [text for message_id, text in flow.chat.messages.items() if message_id not in known]
    assert left == parts
    # A message that we do not know stands there only where the row says so, which the delivery tells people.
    assert not known or is_in_doubt
    assert all(later - earlier >= EVERY_S for earlier, later in pairwise(flow.edits))


def test_nothing_is_shown_that_is_short_or_stands_there_already() -> None:
    assert isinstance(decide_preview(PreviewState(idle_s=9.0), "[SILENT]"), LookLater)
    shown = PreviewState(message_id="7", shown_hash=compute_text_hash(LONG), idle_s=9.0)
    assert isinstance(decide_preview(shown, LONG), LookLater)
    assert decide_preview(shown, f"{LONG}!") == ShowAgain(message_id="7", text=f"{LONG}!")


def test_a_run_that_writes_nothing_is_looked_at_ever_more_seldom() -> None:
    waits = [decide_preview(PreviewState(idle_s=idle_s), "") for idle_s in (0.0, 8.0, 3_600.0)]
    assert waits == [LookLater(delay_s=delay_s) for delay_s in (EVERY_S, 2.0, IDLE_S_MAX)]


def test_the_last_word_is_kept_back_since_it_may_become_a_secret() -> None:
    assert select_shown_text("the key is sk-abcdef", lambda _: True) == "the key is"
    assert select_shown_text("sk-abcdef", lambda _: True) == ""


@given(st.text(alphabet="ab \n🐈", max_size=400), st.integers(8, 60))
def test_of_a_long_text_its_end_is_shown(text: str, room: int) -> None:
    shown = select_shown_text(text, lambda part: len(part.encode("utf-16-le")) // 2 <= room)
    assert len(shown.encode("utf-16-le")) // 2 <= room
    assert text.strip().startswith(shown) or shown.startswith("…")
