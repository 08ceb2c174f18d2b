"""The chat platforms of a fleet that ``hermes-worker init`` sets up: what each needs, and which role gets which
secret."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hermes_worker.channels.adapters import (
    EMAIL,
    EMAIL_VARIABLES,
    find_secret_variables,
    list_missing_variables,
    load_adapters,
)
from hermes_worker.channels.catalog import list_platforms
from hermes_worker.channels.inbound.declaration import InboundMode
from hermes_worker.channels.receivers import Receiver, load_receivers
from hermes_worker.cli.options import suggest_word
from hermes_worker.core.errors import ConfigurationError
from hermes_worker.settings.role_secrets import is_secret

GATEWAY_SECRET, WEBHOOKS_SECRET, CHANNELS_SECRET = "hermes-gateway", "hermes-webhooks", "hermes-channels"
"""The names, in the manifests of Kubernetes, of the secrets of gateways, of the API and of delivery workers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetAccount:
    """The default account of a platform. People write to it, and answers are sent from it."""

    platform: str
    mode: InboundMode
    values: Mapping[str, str] = field(repr=False)
    """Values by variable name; some are secrets."""

    @property
    def is_held(self) -> bool:
        """Whether a gateway listens. Otherwise the platform brings its messages to the API."""
        return self.mode is not InboundMode.WEBHOOK

    @property
    def plain_values(self) -> Mapping[str, str]:
        """The values that are no secrets."""
        secret = list_secret_variables(self.platform)
        return {name: value for name, value in self.values.items() if name not in secret}

    def split_secrets(self) -> Mapping[str, Mapping[str, str]]:
        """Split the secrets by Kubernetes secret: a role gets what it needs and nothing else."""
        row = list_platforms()[self.platform]
        listening = (GATEWAY_SECRET, row.gateway_secrets) if self.is_held else (WEBHOOKS_SECRET, row.webhook_secrets)
        names_by_secret = dict([listening, (CHANNELS_SECRET, sorted(_list_sending_secrets(self.platform)))])
        return {
            secret: {name: self.values[name] for name in names if name in self.values}
            for secret, names in names_by_secret.items()
        }


def list_secret_variables(platform: str) -> frozenset[str]:
    """List the variables of a platform that hold secrets."""
    return _list_sending_secrets(platform).union(list_platforms()[platform].gateway_secrets)


def list_missing(platform: str, values: Mapping[str, str]) -> list[str]:
    """List the variables that are missing to listen to a platform and to answer there. Where it can be listened to in
    several ways, those of the way that needs no public address. Raises ``ConfigurationError`` for a platform that
    cannot be listened to."""
    receiver = _require_receiver(platform)
    needed: list[str] = []
    if not receiver.list_usable_modes(values):
        receiving = receiver.receiving
        needed = [receiving.variables[name] for name in receiving.required[receiving.modes[-1]]]
    unset = [name for name in needed if not values.get(name, "").strip()]
    return list(dict.fromkeys((*unset, *list_missing_variables(platform, values))))


def build_account(platform: str, values: Mapping[str, str]) -> FleetAccount:
    """Build the account that ``values`` (settings, by variable name) configure. Raises ``ConfigurationError`` that
    names what is missing."""
    if missing := list_missing(platform, values):
        raise ConfigurationError(f"{platform} cannot be listened to and answered: set {', '.join(missing)}")
    receiver = _require_receiver(platform)
    receiver.build_credentials(values)
    named = (*receiver.receiving.variables.values(), *_list_sending_variables(platform).values())
    own = {name: values[name].strip() for name in dict.fromkeys(named) if values.get(name, "").strip()}
    for name, value in own.items():
        if name not in list_secret_variables(platform) and is_secret(name, value):
            raise ConfigurationError(f"{name} has a password in it, and all roles would be given it")
    return FleetAccount(platform=platform, mode=receiver.list_usable_modes(values)[0], values=own)


def merge_values(accounts: Sequence[FleetAccount]) -> Mapping[str, str]:
    """Merge the values of all accounts, by variable name, with the one that turns listening on."""
    found = {name: value for account in accounts for name, value in account.values.items()}
    return {"HERMES_GATEWAY": "true", **found} if accounts else {}


def _require_receiver(platform: str) -> Receiver:
    found = load_receivers().get(platform)
    if found is None:
        raise ConfigurationError(
            f"{platform[:80]!r} is not listened to.{suggest_word(platform, load_receivers())} These are: "
            f"{', '.join(sorted(load_receivers()))}"
        )
    return found


def _list_sending_variables(platform: str) -> Mapping[str, str]:
    if platform == EMAIL:
        return EMAIL_VARIABLES
    adapter = load_adapters().get(platform)
    return adapter.sending.variables if adapter is not None else {}


def _list_sending_secrets(platform: str) -> frozenset[str]:
    return find_secret_variables().intersection(_list_sending_variables(platform).values())
