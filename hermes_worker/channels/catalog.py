"""The catalogue of platforms: how long a text may be, where a home channel is configured, what a chat id looks like.

Limits are the platforms' own (with the unit each platform counts in). Adding a platform takes one row in
``platform_rows.toml`` and one adapter module, which only a worker that sends imports.

``sms``, ``line``, ``google_chat``, ``teams``, ``dingtalk``, ``github_comment``, ``homeassistant`` and ``irc`` cannot
take a file; of a part with one only the text is sent to them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from types import MappingProxyType

from hermes_worker import installed
from hermes_worker.channels.inbound.declaration import InboundMode, Receiving
from hermes_worker.channels.markup import DIALECTS, MARKDOWN, describe_dialect
from hermes_worker.extension import Installed, Reference


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


_ANY_INTEGER = ChatShape(expression=re.compile(r"(?P<chat>-?[0-9]{1,20})"))


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

WEBHOOK_SENDING = Sending(
    send="hermes_worker.channels.platforms.webhook:send",
    credentials="hermes_worker.channels.platforms.webhook:Credentials",
    variables=MappingProxyType({"secret": "WEBHOOK_DELIVERY_SECRET", "format": "WEBHOOK_DELIVERY_FORMAT"}),
    secrets=("secret",),
    signs_time=True,
    key_kept_s=math.inf,
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
