"""The choice of providers for a tenant that brings provider keys of its own, in place of those of the installation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from hermes_worker.core.errors import ConfigurationError
from hermes_worker.models.chain import ModelChoice, ModelRoute
from hermes_worker.models.factory import find_provider_row


def with_own_keys(choice: ModelChoice, keys: Mapping[str, Sequence[str]]) -> ModelChoice | None:
    """The choice for a tenant that brings ``keys``, by providers of the catalogue: with its own keys, or unchanged
    where no key is needed. ``None`` where only a key of the installation would do, which is not the tenant's to use.
    """
    own = keys.get(find_provider_row(choice).name, ())
    if own:
        return replace(choice, api_key=own[0], more_keys=tuple(own[1:]), logins=())
    return None if choice.api_key or choice.more_keys or choice.logins else choice


class WithoutKey:
    """The chain of a tenant that has keys of its own, but none for the provider of the installation."""

    def __init__(self, tenant: str, provider: str) -> None:
        self._said = (
            f"the tenant {tenant!r} has provider keys of its own, and none for {provider!r}: add one with "
            f"'hermes-worker fleet providers keys add {provider} --tenant {tenant}'"
        )

    def __len__(self) -> int:
        return 1

    def list_credentials(self, model: str, position: int) -> Sequence[str]:
        return ()

    def resolve_route(self, model: str, position: int, credential: str = "") -> ModelRoute:
        """Refuse every request, because the tenant has no key of its own. Raises ``ConfigurationError``."""
        raise ConfigurationError(self._said)
