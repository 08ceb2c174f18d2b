"""Which model a process asks, where its settings leave that to the keys that it finds."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from hermes_worker.core.errors import ConfigurationError
from hermes_worker.settings.composed import VARIABLES
from hermes_worker.settings.declaring import DeclaredSetting
from hermes_worker.settings.kinds import SECRET, WEB_URL, Secret, SettingKind
from hermes_worker.settings.models import ModelSettings
from hermes_worker.settings.role_secrets import PROVIDER_SECRETS
from hermes_worker.settings.server import is_loopback
from hermes_worker.settings.sources import FoundValue, SettingSources, parse_value, read_values


class _Vendor(NamedTuple):
    provider: str
    key_variable: str
    url_variable: str
    host: str


_VENDORS = (
    _Vendor("openai", "OPENAI_API_KEY", "OPENAI_BASE_URL", "api.openai.com"),
    _Vendor("anthropic", "ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL", "api.anthropic.com"),
    _Vendor("openrouter", "OPENROUTER_API_KEY", "OPENROUTER_BASE_URL", "openrouter.ai"),
)
"""In the order in which their keys are looked for when nothing else says whom to ask."""


def build_model(sources: SettingSources) -> ModelSettings:
    given = ModelSettings(**read_values(ModelSettings, sources), vendor_keys=_find_vendor_keys(sources))
    if given.provider == "scripted" or "model.api_key" in sources.withheld:
        return given
    if given.api_key is not None:
        return given if given.provider or given.base_url else replace(given, provider=_guess_provider(given.api_key))
    if given.provider or given.base_url:
        return _add_vendor_key(_find_vendor(given), given, sources)
    for vendor in _VENDORS:
        if vendor.key_variable in given.vendor_keys:
            return _add_vendor_key(vendor, given, sources)
    for vendor in _VENDORS:
        if base_url := _check_variable(sources, vendor.url_variable, WEB_URL):
            return replace(given, base_url=base_url)
    return replace(given, provider="scripted")


def _find_vendor_keys(sources: SettingSources) -> Mapping[str, Secret]:
    """Find the keys of model providers in the environment, by variable. A variable that only looks like one, because it
    ends in ``_API_KEY``, is left out when its value is no key."""
    ours = {vendor.key_variable for vendor in _VENDORS}
    keys = {}
    for name in sorted(sources.list_variable_names() - VARIABLES):
        is_known = _KEY_VARIABLE.fullmatch(name) or name in PROVIDER_SECRETS
        if name in ours or (is_known and _is_key(sources.find_variable(name))):
            keys[name] = _check_variable(sources, name, SECRET)
    return MappingProxyType({name: key for name, key in keys.items() if key is not None})


_KEY_VARIABLE = re.compile(r"\w+_API_KEY(?:_\d{1,2})?")


def _is_key(found: FoundValue | None) -> bool:
    try:
        return found is not None and bool(SECRET.parse(found.raw))
    except ValueError:
        return False


def _find_vendor(model: ModelSettings) -> _Vendor | None:
    """Find the vendor whose key may be sent: the named provider, or the owner of the address."""
    if model.provider:
        return next((vendor for vendor in _VENDORS if vendor.provider == model.provider), None)
    host = (urlsplit(model.base_url or "").hostname or "").lower().removesuffix(".")
    return next((v for v in _VENDORS if host == v.host or host.endswith(f".{v.host}")), None)


def _add_vendor_key(vendor: _Vendor | None, model: ModelSettings, sources: SettingSources) -> ModelSettings:
    if vendor is None:
        return model
    key = model.vendor_keys.get(vendor.key_variable)
    base_url = model.base_url or _check_variable(sources, vendor.url_variable, WEB_URL)
    if key is None and base_url is None and not model.refresh_tokens and not model.is_asked_elsewhere:
        raise ConfigurationError(
            f"model.api_key must be set because model.provider is {model.provider!r}: set HERMES_API_KEY or "
            f"{vendor.key_variable}."
        )
    return replace(model, provider=vendor.provider, api_key=key, base_url=base_url)


def _guess_provider(key: Secret) -> str:
    """Guess a key's provider by the prefixes that Anthropic and OpenRouter use; OpenAI for a key with neither."""
    text = key.reveal()
    return "anthropic" if text.startswith("sk-ant-") else "openrouter" if text.startswith("sk-or-") else "openai"


def _check_variable(sources: SettingSources, name: str, kind: SettingKind[Any]) -> Any:
    """The value of a variable that is no setting of ours; ``None`` when it is not set."""
    found = sources.find_variable(name)
    return None if found is None else parse_value(DeclaredSetting(name, (name,), kind), found)


def check_logins(model: ModelSettings) -> None:
    if not model.refresh_tokens:
        return
    if model.token_url is None:
        raise ConfigurationError("model.token_url (HERMES_TOKEN_URL) must be set because model.refresh_tokens is.")
    parts = urlsplit(model.token_url)
    if parts.scheme != "https" and not is_loopback(parts.hostname or ""):
        raise ConfigurationError("model.token_url (HERMES_TOKEN_URL) must begin with https://: a login is sent there.")
    if any(len(token.reveal()) < _REFRESH_TOKEN_CHARS_MIN for token in model.refresh_tokens):
        raise ConfigurationError(
            f"model.refresh_tokens (HERMES_REFRESH_TOKENS) must be tokens of at least {_REFRESH_TOKEN_CHARS_MIN}"
            " characters."
        )
    if model.is_scripted:
        raise ConfigurationError(
            "model.provider (HERMES_PROVIDER) or model.base_url must be set because model.refresh_tokens is."
        )


_REFRESH_TOKEN_CHARS_MIN = 16
"""Shorter ones could be guessed, and what they encrypt with them."""
