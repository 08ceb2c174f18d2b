"""``ha_*``: tools that read and control a Home Assistant (developers.home-assistant.io/docs/api/rest)."""

from __future__ import annotations

from hermes_worker.addons.home_assistant.settings import HomeAssistant
from hermes_worker.addons.home_assistant.tools import ha_call_service, ha_get_state, ha_list_entities, ha_list_services
from hermes_worker.extension import Extension
from hermes_worker.setting_groups import settings_of

EXTENSION = Extension(
    name="home_assistant",
    version="1",
    summary="Look at the states of a Home Assistant and call its services",
    tools=(ha_list_entities, ha_get_state, ha_list_services, ha_call_service),
    settings=settings_of(HomeAssistant),
)
