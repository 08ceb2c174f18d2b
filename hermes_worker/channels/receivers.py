"""Load what listens to each platform: the ``Receiving`` of its row, and the credentials of an account."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import MISSING, dataclass, field, fields
from datetime import datetime
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from hermes_worker import installed
from hermes_worker.channels.catalog import list_platforms
from hermes_worker.channels.errors import DeliveryError
from hermes_worker.channels.file_addresses import Downloading, FileSink
from hermes_worker.channels.inbound.declaration import InboundMode, Receiving
from hermes_worker.channels.inbound.receiving import (
    Acknowledging,
    Identifying,
    KeysExchange,
    Polled,
    Polling,
    SocketTalk,
    WebhookAnswer,
    WebhookRequest,
)
from hermes_worker.core.chat_accounts import DEFAULT_ACCOUNT, add_account_suffix, format_account, select_account_values
from hermes_worker.core.errors import ConfigurationError
from hermes_worker.core.inbound import Inbound, InboundButton, MediaRef
from hermes_worker.extension import Installed, Reference, load_reference


@dataclass(frozen=True, slots=True, kw_only=True)
class Receiver:
    """Listens to a platform. A method that the platform does not offer raises ``ConfigurationError``."""

    platform: str
    receiving: Receiving

    def receive(self, request: WebhookRequest, credentials: Any, at: datetime) -> tuple[Inbound, ...]:
        """Verify and read a request. Raises ``Forged``, ``UnreadableInbound``."""
        found: tuple[Inbound, ...] = self._load(self.receiving.receive, "webhook")(request, credentials, at)
        return found

    def answer(self, request: WebhookRequest, credentials: Any, at: datetime) -> WebhookAnswer | None:
        """Build the answer to the platform after ``receive``; ``None`` for an empty 200."""
        if self.receiving.answer is None:
            return None
        found: WebhookAnswer | None = load_reference(self.receiving.answer)(request, credentials, at)
        return found

    def poll(self, cursor: str, credentials: Any, at: datetime, hold_s: float) -> Polling:
        """Begin a poll. ``hold_s``: seconds for which the platform may hold the answer back while there is nothing."""
        found: Polling = self._load(self.receiving.poll, "poll")(cursor, credentials, at, hold_s)
        return found

    def fetch(self, cursor: str, credentials: Any, at: datetime, hold_s: float) -> Polled | DeliveryError:
        """Poll over a connection of its own. Blocks, and looks again for ``hold_s`` seconds while there is nothing."""
        found: Polled | DeliveryError = self._load(self.receiving.fetch, "fetch")(cursor, credentials, at, hold_s)
        return found

    def open_talk(self, credentials: Any) -> SocketTalk:
        found: SocketTalk = self._load(self.receiving.socket, "socket")(credentials)
        return found

    def download(self, media: MediaRef, credentials: Any) -> Downloading:
        """Begin a download. ``credentials`` are those that messages are sent with."""
        found: Downloading = self._load(self.receiving.download, "download")(media, credentials)
        return found

    def read_file(self, media: MediaRef, credentials: Any, sink: FileSink) -> DeliveryError | None:
        """Download over a connection of its own, and block; ``None`` on success."""
        found: DeliveryError | None = self._load(self.receiving.read_file, "read_file")(media, credentials, sink)
        return found

    def acknowledge(self, press: InboundButton, credentials: Any) -> Acknowledging | None:
        """Begin the exchange that tells the platform that a press was taken; ``None`` where it need not be told."""
        if self.receiving.acknowledge is None or not press.press_id:
            return None
        found: Acknowledging = load_reference(self.receiving.acknowledge)(press, credentials)
        return found

    def identify(self, credentials: Any) -> Identifying | None:
        """Begin the exchange that asks whose the credentials are; ``None`` where the platform cannot be asked."""
        if self.receiving.identify is None:
            return None
        found: Identifying = load_reference(self.receiving.identify)(credentials)
        return found

    def fetch_signing_keys(self, credentials: Any) -> KeysExchange | None:
        if self.receiving.signing_keys is None:
            return None
        found: KeysExchange = load_reference(self.receiving.signing_keys)(credentials)
        return found

    def build_credentials(self, values: Mapping[str, str]) -> Any:
        """Build the credentials from settings by variable name. Raises ``ConfigurationError`` that names what is
        missing."""
        kind: type = load_reference(self.receiving.credentials)
        variables = self.receiving.variables
        given = {
            name: values[variable].strip() for name, variable in variables.items() if values.get(variable, "").strip()
        }
        missing = [variables[one.name] for one in fields(kind) if one.name not in given and one.default is MISSING]
        if missing:
            raise ConfigurationError(f"{self.platform} cannot be listened to: set {', '.join(missing)}.")
        return kind(**given)

    def choose_values(self, values: Mapping[str, str], name: str) -> Mapping[str, str]:
        """Choose the settings by variable name that hold for the account called ``name``."""
        secrets = {self.receiving.variables[field] for field in self.receiving.secrets}
        return select_account_values(values, name, secrets)

    def list_usable_modes(self, values: Mapping[str, str]) -> tuple[InboundMode, ...]:
        """List the modes whose required variables are set, in the platform's order."""
        variables, required = self.receiving.variables, self.receiving.required
        return tuple(
            mode
            for mode in self.receiving.modes
            if all(values.get(variables[name], "").strip() for name in required.get(mode, ()))
        )

    def takes_presses(self, values: Mapping[str, str]) -> bool:
        """Whether presses of buttons come to a webhook, in whichever way messages of the account come in."""
        fields = self.receiving.presses
        return bool(fields) and all(values.get(self.receiving.variables[name], "").strip() for name in fields)

    def _load(self, reference: Reference | None, what: str) -> Any:
        if reference is None:
            raise ConfigurationError(f"{self.platform} is not listened to by {what}.")
        return load_reference(reference)


@lru_cache(maxsize=4)
def _build_receivers(found: Installed) -> Mapping[str, Receiver]:
    rows = list_platforms().items()
    return MappingProxyType(
        {name: Receiver(platform=name, receiving=row.receiving) for name, row in rows if row.receiving is not None}
    )


def load_receivers() -> Mapping[str, Receiver]:
    """Load all receivers, by the platform's name in the catalogue."""
    return _build_receivers(installed.get_installed())


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfiguredAccount:
    """An account whose credentials are set."""

    receiver: Receiver
    name: str
    mode: InboundMode
    values: Mapping[str, str] = field(repr=False)
    """The settings by variable name that hold for this account."""

    @property
    def account(self) -> str:
        return format_account(self.receiver.platform, self.name)


def list_accounts(values: Mapping[str, str], named: Collection[str] = ()) -> list[ConfiguredAccount]:
    """List the accounts that ``values`` (settings, by variable name) configure: the default one of each platform, and
    those that are ``named``. Raises ``ConfigurationError`` for one that cannot be listened to."""
    usual = [_find_account(one, DEFAULT_ACCOUNT, values) for one in load_receivers().values()]
    return [*(one for one in usual if one is not None), *(_require_account(account, values) for account in named)]


def _require_account(account: str, values: Mapping[str, str]) -> ConfiguredAccount:
    platform, _, name = account.partition(":")
    receiver = load_receivers().get(platform)
    if receiver is None:
        raise ConfigurationError(f"HERMES_GATEWAY_ACCOUNTS names {account!r}, and {platform!r} is not listened to.")
    if name == DEFAULT_ACCOUNT:
        raise ConfigurationError(f"HERMES_GATEWAY_ACCOUNTS names {account!r}, which is there without being named.")
    found = _find_account(receiver, name, values)
    if found is None:
        usual = receiver.receiving.required.values()
        needed = {add_account_suffix(receiver.receiving.variables[one], name) for every in usual for one in every}
        raise ConfigurationError(f"The account {account!r} cannot be listened to: set {' or '.join(sorted(needed))}.")
    return found


def _find_account(receiver: Receiver, name: str, values: Mapping[str, str]) -> ConfiguredAccount | None:
    own = receiver.choose_values(values, name)
    mode = next(iter(receiver.list_usable_modes(own)), None)
    return None if mode is None else ConfiguredAccount(receiver=receiver, name=name, mode=mode, values=own)


def list_gateway_accounts(values: Mapping[str, str], named: Collection[str] = ()) -> list[ConfiguredAccount]:
    """List the accounts that are polled, or listened to over a lasting connection. Raises ``ConfigurationError``."""
    return [one for one in list_accounts(values, named) if one.mode is not InboundMode.WEBHOOK]


def find_webhook_account(values: Mapping[str, str], named: Collection[str], address: str) -> ConfiguredAccount | None:
    """Find the account that brings events, or only presses of buttons, to the API below ``address``: ``telegram``, or
    ``telegram@ops``."""
    platform, at, name = address.partition("@")
    receiver = load_receivers().get(platform)
    if receiver is None or (at and format_account(platform, name) not in named):
        return None
    found = _find_account(receiver, name or DEFAULT_ACCOUNT, values)
    if found is not None and found.mode is InboundMode.WEBHOOK:
        return found
    # The API may lack the credentials with which the account is listened to.
    own = receiver.choose_values(values, name or DEFAULT_ACCOUNT)
    if not receiver.takes_presses(own):
        return None
    mode = receiver.receiving.modes[0]
    return ConfiguredAccount(receiver=receiver, name=name or DEFAULT_ACCOUNT, mode=mode, values=own)
