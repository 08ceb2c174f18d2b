"""The platforms, as data: how long a text may be, where a home channel is configured, what a chat id looks like.

Limits are the platforms' own (docs/behaviour.md, "Message lengths", with the unit each platform counts in). Adding a
platform is one row here and one adapter module.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType


class TextUnit(StrEnum):
    """What a platform counts."""

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
    """What the chat part of a target is."""

    ID = "id"
    """The platform takes it as it is."""
    USER = "user"
    """A person: a direct conversation is opened first."""
    NAME = "name"
    """A name that the channel directory knows: ``#general``, ``Alice (dm)``."""


@dataclass(frozen=True, slots=True)
class ChatShape:
    """An id as people write it. The expression has a group ``chat`` and may have a group ``thread``."""

    expression: re.Pattern[str]
    form: ChatForm = ChatForm.ID
    chat_prefix: str = ""
    """Put before the chat when the written form leaves it out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Platform:
    """A row of the catalogue."""

    name: str
    limit: TextLimit
    shapes: tuple[ChatShape, ...] = ()
    home_variable: str | None = None
    """Environment variable of the home channel; ``<that>_THREAD_ID`` holds its thread."""
    aliases: tuple[str, ...] = ()
    has_adapter: bool = True
    """False for platforms of the original that need a bridge or a socket: their names are understood, and the person
    is told that nothing can be sent there."""


_PHONE = r"\+[1-9][0-9]{6,14}"
_INTEGER = re.compile(r"(?P<chat>-?[0-9]{1,20})")


def _shape(expression: str, form: ChatForm = ChatForm.ID, chat_prefix: str = "") -> ChatShape:
    return ChatShape(re.compile(expression), form, chat_prefix)


_ANY_INTEGER = ChatShape(_INTEGER)

# The order is that of the original: the first platform with a home channel takes what has no origin.
_ROWS: tuple[Platform, ...] = (
    Platform(
        name="matrix",
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
        limit=TextLimit(size_max=4096, unit=TextUnit.UTF16),
        home_variable="TELEGRAM_HOME_CHANNEL",
        shapes=(_shape(r"(?P<chat>-?[0-9]{1,20}|@[A-Za-z]\w{3,31})(?::(?P<thread>[0-9]{1,20}))?"),),
    ),
    Platform(
        name="discord",
        limit=TextLimit(size_max=2000),
        home_variable="DISCORD_HOME_CHANNEL",
        shapes=(_shape(r"(?P<chat>[0-9]{1,20})(?::(?P<thread>[0-9]{1,20}))?"),),
    ),
    Platform(
        name="slack",
        limit=TextLimit(size_max=39_000),
        home_variable="SLACK_HOME_CHANNEL",
        shapes=(
            _shape(r"(?P<chat>[CGD][A-Z0-9]{6,20})(?::(?P<thread>[0-9]{1,12}\.[0-9]{1,9}))?"),
            _shape(r"(?P<chat>[UW][A-Z0-9]{6,20})", ChatForm.USER),
        ),
    ),
    Platform(
        name="signal",
        limit=TextLimit(size_max=8000),
        home_variable="SIGNAL_HOME_CHANNEL",
        shapes=(_shape(rf"(?P<chat>{_PHONE}|group:[A-Za-z0-9+/=_-]{{8,100}})"),),
    ),
    Platform(
        name="mattermost",
        limit=TextLimit(size_max=4000),
        home_variable="MATTERMOST_HOME_CHANNEL",
        shapes=(_shape(r"(?P<chat>[a-z0-9]{26})(?::(?P<thread>[a-z0-9]{26}))?"),),
    ),
    Platform(
        name="sms",
        limit=TextLimit(size_max=1600),
        home_variable="SMS_HOME_CHANNEL",
        shapes=(_shape(rf"(?P<chat>{_PHONE})"),),
    ),
    Platform(
        name="email",
        limit=TextLimit(size_max=50_000),
        home_variable="EMAIL_HOME_ADDRESS",
        shapes=(
            _shape(r"(?P<chat>[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]{1,64}@[A-Za-z0-9-]{1,63}(?:\.[A-Za-z0-9-]{1,63})*)"),
        ),
    ),
    Platform(
        name="dingtalk",
        limit=TextLimit(size_max=20_000, unit=TextUnit.BYTES),
        home_variable="DINGTALK_HOME_CHANNEL",
        # The chat of a group robot is fixed by its address: the id is the name under which that is configured.
        shapes=(_shape(r"(?P<chat>[A-Za-z0-9_-]{1,64})"),),
    ),
    Platform(
        name="feishu",
        limit=TextLimit(size_max=8000),
        home_variable="FEISHU_HOME_CHANNEL",
        aliases=("lark",),
        shapes=(_shape(r"(?P<chat>(?:oc|ou|on|chat|open)_[A-Za-z0-9_-]+)(?::(?P<thread>[A-Za-z0-9_-]+))?"),),
    ),
    Platform(
        name="wecom",
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
        limit=TextLimit(size_max=4096),
        home_variable="WHATSAPP_CLOUD_HOME_CHANNEL",
        shapes=(_shape(rf"(?P<chat>{_PHONE})"),),
    ),
    Platform(
        name="ntfy",
        limit=TextLimit(size_max=4096, unit=TextUnit.BYTES),
        home_variable="NTFY_HOME_CHANNEL",
        shapes=(_shape(r"(?P<chat>[A-Za-z0-9_-]{1,64})"),),
    ),
    Platform(
        name="line",
        limit=TextLimit(size_max=4500, unit=TextUnit.UTF16),
        home_variable="LINE_HOME_CHANNEL",
        shapes=(_shape(r"(?P<chat>[UCR][0-9a-f]{32})"),),
    ),
    Platform(
        name="google_chat",
        limit=TextLimit(size_max=4000),
        home_variable="GOOGLE_CHAT_HOME_CHANNEL",
        shapes=(_shape(r"(?P<chat>spaces/[A-Za-z0-9_-]+)(?:[:/](?P<thread>threads/[A-Za-z0-9_.-]+))?"),),
    ),
    Platform(
        name="teams",
        limit=TextLimit(size_max=28_000, unit=TextUnit.BYTES),
        home_variable="TEAMS_HOME_CHANNEL",
        shapes=(_shape(r"(?P<chat>(?:19|a|29):[A-Za-z0-9_.@:;=-]+)"),),
    ),
    Platform(
        name="homeassistant",
        limit=TextLimit(size_max=4096),
        home_variable="HOMEASSISTANT_HOME_CHANNEL",
        shapes=(_shape(r"(?P<chat>(?:notify\.)?[a-z][a-z0-9_]{0,63})"),),
    ),
    Platform(
        name="github_comment",
        limit=TextLimit(size_max=65_536),
        shapes=(_shape(r"(?P<chat>[A-Za-z0-9][A-Za-z0-9-]{0,38}/(?!\.{1,2}#)[A-Za-z0-9._-]{1,100}#[0-9]{1,10})"),),
    ),
    Platform(
        name="yuanbao",
        limit=TextLimit(size_max=4000),
        has_adapter=False,
        shapes=(_shape(r"(?P<chat>(?:group|direct):\S+)"), _shape(r"(?P<chat>[0-9]+)", chat_prefix="group:")),
    ),
    Platform(name="irc", limit=TextLimit(size_max=450, unit=TextUnit.BYTES), has_adapter=False),
    Platform(name="simplex", limit=TextLimit(size_max=8000), has_adapter=False),
    Platform(
        name="photon", limit=TextLimit(size_max=8000), has_adapter=False, shapes=(_shape(rf"(?P<chat>{_PHONE})"),)
    ),
)

PLATFORMS: Mapping[str, Platform] = MappingProxyType({row.name: row for row in _ROWS})
"""By name, in the order in which home channels are looked for."""

_ALIASES = {alias: row.name for row in _ROWS for alias in row.aliases}

WEBHOOK = "webhook"
APPRISE = "apprise"
LOCAL = "local"

URL_LIMITS: Mapping[str, TextLimit] = MappingProxyType(
    {WEBHOOK: TextLimit(size_max=1_000_000), APPRISE: TextLimit(size_max=32_000), LOCAL: TextLimit(size_max=10_000_000)}
)


def platform_named(name: str) -> Platform | None:
    """The row of a platform or of its alias, whatever the case."""
    lowered = name.strip().lower()
    return PLATFORMS.get(_ALIASES.get(lowered, lowered))


def text_limit(platform: str) -> TextLimit:
    """The limit of a platform's name as it stands in a ``Target``. Raises ``KeyError`` for an unknown one."""
    row = PLATFORMS.get(platform)
    return row.limit if row is not None else URL_LIMITS[platform]


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchedChat:
    """A chat reference taken apart."""

    chat: str
    thread: str | None = None
    form: ChatForm = field(default=ChatForm.ID)


def match_chat(platform: Platform, reference: str) -> MatchedChat:
    """What ``reference`` means on ``platform``; what has no id's shape is a name."""
    for shape in (*platform.shapes, _ANY_INTEGER):
        match = shape.expression.fullmatch(reference)
        if match is not None:
            return MatchedChat(
                chat=shape.chat_prefix + match["chat"], thread=match.groupdict().get("thread"), form=shape.form
            )
    return MatchedChat(chat=reference, form=ChatForm.NAME)
