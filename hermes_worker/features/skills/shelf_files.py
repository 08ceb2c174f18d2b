"""The skills of tenants for processes: the rows, kept in step with the folders that people edit.

Theory of operation. The database has every version (``features.skills.rows``). A process that has a home looks at the
folders of skills there whenever it needs the set of a tenant, at most once a second: it compares names, sizes and
times, reads what changed, and keeps it as a new version if its hash is new. A change that an agent or a person made
through the product stays until the folder itself changes. A folder that is gone takes its skill away, where this
machine had brought it.

Contents are fetched by hash and kept in memory, up to a bound: a hash never means anything else, so nothing here can be
out of date.
"""

from __future__ import annotations

import hashlib
import socket
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

from hermes_worker import installed
from hermes_worker.core.offered_skills import NamedSkills, OfferedSkills, SkillError
from hermes_worker.core.principals import DEFAULT_TENANT, find_tenant_home
from hermes_worker.features.skills.change_rules import SkillRewrite, find_changed_files
from hermes_worker.features.skills.rows import NewSkillVersion, SkillCall, SkillChange, SkillRow, Skills
from hermes_worker.features.skills.rules import (
    SkillConditions,
    SkillEntry,
    SkillFacts,
    SkillFile,
    SkillMoved,
    SkillNotFound,
    SkillSet,
    build_skill_prompt,
    compute_content_hash,
    explain_hidden,
    render_skill_index,
    require_category,
    require_files,
    require_main_text,
    select_offered_skills,
)
from hermes_worker.features.skills.text_rules import find_problems, read_category_note, read_facts
from hermes_worker.features.skills.workspace_files import SkillFolder, find_skill_folders, read_skill_folder
from hermes_worker.observe import count, log
from hermes_worker.safety.origins import TextOrigin, judge_text
from hermes_worker.safety.threats import ThreatScope, scan_text

LOOK_EVERY_S = 1.0
"""How many seconds old a process's knowledge of a tenant's skills may be."""
CACHE_BYTES_MAX = 64 * 1_048_576
_TENANTS_MAX = 1_000
_VIEW_TOOL = "skill_view"
_BLOCKED = "[BLOCKED: this description was left out because it looks like an attack ({found})]"


@dataclass(frozen=True, slots=True)
class _KnownSkills:
    looked_at: float
    fingerprint: Sequence[tuple[str, str, str, int]]
    found: SkillSet | None
    stored_at: float


_STORED_AGAIN_S = 300.0
"""Seconds after which a set that is in use is marked as used again."""


@dataclass(frozen=True, slots=True)
class _SkillRoot:
    """A directory of skills. ``prefix`` stands before their names."""

    path: Path
    origin: str
    prefix: str = ""


class FolderCache:
    """Files by hash, the most recently used ones, up to a number of bytes. Thread-safe."""

    def __init__(self, bytes_max: int = CACHE_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._held: OrderedDict[tuple[str, str], tuple[SkillFile, ...]] = OrderedDict()
        self._size = 0
        self._lock = threading.Lock()

    def get_or_fetch(self, key: tuple[str, str], fetch: Callable[[], tuple[SkillFile, ...]]) -> tuple[SkillFile, ...]:
        """The cached files, or those that ``fetch`` returns, which are then cached. Two threads may fetch the same."""
        with self._lock:
            if key in self._held:
                self._held.move_to_end(key)
                return self._held[key]
        count("skill.fetched")
        files = fetch()
        with self._lock:
            if key not in self._held:
                self._held[key] = files
                self._size += _count_bytes(files)
            while self._size > self._bytes_max and len(self._held) > 1:
                _, gone = self._held.popitem(last=False)
                self._size -= _count_bytes(gone)
        return files


def _count_bytes(files: Sequence[SkillFile]) -> int:
    return sum(len(file.body) + len(file.path) for file in files)


class SkillShelf:
    """The skills of every tenant, as this process sees them. Thread-safe; methods raise ``UnavailableError``."""

    def __init__(
        self,
        skills: Skills,
        home: Path,
        *,
        external: Sequence[str] = (),
        disabled: Collection[str] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``external`` are further directories, of the default tenant; ``disabled`` are names of skills that are
        hidden.
        """
        self._skills = skills
        self._home = home
        self._external = tuple(external)
        self.disabled = frozenset(disabled)
        self._clock = clock
        self._cache = FolderCache()
        self._known: dict[str, _KnownSkills] = {}
        self._stamps: dict[tuple[str, Path], Mapping[str, SkillFolder]] = {}
        self._lock = threading.RLock()

    def open_tenant_skills(self, tenant: str) -> Skills:
        """The rows of a tenant, as they are at this moment."""
        return self._skills.for_tenant(tenant)

    # --- sets ---

    def load_current_set(self, tenant: str) -> SkillSet | None:
        """The set that a run which begins now has; ``None`` where there is no skill. At most a second old, and stored:
        its hash may be named by a run."""
        with self._lock:
            known = self._known.get(tenant)
            now = self._clock()
            if known is not None and now - known.looked_at < LOOK_EVERY_S:
                return known.found
            self._sync(tenant)
            rows = self._skills.for_tenant(tenant)
            fingerprint = rows.load_fingerprint()
            if known is None or fingerprint != known.fingerprint or now - known.stored_at >= _STORED_AGAIN_S:
                known = _KnownSkills(now, fingerprint, rows.store_current_set() if fingerprint else None, now)
            else:
                known = _KnownSkills(now, fingerprint, known.found, known.stored_at)
            if len(self._known) >= _TENANTS_MAX:
                self._known.clear()
            self._known[tenant] = known
            return known.found

    def list_usable(self, tenant: str) -> tuple[SkillEntry, ...]:
        """Skills and bundles that a run which begins now may name, with any tools; by name."""
        found = self.load_current_set(tenant)
        return tuple(entry for entry in found.entries if self.is_usable(entry.facts)) if found else ()

    def forget_look(self, tenant: str) -> None:
        """Make the next look read the rows: a skill was changed here."""
        with self._lock:
            if tenant in self._known:
                self._known[tenant] = replace(self._known[tenant], looked_at=float("-inf"))

    def sync(self, tenant: str) -> None:
        """Bring the rows of a tenant in step with its folders."""
        with self._lock:
            self._sync(tenant)

    # --- contents ---

    def load_files(self, tenant: str, digest: str) -> tuple[SkillFile, ...]:
        """The files of one version of a skill. Raises ``SkillError``."""
        return self._cache.get_or_fetch((tenant, digest), lambda: self._skills.for_tenant(tenant).load_folder(digest))

    def load_set(self, tenant: str, digest: str) -> SkillSet:
        """Load a set by its hash. Raises ``SkillError``."""
        known = self._known.get(tenant)
        if known is not None and known.found is not None and known.found.hash == digest:
            return known.found
        return self._skills.for_tenant(tenant).load_set(digest)

    def find_offered(self, tenant: str, names: Sequence[str] = ()) -> OfferedSkills:
        """Find the skills that a tenant has now, with the texts of those that ``names`` name. Raises ``SkillError`` for
        a name that no skill has."""
        if not names:
            return self._offer_set(self.load_current_set(tenant))
        named = self.load_named(tenant, names)
        if named.missing:
            raise SkillError(f"there is no skill {named.missing[0]!r}; 'GET /v1/skills' lists those there are")
        found = self.load_set(tenant, named.set_hash) if named.set_hash is not None else None
        return self._offer_set(found, named.texts)

    def find_stored(self, tenant: str, digest: str) -> OfferedSkills:
        """Find the skills of a set that was stored before, by its hash. Raises ``SkillError``."""
        return self._offer_set(self.load_set(tenant, digest))

    def _offer_set(self, found: SkillSet | None, texts: tuple[str, ...] = ()) -> OfferedSkills:
        def build_index(tools: Set[str]) -> str:
            if found is None or _VIEW_TOOL not in tools:
                return ""
            return render_skill_index(select_offered_skills(found, build_surroundings(tools, self.disabled)))

        return OfferedSkills(set_hash=found.hash if found is not None else None, texts=texts, build_index=build_index)

    def load_named(self, tenant: str, names: Sequence[str]) -> NamedSkills:
        """The texts of skills and bundles, in order and each once; missing names are listed."""
        if not names:
            return NamedSkills()
        self.forget_look(tenant)  # it may have been put there for this very run
        found = self.load_current_set(tenant)
        texts: dict[str, str] = {}
        missing: list[str] = []
        for name in names:
            parts = list(self._find_parts(found, name)) if found is not None else []
            if not parts:
                missing.append(name)
            for entry in parts:
                if isinstance(entry, str):
                    missing.append(entry)
                elif entry.name not in texts:
                    texts[entry.name] = build_skill_prompt(entry.name, self.load_files(tenant, entry.hash))
        return NamedSkills(
            texts=tuple(texts.values()),
            missing=tuple(dict.fromkeys(missing)),
            set_hash=found.hash if found is not None else None,
        )

    def _find_parts(self, found: SkillSet, name: str) -> Iterator[SkillEntry | str]:
        """The skills that a name stands for; names of those that are not there."""
        entry = found.find(name)
        if entry is None or not self.is_usable(entry.facts):
            return
        if not entry.facts.bundle:
            yield entry
            return
        for part in entry.facts.bundle:
            inner = found.find(part)
            is_there = inner is not None and not inner.facts.bundle and self.is_usable(inner.facts)
            yield inner if inner is not None and is_there else part

    def is_usable(self, facts: SkillFacts) -> bool:
        """Whether a skill can be asked for by name here, whatever its conditions about tools."""
        around = SkillConditions(platform=sys.platform, disabled=self.disabled)
        own = replace(facts, requires_tools=(), requires_toolsets=(), fallback_for_tools=(), fallback_for_toolsets=())
        return explain_hidden(own, around) is None

    # --- changes ---

    def keep_version(
        self,
        tenant: str,
        name: str,
        rewrite: SkillRewrite,
        *,
        by: str,
        category: str | None = None,
        expects: str | None = None,
        is_new: bool = False,
        call: SkillCall | None = None,
    ) -> SkillChange:
        """Make another version of a skill, or a new one, with the files that ``rewrite`` gives. ``by`` is ``people``
        or ``agents``; ``expects`` is the version that alone may be replaced. What a folder brought stays that
        folder's, and this version counts until the folder changes. Raises ``SkillError``, ``SkillMoved``."""
        rows, row = self._require_own(tenant, name, "changed")
        if row is None and expects is not None:
            raise SkillNotFound(f"there is no skill {name!r}")
        before = self.load_files(tenant, row.hash) if row is not None else ()
        after = tuple(rewrite(before))
        where = require_category(category) if category is not None or row is None else row.category
        stays = row is not None and row.category == where
        note = row.entry.facts.category_note if row is not None and stays else ""
        kept = NewSkillVersion(
            facts=replace(check_version(name, before, after), category_note=note),
            files=after,
            category=where,
            origin=row.origin if row is not None and row.source_hash is not None else by,
            source_hash=row.source_hash if row is not None else None,
        )
        expected = row.hash if row is not None and expects is None else expects
        changed = rows.write_skill(kept, expects=expected, is_new=is_new or row is None, call=call)
        self.forget_look(tenant)
        return changed

    def remove_skill(
        self, tenant: str, name: str, *, expects: str | None = None, call: SkillCall | None = None
    ) -> SkillChange:
        """Take a skill away. Raises ``SkillNotFound``, ``SkillMoved``, ``SkillError`` for one of an extension."""
        rows, _ = self._require_own(tenant, name, "removed")
        changed = rows.remove(name, expects=expects, call=call)
        self.forget_look(tenant)
        return changed

    def _require_own(self, tenant: str, name: str, what: str) -> tuple[Skills, SkillRow | None]:
        """The tenant's skills, and the one that is to be ``what``. Raises ``SkillError`` for one of an extension."""
        self.sync(tenant)
        rows = self._skills.for_tenant(tenant)
        row = rows.find(name)
        if row is not None and row.origin.startswith("plugin:"):
            raise SkillError(f"the skill {name!r} comes with an extension and cannot be {what}")
        return rows, row

    # --- folders ---

    def _list_roots(self, tenant: str) -> Iterator[_SkillRoot]:
        """The directories of skills, in the order in which a name counts."""
        homes = [
            find_tenant_home(self._home, tenant) / "skills",
            find_tenant_home(self._home, tenant) / "skill-bundles",
        ]
        external = [Path(path).expanduser() for path in self._external] if tenant == DEFAULT_TENANT else []
        for path in (*homes, *external):
            yield _SkillRoot(path, f"home:{_hash_place(path)}")
        for extension in installed.get_installed().list_bringing("skills"):
            for declared in extension.skills:
                folder = _find_folder(declared.folder)
                if folder is None:
                    log.warning("skill.left_out", skill=declared.folder, reason="its package cannot be found")
                else:
                    yield _SkillRoot(folder, f"plugin:{extension.name}", prefix=f"{extension.name}:")

    def _sync(self, tenant: str) -> None:
        taken: set[str] = set()
        rows: dict[str, SkillRow] | None = None
        for root in self._list_roots(tenant):
            key = (tenant, root.path)
            before = self._stamps.get(key)
            folders = {folder.name: folder for folder in find_skill_folders(root.path)}
            if before is None and not folders and not root.path.is_dir():
                continue
            if folders == before:
                taken |= {root.prefix + name for name in folders}
                continue
            if rows is None:
                rows = {row.name: row for row in self._skills.for_tenant(tenant).list_skills(with_removed=True)}
            names = set()
            for name, folder in folders.items():
                if before is not None and before.get(name) == folder:
                    names.add(root.prefix + name)
                    continue
                kept = self._read_folder(root, folder)
                if kept is None or kept.facts.name in taken:
                    continue
                names.add(kept.facts.name)
                self._keep_folder(tenant, kept, rows.get(kept.facts.name))
            for name, row in rows.items():
                if row.origin == root.origin and name not in names and name not in taken:
                    self._skills.for_tenant(tenant).remove_vanished(name, root.origin)
            taken |= names
            self._stamps[key] = folders

    def _read_folder(self, root: _SkillRoot, folder: SkillFolder) -> NewSkillVersion | None:
        """Read a folder; ``None`` for one that is no skill, for which the log says why."""
        try:
            files = read_skill_folder(folder.path)
            facts = read_facts(files, called=folder.name)
        except SkillError as error:
            log.warning("skill.left_out", skill=root.prefix + folder.name, reason=str(error))
            return None
        # It is asked for by the name of its folder, as agentskills.io wants the two to be the same.
        note = read_category_note(folder.read_category_text())
        facts = replace(add_safe_description(facts, files), name=root.prefix + folder.name, category_note=note)
        return NewSkillVersion(
            facts=facts,
            files=files,
            category=folder.category,
            origin=root.origin,
            source_hash=compute_content_hash(files),
        )

    def _keep_folder(self, tenant: str, kept: NewSkillVersion, row: SkillRow | None) -> None:
        """Keep what a folder holds, unless that is known already."""
        if row is not None and row.source_hash is None:
            log.warning("skill.left_out", skill=row.name, reason="a skill that was added by name stands before it")
            return
        is_same = row is not None and (row.source_hash, row.category) == (kept.source_hash, kept.category)
        is_known = is_same and row is not None and row.entry.facts.category_note == kept.facts.category_note
        if row is not None and is_known and row.origin == kept.origin:
            return
        if row is not None and is_same and not row.is_removed and row.hash != kept.source_hash:
            return  # it was changed since, and another machine has the same folder
        try:
            expects = row.hash if row is not None and not row.is_removed else None
            self._skills.for_tenant(tenant).write_skill(kept, expects=expects, is_new=row is None)
        except SkillMoved:
            log.debug("skill.moved", skill=kept.facts.name)  # another process was at it
        except SkillError as error:
            log.warning("skill.left_out", skill=kept.facts.name, reason=str(error))


def build_surroundings(tools: Set[str], disabled: Set[str]) -> SkillConditions:
    """The facts that skills' conditions are checked with, in a session with these tools."""
    declared = installed.get_installed().tools
    toolsets = {declared[name].spec.toolset for name in tools if name in declared}
    return SkillConditions(tools=tools, toolsets=toolsets, platform=sys.platform, disabled=disabled)


def check_version(name: str, before: Sequence[SkillFile], after: Sequence[SkillFile]) -> SkillFacts:
    """The facts of a new version. Raises ``SkillError`` for one that is no skill of agentskills.io, where the version
    before was one, and for texts that look like an attack.
    """
    files = require_files(after)
    known = find_problems(before, folder=name) if before else []
    if problems := [each for each in find_problems(files, folder=name) if each not in known]:
        raise SkillError("; ".join(problems))
    for file in find_changed_files(before, files):
        judged = judge_text(file.text or "", TextOrigin.SKILL_WRITE)
        if judged.is_blocked:
            raise SkillError(f"{file.path} looks like an attack ({', '.join(judged.threats)}); nothing was kept")
    return replace(add_safe_description(read_facts(files, called=name), files), name=name)


def add_safe_description(facts: SkillFacts, files: Sequence[SkillFile]) -> SkillFacts:
    """The facts with a description that may stand in a prompt: the first line of the text where there is none, and a
    remark in place of one that looks like an attack.
    """
    description = facts.description
    if not description:
        lines = (line.strip(" #\t") for line in require_main_text(files).splitlines())
        description = next((line for line in lines if line and line != "---"), "")[:200]
    if found := scan_text(description, ThreatScope.CONTEXT):
        description = _BLOCKED.format(found=", ".join(found))
    return replace(facts, description=description)


def _hash_place(path: Path) -> str:
    """The id of a directory of this machine."""
    place = f"{socket.gethostname()}:{path.absolute()}"
    return hashlib.sha256(place.encode("utf-8", "surrogateescape")).hexdigest()[:16]


def _find_folder(reference: str) -> Path | None:
    """``package:folder`` as a directory; imports no more than the package's parents."""
    package, _, folder = reference.partition(":")
    try:
        spec = find_spec(package)
    except (ImportError, ValueError):
        return None
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    return Path(places[0]) / folder if places else None


__all__ = [
    "CACHE_BYTES_MAX",
    "LOOK_EVERY_S",
    "FolderCache",
    "NamedSkills",
    "SkillShelf",
    "add_safe_description",
    "build_surroundings",
    "check_version",
]
