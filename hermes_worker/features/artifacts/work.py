"""After the end of a run that declared artifacts: read its files, keep their contents, record them.

A gathering is done by one worker at a time and recorded once. A worker that dies in between leaves it to another, which
reads the files again: contents are kept under their hashes, so nothing is there twice.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from hermes_worker.broker.queue import QueueName
from hermes_worker.core.abort import AbortSignal
from hermes_worker.core.effects import GatherArtifacts
from hermes_worker.core.errors import LeaseLost
from hermes_worker.features.artifacts.files import ArtifactQuota, FoundFile, WantedFiles, gather_files, is_here
from hermes_worker.features.artifacts.rules import FILES_MAX, LEFT_OUT_SHOWN_MAX, find_media_type
from hermes_worker.observe import bind_facts, count, log
from hermes_worker.store.artifacts.gatherings import ContentGone, GatheringClaim, Gatherings, KeptFile, LeftOutFile
from hermes_worker.store.rows import Hint
from hermes_worker.system import faults
from hermes_worker.system.faults import FaultPoint
from hermes_worker.tasks.context import Sender
from hermes_worker.tasks.iteration.persistence import persist
from hermes_worker.tasks.leases import Leases
from hermes_worker.tasks.step_runner import begin_step
from hermes_worker.workspaces.base import Workspace, WorkspaceError
from hermes_worker.workspaces.ref import WorkspaceRef

_CLOCK_SLACK_S = 2.0
"""Some file systems keep times in steps of two seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatheringContext:
    """The parts that a worker needs to gather artifacts."""

    gatherings: Gatherings
    keep_content: Callable[[str, bytes], str]
    """Stores a content of a tenant, and returns the hash of its row."""
    sender: Sender
    leases: Leases
    workspace: Callable[[str], Workspace]
    """Opens the workspace that a session's stored description names."""
    file_bytes_max: int
    run_bytes_max: int
    commit_patience_s: float = 600.0


@dataclass(slots=True)
class _Gathered:
    files: list[KeptFile] = field(default_factory=list)
    left_out: list[LeftOutFile] = field(default_factory=list)
    """The first files that were not kept."""
    left_out_total: int = 0


def gather_artifacts(parts: GatheringContext, effect: GatherArtifacts, at: float) -> None:
    """Keep the files of the run that ``effect`` names, if that is still to be done. ``at`` is when its message was
    hinted.

    Safe to deliver any number of times: of all deliveries of the message one gets the claim.
    """
    begin_step(parts, QueueName.TOOLS, Hint(effect=effect, at=at), lambda: _gather_artifacts(parts, effect))


def _gather_artifacts(parts: GatheringContext, effect: GatherArtifacts) -> None:
    claim = parts.gatherings.claim(effect, parts.leases.owner)
    if claim is None:
        count("hint.stale")
        return
    since = time.time() - claim.age_s - _CLOCK_SLACK_S
    faults.pass_point(FaultPoint.GATHER_AFTER_CLAIM, effect.run_id)
    with (
        bind_facts(run_id=effect.run_id),
        # Not under the run's id: the run has ended, and a stop of what it caused does not concern its files.
        parts.leases.hold_claim(claim.token, f"artifacts of {effect.run_id}", may_hand_over=False) as abort,
    ):
        try:
            gathered = _read_artifacts(parts, claim, since, abort)
            faults.pass_point(FaultPoint.GATHER_AFTER_KEEP, effect.run_id)
            settle = partial(_settle, parts, claim, gathered)
            persist(settle, abort, patience_s=parts.commit_patience_s)
        except LeaseLost as lost:
            count("artifacts.refused")
            log.warning("artifacts.refused", reason=str(lost))
            return
        except (WorkspaceError, ContentGone, ValueError) as error:
            _give_up(parts, claim, str(error))
            return
    count("artifacts.gathered")
    log.info("artifacts.gathered", files=len(gathered.files), left_out=gathered.left_out_total)


def _settle(parts: GatheringContext, claim: GatheringClaim, gathered: _Gathered) -> None:
    parts.gatherings.settle(claim, gathered.files, gathered.left_out, left_out_total=gathered.left_out_total)


def _read_artifacts(parts: GatheringContext, claim: GatheringClaim, since: float, abort: AbortSignal) -> _Gathered:
    """Read the files that a run declared. Raises ``WorkspaceError``, ``LeaseLost``, and ``ValueError`` for a
    declaration that cannot be read."""
    found = _Gathered()
    if not claim.patterns:
        raise ValueError("what the run declared cannot be read")
    ref = WorkspaceRef.from_json(claim.workspace)
    if not is_here(ref):
        if not claim.has_calls:
            return found  # no tool worked there, so it was never made
        raise WorkspaceError(
            f"the workspace of the session is not on the worker {parts.leases.name!r}: it was removed, or it is on "
            "another machine, and workers for tools must share it"
        )
    wanted = WantedFiles(patterns=claim.patterns, since=since, file_bytes_max=parts.file_bytes_max)
    room = ArtifactQuota(files=FILES_MAX, bytes=parts.run_bytes_max)
    for each in gather_files(parts.workspace(claim.workspace), wanted, room):
        if abort.is_set():
            raise LeaseLost(f"the claim on the artifacts of {claim.run_id} was lost while they were read")
        if isinstance(each, FoundFile):
            found.files.append(_keep_content(partial(parts.keep_content, claim.tenant), each))
            continue
        found.left_out_total += 1
        if len(found.left_out) < LEFT_OUT_SHOWN_MAX:
            found.left_out.append(LeftOutFile(path=each.path, reason=each.reason))
    return found


def _keep_content(keep: Callable[[bytes], str], file: FoundFile) -> KeptFile:
    return KeptFile(
        path=file.path,
        sha256=hashlib.sha256(file.content).hexdigest(),
        size=len(file.content),
        media_type=find_media_type(file.path),
        modified_at=file.modified_at,
        blob_hash=keep(file.content),
    )


def _give_up(parts: GatheringContext, claim: GatheringClaim, reason: str) -> None:
    try:
        has_failed = parts.gatherings.fail_gathering(claim, reason)
    except LeaseLost as lost:
        count("artifacts.refused")
        log.warning("artifacts.refused", reason=str(lost))
        return
    if has_failed:
        count("artifacts.failed")
    log.warning("artifacts.failed", reason=reason, attempt=claim.attempt, is_last=has_failed)
