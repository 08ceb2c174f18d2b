"""The tools that a script calls while its own call is under way (``core.inner_calls``).

Each passes what any call passes: hooks, permission, the fitting of its arguments, redaction. What may have an effect is
written into the row of the script's call before it begins, under that call's token.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from hermes_worker.agent.tools.base import Tool, ToolContext, ToolResult
from hermes_worker.agent.tools.catalog import UnknownTool
from hermes_worker.agent.tools.dispatch import run_inner
from hermes_worker.agent.tools.results import build_error_result
from hermes_worker.core.abort import AbortSignal
from hermes_worker.core.errors import ConfigurationError, LeaseLost, UnavailableError
from hermes_worker.core.inner_calls import ABOUT_CHARS_MAX, SCRIPT_TOOLS, InnerCall
from hermes_worker.core.messages import ToolRequest, dump_canonical_json
from hermes_worker.core.replay import Replay
from hermes_worker.observe import count, log
from hermes_worker.store.runs.calls import CallClaim
from hermes_worker.store.runs.runs import SessionContext
from hermes_worker.tasks.calls.permission import GateContext, ask_about_rewound_call, wait_for_permission
from hermes_worker.tasks.hooks.rewriting import ask_before_inner_call, build_result_rewriter
from hermes_worker.tasks.iteration.persistence import persist
from hermes_worker.tasks.iteration.planning import read_tool_names

if TYPE_CHECKING:
    from hermes_worker.tasks.context import WorkerContext

_NOT_FOR_SCRIPTS = ("background", "pty", "notify_on_complete", "watch_patterns")
"""Arguments of ``terminal`` that a script may not use."""
_GONE = "the script was ended: its worker lost the right to this call"


@dataclass(slots=True)
class ClaimedInnerTools:
    """The tools that the script of one claimed call may call. Used by one thread."""

    parts: WorkerContext
    claim: CallClaim
    session: SessionContext
    abort: AbortSignal
    _begun: list[InnerCall] = field(default_factory=list)

    @property
    def parameters(self) -> Mapping[str, Sequence[str]]:
        offered, catalog = read_tool_names(self.session.tools), self.parts.catalog.for_session(self.session.tools)
        return {
            name: tuple(catalog.get_spec(name).parameters["properties"])
            for name in SCRIPT_TOOLS
            if name in offered and name in catalog.names
        }

    def call(self, name: str, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        """Call a tool for a program of the model. Raises nothing: ``is_unknown`` of the result says that the claim is
        gone."""
        count("inner_call.asked")
        try:
            tool = self.parts.catalog.for_session(self.session.tools).get(name)
            return self._make_call(tool, arguments, context)
        except (UnknownTool, ConfigurationError) as error:
            return build_error_result(str(error))
        except (LeaseLost, UnavailableError) as error:
            log.warning("inner_call.refused", tool=name, reason=str(error))
            return replace(build_error_result(_GONE), is_unknown=True)

    def _make_call(self, tool: Tool, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        if any(arguments.get(word) for word in _NOT_FOR_SCRIPTS) and tool.spec.command_argument is not None:
            return build_error_result("a script runs commands in the foreground only; call terminal without a script")
        if not self.parts.leases.is_surely_held(self.claim.token):
            raise LeaseLost("the lease may have lapsed")
        request = ToolRequest(id=self.claim.request.id, name=tool.spec.name, arguments=dump_canonical_json(arguments))
        # What a person allowed was the script, and not every command that it may come up with.
        inner = replace(self.claim, request=request, is_approved=False, is_rewritten=False, has_asked=False)
        inner, stand_in = ask_before_inner_call(self.parts, inner, self.session, self.abort, context.idempotency_key)
        if stand_in is not None:
            return stand_in
        begins = self._begin_callback(inner)
        result = run_inner(
            tool,
            inner.request.arguments,
            context,
            gate=partial(self._check_gates, inner, context, begins),
            revise=build_result_rewriter(self.parts, inner, self.session, self.abort, key=context.idempotency_key),
        )
        if self._begun:
            self._begun[-1] = replace(self._begun[-1], has_ended=True)
        return replace(result, is_untrusted=result.is_untrusted or tool.spec.is_untrusted, is_unknown=False)

    def _check_gates(
        self,
        claim: CallClaim,
        context: ToolContext,
        begins: Callable[[Tool, Mapping[str, Any]], None],
        tool: Tool,
        arguments: Mapping[str, Any],
    ) -> ToolResult | None:
        call = GateContext(parts=self.parts, claim=claim, tool=tool, arguments=arguments, context=context)
        refused = ask_about_rewound_call(call) or wait_for_permission(call)
        if refused is None:
            begins(tool, arguments)
        return refused

    def _begin_callback(self, claim: CallClaim) -> Callable[[Tool, Mapping[str, Any]], None]:
        """Build the callback that commits that the call begins, where it may have an effect. The callback raises
        ``LeaseLost``, ``UnavailableError``.
        """

        def note_begin(tool: Tool, arguments: Mapping[str, Any]) -> None:
            if tool.spec.replay_of(arguments) is Replay.PURE:
                return
            about = self.parts.redactor.redact_result(claim.request.arguments)[:ABOUT_CHARS_MAX]
            self._begun.append(InnerCall(tool=tool.spec.name, about=about))
            note = partial(self.parts.rows.calls.record_inner_calls, self.claim, tuple(self._begun))
            persist(note, self.abort, patience_s=self.parts.commit_patience_s)

        return note_begin
