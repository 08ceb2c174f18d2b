"""The catalogue of providers and of wires, and the rules that depend on who answers.

It is made of extensions: the product's own rows and wires come in through the same door as those of others. Rows and
declarations are data, so every role has them; what speaks a wire is imported where it is first used.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from urllib.parse import urlsplit

from hermes_worker import installed
from hermes_worker.core.errors import ConfigurationError
from hermes_worker.core.model_capabilities import STANDARD, CacheLayout, ThinkingPolicy, Wire, WireNeeds
from hermes_worker.core.model_families import find_traits, is_host
from hermes_worker.extension import Installed, WireDeclaration
from hermes_worker.models.provider_row import CacheRule, ProviderRow, WireRow

__all__ = [
    "CacheTarget",
    "ProviderRow",
    "Wire",
    "WireChoice",
    "build_provider_address",
    "choose_cache_layout",
    "choose_output_cap_parameter",
    "choose_thinking_policy",
    "find_issuer",
    "find_provider",
    "find_provider_by_host",
    "find_stated_window",
    "find_thinker",
    "find_wire_needs",
    "is_local",
    "list_provider_rows",
    "list_wire_rows",
    "parse_hostname",
    "resolve_wire",
    "silence_s",
]


@lru_cache(maxsize=4)
def _build_rows(found: Installed) -> Mapping[str, ProviderRow]:
    return MappingProxyType({row.name: row for row in installed.require_rows(ProviderRow, found.providers.values())})


@lru_cache(maxsize=4)
def _index_rows_by_name(found: Installed) -> Mapping[str, ProviderRow]:
    return {name.lower(): row for row in _build_rows(found).values() for name in (row.name, *row.aliases)}


@lru_cache(maxsize=4)
def _build_wires(found: Installed) -> Mapping[str, WireRow]:
    return MappingProxyType({name: _build_wire_row(wire) for name, wire in found.wires.items()})


def _build_wire_row(wire: WireDeclaration) -> WireRow:
    return wire if isinstance(wire, WireRow) else WireRow(name=wire.name, implementation=wire.implementation)


def list_provider_rows() -> Mapping[str, ProviderRow]:
    """The rows of all enabled extensions, by name."""
    return _build_rows(installed.get_installed())


def list_wire_rows() -> Mapping[str, WireRow]:
    """Every wire that can be spoken, by name."""
    return _build_wires(installed.get_installed())


def find_provider(name: str) -> ProviderRow | None:
    """The row with this name or alias, in any case; ``None`` when there is none."""
    return _index_rows_by_name(installed.get_installed()).get(name.strip().lower())


def find_provider_by_host(base_url: str) -> ProviderRow | None:
    """The row whose host this is; ``None`` for a server of the user's own."""
    path = _normalize_path(base_url)
    fitting = [row for row in _find_rows_of_host(parse_hostname(base_url)) if path.startswith(row.path)]
    return max(fitting, key=lambda row: len(row.path), default=None)


def build_provider_address(row: ProviderRow, region: str = "") -> str:
    """The address of a provider whose user gave none; empty where every user has one of their own.

    Raises ``ConfigurationError`` for a region that the provider does not have.
    """
    if "{region}" in row.base_url:
        return row.base_url.replace("{region}", region or row.usual_region)
    if not region:
        return row.base_url
    if region not in row.regions:
        known = f"choose one of {', '.join(row.regions)}" if row.regions else "its row knows none; set model.base_url"
        raise ConfigurationError(f"the region of {row.name!r} (model.providers) is {region!r}, not one of its: {known}")
    return row.regions[region]


def _find_rows_of_host(host: str) -> tuple[ProviderRow, ...]:
    """The rows that name the host most narrowly; several where one host serves several providers."""
    return _find_owners(host, installed.get_installed()) if host else ()


@lru_cache(maxsize=256)
def _find_owners(host: str, found: Installed) -> tuple[ProviderRow, ...]:
    fits = [(_measure_narrowness(row, host), row) for row in _build_rows(found).values()]
    narrowest = max((fit for fit, _ in fits), default=0)
    return tuple(row for fit, row in fits if fit == narrowest) if narrowest else ()


def _measure_narrowness(row: ProviderRow, host: str) -> int:
    """How much of a host name a row names, for choosing the narrowest; 0 for a host that is not the row's."""
    if row.host_pattern and re.fullmatch(row.host_pattern, host):
        return len(host)
    return max((len(own) for own in row.hosts if is_host(host, own)), default=0)


def _find_row_of_host(host: str) -> ProviderRow | None:
    """The row of a bare host name, where the path of an address is not known."""
    return next(iter(_find_rows_of_host(host.strip().lower().rstrip("."))), None)


def _normalize_path(base_url: str) -> str:
    try:
        return urlsplit(base_url).path
    except ValueError:
        return ""


# ------------------------------------------------------------------------------------------------------------- hosts


def parse_hostname(base_url: str) -> str:
    """The host of an address, lower case, without port and trailing dot; empty when there is none.

    Rules about a provider look at this and never at the text of the address, where anybody may write any name.
    """
    text = base_url.strip()
    try:
        host = urlsplit(text if "://" in text else f"//{text}").hostname
    except ValueError:
        return ""
    return (host or "").removesuffix(".")


def is_local(base_url: str) -> bool:
    """Whether the host is this machine or a private address, where models are slow and idle streams are not dropped."""
    host = parse_hostname(base_url)
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        is_single_label = bool(host) and "." not in host  # a name of this network, such as a compose service
        return is_single_label or host.endswith((".localhost", ".local", ".internal"))
    return address.is_loopback or address.is_private


# -------------------------------------------------------------------------------------------------------------- wire


@dataclass(frozen=True, slots=True, kw_only=True)
class WireChoice:
    wire: str
    provider: str
    """The catalogue's name of the provider, or the given name in lower case; filled in from the host where none was
    given.
    """


def resolve_wire(*, api_mode: str | None, provider: str | None, base_url: str, model: str) -> WireChoice:
    """Choose the wire, by the row of the provider that is named or, if none is, of the host's. Pure.

    An ``api_mode`` that is no wire counts as not given, as in the original; the factory has rejected it before.
    """
    home = find_provider_by_host(base_url)
    row = find_provider(provider) if provider and provider.strip() else home
    name = row.name if row else (provider or "").strip().lower()
    if api_mode is not None and api_mode in list_wire_rows():
        return WireChoice(wire=_to_wire(api_mode), provider=name)
    wire = _choose_wire(row, home, base_url, model)
    return WireChoice(wire=_to_wire(wire), provider=name)


def _choose_wire(row: ProviderRow | None, home: ProviderRow | None, base_url: str, model: str) -> str:
    if row is not None and row.wire is not None:
        return row.wire
    if base_url.rstrip("/").endswith("/anthropic"):
        return Wire.ANTHROPIC_MESSAGES
    slug = _derive_model_slug(model)
    for rule in row.model_wires if row is not None else ():
        if re.match(rule.pattern, slug):
            return rule.wire
    if all(each.leaves_wire_to_model for each in (row, home) if each is not None):
        chosen = (home.home_wire if home is not None else None) or find_traits(model).wire
        return chosen or Wire.CHAT_COMPLETIONS
    return Wire.CHAT_COMPLETIONS


def _to_wire(wire: str) -> str:
    """The member of ``Wire`` with this value where there is one; else the text itself."""
    return Wire(wire) if wire in set(Wire) else wire


def _derive_model_slug(model: str) -> str:
    return model.strip().lower().rpartition("/")[2]


# ------------------------------------------------------------------------------------------------- rules by the model


def choose_output_cap_parameter(base_url: str, model: str) -> str:
    """The name of the output limit in a chat completion."""
    home = find_provider_by_host(base_url)
    return (home.output_cap if home is not None else None) or find_traits(model).output_cap or "max_tokens"


LOCAL_SILENCE_S = 900.0
"""A local server may chew on a long prompt for minutes before the first byte."""


def silence_s(model: str) -> float:
    """How many seconds this model may think without sending a byte; 0 when nothing is known about it."""
    return find_traits(model).silence_s or 0.0


def find_stated_window(provider: str, model: str) -> int | None:
    """The context window in tokens that is known of the model before a server was asked; ``None`` when none is."""
    row = find_provider(provider)
    served = row.windows.get(_derive_model_slug(model)) if row is not None else None
    return served or find_traits(model).window


# ------------------------------------------------------------------------------------------------- rules by the place


def find_wire_needs(*, provider: str, model: str, host: str, wire: str = Wire.CHAT_COMPLETIONS) -> WireNeeds:
    """Find what the endpoint at ``host`` (a bare host name) needs in messages for ``model``. ``wire`` is the value of
    ``api_mode``.
    """
    home, named, model_traits = _find_row_of_host(host), find_provider(provider), find_traits(model)
    rows = [row for row in (home, named) if row is not None]
    spoken = list_wire_rows().get(wire)
    echoes = any(row.echoes_reasoning for row in rows) or bool(model_traits.echoes_reasoning)
    is_chat = wire == Wire.CHAT_COMPLETIONS
    return (spoken.needs if spoken is not None else STANDARD) | WireNeeds(
        echoes_reasoning=echoes,
        thinker=find_thinker(provider=provider, model=model, host=host) if echoes else "",
        keeps_thought_signatures=bool(model_traits.keeps_thought_signatures),
        insists_on_signature=is_chat and bool(model_traits.thinks_by_level),
        takes_short_ids_only=is_chat and bool(model_traits.takes_short_ids_only),
        keeps_reasoning_details=home is not None and home.keeps_reasoning_details,
    )


def find_thinker(*, provider: str, model: str, host: str) -> str:
    """The name under which transcripts keep the reasoning of a reply: the model's family, or else the provider."""
    row = _find_row_of_host(host) or find_provider(provider)
    return find_traits(model).family or (row.name if row is not None else provider or host)


def choose_thinking_policy(*, host: str, model: str) -> ThinkingPolicy:
    """What to do with thinking that is sent again over Anthropic's wire to ``host`` (a bare host name)."""
    home = _find_row_of_host(host)
    return find_traits(model).thinking or (home.thinking if home is not None else None) or ThinkingPolicy.STRIP


def find_issuer(host: str) -> str:
    """The issuer that signs or seals the reasoning of the endpoint at ``host`` (a bare host name). Stored with the
    transcript, so the names stay.
    """
    return next((row.issuer for row in _find_rows_of_host(host.lower()) if row.issuer), f"other:{host.lower()}")


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheTarget:
    """The provider, host, model and wire that a request is sent to."""

    provider: str
    model: str
    host: str
    """Bare host name."""
    is_anthropic_wire: bool


def choose_cache_layout(target: CacheTarget) -> CacheLayout | None:
    """The cache marks for requests to ``target``; ``None`` when marks would be ignored or refused."""
    family = find_traits(target.model).family
    wire = Wire.ANTHROPIC_MESSAGES if target.is_anthropic_wire else None
    home, named = _find_row_of_host(target.host), find_provider(target.provider)
    for row, is_home in ((home, True), (named, False)):
        for rule in row.cache_marks if row is not None else ():
            if _rule_applies(rule, family, wire) and (is_home or not rule.is_at_home_only):
                return rule.layout
    return CacheLayout.NATIVE if target.is_anthropic_wire and family == "claude" else None


def _rule_applies(rule: CacheRule, family: str | None, wire: str | None) -> bool:
    return (not rule.families or family in rule.families) and rule.wire in (None, wire)
