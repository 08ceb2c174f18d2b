"""The chain of providers for the model calls of a run: the configured provider, and those to fall back on, in order."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from hermes_worker.core.errors import ConfigurationError, FailureKind, ModelCallError
from hermes_worker.core.logins import Login
from hermes_worker.models.base import Abort, Provider
from hermes_worker.models.catalog import find_stated_window, list_wire_rows, parse_hostname
from hermes_worker.models.endpoint import Endpoint, check_endpoint
from hermes_worker.models.factory import find_provider_row, get_shared_provider, resolve_endpoint
from hermes_worker.models.login import LoginProvider, TokenSource
from hermes_worker.models.windows import ServedWindow, WindowAnswers
from hermes_worker.settings.kinds import NO_OPTIONS, ProviderOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelChoice:
    """Settings of one provider, as the factory reads them. ``None`` and the empty string both mean "not set"."""

    base_url: str | None = None
    api_key: str | None = None
    model: str = ""
    api_mode: str | None = None
    provider: str | None = None
    more_keys: tuple[str, ...] = ()
    """Keys that may be used in place of ``api_key``."""
    logins: tuple[Login, ...] = ()
    """Used before any key."""
    proxy_url: str | None = None
    extras: ProviderOptions = NO_OPTIONS


def refuse_to_renew(abort: Abort) -> None:
    """Stand in for the renewal of an access token where there is a key: raise ``ModelCallError``."""
    raise ModelCallError(FailureKind.AUTH, "A key is not renewed.")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRoute:
    """One endpoint, model and key that can be asked, and what has to be known of it beside how to ask."""

    provider: Provider
    name: str
    """The provider's name in the catalogue: for prices and for rules of one provider."""
    model: str
    host: str
    """Bare host name."""
    wire: str
    credential: str
    """A name for the key under which workers share what they learn of it; it reveals nothing of the key itself."""
    is_aggregator: bool = False
    window: ServedWindow | None = None
    """Finds out the model's context window; ``None`` where the server is not asked."""
    cuts_silently: bool = False
    renew: Callable[[Abort], None] = refuse_to_renew
    """Gets a new access token in place of one that was refused; raises ``ModelCallError``."""

    @property
    def can_renew(self) -> bool:
        """Whether it is asked with an access token, and not with a key."""
        return self.renew is not refuse_to_renew


_ROUTES_KEPT = 256
"""How many routes are kept: about as many as models that runs ask for."""


class ProviderChain:
    """The routes of an installation. Thread-safe: immutable, except for objects that are shared by design."""

    def __init__(
        self, primary: ModelChoice, fallbacks: Sequence[ModelChoice] = (), *, grants: TokenSource | None = None
    ) -> None:
        """Fallbacks that are not set up (no key, no address) or repeat another place and model are left out: a chain is
        for the moment of need, and then an entry that cannot work is worse than none.

        ``grants`` supplies the access tokens of logins; without it, logins are left out.
        """
        self._grants = grants
        self._windows = WindowAnswers()
        self._primary = primary if grants else replace(primary, logins=())
        self._fallbacks = _select_usable_choices(primary, fallbacks)
        self._routes: dict[tuple[str, int, str, int], ModelRoute] = {}

    def __len__(self) -> int:
        return 1 + len(self._fallbacks)

    @property
    def has_pools(self) -> bool:
        """Whether some provider of the chain has several keys."""
        return any(_has_pool(choice) for choice in (self._primary, *self._fallbacks))

    def list_credentials(self, model: str, position: int) -> Sequence[str]:
        """Names of the keys that may be used at ``position``, if there is a choice; else empty. Raises
        ``ConfigurationError``."""
        if not _has_pool(self._find_choice(position)):
            return ()
        choice = self._find_choice_for_model(model, position)
        _, endpoint = _resolve_endpoint(choice)
        keys = (_name_credential(keyed) for keyed in _iterate_endpoints(endpoint, choice))
        return (*(login.name for login in choice.logins), *keys)

    def resolve_route(self, model: str, position: int, credential: str = "") -> ModelRoute:
        """The route at ``position`` for a run that wants ``model``; a position past the end gives the last one, for a
        run that began under a longer chain. ``credential`` is one of ``credentials``; without it, the first is used.

        Raises ``ConfigurationError`` naming the setting to change.
        """
        wanted = (model, position, credential, os.getpid())  # a provider's connections are of one process
        route = self._routes.get(wanted)
        if route is None:
            route = self._build_route(model, position, credential)
            if not route.can_renew:  # a login's remembers the token of one call
                self._keep_route(wanted, route)
        return route

    def _keep_route(self, wanted: tuple[str, int, str, int], route: ModelRoute) -> None:
        if len(self._routes) >= _ROUTES_KEPT:
            self._routes.clear()  # rare, and cheaper than keeping an order
        self._routes[wanted] = route

    def _build_route(self, model: str, position: int, credential: str) -> ModelRoute:
        choice = self._find_choice_for_model(model, position)
        wire, endpoint = _resolve_endpoint(choice)
        login = _find_login(choice, credential)
        if login is None and credential:
            endpoint = next(
                (keyed for keyed in _iterate_endpoints(endpoint, choice) if _name_credential(keyed) == credential),
                endpoint,
            )
        provider, renew = self._build_provider(wire, endpoint, login)
        row = find_provider_row(choice)
        window = ServedWindow(
            endpoint=endpoint,
            model=choice.model,
            wire=wire,
            is_own_server=row.is_own_server,
            stated=find_stated_window(endpoint.provider, choice.model),
            answers=self._windows,
        )
        return ModelRoute(
            provider=provider,
            name=endpoint.provider,
            model=choice.model,
            host=parse_hostname(endpoint.base_url),
            wire=wire,
            credential=login.name if login else _name_credential(endpoint),
            is_aggregator=row.is_aggregator,
            window=window if list_wire_rows()[wire].headers and not login else None,
            cuts_silently=row.cuts_silently,
            renew=renew,
        )

    def _build_provider(
        self, wire: str, endpoint: Endpoint, login: Login | None
    ) -> tuple[Provider, Callable[[Abort], None]]:
        if login is None or self._grants is None:
            return get_shared_provider(wire, endpoint), refuse_to_renew
        provider = LoginProvider(wire, endpoint, login, self._grants)
        return provider, provider.renew

    def _find_choice_for_model(self, model: str, position: int) -> ModelChoice:
        choice = self._find_choice(position)
        return replace(choice, model=model) if choice is self._primary and model else choice

    def _find_choice(self, position: int) -> ModelChoice:
        return (self._primary, *self._fallbacks)[min(position, len(self._fallbacks))]


def is_usable(choice: ModelChoice) -> bool:
    """Return whether the provider is set up: it has a key if it needs one, an address, and a model."""
    return _find_place(choice) is not None and bool(choice.model)


def find_wire(choice: ModelChoice) -> str | None:
    """The name of the wire that a choice is asked over; ``None`` for a choice that cannot be used."""
    try:
        return _resolve_endpoint(choice)[0]
    except ConfigurationError:
        return None


def _select_usable_choices(primary: ModelChoice, fallbacks: Sequence[ModelChoice]) -> tuple[ModelChoice, ...]:
    kept: list[ModelChoice] = []
    taken = {_find_place(primary)}
    for choice in fallbacks:
        place = _find_place(choice)
        if place is not None and choice.model and place not in taken:
            taken.add(place)
            kept.append(choice)
    return tuple(kept)


def _find_place(choice: ModelChoice) -> tuple[str, str] | None:
    """Address and model; ``None`` for a choice that cannot be used."""
    try:
        return _resolve_endpoint(choice)[1].plain_url, choice.model
    except ConfigurationError:
        return None


def _resolve_endpoint(choice: ModelChoice) -> tuple[str, Endpoint]:
    return resolve_endpoint(choice, proxy_url=choice.proxy_url, needs_key=not choice.logins, extras=choice.extras)


def _has_pool(choice: ModelChoice) -> bool:
    return len(choice.logins) + bool(choice.api_key) + len(choice.more_keys) > 1


def _find_login(choice: ModelChoice, credential: str) -> Login | None:
    return next((login for login in choice.logins if credential in ("", login.name)), None)


def _iterate_endpoints(endpoint: Endpoint, choice: ModelChoice) -> Iterator[Endpoint]:
    """The endpoint, once with each of its keys."""
    if endpoint.api_key or not choice.logins:
        yield endpoint
    yield from (check_endpoint(replace(endpoint, api_key=key)) for key in choice.more_keys)


def _name_credential(endpoint: Endpoint) -> str:
    """A name for the endpoint's key: a hash, salted by the address and cut short, which identifies the key only to a
    process that has it.
    """
    said = f"{endpoint.plain_url}\0{endpoint.api_key}"
    return hashlib.sha256(said.encode()).hexdigest()[:16]


class NoChain:
    """An empty chain, for a worker that makes no model calls and has no keys."""

    def __len__(self) -> int:
        return 1

    def list_credentials(self, model: str, position: int) -> Sequence[str]:
        return ()

    def resolve_route(self, model: str, position: int, credential: str = "") -> ModelRoute:
        """Raises ``ConfigurationError``."""
        raise ConfigurationError(
            "this worker makes no model calls; start one with 'hermes-worker start worker --queues model'"
        )
