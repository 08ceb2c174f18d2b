"""Which module speaks to which platform: one line each.

``sms``, ``line``, ``google_chat``, ``teams``, ``dingtalk``, ``github_comment`` and ``homeassistant`` cannot take a
file; a part with one is sent to them as its text. Mail is built by ``platforms.email`` and goes over SMTP, ``apprise``
and ``local`` have no requests of ours: these three are not listed.

A platform that recognises a repetition by its key says for how long: a message whose outcome is open is not repeated
silently after that time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from datetime import datetime
from types import MappingProxyType, ModuleType
from typing import Any

from hermes_worker.channels.catalog import TextLimit, TextUnit
from hermes_worker.channels.exchange import Exchange, Part
from hermes_worker.channels.platforms import (
    dingtalk,
    discord,
    email,
    feishu,
    github_comment,
    google_chat,
    homeassistant,
    line,
    matrix,
    mattermost,
    ntfy,
    signal,
    slack,
    sms,
    teams,
    telegram,
    webhook,
    wecom,
    whatsapp_cloud,
)
from hermes_worker.channels.targets import Target
from hermes_worker.core.errors import ConfigurationError

Send = Callable[[Part, Target, Any, datetime], Exchange]


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """How to send to a platform."""

    send: Send
    """Part, target, credentials and the time to sign with, to the exchange."""
    credentials: type
    key_kept_s: float
    """For how long the platform recognises a repetition, in seconds; 0 when it does not."""
    takes_files: bool
    caption: TextLimit | None
    """The longest text that goes with a file in one message; ``None`` when a text is another message."""
    variables: Mapping[str, str]
    """Fields of the credentials and the environment variables they are read from."""


def _adapter(
    module: ModuleType, *, takes_files: bool = True, caption: TextLimit | None = None, **variables: str
) -> Adapter:
    def send(part: Part, target: Target, credentials: Any, at: datetime) -> Exchange:
        exchange: Exchange = module.send(part, target, credentials)
        return exchange

    return _with_send(module, send, takes_files, caption, variables)


def _signing_adapter(module: ModuleType, *, takes_files: bool = True, **variables: str) -> Adapter:
    def send(part: Part, target: Target, credentials: Any, at: datetime) -> Exchange:
        exchange: Exchange = module.send(part, target, credentials, at=at)
        return exchange

    return _with_send(module, send, takes_files, None, variables)


def _with_send(
    module: ModuleType, send: Send, takes_files: bool, caption: TextLimit | None, variables: dict[str, str]
) -> Adapter:
    return Adapter(
        send=send,
        credentials=module.Credentials,
        key_kept_s=module.KEY_KEPT_S,
        takes_files=takes_files,
        caption=caption,
        variables=MappingProxyType(variables),
    )


_CAPTION = TextLimit(size_max=1024, unit=TextUnit.UTF16)
"""Telegram's and WhatsApp's limit, and enough for a sentence about a file elsewhere."""

ADAPTERS: Mapping[str, Adapter] = MappingProxyType(
    {
        "telegram": _adapter(telegram, caption=_CAPTION, token="TELEGRAM_BOT_TOKEN", base_url="TELEGRAM_BASE_URL"),
        "discord": _adapter(discord, caption=_CAPTION, token="DISCORD_BOT_TOKEN", base_url="DISCORD_BASE_URL"),
        "slack": _adapter(slack, caption=_CAPTION, token="SLACK_BOT_TOKEN", base_url="SLACK_BASE_URL"),
        "matrix": _adapter(matrix, homeserver="MATRIX_HOMESERVER", access_token="MATRIX_ACCESS_TOKEN"),
        "mattermost": _adapter(mattermost, caption=_CAPTION, base_url="MATTERMOST_URL", token="MATTERMOST_TOKEN"),
        "ntfy": _adapter(
            ntfy,
            base_url="NTFY_SERVER_URL",
            token="NTFY_TOKEN",
            username="NTFY_USERNAME",
            password="NTFY_PASSWORD",
        ),
        "webhook": _signing_adapter(webhook, secret="WEBHOOK_DELIVERY_SECRET"),
        "feishu": _adapter(feishu, app_id="FEISHU_APP_ID", app_secret="FEISHU_APP_SECRET", base_url="FEISHU_BASE_URL"),
        "dingtalk": _signing_adapter(
            dingtalk, takes_files=False, webhook_url="DINGTALK_WEBHOOK_URL", secret="DINGTALK_WEBHOOK_SECRET"
        ),
        "wecom": _adapter(wecom, key="WECOM_ROBOT_KEY", base_url="WECOM_BASE_URL"),
        "whatsapp_cloud": _adapter(
            whatsapp_cloud,
            caption=_CAPTION,
            phone_number_id="WHATSAPP_CLOUD_PHONE_NUMBER_ID",
            token="WHATSAPP_CLOUD_ACCESS_TOKEN",
            base_url="WHATSAPP_CLOUD_BASE_URL",
        ),
        "signal": _adapter(signal, caption=_CAPTION, base_url="SIGNAL_HTTP_URL", account="SIGNAL_ACCOUNT"),
        "sms": _adapter(
            sms,
            takes_files=False,
            account_sid="TWILIO_ACCOUNT_SID",
            auth_token="TWILIO_AUTH_TOKEN",
            sender="TWILIO_PHONE_NUMBER",
            base_url="TWILIO_BASE_URL",
        ),
        "line": _adapter(line, takes_files=False, token="LINE_CHANNEL_ACCESS_TOKEN", base_url="LINE_BASE_URL"),
        "google_chat": _adapter(
            google_chat,
            takes_files=False,
            access_token="GOOGLE_CHAT_ACCESS_TOKEN",
            webhook_url="GOOGLE_CHAT_WEBHOOK_URL",
            base_url="GOOGLE_CHAT_BASE_URL",
        ),
        "teams": _adapter(
            teams,
            takes_files=False,
            app_id="TEAMS_CLIENT_ID",
            app_password="TEAMS_CLIENT_SECRET",
            tenant="TEAMS_TENANT_ID",
            service_url="TEAMS_SERVICE_URL",
            login_url="TEAMS_LOGIN_URL",
        ),
        "github_comment": _adapter(github_comment, takes_files=False, token="GITHUB_TOKEN", base_url="GITHUB_API_URL"),
        "homeassistant": _adapter(homeassistant, takes_files=False, base_url="HASS_URL", token="HASS_TOKEN"),
    }
)
"""By the platform's name in a ``Target``."""

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


def secret_variables() -> frozenset[str]:
    """The variables whose values are secrets: those of the fields that no ``repr`` shows."""
    kinds = [(adapter.credentials, adapter.variables) for adapter in ADAPTERS.values()]
    return frozenset(
        variables[field.name]
        for kind, variables in (*kinds, (email.Credentials, EMAIL_VARIABLES))
        for field in fields(kind)
        if not field.repr
    )


def credentials_for(platform: str, values: Mapping[str, str]) -> Any:
    """The credentials of a platform from settings, by variable name. Raises ``ConfigurationError`` that names what is
    missing."""
    adapter = ADAPTERS[platform]
    return _filled(platform, adapter.credentials, adapter.variables, values)


def email_credentials(values: Mapping[str, str]) -> email.Credentials:
    """The same for mail. Raises ``ConfigurationError``."""
    port = values.get(EMAIL_VARIABLES["port"], "").strip()
    if port and not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise ConfigurationError(f"{EMAIL_VARIABLES['port']} is a port from 1 to 65535, not {port!r}.")
    found: email.Credentials = _filled("email", email.Credentials, EMAIL_VARIABLES, values)
    return found


def _filled(platform: str, kind: type, variables: Mapping[str, str], values: Mapping[str, str]) -> Any:
    given = {name: values[variable].strip() for name, variable in variables.items() if values.get(variable, "").strip()}
    missing = [variables[field.name] for field in fields(kind) if field.name not in given and field.default is MISSING]
    if missing:
        raise ConfigurationError(f"Delivery to {platform} is not configured: set {', '.join(missing)}.")
    return kind(**{name: int(value) if name == "port" else value for name, value in given.items()})
