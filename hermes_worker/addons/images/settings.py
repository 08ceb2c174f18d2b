"""The operator's settings for ``image_generate``."""

from __future__ import annotations

from dataclasses import dataclass

from hermes_worker.setting_groups import setting


@dataclass(frozen=True, slots=True, kw_only=True)
class Pictures:
    """The service for pictures: its key, its address and its model."""

    key: str = setting("HERMES_IMAGES_API_KEY", "The key for the service that makes pictures.", is_secret=True)
    url: str = setting(
        "HERMES_IMAGES_URL", "Its address, up to and with the version.", default="https://api.openai.com/v1"
    )
    model: str = setting("HERMES_IMAGES_MODEL", "The model that makes them.", default="gpt-image-1")
