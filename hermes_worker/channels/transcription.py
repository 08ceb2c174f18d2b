"""Transcribe a recording over OpenAI's ``POST /audio/transcriptions`` (platform.openai.com/docs, "Create
transcription", 2026-11), which other services speak as well (Groq, whisper.cpp, vLLM, speaches)."""

from __future__ import annotations

from dataclasses import dataclass, field

from hermes_worker.channels.exchange import Attachment, build_multipart_request, is_success
from hermes_worker.core.inbound_files import parse_transcript
from hermes_worker.core.media_kinds import MediaKind, find_suffix
from hermes_worker.net.http import NoAnswer
from hermes_worker.net.urls import UnsafeUrl, UrlPolicy
from hermes_worker.net.wire import send

_BODY_BYTES_MAX = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Transcription:
    """The text of a recording, or in ``unheard`` the reason why there is none."""

    text: str = ""
    unheard: str = ""


NOT_SET_UP = Transcription(unheard="nothing that listens is set up here (HERMES_TRANSCRIPTION_URL)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Transcriber:
    """A transcription service. Thread-safe."""

    url: str
    """The base address of its API, up to the version."""
    key: str = field(repr=False)
    model: str
    total_s: float
    """Seconds that a transcription may take."""

    def transcribe(self, content: bytes, media_type: str) -> Transcription:
        """Transcribe a recording. Repeating it costs money and changes nothing."""
        name = f"recording{find_suffix(media_type)}"  # such services go by it
        request = build_multipart_request(
            f"{self.url.rstrip('/')}/audio/transcriptions",
            {"model": self.model, "response_format": "json"},
            "file",
            Attachment(name=name, kind=MediaKind.AUDIO, content=content),
            headers={"Authorization": f"Bearer {self.key}"} if self.key else None,
        )
        try:
            # The operator configures the address.
            policy = UrlPolicy(allows_private=True)
            answer = send(request, policy, total_s=self.total_s, body_bytes_max=_BODY_BYTES_MAX)
        except (NoAnswer, UnsafeUrl, ValueError):
            return Transcription(unheard="the service that listens could not be reached")
        text = parse_transcript(answer.body) if is_success(answer) else None
        if text is None:
            return Transcription(unheard="the service that listens did not answer as it should")
        return Transcription(text=text) if text else Transcription(unheard="nothing is said in it")
