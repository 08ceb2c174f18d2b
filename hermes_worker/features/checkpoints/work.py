"""Before a call changes files: a checkpoint of the workspace, at most one for each iteration.

A checkpoint that cannot be made holds nothing up: the call runs, and a line in the log says why there is none.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hermes_worker.agent.tools.base import Tool
from hermes_worker.core.abort import AbortSignal
from hermes_worker.features.checkpoints.files.places import find_store
from hermes_worker.features.checkpoints.files.shadow import NotKept
from hermes_worker.features.checkpoints.rules import CheckpointLimits, Moment
from hermes_worker.observe import count, log
from hermes_worker.safety.destruction import is_destructive
from hermes_worker.tasks.context import CallAtWork


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpointing:
    """The directory of checkpoints, and their limits."""

    home: Path
    limits: CheckpointLimits

    def keep_checkpoint(self, call: CallAtWork, abort: AbortSignal) -> None:
        """Make a checkpoint before a claimed call, where there is something to keep. Raises nothing."""
        claim, session = call.claim, call.session
        if not changes_files(call.tool, call.arguments):
            return
        store = find_store(self.home, session.tenant, session.workspace, self.limits, opened=lambda _: call.workspace)
        if store is None:
            return
        began = time.monotonic()
        moment = Moment(
            session_id=session.session_id, run_id=claim.run_id, iteration=claim.iteration, tool=claim.request.name
        )
        try:
            kept = store.keep_checkpoint(moment, should_stop=abort.is_set)
        except NotKept as error:
            count("checkpoint.skipped")
            log.warning("checkpoint.skipped", tool=claim.request.name, reason=str(error))
            return
        if kept is not None:
            count("checkpoint.kept")
            log.debug("checkpoint.kept", files=kept.files, duration_s=round(time.monotonic() - began, 3))


def changes_files(tool: Tool, arguments: Mapping[str, Any]) -> bool:
    """Whether a call may change files of the workspace: as its tool says, or as its command looks."""
    command = arguments.get(tool.spec.command_argument) if tool.spec.command_argument is not None else None
    return tool.spec.changes_files or (isinstance(command, str) and is_destructive(command))
