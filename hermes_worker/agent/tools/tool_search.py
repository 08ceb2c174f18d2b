"""``tool_search``, ``tool_describe`` and ``tool_call``: the way to tools that are not shown to the model
(``core.deferred_tools``).
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from hermes_worker.agent.tools.base import ToolContext, ToolResult
from hermes_worker.agent.tools.results import build_error_result, build_json_result
from hermes_worker.core.deferred_tools import CALL, DESCRIBE, SEARCH
from hermes_worker.core.recovery.repair import repair_tool_name
from hermes_worker.extension import ToolSpec

_FOUND_DEFAULT: Final = 5
_FOUND_MAX: Final = 20
_DESCRIPTION_CHARS_MAX: Final = 300
_QUERY_CHARS_MAX: Final = 1_000
_WORD: Final = re.compile(r"[a-z0-9]+")
_CAMEL: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


class BridgeTool:
    """One of the three tools that find and call deferred tools: the ``functions`` of a session."""

    def __init__(self, spec: ToolSpec, functions: Sequence[Mapping[str, Any]]) -> None:
        self.spec: Final = spec
        self._functions = {str(one["name"]): one for one in functions}

    def run(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        if self.spec.name == SEARCH:
            return self._search(str(arguments["query"]), arguments.get("limit") or _FOUND_DEFAULT)
        name = str(arguments["name"])
        if self.spec.name == DESCRIBE and (known := self._find_known_name(name)) is not None:
            return build_json_result(self._functions[known])
        # A call of a tool that is there never comes here: it is that tool's from the beginning.
        there = f"; use {SEARCH} to look for one" if self._functions else ""
        return build_error_result(
            f"{name[:100]!r} is none of the tools behind {SEARCH}{there}. Other tools are called directly"
        )

    def _find_known_name(self, name: str) -> str | None:
        return name if name in self._functions else repair_tool_name(name, frozenset(self._functions))

    def _search(self, query: str, limit: int) -> ToolResult:
        found = rank_tools(query[:_QUERY_CHARS_MAX], self._functions.values())[: min(limit, _FOUND_MAX)]
        tools = [{"name": one["name"], "description": _shorten(str(one.get("description", "")))} for one in found]
        document: dict[str, object] = {"tools": tools, "of": len(self._functions)}
        if not tools:
            document["hint"] = "nothing matches; try other words, or one word only"
        return build_json_result(document)


def rank_tools(query: str, functions: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The tools that hold a word of the query, the best first: rare words count for more, and words of the name
    thrice.
    """
    rows = [(one, _count_words(one)) for one in functions]
    wanted = set(_split_words(query))
    seen = {word: sum(1 for _, words in rows if word in words) for word in wanted}
    scores = [
        (sum(math.log(1 + len(rows) / seen[word]) * min(3, words[word]) for word in wanted if word in words), one)
        for one, words in rows
    ]
    best = sorted((pair for pair in scores if pair[0] > 0), key=lambda pair: (-pair[0], str(pair[1]["name"])))
    return [one for _, one in best]


def _count_words(function: Mapping[str, Any]) -> Counter[str]:
    counted = Counter(set(_split_words(str(function.get("description", "")))))
    properties = (function.get("parameters") or {}).get("properties") or {}
    counted.update(set(_split_words(" ".join(properties))))
    counted.update(dict.fromkeys(_split_words(str(function["name"])), 3))
    return counted


def _split_words(text: str) -> list[str]:
    """The words of a text in their simplest form: ``issues`` and ``issue`` are one."""
    return [
        word[:-1] if len(word) > 3 and word.endswith("s") else word
        for word in _WORD.findall(_CAMEL.sub(" ", text).lower())
    ]


def _shorten(text: str) -> str:
    return text if len(text) <= _DESCRIPTION_CHARS_MAX else f"{text[:_DESCRIPTION_CHARS_MAX]}..."


def find_meant_tool(requested: str, arguments: tuple[str, str], names: Iterable[str]) -> str | None:
    """The deferred tool that a call of ``tool_call`` means, of those there are; ``None`` when it means none."""
    if requested != CALL:
        return None
    there = frozenset(names)
    return arguments[0] if arguments[0] in there else repair_tool_name(arguments[0], there)
