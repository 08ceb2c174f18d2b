"""``cronjob``: lets an agent manage scheduled jobs. One tool for all actions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Protocol

from hermes_worker.agent.tools.base import ToolContext, ToolResult
from hermes_worker.agent.tools.builtin import CRONJOB, JOB_ALIASES
from hermes_worker.agent.tools.results import build_error_result
from hermes_worker.core.errors import HermesError
from hermes_worker.core.messages import dump_canonical_json


class JobManager(Protocol):
    """Keeps the jobs. ``scheduler.agent_jobs``."""

    def run_action(
        self, action: str, arguments: Mapping[str, Any], *, session_id: str, tenant: str
    ) -> Mapping[str, Any]:
        """Do one of the tool's actions with a tenant's jobs; returns what the model is told. Raises ``HermesError``,
        whose message may be shown to it."""


class CronjobTool:
    """Passes the model's request on to the ``JobManager``."""

    def __init__(self, jobs: JobManager) -> None:
        self._jobs = jobs

    spec: Final = CRONJOB

    def run(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        action = JOB_ALIASES.get(arguments["action"], arguments["action"])
        wanted = {name: value for name, value in arguments.items() if name != "action"}
        if wanted.get("workdir"):
            # A job must not be the way to another directory.
            wanted["workdir"] = str(context.workspace.resolve(wanted["workdir"]))
        try:
            told = self._jobs.run_action(action, wanted, session_id=context.session_id, tenant=context.origin.tenant)
        except HermesError as error:
            return build_error_result(str(error))
        return ToolResult(text=dump_canonical_json({"success": True, **told}))
