"""Transcribe a recording over OpenAI's ``POST /audio/transcriptions`` (platform.openai.com/docs, "Create
transcription", 2026-11), which other services speak as well (Groq, whisper.cpp, vLLM, speaches)."""

from __future__ import annotations

from dataclasses import dataclass, field

from hermes_worker.channels.exchange import Attachment, is_success, multipart_request
from hermes_worker.core.inbound_files import transcript_in
from hermes_worker.core.media_kinds import MediaKind, suffix_of
from hermes_worker.net.http import NoAnswer
from hermes_worker.net.urls import UnsafeUrl, UrlPolicy
from hermes_worker.net.wire import send

_BODY_BYTES_MAX = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Hearing:
    """The text of a recording, or in ``unheard`` the reason why there is none."""

    text: str = ""
    unheard: str = ""


NOT_SET_UP = Hearing(unheard="nothing that listens is set up here (HERMES_TRANSCRIPTION_URL)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Transcriber:
    """A transcription service. Thread-safe."""

    url: str
    """The base address of its API, up to the version."""
    key: str = field(repr=False)
    model: str
    total_s: float
    """Seconds that a transcription may take."""

    def hear(self, content: bytes, media_type: str) -> Hearing:
        """Transcribe a recording. Repeating it costs money and changes nothing."""
        name = f"recording{suffix_of(media_type)}"  # such services go by it
        request = multipart_request(
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
            return Hearing(unheard="the service that listens could not be reached")
        text = transcript_in(answer.body) if is_success(answer) else None
        if text is None:
            return Hearing(unheard="the service that listens did not answer as it should")
        return Hearing(text=text) if text else Hearing(unheard="nothing is said in it")
