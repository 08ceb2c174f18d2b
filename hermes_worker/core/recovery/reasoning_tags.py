"""Remove reasoning that models write between tags into their text, so that people do not see it.

``ThinkScrubber`` works on a stream. It shows the same text however the stream is cut into pieces, which fixes these
rules for a text as a whole:

* An opening tag at the start of a line begins a block. It ends after its closing tag, or with the text.
* An opening tag in the middle of a line begins a block only if its closing tag follows; else the text is *about* the
  tag, and stays. Until that is known, nothing after it is shown.
* A closing tag without a block is removed, with the white space after it. What was shown before it stays.

``strip_think_blocks`` cleans a whole reply for the transcript and knows more: it also removes reasoning that only a
closing tag ends, what remains of malformed pairs, and tool calls that a model wrote out as XML.

Replies are outside input, so nothing here takes longer than a few passes over the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from hermes_worker.core.json_values import read_stripped_text

_NAMES = (
    "think",
    "thinking",
    "reasoning",
    "reasoning_scratchpad",
    "thought",
    *("思考", "反思", "推理", "推敲", "思维"),
)
"""The last ones are written by models that think in Chinese or Japanese, such as MiniMax's and Kimi's."""
_ANY_NAME = "|".join(_NAMES)
_SPACE_NAME = r"(?:[a-z][\w.-]{0,15}:)?"
"""A name space before the name, as MiniMax writes ``<mm:think>``."""
_SPACE = " \t\n\r"

_TAG = re.compile(rf"<(/?){_SPACE_NAME}({_ANY_NAME})>", re.IGNORECASE | re.ASCII)
_OPENINGS = {name: re.compile(f"<{_SPACE_NAME}{name}>", re.IGNORECASE | re.ASCII) for name in _NAMES}
_CLOSINGS = {name: re.compile(f"</{_SPACE_NAME}{name}>", re.IGNORECASE | re.ASCII) for name in _NAMES}
_LONGEST_TAG = max(map(len, _NAMES)) + len("</>") + len("abcdefghijklmnop:")
_STARTED_TAG = re.compile(r"</?(?:[a-z][\w.-]{0,15}:?)?", re.ASCII)
"""The beginning of a tag whose name, or name space, may go on."""


class ThinkScrubber:
    """Takes a reply piece by piece and returns what may be shown. One object per reply; ``flush`` ends it."""

    def __init__(self) -> None:
        self._held = ""
        """Perhaps the beginning of a tag."""
        self._block: str | None = None
        """Name of the block we are in."""
        self._unclear: str | None = None
        """Name of a tag in the middle of a line of which we do not know yet whether it begins a block."""
        self._unclear_text: list[str] = []
        """That tag and everything since."""
        self._unclear_end = ""
        """The end of that, in which a closing tag may have begun."""
        self._line_is_blank = True
        """What was shown of the present line is white space at most."""
        self._is_after_stray_closing = False

    def feed(self, text: str) -> str:
        """Return what may be shown now that ``text`` has arrived; often nothing."""
        if self._unclear is None:
            return "".join(self._read(self._held + text, is_end=False))
        self._unclear_text.append(text)
        seam = self._unclear_end + text
        closing = _CLOSINGS[self._unclear].search(seam)
        if closing is None:
            self._unclear_end = seam[-_LONGEST_TAG:]
            return ""
        self._unclear = None
        return "".join(self._read(seam[closing.end() :], is_end=False))

    def flush(self) -> str:
        """Return the rest at the end of the reply. A block that is still open is dropped: cutting an answer short is
        better than showing reasoning."""
        rest = self._held if self._unclear is None else "".join(self._unclear_text)
        return "".join(self._read(rest, is_end=True))

    def _read(self, buffer: str, *, is_end: bool) -> Iterator[str]:
        self._held, position, without_closing = "", 0, set[str]()
        while True:
            if self._block is not None:
                closing = _CLOSINGS[self._block].search(buffer, position)
                if closing is None:
                    self._held = buffer[_find_partial_tag(buffer, position) :]
                    return
                self._block, position = None, closing.end()
            tag = _TAG.search(buffer, position)
            if tag is None:
                end = len(buffer) if is_end else _find_partial_tag(buffer, position)
                yield self._show(buffer[position:end])
                self._held = buffer[end:]
                return
            yield self._show(buffer[position : tag.start()])
            is_closing, name, position = bool(tag[1]), tag[2].lower(), tag.end()
            if is_closing:
                self._is_after_stray_closing = True
            elif self._line_is_blank:
                self._block = name
            elif name not in without_closing and (closing := _CLOSINGS[name].search(buffer, position)):
                position = closing.end()
            elif is_end:
                without_closing.add(name)
                yield self._show(tag[0])
            else:
                self._unclear, self._unclear_text = name, [buffer[tag.start() :]]
                self._unclear_end = buffer[position:][-_LONGEST_TAG:]
                return

    def _show(self, text: str) -> str:
        if self._is_after_stray_closing:
            text = text.lstrip(_SPACE)
            self._is_after_stray_closing = not text
        if text:
            _, newline, line = text.rpartition("\n")
            self._line_is_blank = not line.strip() and (bool(newline) or self._line_is_blank)
        return text


def _find_partial_tag(buffer: str, position: int) -> int:
    """The position, at or after ``position``, from which the end of the buffer may be the beginning of a tag; else the
    buffer's length."""
    start = buffer.rfind("<", max(position, len(buffer) - _LONGEST_TAG + 1))
    if start < 0:
        return len(buffer)
    ending = buffer[start:].lower()
    name = ending.removeprefix("<").removeprefix("/").rpartition(":")[2]
    is_started = _STARTED_TAG.fullmatch(ending) or (
        _STARTED_TAG.fullmatch(ending.removesuffix(name)) and any(each.startswith(name) for each in _NAMES)
    )
    return start if is_started else len(buffer)


# ------------------------------------------------------------------------------------------------------ whole replies

_CALL_NAMES = ("tool_call", "tool_calls", "tool_result", "function_call", "function_calls")
_CALLS = tuple(
    (re.compile(rf"<{name}\b[^>]{{0,1000}}>", re.IGNORECASE), re.compile(f"</{name}>", re.IGNORECASE))
    for name in _CALL_NAMES
)
_FUNCTION = re.compile(r"(?:\A|(?<=[\n\r.!?:]))[ \t]*<function\b([^>]{0,1000})>", re.IGNORECASE)
_FUNCTION_END = re.compile("</function>", re.IGNORECASE)
_HAS_NAME = re.compile(r"\bname\s*=", re.IGNORECASE)
_UNTERMINATED = re.compile(
    rf"(?:\A|\n)[ \t]*<{_SPACE_NAME}(?:{_ANY_NAME})\b[^>]{{0,1000}}>.*\Z", re.IGNORECASE | re.DOTALL
)
_STRAY = re.compile(rf"</?{_SPACE_NAME}(?:{_ANY_NAME})>\s*", re.IGNORECASE)
_LONE_CLOSING = re.compile(
    rf"(?:\A|\n|[.!?:…。！？：][\"'”’)]?)[ \t]*</{_SPACE_NAME}(?:{_ANY_NAME})>\s*"
    rf"|</{_SPACE_NAME}(?:{_ANY_NAME})>(?:[ \t]*\n\s*|\s*\Z)",
    re.IGNORECASE,
)
"""A closing tag that ends a line, begins one, or ends a sentence. In the middle of one it is noise."""
_STRAY_CALL = re.compile(rf"</(?:{'|'.join(_CALL_NAMES)}|function)>\s*", re.IGNORECASE)


def strip_think_blocks(text: str) -> str:
    """``text`` without reasoning blocks and without tool calls written as XML. White space around it stays.

    An opening tag at the start of a line that is never closed takes everything behind it along.
    """
    if "<" not in text:
        return text
    text = _remove_blocks(text)
    for opening, closing in _CALLS:
        text = _remove_pairs(text, opening, closing)
    text = _remove_pairs(text, _FUNCTION, _FUNCTION_END, only_with=_HAS_NAME)
    text = _UNTERMINATED.sub("", text)
    return _STRAY_CALL.sub("", _STRAY.sub("", text[_find_end_of_thought(text) :]))


def strip_reasoning(text: str) -> str:
    """``text`` without reasoning, but with tool calls that were written out."""
    text = _UNTERMINATED.sub("", _remove_blocks(text)) if "<" in text else text
    return text[_find_end_of_thought(text) :]


def _remove_blocks(text: str) -> str:
    for name in _NAMES:
        text = _remove_pairs(text, _OPENINGS[name], _CLOSINGS[name])
    return text


def _find_end_of_thought(text: str) -> int:
    """The position at which the answer begins after reasoning that only a closing tag ends; 0 without such reasoning.
    Chat templates put the opening tag into the prompt, and a server that does not know that returns only the rest. A
    tag inside a block of code is ignored."""
    end = looked_at = fences = 0
    for tag in _LONE_CLOSING.finditer(text):
        fences += text.count("```", looked_at, tag.start())
        looked_at = tag.start()
        if not fences % 2:
            end = tag.end()
    return end


def has_visible_text(text: str) -> bool:
    """Whether ``text`` has anything to show."""
    return bool(strip_think_blocks(text).strip())


def has_thinking_tags(text: str) -> bool:
    """Whether the text contains reasoning tags, closed or not, or only closing ones."""
    return any(opening.search(text) for opening in _OPENINGS.values()) or _find_end_of_thought(text) > 0


def has_open_scratchpad(text: str) -> bool:
    """Whether a reasoning scratchpad was opened and never closed: the reply broke off inside it."""
    opened = _OPENINGS["reasoning_scratchpad"].search(text) is not None
    return opened and _CLOSINGS["reasoning_scratchpad"].search(text) is None


def extract_reasoning(row: Mapping[str, object]) -> str | None:
    """The reasoning of an assistant row or reply, from wherever its provider put it: the fields ``reasoning``,
    ``reasoning_content`` and ``reasoning_details``; without any, typed ``thinking`` parts of the content; without
    any, tagged blocks in the text. Equal parts are named once. ``None`` when there is none.
    """
    parts = (
        _drop_duplicates(_list_structured_reasoning(row))
        or _drop_duplicates(_list_typed_reasoning(row.get("content")))
        or _drop_duplicates(_list_tagged_reasoning(row.get("content")))
    )
    return "\n\n".join(parts) or None


def _remove_pairs(
    text: str, opening: re.Pattern[str], closing: re.Pattern[str], *, only_with: re.Pattern[str] | None = None
) -> str:
    kept, position, search_from = [], 0, 0
    while start := opening.search(text, search_from):
        if only_with is not None and not only_with.search(start[1]):
            search_from = start.end()
            continue
        end = closing.search(text, start.end())
        if end is None:
            break
        kept.append(text[position : start.start()])
        position = search_from = end.end()
    return "".join((*kept, text[position:])) if position else text


def _list_structured_reasoning(row: Mapping[str, object]) -> Iterator[object]:
    yield row.get("reasoning")
    yield row.get("reasoning_content")
    details = row.get("reasoning_details")
    for detail in details if isinstance(details, Sequence) and not isinstance(details, str) else ():
        if isinstance(detail, Mapping):
            yield next((detail[key] for key in ("summary", "thinking", "content", "text") if detail.get(key)), None)


def _list_typed_reasoning(content: object) -> Iterator[object]:
    for part in content if isinstance(content, Sequence) and not isinstance(content, str) else ():
        if isinstance(part, Mapping) and part.get("type") == "thinking":
            yield read_stripped_text(part.get("thinking")) or read_stripped_text(part.get("text"))


def _list_tagged_reasoning(content: object) -> Iterator[object]:
    if not isinstance(content, str):
        return
    for name in _NAMES:
        position = 0
        while start := _OPENINGS[name].search(content, position):
            end = _CLOSINGS[name].search(content, start.end())
            if end is None:
                break
            yield content[start.end() : end.start()].strip()
            position = end.end()
    if not any(opening.search(content) for opening in _OPENINGS.values()):
        yield _STRAY.sub("", content[: _find_end_of_thought(content)]).strip()


def _drop_duplicates(parts: Iterator[object]) -> list[str]:
    return list(dict.fromkeys(part for part in parts if isinstance(part, str) and part))
