"""Uploaded files that a request names by their ids: put into its messages as if it had brought them as data."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from hermes_worker.api.context import ApiContext
from hermes_worker.api.errors import ApiError
from hermes_worker.api.limits import BODY_BYTES_MAX
from hermes_worker.core.principals import Principal
from hermes_worker.store.artifacts.listing import ArtifactNotFound, Artifacts, ArtifactView
from hermes_worker.store.artifacts.uploads import Uploads

_PARTS = frozenset({"input_file", "input_image", "file"})
_FILE_BYTES_MAX = BODY_BYTES_MAX * 3 // 4
"""As many as a body holds in Base64."""


async def bring_files(context: ApiContext, caller: Principal, items: object, where: str) -> Any:
    """Return the messages of a request with the data of the files that they name by id; ``where`` is their field.
    Without such files nothing is asked of the store. Raises ``ApiError``."""
    return await context.call_store(load_files, context, caller, items, where) if _names_files(items) else items


def load_files(context: ApiContext, caller: Principal, items: object, where: str) -> Any:
    """Do the work of ``bring_files``, in a thread of the store."""
    loader = _FileLoader(context, caller)
    return [loader.load_item(item, f"{where}[{number}]") for number, item in enumerate(_list(items))] or items


def _names_files(items: object) -> bool:
    contents = [item.get("content") for item in _list(items) if isinstance(item, dict)]
    return any(_read_file_id(part) is not None for content in contents for part in _list(content))


def _list(given: object) -> list[Any]:
    return given if isinstance(given, list) else []


def _read_file_id(part: object) -> str | None:
    """Read which file a part names; ``None`` for another part, and for one that brings its data."""
    if not isinstance(part, dict) or not isinstance(kind := part.get("type"), str) or kind not in _PARTS:
        return None
    named = _find_file(part).get("file_id")
    return named if isinstance(named, str) else None


def _find_file(part: Mapping[str, Any]) -> Mapping[str, Any]:
    """Find the object that describes the file: chat completions put it below the type, the Responses API beside it."""
    inner = part.get("file")
    return inner if part.get("type") == "file" and isinstance(inner, dict) else part


class _FileLoader:
    """Loads the files of one request, which together may be as large as if they were brought as data."""

    def __init__(self, context: ApiContext, caller: Principal) -> None:
        self._uploads = Uploads(context.client.database, caller.tenant)
        self._reading = Artifacts(context.client.database, context.client.contents)
        self._bytes_left = _FILE_BYTES_MAX

    def load_item(self, item: object, where: str) -> object:
        content = item.get("content") if isinstance(item, dict) else None
        if not isinstance(item, dict) or not isinstance(content, list):
            return item
        parts = [self._load_part(part, f"{where}.content[{number}]") for number, part in enumerate(content)]
        return {**item, "content": parts}

    def _load_part(self, part: Any, where: str) -> object:
        file_id = _read_file_id(part)
        if file_id is None:
            return part
        try:
            view = self._uploads.find(file_id)
            self._bytes_left -= view.size
            if self._bytes_left < 0:
                message = f"The files of one request have at most {_FILE_BYTES_MAX} bytes together."
                raise ApiError(400, message, code="files_too_large", param=where)
            return _put_data(part, view, self._reading.load_content(view))
        except ArtifactNotFound:
            message = f"No such File object: {file_id[:80]}"
            raise ApiError(400, message, code="file_not_found", param=f"{where}.file_id") from None


def _put_data(part: Mapping[str, Any], view: ArtifactView, content: bytes) -> dict[str, Any]:
    data = f"data:{view.media_type};base64,{base64.b64encode(content).decode()}"
    if part.get("type") == "input_image":
        return {"type": "input_image", "image_url": data, "detail": part.get("detail")}
    name = _find_file(part).get("filename") or view.path
    return {"type": "input_file", "file_data": data, "filename": name}
