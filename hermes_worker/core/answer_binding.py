"""Decide which question an answer in a chat is for. Pure.

A person answers the question that they saw, and the product may not guess which one that was: the message may have
waited at the platform while that question lapsed and another one opened. So an answer *binds* to one question, or the
person is asked for the question's code, or it is no answer.

- A button, the code of a question and a reply that quotes its message name the question, and count whenever they come.
- Any other message counts only if one question is open that it can answer, and it was written after that question was
  seen: later than its confirmed delivery, and later than the end of every other question, each by more than the clocks
  of the platform and of the database may differ.
- A message that was clearly written before is no answer. In every other case of doubt the code is asked for.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from hermes_worker.core.gateway import CODE_SIGNS
from hermes_worker.core.run import WaitKind

CLOCKS_APART_S: Final = 5.0
"""Seconds by which a platform's clock may differ from the database's."""

_LETTERS, _DIGITS = CODE_SIGNS[:24], CODE_SIGNS[24:]
_SCATTER: Final = 89
"""Prime to the number of codes of every length, so each question has a code of its own, and neighbours look unlike."""
_CODE: Final = re.compile(r"[#(\[]?([A-Za-z][2-9][A-Za-z2-9]{0,7})[)\].,:;!]{0,2}")
_LABEL_CHARS_MAX: Final = 80

_CHOSEN: Final = {
    **dict.fromkeys(("approve", "yes", "ok", "okay", "confirm", "y", "👍", "once"), "once"),
    **dict.fromkeys(("deny", "no", "reject", "cancel", "n", "👎"), "deny"),
    "always": "always",
    "session": "session",
}
"""Words that answer an approval while one is open."""
CHOICES: Final = frozenset(_CHOSEN.values())
"""The choices of an approval."""


def format_question_code(wait_id: int) -> str:
    """The code of a question, shown wherever the question is: a letter, a digit, and more characters once the short
    codes are used up. Every question has a code of its own for ever, so the code of a closed question never names a
    newer one."""
    rest, count, length = wait_id - 1, len(_LETTERS) * len(_DIGITS), 2
    while rest >= count:
        rest, count, length = rest - count, count * len(CODE_SIGNS), length + 1
    rest = rest * _SCATTER % count
    signs = []
    for alphabet in (_LETTERS, _DIGITS, *[CODE_SIGNS] * (length - 2)):
        rest, place = divmod(rest, len(alphabet))
        signs.append(alphabet[place])
    return "".join(signs)


def parse_choice(text: str) -> str | None:
    """The choice that a plain word stands for while an approval is open; ``None`` for other texts."""
    return _CHOSEN.get(text.strip().casefold().rstrip(".!"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatQuestion:
    """A question that was put to a chat. Times are epoch seconds by the database's clock."""

    wait_id: int
    run_id: str
    kind: WaitKind
    """``approval`` or ``input``."""
    label: str
    """A few words about its subject."""
    opened_at: float
    delivered_at: float | None = None
    """When the platform had confirmed all of its messages; ``None`` until then."""
    closed_at: float | None = None
    messages: frozenset[str] = frozenset()
    """The platform's ids of the messages that show it."""

    @property
    def code(self) -> str:
        return format_question_code(self.wait_id)

    @property
    def is_open(self) -> bool:
        return self.closed_at is None


class AnswerForm(StrEnum):
    """The form of a message that may be an answer."""

    APPROVE = "approve"
    """The command ``/approve``; the text is its argument."""
    DENY = "deny"
    """The command ``/deny``; the text is its argument."""
    WORDS = "words"
    """A plain message; the text is all of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PossibleAnswer:
    """An event that may be an answer."""

    form: AnswerForm
    text: str = ""
    sent_at: float | None = None
    """Epoch seconds, by the platform's clock; ``None`` when the platform does not say."""
    quoted: str = ""
    """The id of the message that it quotes; empty for none."""
    thread: str = ""
    """The id of the message whose thread it is in; empty for none."""
    may_choose: frozenset[str] = CHOICES
    """The choices that its sender may make."""
    was_code_asked: bool = False
    """The chat was asked for the code since the newest question opened."""

    @property
    def is_command(self) -> bool:
        return self.form is not AnswerForm.WORDS


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundAnswer:
    """An answer with the one question that it names or must mean."""

    question: ChatQuestion
    choice: str | None
    """The choice of an approval; ``None`` for the answer to a question."""
    text: str
    """The answer to a question, or the reason of a refusal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeWanted:
    """A text that may be an answer, but to which question is uncertain: the person is asked for the code."""

    questions: tuple[ChatQuestion, ...]
    """The open questions that it may be for."""


class NotAnAnswer(StrEnum):
    """Why something answers no question."""

    MESSAGE = "message"
    """It is an ordinary message of the conversation."""
    NOTHING_ASKED = "nothing_asked"
    """No question is open that it could answer."""
    NOT_OPEN = "not_open"
    """It names a question that is closed, or that never existed."""
    WRITTEN_BEFORE = "written_before"
    """It is a command that was written before the question was shown."""
    UNREADABLE = "unreadable"
    """The argument of the command is neither a choice nor a code."""


Binding = BoundAnswer | CodeWanted | NotAnAnswer


@dataclass(frozen=True, slots=True, kw_only=True)
class _ParsedText:
    """The parts of a text: a choice, a code, and the rest."""

    choice: str | None = None
    code: str = ""
    has_strange_code: bool = False
    """It begins with a code-like word that belongs to no known question, or ends with the code of a closed one."""
    rest: str = ""
    """The text without the code."""
    reason: str = ""
    """The reason of a refusal."""


def bind_answer(said: PossibleAnswer, questions: Sequence[ChatQuestion]) -> Binding:
    """Decide which of a session's questions ``said`` answers. ``questions`` are the open ones and those closed
    recently."""
    open_ones = [each for each in questions if each.is_open]
    words = _read_words(said, questions)
    if words is None:
        return NotAnAnswer.UNREADABLE
    named = [each for each in questions if _is_named(each, said, words)]
    if named:
        return _bind_named(said, words, named)
    if words.code:
        return NotAnAnswer.NOT_OPEN if open_ones or said.is_command else NotAnAnswer.MESSAGE
    return _bind_by_time(said, words, questions)


def bind_press(wait_id: int, answer: str, questions: Sequence[ChatQuestion]) -> Binding:
    """Bind a press of a button, which names the question that bears it."""
    pressed = next((each for each in questions if each.wait_id == wait_id and each.is_open), None)
    if pressed is None:
        return NotAnAnswer.NOT_OPEN
    choice = answer if pressed.kind is WaitKind.APPROVAL else None
    return BoundAnswer(question=pressed, choice=choice, text="" if choice else answer)


def _is_named(question: ChatQuestion, said: PossibleAnswer, words: _ParsedText) -> bool:
    is_quoted = bool(question.messages & ({said.quoted, said.thread} - {""}))
    return is_quoted or question.code == words.code


def _bind_named(said: PossibleAnswer, words: _ParsedText, named: Sequence[ChatQuestion]) -> Binding:
    is_meant_so = bool(words.choice or words.code)
    if not all(each.is_open for each in named):
        return NotAnAnswer.NOT_OPEN if is_meant_so else NotAnAnswer.MESSAGE
    if len(named) > 1 or (words.code and not words.rest and words.choice is None):
        return CodeWanted(questions=tuple(named))
    if not _can_answer(said, words, named[0]):
        return NotAnAnswer.NOTHING_ASKED if said.is_command else NotAnAnswer.MESSAGE
    return _build_answer(named[0], words)


def _bind_by_time(said: PossibleAnswer, words: _ParsedText, questions: Sequence[ChatQuestion]) -> Binding:
    candidates = [each for each in questions if each.is_open and _can_answer(said, words, each)]
    if not candidates:
        return NotAnAnswer.NOTHING_ASKED if said.is_command else NotAnAnswer.MESSAGE
    if said.sent_at is not None and all(said.sent_at < _find_seen_at(each) - CLOCKS_APART_S for each in candidates):
        return NotAnAnswer.WRITTEN_BEFORE if said.is_command else NotAnAnswer.MESSAGE
    names_another = bool(said.quoted) or words.has_strange_code
    if len(candidates) == 1 and not names_another and _was_written_after(said.sent_at, candidates[0], questions):
        return _build_answer(candidates[0], words)
    if said.was_code_asked and not said.is_command:
        return NotAnAnswer.MESSAGE
    return CodeWanted(questions=tuple(candidates))


def _can_answer(said: PossibleAnswer, words: _ParsedText, question: ChatQuestion) -> bool:
    if question.kind is WaitKind.APPROVAL:
        return words.choice in said.may_choose
    return not said.is_command and bool(words.rest)


def _find_seen_at(question: ChatQuestion) -> float:
    return question.opened_at if question.delivered_at is None else question.delivered_at


def _was_written_after(sent_at: float | None, asked: ChatQuestion, questions: Sequence[ChatQuestion]) -> bool:
    """Whether a message sent at ``sent_at`` can only mean the question ``asked``, because it was written after every
    other one was closed."""
    if sent_at is None or asked.delivered_at is None:
        return False
    ended = [each.closed_at for each in questions if each.closed_at is not None]
    return sent_at > max(asked.delivered_at, *ended, 0.0) + CLOCKS_APART_S


def _build_answer(question: ChatQuestion, words: _ParsedText) -> BoundAnswer:
    if question.kind is WaitKind.INPUT:
        return BoundAnswer(question=question, choice=None, text=words.rest)
    return BoundAnswer(question=question, choice=words.choice, text=words.reason)


# --- reading ---------------------------------------------------------------------------------------------------------


def _read_words(said: PossibleAnswer, questions: Sequence[ChatQuestion]) -> _ParsedText | None:
    match said.form:
        case AnswerForm.APPROVE:
            return _read_approve(said.text)
        case AnswerForm.DENY:
            first, rest = _split_first(said.text)
            code = parse_code(first)
            return _ParsedText(choice="deny", code=code, reason=rest if code else said.text.strip())
        case AnswerForm.WORDS:
            return _read_message(said.text, questions)


def _read_approve(text: str) -> _ParsedText | None:
    """Read a choice and a code in any order, each at most once; ``None`` for anything else."""
    words = text.split()
    choices = [choice for word in words if (choice := parse_choice(word))]
    codes = [code for word in words if (code := parse_code(word))]
    if len(choices) > 1 or len(codes) > 1 or len(choices) + len(codes) < len(words):
        return None
    return _ParsedText(choice=choices[0] if choices else "once", code=codes[0] if codes else "")


def _read_message(text: str, questions: Sequence[ChatQuestion]) -> _ParsedText:
    """Read a message. A code stands at its beginning or end. In other places, and when no question has it, a code-like
    word is an ordinary word, except beside nothing but a choice: ``yes K7`` means K7 whether or not that is open."""
    whole = text.strip()
    first, behind = _split_first(whole)
    before, _, last = whole.rpartition(" ")
    known = {each.code for each in questions}
    open_codes = {each.code for each in questions if each.is_open}
    for code, rest, codes in ((parse_code(first), behind, known), (parse_code(last), before.strip(), open_codes)):
        choice = parse_choice(rest)
        if code and (code in codes or choice):
            return _ParsedText(choice=choice, code=code, rest=rest)
    is_strange = bool(parse_code(first)) or parse_code(last) in known
    return _ParsedText(choice=parse_choice(whole), has_strange_code=is_strange, rest=whole)


def _split_first(text: str) -> tuple[str, str]:
    words = text.strip().split(maxsplit=1)
    return (words[0] if words else "", words[1].strip() if len(words) > 1 else "")


def parse_code(word: str) -> str:
    """The code that a word looks like, in its displayed form; empty for other words."""
    found = _CODE.fullmatch(word)
    return found.group(1).upper() if found else ""


# --- what people are told --------------------------------------------------------------------------------------------


def format_code_line(kind: WaitKind, code: str, *, may_allow: bool = True) -> str:
    """The line below a question in a chat that says how to answer it. A question that a chat does not show whole may
    only be denied there."""
    if kind is WaitKind.APPROVAL and not may_allow:
        return f"Here you can answer /deny {code}."
    if kind is WaitKind.APPROVAL:
        return f"Answer /approve {code} or /deny {code}."
    return f"Question {code}: reply to this message, or write {code} and your answer."


def format_code_request(wanted: CodeWanted, said: PossibleAnswer) -> str:
    """Ask a person for the code. The code of a question is included only when its message has arrived, since a question
    that was not seen may not be allowed."""
    lines = ["I cannot tell which question you answer. If it is this one, name it:"]
    if len(wanted.questions) > 1:
        lines = ["I cannot tell which question you answer. Name the one that you mean:"]
    lines += [_format_request_line(each) for each in wanted.questions]
    if not said.is_command:
        lines.append("What you wrote was not passed on. If it answers none of these, send it again.")
    return "\n".join(lines)


def _format_request_line(question: ChatQuestion) -> str:
    if question.delivered_at is None:
        return "- one that is still on its way to you: answer it with the code that it shows"
    code = question.code
    label = " ".join(question.label.split())
    short = label if len(label) <= _LABEL_CHARS_MAX else f"{label[: _LABEL_CHARS_MAX - 1].rstrip()}…"
    how = f"/approve {code} or /deny {code}" if question.kind is WaitKind.APPROVAL else f"{code} and your answer"
    return f"- {code} ({short}): {how}"


REFUSAL_TEXTS: Final = {
    NotAnAnswer.NOTHING_ASKED: "Nothing waits for your permission here.",
    NotAnAnswer.NOT_OPEN: "This is not asked any more.",
    NotAnAnswer.WRITTEN_BEFORE: "You wrote this before I asked what I ask now, so it allows nothing. "
    "Answer with the code of the question.",
    NotAnAnswer.UNREADABLE: "Nothing was allowed. Answer /approve CODE, /approve CODE session or /approve CODE always, "
    "with the code of the question.",
}
"""The reply to a message that counts for no question; there is none for ``MESSAGE``."""
