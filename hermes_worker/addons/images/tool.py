"""The tool ``image_generate``. The requests are those of OpenAI's Images API (package ``openai``,
``types.image_generate_params`` and ``types.image_edit_params``).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from typing import Annotated, Any, Final, Literal

from hermes_worker.addons.http_json import (
    AddonFailed,
    build_form_post,
    build_json_post,
    find_rows,
    parse_json,
    request_service,
)
from hermes_worker.addons.images.settings import Pictures
from hermes_worker.agent.images import SmallImage, find_media_type, shrink_image
from hermes_worker.agent.tools.base import ToolContext, ToolResult
from hermes_worker.agent.tools.files import format_path, locate_path
from hermes_worker.agent.tools.functions import ToolFailed, tool
from hermes_worker.agent.tools.results import build_error_result, build_json_result
from hermes_worker.core.json_values import read_text
from hermes_worker.core.media_kinds import find_suffix
from hermes_worker.net.http import HttpRequest
from hermes_worker.workspaces.base import WorkspaceError

_TOTAL_S: Final = 240.0
_BYTES_MAX: Final = 60_000_000
_PICTURE_BYTES_MAX: Final = 20_000_000
_SIDE_PX_MAX: Final = 2_048
_PROMPT_CHARS_MAX: Final = 32_000
"""``prompt`` of ``gpt-image-1``."""
_REFERENCES_MAX: Final = 16
"""``image`` of ``gpt-image-1``."""
_SIZES: Final = {"landscape": "1536x1024", "square": "1024x1024", "portrait": "1024x1536"}
_KINDS: Final = ("image/png", "image/jpeg", "image/webp")
"""The media types that the service takes and gives."""
_FOLDER: Final = "images"


@tool(replay="once", toolset="image_gen", timeout_s=300, is_untrusted=False)
def image_generate(
    prompt: Annotated[str, "What is to be seen, in detail."],
    context: ToolContext,
    pictures: Pictures,
    aspect_ratio: Literal["landscape", "square", "portrait"] = "landscape",
    image_url: Annotated[str, "A picture of the workspace to change: its path."] = "",
    reference_image_urls: Annotated[list[str] | None, "Pictures of the workspace to go by: their paths."] = None,
) -> ToolResult:
    """Make a picture. It is kept as a file of the workspace, which the result names."""
    if not 0 < len(prompt.strip()) <= _PROMPT_CHARS_MAX:
        raise ToolFailed(f"give a prompt of 1 to {_PROMPT_CHARS_MAX} characters")
    sources = [path for path in (image_url, *(reference_image_urls or ())) if path]
    if len(sources) > _REFERENCES_MAX:
        raise ToolFailed(f"give at most {_REFERENCES_MAX} pictures")
    _require_room(context)
    request = _build_request(prompt, _SIZES[aspect_ratio], [_read_image(path, context) for path in sources], pictures)
    try:
        answer = request_service(
            "the service for pictures", request, total_s=_TOTAL_S, body_bytes_max=_BYTES_MAX, allows_private=True
        )
        content = _parse_content(parse_json("the service for pictures", answer))
    except AddonFailed as error:
        told = build_error_result(str(error))
        return ToolResult(text=told.text, is_error=True, is_unknown=error.may_have_acted)
    return _keep_image(content, context)


def _build_request(prompt: str, size: str, sources: list[SmallImage], pictures: Pictures) -> HttpRequest:
    base, headers = pictures.url.rstrip("/"), {"Authorization": f"Bearer {pictures.key}"}
    fields = {"model": pictures.model, "prompt": prompt, "size": size}
    if not sources:
        return build_json_post(f"{base}/images/generations", {**fields, "n": 1}, headers)
    files = tuple(
        (f"{number}{find_suffix(one.media_type)}", one.media_type, one.content) for number, one in enumerate(sources)
    )
    return build_form_post(f"{base}/images/edits", fields, {"image[]": files}, headers)


def _read_image(path: str, context: ToolContext) -> SmallImage:
    """A picture of the workspace. Raises ``ToolFailed`` and ``WorkspaceError``."""
    if "://" in path or path.startswith("data:"):
        raise ToolFailed(f"{path[:60]!r} is an address; fetch the picture into the workspace and give its path")
    content = context.workspace.read_bytes(locate_path(context, path), limit=_PICTURE_BYTES_MAX)
    small = shrink_image(content, _SIDE_PX_MAX)
    if small is None or small.media_type not in _KINDS:
        raise ToolFailed(f"{path!r} is no PNG, JPEG or WebP that can be read")
    return small


def _require_room(context: ToolContext) -> None:
    """Require free space before anything is paid for. Raises ``ToolFailed``."""
    try:
        context.workspace.write_bytes(f"{_FOLDER}/.gitkeep", b"")
    except WorkspaceError as error:
        raise ToolFailed(f"no picture was made, because the workspace takes no file: {error}") from None


def _parse_content(document: Any) -> bytes:
    """Return the bytes of the first image in an answer. Raises ``AddonFailed``."""
    for row in find_rows(document, "data"):
        try:
            content = base64.b64decode(read_text(row.get("b64_json")), validate=True)
        except (ValueError, binascii.Error):
            content = b""
        if content:
            return content
    raise AddonFailed("the service for pictures answered without one", may_have_acted=True)


def _keep_image(content: bytes, context: ToolContext) -> ToolResult:
    kind = find_media_type(content)
    if kind not in _KINDS:
        return build_error_result("the service for pictures sent what is no PNG, JPEG or WebP")
    path = f"{_FOLDER}/{hashlib.sha256(content).hexdigest()[:16]}{find_suffix(kind)}"
    canonical = locate_path(context, path, for_write=True)
    context.workspace.write_bytes(canonical, content)
    return build_json_result({"success": True, "image": format_path(canonical, context), "bytes": len(content)})
