"""The four tools."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final

from hermes_worker.addons.home_assistant.settings import HomeAssistant
from hermes_worker.addons.http_json import AddonFailed, build_json_post, parse_json, request_service
from hermes_worker.agent.tools.base import ToolResult
from hermes_worker.agent.tools.functions import ToolFailed, tool
from hermes_worker.agent.tools.results import build_error_result, build_json_result
from hermes_worker.core.json_values import read_text
from hermes_worker.net.http import HttpRequest

_TOTAL_S: Final = 20.0
_BYTES_MAX: Final = 20_000_000
_ENTITIES_MAX: Final = 500
_NAME: Final = re.compile(r"[a-z0-9_]{1,100}")
_ENTITY: Final = re.compile(r"[a-z0-9_]{1,100}\.[a-z0-9_]{1,200}")
BLOCKED_DOMAINS: Final = frozenset(
    {"shell_command", "command_line", "python_script", "pyscript", "hassio", "rest_command"}
)
"""Services that run programs, or ask any address, on the host of the Home Assistant."""
_REDIRECTING: Final = frozenset({"entity_id", "device_id", "area_id", "floor_id", "label_id"})


@tool(replay="pure", toolset="homeassistant", timeout_s=60, is_parallel_safe=True)
def ha_list_entities(
    home: HomeAssistant,
    domain: Annotated[str, "Only this kind, such as light, switch, sensor or climate."] = "",
    area: Annotated[str, "Only entities whose name or area holds this text, such as kitchen."] = "",
) -> dict[str, object]:
    """List the entities of the Home Assistant with their states."""
    if domain and not _NAME.fullmatch(domain):
        raise ToolFailed(f"{domain!r} is no domain, such as 'light'")
    wanted = area.strip().lower()
    found = []
    for state in _request_states(home):
        entity = read_text(state.get("entity_id"))
        attributes = state.get("attributes")
        given = attributes if isinstance(attributes, dict) else {}
        name = read_text(given.get("friendly_name"))
        said = f"{entity} {name} {read_text(given.get('area'))} {read_text(given.get('room'))}".lower()
        if (not domain or entity.startswith(f"{domain}.")) and (not wanted or wanted in said):
            found.append({"entity_id": entity, "state": state.get("state"), "name": name})
    shown = sorted(found, key=lambda one: str(one["entity_id"]))[:_ENTITIES_MAX]
    left_out = len(found) - len(shown)
    return {"count": len(found), "entities": shown, **({"left_out": left_out} if left_out else {})}


@tool(replay="pure", toolset="homeassistant", timeout_s=60, is_parallel_safe=True)
def ha_get_state(
    entity_id: Annotated[str, "The entity, such as light.kitchen."], home: HomeAssistant
) -> dict[str, object]:
    """Look at one entity: its state, its attributes and when it changed last."""
    found = _request_json(home, f"/api/states/{_require_entity(entity_id)}")
    if not isinstance(found, dict):
        raise ToolFailed("Home Assistant answered with what is no state")
    return {name: found.get(name) for name in ("entity_id", "state", "attributes", "last_changed", "last_updated")}


@tool(replay="pure", toolset="homeassistant", timeout_s=60, is_parallel_safe=True)
def ha_list_services(
    home: HomeAssistant, domain: Annotated[str, "Only this domain, such as light."] = ""
) -> dict[str, object]:
    """List the services that can be called, with their fields."""
    found = _request_json(home, "/api/services")
    services = {}
    for row in found if isinstance(found, list) else []:
        name = read_text(row.get("domain")) if isinstance(row, dict) else ""
        if name and (not domain or name == domain) and name not in BLOCKED_DOMAINS:
            services[name] = {key: _render_service(one) for key, one in (row.get("services") or {}).items()}
    return {"services": services}


@tool(replay="once", toolset="homeassistant", timeout_s=60)
def ha_call_service(
    domain: Annotated[str, "Such as light."],
    service: Annotated[str, "Such as turn_on."],
    home: HomeAssistant,
    entity_id: Annotated[str, "What it is done to, such as light.kitchen."] = "",
    data: Annotated[dict[str, Any] | None, 'More fields of the service, such as {"brightness": 120}.'] = None,
) -> ToolResult:
    """Call a service of the Home Assistant: switch, set or start something in the house."""
    for part in (domain, service):
        if not _NAME.fullmatch(part):
            raise ToolFailed(f"{part!r} is no name of a domain or service")
    if domain in BLOCKED_DOMAINS:
        raise ToolFailed(f"services of {domain!r} run programs on the host of the Home Assistant and are not called")
    given = dict(data or {})
    if entity_id:
        if clash := sorted(_REDIRECTING & given.keys()):
            raise ToolFailed(f"say what it is done to once: entity_id and {clash[0]} in data are both given")
        given["entity_id"] = _require_entity(entity_id)
    request = build_json_post(f"{_build_base_url(home)}/api/services/{domain}/{service}", given, _build_headers(home))
    try:
        answer = request_service(
            "Home Assistant", request, total_s=_TOTAL_S, body_bytes_max=_BYTES_MAX, allows_private=True
        )
    except AddonFailed as error:
        if not error.may_have_acted:
            return build_error_result(str(error))
        return _build_unknown_result(error)
    try:
        document = parse_json("Home Assistant", answer)
    except AddonFailed:
        document = []
    changed = (
        [read_text(row.get("entity_id")) for row in document if isinstance(row, dict)]
        if isinstance(document, list)
        else []
    )
    return build_json_result({"success": True, "service": f"{domain}.{service}", "affected": changed[:_ENTITIES_MAX]})


def _build_unknown_result(error: AddonFailed) -> ToolResult:
    told = build_error_result(
        f"{error}. It may have been done all the same: look at the state before you repeat the call"
    )
    return ToolResult(text=told.text, is_error=True, is_unknown=True)


def _require_entity(given: str) -> str:
    """Return ``given`` when it is the id of an entity. Raises ``ToolFailed``."""
    if not _ENTITY.fullmatch(given):
        raise ToolFailed(f"{given!r} is no entity, such as 'light.kitchen'")
    return given


def _request_states(home: HomeAssistant) -> list[dict[str, Any]]:
    found = _request_json(home, "/api/states")
    if not isinstance(found, list):
        raise ToolFailed("Home Assistant answered with what is no list of states")
    return [row for row in found if isinstance(row, dict)]


def _request_json(home: HomeAssistant, path: str) -> Any:
    """Get a JSON document from Home Assistant. Raises ``ToolFailed``."""
    request = HttpRequest(method="GET", url=f"{_build_base_url(home)}{path}", headers=_build_headers(home))
    try:
        answer = request_service(
            "Home Assistant", request, total_s=_TOTAL_S, body_bytes_max=_BYTES_MAX, allows_private=True
        )
        return parse_json("Home Assistant", answer)
    except AddonFailed as error:
        raise ToolFailed(str(error)) from None


def _render_service(service: Any) -> dict[str, object]:
    given = service if isinstance(service, dict) else {}
    fields = given.get("fields")
    named = {
        name: read_text(one.get("description")) if isinstance(one, dict) else ""
        for name, one in (fields.items() if isinstance(fields, dict) else ())
    }
    return {"description": read_text(given.get("description")), "fields": named}


def _build_base_url(home: HomeAssistant) -> str:
    return home.url.rstrip("/")


def _build_headers(home: HomeAssistant) -> dict[str, str]:
    return {"Authorization": f"Bearer {home.token}"}
