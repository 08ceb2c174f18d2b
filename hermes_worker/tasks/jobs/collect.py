"""Collect the input of a job's run: run its script, read its skills, and leave the results for a scheduler to decide
on.
"""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from hermes_worker.broker.queue import QueueName
from hermes_worker.channels.catalog import LOCAL
from hermes_worker.channels.dispatcher import Dispatcher
from hermes_worker.channels.errors import DeliveryError
from hermes_worker.channels.exchange import Part
from hermes_worker.channels.targets import Target
from hermes_worker.core.abort import AbortSignal
from hermes_worker.core.errors import LeaseLost, UnavailableError
from hermes_worker.core.offered_skills import SkillLibrary
from hermes_worker.core.principals import find_tenant_home
from hermes_worker.local.paths import get_job_data_dir, holds_state
from hermes_worker.observe import bind_facts, count, log
from hermes_worker.safety.redaction import Redactor, redact
from hermes_worker.store.jobs.executions import ExecutionClaim, Executions, ExecutionState, build_collect_hint
from hermes_worker.system import faults
from hermes_worker.system.faults import FaultPoint
from hermes_worker.system.plainfiles import read_plain
from hermes_worker.tasks.context import Sender
from hermes_worker.tasks.iteration.persistence import persist
from hermes_worker.tasks.leases import Leases
from hermes_worker.tasks.step_runner import begin_step
from hermes_worker.workspaces.base import EXCESS_SENTENCES, Ending, WorkspaceError
from hermes_worker.workspaces.local import LocalWorkspace
from hermes_worker.workspaces.sandbox.backends import Sandbox
from hermes_worker.workspaces.sandbox.network import RunOrigin
from scheduler.definition import JobSpec
from scheduler.jobtext import (
    SCRIPT_CHARS_MAX,
    CollectedTexts,
    OutputDocument,
    ScriptResult,
    format_failure_details,
    make_output_path,
    render_output,
)
from scheduler.lifecycle import stops_this_service

_HELD_EVERY_S = 2.0
"""How often a running script's claim is checked, in seconds: the job may have been stopped."""
_SCRIPT_BYTES_MAX = 1_000_000
JOB_DATA_VARIABLE = "HERMES_JOB_DATA"
"""The variable with the path of the directory that a job's script may write to: a job never changes scripts themselves.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectingContext:
    """The parts that a worker needs to collect for jobs."""

    executions: Executions
    dispatcher: Dispatcher
    sender: Sender
    leases: Leases
    home: Path
    skills: SkillLibrary
    environ: Mapping[str, str] = field(repr=False)
    env_passthrough: Collection[str]
    script_timeout_s: float
    sandbox: Sandbox | None = None
    """``None``: scripts can do whatever the worker's user can."""
    free_bytes_min: int = 0
    """Bytes that must be free on the disk of a script's directory, before it begins and while it runs."""
    commit_patience_s: float = 600.0
    redactor: Redactor = field(default_factory=Redactor)
    """Hides secrets in what scripts print."""
    umask: int | None = None
    """Permission bits that new files of scripts do not get; ``None`` for the worker's own umask."""


def collect(parts: CollectingContext, firing_id: int, at: float) -> None:
    """Do the execution of a firing, if it is still to be done. ``at`` is when its message was hinted.

    Safe to deliver any number of times: of all deliveries one gets the claim, and it is never given out again.
    """
    begin_step(parts, QueueName.TOOLS, build_collect_hint(firing_id, at), lambda: _collect(parts, firing_id))


def _collect(parts: CollectingContext, firing_id: int) -> None:
    claim = parts.executions.claim(firing_id, parts.leases.owner)
    if claim is None:
        count("hint.stale")
        return
    count("execution.claimed")
    faults.pass_point(FaultPoint.COLLECT_AFTER_CLAIM)
    with (
        bind_facts(job_id=claim.job_id, firing_id=firing_id),
        parts.leases.hold_claim(claim.token, f"firing {firing_id}", may_hand_over=False) as abort,
    ):
        # Frozen between the claim and here, this process may have lost it by now. What has not begun is given back.
        write = partial(parts.executions.release, claim)
        state = None
        if parts.leases.is_surely_held(claim.token):
            collected = _collect_texts(parts, claim, _stop_check(parts, claim, abort))
            failed = collected.error is not None or (collected.script is not None and not collected.script.is_success)
            state = ExecutionState.FAILED if failed else ExecutionState.COMPLETED
            write = partial(parts.executions.finish, claim, state, collected.to_json())
        try:
            persist(write, abort, patience_s=parts.commit_patience_s)
        except LeaseLost as lost:
            log.warning("execution.refused", reason=str(lost))
            return
    if state is not None:
        count("execution.finished")
        log.info("execution.finished", state=state.value)


def _stop_check(parts: CollectingContext, claim: ExecutionClaim, abort: AbortSignal) -> Callable[[], bool]:
    """Build the check whether to give up: the claim is lost, or a later slot took it back."""
    look_at = time.monotonic() + _HELD_EVERY_S
    is_over = False

    def stops() -> bool:
        nonlocal look_at, is_over
        if not is_over and time.monotonic() >= look_at:
            with suppress(UnavailableError):  # it cannot have been taken back meanwhile
                is_over = not parts.executions.is_held(claim)
            look_at = time.monotonic() + _HELD_EVERY_S
        return is_over or abort.is_set()

    return stops


def _collect_texts(parts: CollectingContext, claim: ExecutionClaim, stops: Callable[[], bool]) -> CollectedTexts:
    spec = JobSpec.from_json(claim.definition)
    found = parts.skills.load_named(claim.tenant, spec.skills)
    try:
        script = _run_script(parts, claim, spec, stops) if spec.script is not None else None
    except (WorkspaceError, OSError) as error:
        return CollectedTexts(error=redact(str(error)))
    if script is not None and spec.no_agent:
        _keep_document(parts, claim, spec, script)
    return CollectedTexts(
        script=script,
        skills=found.texts,
        missing_skills=found.missing,
        skills_hash=found.set_hash,
    )


# --- scripts ---------------------------------------------------------------------------------------------------------


def _run_script(
    parts: CollectingContext, claim: ExecutionClaim, spec: JobSpec, stops: Callable[[], bool]
) -> ScriptResult:
    """Run the script of a job. Raises ``WorkspaceError``, ``OSError``."""
    home = find_tenant_home(parts.home, claim.tenant)
    path = resolve_script_path(home / "scripts", spec.script or "")
    if stops_this_service(read_plain(path, bytes_max=_SCRIPT_BYTES_MAX).decode("utf-8", "replace")):
        raise WorkspaceError("Blocked: the script contains a command that stops or restarts this service")
    data = get_job_data_dir(home, claim.job_id)
    data.mkdir(mode=0o700, parents=True, exist_ok=True)
    begins_in = Path(spec.directory).resolve() if spec.no_agent and spec.directory else path.parent
    is_among_scripts = begins_in.is_relative_to((home / "scripts").resolve())
    if not is_among_scripts and holds_state(parts.home, begins_in, claim.tenant):
        raise WorkspaceError(f"{str(begins_in)!r} holds the state of hermes-worker; choose another directory")
    workspace = LocalWorkspace(
        str(data if is_among_scripts else begins_in),
        base_env=parts.environ,
        env_passthrough=parts.env_passthrough,
        sandbox=parts.sandbox.show_path(str(path.parent), writable=str(data)) if parts.sandbox else None,
        free_bytes_min=parts.free_bytes_min,
        umask=parts.umask,
    )
    workspace.require_free_space()
    interpreter = "/bin/bash" if path.suffix in (".sh", ".bash") else sys.executable
    ran = workspace.execute(
        f"cd {shlex.quote(str(begins_in))} && {shlex.join([interpreter, str(path)])}",
        cwd=None,
        env={JOB_DATA_VARIABLE: str(data)},
        timeout_s=parts.script_timeout_s,
        output_bytes_max=SCRIPT_CHARS_MAX,
        should_stop=stops,
        has_own_errors=True,
        origin=RunOrigin(source="cron", asked=spec.network, tenant=claim.tenant),
    )
    stderr = ran.errors.decode("utf-8", "replace")
    if ran.excess is not None:
        stderr = f"{stderr.rstrip()}\n{EXCESS_SENTENCES[ran.excess]}"
    return ScriptResult(
        stdout=parts.redactor.redact_printed(ran.output.decode("utf-8", "replace").strip()),
        stderr=parts.redactor.redact_printed(stderr.strip()),
        exit_code=None if ran.ending is Ending.TIMED_OUT else ran.exit_code,
    )


def resolve_script_path(scripts: Path, name: str) -> Path:
    """The file of a script, which must lie below ``scripts`` when links are followed. Raises ``WorkspaceError``."""
    try:
        root = scripts.resolve(strict=True)
        path = (root / name).resolve(strict=True)
    except OSError:
        raise WorkspaceError(f"there is no script {name!r} below 'scripts' in the home directory") from None
    if not path.is_relative_to(root) or not path.is_file():
        raise WorkspaceError(f"the script {name!r} is not a file below 'scripts' in the home directory")
    return path


def _keep_document(parts: CollectingContext, claim: ExecutionClaim, spec: JobSpec, script: ScriptResult) -> None:
    """Keep the output of a job without an agent like the documents of runs. Best effort: the output is in its row
    too.
    """
    at = datetime.fromtimestamp(claim.at, UTC)
    document = OutputDocument(
        job_id=claim.job_id,
        job_name=claim.name,
        schedule=str(spec.schedule.get("display", "")),
        ran_at=at,
        prompt="",
        response=script.stdout,
        failure=None if script.is_success else format_failure_details(script),
        is_script_only=True,
    )
    part = Part(text=render_output(document), idempotency_key=claim.token, title=claim.name)
    name = str(make_output_path(claim.job_id, at))
    outcome = parts.dispatcher.send(part, Target(platform=LOCAL, chat=""), at=at, file_name=name)
    if isinstance(outcome, DeliveryError):
        log.warning("output.not_kept", reason=outcome.message)
