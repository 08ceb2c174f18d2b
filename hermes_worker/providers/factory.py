"""From the model settings to a provider that can be asked. Providers are shared: one per endpoint and process."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from typing import Protocol

from hermes_worker.core.errors import ConfigurationError
from hermes_worker.providers.base import Provider
from hermes_worker.providers.catalog import (
    LOCAL_SILENCE_S,
    PROVIDERS,
    ProviderRow,
    Wire,
    WireChoice,
    find_provider,
    is_local,
    provider_of_host,
    resolve_wire,
)
from hermes_worker.providers.endpoint import READ_TIMEOUT_S, Endpoint, checked


class ModelSettings(Protocol):
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


_NO_ROW = PROVIDERS["custom"]


# Imported when they are needed: an SDK takes half a second, and no process needs both; a scheduler needs none.
def _chat_completions(endpoint: Endpoint) -> Provider:
    from hermes_worker.providers.openai_chat import OpenAIChat

    return OpenAIChat(endpoint)


def _responses(endpoint: Endpoint) -> Provider:
    from hermes_worker.providers.openai_responses import OpenAIResponses

    return OpenAIResponses(endpoint)


def _messages(endpoint: Endpoint) -> Provider:
    from hermes_worker.providers.anthropic_messages import AnthropicMessages

    return AnthropicMessages(endpoint)


_WIRES: Mapping[Wire, Callable[[Endpoint], Provider]] = {
    Wire.CHAT_COMPLETIONS: _chat_completions,
    Wire.CODEX_RESPONSES: _responses,
    Wire.ANTHROPIC_MESSAGES: _messages,
}


def build_provider(settings: ModelSettings, *, proxy_url: str | None = None) -> Provider:
    """The provider for these settings: the same object for the same settings, as long as the process lives.

    Connects to nothing. Raises ``ConfigurationError`` naming the setting to change.
    """
    wire, endpoint = endpoint_of(settings, proxy_url=proxy_url)
    return shared_provider(wire, endpoint)


def shared_provider(wire: Wire, endpoint: Endpoint) -> Provider:
    """The one provider of this process for that endpoint."""
    return _shared(wire, endpoint, os.getpid())


def endpoint_of(
    settings: ModelSettings, *, proxy_url: str | None = None, needs_key: bool = True
) -> tuple[Wire, Endpoint]:
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


def provider_row(settings: ModelSettings) -> ProviderRow:
    """The catalogue's row for these settings: by name, else by host, else that of a server of the user's own."""
    if not settings.provider:
        return provider_of_host(settings.base_url or "") or _NO_ROW
    row = find_provider(settings.provider)
    if row is None and not settings.base_url:
        raise ConfigurationError(
            f"model.provider is {settings.provider!r}, which is not in the catalogue: choose one of "
            f"{', '.join(PROVIDERS)}, or set model.base_url (HERMES_BASE_URL) to its address"
        )
    return row or _NO_ROW


@functools.lru_cache(maxsize=256)
def _shared(wire: Wire, endpoint: Endpoint, pid: int) -> Provider:
    """The process id is part of the key, because a forked child must not use its parent's sockets."""
    return _WIRES[wire](endpoint)


def _api_mode(settings: ModelSettings) -> str | None:
    if settings.api_mode and settings.api_mode not in set(Wire):
        raise ConfigurationError(f"model.api_mode is {settings.api_mode!r}; choose one of {', '.join(Wire)}")
    return settings.api_mode or None


def _supported(choice: WireChoice) -> Wire:
    if choice.wire in _WIRES:
        return choice.wire
    origin = "model.api_mode" if choice.is_explicit else f"the provider {choice.provider or 'at model.base_url'!r}"
    raise ConfigurationError(
        f"{origin} asks for the wire {choice.wire.value!r}, which is not built in; set model.api_mode to "
        f"{Wire.CHAT_COMPLETIONS.value!r} if the server also serves OpenAI-compatible chat completions"
    )


def _base_url(settings: ModelSettings, row: ProviderRow, wire: Wire) -> str:
    given = (settings.base_url or "").rstrip("/")
    if wire is Wire.CHAT_COMPLETIONS and row.chat_base_url and given in ("", row.base_url):
        return row.chat_base_url
    if not given and not row.base_url:
        raise ConfigurationError(f"model.base_url (HERMES_BASE_URL) is not set, and {row.name!r} has no common address")
    return given or row.base_url


def _api_key(settings: ModelSettings, row: ProviderRow, base_url: str, *, needs_key: bool) -> str:
    key = (settings.api_key or "").strip()
    if not key and needs_key and row.needs_key and not is_local(base_url):
        raise ConfigurationError(f"no API key for {row.name!r}: set {row.key_variables[0]} or model.api_key")
    return key
