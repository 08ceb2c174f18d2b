"""The operator's settings for ``ha_*``."""

from __future__ import annotations

from dataclasses import dataclass

from hermes_worker.setting_groups import setting


@dataclass(frozen=True, slots=True, kw_only=True)
class HomeAssistant:
    """The Home Assistant's address, and the token for it."""

    url: str = setting("HASS_URL", "The address of the Home Assistant, such as http://homeassistant.local:8123.")
    token: str = setting(
        "HASS_TOOLS_TOKEN",
        "A long-lived access token of a user who may do no more than agents may; HASS_TOKEN is for deliveries.",
        is_secret=True,
    )
