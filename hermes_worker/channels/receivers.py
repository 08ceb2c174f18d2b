"""How to listen to each platform: the ``Receiving`` of its row, loaded, and the credentials of an account."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from datetime import datetime
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from hermes_worker import installed
from hermes_worker.channels.catalog import platforms
from hermes_worker.channels.errors import DeliveryError
from hermes_worker.channels.inbound.declaration import InboundMode, Receiving
from hermes_worker.channels.inbound.receiving import (
    Acknowledging,
    Downloading,
    KeysExchange,
    Polled,
    Polling,
    SocketTalk,
    WebhookAnswer,
    WebhookRequest,
)
from hermes_worker.core.errors import ConfigurationError
from hermes_worker.core.inbound import Inbound, InboundButton, MediaRef
from hermes_worker.extension import Installed, Reference, load


@dataclass(frozen=True, slots=True, kw_only=True)
class Receiver:
    """How to listen to a platform. What a platform has not raises ``ConfigurationError``."""

    platform: str
    receiving: Receiving

    def receive(self, request: WebhookRequest, credentials: Any, at: datetime) -> tuple[Inbound, ...]:
        """Raises ``Forged``, ``UnreadableInbound``."""
        found: tuple[Inbound, ...] = self._load(self.receiving.receive, "webhook")(request, credentials, at)
        return found

    def answer(self, request: WebhookRequest, credentials: Any, at: datetime) -> WebhookAnswer | None:
        """What to tell the platform after ``receive``; ``None`` for an empty 200."""
        if self.receiving.answer is None:
            return None
        found: WebhookAnswer | None = load(self.receiving.answer)(request, credentials, at)
        return found

    def poll(self, cursor: str, credentials: Any, at: datetime, hold_s: float) -> Polling:
        """``hold_s``: for how many seconds the platform may hold the answer back while there is nothing."""
        found: Polling = self._load(self.receiving.poll, "poll")(cursor, credentials, at, hold_s)
        return found

    def fetch(self, cursor: str, credentials: Any, at: datetime) -> Polled | DeliveryError:
        """Blocks, and opens its own connection."""
        found: Polled | DeliveryError = self._load(self.receiving.fetch, "fetch")(cursor, credentials, at)
        return found

    def socket(self, credentials: Any) -> SocketTalk:
        found: SocketTalk = self._load(self.receiving.socket, "socket")(credentials)
        return found

    def download(self, media: MediaRef, credentials: Any) -> Downloading:
        found: Downloading = self._load(self.receiving.download, "download")(media, credentials)
        return found

    def acknowledge(self, press: InboundButton, credentials: Any) -> Acknowledging | None:
        """What tells the platform that a press was taken; ``None`` where it need not be told."""
        if self.receiving.acknowledge is None or not press.press_id:
            return None
        found: Acknowledging = load(self.receiving.acknowledge)(press, credentials)
        return found

    def signing_keys(self, credentials: Any) -> KeysExchange | None:
        if self.receiving.signing_keys is None:
            return None
        found: KeysExchange = load(self.receiving.signing_keys)(credentials)
        return found

    def credentials(self, values: Mapping[str, str]) -> Any:
        """From settings, by variable name. Raises ``ConfigurationError`` that names what is missing."""
        kind: type = load(self.receiving.credentials)
        variables = self.receiving.variables
        given = {
            name: values[variable].strip() for name, variable in variables.items() if values.get(variable, "").strip()
        }
        missing = [variables[one.name] for one in fields(kind) if one.name not in given and one.default is MISSING]
        if missing:
            raise ConfigurationError(f"{self.platform} cannot be listened to: set {', '.join(missing)}.")
        return kind(**given)

    def usable_modes(self, values: Mapping[str, str]) -> tuple[InboundMode, ...]:
        """The modes whose required variables are set, in the platform's order."""
        variables, required = self.receiving.variables, self.receiving.required
        return tuple(
            mode
            for mode in self.receiving.modes
            if all(values.get(variables[name], "").strip() for name in required.get(mode, ()))
        )

    def _load(self, reference: Reference | None, what: str) -> Any:
        if reference is None:
            raise ConfigurationError(f"{self.platform} is not listened to by {what}.")
        return load(reference)


@lru_cache(maxsize=4)
def _receivers_of(found: Installed) -> Mapping[str, Receiver]:
    rows = platforms().items()
    return MappingProxyType(
        {name: Receiver(platform=name, receiving=row.receiving) for name, row in rows if row.receiving is not None}
    )


def receivers() -> Mapping[str, Receiver]:
    """By the platform's name in the catalogue."""
    return _receivers_of(installed.current())


def held_by_gateways(values: Mapping[str, str]) -> list[tuple[Receiver, InboundMode]]:
    """The platforms that have an account in ``values`` (settings, by variable name) and are listened to by asking or
    over a connection that stays open, each with its mode."""
    return [(one, mode) for mode in (InboundMode.POLL, InboundMode.SOCKET) for one in _listened_to(values, mode)]


def at_webhooks(values: Mapping[str, str]) -> Mapping[str, Receiver]:
    """Those that bring events to the API, by name."""
    return {one.platform: one for one in _listened_to(values, InboundMode.WEBHOOK)}


def _listened_to(values: Mapping[str, str], mode: InboundMode) -> list[Receiver]:
    return [one for one in receivers().values() if one.usable_modes(values)[:1] == (mode,)]
