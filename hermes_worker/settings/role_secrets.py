"""Which variables hold secrets, and which role of a stack gets which of them. Pure; one table.

A *role* is the purpose of a process of ours. One that ``up`` or ``run`` starts gets the secrets of its row and no
others; an operator who starts workers one by one decides that with the variables they are given.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple

from hermes_worker.core.chat_accounts import strip_account_suffix
from hermes_worker.settings.config_files import split_words
from hermes_worker.settings.servers import parse_servers_url


class ProcessRole(StrEnum):
    """What a process is for. The roles of workers have the names of their queues."""

    MODEL = "model"
    TOOLS = "tools"
    DELIVERY = "delivery"
    SYSTEM = "system"
    BEAT = "beat"
    API = "api"
    BROWSER = "browser"
    """Owns browsers. It needs the rows and nothing else."""
    MCP = "mcp"
    """Owns the processes of MCP servers, and gets the tokens of those."""
    GATEWAY = "gateway"
    """Listens to platforms. It gets what their accounts are listened to with."""
    SCRIPTED = "scripted"
    """The stand-in for a model: it needs nothing."""


Roles = frozenset[ProcessRole]

_WITH_STATE: Roles = frozenset(ProcessRole) - {ProcessRole.SCRIPTED}
"""Who connects to the database and the broker."""
_ASKS_MODELS: Roles = frozenset({ProcessRole.MODEL})
"""Tools that need a model (``vision_analyze``, ``web_extract``, approvals in mode smart) leave the question to it."""
_SENDS: Roles = frozenset({ProcessRole.DELIVERY})
_SERVES: Roles = frozenset({ProcessRole.API})
_HAS_FILES: Roles = frozenset({ProcessRole.API, ProcessRole.TOOLS, ProcessRole.DELIVERY, ProcessRole.SYSTEM})
_NOBODY: Roles = frozenset()


class SecretSetting(NamedTuple):
    """A row of the table."""

    key: str
    """The setting, as ``settings`` calls it."""
    variables: tuple[str, ...]
    roles: Roles


SECRET_SETTINGS: tuple[SecretSetting, ...] = (
    SecretSetting("database.url", ("HERMES_DATABASE_URL",), _WITH_STATE),
    SecretSetting("broker.url", ("HERMES_BROKER_URL",), _WITH_STATE),
    SecretSetting("encryption.keys", ("HERMES_ENCRYPTION_KEYS",), _WITH_STATE),
    SecretSetting("model.api_key", ("HERMES_API_KEY",), _ASKS_MODELS),
    SecretSetting("model.more_keys", ("HERMES_MORE_API_KEYS",), _ASKS_MODELS),
    SecretSetting("model.tenant_keys", ("HERMES_TENANT_KEYS",), _ASKS_MODELS),
    SecretSetting("model.refresh_tokens", ("HERMES_REFRESH_TOKENS",), _ASKS_MODELS),
    SecretSetting("model.client_secret", ("HERMES_OAUTH_CLIENT_SECRET",), _ASKS_MODELS),
    SecretSetting("server.key", ("HERMES_SERVER_KEY", "API_SERVER_KEY"), _SERVES),
    SecretSetting("server.previous_keys", ("HERMES_SERVER_PREVIOUS_KEYS",), _SERVES),
    SecretSetting("server.embeddings_key", ("HERMES_EMBEDDINGS_API_KEY",), _SERVES),
    SecretSetting("chats.transcription_key", ("HERMES_TRANSCRIPTION_API_KEY",), _SENDS),
    SecretSetting("object_storage.secret_key", ("HERMES_OBJECT_STORAGE_SECRET_KEY",), _HAS_FILES),
    SecretSetting("flower.password", ("HERMES_FLOWER_PASSWORD",), _NOBODY),
)
"""Every setting whose value is a secret. A setting without a row fails a test."""

DELIVERY_SECRETS = split_words(
    "CHAT_WEBHOOK_ANSWER_SECRET DINGTALK_APP_SECRET DINGTALK_WEBHOOK_SECRET DINGTALK_WEBHOOK_URL DISCORD_BOT_TOKEN"
    " EMAIL_PASSWORD FEISHU_APP_SECRET GITHUB_TOKEN GOOGLE_CHAT_ACCESS_TOKEN GOOGLE_CHAT_WEBHOOK_URL HASS_TOKEN"
    " IRC_SASL_PASSWORD IRC_SERVER_PASSWORD LINE_CHANNEL_ACCESS_TOKEN MATRIX_ACCESS_TOKEN"
    " MATTERMOST_ACTIONS_SECRET MATTERMOST_TOKEN NTFY_PASSWORD NTFY_TOKEN SLACK_BOT_TOKEN"
    " TEAMS_CLIENT_SECRET TELEGRAM_BOT_TOKEN"
    " TWILIO_AUTH_TOKEN WEBHOOK_DELIVERY_SECRET WECOM_CALLBACK_CORP_SECRET WECOM_ROBOT_KEY WHATSAPP_CLOUD_ACCESS_TOKEN"
)
"""The credentials of the platforms of ``delivery``. A test compares them with the adapters."""

PROVIDER_SECRETS = split_words("AWS_BEARER_TOKEN_BEDROCK DATABRICKS_TOKEN HF_TOKEN")
"""The credentials of model providers that are not called ``..._API_KEY``. A test compares them with their rows. AWS's
own pair of keys is none of them: it opens much more than a model, so it is given on purpose (``model.api_key``)."""

READ_BY_LIBRARIES = split_words("PGPASSWORD HTTP_PROXY HTTPS_PROXY ALL_PROXY http_proxy https_proxy all_proxy")
"""Variables that a library looks for in the environment by itself, and that may hold a password."""

_KEY_OF_VARIABLE: Mapping[str, SecretSetting] = MappingProxyType(
    {variable: row for row in SECRET_SETTINGS for variable in row.variables}
)
_PROVIDER_KEY = re.compile(r"\w+_API_KEY(?:_\d{1,2})?")
_SOUNDS_SECRET = re.compile(
    r".*(?:TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?|_PASS|_PWD|_AUTH"
    r"|(?:API|ACCESS|PRIVATE|SECRET|SIGNING|ENCRYPTION|MASTER)_?KEY)(?:_\d+)?",
    re.IGNORECASE,
)


def find_owners(variable: str, value: str) -> Roles | None:
    """The roles that get a variable; ``None`` for one that is no secret, which all get. The variable of
    an account with a name has the owners of the usual account's."""
    variable = strip_account_suffix(variable)
    if row := _KEY_OF_VARIABLE.get(variable):
        return row.roles
    if variable in DELIVERY_SECRETS:
        return _SENDS
    if variable in READ_BY_LIBRARIES:
        return _WITH_STATE if variable == "PGPASSWORD" or _has_password(value) else None
    if variable in PROVIDER_SECRETS or _PROVIDER_KEY.fullmatch(variable):
        return _ASKS_MODELS
    # Somebody else's: no role needs it, unless commands are to have it.
    return _NOBODY if _SOUNDS_SECRET.fullmatch(variable) or _has_password(value) else None


def is_secret(variable: str, value: str) -> bool:
    """Whether a variable of the environment must not stay there."""
    return bool(value.strip()) and find_owners(variable, value) is not None


def list_withheld(roles: Collection[ProcessRole]) -> frozenset[str]:
    """The secret settings that a process of these roles does not get."""
    return frozenset(row.key for row in SECRET_SETTINGS if row.roles.isdisjoint(roles))


def _has_password(value: str) -> bool:
    return "://" in value and "@" in value and bool(parse_servers_url(value).password)
