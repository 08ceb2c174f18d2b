"""Build providers, chains, keys and prices of models from the settings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING

from hermes_worker.core.errors import ConfigurationError
from hermes_worker.core.key_states import KeyRules
from hermes_worker.core.logins import Login
from hermes_worker.core.messages import Usage
from hermes_worker.core.pricing import Cost, Pricing, parse_own_price
from hermes_worker.settings import Settings
from hermes_worker.settings.kinds import NamedModel, parse_named_model

if TYPE_CHECKING:
    from hermes_worker.models.base import Provider
    from hermes_worker.models.chain import ModelChoice, ProviderChain
    from hermes_worker.models.endpoint import Endpoint
    from hermes_worker.models.governor import ConfiguredLimits
    from hermes_worker.models.login import TokenSource
    from hermes_worker.models.logins import Exchange, LoginTokens
    from hermes_worker.settings.kinds import ProviderOptions
    from hermes_worker.store.engine.database import Database


def build_provider(settings: Settings) -> Provider:
    """Build the provider that the settings name. Raises ``ConfigurationError`` when a part of it is missing."""
    from hermes_worker.models.factory import get_shared_provider

    return get_shared_provider(*find_wire_and_endpoint(settings))


def find_endpoint(settings: Settings) -> Endpoint:
    """The endpoint to which ``build_provider`` would send model calls. Raises ``ConfigurationError`` when a part of it
    is missing.
    """
    return find_wire_and_endpoint(settings)[1]


def find_wire_and_endpoint(settings: Settings) -> tuple[str, Endpoint]:
    """The name of the wire, and the endpoint to which ``build_provider`` would send model calls. Raises
    ``ConfigurationError`` when a part of it is missing.
    """
    from hermes_worker.models import factory

    has_login = bool(settings.model.refresh_tokens)
    choice = build_model_choice(settings)
    return factory.resolve_endpoint(choice, proxy_url=choice.proxy_url, needs_key=not has_login, extras=choice.extras)


def list_key_endpoints(settings: Settings) -> Iterator[tuple[str, tuple[str, Endpoint] | ConfigurationError]]:
    """The wires and endpoints beside that of ``find_wire_and_endpoint``: the same provider with its further keys, and
    the fallbacks with each of theirs; by a name for people, with the error where a part is missing.
    """
    from hermes_worker.models import factory

    named = zip(settings.model.fallbacks, build_named_choices(settings, settings.model.fallbacks), strict=True)
    main = build_model_choice(settings)
    choices: list[tuple[str, ModelChoice, Sequence[str | None]]] = [
        (settings.model.provider or "the model's server", main, main.more_keys),
        *((name, choice, (choice.api_key, *choice.more_keys)) for name, choice in named),
    ]
    for name, choice, keys in choices:
        for key in keys:
            try:
                one = replace(choice, api_key=key)
                yield name, factory.resolve_endpoint(one, proxy_url=choice.proxy_url, extras=choice.extras)
            except ConfigurationError as error:
                yield name, error


def build_chain(settings: Settings, grants: TokenSource | None = None) -> ProviderChain:
    """Build the chain of the provider that the settings name, and its fallbacks. Connects to nothing. Without
    ``grants`` only keys are used.
    """
    from hermes_worker.models.chain import ProviderChain

    return ProviderChain(
        build_model_choice(settings), build_named_choices(settings, settings.model.fallbacks), grants=grants
    )


def build_grants(settings: Settings, database: Database) -> LoginTokens | None:
    """The access tokens of the configured logins; ``None`` when there are none."""
    if not settings.model.refresh_tokens:
        return None
    from hermes_worker.models.logins import LoginTokens, exchange_over
    from hermes_worker.store.access.logins import Logins

    return LoginTokens(Logins(database), exchange_over(settings.model.proxy_url))


def build_grants_at(database: Database, exchange: Exchange) -> LoginTokens:
    """Access tokens for logins at servers of others, whose refresh tokens ``exchange`` sends."""
    from hermes_worker.models.logins import LoginTokens
    from hermes_worker.store.access.logins import Logins

    return LoginTokens(Logins(database), exchange)


def list_logins(settings: Settings) -> tuple[Login, ...]:
    """The logins that are configured."""
    model = settings.model
    return tuple(
        Login(
            token_url=model.token_url or "",
            refresh_token=token.reveal(),
            client_id=model.client_id or "",
            client_secret=model.client_secret.reveal() if model.client_secret else "",
        )
        for token in model.refresh_tokens
    )


def list_wires(settings: Settings) -> Iterator[tuple[str, str]]:
    """List who is asked, and over which wire: the model, its fallbacks and the providers of auxiliary calls. Those that
    are not set up are left out."""
    from hermes_worker.models.chain import find_wire

    named = chain(settings.model.fallbacks, *list_auxiliary_names(settings).values())
    for choice in (build_model_choice(settings), *build_named_choices(settings, list(named))):
        if (wire := find_wire(choice)) is not None:
            yield choice.provider or "the model's server", wire


def build_auxiliary_chains(settings: Settings) -> dict[str, ProviderChain]:
    """Build the chains for calls beside the conversation, by task; those without a key are left out."""
    from hermes_worker.models.chain import ProviderChain, is_usable

    named = list_auxiliary_names(settings)
    usable = {task: [c for c in build_named_choices(settings, names) if is_usable(c)] for task, names in named.items()}
    return {task: ProviderChain(choices[0], choices[1:]) for task, choices in usable.items() if choices}


def list_auxiliary_names(settings: Settings) -> dict[str, Sequence[str]]:
    """The providers of calls beside the conversation, as the settings name them."""
    from hermes_worker.core.auxiliary import AuxTask

    model = settings.model
    return {
        AuxTask.COMPRESSION: model.compression_providers,
        AuxTask.TITLE: model.title_providers,
        AuxTask.APPROVAL: model.approval_providers,
        AuxTask.VISION: model.vision_providers,
        AuxTask.WEB_EXTRACT: model.web_extract_providers,
    }


def build_named_choices(settings: Settings, named: Sequence[str]) -> list[ModelChoice]:
    """Build the settings of providers that are named as ``provider:model@address$KEY_VARIABLE``."""
    return [_build_named_choice(settings, name) for name in map(parse_named_model, named)]


def _build_named_choice(settings: Settings, name: NamedModel) -> ModelChoice:
    """The settings of one provider. A key variable that is named belongs to this entry, whatever its address: the same
    person wrote both.
    """
    from hermes_worker.models.chain import ModelChoice

    choice = ModelChoice(
        provider=name.provider,
        model=name.model,
        base_url=name.address,
        proxy_url=settings.model.proxy_url,
        extras=_build_extras(settings, name.provider),
    )
    if name.key_variable is None:
        return _add_keys(choice, _find_vendor_keys(settings, name.provider, name.address))
    key = settings.model.vendor_keys.get(name.key_variable)
    return _add_keys(choice, [key.reveal()] if key is not None else [])


def _build_extras(settings: Settings, provider: str | None, base_url: str | None = None) -> ProviderOptions:
    """The further settings of this provider, under any of its names."""
    from hermes_worker.models.catalog import find_provider, find_provider_by_host

    row = find_provider(provider) if provider else find_provider_by_host(base_url or "")
    names = (row.name, *row.aliases) if row is not None else (provider or "custom",)
    return settings.model.find_options(*names)


def build_model_choice(settings: Settings) -> ModelChoice:
    from hermes_worker.models.chain import ModelChoice

    model = settings.model
    choice = ModelChoice(
        base_url=model.base_url,
        model=model.name or "",
        api_mode=model.api_mode,
        provider=model.provider,
        proxy_url=model.proxy_url,
        logins=list_logins(settings),
        extras=_build_extras(settings, model.provider, model.base_url),
    )
    keys = _find_vendor_keys(settings, model.provider, model.base_url)
    if model.api_key:
        given = model.api_key.reveal()
        # A key of our own variable stands in for the vendor's; one that was taken from there brings its siblings.
        keys = [given, *(keys if given in keys else ())]
    return _add_keys(choice, [*keys, *(key.reveal() for key in model.more_keys)])


def _add_keys(choice: ModelChoice, keys: Sequence[str]) -> ModelChoice:
    first, *more = dict.fromkeys(keys) or (None,)
    return replace(choice, api_key=first, more_keys=tuple(key for key in more if key))


def _find_vendor_keys(settings: Settings, provider: str | None, base_url: str | None) -> list[str]:
    """The provider's keys from its usual variables; never for an address that is not its own. Servers that people run
    themselves (``vllm``) have no address of their own, so their keys are sent to the configured one.
    """
    from hermes_worker.models.catalog import find_provider, find_provider_by_host

    at_address = find_provider_by_host(base_url or "")
    row = find_provider(provider) if provider else at_address
    is_theirs = row is at_address or (row is not None and row.is_own_server and at_address is None)
    if row is None or (base_url and not is_theirs):
        return []
    held = settings.model.vendor_keys
    first = next((name for name in row.key_variables if name in held), None)
    if first is None:
        return []
    return [held[name].reveal() for name in (first, *(f"{first}_{n}" for n in range(1, 100))) if name in held]


def build_configured_limits(settings: Settings) -> ConfiguredLimits:
    from hermes_worker.models.governor import ConfiguredLimits

    model = settings.model
    return ConfiguredLimits(
        requests_per_min=model.requests_per_min,
        tokens_per_min=model.tokens_per_min,
        in_flight_max=model.in_flight_max,
    )


def build_pricing(settings: Settings) -> Pricing:
    """The prices of model calls, for code that cannot ask a provider: the sweeper, also where no provider is set up."""
    from hermes_worker.models.catalog import find_provider, find_provider_by_host
    from hermes_worker.models.prices import compute_cost

    model = settings.model
    row = (find_provider(model.provider) if model.provider else None) or find_provider_by_host(model.base_url or "")
    first = model.provider or (row.name if row else "custom")
    own = dict(parse_own_price(text) for text in model.prices)
    others = [(name.provider, name.model) for name in map(parse_named_model, model.fallbacks)]

    def price_usage(asked_for: str, position: int, usage: Usage) -> Cost:
        provider, name = (first, asked_for) if not position or not others else others[min(position, len(others)) - 1]
        return compute_cost(usage, provider=provider, model=name, own_prices=own)

    return price_usage


def build_key_rules(settings: Settings) -> KeyRules:
    """Build the rules by which a provider's key is closed and tried again."""
    model = settings.model
    return KeyRules(
        probe_first_s=model.probe_first_s,
        probe_max_s=max(model.probe_first_s, model.probe_max_s),
    )
