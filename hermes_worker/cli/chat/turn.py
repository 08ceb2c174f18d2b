"""Decide what a person is shown of a run, from its events. Pure: an event in, things to show out.

All text that is shown is cleaned here (``cli.wording``), so painters can trust it to be text. Events may miss fields or
have others: they come from a server that may be of another version.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Literal

from hermes_worker.cli.chat.blocks import MarkdownBlock, Unfinished, flush_blocks, take_blocks
from hermes_worker.cli.chat.call_output import CallOutput
from hermes_worker.cli.wording import (
    flatten_text,
    format_about,
    format_budget,
    format_call_name,
    format_refusal,
    format_retry,
    format_unknown_outcome,
    format_until,
    format_waiting,
    show_unprintable,
    strip_controls,
)
from hermes_worker.core.answer_binding import format_question_code
from hermes_worker.core.run_events import RunEventName
from hermes_worker.core.sent_text_marks import EventMark
from hermes_worker.stream.wire_events import MESSAGE_DELTA, REASONING_AVAILABLE, TOOL_GENERATING, TOOL_PROGRESS

_WHY_CHARS_MAX = 10_000
_DOING_CHARS_MAX = 100
STOPPED_HERE = "stopped by you"


class CallVerdict(StrEnum):
    """The verdict about a call that ended."""

    DONE = "done"
    FAILED = "failed"
    REFUSED = "refused"
    IN_DOUBT = "in doubt"


class Tone(StrEnum):
    """The tone of a notice."""

    PLAIN = "plain"
    GOOD = "good"
    WARNING = "warning"
    BAD = "bad"


@dataclass(frozen=True, slots=True, kw_only=True)
class Prose:
    """Text of the agent: a block of Markdown."""

    block: MarkdownBlock
    kind: Literal["prose"] = "prose"


@dataclass(frozen=True, slots=True, kw_only=True)
class CallBegun:
    name: str
    about: str
    """The arguments, on one line."""
    kind: Literal["call_begun"] = "call_begun"


@dataclass(frozen=True, slots=True, kw_only=True)
class CallFolded:
    """A call that has ended, on one line."""

    name: str
    about: str
    verdict: CallVerdict
    why: str
    """What went wrong; empty where nothing did."""
    took_s: float
    place: str = ""
    """Its place in the run, as the API names it: ``3.0``; empty where it is unknown."""
    kind: Literal["call_folded"] = "call_folded"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatNotice:
    text: str
    tone: Tone = Tone.PLAIN
    kind: Literal["notice"] = "notice"


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingQuestion:
    """A question that the run waits to be answered."""

    wait_id: int
    is_approval: bool
    text: str
    """The command that it wants to run, or the question."""
    why: str = ""
    choices: tuple[str, ...] = ()
    until: str = ""
    kind: Literal["question"] = "question"

    @property
    def code(self) -> str:
        return format_question_code(self.wait_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatEnd:
    """The end of the run."""

    name: str
    output: str = ""
    """The answer."""
    error: str = ""
    tokens_in: int = 0
    tokens_out: int = 0
    is_stopped_here: bool = False
    """Whether the person at this chat stopped it."""
    kind: Literal["end"] = "end"

    @property
    def is_completed(self) -> bool:
        return self.name == RunEventName.RUN_COMPLETED


Shown = Prose | CallBegun | CallFolded | CallOutput | ChatNotice | PendingQuestion | ChatEnd


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplySoFar:
    """The reply that is being written."""

    told: EventMark = field(default_factory=EventMark)
    """Its text so far, without white space at either end, which is how it is stored."""
    held: str = ""
    """White space behind that text."""
    unfinished: Unfinished = field(default_factory=Unfinished)

    @property
    def is_begun(self) -> bool:
        return self.told.chars > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnState:
    """The state of one run, from its events."""

    reply: ReplySoFar = field(default_factory=ReplySoFar)
    last_reply: str = ""
    """The text of the last reply that is complete."""
    calls: Mapping[str, CallBegun] = field(default_factory=dict)
    """The calls at work."""
    asking: tuple[PendingQuestion, ...] = ()
    iteration: int = 0
    """The number of the last reply that is complete; 0 for none."""
    is_stopped_here: bool = False
    """Whether the person at this chat asked for a stop."""
    doing: str = ""
    """What a tool or the model is doing, for a line that comes and goes."""
    end: ChatEnd | None = None


Step = tuple[TurnState, Sequence[Shown]]


def apply_event(state: TurnState, event: Mapping[str, Any]) -> Step:
    """Apply an event of the run's stream. Returns the next state, and what to show. An unknown event shows nothing."""
    if state.end is not None:
        return state, ()
    name = str(event.get("event", ""))
    decide = _STEPS.get(name)
    return decide(state, event) if decide else (state, ())


def _read_text(event: Mapping[str, Any], name: str) -> str:
    value = event.get(name)
    return strip_controls(value) if isinstance(value, str) else ""


def _read_number(value: object) -> int:
    return value if isinstance(value, int) else 0


# ------------------------------------------------------------------------------------------------------------ the reply


def _on_text(state: TurnState, event: Mapping[str, Any]) -> Step:
    reply, blocks = _extend_reply(state.reply, _read_text(event, "delta"))
    return replace(state, reply=reply, doing=""), [Prose(block=block) for block in blocks]


def _extend_reply(reply: ReplySoFar, more: str) -> tuple[ReplySoFar, list[MarkdownBlock]]:
    text = more if reply.is_begun else more.lstrip()
    if not text:
        return reply, []
    body = (reply.held + text).rstrip()
    held = (reply.held + text)[len(body) :]
    unfinished, blocks = take_blocks(reply.unfinished, text)
    return ReplySoFar(told=reply.told.advance(body) if body else reply.told, held=held, unfinished=unfinished), blocks


def _on_reply_completed(state: TurnState, event: Mapping[str, Any]) -> Step:
    """Show the rest of a reply that was stored. The shown text is its beginning, unless another attempt wrote that:
    then the stored text is right."""
    whole = _read_text(event, "text").strip()
    reply = state.reply
    shown: list[Shown] = []
    if not reply.told.is_beginning_of(whole):
        shown += [Prose(block=block) for block in flush_blocks(reply.unfinished)]
        shown.append(ChatNotice(text="the reply was begun again:", tone=Tone.WARNING))
        reply = ReplySoFar()
    rest = reply.told.find_missing(whole)
    reply, blocks = _extend_reply(reply, rest.removeprefix(reply.held))
    shown += [Prose(block=block) for block in (*blocks, *flush_blocks(reply.unfinished))]
    iteration = _read_number(event.get("iteration"))
    return replace(state, reply=ReplySoFar(), last_reply=whole, iteration=iteration, doing=""), shown


def _on_reply_discarded(state: TurnState, _event: Mapping[str, Any]) -> Step:
    if not state.reply.is_begun:
        return replace(state, reply=ReplySoFar()), ()
    shown: list[Shown] = [Prose(block=block) for block in flush_blocks(state.reply.unfinished)]
    shown.append(ChatNotice(text="that reply was cut short; the model is asked again", tone=Tone.WARNING))
    return replace(state, reply=ReplySoFar(), doing=""), shown


def _on_thinking(state: TurnState, _event: Mapping[str, Any]) -> Step:
    return replace(state, doing="thinking"), ()


def _on_tool_generating(state: TurnState, event: Mapping[str, Any]) -> Step:
    return replace(state, doing=flatten_text(f"writing a call of {_read_text(event, 'tool')}", _DOING_CHARS_MAX)), ()


# ---------------------------------------------------------------------------------------------------------- tool calls


def _find_call_key(event: Mapping[str, Any]) -> str:
    return f"{event.get('tool_call_id')} {event.get('position')} {event.get('tool')}"


def _on_call_started(state: TurnState, event: Mapping[str, Any]) -> Step:
    call = CallBegun(name=format_call_name(event), about=format_about(event))
    return replace(state, calls={**state.calls, _find_call_key(event): call}, doing=""), [call]


def _on_progress(state: TurnState, event: Mapping[str, Any]) -> Step:
    said = flatten_text(f"{_read_text(event, 'tool')}: {_read_text(event, 'text')}", _DOING_CHARS_MAX)
    return replace(state, doing=said), ()


def _on_call_completed(state: TurnState, event: Mapping[str, Any]) -> Step:
    begun = state.calls.get(_find_call_key(event)) or CallBegun(name=format_call_name(event), about="")
    calls = {key: call for key, call in state.calls.items() if key != _find_call_key(event)}
    verdict, why = _judge_call(state, event)
    took = event.get("duration")
    folded = CallFolded(
        name=begun.name,
        about=begun.about,
        verdict=verdict,
        why=why,
        took_s=float(took) if isinstance(took, int | float) else 0.0,
        place=f"{state.iteration}.{_read_number(event.get('position'))}" if state.iteration else "",
    )
    return replace(state, calls=calls, doing=""), [folded]


def _judge_call(state: TurnState, event: Mapping[str, Any]) -> tuple[CallVerdict, str]:
    if event.get("refused_by"):
        return CallVerdict.REFUSED, format_refusal(event)
    if state.is_stopped_here and (event.get("error") or event.get("outcome") == "cancelled"):
        return CallVerdict.FAILED, STOPPED_HERE
    if outcome := event.get("outcome"):
        return CallVerdict.IN_DOUBT, format_unknown_outcome(event) if outcome == "unknown" else flatten_text(
            str(outcome), 80
        )
    if event.get("error"):
        return CallVerdict.FAILED, "answered with an error"
    return CallVerdict.DONE, ""


# ----------------------------------------------------------------------------------------------------------- questions


def _on_question(state: TurnState, event: Mapping[str, Any]) -> Step:
    choices = event.get("choices")
    wait_id = event.get("wait_id")
    is_approval = event.get("event") == RunEventName.APPROVAL_REQUESTED
    question = PendingQuestion(
        wait_id=wait_id if isinstance(wait_id, int) else 0,
        is_approval=is_approval,
        text=show_unprintable(str(event.get("command" if is_approval else "question") or "")),
        why=flatten_text(_read_text(event, "description"), _WHY_CHARS_MAX),
        choices=tuple(flatten_text(str(each), 200) for each in choices) if isinstance(choices, list | tuple) else (),
        until=format_until(event.get("expires_at")).strip(),
    )
    kept = tuple(each for each in state.asking if each.wait_id != question.wait_id)
    return replace(state, asking=(*kept, question), doing=""), [question]


def _on_answer(state: TurnState, event: Mapping[str, Any]) -> Step:
    kept = tuple(each for each in state.asking if each.wait_id != event.get("wait_id"))
    who = f" by {flatten_text(str(event['by']), 80)}" if event.get("by") else ""
    choice = event.get("choice")
    if choice == "deny":
        notice = ChatNotice(text=f"denied{who}", tone=Tone.WARNING)
    elif choice:
        notice = ChatNotice(text=f"allowed{who} ({flatten_text(str(choice), 40)})", tone=Tone.GOOD)
    else:
        notice = ChatNotice(text=f"answered{who}", tone=Tone.GOOD)
    return replace(state, asking=kept), [notice]


# ------------------------------------------------------------------------------------------------------------- notices


def _make_warning_step(words: Callable[[Mapping[str, Any]], str]) -> Callable[[TurnState, Mapping[str, Any]], Step]:
    return lambda state, event: (state, [ChatNotice(text=words(event), tone=Tone.WARNING)])


def _make_notice_step(words: Callable[[Mapping[str, Any]], str]) -> Callable[[TurnState, Mapping[str, Any]], Step]:
    return lambda state, event: (state, [ChatNotice(text=words(event))])


def _on_end(state: TurnState, event: Mapping[str, Any]) -> Step:
    usage = event.get("usage")
    usage = usage if isinstance(usage, Mapping) else {}
    end = ChatEnd(
        name=str(event["event"]),
        output=_read_text(event, "output"),
        error=flatten_text(_read_text(event, "error"), 2_000),
        tokens_in=_read_number(usage.get("input_tokens")),
        tokens_out=_read_number(usage.get("output_tokens")),
        is_stopped_here=state.is_stopped_here and event["event"] == RunEventName.RUN_CANCELLED,
    )
    shown: list[Shown] = [Prose(block=block) for block in flush_blocks(state.reply.unfinished)]
    if end.output.strip() not in ("", state.last_reply):  # an answer that no reply told, such as a summary
        unfinished, blocks = take_blocks(Unfinished(), end.output.strip())
        shown += [Prose(block=block) for block in (*blocks, *flush_blocks(unfinished))]
    shown.append(end)
    return replace(state, reply=ReplySoFar(), calls={}, asking=(), doing="", end=end), shown


def _describe_compression(event: Mapping[str, Any]) -> str:
    return f"{_read_number(event.get('rows'))} older messages were summarised to make room"


_STEPS: Mapping[str, Callable[[TurnState, Mapping[str, Any]], Step]] = {
    MESSAGE_DELTA: _on_text,
    REASONING_AVAILABLE: _on_thinking,
    TOOL_GENERATING: _on_tool_generating,
    TOOL_PROGRESS: _on_progress,
    RunEventName.MESSAGE_COMPLETED: _on_reply_completed,
    RunEventName.REPLY_DISCARDED: _on_reply_discarded,
    RunEventName.TOOL_STARTED: _on_call_started,
    RunEventName.TOOL_COMPLETED: _on_call_completed,
    RunEventName.APPROVAL_REQUESTED: _on_question,
    RunEventName.INPUT_REQUESTED: _on_question,
    RunEventName.APPROVAL_ANSWERED: _on_answer,
    RunEventName.INPUT_ANSWERED: _on_answer,
    RunEventName.COMPACTED: _make_notice_step(_describe_compression),
    RunEventName.STEERED: _make_notice_step(lambda event: f"you said: {flatten_text(_read_text(event, 'text'), 500)}"),
    RunEventName.RESUMED: _make_notice_step(lambda event: "the run goes on"),
    RunEventName.WAITING: _make_warning_step(format_waiting),
    RunEventName.STEP_RETRIED: _make_warning_step(format_retry),
    RunEventName.BUDGET_EXHAUSTED: _make_warning_step(format_budget),
    RunEventName.STOP_REQUESTED: _make_warning_step(lambda event: "stopping"),
    RunEventName.HOOK_FAILED: _make_warning_step(
        lambda event: (
            f"the hook {flatten_text(str(event.get('hook')), 80)} failed: {flatten_text(str(event.get('reason')), 200)}"
        )
    ),
    RunEventName.RUN_COMPLETED: _on_end,
    RunEventName.RUN_FAILED: _on_end,
    RunEventName.RUN_CANCELLED: _on_end,
}
