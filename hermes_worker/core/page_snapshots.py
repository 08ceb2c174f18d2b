"""Snapshots of web pages, and whether the element that a model wants to use is still the same.

A snapshot is the text that ``aria_snapshot(mode="ai")`` of Playwright returns: a tree of lists with a role, a name and
a ``ref`` for each element that can be acted on. Refs belong to one connection and one snapshot, so an element is
recognised by its *identity*: role, name and the roles and names of everything around it. A clock or an advertisement
elsewhere does not change that. A page chooses its names itself; one that gives two elements the same identity only
makes it harder to click on either of them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

SNAPSHOT_CHARS_MAX: Final = 400_000
"""The most characters of a page that are kept."""
MASK: Final = "••••••"
_LINE: Final = re.compile(r"(?P<indent> *)- (?P<rest>.*)")
_ROLE: Final = re.compile(r"[a-z]+")
_REF: Final = re.compile(r"\[ref=((?:f\d+)?e\d+)\]")
_ATTRIBUTES: Final = re.compile(r"(?: \[[a-z-]+(?:=[^\]]*)?\])*")
_HOLDS_INPUT: Final = frozenset({"textbox", "searchbox", "combobox", "spinbutton", "slider"})
"""Roles of elements whose text is user input, and no part of their identity."""
_OF_INTEREST: Final = frozenset(
    {
        *(
            "alert",
            "button",
            "checkbox",
            "combobox",
            "dialog",
            "heading",
            "iframe",
            "img",
            "link",
            "listbox",
            "menuitem",
        ),
        *("menuitemcheckbox", "menuitemradio", "option", "radio", "searchbox", "slider", "spinbutton", "switch", "tab"),
        *("textbox", "treeitem"),
    }
)
_DECODER: Final = json.JSONDecoder()


@dataclass(frozen=True, slots=True, kw_only=True)
class PageElement:
    """One line of a snapshot."""

    role: str
    name: str
    text: str
    """The text after the colon."""
    ref: str
    """What the snapshot calls it by; empty for what cannot be acted on."""
    around: tuple[tuple[str, str], ...]
    """Role and name of the elements that contain it, the outermost first."""
    line: int
    within: tuple[int, ...] = ()
    """The lines of the elements that contain it, in the order of ``around``."""

    @property
    def identity(self) -> tuple[object, ...]:
        said = self.name or ("" if self.role in _HOLDS_INPUT else self.text)
        return (self.role, said, self.around)


class PageChange(StrEnum):
    """Why an element cannot be acted on; each is the end of a sentence."""

    UNKNOWN_REF = "the last snapshot has no such ref"
    ADDRESS = "it is at another address"
    GONE = "the element is not there any more, or it is called or placed otherwise"
    AMBIGUOUS = "there are more or fewer elements like it than there were"


@dataclass(frozen=True, slots=True, kw_only=True)
class PageSnapshot:
    """A snapshot of a page."""

    url: str
    text: str


def find_same_element(before: PageSnapshot, now: PageSnapshot, ref: str) -> PageElement | PageChange:
    """Find the element of ``now`` that is the element ``ref`` of ``before``, or why it cannot be used."""
    seen = list(parse_elements(before.text))
    wanted = next((one for one in seen if one.ref and one.ref == ref), None)
    if wanted is None:
        return PageChange.UNKNOWN_REF
    if before.url != now.url:
        return PageChange.ADDRESS
    there = list(parse_elements(now.text))
    alike_before, alike_now = _find_alike(seen, wanted), _find_alike(there, wanted)
    if len(alike_before) > 1:
        # Among several equal elements (buttons "Delete") choose the one in the same row, even if the row moved.
        row = _find_company(seen, alike_before, wanted)
        alike_before = [one for one in alike_before if _find_company(seen, alike_before, one) == row]
        alike_now = [one for one in alike_now if _find_company(there, alike_now, one) == row]
    if not alike_now:
        return PageChange.GONE
    if len(alike_now) != len(alike_before):
        return PageChange.AMBIGUOUS
    return alike_now[alike_before.index(wanted)]


def _find_alike(page: Sequence[PageElement], wanted: PageElement) -> list[PageElement]:
    return [one for one in page if one.ref and one.identity == wanted.identity]


def _find_company(page: Sequence[PageElement], alike: Sequence[PageElement], one: PageElement) -> tuple[object, ...]:
    """The elements beside ``one`` in the largest part of the page that holds no other of ``alike``."""
    others = {line for other in alike if other is not one for line in (other.line, *other.within)}
    own = next((line for line in one.within if line not in others), one.line)
    part = (each for each in page if own == each.line or own in each.within)
    return tuple((each.role, each.name, "" if each.role in _HOLDS_INPUT else each.text) for each in part)


def parse_elements(text: str) -> Iterator[PageElement]:
    """Yield every line that has a role, in order; unreadable lines are left out."""
    path: list[tuple[int, str, str, int]] = []
    for number, line in enumerate(text.splitlines()):
        match = _LINE.fullmatch(line)
        if match is None:
            continue
        indent = len(match["indent"])
        found = _parse_line(match["rest"])
        while path and path[-1][0] >= indent:
            path.pop()
        if found is None:
            continue
        role, name, ref, said = found
        around = tuple((above, called) for _, above, called, _ in path)
        within = tuple(line for _, _, _, line in path)
        yield PageElement(role=role, name=name, text=said, ref=ref, around=around, line=number, within=within)
        path.append((indent, role, name, number))


def _parse_line(rest: str) -> tuple[str, str, str, str] | None:
    """Parse role, name, ref and text of a line; ``None`` when it has no role."""
    key, text = _split_entry(rest)
    role = _ROLE.match(key)
    if role is None:
        return None
    name, end = "", role.end()
    if key.startswith(' "', end):
        try:
            name, end = _DECODER.raw_decode(key, end + 1)
        except json.JSONDecodeError:
            return None
    attributes = _ATTRIBUTES.match(key, end)
    found = _REF.search(attributes[0]) if attributes is not None else None
    return role[0], str(name), found[1] if found is not None else "", text


def _split_entry(rest: str) -> tuple[str, str]:
    """Split a YAML entry, whose key is quoted where it has to be."""
    if rest.startswith("'"):
        end = 1
        while (end := rest.find("'", end)) != -1 and rest.startswith("''", end):
            end += 2
        if end == -1:
            return rest, ""
        return rest[1:end].replace("''", "'"), rest[end + 1 :].removeprefix(":").strip()
    role = _ROLE.match(rest)
    end = role.end() if role is not None else 0
    if rest.startswith(' "', end):
        try:
            _, end = _DECODER.raw_decode(rest, end + 1)
        except json.JSONDecodeError:
            return rest, ""
    attributes = _ATTRIBUTES.match(rest, end)
    end = attributes.end() if attributes is not None else end
    return rest[:end], rest[end:].removeprefix(":").strip()


def compact_snapshot(text: str) -> str:
    """Keep the lines of elements that can be acted on, headings and images, and of the elements that contain them."""
    lines = text.splitlines()
    kept: set[int] = set()
    path: list[PageElement] = []
    for one in parse_elements(text):
        del path[len(one.around) :]
        path.append(one)
        if one.role in _OF_INTEREST or (one.ref and "[cursor=pointer]" in lines[one.line]):
            kept |= {above.line for above in path}
    return "\n".join(line for number, line in enumerate(lines) if number in kept)


def shorten_snapshot(text: str, chars_max: int = SNAPSHOT_CHARS_MAX) -> str:
    """Keep whole lines of ``text`` up to ``chars_max`` characters."""
    if len(text) <= chars_max:
        return text
    kept, _, _ = text[:chars_max].rpartition("\n")
    return f"{kept}\n- text: the page goes on; {len(text) - len(kept)} more characters are not shown"


def mask_secrets(text: str, secrets: Sequence[str]) -> str:
    """Mask the contents of password fields in ``text``."""
    for secret in sorted({" ".join(each.split()) for each in secrets if each.strip()}, key=len, reverse=True):
        if len(secret) >= 4:
            text = text.replace(secret, MASK)
        else:
            text = re.sub(rf'(: "?){re.escape(secret)}("?)$', rf"\g<1>{MASK}\g<2>", text, flags=re.MULTILINE)
    return text
