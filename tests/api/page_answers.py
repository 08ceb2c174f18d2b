"""Answers of our own API, made from its document, with given texts in the place of every text."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

_ROWS = ("data", "entries", "jobs", "messages")
"""Lists of these names get a row for each text; others get one item."""


class AnswerMaker:
    """Makes answers to requests of the page by the OpenAPI document."""

    def __init__(self, document: Mapping[str, Any], texts: Sequence[str]) -> None:
        self._document = document
        self._texts = texts
        forms = {path: re.sub(r"\\\{[^/]*?\\\}", "[^/]+", re.escape(path)) for path in document["paths"]}
        # A path without parameters is more than one with them.
        self._paths = sorted(
            ((re.compile(form), path) for path, form in forms.items()), key=lambda each: "{" in each[1]
        )

    def answer(self, address: str) -> str:
        """The JSON that ``GET address`` gives. Raises ``KeyError`` for an address that the API does not have."""
        path = urlsplit(address).path
        template = next((path_ for form, path_ in self._paths if form.fullmatch(path)), path)
        answers = self._document["paths"][template]["get"]["responses"]
        return json.dumps(self._made(answers["200"]["content"]["application/json"]["schema"], "", 0))

    def _made(self, schema: Mapping[str, Any], name: str, row: int) -> Any:
        while "$ref" in schema:
            schema = self._document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
        for each in schema.get("anyOf", schema.get("oneOf", ())):
            if each.get("type") != "null":
                return self._made(each, name, row)
        for key in ("const", "enum"):
            if key in schema:
                return schema[key] if key == "const" else schema[key][0]
        match schema.get("type"):
            case "object":
                return self._object(schema, row)
            case "array":
                rows = range(len(self._texts)) if name in _ROWS and row == 0 else [row]
                return [self._made(schema.get("items", {}), "", number) for number in rows]
            case "integer" | "number":
                return row + 1
            case "boolean":
                return False
            case _:
                return self._texts[row]

    def _object(self, schema: Mapping[str, Any], row: int) -> dict[str, Any]:
        made = {name: self._made(each, name, row) for name, each in schema.get("properties", {}).items()}
        more = schema.get("additionalProperties")
        if isinstance(more, Mapping):
            made[self._texts[row]] = self._made(more, "", row)
        return made
