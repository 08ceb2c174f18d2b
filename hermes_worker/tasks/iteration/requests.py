"""The request for a claimed model call: the same bytes on every worker, up to what is new (invariant I7)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from hermes_worker.agent.prompt.amendments import amend_messages, amend_tools
from hermes_worker.agent.prompt.cache_markers import add_cache_markers
from hermes_worker.agent.prompt.compactors import SUMMARY, Compactor
from hermes_worker.agent.prompt.pipeline import build_messages
from hermes_worker.agent.prompt.system import rename_model
from hermes_worker.core.compactions import append_context, select_visible
from hermes_worker.core.messages import Message, ModelRequest, Role, build_user_body, dump_canonical_json
from hermes_worker.core.model_capabilities import CacheLayout, WireNeeds
from hermes_worker.core.notices import SUMMARY_REQUEST
from hermes_worker.core.recovery_state import Amendment, RecoveryState
from hermes_worker.models.catalog import CacheTarget, Wire, choose_cache_layout, find_thinker, find_wire_needs
from hermes_worker.models.chain import ModelRoute
from hermes_worker.store.runs.runs import SessionContext
from hermes_worker.tasks.iteration.planning import read_tool_texts


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOptions:
    """Options of model calls that hold for every model."""

    endpoint: str | None = None
    """The endpoint that this worker asks, as ``models.identity`` names it; ``None`` to serve every run, whichever
    endpoint it was given to.
    """
    window: int | None = None
    """Context window in tokens; ``None`` when it is not set."""
    output_tokens_max: int | None = None
    """``None`` leaves it to the provider."""
    reasoning_effort: str | None = None
    """``None`` leaves it to the wire."""
    attempts_max: int = 3
    """Calls that one iteration may make of one provider before it is given up on."""
    compacts: bool = True
    """Whether long conversations are compacted; otherwise their runs fail."""
    compactor: Compactor = SUMMARY
    """Chooses how a conversation is made shorter."""
    compact_at: float = 0.5
    """Share of the context window from which on a conversation is compacted; small windows are filled further."""
    compact_models_at: Sequence[tuple[str, float]] = ()
    """Such shares for single models, by pattern; the first pattern that matches counts, without the adjustment for
    small windows.
    """


def build_request(
    session: SessionContext,
    rows: Sequence[Message],
    route: ModelRoute,
    memory: RecoveryState,
    *,
    is_summary: bool,
    options: ModelOptions,
) -> ModelRequest:
    """Build the request from ``rows``, the transcript. Pure. Raises ``ValueError`` when a row makes no sense."""
    # Scaffold rows are sent and never stored. They go through the same repairs as the rest.
    sent_along = (*memory.counters.scaffold, *([build_user_body(SUMMARY_REQUEST)] if is_summary else []))
    scaffold = [_build_scaffold_row(body, number) for number, body in enumerate(sent_along, start=len(rows) + 1)]
    prepared = build_messages(
        [*append_context(select_visible(rows), memory.context), *scaffold], _find_wire_needs(route, memory.amendments)
    )
    messages = [_build_system_row(session.system_prompt, route if memory.provider else None), *prepared]
    amended = amend_messages(messages, memory.amendments, image_side_px_max=memory.image_side_px_max)
    return ModelRequest(
        model=route.model,
        messages=add_cache_markers(amended, _choose_cache_layout(route)),
        tools=() if is_summary else amend_tools(read_tool_texts(session.tools), memory.amendments),
        forced_tools=() if is_summary else memory.forced_tools,
        session_id=session.session_id,
        output_tokens_max=memory.output_tokens_max or options.output_tokens_max,
        reasoning_effort=options.reasoning_effort,
        replays_reasoning=Amendment.NO_REASONING_REPLAY not in memory.amendments,
        window=options.window,
    )


def _build_scaffold_row(body: str, seq: int) -> Message:
    return Message(seq=seq, role=Role(json.loads(body)["role"]), body=body)


@lru_cache(maxsize=256)
def _build_system_row(system_prompt: str, stand_in: ModelRoute | None) -> str:
    """The stored text; only its lines that name the model change while another provider stands in."""
    text = (
        system_prompt if stand_in is None else rename_model(system_prompt, model=stand_in.model, provider=stand_in.name)
    )
    return dump_canonical_json({"role": "system", "content": text})


@lru_cache(maxsize=256)
def _find_wire_needs(route: ModelRoute, amendments: frozenset[Amendment]) -> WireNeeds:
    needs = find_wire_needs(provider=route.name, model=route.model, host=route.host, wire=route.wire)
    if Amendment.NO_REASONING_REPLAY in amendments:
        keeps_details = needs.keeps_reasoning_details and route.wire != Wire.CHAT_COMPLETIONS
        return replace(needs, echoes_reasoning=False, keeps_reasoning_details=keeps_details)
    if Amendment.REASONING_ECHO in amendments:
        thinker = find_thinker(provider=route.name, model=route.model, host=route.host)
        return replace(needs, echoes_reasoning=True, thinker=thinker)
    return needs


@lru_cache(maxsize=256)
def _choose_cache_layout(route: ModelRoute) -> CacheLayout | None:
    target = CacheTarget(
        provider=route.name,
        model=route.model,
        host=route.host,
        is_anthropic_wire=route.wire == Wire.ANTHROPIC_MESSAGES,
    )
    return choose_cache_layout(target)
