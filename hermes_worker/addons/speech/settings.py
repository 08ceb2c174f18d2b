"""The operator's settings for ``text_to_speech``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hermes_worker.setting_groups import setting


@dataclass(frozen=True, slots=True, kw_only=True)
class Speech:
    """The service for speech, and its voice."""

    key: str = setting("HERMES_SPEECH_API_KEY", "The key for the service that speaks.", is_secret=True)
    provider: Literal["openai", "elevenlabs"] = setting(
        "HERMES_SPEECH_PROVIDER", "How the service is spoken to.", default="openai"
    )
    url: str | None = setting("HERMES_SPEECH_URL", "Its address, up to and with the version; else the provider's own.")
    model: str | None = setting("HERMES_SPEECH_MODEL", "The model; else gpt-4o-mini-tts or eleven_multilingual_v2.")
    voice: str | None = setting("HERMES_SPEECH_VOICE", "The voice; else alloy, or ElevenLabs' voice Rachel.")
