"""Prepare the first model call of a session: read the files of its workspace that are written for agents, and complete
its prompt with them. Also put the files of a run's message into the workspace, before the run's first model call. Their
names are made by us (``core.inbound_files.build_inbox_path``), and writing them again changes nothing.

The claim is that on the run's next step, so leases, suspects, stops and the sweeper treat it like a model call. It only
reads, so it may be done again; the prompt is completed once, by the first worker to do so, and never changes afterwards
(invariant I7). Later runs of the session find a whole prompt and have nothing to do.
"""

from __future__ import annotations

from dataclasses import replace

from hermes_worker.agent.prompt.project_files import read_project_files
from hermes_worker.agent.prompt.system import render_project_section
from hermes_worker.agent.tools.hints import mark_hint_shown
from hermes_worker.broker.queue import QueueName
from hermes_worker.core.abort import AbortSignal
from hermes_worker.core.effects import Prepare
from hermes_worker.core.errors import ConfigurationError
from hermes_worker.observe import count, log
from hermes_worker.safety.origins import TextOrigin, judge_text
from hermes_worker.store.inbound_files import InboundFiles
from hermes_worker.store.rows import Hint
from hermes_worker.store.runs.runs import IterationClaim, SessionContext
from hermes_worker.system import faults
from hermes_worker.system.faults import FaultPoint
from hermes_worker.tasks.context import WorkerContext
from hermes_worker.tasks.step_runner import RunStep, StepDone, run_step, write_outcome
from hermes_worker.workspaces.base import WorkspaceError

UNREAD = (
    "# Project context\n\n"
    "The workspace could not be read when this conversation began. If it has a file for agents (.hermes.md, AGENTS.md, "
    "CLAUDE.md), read it before you work there."
)
USUAL_WINDOW = 200_000
"""The context window that is assumed where none is known, in tokens."""


def prepare(parts: WorkerContext, effect: Prepare, at: float) -> None:
    """Complete the prompt of the session whose run ``effect`` names, if that is still to be done. ``at`` is when its
    message was hinted.

    Safe to deliver any number of times: of all deliveries one gets the claim, and a stale one finds nothing.
    """
    run_step(_STEP, parts, effect, at)


def _claim(parts: WorkerContext, effect: Prepare) -> IterationClaim | None:
    return parts.rows.runs.claim_preparation(effect, parts.leases.owner)


def _prepare(parts: WorkerContext, claim: IterationClaim, abort: AbortSignal) -> StepDone:
    session = parts.rows.runs.load_session_context(claim.loaded.session_pk)
    if parts.rows.files is not None and not abort.is_set():
        _place_files(parts, parts.rows.files, session, claim.loaded.pk)
    section, folder = ("", "") if abort.is_set() else _read_project_file(parts, session)
    faults.pass_point(FaultPoint.PREPARE_AFTER_READ, claim.run_id)

    def write() -> list[Hint]:
        if abort.is_set():  # handed over, or stopped: in a run that is being stopped, giving the claim up ends it
            return parts.rows.runs.release_iteration(claim)
        return parts.rows.runs.commit_preparation(claim, section, mark_hint_shown(folder) if folder else {})

    hints = write_outcome(parts, write, abort, refused="prompt.refused")
    is_watched = claim.loaded.is_watched or parts.leases.is_watched(claim.run_id)
    if hints is not None:
        count("prompt.prepared")
    return StepDone(hints=hints or (), is_watched=is_watched)


def _place_files(parts: WorkerContext, files: InboundFiles, session: SessionContext, run_pk: int) -> None:
    """Put the files that came with the run's message where its agent is told they are. A file that cannot be written is
    missing when the agent looks for it.
    """
    wanted = files.list_unplaced(run_pk)
    if not wanted:
        return
    try:
        workspace = parts.workspace(session.workspace)
        for file in wanted:
            workspace.write_bytes(file.path, file.content)
        log.info("inbound_file.placed", files=len(wanted))
    except (WorkspaceError, ConfigurationError, ValueError) as error:
        count("inbound_file.failed")
        log.warning("inbound_file.failed", reason=str(error))
    files.mark_placed(run_pk)


def _read_project_file(parts: WorkerContext, session: SessionContext) -> tuple[str, str]:
    """Read the project's file for agents; return its text and its folder. A workspace that cannot be read leaves the
    text out, and the agent is told.
    """
    try:
        workspace = parts.workspace(session.workspace)
        files = read_project_files(workspace)
    except (WorkspaceError, ConfigurationError, ValueError) as error:
        count("context.left_out")
        log.warning("context.left_out", context_source="workspace", reason=str(error))
        return UNREAD, ""
    hidden = tuple(
        replace(file, text=parts.redactor.redact_result(file.text, is_configuration=False)) for file in files
    )
    for file in hidden:
        judged = judge_text(file.text, TextOrigin.CONTEXT_FILE)
        log.info("prompt.prepared", file=file.name, chars=len(file.text), threats=list(judged.threats))
        if judged.threats:
            count("untrusted.suspicious")
            log.warning("untrusted.suspicious", tool="project files", threats=list(judged.threats))
    return render_project_section(hidden, parts.rules.model.window or USUAL_WINDOW), workspace.root if hidden else ""


_STEP = RunStep(
    queue=QueueName.TOOLS,
    suspects=QueueName.SUSPECT_TOOLS,
    after_claim=FaultPoint.PREPARE_AFTER_CLAIM,
    after_commit=FaultPoint.PREPARE_AFTER_COMMIT,
    claim=_claim,
    may_hand_over=lambda _: True,
    do=_prepare,
)
