"""Read what strangers wrote as a skill: its front matter, without being led on, and what in it looks like an attack.

YAML is a small language here: no anchors, no aliases, no tags, bounded in size and depth. So no document is larger when
it was read than when it was written.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

import yaml

from hermes_worker.core.offered_skills import SkillError
from hermes_worker.features.skills.rules import (
    BUNDLE_FILE,
    CATEGORY_CHARS_MAX,
    SKILL_FILE,
    SkillFacts,
    SkillFile,
    find_front_matter_problems,
    parse_bundle,
    parse_facts,
    require_main_text,
)
from hermes_worker.safety.threats import ThreatScope, find_skill_threats, scan_text

FRONT_CHARS_MAX = 20_000
_EVENTS_MAX = 2_000
_DEPTH_MAX = 8
_FENCE = "---"
_VALUE = re.compile(
    r"^(?P<name>(?P<indent>[ ]*)[A-Za-z][\w-]*:[ \t]+)(?P<value>\S.*(?:\n(?P=indent)[ \t]+\S.*)*)", re.M
)
"""A name and its text, which may go on in lines that stand deeper."""


def parse_front_matter(text: str) -> tuple[Mapping[str, Any], str]:
    """The front matter of a ``SKILL.md``, and what stands behind it; nothing where there is none. Scalars are texts.
    Raises ``SkillError``."""
    text = text.removeprefix("\ufeff").replace("\r\n", "\n")
    if not text.startswith(_FENCE + "\n"):
        return {}, text
    end = text.find(f"\n{_FENCE}", len(_FENCE))
    if end < 0:
        raise SkillError(f"the front matter of {SKILL_FILE} does not end: close it with a line '{_FENCE}'")
    behind = text[end + 1 + len(_FENCE) :].partition("\n")[2]
    return _parse_mapping(text[len(_FENCE) + 1 : end + 1], SKILL_FILE), behind


def _parse_mapping(text: str, where: str) -> Mapping[str, Any]:
    if len(text) > FRONT_CHARS_MAX:
        raise SkillError(f"the front matter of {where} has more than {FRONT_CHARS_MAX:,} characters")
    try:
        document = _parse_document(text, where)
    except (yaml.YAMLError, RecursionError, ValueError, TypeError) as error:
        raise SkillError(f"the front matter of {where} is no YAML: {' '.join(str(error).split())[:200]}") from None
    if document in (None, ""):
        return {}
    if not isinstance(document, dict) or not all(isinstance(name, str) for name in document):
        raise SkillError(f"the front matter of {where} is no mapping of names")
    return document


def _parse_document(text: str, where: str) -> Any:
    """Parse front matter as YAML whose scalars are texts. Raises ``SkillError``, ``yaml.YAMLError``."""
    if not _is_yaml(text):
        text = _VALUE.sub(_quote_value, text)
    _require_plain(text, where)
    return yaml.load(text, Loader=yaml.BaseLoader)


def _is_yaml(text: str) -> bool:
    """Whether a text can be read as YAML, as far as a document may go."""
    try:
        for _ in islice(yaml.parse(text, Loader=yaml.BaseLoader), _EVENTS_MAX):
            pass
    except yaml.YAMLError:
        return False
    return True


def _quote_value(line: re.Match[str]) -> str:
    """A line of front matter with the quotes that YAML asks for and people leave out: ``description: Use when: it
    rains``.
    """
    value = line["value"].rstrip().replace("'", "''")
    return line[0] if _is_yaml(line[0]) else f"{line['name']}'{value}'"


def _require_plain(text: str, where: str) -> None:
    """Refuse anchors, aliases, tags and deep nesting. Raises ``SkillError``, ``yaml.YAMLError``."""
    depth = 0
    for number, event in enumerate(yaml.parse(text, Loader=yaml.BaseLoader)):
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) or getattr(event, "tag", None):
            raise SkillError(f"the front matter of {where} has anchors, aliases or tags, which nobody needs there")
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if number > _EVENTS_MAX or depth > _DEPTH_MAX:
            raise SkillError(f"the front matter of {where} has too many values, or too deep ones")


def read_facts(files: Sequence[SkillFile], *, called: str) -> SkillFacts:
    """The facts that a folder with this name states about itself. Raises ``SkillError``."""
    if _is_bundle(files):
        return parse_bundle(_parse_mapping(require_main_text(files), BUNDLE_FILE), called=called)
    front, _ = parse_front_matter(require_main_text(files))
    return parse_facts(front, called=called)


def read_category_note(text: str) -> str:
    """The note of a ``DESCRIPTION.md`` about its category: its ``description``, otherwise its first line. Empty where
    that looks like an attack, or cannot be read.
    """
    try:
        front, behind = parse_front_matter(text)
    except SkillError:
        return ""
    lines = (line.strip(" #\t") for line in behind.splitlines())
    said = front.get("description")
    note = said if isinstance(said, str) and said.strip() else next((line for line in lines if line), "")
    return "" if scan_text(note, ThreatScope.CONTEXT) else " ".join(note.split())[:CATEGORY_CHARS_MAX]


def find_problems(files: Sequence[SkillFile], *, folder: str | None) -> list[str]:
    """The reasons, in sentences, why a folder is no skill as agentskills.io defines it; empty when it is one. Raises
    ``SkillError`` for files that cannot be read at all.
    """
    if _is_bundle(files):
        parse_bundle(_parse_mapping(require_main_text(files), BUNDLE_FILE), called=folder or "bundle")
        return []
    text = require_main_text(files)
    front, behind = parse_front_matter(text)
    found = find_front_matter_problems(front, folder=folder)
    if not front:
        return [f"{SKILL_FILE} must begin with front matter: a line '{_FENCE}', 'name', 'description' and '{_FENCE}'"]
    if _FENCE in text[len(_FENCE) : text.index(f"\n{_FENCE}", len(_FENCE))]:
        found.append(f"nothing in the front matter may hold '{_FENCE}': other readers take it for the end")
    if not behind.strip():
        found.append(f"{SKILL_FILE} has no instructions below its front matter")
    return found


def _is_bundle(files: Iterable[SkillFile]) -> bool:
    names = {file.path for file in files}
    return BUNDLE_FILE in names and SKILL_FILE not in names


def find_threats(files: Sequence[SkillFile], scope: ThreatScope = ThreatScope.STRICT) -> tuple[str, ...]:
    """The findings in the texts of a skill that look like an attack: ``PATH: PATTERN``, each once."""
    found = (
        f"{file.path}: {pattern}"
        for file in files
        for text in (file.text,)
        if text is not None
        for pattern in (*scan_text(text, scope), *(find_skill_threats(text) if scope is ThreatScope.STRICT else ()))
    )
    return tuple(dict.fromkeys(found))
