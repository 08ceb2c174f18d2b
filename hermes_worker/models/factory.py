"""From the model settings to a provider that can be asked. Providers are shared: one per endpoint and process."""

from __future__ import annotations

import functools
import os
from typing import Protocol

from hermes_worker import installed
from hermes_worker.core.errors import ConfigurationError
from hermes_worker.extension import load
from hermes_worker.models.base import Provider
from hermes_worker.models.catalog import (
    LOCAL_SILENCE_S,
    ProviderRow,
    Wire,
    WireChoice,
    find_provider,
    is_local,
    provider_of_host,
    provider_rows,
    resolve_wire,
)
from hermes_worker.models.endpoint import READ_TIMEOUT_S, Endpoint, checked


class WireSettings(Protocol):
    """What the factory reads of the settings. ``None`` and the empty string both mean "not set"."""

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
    wire, endpoint = endpoint_of(settings, proxy_url=proxy_url)
    return shared_provider(wire, endpoint)


def shared_provider(wire: str, endpoint: Endpoint) -> Provider:
    """The one provider of this process for that endpoint."""
    return _shared(wire, endpoint, os.getpid())


def endpoint_of(
    settings: WireSettings, *, proxy_url: str | None = None, needs_key: bool = True
) -> tuple[str, Endpoint]:
    """Where model calls go, and how they are written. ``needs_key`` is false for who logs in.

    Raises ``ConfigurationError`` naming the setting to change.
    """
    row = provider_row(settings)
    wire = _supported(
        resolve_wire(
            api_mode=_api_mode(settings),
            provider=settings.provider,
            base_url=settings.base_url or row.base_url,
            model=settings.model,
        )
    )
    base_url = _base_url(settings, row, wire)
    endpoint = Endpoint(
        base_url=base_url,
        api_key=_api_key(settings, row, base_url, needs_key=needs_key),
        provider=row.name,
        key_header=row.key_header,
        headers=row.headers,
        sends_stream_options=row.sends_stream_options,
        sends_cache_key=row.sends_cache_key,
        read_timeout_s=LOCAL_SILENCE_S if is_local(base_url) else READ_TIMEOUT_S,
        proxy_url=proxy_url,
    )
    return wire, checked(endpoint)


def provider_row(settings: WireSettings) -> ProviderRow:
    """The catalogue's row for these settings: by name, else by host, else that of a server of the user's own."""
    if not settings.provider:
        return provider_of_host(settings.base_url or "") or provider_rows()["custom"]
    row = find_provider(settings.provider)
    if row is None and not settings.base_url:
        raise ConfigurationError(
            f"model.provider is {settings.provider!r}, which is not in the catalogue: choose one of "
            f"{', '.join(provider_rows())}, or set model.base_url (HERMES_BASE_URL) to its address"
        )
    return row or provider_rows()["custom"]


@functools.lru_cache(maxsize=256)
def _shared(wire: str, endpoint: Endpoint, pid: int) -> Provider:
    """The process id is part of the key, because a forked child must not use its parent's sockets."""
    # Loaded when it is needed: an SDK takes half a second, and no process needs all; a scheduler needs none.
    provider: Provider = load(installed.current().wires[wire].implementation)(endpoint)
    return provider


def _api_mode(settings: WireSettings) -> str | None:
    known = dict.fromkeys((*installed.current().wires, *Wire))
    if settings.api_mode and settings.api_mode not in known:
        raise ConfigurationError(f"model.api_mode is {settings.api_mode!r}; choose one of {', '.join(known)}")
    return settings.api_mode or None


def _supported(choice: WireChoice) -> str:
    if choice.wire in installed.current().wires:
        return choice.wire
    origin = "model.api_mode" if choice.is_explicit else f"the provider {choice.provider or 'at model.base_url'!r}"
    raise ConfigurationError(
        f"{origin} asks for the wire {str(choice.wire)!r}, which no enabled extension brings; set model.api_mode to "
        f"{Wire.CHAT_COMPLETIONS.value!r} if the server also serves OpenAI-compatible chat completions"
    )


def _base_url(settings: WireSettings, row: ProviderRow, wire: str) -> str:
    given = (settings.base_url or "").rstrip("/")
    if wire == Wire.CHAT_COMPLETIONS and row.chat_base_url and given in ("", row.base_url):
        return row.chat_base_url
    if not given and not row.base_url:
        raise ConfigurationError(f"model.base_url (HERMES_BASE_URL) is not set, and {row.name!r} has no common address")
    return given or row.base_url


def _api_key(settings: WireSettings, row: ProviderRow, base_url: str, *, needs_key: bool) -> str:
    key = (settings.api_key or "").strip()
    if not key and needs_key and row.needs_key and not is_local(base_url):
        raise ConfigurationError(f"no API key for {row.name!r}: set {row.key_variables[0]} or model.api_key")
    return key
