"""Submit a run: one way for the API, the command line and the scheduler.

A submission says what is wanted. Here the facts are read with which ``services.run_stages`` decides what it becomes
(model, limits, tools, workspace, system prompt); it is committed, and is then announced. Once it is committed it will
run: the announcement is a hint that the sweeper repeats if it is lost.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hermes_worker.agent.prompt.sources import PromptBlock
from hermes_worker.agent.tools.catalog import has_tool_sources
from hermes_worker.core.errors import ConfigurationError, UnavailableError
from hermes_worker.core.offered_skills import NO_SKILLS, OfferedSkills, SkillError, SkillLibrary
from hermes_worker.core.overrides import OverrideLevel
from hermes_worker.core.principals import DEFAULT_TENANT
from hermes_worker.core.row_sources import is_row_source
from hermes_worker.live_settings import ChosenSettings
from hermes_worker.local.paths import get_workspaces_dir, holds_state
from hermes_worker.observe import count, find_fact, log
from hermes_worker.services.agents import apply_agent
from hermes_worker.services.prompting import read_prompt_texts
from hermes_worker.services.run_stages import (
    DEFAULT_MODEL_ALIAS,
    FoundDirectory,
    choose_default_toolsets,
    compose,
    configure,
    equip,
    find_provider_address,
    resolve_model,
)
from hermes_worker.services.submission_rules import (
    CLIENT_TOOLS_MAX,
    TAG,
    TAGS_MAX,
    TEXT_CHARS_MAX,
    InvalidSubmission,
    Submission,
    list_targets,
    validate,
    warm_up,
)
from hermes_worker.settings import Settings
from hermes_worker.settings.kinds import parse_named_model
from hermes_worker.settings.overriding import check_overrides, restrict_overrides
from hermes_worker.store.configurations import Configurations
from hermes_worker.store.runs.runs import Created, NewRun, SessionNotFound, create_run_id
from hermes_worker.store.tool_sources import ToolSources
from hermes_worker.system import faults
from hermes_worker.system.faults import FaultPoint
from hermes_worker.tracing.recording import record_submission
from hermes_worker.wiring import Client

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

__all__ = [
    "CLIENT_TOOLS_MAX",
    "DEFAULT_MODEL_ALIAS",
    "TAG",
    "TAGS_MAX",
    "TEXT_CHARS_MAX",
    "InvalidSubmission",
    "Submission",
    "accept",
    "announce",
    "build_run",
    "choose_default_toolsets",
    "choose_settings",
    "find_provider_address",
    "find_run_skills",
    "find_usable_model",
    "list_offered_models",
    "list_sourced_tools",
    "list_targets",
    "prepare_run",
    "resolve_model",
    "submit",
    "warm_up",
]


def submit(client: Client, submission: Submission) -> Created:
    """Accept a run and announce it. Idempotent under ``submission.idempotency_key``.

    Raises ``InvalidSubmission``, ``IdempotencyConflict``, ``RequestReplayed``, ``SessionBusy``, ``SessionMoved`` and
    ``UnavailableError`` (it is then not known whether the run was accepted; with an idempotency key it is safe to ask
    again).
    """
    created = accept(client, submission)
    announce(client, created)
    return created


def accept(
    client: Client, submission: Submission, also: Callable[[Connection, Created], None] | None = None
) -> Created:
    """Commit a run without sending its hint; ``also`` writes in the same transaction. Raises ``InvalidSubmission``,
    ``IdempotencyConflict``, ``RequestReplayed``, ``SessionBusy``, ``SessionMoved`` and ``UnavailableError``."""
    try:
        created = client.runs.create(prepare_run(client, submission), also)
    except SessionNotFound as error:
        raise InvalidSubmission("session_id", str(error)) from None
    if not created.was_replayed:
        count("run.submitted")
        record_submission(created.run_id, submission.source, find_fact("request_id"))
        log.info("run.submitted", run_id=created.run_id, session_id=created.session_id, source=submission.source)
    return created


def announce(client: Client, created: Created) -> None:
    """Announce an accepted run to the workers, best effort. Safe to repeat."""
    faults.pass_point(FaultPoint.SUBMIT_AFTER_COMMIT)
    if created.interrupted is None:
        client.publisher.send(created.hints)
        return
    stopped = [created.interrupted]
    hints = list(created.hints)
    try:
        below = client.runs.stop_descendants(created.interrupted)
    except UnavailableError:
        below = {}  # the sweeper stops them
    for run_id, more in below.items():
        stopped.append(run_id)
        hints += more
    client.publisher.publish_stops(stopped, hints)


def prepare_run(client: Client, submission: Submission) -> NewRun:
    """Build what is to be written, with the tools and skills that exist now. Raises ``InvalidSubmission``,
    ``UnavailableError``."""
    return build_run(
        client.settings,
        submission,
        chosen=choose_settings(client, submission),
        sourced=list_sourced_tools(
            client.tool_sources, submission.principal.tenant, has_rows=client.settings.mcp.has_rows
        ),
        skills=find_run_skills(client.skills, submission),
    )


def choose_settings(client: Client, submission: Submission) -> ChosenSettings:
    """Find the settings with which the run is accepted now. Raises ``InvalidSubmission`` for overrides that a run may
    not have, ``UnavailableError``."""
    tenant, asked = submission.principal.tenant, submission.settings
    session = _load_session_overrides(client, submission)
    try:
        said = check_overrides(asked, OverrideLevel.RUN, place="settings")
        above = client.live_settings.choose_settings(tenant, session)
        if not said:
            return above
        restrict_overrides(above.settings, said, place="settings")
    except ConfigurationError as error:
        raise InvalidSubmission("settings", str(error)) from None
    return client.live_settings.choose_settings(tenant, session, said)


def _load_session_overrides(client: Client, submission: Submission) -> Mapping[str, str]:
    if submission.session_id is None:
        return {}
    rows = Configurations(client.database)
    return rows.load_overrides(submission.principal.tenant, submission.source, submission.session_id)


def find_usable_model(client: Client, submission: Submission) -> str:
    """Find the model that a run would use. Raises ``InvalidSubmission`` for a submission that could not be accepted,
    and ``UnavailableError``."""
    chosen = choose_settings(client, submission)
    validate(submission, time.time())
    submission = apply_agent(submission)
    return configure(submission, client.settings, chosen).model


def list_offered_models(client: Client, submission: Submission) -> Sequence[str]:
    """List the models that the settings of such a run name: the default one, and fallbacks of the same provider. Others
    may be named. Raises ``InvalidSubmission``, ``UnavailableError``."""
    settings = choose_settings(client, submission).settings.model
    usual, provider = resolve_model(settings, None)
    others = (other for other in map(parse_named_model, settings.fallbacks) if other.address is None)
    return tuple(dict.fromkeys((usual, *(other.model for other in others if other.provider == provider))))


def list_sourced_tools(rows: ToolSources, tenant: str, *, has_rows: bool) -> Sequence[str]:
    """List the tool definitions that tool sources offer to a tenant, as workers stored them, those of its own MCP
    servers last, where it may have such: of two tools with one name the first is offered. Raises ``UnavailableError``.
    """
    if not has_rows and not has_tool_sources():
        return ()
    found = [row for row in rows.list_sources(tenant) if has_rows or not is_row_source(row.source)]
    found.sort(key=lambda row: is_row_source(row.source))
    return [definition for row in found for definition in row.definitions]


def find_run_skills(shelf: SkillLibrary, submission: Submission) -> OfferedSkills:
    """Find the skills that a run which is submitted now may see, and the texts of those that it is to follow. Raises
    ``InvalidSubmission``, ``UnavailableError``."""
    try:
        return shelf.find_offered(submission.principal.tenant, submission.skills)
    except SkillError as error:
        raise InvalidSubmission("skills", str(error)) from None


def _find_directory(settings: Settings, submission: Submission) -> FoundDirectory | None:
    """Find the directory that a submission names; ``None`` for none, and for what is no absolute path of one."""
    path = Path(submission.directory or "")
    if not path.is_absolute() or not path.is_dir():
        return None
    tenant, root = submission.principal.tenant, path.resolve()
    return FoundDirectory(
        root=root,
        is_of_tenant=tenant == DEFAULT_TENANT
        or root.is_relative_to(get_workspaces_dir(settings.home, tenant).resolve()),
        holds_state=holds_state(settings.home, root, tenant),
    )


def build_run(
    settings: Settings,
    submission: Submission,
    *,
    chosen: ChosenSettings | None = None,
    context: Sequence[PromptBlock] | None = None,
    sourced: Sequence[str] = (),
    skills: OfferedSkills = NO_SKILLS,
) -> NewRun:
    """Build what the store needs to write the run. ``context`` are the blocks of extensions' context sources; ``None``
    asks them now, which takes time, so never inside a transaction. ``sourced``: see ``list_sourced_tools``; ``skills``:
    see ``find_run_skills``. ``chosen`` stands in for ``settings``. Raises ``InvalidSubmission``."""
    validate(submission, time.time())
    configured = configure(apply_agent(submission), settings, chosen)
    equipped = equip(configured, create_run_id(), sourced, _find_directory(configured.settings, submission))
    texts = read_prompt_texts(equipped.context_facts, configured.settings.home, context)
    return compose(equipped, skills, texts)
