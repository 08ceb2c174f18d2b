"""Show runs the skills of the set that their row names, and nothing added later, and apply the changes that runs
make.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence, Set

from hermes_worker.agent.tools.base import ToolContext
from hermes_worker.core.offered_skills import SkillError
from hermes_worker.core.run_writers import MemoryWriter
from hermes_worker.features.skills.change_rules import (
    SkillAction,
    SkillChangeRequest,
    SkillPolicy,
    SkillRewrite,
    require_skill_writer,
)
from hermes_worker.features.skills.rows import SkillCall, SkillChange
from hermes_worker.features.skills.rules import (
    SkillEntry,
    SkillFile,
    SkillMoved,
    SkillNotFound,
    SkillSet,
    select_offered_skills,
)
from hermes_worker.features.skills.shelf_files import SkillShelf, build_surroundings
from hermes_worker.observe import log
from hermes_worker.store.access.audit import Actor, set_actor
from hermes_worker.tasks.iteration.planning import read_tool_names


class AgentSkills:
    """``features.skills.reading_tool.RunSkillReader`` and ``features.skills.managing_tool.SkillKeeper`` of one
    database. Thread-safe."""

    def __init__(
        self,
        shelf: SkillShelf,
        tools_of: Callable[[str], str],
        *,
        writers_of: Callable[[str], Collection[MemoryWriter]],
        variables: Set[str] = frozenset(),
    ) -> None:
        """``tools_of`` gives the stored tool definitions of a run's session, and ``writers_of`` the roles of a run by
        which it is decided whether it may write. ``variables`` are the environment variables that commands have because
        the operator passes them on.
        """
        self._shelf = shelf
        self._tools_of = tools_of
        self._writers_of = writers_of
        self._variables = variables

    @property
    def variables(self) -> Set[str]:
        return self._variables

    def list_visible(self, context: ToolContext) -> Sequence[SkillEntry]:
        """List the skills that the model of this run may load. Raises ``SkillError``, ``UnavailableError``."""
        around = build_surroundings(read_tool_names(self._tools_of(context.run_id)), self._shelf.disabled)
        return tuple(
            entry for entry in select_offered_skills(self._load_set(context), around) if not entry.facts.bundle
        )

    def load_skill(self, name: str, context: ToolContext) -> tuple[SkillEntry, Sequence[SkillFile]]:
        """Load a skill with its files. Raises ``SkillNotFound``, ``SkillError``, ``UnavailableError``."""
        entry = self._load_set(context).find(name)
        if entry is None or entry.facts.bundle or not self._shelf.is_usable(entry.facts):
            raise SkillNotFound(f"Skill {name[:80]!r} not found.")
        return entry, self._shelf.load_files(context.origin.tenant, entry.hash)

    def change(self, wish: SkillChangeRequest, rewrite: SkillRewrite, context: ToolContext) -> str | None:
        """Change a skill once per call; return its new hash, ``None`` when it was removed. Raises ``SkillError``,
        ``UnavailableError``."""
        tenant = context.origin.tenant
        if (done := self._shelf.open_tenant_skills(tenant).find_change(context.idempotency_key)) is not None:
            return done.hash
        try:
            require_skill_writer(self._writers_of(context.run_id), context.policies.find(SkillPolicy))
            with set_actor(Actor(tenant=tenant, name=f"agent:{context.session_id}")):
                return self._apply_change(wish, rewrite, context).hash
        except SkillError as error:
            if (done := self._shelf.open_tenant_skills(tenant).find_change(context.idempotency_key)) is not None:
                return done.hash  # an attempt that was given up did it meanwhile
            log.info("skill.refused", action=wish.action.value, reason=str(error))
            raise

    def _apply_change(self, wish: SkillChangeRequest, rewrite: SkillRewrite, context: ToolContext) -> SkillChange:
        tenant, name = context.origin.tenant, wish.name
        rows = self._shelf.open_tenant_skills(tenant)
        run = rows.load_skills_of_run(context.run_id)
        call = SkillCall(run_pk=run.pk, key=context.idempotency_key)
        row = rows.find(name)
        if wish.action is SkillAction.CREATE:
            if row is not None:
                raise SkillError(f"A skill named {name!r} already exists.")
            return self._shelf.keep_version(
                tenant, name, rewrite, by="agents", category=wish.category, is_new=True, call=call
            )
        if row is None:
            raise SkillNotFound(f"Skill {name[:80]!r} not found. Use skills_list to see all available skills.")
        if row.entry.facts.bundle:
            raise SkillError(f"{name!r} is a bundle, which people change.")
        if wish.overwrites and row.hash not in rows.list_versions_of_run(run.pk, name) | self._find_hashes_in_set(
            name, tenant, run.skills_hash
        ):
            raise SkillMoved(
                f"Skill {name!r} was changed since this conversation began, so {wish.action.value!r} would undo what "
                "somebody else did. Patch it, or leave it to a later conversation."
            )
        if wish.action is SkillAction.DELETE:
            if wish.absorbed_into and (wish.absorbed_into == name or rows.find(wish.absorbed_into) is None):
                raise SkillNotFound(f"absorbed_into: there is no other skill {wish.absorbed_into[:80]!r}.")
            return self._shelf.remove_skill(tenant, name, expects=row.hash, call=call)
        return self._shelf.keep_version(tenant, name, rewrite, by="agents", expects=row.hash, call=call)

    def _find_hashes_in_set(self, name: str, tenant: str, digest: str | None) -> set[str]:
        entry = self._load_stored_set(tenant, digest).find(name)
        return set() if entry is None else {entry.hash}

    def _load_set(self, context: ToolContext) -> SkillSet:
        tenant = context.origin.tenant
        return self._load_stored_set(
            tenant, self._shelf.open_tenant_skills(tenant).load_skills_of_run(context.run_id).skills_hash
        )

    def _load_stored_set(self, tenant: str, digest: str | None) -> SkillSet:
        return self._shelf.load_set(tenant, digest) if digest is not None else SkillSet()
