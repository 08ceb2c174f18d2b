"""The tool ``text_to_speech``. The requests are those of OpenAI's speech API (package ``openai``,
``types.audio.speech_create_params``) and of ElevenLabs (elevenlabs.io/docs/api-reference/text-to-speech/convert,
October 2026).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Final
from urllib.parse import quote

from hermes_worker.addons.http_json import AddonFailed, build_json_post, request_service
from hermes_worker.addons.speech.settings import Speech
from hermes_worker.agent.tools.base import ToolContext, ToolResult
from hermes_worker.agent.tools.files import format_path, locate_path
from hermes_worker.agent.tools.functions import ToolFailed, tool
from hermes_worker.agent.tools.results import build_error_result, build_json_result
from hermes_worker.net.http import HttpRequest
from hermes_worker.workspaces.base import WorkspaceError

_TOTAL_S: Final = 120.0
_BYTES_MAX: Final = 25_000_000
_CHARS_MAX: Final = 4_096
"""``input`` of OpenAI's API, the lower of the two limits."""
_FOLDER: Final = "speech"
_SUFFIX: Final = ".mp3"


@dataclass(frozen=True, slots=True, kw_only=True)
class Speaker:
    """A service that speaks."""

    address: str
    model: str
    voice: str
    request: Callable[[str, str, str, str, str], HttpRequest]
    """Builds the request from address, key, model, voice and text."""


def _build_openai_request(url: str, key: str, model: str, voice: str, text: str) -> HttpRequest:
    wanted = {"model": model, "voice": voice, "input": text, "response_format": "mp3"}
    return build_json_post(f"{url}/audio/speech", wanted, {"Authorization": f"Bearer {key}"})


def _build_elevenlabs_request(url: str, key: str, model: str, voice: str, text: str) -> HttpRequest:
    place = f"{url}/text-to-speech/{quote(voice, safe='')}?output_format=mp3_44100_128"
    return build_json_post(place, {"text": text, "model_id": model}, {"xi-api-key": key, "Accept": "audio/mpeg"})


SPEAKERS: Final[Mapping[str, Speaker]] = MappingProxyType(
    {
        "openai": Speaker(
            address="https://api.openai.com/v1", model="gpt-4o-mini-tts", voice="alloy", request=_build_openai_request
        ),
        "elevenlabs": Speaker(
            address="https://api.elevenlabs.io/v1",
            model="eleven_multilingual_v2",
            voice="21m00Tcm4TlvDq8ikWAM",
            request=_build_elevenlabs_request,
        ),
    }
)


@tool(replay="once", toolset="tts", timeout_s=180, is_untrusted=False)
def text_to_speech(
    text: Annotated[str, "What is said."],
    context: ToolContext,
    speech: Speech,
    output_path: Annotated[str, "Where the MP3 is kept in the workspace. Default: a name of its own in 'speech'."] = "",
) -> ToolResult:
    """Speak a text into an MP3 file of the workspace, which the result names."""
    if not 0 < len(text.strip()) <= _CHARS_MAX:
        raise ToolFailed(f"give a text of 1 to {_CHARS_MAX} characters, and several of them for more")
    name = hashlib.sha256(f"{context.idempotency_key}\0{text}".encode("utf-8", "replace")).hexdigest()[:16]
    path = output_path.strip() or f"{_FOLDER}/{name}{_SUFFIX}"
    if not path.lower().endswith(_SUFFIX):
        raise ToolFailed(f"output_path must end in {_SUFFIX}")
    canonical = _choose_path(path, context)
    speaker = SPEAKERS[speech.provider]
    base = (speech.url or speaker.address).rstrip("/")
    request = speaker.request(base, speech.key, speech.model or speaker.model, speech.voice or speaker.voice, text)
    try:
        answer = request_service(
            "the service for speech", request, total_s=_TOTAL_S, body_bytes_max=_BYTES_MAX, allows_private=True
        )
    except AddonFailed as error:
        told = build_error_result(str(error))
        return ToolResult(text=told.text, is_error=True, is_unknown=error.may_have_acted)
    if not _is_mp3(answer.body):
        return build_error_result("the service for speech sent what is no MP3")
    context.workspace.write_bytes(canonical, answer.body)
    return build_json_result({"success": True, "audio": format_path(canonical, context), "bytes": len(answer.body)})


def _choose_path(path: str, context: ToolContext) -> str:
    """The path of the file; checked before anything is paid for. Raises ``ToolFailed``."""
    try:
        return locate_path(context, path, for_write=True)
    except WorkspaceError as error:
        raise ToolFailed(f"nothing was spoken: {error}") from None


def _is_mp3(content: bytes) -> bool:
    """Whether the first bytes are an ID3 tag, or the sync word of a frame."""
    return content.startswith(b"ID3") or (len(content) > 1 and content[0] == 0xFF and content[1] & 0xE0 == 0xE0)
