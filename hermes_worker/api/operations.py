"""Look up in the API's own document which operations a path has, and what they take. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

Operation = Mapping[str, Any]
_LENIENT_PATHS = re.compile(r"(/v1)?/health|/health/(ready|detailed)|/(webhooks|inbound)/.*")
"""Paths that ignore unknown parameters: probes add some against caches, and senders of events have addresses of their
own."""
_NUMBERS = {"integer": re.compile(r"-?[0-9]+(\.0+)?"), "number": re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?")}
"""Numbers as JSON writes them. Python takes more: spaces around a number, ``1_000``, ``nan``."""


def find_operations(document: Mapping[str, Any], path: str) -> dict[str, Operation]:
    """Find the operations at the path of a request, by method. A path without a variable wins over those with one that
    fit as well (OpenAPI 3.1, "Path Templating Matching")."""
    found: dict[str, Operation] = {}
    fitting = [(template, its) for template, its in document["paths"].items() if is_path_of(template, path)]
    for _, operations in sorted(fitting, key=lambda each: -each[0].count("{")):
        found |= {method.upper(): operation for method, operation in operations.items()}
    return found


def is_path_of(template: str, path: str) -> bool:
    """Whether the path of a request is one that the document names ``template``."""
    named, given = template.split("/"), path.split("/")
    return len(named) == len(given) and all(
        bool(part) if name.startswith("{") else part == name for name, part in zip(named, given, strict=True)
    )


def find_unknown_parameter(document: Mapping[str, Any], path: str, method: str, given: Mapping[str, Any]) -> str | None:
    """Find the first name in the query of a request that its operation does not have; ``None`` where all are known."""
    if _LENIENT_PATHS.fullmatch(path):
        return None
    known = _find_query_schemas(document, path, method)
    return next((name for name in given if known is not None and name not in known), None)


def find_invalid_number(
    document: Mapping[str, Any], path: str, method: str, given: Iterable[tuple[str, str]]
) -> str | None:
    """Find the first name in the query of a request whose value should be a number and is not written as one."""
    known = _find_query_schemas(document, path, method) or {}
    for name, value in given:
        form = _NUMBERS.get(str(known.get(name, {}).get("type")))
        if form is not None and not form.fullmatch(value):
            return name
    return None


def _find_query_schemas(document: Mapping[str, Any], path: str, method: str) -> dict[str, Mapping[str, Any]] | None:
    """Find the schemas of a query's parameters, by name; ``None`` where the path has no such operation."""
    operation = find_operations(document, path).get(method)
    if operation is None:
        return None
    parameters = operation.get("parameters", ())
    return {parameter["name"]: parameter["schema"] for parameter in parameters if parameter["in"] == "query"}
