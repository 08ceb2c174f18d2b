"""The platforms that are listened to, as data: one row each, with what it brings in and what it needs for that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from hermes_worker.channels.inbound.declaration import InboundMode, Receiving, declare_receiving

_FOLDER = "hermes_worker.channels.inbound"
_SENDING = "hermes_worker.channels.platforms"


def _declare_webhook(
    module: str,
    *secrets: str,
    needs: tuple[str, ...] = (),
    also: tuple[str, ...] = (),
    asks_by_get: bool = False,
    **variables: str,
) -> Receiving:
    """Declare a platform that brings events to the API and proves them by ``secrets``. These and ``needs`` have to be
    set. All of these follow the vendor's documentation, without an account at hand."""
    return declare_receiving(
        f"{_FOLDER}.{module}",
        modes=(InboundMode.WEBHOOK,),
        required={InboundMode.WEBHOOK: (*secrets, *needs)},
        variables=variables,
        secrets=secrets,
        webhook_secrets=secrets,
        also=also,
        elsewhere=_name_download_module(module),
        is_unverified=True,
        asks_by_get=asks_by_get,
    )


def _declare_socket(
    module: str,
    *secrets: str,
    needs: tuple[str, ...],
    also: tuple[str, ...] = (),
    pairs: bool = True,
    **variables: str,
) -> Receiving:
    """Declare a platform that is listened to over a lasting connection, when ``needs`` are set. All of these follow the
    documentation, without a real server at hand."""
    return declare_receiving(
        f"{_FOLDER}.{module}",
        modes=(InboundMode.SOCKET,),
        required={InboundMode.SOCKET: needs},
        variables=variables,
        secrets=secrets,
        also=also,
        elsewhere=_name_download_module(module),
        is_unverified=True,
        pairs=pairs,
    )


def _name_download_module(module: str) -> Mapping[str, str]:
    """Name the module of ``download``: it stands beside what sends, whose credentials it takes."""
    return {"download": f"{_SENDING}.{module}"}


IRC_VARIABLES: Mapping[str, str] = MappingProxyType(
    {
        "server": "IRC_SERVER",
        "port": "IRC_PORT",
        "uses_tls": "IRC_USE_TLS",
        "nick": "IRC_NICKNAME",
        "password": "IRC_SERVER_PASSWORD",
        "account": "IRC_SASL_USERNAME",
        "account_password": "IRC_SASL_PASSWORD",
    }
)
"""The variables with which both the listener and the sender log in to a network."""
IRC_SECRETS = ("password", "account_password")

RECEIVING: Mapping[str, Receiving] = MappingProxyType(
    {
        "telegram": declare_receiving(
            f"{_FOLDER}.telegram",
            modes=(InboundMode.WEBHOOK, InboundMode.POLL),
            required={InboundMode.POLL: ("token",), InboundMode.WEBHOOK: ("webhook_secret",)},
            variables={
                "token": "TELEGRAM_BOT_TOKEN",
                "base_url": "TELEGRAM_BASE_URL",
                "webhook_secret": "TELEGRAM_WEBHOOK_SECRET",
                "bot_name": "TELEGRAM_BOT_USERNAME",
            },
            secrets=("token", "webhook_secret"),
            webhook_secrets=("webhook_secret",),
            also=("answer", "download", "acknowledge", "identify"),
            elsewhere=_name_download_module("telegram"),
            is_unverified=True,
        ),
        "matrix": declare_receiving(
            f"{_FOLDER}.matrix",
            modes=(InboundMode.POLL,),
            required={InboundMode.POLL: ("homeserver", "access_token")},
            variables={"homeserver": "MATRIX_HOMESERVER", "access_token": "MATRIX_ACCESS_TOKEN"},
            secrets=("access_token",),
            also=("download", "identify"),
            elsewhere=_name_download_module("matrix"),
        ),
        "email": declare_receiving(
            f"{_FOLDER}.email",
            modes=(InboundMode.POLL,),
            required={InboundMode.POLL: ("host", "address", "password", "authserv_id")},
            variables={
                "host": "EMAIL_IMAP_HOST",
                "port": "EMAIL_IMAP_PORT",
                "tls": "EMAIL_IMAP_TLS",
                "folder": "EMAIL_IMAP_FOLDER",
                "username": "EMAIL_IMAP_USERNAME",
                "address": "EMAIL_ADDRESS",
                "password": "EMAIL_PASSWORD",
                "authserv_id": "EMAIL_AUTHSERV_ID",
            },
            secrets=("password",),
            also=("fetch", "read_file"),
            elsewhere={"fetch": "hermes_worker.channels.imap", "read_file": "hermes_worker.channels.imap"},
            pairs=False,
        ),
        "slack": declare_receiving(
            f"{_FOLDER}.slack",
            modes=(InboundMode.WEBHOOK, InboundMode.SOCKET),
            required={InboundMode.WEBHOOK: ("signing_secret",), InboundMode.SOCKET: ("app_token",)},
            variables={
                "signing_secret": "SLACK_SIGNING_SECRET",
                "app_token": "SLACK_APP_TOKEN",
                "base_url": "SLACK_BASE_URL",
            },
            secrets=("signing_secret", "app_token"),
            webhook_secrets=("signing_secret",),
            also=("answer", "download"),
            elsewhere=_name_download_module("slack"),
            is_unverified=True,
        ),
        "discord": declare_receiving(
            f"{_FOLDER}.discord",
            modes=(InboundMode.WEBHOOK, InboundMode.SOCKET),
            required={InboundMode.WEBHOOK: ("public_key",), InboundMode.SOCKET: ("token",)},
            variables={
                "public_key": "DISCORD_PUBLIC_KEY",
                "token": "DISCORD_BOT_TOKEN",
                "base_url": "DISCORD_BASE_URL",
            },
            secrets=("token",),
            also=("answer", "download"),
            elsewhere={"Socket": f"{_FOLDER}.discord_gateway", **_name_download_module("discord")},
            is_unverified=True,
        ),
        "mattermost": declare_receiving(
            f"{_FOLDER}.mattermost",
            modes=(InboundMode.SOCKET,),
            required={InboundMode.SOCKET: ("base_url", "token")},
            variables={
                "base_url": "MATTERMOST_URL",
                "token": "MATTERMOST_TOKEN",
                "actions_secret": "MATTERMOST_ACTIONS_SECRET",
            },
            secrets=("token", "actions_secret"),
            webhook_secrets=("actions_secret",),
            presses=("actions_secret",),
            also=("answer", "download"),
            elsewhere=_name_download_module("mattermost"),
            is_unverified=True,
        ),
        "ntfy": _declare_socket(
            "ntfy",
            "token",
            "password",
            needs=("topics",),  # a public one needs no secret
            also=("download",),
            pairs=False,  # every reader of the topic would see the code
            topics="NTFY_TOPICS",
            base_url="NTFY_SERVER_URL",
            token="NTFY_TOKEN",
            username="NTFY_USERNAME",
            password="NTFY_PASSWORD",
        ),
        "signal": _declare_socket(
            "signal",
            needs=("base_url", "account"),
            also=("download",),
            base_url="SIGNAL_HTTP_URL",
            account="SIGNAL_ACCOUNT",
        ),
        "homeassistant": _declare_socket(
            "homeassistant",
            "token",
            needs=("base_url", "token"),
            also=("download",),
            pairs=False,  # the automation names the person
            base_url="HASS_URL",
            token="HASS_TOKEN",
        ),
        "irc": replace(
            _declare_socket("irc", *IRC_SECRETS, needs=("server", "nick")),
            variables=MappingProxyType(
                {**IRC_VARIABLES, "channels": "IRC_CHANNELS", "nicks_are_people": "IRC_NICKS_ARE_PEOPLE"}
            ),
            is_unverified=False,  # ngircd is played
        ),
        "whatsapp_cloud": _declare_webhook(
            "whatsapp_cloud",
            "app_secret",
            "verify_token",
            also=("answer", "download"),
            asks_by_get=True,
            app_secret="WHATSAPP_CLOUD_APP_SECRET",
            verify_token="WHATSAPP_CLOUD_VERIFY_TOKEN",
            phone_number_id="WHATSAPP_CLOUD_PHONE_NUMBER_ID",
        ),
        "line": _declare_webhook("line", "channel_secret", also=("download",), channel_secret="LINE_CHANNEL_SECRET"),
        "sms": _declare_webhook(
            "sms",
            "auth_token",
            needs=("webhook_url",),
            also=("answer", "download"),
            auth_token="TWILIO_AUTH_TOKEN",
            webhook_url="SMS_WEBHOOK_URL",
        ),
        "github_comment": _declare_webhook(
            "github_comment",
            "webhook_secret",
            needs=("bot_name",),
            webhook_secret="GITHUB_COMMENT_WEBHOOK_SECRET",
            bot_name="GITHUB_BOT_USERNAME",
        ),
        "feishu": _declare_webhook(
            "feishu",
            "encrypt_key",
            "verification_token",
            also=("answer", "download"),
            encrypt_key="FEISHU_ENCRYPT_KEY",
            verification_token="FEISHU_VERIFICATION_TOKEN",
            bot_open_id="FEISHU_BOT_OPEN_ID",
        ),
        "dingtalk": _declare_webhook(
            "dingtalk",
            "app_secret",
            needs=("conversation_id",),
            also=("download",),
            app_secret="DINGTALK_APP_SECRET",
            conversation_id="DINGTALK_CONVERSATION_ID",
        ),
        "wecom_callback": _declare_webhook(
            "wecom_callback",
            "token",
            "encoding_aes_key",
            needs=("corp_id",),
            also=("answer", "download"),
            asks_by_get=True,
            token="WECOM_CALLBACK_TOKEN",
            encoding_aes_key="WECOM_CALLBACK_ENCODING_AES_KEY",
            corp_id="WECOM_CALLBACK_CORP_ID",
            agent_id="WECOM_CALLBACK_AGENT_ID",
        ),
        "chat_webhook": _declare_webhook(
            "chat_webhook",
            "secret",
            secret="CHAT_WEBHOOK_SECRET",
            text_path="CHAT_WEBHOOK_TEXT_PATH",
            id_path="CHAT_WEBHOOK_ID_PATH",
            chat_path="CHAT_WEBHOOK_CHAT_PATH",
            sender_path="CHAT_WEBHOOK_SENDER_PATH",
            name_path="CHAT_WEBHOOK_NAME_PATH",
            bot_path="CHAT_WEBHOOK_BOT_PATH",
        ),
        "teams": _declare_webhook(
            "teams",
            needs=("app_id",),
            also=("download", "signing_keys"),
            app_id="TEAMS_CLIENT_ID",
            metadata_url="TEAMS_METADATA_URL",
        ),
        "google_chat": _declare_webhook(
            "google_chat",
            needs=("audience",),
            also=("answer", "download", "signing_keys"),
            audience="GOOGLE_CHAT_AUDIENCE",
            keys_url="GOOGLE_CHAT_KEYS_URL",
        ),
    }
)
"""By the platform's name in the catalogue."""
