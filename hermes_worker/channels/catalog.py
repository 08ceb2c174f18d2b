"""The platforms, as data: how long a text may be, where a home channel is configured, what a chat id looks like.

Limits are the platforms' own (with the unit each platform counts in). Adding a
platform takes one row here and one adapter module, which only a worker that sends imports.

``sms``, ``line``, ``google_chat``, ``teams``, ``dingtalk``, ``github_comment``, ``homeassistant`` and ``irc`` cannot
take a file; of a part with one only the text is sent to them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import lru_cache
from types import MappingProxyType

from hermes_worker import installed
from hermes_worker.channels.inbound.declaration import InboundMode, Receiving
from hermes_worker.channels.inbound.rows import IRC_SECRETS, IRC_VARIABLES, RECEIVING
from hermes_worker.channels.markup import DIALECTS, MARKDOWN, describe_dialect
from hermes_worker.extension import Extension, Installed, Reference


class TextUnit(StrEnum):
    """The unit in which a platform limits texts."""

    CHARACTERS = "characters"
    """Code points."""
    UTF16 = "utf16"
    """UTF-16 code units: an emoji counts two."""
    BYTES = "bytes"
    """Bytes of UTF-8."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextLimit:
    """The longest text of one message."""

    size_max: int
    unit: TextUnit = TextUnit.CHARACTERS


class ChatForm(StrEnum):
    """The form of the chat part of a target."""

    ID = "id"
    """The platform takes it as it is."""
    USER = "user"
    """A person: a direct conversation is opened first."""
    NAME = "name"
    """A name that the channel directory knows: ``#general``, ``Alice (dm)``."""


@dataclass(frozen=True, slots=True)
class ChatShape:
    """The written form of a chat id. The expression has a group ``chat`` and may have a group ``thread``."""

    expression: re.Pattern[str]
    form: ChatForm = ChatForm.ID
    chat_prefix: str = ""
    """Put before the chat where the written form leaves it out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sending:
    """How messages are sent to a platform. The worker that sends loads the references."""

    send: Reference
    """Takes part, target and credentials and returns an ``Exchange``; with ``signs_time`` also ``at``, the time to sign
    with."""
    credentials: Reference
    """A dataclass; its fields without a default are required."""
    variables: Mapping[str, str]
    """Maps fields of the credentials to the environment variables that they are read from."""
    secrets: tuple[str, ...] = ()
    """The fields that hold secrets. Only the delivery role gets their variables."""
    takes_files: bool = True
    caption: TextLimit | None = None
    """The longest text that goes with a file in one message; ``None`` when a text is another message."""
    key_kept_s: float = 0.0
    """For how long the platform recognises a repetition by its key, in seconds; 0 when it does not. A message whose
    outcome is open is not repeated silently after that time."""
    signs_time: bool = False
    is_exchange: bool = True
    """False where the platform is not spoken to over HTTP: ``send`` opens a connection of its own and returns the
    outcome."""
    edit: Reference | None = None
    """Takes part, id of a message of ours, target and credentials and returns an ``Exchange`` that gives the message
    this text and removes the buttons below it; ``None`` where messages cannot be edited. Idempotent."""
    remove: Reference | None = None
    """Takes id, target and credentials and returns an ``Exchange`` that deletes the message. Idempotent."""
    typing: Reference | None = None
    """Takes target and credentials and returns an ``Exchange`` that shows typing for some seconds; ``None`` where the
    platform has no such sign."""

    @property
    def edits(self) -> bool:
        """Whether a message can be edited and deleted after it was sent: then an answer can be shown while it is
        written."""
        return self.edit is not None and self.remove is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Platform:
    """A row of the catalogue of platforms, as a ``ChannelDeclaration``."""

    name: str
    limit: TextLimit
    shapes: tuple[ChatShape, ...] = ()
    home_variable: str | None = None
    """Environment variable of the home channel; ``<that>_THREAD_ID`` holds its thread."""
    aliases: tuple[str, ...] = ()
    has_adapter: bool = True
    """False for platforms of Hermes Agent that need a bridge or a socket: their names are understood, and the person
    learns that nothing can be sent there."""
    sending: Sending | None = None
    """``None`` for platforms without an adapter, and for mail, which goes over SMTP."""
    receiving: Receiving | None = None
    """How people's messages come in; ``None`` where they do not."""

    @property
    def gateway_secrets(self) -> tuple[str, ...]:
        """The variables of secrets that the gateway role needs."""
        receiving = self.receiving
        return tuple(receiving.variables[field] for field in receiving.secrets) if receiving is not None else ()

    @property
    def webhook_secrets(self) -> tuple[str, ...]:
        """The variables of secrets with which the API verifies the platform's requests."""
        receiving = self.receiving
        return tuple(receiving.variables[field] for field in receiving.webhook_secrets) if receiving is not None else ()

    @property
    def webhook_needs(self) -> tuple[str, ...]:
        """The variables without which the API cannot receive the platform's events."""
        receiving = self.receiving
        if receiving is None:
            return ()
        return tuple(receiving.variables[field] for field in receiving.required.get(InboundMode.WEBHOOK, ()))

    @property
    def secret_variables(self) -> tuple[str, ...]:
        """The variables that hold its secrets."""
        sending = self.sending
        return tuple(sending.variables[field] for field in sending.secrets) if sending is not None else ()


_PHONE = r"\+[1-9][0-9]{6,14}"
_INTEGER = re.compile(r"(?P<chat>-?[0-9]{1,20})")


def _declare_sending(
    module: str,
    *,
    secrets: tuple[str, ...] = (),
    takes_files: bool = True,
    caption: TextLimit | None = None,
    key_kept_s: float = 0.0,
    signs_time: bool = False,
    edits: bool = False,
    bares: bool = False,
    types: bool = False,
    **variables: str,
) -> Sending:
    """Build a ``Sending`` from a module with ``send`` and ``Credentials``. With ``edits`` it also has ``edit`` and
    ``remove``, with ``bares`` only ``edit``, which removes the buttons below a question, with ``types``
    ``show_typing``; ``variables`` maps fields of the credentials to variables."""
    return Sending(
        send=f"{module}:send",
        credentials=f"{module}:Credentials",
        variables=MappingProxyType(variables),
        secrets=secrets,
        takes_files=takes_files,
        caption=caption,
        key_kept_s=key_kept_s,
        signs_time=signs_time,
        edit=f"{module}:edit" if edits or bares else None,
        remove=f"{module}:remove" if edits else None,
        typing=f"{module}:show_typing" if types else None,
    )


_CAPTION = TextLimit(size_max=1024, unit=TextUnit.UTF16)
"""The limit of Telegram and WhatsApp; on other platforms it is enough for a sentence about a file."""


def _shape(expression: str, form: ChatForm = ChatForm.ID, chat_prefix: str = "") -> ChatShape:
    return ChatShape(re.compile(expression), form, chat_prefix)


_ANY_INTEGER = ChatShape(_INTEGER)

# The order is Hermes Agent's: what has no origin goes to the first platform with a home channel.
_ROWS: tuple[Platform, ...] = (
    Platform(
        name="matrix",
        sending=_declare_sending(
            "hermes_worker.channels.platforms.matrix",
            types=True,
            secrets=("access_token",),
            key_kept_s=1800.0,  # the transaction id: the server returns the event it already has
            homeserver="MATRIX_HOMESERVER",
            access_token="MATRIX_ACCESS_TOKEN",
        ),
        # An event may have 65,536 bytes, the text twice among them (plain and formatted).
        limit=TextLimit(size_max=16_000, unit=TextUnit.BYTES),
        home_variable="MATRIX_HOME_ROOM",
        # A room id contains a colon, so the thread is what follows the last ":$".
        shapes=(
            _shape(r"(?P<chat>![^\s$]+?)(?::(?P<thread>\$\S+))?"),
            _shape(r"(?P<chat>@[^\s:]+:\S+)", ChatForm.USER),
        ),
    ),
    Platform(
        name="telegram",
        sending=_declare_sending(
            "hermes_worker.channels.platforms.telegram",
            types=True,
            secrets=("token",),
            edits=True,
            caption=_CAPTION,
            token="TELEGRAM_BOT_TOKEN",
            base_url="TELEGRAM_BASE_URL",
        ),
        limit=TextLimit(size_max=4096, unit=TextUnit.UTF16),
        home_variable="TELEGRAM_HOME_CHANNEL",
        shapes=(_shape(r"(?P<chat>-?[0-9]{1,20}|@[A-Za-z]\w{3,31})(?::(?P<thread>[0-9]{1,20}))?"),),
    ),
    Platform(
        name="discord",
        sending=_declare_sending(
            "hermes_worker.channels.platforms.discord",
            types=True,
            secrets=("token",),
            edits=True,
            caption=_CAPTION,
            key_kept_s=120.0,  # a message with the nonce of an earlier one of the last minutes is not created again
            token="DISCORD_BOT_TOKEN",
            base_url="DISCORD_BASE_URL",
        ),
        limit=TextLimit(size_max=2000),
        home_variable="DISCORD_HOME_CHANNEL",
        shapes=(_shape(r"(?P<chat>[0-9]{1,20})(?::(?P<thread>[0-9]{1,20}))?"),),
    ),
    Platform(
        name="slack",
        sending=_declare_sending(
            "hermes_worker.channels.platforms.slack",
            secrets=("token",),
            edits=True,
            caption=_CAPTION,
            token="SLACK_BOT_TOKEN",
            base_url="SLACK_BASE_URL",
        ),
        limit=TextLimit(size_max=39_000),
        home_variable="SLACK_HOME_CHANNEL",
        shapes=(
            _shape(r"(?P<chat>[CGD][A-Z0-9]{2,20})(?::(?P<thread>[0-9]{1,12}\.[0-9]{1,9}))?"),
            _shape(r"(?P<chat>[UW][A-Z0-9]{6,20})", ChatForm.USER),
        ),
    ),
    Platform(
        name="signal",
        sending=_declare_sending(
            "hermes_worker.channels.platforms.signal",
            types=True,
            caption=_CAPTION,
            base_url="SIGNAL_HTTP_URL",
            account="SIGNAL_ACCOUNT",
        ),
        limit=TextLimit(size_max=8000),
        home_variable="SIGNAL_HOME_CHANNEL",
        shapes=(_shape(rf"(?P<chat>{_PHONE}|group:[A-Za-z0-9+/=_-]{{8,100}})"),),
    ),
    Platform(
        name="mattermost",
        sending=_declare_sending(
            "hermes_worker.channels.platforms.mattermost",
            types=True,
            bares=True,
            secrets=("token", "actions_secret"),
            caption=_CAPTION,
            base_url="MATTERMOST_URL",
            token="MATTERMOST_TOKEN",
            actions_url="MATTERMOST_ACTIONS_URL",
            actions_secret="MATTERMOST_ACTIONS_SECRET",
        ),
        limit=TextLimit(size_max=4000),
        home_variable="MATTERMOST_HOME_CHANNEL",
        shapes=(_shape(r"(?P<chat>[a-z0-9]{26})(?::(?P<thread>[a-z0-9]{26}))?"),),
    ),
    Platform(
        name="sms",
        sending=_declare_sending(
            "hermes_worker.channels.platforms.sms",
            secrets=("auth_token",),
            takes_files=False,
            account_sid="TWILIO_ACCOUNT_SID",
            auth_token="TWILIO_AUTH_TOKEN",
            sender="TWILIO_PHONE_NUMBER",
            base_url="TWILIO_BASE_URL",
        ),
        limit=TextLimit(size_max=1600),
        home_variable="SMS_HOME_CHANNEL",
        shapes=(_shape(rf"(?P<chat>{_PHONE})"),),
    ),
    Platform(
        name="email",
        limit=TextLimit(size_max=50_000),
        home_variable="EMAIL_HOME_ADDRESS",
        shapes=(
            _shape(
                r"(?P<chat>[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]{1,64}@[A-Za-z0-9-]{1,63}(?:\.[A-Za-z0-9-]{1,63})*)"
                r"(?::(?P<thread>[A-Za-z0-9_-]{1,1000}))?"
            ),
        ),
    ),
    Platform(
        name="dingtalk",
        sending=_declare_sending(
            "hermes_worker.channels.platforms.dingtalk",
            secrets=("webhook_url", "secret", "app_secret"),
            signs_time=True,
            takes_files=False,
            webhook_url="DINGTALK_WEBHOOK_URL",
            secret="DINGTALK_WEBHOOK_SECRET",
            app_key="DINGTALK_APP_KEY",
            app_secret="DINGTALK_APP_SECRET",
            api_url="DINGTALK_API_URL",
        ),
        limit=TextLimit(size_max=20_000, unit=TextUnit.BYTES),
        home_variable="DINGTALK_HOME_CHANNEL",
        # The chat of a group robot is fixed by its address: the id is the name under which that is configured.
        shapes=(_shape(r"(?P<chat>[A-Za-z0-9_-]{1,64})"),),
    ),
    Platform(
        name="feishu",
        sending=_declare_sending(
            "hermes_worker.channels.platforms.feishu",
            bares=True,
            secrets=("app_secret",),
            key_kept_s=3600.0,  # a message with the uuid of an earlier one of the last hour is not created again
            app_id="FEISHU_APP_ID",
            app_secret="FEISHU_APP_SECRET",
            base_url="FEISHU_BASE_URL",
        ),
        limit=TextLimit(size_max=8000),
        home_variable="FEISHU_HOME_CHANNEL",
        aliases=("lark",),
        shapes=(_shape(r"(?P<chat>(?:oc|ou|on|chat|open)_[A-Za-z0-9_-]+)(?::(?P<thread>[A-Za-z0-9_-]+))?"),),
    ),
    Platform(
        name="wecom",
        sending=_declare_sending(
            "hermes_worker.channels.platforms.wecom", secrets=("key",), key="WECOM_ROBOT_KEY", base_url="WECOM_BASE_URL"
        ),
        limit=TextLimit(size_max=2048, unit=TextUnit.BYTES),
        home_variable="WECOM_HOME_CHANNEL",
        shapes=(_shape(r"(?P<chat>[A-Za-z0-9_-]{1,64})"),),
    ),
    Platform(
        name="weixin",
        limit=TextLimit(size_max=2000),
        home_variable="WEIXIN_HOME_CHANNEL",
        has_adapter=False,
        shapes=(_shape(r"(?P<chat>(?:wxid|gh)_[A-Za-z0-9_-]+|[A-Za-z0-9_-]+@(?:chatroom|im\.\w+)|filehelper)"),),
    ),
    Platform(
        name="bluebubbles", limit=TextLimit(size_max=4000), home_variable="BLUEBUBBLES_HOME_CHANNEL", has_adapter=False
    ),
    Platform(name="qqbot", limit=TextLimit(size_max=4000), home_variable="QQBOT_HOME_CHANNEL", has_adapter=False),
    Platform(
        name="whatsapp",
        limit=TextLimit(size_max=4096),
        home_variable="WHATSAPP_HOME_CHANNEL",
        has_adapter=False,
        shapes=(_shape(rf"(?P<chat>{_PHONE}|[0-9-]+@(?:g\.us|s\.whatsapp\.net|lid|broadcast|newsletter))"),),
    ),
    Platform(
        name="whatsapp_cloud",
        sending=_declare_sending(
            "hermes_worker.channels.platforms.whatsapp_cloud",
            secrets=("token",),
            caption=_CAPTION,
            phone_number_id="WHATSAPP_CLOUD_PHONE_NUMBER_ID",
            token="WHATSAPP_CLOUD_ACCESS_TOKEN",
            base_url="WHATSAPP_CLOUD_BASE_URL",
        ),
        limit=TextLimit(size_max=4096),
        home_variable="WHATSAPP_CLOUD_HOME_CHANNEL",
        shapes=(_shape(rf"(?P<chat>{_PHONE})"),),
    ),
    Platform(
        name="ntfy",
        sending=_declare_sending(
            "hermes_worker.channels.platforms.ntfy",
            secrets=("token", "password"),
            base_url="NTFY_SERVER_URL",
            token="NTFY_TOKEN",
            username="NTFY_USERNAME",
            password="NTFY_PASSWORD",
        ),
        limit=TextLimit(size_max=4096, unit=TextUnit.BYTES),
        home_variable="NTFY_HOME_CHANNEL",
        shapes=(_shape(r"(?P<chat>[A-Za-z0-9_-]{1,64})"),),
    ),
    Platform(
        name="line",
        sending=_declare_sending(
            "hermes_worker.channels.platforms.line",
            secrets=("token",),
            takes_files=False,
            key_kept_s=86_400.0,  # the retry key: a request that was accepted is answered with 409 when it comes again
            token="LINE_CHANNEL_ACCESS_TOKEN",
            base_url="LINE_BASE_URL",
            data_url="LINE_DATA_URL",
        ),
        limit=TextLimit(size_max=4500, unit=TextUnit.UTF16),
        home_variable="LINE_HOME_CHANNEL",
        shapes=(_shape(r"(?P<chat>[UCR][0-9a-f]{32})"),),
    ),
    Platform(
        name="google_chat",
        sending=_declare_sending(
            "hermes_worker.channels.platforms.google_chat",
            bares=True,
            secrets=("access_token", "webhook_url"),
            takes_files=False,
            key_kept_s=600.0,  # the request id: the message it created before is returned
            access_token="GOOGLE_CHAT_ACCESS_TOKEN",
            webhook_url="GOOGLE_CHAT_WEBHOOK_URL",
            base_url="GOOGLE_CHAT_BASE_URL",
        ),
        limit=TextLimit(size_max=4000),
        home_variable="GOOGLE_CHAT_HOME_CHANNEL",
        shapes=(_shape(r"(?P<chat>spaces/[A-Za-z0-9_-]+)(?:[:/](?P<thread>threads/[A-Za-z0-9_.-]+))?"),),
    ),
    Platform(
        name="teams",
        sending=_declare_sending(
            "hermes_worker.channels.platforms.teams",
            bares=True,
            secrets=("app_password",),
            takes_files=False,
            app_id="TEAMS_CLIENT_ID",
            app_password="TEAMS_CLIENT_SECRET",
            tenant="TEAMS_TENANT_ID",
            service_url="TEAMS_SERVICE_URL",
            login_url="TEAMS_LOGIN_URL",
        ),
        limit=TextLimit(size_max=28_000, unit=TextUnit.BYTES),
        home_variable="TEAMS_HOME_CHANNEL",
        shapes=(_shape(r"(?P<chat>(?:19|a|29):[A-Za-z0-9_.@:;=-]+)"),),
    ),
    Platform(
        name="homeassistant",
        sending=_declare_sending(
            "hermes_worker.channels.platforms.homeassistant",
            secrets=("token",),
            takes_files=False,
            base_url="HASS_URL",
            token="HASS_TOKEN",
        ),
        limit=TextLimit(size_max=4096),
        home_variable="HOMEASSISTANT_HOME_CHANNEL",
        shapes=(_shape(r"(?P<chat>(?:notify\.)?[a-z][a-z0-9_]{0,63})"),),
    ),
    Platform(
        name="github_comment",
        sending=_declare_sending(
            "hermes_worker.channels.platforms.github_comment",
            secrets=("token",),
            takes_files=False,
            token="GITHUB_TOKEN",
            base_url="GITHUB_API_URL",
        ),
        limit=TextLimit(size_max=65_536),
        shapes=(_shape(r"(?P<chat>[A-Za-z0-9][A-Za-z0-9-]{0,38}/(?!\.{1,2}#)[A-Za-z0-9._-]{1,100}#[0-9]{1,10})"),),
    ),
    Platform(
        name="wecom_callback",
        sending=_declare_sending(
            "hermes_worker.channels.platforms.wecom_callback",
            secrets=("corp_secret",),
            corp_id="WECOM_CALLBACK_CORP_ID",
            corp_secret="WECOM_CALLBACK_CORP_SECRET",
            agent_id="WECOM_CALLBACK_AGENT_ID",
            base_url="WECOM_BASE_URL",
        ),
        limit=TextLimit(size_max=2048, unit=TextUnit.BYTES),
        home_variable="WECOM_CALLBACK_HOME_CHANNEL",
        shapes=(_shape(r"(?P<chat>[A-Za-z0-9][A-Za-z0-9_.@-]{0,63})"),),
    ),
    Platform(
        name="chat_webhook",
        sending=_declare_sending(
            "hermes_worker.channels.platforms.chat_webhook",
            secrets=("answer_secret",),
            signs_time=True,
            key_kept_s=math.inf,  # as for ``webhook:`` targets
            answer_url="CHAT_WEBHOOK_ANSWER_URL",
            answer_secret="CHAT_WEBHOOK_ANSWER_SECRET",
        ),
        limit=TextLimit(size_max=1_000_000),
        home_variable="CHAT_WEBHOOK_HOME_CHANNEL",
        shapes=(_shape(r"(?P<chat>[A-Za-z0-9][A-Za-z0-9_.@+=-]{0,127})"),),
    ),
    Platform(
        name="yuanbao",
        limit=TextLimit(size_max=4000),
        has_adapter=False,
        shapes=(_shape(r"(?P<chat>(?:group|direct):\S+)"), _shape(r"(?P<chat>[0-9]+)", chat_prefix="group:")),
    ),
    Platform(
        name="irc",
        sending=replace(
            _declare_sending(
                "hermes_worker.channels.irc",
                secrets=IRC_SECRETS,
                takes_files=False,
            ),
            variables=IRC_VARIABLES,
            is_exchange=False,
        ),
        # A line has some 400 bytes; the lines of one part go out over one connection.
        limit=TextLimit(size_max=2000, unit=TextUnit.BYTES),
        home_variable="IRC_HOME_CHANNEL",
        shapes=(
            _shape(r"(?P<chat>[#&+!][^\s,:\x00-\x1f\x7f]{1,62})"),
            _shape(r"(?P<chat>[A-Za-z\[\]\\`_^{|}][A-Za-z0-9\[\]\\`_^{|}-]{0,29})"),
        ),
    ),
    Platform(name="simplex", limit=TextLimit(size_max=8000), has_adapter=False),
    Platform(
        name="photon", limit=TextLimit(size_max=8000), has_adapter=False, shapes=(_shape(rf"(?P<chat>{_PHONE})"),)
    ),
)

EXTENSION = Extension(
    name="channels",
    version="1",
    summary="The built-in platforms that messages are delivered to",
    channels=tuple(replace(row, receiving=RECEIVING.get(row.name)) for row in _ROWS),
)


@lru_cache(maxsize=4)
def _collect_rows(found: Installed) -> Mapping[str, Platform]:
    return MappingProxyType({row.name: row for row in installed.require_rows(Platform, found.channels.values())})


@lru_cache(maxsize=4)
def _collect_names(found: Installed) -> Mapping[str, str]:
    return {name: row.name for row in _collect_rows(found).values() for name in (row.name, *row.aliases)}


def list_platforms() -> Mapping[str, Platform]:
    """List the rows of all enabled extensions by name, in the order in which home channels are looked for."""
    return _collect_rows(installed.get_installed())


WEBHOOK = "webhook"
APPRISE = "apprise"
LOCAL = "local"

WEBHOOK_SENDING = _declare_sending(
    "hermes_worker.channels.platforms.webhook",
    secrets=("secret",),
    signs_time=True,
    key_kept_s=math.inf,
    secret="WEBHOOK_DELIVERY_SECRET",
)
"""How ``webhook:`` targets are sent to: the id of a message is its key, and receivers are asked to drop ids that they
have seen."""

URL_LIMITS: Mapping[str, TextLimit] = MappingProxyType(
    {WEBHOOK: TextLimit(size_max=1_000_000), APPRISE: TextLimit(size_max=32_000), LOCAL: TextLimit(size_max=10_000_000)}
)


def find_platform(name: str) -> Platform | None:
    """Find the row of a platform by its name or an alias, in any case; ``None`` for an unknown name."""
    found = _collect_names(installed.get_installed()).get(name.strip().lower())
    return None if found is None else list_platforms()[found]


def find_text_limit(platform: str) -> TextLimit:
    """Find the limit of a platform by its name in a ``Target``. Raises ``KeyError`` for an unknown one."""
    row = list_platforms().get(platform)
    return row.limit if row is not None else URL_LIMITS[platform]


def describe_display(platform: str) -> list[str]:
    """Describe to an agent how a platform shows its answers, one sentence a line."""
    sending = list_platforms()[platform].sending
    takes_files = sending is None or sending.takes_files
    return describe_dialect(DIALECTS.get(platform, MARKDOWN), takes_files=takes_files)


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchedChat:
    """The parts of a chat reference."""

    chat: str
    thread: str | None = None
    form: ChatForm = field(default=ChatForm.ID)


def match_chat(platform: Platform, reference: str) -> MatchedChat:
    """Parse ``reference`` for ``platform``; a text in no id's form is a name."""
    for shape in (*platform.shapes, _ANY_INTEGER):
        match = shape.expression.fullmatch(reference)
        if match is not None:
            return MatchedChat(
                chat=shape.chat_prefix + match["chat"], thread=match.groupdict().get("thread"), form=shape.form
            )
    return MatchedChat(chat=reference, form=ChatForm.NAME)
