"""Show invisible characters, and those that change how the text around them is read, by their codes. Pure.

What a person is asked to allow, the name of a file and a title come from models and strangers. A character that turns
the direction of a line, or that has no width, makes such a text look like another one, so every surface shows it as
``<U+202E>``. The page has the same ranges in ``web/core.js``; a test compares them.
"""

from __future__ import annotations

import re
from typing import Final

_RANGES: Final = (
    # Controls but tab and line feed.
    (0x0000, 0x0008),
    (0x000B, 0x001F),
    (0x007F, 0x009F),
    # What Unicode calls default-ignorable: it has no shape of its own (DerivedCoreProperties.txt of Unicode 15).
    (0x00AD, 0x00AD),
    (0x034F, 0x034F),
    (0x061C, 0x061C),
    (0x115F, 0x1160),
    (0x17B4, 0x17B5),
    (0x180B, 0x180F),
    (0x200B, 0x200F),
    (0x2028, 0x202E),
    (0x2060, 0x206F),
    (0x2800, 0x2800),
    (0x3164, 0x3164),
    # Halves of pairs, which no encoding of a text has.
    (0xD800, 0xDFFF),
    (0xFE00, 0xFE0F),
    (0xFEFF, 0xFEFF),
    (0xFFA0, 0xFFA0),
    (0xFFF0, 0xFFFB),
    (0x1BCA0, 0x1BCA3),
    (0x1D173, 0x1D17A),
    (0xE0000, 0xE0FFF),
)
UNSEEN: Final = re.compile(f"[{''.join(f'{chr(first)}-{chr(last)}' for first, last in _RANGES)}]")
"""One such character. Its ranges hold no sign that means something inside brackets."""
_JOINER: Final = "\u200d"
_VARIATION_SELECTORS: Final = "\ufe0e\ufe0f"
_BLACK_FLAG: Final = "\U0001f3f4"
_EMOJI_RANGES: Final = (
    (0x1F000, 0x1FAFF),
    (0x2600, 0x27BF),
    (0x2300, 0x23FF),
    (0x20E3, 0x20E3),
    (0x2190, 0x21FF),
    (0x2B00, 0x2BFF),
    (0x25AA, 0x25FE),
    *((code, code) for code in (0xA9, 0xAE, 0x203C, 0x2049, 0x2122, 0x2139, 0x24C2, 0x3030, 0x303D, 0x3297, 0x3299)),
)


def show_invisible(text: str) -> str:
    """Replace every invisible character in ``text`` by its code, as ``<U+202E>``. Tabs, line ends, and parts of emoji
    stay. Doing it twice changes nothing more."""
    if UNSEEN.search(text) is None:
        return text
    text = text.replace("\r\n", "\n")
    return UNSEEN.sub(lambda found: found[0] if is_part_of_emoji(text, found.start()) else _format_code(found[0]), text)


def _format_code(char: str) -> str:
    return f"<U+{ord(char):04X}>"


def is_part_of_emoji(text: str, index: int) -> bool:
    """Whether the unseen character at ``index`` joins two emoji, chooses how one looks, or belongs to a flag."""
    char = text[index]
    if char == _JOINER:
        before = text[max(0, index - 2) : index].rstrip(_VARIATION_SELECTORS)[-1:]
        after = text[index + 1 : index + 3].lstrip(_VARIATION_SELECTORS)[:1]
        return _is_emoji(before) and _is_emoji(after)
    if char in _VARIATION_SELECTORS:
        return _is_emoji(text[index - 1 : index]) or text[index + 1 : index + 2] == "\u20e3"
    if ord(char) >= 0xE0000:
        # A flag is at most a black flag, six tags and a closing tag.
        start = index
        while start > 0 and index - start < 7 and ord(text[start]) >= 0xE0000:
            start -= 1
        return text[start] == _BLACK_FLAG
    return False


def _is_emoji(character: str) -> bool:
    return character != "" and any(first <= ord(character) <= last for first, last in _EMOJI_RANGES)
