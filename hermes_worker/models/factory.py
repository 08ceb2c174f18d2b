"""Build the provider that the model settings describe. Providers are shared: one per endpoint and process."""

from __future__ import annotations

import functools
import os
from typing import Protocol

from hermes_worker.core.errors import ConfigurationError
from hermes_worker.models.base import Provider
from hermes_worker.models.catalog import (
    LOCAL_SILENCE_S,
    ProviderRow,
    Wire,
    WireChoice,
    build_provider_address,
    find_provider,
    find_provider_by_host,
    is_local,
    list_provider_rows,
    list_wire_rows,
    resolve_wire,
)
from hermes_worker.models.endpoint import READ_TIMEOUT_S, Endpoint, check_endpoint
from hermes_worker.models.lazy_wires import load_provider
from hermes_worker.settings.kinds import NO_OPTIONS, ProviderOptions


class WireSettings(Protocol):
    """The settings that the factory reads. ``None`` and the empty string both mean "not set"."""

    @property
    def base_url(self) -> str | None: ...
    @property
    def api_key(self) -> str | None: ...
    @property
    def model(self) -> str: ...
    @property
    def api_mode(self) -> str | None: ...
    @property
    def provider(self) -> str | None: ...


def build_provider(settings: WireSettings, *, proxy_url: str | None = None) -> Provider:
    """The provider for these settings: the same object for the same settings, as long as the process lives.

    Connects to nothing. Raises ``ConfigurationError`` naming the setting to change.
    """
    wire, endpoint = resolve_endpoint(settings, proxy_url=proxy_url)
    return get_shared_provider(wire, endpoint)


def get_shared_provider(wire: str, endpoint: Endpoint) -> Provider:
    """The one provider of this process for that endpoint."""
    return _build_shared(wire, endpoint, os.getpid())


def resolve_endpoint(
    settings: WireSettings,
    *,
    proxy_url: str | None = None,
    needs_key: bool = True,
    extras: ProviderOptions = NO_OPTIONS,
) -> tuple[str, Endpoint]:
    """The endpoint of model calls, and the name of the wire they are written for. ``needs_key`` is false for a provider
    with a login.

    Raises ``ConfigurationError`` naming the setting to change.
    """
    row = find_provider_row(settings)
    usual = build_provider_address(row, extras.region)
    wire = _require_supported(
        resolve_wire(
            api_mode=_check_api_mode(settings),
            provider=settings.provider,
            base_url=settings.base_url or usual,
            model=settings.model,
        )
    )
    base_url = _choose_base_url(settings, row, wire, usual)
    endpoint = Endpoint(
        base_url=base_url,
        api_key=_require_api_key(settings, row, base_url, needs_key=needs_key),
        provider=row.name,
        key_header=row.key_header,
        headers={**row.headers, **extras.headers},
        body={**row.body, **extras.body},
        service_tier=_choose_service_tier(row, extras),
        region=extras.region or row.usual_region,
        sends_stream_options=row.sends_stream_options,
        sends_cache_key=row.sends_cache_key,
        read_timeout_s=LOCAL_SILENCE_S if is_local(base_url) else READ_TIMEOUT_S,
        proxy_url=proxy_url,
    )
    return wire, check_endpoint(endpoint)


def _choose_service_tier(row: ProviderRow, extras: ProviderOptions) -> str:
    tier = extras.service_tier
    if tier and tier not in row.service_tiers:
        known = f"choose one of {', '.join(row.service_tiers)}" if row.service_tiers else "none are known of it"
        raise ConfigurationError(
            f"the service_tier of {row.name!r} (model.providers) is {tier!r}, not one of its: {known}"
        )
    return tier


def find_provider_row(settings: WireSettings) -> ProviderRow:
    """The catalogue's row for these settings: by name, else by host, else the row for a server of the user's own."""
    if not settings.provider:
        return find_provider_by_host(settings.base_url or "") or list_provider_rows()["custom"]
    row = find_provider(settings.provider)
    if row is None and not settings.base_url:
        raise ConfigurationError(
            f"model.provider is {settings.provider!r}, which is not in the catalogue: choose one of "
            f"{', '.join(list_provider_rows())}, or set model.base_url (HERMES_BASE_URL) to its address"
        )
    return row or list_provider_rows()["custom"]


@functools.lru_cache(maxsize=256)
def _build_shared(wire: str, endpoint: Endpoint, pid: int) -> Provider:
    """Build the provider once per process: the process id is part of the key, because a forked child must not use its
    parent's sockets.
    """
    return load_provider(wire, endpoint)


def _check_api_mode(settings: WireSettings) -> str | None:
    if settings.api_mode and settings.api_mode not in list_wire_rows():
        raise ConfigurationError(
            f"model.api_mode is {settings.api_mode!r}; choose one of {', '.join(list_wire_rows())}"
        )
    return settings.api_mode or None


def _require_supported(choice: WireChoice) -> str:
    if choice.wire in list_wire_rows():
        return choice.wire
    raise ConfigurationError(
        f"the provider {choice.provider or 'at model.base_url'!r} speaks the wire {str(choice.wire)!r}, which is not "
        f"installed; set model.api_mode to {Wire.CHAT_COMPLETIONS.value!r} if the server also serves "
        "OpenAI-compatible chat completions"
    )


def _choose_base_url(settings: WireSettings, row: ProviderRow, wire: str, usual: str) -> str:
    given = (settings.base_url or "").rstrip("/")
    if wire == Wire.CHAT_COMPLETIONS and row.chat_base_url and given in ("", row.base_url):
        return row.chat_base_url
    if not given and not usual:
        form = f"; it looks like {row.address_form}" if row.address_form else ""
        raise ConfigurationError(
            f"model.base_url (HERMES_BASE_URL) is not set, and {row.name!r} has no common address{form}"
        )
    return given or usual


def _require_api_key(settings: WireSettings, row: ProviderRow, base_url: str, *, needs_key: bool) -> str:
    key = (settings.api_key or "").strip()
    if not key and needs_key and row.needs_key and not is_local(base_url):
        raise ConfigurationError(
            f"no API key for {row.name!r}: set {row.key_variables[0]}, or HERMES_API_KEY for the first provider"
        )
    return key
