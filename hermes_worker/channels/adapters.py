"""Load what sends to each platform: the ``Sending`` of its row.

Three have no adapter: mail, which is built by ``platforms.email`` and goes over SMTP, and ``apprise`` and ``local``,
which need no requests of ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from datetime import datetime
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from hermes_worker import installed
from hermes_worker.channels.catalog import WEBHOOK, WEBHOOK_SENDING, Platform, Sending, list_platforms
from hermes_worker.channels.exchange import Exchange, Outcome, Part
from hermes_worker.channels.platforms import email
from hermes_worker.channels.targets import Target
from hermes_worker.core.chat_accounts import DEFAULT_ACCOUNT, select_account_values, strip_account_suffix
from hermes_worker.core.errors import ConfigurationError
from hermes_worker.extension import Extension, Installed, Reference, load_reference


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """The adapter of a platform: how to send to it."""

    sending: Sending

    @property
    def credentials(self) -> type:
        kind: type = load_reference(self.sending.credentials)
        return kind

    @property
    def loses_buttons(self) -> bool:
        """Whether the buttons below a sent message can be removed."""
        return self.sending.edit is not None

    def send(self, part: Part, target: Target, credentials: Any, at: datetime) -> Exchange:
        """Begin the exchange that sends a part; ``at`` is the time to sign with."""
        send = load_reference(self.sending.send)
        exchange: Exchange = (
            send(part, target, credentials, at=at) if self.sending.signs_time else send(part, target, credentials)
        )
        return exchange

    def say(self, part: Part, target: Target, credentials: Any) -> Outcome:
        """Send a part over a connection of its own. Raises ``Unsendable``."""
        outcome: Outcome = load_reference(self.sending.send)(part, target, credentials)
        return outcome

    def edit(self, part: Part, message_id: str, target: Target, credentials: Any) -> Exchange:
        """Begin the exchange that gives a message of ours another text. Raises ``ConfigurationError`` where messages
        cannot be edited."""
        exchange: Exchange = self._require_reference(self.sending.edit)(part, message_id, target, credentials)
        return exchange

    def remove(self, message_id: str, target: Target, credentials: Any) -> Exchange:
        """Begin the exchange that deletes a message of ours. Raises ``ConfigurationError`` where messages cannot be
        deleted."""
        exchange: Exchange = self._require_reference(self.sending.remove)(message_id, target, credentials)
        return exchange

    @property
    def shows_typing(self) -> bool:
        """Whether the platform can show in a chat that somebody is typing."""
        return self.sending.typing is not None

    def show_typing(self, target: Target, credentials: Any) -> Exchange:
        """Begin the exchange that shows typing. Raises ``ConfigurationError`` where the platform has no such sign."""
        if self.sending.typing is None:
            raise ConfigurationError("This platform does not show that somebody writes.")
        exchange: Exchange = load_reference(self.sending.typing)(target, credentials)
        return exchange

    @staticmethod
    def _require_reference(reference: Reference | None) -> Any:
        if reference is None:
            raise ConfigurationError("Messages of this platform cannot be changed.")
        return load_reference(reference)


def list_sendings(extension: Extension) -> tuple[Sending, ...]:
    """List how the channels of an extension send."""
    rows = installed.require_rows(Platform, extension.channels)
    return tuple(row.sending for row in rows if row.sending is not None)


@lru_cache(maxsize=4)
def _build_adapters(found: Installed) -> Mapping[str, Adapter]:
    sendings = {name: row.sending for name, row in list_platforms().items() if row.sending is not None}
    return MappingProxyType(
        {name: Adapter(sending=one) for name, one in {**sendings, WEBHOOK: WEBHOOK_SENDING}.items()}
    )


def load_adapters() -> Mapping[str, Adapter]:
    """Load all adapters, by the platform's name in a ``Target``."""
    return _build_adapters(installed.get_installed())


EMAIL = "email"
EMAIL_VARIABLES: Mapping[str, str] = MappingProxyType(
    {
        "host": "EMAIL_SMTP_HOST",
        "port": "EMAIL_SMTP_PORT",
        "sender": "EMAIL_ADDRESS",
        "username": "EMAIL_SMTP_USERNAME",
        "password": "EMAIL_PASSWORD",
        "sender_name": "EMAIL_SENDER_NAME",
    }
)


def find_secret_variables() -> frozenset[str]:
    """Find the variables whose values are secrets."""
    declared = (
        adapter.sending.variables[name] for adapter in load_adapters().values() for name in adapter.sending.secrets
    )
    return frozenset((*declared, *(EMAIL_VARIABLES[item.name] for item in fields(email.Credentials) if not item.repr)))


def list_secrets(values: Mapping[str, str]) -> tuple[str, ...]:
    """List the values of all settings whose variable holds a secret, of every account."""
    known = find_secret_variables()
    return tuple(value.strip() for name, value in values.items() if strip_account_suffix(name) in known)


def choose_values(target: Target, values: Mapping[str, str]) -> Mapping[str, str]:
    """Choose the settings by variable name that hold for the account that sends to ``target``."""
    return select_account_values(values, target.account or DEFAULT_ACCOUNT, find_secret_variables())


def build_credentials(platform: str, values: Mapping[str, str]) -> Any:
    """Build the credentials of a platform from settings by variable name. Raises ``ConfigurationError`` that names what
    is missing."""
    adapter = load_adapters()[platform]
    return _fill_credentials(platform, adapter.credentials, adapter.sending.variables, values)


def build_email_credentials(values: Mapping[str, str]) -> email.Credentials:
    """Build the credentials for mail from settings by variable name. Raises ``ConfigurationError``."""
    port = values.get(EMAIL_VARIABLES["port"], "").strip()
    if port and not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise ConfigurationError(f"{EMAIL_VARIABLES['port']} is a port from 1 to 65535, not {port!r}.")
    found: email.Credentials = _fill_credentials("email", email.Credentials, EMAIL_VARIABLES, values)
    return found


def list_missing_variables(platform: str, values: Mapping[str, str]) -> list[str]:
    """List the variables that must be set before something can be sent to a platform, and are not."""
    if platform == EMAIL:
        return _list_missing(email.Credentials, EMAIL_VARIABLES, values)
    adapter = load_adapters().get(platform)
    return _list_missing(adapter.credentials, adapter.sending.variables, values) if adapter is not None else []


def _list_missing(kind: Any, variables: Mapping[str, str], values: Mapping[str, str]) -> list[str]:
    needed = [variables[item.name] for item in fields(kind) if item.default is MISSING]
    return [name for name in needed if not values.get(name, "").strip()]


def _fill_credentials(platform: str, kind: type, variables: Mapping[str, str], values: Mapping[str, str]) -> Any:
    given = {name: values[variable].strip() for name, variable in variables.items() if values.get(variable, "").strip()}
    if missing := _list_missing(kind, variables, values):
        raise ConfigurationError(f"Delivery to {platform} is not configured: set {', '.join(missing)}.")
    return kind(**{name: int(value) if name == "port" else value for name, value in given.items()})
