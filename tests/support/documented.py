"""Whether what a server streams is what its document says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jsonschema_rs

from hermes_worker.stream.events import ANY_TREE_EVENT, LIVE_FIELDS, ROW_FIELDS


class Streams:
    """The two streams of the API, as its document describes them. Stricter than the document in one thing: an event
    has no field that is not described, and none is of a kind that a later version may bring."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._document = document
        self._validators: dict[tuple[str, str], jsonschema_rs.Draft202012Validator] = {}

    def misfit(self, path: str, event_id: str, event: Mapping[str, Any]) -> str | None:
        """What is wrong with an event that came from the operation at ``path``; ``None`` for nothing."""
        name = str(event.get("event"))
        if name not in ROW_FIELDS and (name not in LIVE_FIELDS or path.endswith("/tree/events")):
            return f"{name}: no event of this stream"
        errors = [f"{name}: {error}" for error in self._validator(path, name).iter_errors(event)]
        errors += [f"{name}: {error}" for error in self._item(path).iter_errors({"id": event_id, "data": "{}"})]
        return "; ".join(errors) or None

    def _validator(self, path: str, name: str) -> jsonschema_rs.Draft202012Validator:
        reference = {"$ref": f"#/components/schemas/{name}"}
        place: dict[str, Any] = {}
        if path.endswith("/tree/events"):
            described = self._document["components"]["schemas"][ANY_TREE_EVENT]
            place = {key: described[key] for key in ("properties", "required")}
        return self._compiled(path, name, {"allOf": [reference, place], "unevaluatedProperties": False})

    def _item(self, path: str) -> jsonschema_rs.Draft202012Validator:
        answer = self._document["paths"][path]["get"]["responses"]["200"]
        return self._compiled(path, "", answer["content"]["text/event-stream"]["itemSchema"])

    def _compiled(self, path: str, name: str, schema: dict[str, Any]) -> jsonschema_rs.Draft202012Validator:
        if (path, name) not in self._validators:
            whole = {**schema, "components": self._document["components"]}
            self._validators[path, name] = jsonschema_rs.Draft202012Validator(whole)
        return self._validators[path, name]
