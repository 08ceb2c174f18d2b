"""Deferred tools: tools that a session has and its model is not shown until it searches for them. Pure.

A session with hundreds of tools would send all their definitions with each request. Where the deferrable ones would
take more than a tenth of the model's window, the session stores them marked, with three tools that lead to them. That
is decided once, when the session begins, so the beginning of every prompt keeps its bytes (invariant I7). A call
through ``tool_call`` is the call that it names, from its row on: replay class, segment, permission and hooks are those
of the tool. Only the transcript holds what the model wrote.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

from hermes_worker.core.json_values import parse_object
from hermes_worker.core.messages import dump_canonical_json

DEFERRED_KEY: Final = "_deferred"
"""Marks a stored definition that models are not sent."""
_MARK: Final = f'"{DEFERRED_KEY}":'
BRIDGE_SOURCE: Final = "tool_search"
"""The source of the three tools, as sessions store them."""
SEARCH, DESCRIBE, CALL = "tool_search", "tool_describe", "tool_call"
BRIDGE: Final = frozenset({SEARCH, DESCRIBE, CALL})
SHARE_MAX: Final = 0.1
"""The part of the window for definitions that may be deferred."""
_CHARS_PER_TOKEN: Final = 4
WINDOW_USUAL: Final = 200_000
"""Tokens assumed for a window of unknown size."""


def exceeds_share(definitions: Sequence[str], window: int | None) -> bool:
    """Whether ``definitions`` would take more of the window (tokens; ``None`` when unknown) than ``SHARE_MAX``."""
    chars = sum(map(len, definitions))
    return chars > SHARE_MAX * _CHARS_PER_TOKEN * (window or WINDOW_USUAL)


def mark_deferred(definition: str) -> str:
    """Mark a stored definition as deferred."""
    return dump_canonical_json({**json.loads(definition), DEFERRED_KEY: True})


def list_deferred_functions(tools: str) -> tuple[dict[str, Any], ...]:
    """List the deferred functions of a session's stored definitions: name, description and parameters of each, in
    order."""
    if _MARK not in tools:
        return ()
    return tuple(one["function"] for one in json.loads(tools) if DEFERRED_KEY in one)


@lru_cache(maxsize=64)
def select_shown_definitions(tools: str) -> str:
    """Select the stored tool definitions of a session that a model is shown at once: all but the deferred tools'."""
    if _MARK not in tools:
        return tools
    return dump_canonical_json([one for one in json.loads(tools) if DEFERRED_KEY not in one])


def unwrap_call(arguments: str) -> tuple[str, str] | None:
    """The tool that a call of ``tool_call`` names, and its arguments as JSON; ``None`` when it names none. The
    arguments may be an object or, as models write it, the text of one."""
    said = parse_object(arguments)
    name = said.get("name")
    if not isinstance(name, str) or not name:
        return None
    given = said.get("arguments")
    return name, given if isinstance(given, str) else dump_canonical_json({} if given is None else given)


def find_written_arguments(function: Mapping[str, Any], name: str) -> str:
    """Find the arguments that a model wrote for the tool ``name``, which it may have called through ``tool_call``.
    ``function`` is that of a stored call, in chat-completions form."""
    arguments = str(function["arguments"])
    found = unwrap_call(arguments) if function["name"] == CALL != name else None
    return arguments if found is None else found[1]
