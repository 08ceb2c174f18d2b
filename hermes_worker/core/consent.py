"""Show people what they are asked to allow: whole, or they cannot allow it there. Pure.

One rule for every surface (docs/security.md, "What people are asked to allow"). Terminals, the page and other programs
show all of a command. A chat shows it in as many messages as it needs, up to ``CHAT_CHARS_MAX``; of a longer one it
shows both ends, says how much is left out and where all of it can be read, and accepts nothing but a refusal.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from hermes_worker.core.invisible_characters import show_invisible

CHAT_CHARS_MAX: Final = 12_000
"""Three messages of Telegram, seven of Discord. People would not read more."""
_END_CHARS: Final = 1_500
_DENY: Final = "deny"
_FENCE_MIN, _FENCE_MAX = 3, 16
"""The lengths of fences that the splitter of messages knows (``channels.splitting``)."""
_LONG_TICKS: Final = re.compile(f"`{{{_FENCE_MAX},}}")
_LINE_END: Final = " ⏎ "


def read_pattern_keys(request: Mapping[str, Any]) -> tuple[str, ...]:
    """The pattern keys that an answer to an approval allows. Rows of earlier releases name one."""
    keys = request.get("pattern_keys") or (request.get("pattern_key"),)
    return tuple(str(key) for key in keys if key)


def describe_dangers(keys: Sequence[str], remark: str = "") -> str:
    """Describe everything that is dangerous about a command, for a person; ``remark`` is added."""
    named = "; ".join((*keys, *((remark,) if remark else ())))
    return named if len(keys) < 2 else f"{len(keys)} dangers, and 'once' allows all of them: {named}"


def is_too_long_for_chat(request: Mapping[str, Any]) -> bool:
    """Whether the command of an approval is too long to be read in a chat, so that it cannot be allowed there."""
    return len(show_invisible(str(request.get("command", "")))) > CHAT_CHARS_MAX


def select_chat_choices(request: Mapping[str, Any], choices: Sequence[str]) -> list[str]:
    """Select the choices of an approval that a chat may offer."""
    return [choice for choice in choices if choice == _DENY or not is_too_long_for_chat(request)]


def format_elsewhere(wait_id: int | None) -> str:
    """A sentence about where a question is read and answered that a chat cannot show whole."""
    shown = "hermes-worker approvals show" + ("" if wait_id is None else f" {wait_id}")
    return f"Read it whole and answer it on the page (Inbox) or with '{shown}'"


def render_for_chat(request: Mapping[str, Any], wait_id: int | None = None) -> str:
    """Render an approval's question in Markdown: the command stands in code blocks, where no character of it is taken
    for markup. The secrets in ``request`` are redacted already."""
    command = show_invisible(str(request.get("command", "")))
    head = f"May I do this? ({show_invisible(str(request.get('description', '')))})"
    if not is_too_long_for_chat(request):
        return f"{head}\n\n{_fence(command)}"
    left_out = len(command) - 2 * _END_CHARS
    return "\n\n".join(
        (
            head,
            _fence(command[:_END_CHARS]),
            f"[{left_out:,} of its {len(command):,} characters are left out here]",
            _fence(command[-_END_CHARS:]),
            f"It is too long to be read here, so it cannot be allowed here. {format_elsewhere(wait_id)}.",
        )
    )


def _fence(text: str) -> str:
    """Put ``text`` into a fence that nothing in it closes."""
    text = _LONG_TICKS.sub(lambda found: f"<{len(found[0])} times U+0060>", text)
    longest = max(map(len, re.findall("`+", text)), default=0)
    fence = "`" * max(_FENCE_MIN, longest + 1)
    return f"{fence}\n{text}\n{fence}"


def render_lines(text: str) -> list[str]:
    """Render a command as lines for a terminal."""
    return show_invisible(text).split("\n")


def summarise(text: str, width: int) -> tuple[str, bool]:
    """Shorten ``text`` to one line of about ``width`` characters, for a list. Returns also whether that is all of it.
    Line ends are shown as signs, because a command of two lines means something else when it is read as one; characters
    that are cut off are counted."""
    flat = " ".join(_LINE_END.join(show_invisible(text).strip().split("\n")).split())
    if len(flat) <= width:
        return flat, True
    return f"{flat[:width]}… and {len(flat) - width:,} more characters", False
