"""The files that clients uploaded, as OpenAI's API answers them."""

from __future__ import annotations

from typing import Any, Literal

from hermes_worker.resource import Resource

PURPOSES = ("user_data", "assistants", "vision")
"""What a file may be uploaded for. Each serves every message."""
LIST_MAX = 10_000
EXPIRES_S_MIN = 3_600
EXPIRES_S_MAX = 2_592_000


class FileObject(Resource):
    """A file that a client uploaded."""

    id: str
    object: Literal["file"] = "file"
    bytes: int
    created_at: int
    expires_at: int | None = None
    filename: str
    purpose: str
    status: Literal["processed"] = "processed"


class FileList(Resource):
    """A part of the list of files."""

    object: Literal["list"] = "list"
    data: list[FileObject]
    first_id: str | None = None
    last_id: str | None = None
    has_more: bool


class FileDeleted(Resource):
    """The answer to a deletion."""

    id: str
    object: Literal["file"] = "file"
    deleted: Literal[True] = True


UPLOAD_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "file": {"type": "string", "format": "binary", "description": "With its name."},
        "purpose": {"enum": list(PURPOSES)},
        "expires_after[anchor]": {"const": "created_at"},
        "expires_after[seconds]": {"type": "integer", "minimum": EXPIRES_S_MIN, "maximum": EXPIRES_S_MAX},
    },
    "required": ["file", "purpose"],
    "example": {"file": "# Notes\n", "purpose": "user_data"},
    "dependentRequired": {
        "expires_after[anchor]": ["expires_after[seconds]"],
        "expires_after[seconds]": ["expires_after[anchor]"],
    },
}
