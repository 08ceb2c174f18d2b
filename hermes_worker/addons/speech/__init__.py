"""``text_to_speech``: a text as a sound file."""

from __future__ import annotations

from hermes_worker.addons.speech.settings import Speech
from hermes_worker.addons.speech.tool import text_to_speech
from hermes_worker.extension import Extension
from hermes_worker.setting_groups import settings_of

EXTENSION = Extension(
    name="speech",
    version="1",
    summary="Speak texts by OpenAI's speech API, one that is like it, or ElevenLabs",
    tools=(text_to_speech,),
    settings=settings_of(Speech),
)
