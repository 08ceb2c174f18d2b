"""Questions to the API's own document: which operations a path has, and what they take. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

Operation = Mapping[str, Any]
_LENIENT_PATHS = re.compile(r"(/v1)?/health|/health/(ready|detailed)|/webhooks/.*")
"""Paths that pass over parameters which they do not know: probes add some against caches, and senders of events have
addresses of their own."""
_FORMS: dict[str, re.Pattern[str]] = {}


def operations_at(document: Mapping[str, Any], path: str) -> dict[str, Operation]:
    """What can be done at a path of a request, by method."""
    found: dict[str, Operation] = {}
    for template, operations in document["paths"].items():
        if _form_of(template).fullmatch(path):
            found |= {method.upper(): operation for method, operation in operations.items()}
    return found


def _form_of(template: str) -> re.Pattern[str]:
    if template not in _FORMS:
        _FORMS[template] = re.compile(re.sub(r"\\\{\w+\\\}", "[^/]+", re.escape(template)))
    return _FORMS[template]


def unknown_parameter(document: Mapping[str, Any], path: str, method: str, given: Mapping[str, Any]) -> str | None:
    """The first name in the query of a request that its operation does not have; ``None`` where all are known."""
    operation = operations_at(document, path).get(method)
    if operation is None or _LENIENT_PATHS.fullmatch(path):
        return None
    known = {parameter["name"] for parameter in operation.get("parameters", ()) if parameter["in"] == "query"}
    return next((name for name in given if name not in known), None)
