"""``cronjob``: an agent's hand on scheduled jobs (reference, around §1.11). One tool for all of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Protocol

from hermes_worker.core.errors import HermesError
from hermes_worker.core.messages import canonical_json
from hermes_worker.core.replay import Replay
from hermes_worker.tools.base import ToolContext, ToolResult, ToolSpec
from hermes_worker.tools.results import error_result

CRONJOB_TOOL: Final = "cronjob"
_ALIASES: Final = {"run_now": "run", "trigger": "run", "delete": "remove", "rm": "remove"}


class JobDesk(Protocol):
    """Keeps the jobs. ``scheduler.desk``."""

    def act(self, action: str, arguments: Mapping[str, Any], *, session_id: str) -> Mapping[str, Any]:
        """Do one of the tool's actions; returns what the model is told. Raises ``HermesError``, whose message may be
        shown to it."""
        ...


_ACTIONS: Final = ("create", "list", "update", "pause", "resume", "remove", "run")
_SPEC = ToolSpec(
    name=CRONJOB_TOOL,
    description=(
        "Schedule work for later: each run of a job is a fresh agent without this conversation, so its prompt must say "
        "everything. Its final answer is delivered by itself. Actions: create (schedule, and prompt or skills; or "
        "script with no_agent), list, update, pause, resume, remove, run (now, beside the schedule). "
        "Schedules: '30m' or a timestamp (once), 'every 2h', 'every day at 9am', '0 9 * * 1-5'."
    ),
    parameters={
        "type": "object",
        "properties": {
            "action": {"type": "string", "enum": [*_ACTIONS, *_ALIASES]},
            "job_id": {"type": "string", "description": "Id or name; for all actions but create and list."},
            "schedule": {"type": "string"},
            "timezone": {"type": "string", "description": "IANA name of the clock to go by. Default: UTC."},
            "prompt": {"type": "string", "description": "What is to be done, complete in itself."},
            "name": {"type": "string"},
            "repeat": {"type": "integer", "description": "Runs altogether. Default: once, or for ever if recurring."},
            "deliver": {
                "type": "string",
                "description": "Targets with commas between. Default: this chat, else a file.",
            },
            "skills": {"type": "array", "items": {"type": "string"}, "description": "[] on update takes them away."},
            "model": {
                "type": "object",
                "properties": {name: {"type": "string"} for name in ("model", "provider", "base_url")},
                "description": "Pin the job to a model. Leave it out to use the configured one.",
            },
            "script": {
                "type": "string",
                "description": "A file below the installation's 'scripts' whose output the run is given.",
            },
            "no_agent": {"type": "boolean", "description": "The script is the job: its output is delivered."},
            "context_from": {
                "type": "array",
                "items": {"type": "string"},
                "description": "Ids of jobs whose latest answer the run is given.",
            },
            "enabled_toolsets": {"type": "array", "items": {"type": "string"}},
            "workdir": {"type": "string", "description": "A directory of this workspace to work in."},
            "attach_to_session": {"type": "boolean", "description": "Note every answer in this conversation, too."},
            "reason": {"type": "string", "description": "Why the job is paused."},
            "include_disabled": {"type": "boolean", "description": "For list. Default: true."},
        },
        "required": ["action"],
    },
    toolset="cronjob",
    # Creating or running a job twice would be two jobs, or two runs.
    is_untrusted=False,
    replay=Replay.ONCE,
    timeout_s=30,
)


class CronjobTool:
    """Hands what the model asks for to a desk; without one it only tells models that it exists."""

    def __init__(self, desk: JobDesk | None = None) -> None:
        self._desk = desk

    @property
    def spec(self) -> ToolSpec:
        return _SPEC

    def run(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        if self._desk is None:
            return error_result("jobs cannot be scheduled from here")
        action = _ALIASES.get(arguments["action"], arguments["action"])
        wanted = {name: value for name, value in arguments.items() if name != "action"}
        if wanted.get("workdir"):
            # Nobody gets at another directory by asking for it in a job.
            wanted["workdir"] = str(context.workspace.resolve(wanted["workdir"]))
        try:
            told = self._desk.act(action, wanted, session_id=context.session_id)
        except HermesError as error:
            return error_result(str(error))
        return ToolResult(text=canonical_json({"success": True, **told}))
