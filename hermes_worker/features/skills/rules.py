"""Skills as values: what a folder of instructions is, what it may hold, and which of them an agent is shown. Pure.

The form is that of https://agentskills.io (``SKILL.md`` with front matter, files beside it), with the conditions of the
original below ``metadata.hermes`` (docs/skills.md). A skill version is identified by the hash of its whole folder, and
what a run may use is a *set*: names, and the hash that each stands for.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, fields
from typing import Any

from hermes_worker.core.json_values import read_mapping
from hermes_worker.core.messages import dump_canonical_json
from hermes_worker.core.offered_skills import SkillError

SKILL_FILE = "SKILL.md"
BUNDLE_FILE = "BUNDLE.yaml"
"""The one file of a bundle: a name for several skills."""
NAME_CHARS_MAX = 64
DESCRIPTION_CHARS_MAX = 1_024
COMPATIBILITY_CHARS_MAX = 500
"""These three are of https://agentskills.io/specification (2026-11)."""
TEXT_CHARS_MAX = 100_000
"""The most characters of ``SKILL.md``, as in the original."""
FILE_BYTES_MAX = 1_048_576
"""The most bytes of any other file, as in the original."""
SKILL_BYTES_MAX = 4 * 1_048_576
FILES_MAX = 200
PATH_CHARS_MAX = 200
PATH_PARTS_MAX = 8
SKILLS_MAX = 500
"""Skills of one tenant."""
CATEGORY_FILE = "DESCRIPTION.md"
"""The file in the folder of a category that describes its skills."""
CATEGORY_CHARS_MAX = 200
"""Characters of a category's description in the index."""
INDEX_DESCRIPTION_CHARS = 60
"""Characters of a skill's description in the index; all of it stands in ``skills_list``."""
WRITABLE_FOLDERS = ("assets", "references", "scripts", "templates")
"""The folders of a skill into which an agent may put files."""
_VARIABLES_MAX = 20
_STANDARD_FIELDS = frozenset({"name", "description", "license", "compatibility", "metadata", "allowed-tools"})
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
_CATEGORY = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
_ENVIRONMENT_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_VARIABLE = re.compile(r"\$\{(HERMES_SKILL_DIR|HERMES_SESSION_ID)\}")
_OF_PLATFORM = {"macos": "darwin", "osx": "darwin", "windows": "win32"}
_HASHED_AS = b"hermes-skill-1\n"


class SkillNotFound(SkillError):
    """There is no skill of this name."""


class SkillMoved(SkillError):
    """The skill was changed by another writer in between."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SkillFile:
    """A file of a skill."""

    path: str
    """Relative to the folder, with ``/`` between its parts."""
    body: bytes
    is_executable: bool = False

    @property
    def text(self) -> str | None:
        """``None`` for a file that is no text."""
        if b"\x00" in self.body:
            return None
        try:
            return self.body.decode("utf-8")
        except UnicodeDecodeError:
            return None


@dataclass(frozen=True, slots=True, kw_only=True)
class SkillFacts:
    """The fields of a skill's front matter that the product acts on."""

    name: str
    description: str
    version: str = ""
    license: str = ""
    compatibility: str = ""
    platforms: tuple[str, ...] = ()
    """``linux``, ``macos``, ``windows``; empty for all."""
    tags: tuple[str, ...] = ()
    related: tuple[str, ...] = ()
    requires_tools: tuple[str, ...] = ()
    requires_toolsets: tuple[str, ...] = ()
    fallback_for_tools: tuple[str, ...] = ()
    fallback_for_toolsets: tuple[str, ...] = ()
    env_vars: tuple[str, ...] = ()
    """Variables of the environment that its commands need."""
    commands: tuple[str, ...] = ()
    """Programs that it needs."""
    category_note: str = ""
    """The description of its category."""
    bundle: tuple[str, ...] = ()
    """The skills that a bundle stands for; empty for a skill."""

    def to_json(self) -> str:
        said = {each.name: getattr(self, each.name) for each in fields(self)}
        return dump_canonical_json({name: value for name, value in said.items() if value})

    @classmethod
    def from_json(cls, text: str) -> SkillFacts:
        """Parse what ``to_json`` wrote; fields of a later version are ignored."""
        said: dict[str, Any] = json.loads(text)
        known = {each.name for each in fields(cls)}
        values: dict[str, Any] = {"description": ""}
        for name, value in said.items():
            if name in known:
                values[name] = tuple(value) if isinstance(value, list) else value
        return cls(**values)


@dataclass(frozen=True, slots=True, kw_only=True)
class SkillEntry:
    """A skill of a set."""

    category: str
    """Empty for none."""
    hash: str
    facts: SkillFacts

    @property
    def name(self) -> str:
        return self.facts.name


@dataclass(frozen=True, slots=True, kw_only=True)
class SkillSet:
    """The skills that a run may use, each in its one version, by name."""

    entries: tuple[SkillEntry, ...] = ()

    def find(self, name: str) -> SkillEntry | None:
        return next((entry for entry in self.entries if entry.name == name), None)

    def to_json(self) -> str:
        return dump_canonical_json(
            [[entry.category, entry.hash, json.loads(entry.facts.to_json())] for entry in self.entries]
        )

    @classmethod
    def from_json(cls, text: str) -> SkillSet:
        return cls(
            entries=tuple(
                SkillEntry(category=category, hash=digest, facts=SkillFacts.from_json(dump_canonical_json(facts)))
                for category, digest, facts in json.loads(text)
            )
        )

    @property
    def hash(self) -> str:
        """SHA-256 of ``to_json``, in hexadecimal digits."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()


# --- folders ---------------------------------------------------------------------------------------------------------


def require_path(path: str) -> str:
    """Return a path inside a skill, in Unicode's composed form. Raises ``SkillError`` for one that leads out of it, or
    that a file system would confuse with another."""
    composed = unicodedata.normalize("NFC", path)
    parts = composed.split("/")
    wrong = (
        not composed
        or len(composed) > PATH_CHARS_MAX
        or len(parts) > PATH_PARTS_MAX
        or any(part in ("", ".", "..") or part != part.strip() or part.endswith(".") for part in parts)
        or any(character in '\\:*?"<>|' or not character.isprintable() for character in composed)
    )
    if wrong:
        raise SkillError(
            f"{path[:80]!r} is no path of a file in a skill: at most {PATH_CHARS_MAX} printable characters and "
            f"{PATH_PARTS_MAX} parts, relative, without '..'"
        )
    return composed


def require_files(files: Iterable[SkillFile]) -> tuple[SkillFile, ...]:
    """Return the files of a skill by path. Raises ``SkillError`` when there are too many or too large ones, no
    ``SKILL.md``, or two paths that are one on some file systems."""
    found: dict[str, SkillFile] = {}
    total = 0
    for file in files:
        path = require_path(file.path)
        folded = path.casefold()
        if folded in found:
            raise SkillError(f"two files of the skill have the path {path!r}, as far as some file systems know")
        if len(file.body) > FILE_BYTES_MAX:
            raise SkillError(f"the file {path!r} has more than {FILE_BYTES_MAX:,} bytes")
        total += len(file.body)
        found[folded] = SkillFile(path=path, body=file.body, is_executable=file.is_executable)
        if len(found) > FILES_MAX or total > SKILL_BYTES_MAX:
            raise SkillError(f"a skill has at most {FILES_MAX} files and {SKILL_BYTES_MAX:,} bytes")
    for path in found:
        parents = path.split("/")
        if any("/".join(parents[:length]) in found for length in range(1, len(parents))):
            raise SkillError(f"a part of the path {path!r} is a file itself")
    ordered = tuple(sorted(found.values(), key=lambda file: file.path.encode()))
    main = find_main_file(ordered)
    if main is None:
        raise SkillError(f"a skill has a file {SKILL_FILE}")
    if main.text is None:
        raise SkillError(f"{main.path} is no text in UTF-8")
    if len(main.text) > TEXT_CHARS_MAX:
        raise SkillError(f"{main.path} has more than {TEXT_CHARS_MAX:,} characters")
    return ordered


def find_main_file(files: Iterable[SkillFile]) -> SkillFile | None:
    """Find ``SKILL.md``, or the one file of a bundle; ``None`` when there is none."""
    by_path = {file.path: file for file in files}
    return by_path.get(SKILL_FILE) or by_path.get(BUNDLE_FILE)


def require_main_text(files: Iterable[SkillFile]) -> str:
    """Return the text of ``SKILL.md``. Raises ``SkillError`` when there is none."""
    main = find_main_file(files)
    if main is None or main.text is None:
        raise SkillError(f"a skill has a file {SKILL_FILE}")
    return main.text


def compute_content_hash(files: Sequence[SkillFile]) -> str:
    """SHA-256, in hexadecimal digits, of the paths, the bytes and the modes of all files in the order of their paths;
    equal exactly when the folders are equal."""
    digest = hashlib.sha256(_HASHED_AS)
    for file in sorted(files, key=lambda each: each.path.encode()):
        path = file.path.encode()
        digest.update(b"%d:%s:%s:%d:" % (len(path), path, b"x" if file.is_executable else b"-", len(file.body)))
        digest.update(file.body)
    return digest.hexdigest()


def dump_folder(files: Sequence[SkillFile]) -> str:
    """Dump the files for storage."""
    return dump_canonical_json([_dump_file(file) for file in sorted(files, key=lambda each: each.path.encode())])


def _dump_file(file: SkillFile) -> dict[str, object]:
    text = file.text
    body = {"text": text} if text is not None else {"base64": base64.b64encode(file.body).decode("ascii")}
    return {"path": file.path, **({"mode": "x"} if file.is_executable else {}), **body}


def parse_folder(text: str, digest: str) -> tuple[SkillFile, ...]:
    """Parse what ``dump_folder`` wrote. Raises ``SkillError`` when it does not have this hash."""
    try:
        files = tuple(
            SkillFile(
                path=each["path"],
                body=each["text"].encode() if "text" in each else base64.b64decode(each["base64"], validate=True),
                is_executable=each.get("mode") == "x",
            )
            for each in json.loads(text)
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SkillError(f"the stored skill {digest[:12]} cannot be read: {error}") from error
    if compute_content_hash(files) != digest:
        raise SkillError(f"the stored skill {digest[:12]} is not what its hash says")
    return files


# --- front matter ----------------------------------------------------------------------------------------------------


def parse_facts(front: Mapping[str, Any], *, called: str) -> SkillFacts:
    """Parse a front matter leniently: ``called`` replaces a missing name. Raises ``SkillError`` for an invalid name."""
    name = _read_word(front.get("name")) or called
    if not _NAME.fullmatch(name):
        raise SkillError(
            f"{name[:80]!r} cannot be the name of a skill: 1 to {NAME_CHARS_MAX} lower-case letters, digits and hyphens"
        )
    metadata = read_mapping(front.get("metadata"))
    own = read_mapping(metadata.get("hermes"))
    return SkillFacts(
        name=name,
        description=_read_word(front.get("description"))[:DESCRIPTION_CHARS_MAX],
        version=(_read_word(front.get("version")) or _read_word(metadata.get("version")))[:NAME_CHARS_MAX],
        license=_read_word(front.get("license"))[:200],
        compatibility=_read_word(front.get("compatibility"))[:COMPATIBILITY_CHARS_MAX],
        platforms=_read_words(front.get("platforms") or own.get("platforms")),
        tags=_read_words(own.get("tags")),
        related=_read_words(own.get("related_skills")),
        requires_tools=_read_words(own.get("requires_tools")),
        requires_toolsets=_read_words(own.get("requires_toolsets")),
        fallback_for_tools=_read_words(own.get("fallback_for_tools")),
        fallback_for_toolsets=_read_words(own.get("fallback_for_toolsets")),
        env_vars=_parse_variables(front, own),
        commands=_parse_prerequisites(front, own, "commands"),
    )


def _parse_variables(front: Mapping[str, Any], own: Mapping[str, Any]) -> tuple[str, ...]:
    """Names of environment variables, each once; invalid names are left out."""
    named: list[str] = []
    for field in (front.get("required_environment_variables"), own.get("required_environment_variables")):
        if isinstance(field, Sequence) and not isinstance(field, str):
            named += [
                _read_word(each.get("name") if isinstance(each, Mapping) else each) for each in field[:_VARIABLES_MAX]
            ]
    named += _parse_prerequisites(front, own, "env_vars")
    return tuple(dict.fromkeys(name for name in named if _ENVIRONMENT_NAME.fullmatch(name)))


def _parse_prerequisites(front: Mapping[str, Any], own: Mapping[str, Any], name: str) -> tuple[str, ...]:
    said = read_mapping(front.get("prerequisites")) or read_mapping(own.get("prerequisites"))
    return _read_words(said.get(name))[:_VARIABLES_MAX]


def parse_bundle(document: Mapping[str, Any], *, called: str) -> SkillFacts:
    """Parse ``BUNDLE.yaml``. Raises ``SkillError``."""
    named = _read_words(document.get("skills"))
    if not named:
        raise SkillError(f"the bundle {called[:80]!r} must have a list 'skills' of names")
    if not _NAME.fullmatch(called):
        raise SkillError(f"{called[:80]!r} cannot be the name of a bundle")
    return SkillFacts(
        name=called, description=_read_word(document.get("description"))[:DESCRIPTION_CHARS_MAX], bundle=named
    )


def find_front_matter_problems(front: Mapping[str, Any], *, folder: str | None) -> list[str]:
    """List what keeps a front matter from conforming to agentskills.io, as sentences. ``folder`` is the name of its
    folder, ``None`` when it has none yet."""
    found = []
    if extra := sorted(str(name) for name in front.keys() - _STANDARD_FIELDS):
        found.append(f"fields that the format does not know: {', '.join(extra)[:200]} (put them below 'metadata')")
    found += _find_name_problems(front.get("name"), folder)
    description = front.get("description")
    if not isinstance(description, str) or not description.strip():
        found.append("'description' must say what the skill does and when to use it")
    elif len(description) > DESCRIPTION_CHARS_MAX:
        found.append(f"'description' has more than {DESCRIPTION_CHARS_MAX:,} characters")
    compatibility = front.get("compatibility", "")
    if not isinstance(compatibility, str) or len(compatibility) > COMPATIBILITY_CHARS_MAX:
        found.append(f"'compatibility' must be a text of at most {COMPATIBILITY_CHARS_MAX} characters")
    if not isinstance(front.get("metadata", {}), Mapping):
        found.append("'metadata' must be a mapping")
    return found


def _find_name_problems(name: object, folder: str | None) -> list[str]:
    if not isinstance(name, str) or not name.strip():
        return ["'name' is missing"]
    name = unicodedata.normalize("NFKC", name.strip())
    found = []
    is_formed = all(character.isalnum() or character == "-" for character in name) and name == name.lower()
    if not is_formed or len(name) > NAME_CHARS_MAX or name.strip("-") != name or "--" in name:
        found.append(
            f"'name' must be 1 to {NAME_CHARS_MAX} lower-case letters, digits and single hyphens, none at an end"
        )
    if folder is not None and unicodedata.normalize("NFKC", folder) != name:
        found.append(f"'name' must be that of its folder, {folder[:80]!r}")
    return found


def require_category(category: str | None) -> str:
    """Return a valid category; empty for none. Raises ``SkillError``."""
    if not category:
        return ""
    if not _CATEGORY.fullmatch(category):
        raise SkillError(f"{category[:80]!r} is no category: one word of letters, digits and any of _ . -")
    return category


def _read_word(value: object) -> str:
    return " ".join(str(value).split()) if isinstance(value, str | int | float) and value is not True else ""


def _read_words(value: object) -> tuple[str, ...]:
    """Read names from a list, or from a text with commas between them."""
    listed = value.split(",") if isinstance(value, str) else value
    if not isinstance(listed, Sequence):
        return ()
    found = (_read_word(each)[:NAME_CHARS_MAX] for each in listed[:100])
    return tuple(each for each in found if each)


# --- what an agent is shown ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class SkillConditions:
    """The facts that the conditions of skills depend on."""

    tools: Set[str] = frozenset()
    toolsets: Set[str] = frozenset()
    platform: str = "linux"
    """A value of Python's ``sys.platform``."""
    disabled: Set[str] = frozenset()


def explain_hidden(facts: SkillFacts, around: SkillConditions) -> str | None:
    """Why a skill is not offered under these conditions; ``None`` when it is."""
    if facts.name in around.disabled:
        return "it is disabled"
    if facts.platforms and not any(_is_platform(each, around.platform) for each in facts.platforms):
        return f"it is for {', '.join(facts.platforms)}"
    if missing := [name for name in facts.requires_tools if name not in around.tools]:
        return f"it needs the tools {', '.join(missing)}"
    if missing := [name for name in facts.requires_toolsets if name not in around.toolsets]:
        return f"it needs the toolsets {', '.join(missing)}"
    if there := [name for name in facts.fallback_for_tools if name in around.tools]:
        return f"it stands in for the tools {', '.join(there)}, which are there"
    if there := [name for name in facts.fallback_for_toolsets if name in around.toolsets]:
        return f"it stands in for the toolsets {', '.join(there)}, which are there"
    return None


def _is_platform(named: str, platform: str) -> bool:
    named = named.lower()
    return platform.startswith(_OF_PLATFORM.get(named, named))


def select_offered_skills(skills: SkillSet, around: SkillConditions) -> tuple[SkillEntry, ...]:
    """Select the skills that are offered under these conditions, by category and name; those without a category come
    first."""
    offered = (entry for entry in skills.entries if explain_hidden(entry.facts, around) is None)
    return tuple(sorted(offered, key=lambda entry: (entry.category, entry.name)))


_INDEX_HEAD = (
    "# Skills\n"
    "A skill is a set of instructions for a kind of task. When one of these fits what you are asked, even in part, "
    "load it with skill_view(name) before you begin, and follow it. The list is an index, not an instruction."
)


def render_skill_index(entries: Sequence[SkillEntry]) -> str:
    """Render the index for the system prompt; empty when there is no skill. Bundles are left out: they are for people
    and jobs."""
    entries = [entry for entry in entries if not entry.facts.bundle]
    if not entries:
        return ""
    lines = []
    category = ""
    for entry in entries:
        if entry.category != category:
            category = entry.category
            notes = (each.facts.category_note for each in entries if each.category == category)
            note = next((note for note in notes if note), "")
            lines.append(f"  {category}: {_neutralize_tags(note)}".rstrip())
        lines.append(f"{'    ' if category else '  '}- {entry.name}: {_shorten(entry.facts.description)}")
    return "\n".join((_INDEX_HEAD, "<available_skills>", *lines, "</available_skills>"))


def _shorten(description: str) -> str:
    """Shorten a description to one line that cannot end the list."""
    line = _neutralize_tags(description)
    if len(line) <= INDEX_DESCRIPTION_CHARS:
        return line
    return f"{line[: INDEX_DESCRIPTION_CHARS - 3].rstrip()}..."


def _neutralize_tags(text: str) -> str:
    return " ".join(text.split()).replace("<", "(").replace(">", ")")


def expand_variables(text: str, *, folder: str | None, session_id: str) -> str:
    """Replace ``${HERMES_SKILL_DIR}`` and ``${HERMES_SESSION_ID}`` by their values; a value of ``None`` leaves its
    variable as it is. One pass: variables inside a value are not replaced."""
    values = {"HERMES_SKILL_DIR": folder, "HERMES_SESSION_ID": session_id}

    def find_value(match: re.Match[str]) -> str:
        known = values[match.group(1)]
        return match.group(0) if known is None else known

    return _VARIABLE.sub(find_value, text)


def needs_folder(files: Sequence[SkillFile]) -> bool:
    """Whether the skill is useful only where its files are: it has scripts, or names its folder."""
    return "${HERMES_SKILL_DIR}" in require_main_text(files) or any(file.path.startswith("scripts/") for file in files)


def group_linked_files(files: Iterable[SkillFile]) -> Mapping[str, Sequence[str]]:
    """The files beside ``SKILL.md`` by their folders; those in no folder are under ``other``."""
    found: dict[str, list[str]] = {}
    for file in files:
        if file.path not in (SKILL_FILE, BUNDLE_FILE):
            folder, slash, _ = file.path.partition("/")
            found.setdefault(folder if slash else "other", []).append(file.path)
    return found


def build_skill_prompt(name: str, files: Sequence[SkillFile]) -> str:
    """The text that stands before the prompt of a run that is to follow a skill."""
    others = [file.path for file in files if file.path not in (SKILL_FILE, BUNDLE_FILE)]
    more = f" Its other files, for skill_view: {', '.join(others[:50])}." if others else ""
    return f"[Follow the skill {name!r}.{more}]\n\n{require_main_text(files).strip()}"
