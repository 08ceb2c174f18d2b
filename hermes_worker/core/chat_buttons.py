"""Buttons below a question in a chat, independent of the platform. Pure.

A button's ``value`` comes back when somebody presses it. It names the question and the answer, and proves nothing:
whether a press counts depends on who pressed, in which chat, and whether the question is still open there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from hermes_worker.core.questions import Question
from hermes_worker.core.run import WaitKind

_LABELS: Final = {"once": "Allow", "session": "Allow in this conversation", "always": "Always allow", "deny": "Deny"}
_LABEL_CHARS_MAX: Final = 60
WAIT_DIGITS_MAX: Final = 18
_CUT: Final = "…"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatButton:
    """A button below a question. ``value`` comes back when it is pressed; platforms accept 64 bytes."""

    label: str
    value: str


def build_buttons(question: Question, wait_id: int) -> tuple[ChatButton, ...]:
    """Build the buttons of a question; empty when it wants a text."""
    if question.kind is WaitKind.APPROVAL:
        known = [choice for choice in question.choices if choice in _LABELS]
        return tuple(ChatButton(label=_LABELS[choice], value=f"{wait_id}:{choice}") for choice in known)
    labels = [" ".join(choice.split())[:_LABEL_CHARS_MAX] for choice in question.choices]
    return tuple(
        ChatButton(label=label or str(number), value=f"{wait_id}:{number}") for number, label in enumerate(labels, 1)
    )


def is_of_wait(button: ChatButton, wait_id: int) -> bool:
    return button.value.partition(":")[0] == str(wait_id)


def fit_buttons(buttons: Sequence[ChatButton], *, chars_max: int, count_max: int) -> tuple[ChatButton, ...]:
    """Shorten labels to ``chars_max`` characters and keep them distinct. Empty when there are more than ``count_max``
    buttons: then people answer in words, rather than by only some of the choices."""
    if len(buttons) > count_max:
        return ()
    labels = [_cut(button.label, chars_max) for button in buttons]
    if len(set(labels)) < len(labels):
        labels = [_cut(f"{number}. {button.label}", chars_max) for number, button in enumerate(buttons, 1)]
    return tuple(replace(button, label=label) for button, label in zip(buttons, labels, strict=True))


def _cut(label: str, chars_max: int) -> str:
    return label if len(label) <= chars_max else label[: chars_max - 1].rstrip() + _CUT
