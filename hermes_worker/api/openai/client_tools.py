"""Tools of the client, and the results that it brings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from hermes_worker.api.context import ApiContext
from hermes_worker.api.errors import ApiError, invalid
from hermes_worker.core.client_tools import ClientCall, ClientCallId, ClientTool, HandedCall, HandedReply
from hermes_worker.core.principals import Principal
from hermes_worker.core.questions import ANSWER_CHARS_MAX
from hermes_worker.core.tool_schemas import NO_ARGUMENTS, OWN_NAME_CHARS_MAX
from hermes_worker.services.client_tools import list_client_tool_names
from hermes_worker.services.submission import CLIENT_TOOLS_MAX
from hermes_worker.store.rows import Hint
from hermes_worker.store.runs.client_calls import ClientCalls
from hermes_worker.store.runs.runs import RunNotFound
from hermes_worker.store.runs.waits import NothingAsked, NotWaiting
from hermes_worker.stream.live import Live

_FUNCTION = {
    "name": {"type": "string", "minLength": 1, "maxLength": OWN_NAME_CHARS_MAX},
    "description": {"type": ["string", "null"]},
    "parameters": {"type": ["object", "null"]},
    "strict": {"type": ["boolean", "null"]},
}
_KIND = {"const": "function"}
_NESTED = {"type": "object", "properties": _FUNCTION, "required": ["name"]}
_ITEMS = {"type": ["array", "null"], "maxItems": CLIENT_TOOLS_MAX}
CHAT_TOOLS: Final = {
    **_ITEMS,
    "items": {"type": "object", "properties": {"type": _KIND, "function": _NESTED}, "required": ["type", "function"]},
}
RESPONSE_TOOLS: Final = {
    **_ITEMS,
    "items": {"type": "object", "properties": {"type": _KIND, **_FUNCTION}, "required": ["type", "name"]},
}
TOOL_CHOICE: Final = {
    "description": "'none' for no tools of the client; 'required', or a function by name, to have the model call one "
    "of the client's tools before it answers. The agent's own tools, its budget and its approvals stay as they are."
}


# --- definitions -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class BroughtTools:
    """The tools that a request brings."""

    tools: tuple[ClientTool, ...] = ()
    forced: tuple[str, ...] = ()
    """Names of those of which the model has to call one; empty where it is free."""


def read_tools(given: object, choice: object, *, nested: bool) -> BroughtTools:
    """Parse the tools that a request brings; ``nested`` as in chat completions. Raises ``ApiError``."""
    if given is not None and not isinstance(given, list):
        raise invalid("tools", "Invalid 'tools': it must be a list.", "invalid_type")
    if len(given or ()) > CLIENT_TOOLS_MAX:
        raise invalid("tools", f"Invalid 'tools': it has more than {CLIENT_TOOLS_MAX}.")
    found = tuple(_parse_tool(tool, f"tools[{number}]", nested=nested) for number, tool in enumerate(given or ()))
    if choice == "none":
        return BroughtTools()
    if choice in (None, "auto"):
        return BroughtTools(tools=found)
    return BroughtTools(tools=found, forced=_read_forced(choice, [tool.name for tool in found]))


def _read_forced(choice: object, names: Sequence[str]) -> tuple[str, ...]:
    """Read which tools a ``tool_choice`` forces, of those that the request brings. Raises ``ApiError``."""
    name = _read_function_name(choice)
    if choice != "required" and name is None:
        kind = choice.get("type") if isinstance(choice, dict) else choice
        message = (
            f"{str(kind)[:80]!r} is not supported as 'tool_choice': it must be 'auto', 'none', 'required' or a "
            "function that the request brings."
        )
        raise invalid("tool_choice", message, "unsupported_parameter")
    if not names:
        message = "'tool_choice' forces a call, and the request brings no 'tools': only the client's own can be forced."
        raise invalid("tool_choice", message)
    if name is not None and name not in names:
        raise invalid("tool_choice", f"'tool_choice' names {name[:80]!r}, which is not among the request's 'tools'.")
    return tuple(names) if name is None else (name,)


def _read_function_name(choice: object) -> str | None:
    if not isinstance(choice, dict) or choice.get("type") != "function":
        return None
    function = choice.get("function", choice)
    name = function.get("name") if isinstance(function, dict) else None
    return name if isinstance(name, str) else None


def _parse_tool(given: object, where: str, *, nested: bool) -> ClientTool:
    kind = given.get("type") if isinstance(given, dict) else None
    if not isinstance(given, dict) or kind != "function":
        what = f"has the type {kind[:80]!r} and is no function" if isinstance(kind, str) else "is no function"
        message = f"'{where}' {what}. Only functions can be brought; the agent has other tools of its own."
        raise invalid(f"{where}.type", message, "unsupported_parameter")
    function = given.get("function") if nested else given
    where = f"{where}.function" if nested else where
    if not isinstance(function, dict):
        raise invalid(where, f"Invalid '{where}': it must be an object.", "invalid_type")
    name, description = function.get("name"), function.get("description") or ""
    parameters = function.get("parameters")
    parameters = NO_ARGUMENTS if parameters in (None, {}) else parameters
    if not isinstance(name, str) or not isinstance(description, str):
        raise invalid(where, f"Invalid '{where}': 'name' and 'description' must be strings.", "invalid_type")
    if not isinstance(parameters, dict):
        message = f"Invalid '{where}.parameters' of the tool {name[:80]!r}: it must be an object."
        raise invalid(f"{where}.parameters", message, "invalid_type")
    return ClientTool(name=name, description=description, parameters=parameters)


def tools_differ(param: str) -> ApiError:
    """Make the error for a named session whose client tools are others."""
    message = (
        "The session has other tools of its client, and the tools of a session never change. "
        "Send the tools with which it began, or begin another session."
    )
    return invalid(param, message, "session_has_other_tools")


def build_chat_calls(run_id: str, iteration: int, handed: Sequence[HandedCall]) -> list[dict[str, Any]]:
    """Write calls in the form of chat completions."""
    return [
        {
            "id": str(ClientCallId(run_id=run_id, iteration=iteration, position=call.position)),
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }
        for call in handed
    ]


# --- results ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class BroughtResult:
    """The result of a call, as its client reports it."""

    call_id: str
    text: str
    where: str
    """Its place in the request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenResults:
    """The part of a run that begins with results of its client."""

    run_id: str
    session_id: str
    part: int
    """The number of the part that begins with them."""
    start: HandedReply
    hints: Sequence[Hint]


def take_results(
    context: ApiContext, caller: Principal, brought: Sequence[BroughtResult], forced: Sequence[str] = ()
) -> TakenResults:
    """Continue a run with results of its client's tools; the model then has to call one of ``forced``. Idempotent: the
    same results again name the same part of the run. Raises ``ApiError``."""
    named = _select_newest_reply(brought)
    (run_id, iteration) = next((call.run_id, call.iteration) for call in named)
    try:
        context.tenants.require_run(caller.tenant, run_id)
    except RunNotFound:
        refuse_unknown(brought[-1])
    if forced and set(forced) - list_client_tool_names(context.client, run_id):
        raise tools_differ("tool_choice")
    calls = ClientCalls(context.client.database)
    hints: Sequence[Hint] = ()
    while due := _select_due(calls, run_id, iteration, named):
        try:
            hints = calls.settle_calls(run_id, due, by=caller.display_name, forced_tools=forced)
        except (NothingAsked, NotWaiting):
            continue  # another request was faster; what it brought is looked at now
    done = calls.load_handovers(run_id).done
    part = next(number for number, one in enumerate(done, start=1) if one.iteration == iteration)
    session = context.client.views.load_run(run_id).session
    return TakenResults(
        run_id=run_id, session_id=session.name or session.id, part=part, start=done[part - 1], hints=hints
    )


def tell_taken(context: ApiContext, taken: TakenResults) -> None:
    """Tell workers and watchers, best effort."""
    context.client.publisher.send(taken.hints)
    Live(context.client.redis).nudge(taken.run_id)


def _select_newest_reply(brought: Sequence[BroughtResult]) -> Mapping[ClientCallId, BroughtResult]:
    """Keep the results of the newest reply: clients send earlier ones again with the rest of the conversation."""
    found: dict[ClientCallId, BroughtResult] = {}
    for result in brought:
        try:
            found[ClientCallId.parse(result.call_id)] = result
        except ValueError:
            if result is brought[-1]:
                refuse_unknown(result)
    newest = ClientCallId.parse(brought[-1].call_id)
    return {
        call: result
        for call, result in found.items()
        if (call.run_id, call.iteration) == (newest.run_id, newest.iteration)
    }


def _select_due(
    calls: ClientCalls, run_id: str, iteration: int, named: Mapping[ClientCallId, BroughtResult]
) -> dict[int, str]:
    """Match results with the waits that they answer; empty where all are answered with the same already. Raises
    ``ApiError``."""
    asked = {call.position: call for call in calls.load_handovers(run_id).calls if call.iteration == iteration}
    for name, result in named.items():
        if name.position not in asked:
            refuse_unknown(result)
        if asked[name.position].outcome in ("expired", "cancelled"):
            _refuse_late(result)
        if len(result.text) > ANSWER_CHARS_MAX:
            message = f"Invalid '{result.where}': a result has at most {ANSWER_CHARS_MAX:,} characters."
            raise invalid(result.where, message, "text_too_long")
    brought = {name.position: result for name, result in named.items()}
    open_ones = [call for call in asked.values() if call.outcome is None]
    if missing := [call for call in open_ones if call.position not in brought]:
        _refuse_part(run_id, missing)
    settled = [call for call in asked.values() if call.outcome == "answered" and call.position in brought]
    stored = calls.load_results(run_id, settled)
    for call in settled:
        if stored.get(call.wait_id) != brought[call.position].text:
            _refuse_other(brought[call.position])
    return {call.wait_id: brought[call.position].text for call in open_ones}


def refuse_unknown(result: BroughtResult) -> NoReturn:
    """Raise ``ApiError`` for a result whose call is unknown."""
    message = f"'{result.where}' is the result of {result.call_id[:80]!r}, and no tool call of that id waits for one."
    raise invalid(result.where, message, "tool_call_not_found")


def _refuse_late(result: BroughtResult) -> NoReturn:
    message = (
        f"'{result.where}' comes too late: the run no longer waits for {result.call_id[:80]!r}. "
        "Send the conversation again, up to the user's last message."
    )
    raise invalid(result.where, message, "tool_call_over")


def _refuse_part(run_id: str, missing: Sequence[ClientCall]) -> NoReturn:
    names = [str(ClientCallId(run_id=run_id, iteration=one.iteration, position=one.position)) for one in missing]
    message = f"The results of all calls of a reply are brought together; there is none of {', '.join(names[:10])}."
    raise invalid("tool_call_id", message, "tool_results_missing")


def _refuse_other(result: BroughtResult) -> NoReturn:
    message = f"'{result.where}' differs from the result that was brought of {result.call_id[:80]!r} before."
    raise invalid(result.where, message, "tool_results_differ")
