"""Agents' memories between conversations: entries, limits, the effect of a change, and who may make one. Pure.

A *memory* is a short list of entries: ``memory`` holds an agent's own notes, ``user`` what it knows about the user.
Both are shown in the system prompt, so their size is limited in characters, the delimiters between entries included. A
change names an entry by a piece of its text, or by its id and version; a change to an entry that was changed meanwhile
is refused with the present text.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final

from hermes_worker.core.errors import HermesError
from hermes_worker.core.run_writers import MemoryWriter, explain_not_writer
from hermes_worker.features.memory.tool_rules import MEMORY_TOOL as MEMORY_TOOL
from hermes_worker.features.memory.tool_rules import MemoryAction as MemoryAction
from hermes_worker.features.memory.tool_rules import MemoryTarget as MemoryTarget

DELIMITER: Final = "\n§\n"
"""Stands between entries, in the files of the original and when characters are counted."""
DEFAULT_PROFILE: Final = "default"
OPERATIONS_MAX: Final = 50
"""The most operations of one change."""
PREVIEW_CHARS: Final = 80
FAILURES_MAX: Final = 3
"""Failures of a turn after which the model is told to stop trying, and not how to make room (reference)."""
_RULE: Final = "═" * 46


CHAR_LIMITS: Final[Mapping[MemoryTarget, int]] = MappingProxyType({MemoryTarget.MEMORY: 2200, MemoryTarget.USER: 1375})
"""The most characters of each memory, as in the original."""
FILES: Final[Mapping[MemoryTarget, str]] = MappingProxyType(
    {MemoryTarget.MEMORY: "MEMORY.md", MemoryTarget.USER: "USER.md"}
)
_TITLES: Final[Mapping[MemoryTarget, str]] = MappingProxyType(
    {MemoryTarget.MEMORY: "MEMORY (your personal notes)", MemoryTarget.USER: "USER PROFILE (who the user is)"}
)


class MemoryRefusal(StrEnum):
    """Why a change was not made."""

    INVALID = "invalid"
    """It cannot be read: a field is missing, or an entry holds the delimiter."""
    THREAT = "threat"
    """The text looks like an attack on its readers."""
    NO_MATCH = "no_match"
    """No entry holds the text, or the entry has another version by now."""
    AMBIGUOUS = "ambiguous"
    """Several different entries hold the text."""
    OVER_LIMIT = "over_limit"
    NOT_ALLOWED = "not_allowed"
    """The author may not write here."""


CONSOLIDATION: Final = frozenset({MemoryRefusal.OVER_LIMIT, MemoryRefusal.NO_MATCH, MemoryRefusal.AMBIGUOUS})
"""Refusals after which a model may try again in the same turn."""


class MemoryRefused(HermesError):
    """A change was refused as a whole."""

    def __init__(self, kind: MemoryRefusal, message: str, *, matches: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.kind = kind
        self.matches = tuple(matches)
        """The beginnings of the entries that were meant, of an ambiguous text."""
        self.entries: tuple[MemoryEntry, ...] = ()
        """What stands there now, as far as the change came to look."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryEntry:
    """A current entry."""

    entry_id: str
    version: int
    """Counted from 1; each change of the entry makes the next one."""
    content: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryOperation:
    """One operation of a change. It names an entry by ``old_text``, a piece of its text, or by ``entry_id``, and then
    only in ``version`` where that is given."""

    action: MemoryAction
    content: str | None = None
    old_text: str | None = None
    entry_id: str | None = None
    version: int | None = None

    def build_document(self) -> dict[str, Any]:
        """Build the JSON object, without fields that are not set."""
        found = {"content": self.content, "old_text": self.old_text, "entry_id": self.entry_id, "version": self.version}
        return {"action": self.action.value, **{name: value for name, value in found.items() if value is not None}}


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRules:
    """The rules of one memory."""

    limit: int
    """Characters that all entries may have together."""
    scan: Callable[[str], Sequence[str]] = lambda text: ()
    """Returns the ids of attack patterns in a text that is to be remembered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryChange:
    """The change of one entry: ``entry`` is ``None`` for a new one, ``content`` is ``None`` for one that is removed."""

    entry: MemoryEntry | None
    content: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryDecision:
    """The result of a change."""

    changes: tuple[EntryChange, ...]
    contents: tuple[str, ...]
    """The texts of the entries after the change."""
    message: str


@dataclass(slots=True)
class _EditedEntry:
    """A place in the list while operations are applied."""

    entry: MemoryEntry | None
    content: str


def parse_operations(document: object) -> tuple[MemoryOperation, ...]:
    """Parse operations from outside: a list of objects. Raises ``MemoryRefused``."""
    if not isinstance(document, list) or not document:
        raise MemoryRefused(MemoryRefusal.INVALID, "operations must be a list of at least one operation.")
    if len(document) > OPERATIONS_MAX:
        raise MemoryRefused(MemoryRefusal.INVALID, f"At most {OPERATIONS_MAX} operations go into one change.")
    return tuple(parse_operation(each) for each in document)


def parse_operation(document: object) -> MemoryOperation:
    """Parse one operation from outside. Raises ``MemoryRefused``."""
    if not isinstance(document, Mapping):
        raise MemoryRefused(MemoryRefusal.INVALID, "An operation must be an object with an action.")
    words = [action.value for action in MemoryAction]
    if document.get("action") not in words:
        raise MemoryRefused(MemoryRefusal.INVALID, f"The action must be one of {', '.join(words)}.")
    version = document.get("version")
    if version is not None and (not isinstance(version, int) or isinstance(version, bool)):
        raise MemoryRefused(MemoryRefusal.INVALID, "version must be a whole number.")
    # Models that edit files with old_text and new_text write a memory's replacement so too.
    content = _read_text(document, "content")
    return MemoryOperation(
        action=MemoryAction(str(document["action"])),
        content=_read_text(document, "new_text") if content is None else content,
        old_text=_read_text(document, "old_text"),
        entry_id=_read_text(document, "entry_id"),
        version=version,
    )


def _read_text(document: Mapping[str, object], name: str) -> str | None:
    value = document.get(name)
    if value is not None and not isinstance(value, str):
        raise MemoryRefused(MemoryRefusal.INVALID, f"{name} must be a text.")
    return value


def decide_change(
    entries: Sequence[MemoryEntry], operations: Sequence[MemoryOperation], rules: MemoryRules
) -> MemoryDecision:
    """Apply ``operations`` to ``entries``, all of them or none; the limit holds for the result. An entry that exists
    already is not added again. Raises ``MemoryRefused``, with the present entries."""
    slots = [_EditedEntry(entry, entry.content) for entry in entries]
    said: list[str] = []
    try:
        for operation in operations:
            said.append(_apply_operation(slots, operation, rules))
        _require_room(entries, slots, rules)
    except MemoryRefused as refused:
        refused.entries = tuple(entries)
        raise
    kept = {slot.entry.entry_id: slot for slot in slots if slot.entry is not None}
    changes = [
        EntryChange(entry=entry, content=slot.content if slot is not None else None)
        for entry in entries
        if (slot := kept.get(entry.entry_id)) is None or slot.content != entry.content
    ]
    changes += [EntryChange(entry=None, content=slot.content) for slot in slots if slot.entry is None]
    message = said[0] if len(said) == 1 else f"{len(said)} operations applied."
    return MemoryDecision(changes=tuple(changes), contents=tuple(slot.content for slot in slots), message=message)


def _apply_operation(slots: list[_EditedEntry], operation: MemoryOperation, rules: MemoryRules) -> str:
    """Apply one operation to ``slots``. Returns a sentence about what it did."""
    match operation.action:
        case MemoryAction.ADD:
            content = require_content(operation.content, rules)
            if any(slot.content == content for slot in slots):
                return "This entry is there already; nothing was added."
            slots.append(_EditedEntry(None, content))
            return "Entry added."
        case MemoryAction.REPLACE:
            content = require_content(operation.content, rules)
            slot = _find_meant(slots, operation)
            if any(other.content == content for other in slots if other is not slot):
                slots.remove(slot)
                return "Entry replaced by one that was there already."
            slot.content = content
            return "Entry replaced."
        case MemoryAction.REMOVE:
            slots.remove(_find_meant(slots, operation))
            return "Entry removed."


def require_content(content: str | None, rules: MemoryRules) -> str:
    """Return the text of an entry as it is stored. Raises ``MemoryRefused``."""
    kept = (content or "").replace("\r\n", "\n").strip()
    if not kept:
        raise MemoryRefused(MemoryRefusal.INVALID, "content is required, and must not be empty.")
    if DELIMITER in f"\n{kept}\n":
        raise MemoryRefused(MemoryRefusal.INVALID, "A line that is only '§' parts entries; write it otherwise.")
    if len(kept) > rules.limit:
        raise MemoryRefused(
            MemoryRefusal.OVER_LIMIT,
            f"This entry has {len(kept):,} characters, and all entries together may have {rules.limit:,}. Shorten it.",
        )
    if found := rules.scan(kept):
        raise MemoryRefused(
            MemoryRefusal.THREAT,
            f"Blocked: the text looks like an attack on whoever reads it ({', '.join(found)}). Entries stand in the "
            "system prompt, so they must not hold instructions of that kind or secrets.",
        )
    return kept


def _find_meant(slots: Sequence[_EditedEntry], operation: MemoryOperation) -> _EditedEntry:
    if operation.entry_id is not None:
        return _find_by_id(slots, operation.entry_id, operation.version)
    old_text = (operation.old_text or "").strip()
    if not old_text:
        raise MemoryRefused(MemoryRefusal.INVALID, f"{operation.action} needs old_text: a piece of the entry it means.")
    # An entry that equals the text wins over entries that contain it: no longer text could single it out.
    found = [slot for slot in slots if slot.content == old_text] or [slot for slot in slots if old_text in slot.content]
    if not found:
        raise MemoryRefused(MemoryRefusal.NO_MATCH, f"No entry holds {shorten_preview(old_text)!r} (any more).")
    if len({slot.content for slot in found}) > 1:
        raise MemoryRefused(
            MemoryRefusal.AMBIGUOUS,
            f"Several entries hold {shorten_preview(old_text)!r}; take a longer piece of the one that you mean.",
            matches=[shorten_preview(slot.content) for slot in found],
        )
    return found[0]


def _find_by_id(slots: Sequence[_EditedEntry], entry_id: str, version: int | None) -> _EditedEntry:
    slot = next((one for one in slots if one.entry is not None and one.entry.entry_id == entry_id), None)
    if slot is None or slot.entry is None:
        raise MemoryRefused(MemoryRefusal.NO_MATCH, f"There is no entry {entry_id[:40]!r} (any more).")
    if version is not None and slot.entry.version != version:
        raise MemoryRefused(
            MemoryRefusal.NO_MATCH,
            f"The entry {entry_id!r} has version {slot.entry.version} by now, and not {version}: it was changed.",
        )
    return slot


def _require_room(entries: Sequence[MemoryEntry], slots: Sequence[_EditedEntry], rules: MemoryRules) -> None:
    after = count_chars([slot.content for slot in slots])
    # A change that makes a memory smaller is always allowed, also when the limit was lowered meanwhile.
    if after <= rules.limit or after < count_chars([entry.content for entry in entries]):
        return
    before = count_chars([entry.content for entry in entries])
    raise MemoryRefused(
        MemoryRefusal.OVER_LIMIT,
        f"There are {before:,} of {rules.limit:,} characters, and this would make {after:,}. Make room in this turn: "
        "shorten or merge entries with replace, or remove what is no longer needed, and try again; one call with "
        "operations does both at once.",
    )


def count_chars(contents: Sequence[str]) -> int:
    """Count the characters of entries together, with the delimiters between them."""
    return len(DELIMITER.join(contents))


def format_usage(contents: Sequence[str], limit: int) -> str:
    """Format the use of a memory as ``12% — 270/2,200 chars``."""
    used = count_chars(contents)
    return f"{min(100, used * 100 // limit)}% — {used:,}/{limit:,} chars"


def shorten_preview(text: str) -> str:
    """The beginning of a text, on one line."""
    flat = " ".join(text.split())
    return flat if len(flat) <= PREVIEW_CHARS else f"{flat[:PREVIEW_CHARS]}..."


# --- files and prompts -----------------------------------------------------------------------------------------------


def parse_file(text: str) -> tuple[str, ...]:
    """Parse the entries of a file of the original; equal entries once."""
    whole = text.removeprefix("\ufeff").replace("\r\n", "\n")
    found = (each.strip() for each in f"\n{whole}\n".split(DELIMITER))
    return tuple(dict.fromkeys(each for each in found if each))


def format_file(contents: Sequence[str]) -> str:
    """Format the file that ``parse_file`` reads, as the original writes it."""
    return DELIMITER.join(contents)


def redact_attacks(contents: Sequence[str], target: MemoryTarget, rules: MemoryRules) -> tuple[str, ...]:
    """Entries as a model may read them: one that looks like an attack is replaced by a notice."""
    return tuple(_redact_attack(content, target, rules) for content in contents)


def _redact_attack(content: str, target: MemoryTarget, rules: MemoryRules) -> str:
    found = rules.scan(content)
    if not found:
        return content
    return f"[BLOCKED: an entry of {FILES[target]} looks like an attack ({', '.join(found)}) and is not shown]"


def render_memory_block(contents: Sequence[str], target: MemoryTarget, rules: MemoryRules) -> str:
    """Render a memory for a system prompt; empty for none. Equal entries give equal bytes."""
    if not contents:
        return ""
    header = f"{_TITLES[target]} [{format_usage(contents, rules.limit)}]"
    return f"{_RULE}\n{header}\n{_RULE}\n{DELIMITER.join(redact_attacks(contents, target, rules))}"


# --- who may write ---------------------------------------------------------------------------------------------------


def require_writer(asking: Collection[MemoryWriter], allowed: Collection[MemoryWriter]) -> None:
    """Require that a run with the roles ``asking`` may write. Raises ``MemoryRefused``."""
    if why := explain_not_writer(asking, allowed):
        raise MemoryRefused(
            MemoryRefusal.NOT_ALLOWED, f"This run may not change what is remembered: {why}. Go on without."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryKey:
    """Identifies one memory: its tenant, its profile, and which of the two."""

    tenant: str
    profile: str = DEFAULT_PROFILE
    target: MemoryTarget = MemoryTarget.MEMORY


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryAuthor:
    """The author of a change."""

    name: str
    """A principal (``core.principals``), or ``agent:SESSION`` for a run."""
    run_id: str | None = None
    call_key: str | None = None
    """Equal for every attempt of one tool call, so that its change is made once; ``None`` for a person's change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryChangeOutcome:
    """The outcome of a change."""

    entries: tuple[MemoryEntry, ...]
    """The current entries."""
    message: str
    changed: tuple[tuple[str, int], ...] = ()
    """Ids of entries with their new versions."""
    is_repeated: bool = False
    """The call had made its change before; nothing was done."""
    staged_id: str | None = None
    """The change waits for a person under this id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPolicy:
    """The configuration of memories in an installation."""

    limits: Mapping[MemoryTarget, int] = field(default_factory=lambda: CHAR_LIMITS)
    targets: frozenset[MemoryTarget] = frozenset(MemoryTarget)
    """The memories that are in use."""
    writers: frozenset[MemoryWriter] = frozenset({MemoryWriter.PERSON})
    is_staged: bool = False
    """Changes by runs wait for a person's decision."""
    profile: str = DEFAULT_PROFILE
    scan: Callable[[str], Sequence[str]] = lambda text: ()

    def build_rules(self, target: MemoryTarget) -> MemoryRules:
        return MemoryRules(limit=self.limits[target], scan=self.scan)
