"""Send one part to one target, of whatever kind.

Theory of operation. A delivery is a row; the delivery worker cuts its text into parts that fit the platform and hands
each to ``Dispatcher.send``, which tries once and returns a value: a ``Receipt``, or a ``DeliveryError`` whose kind says
what the worker may do next (``channels.errors``). Nothing here retries, waits or writes rows.

    part + target
      local     -> a file in the home
      apprise   -> the library, in a thread of its own
      email     -> a mail, over SMTP
      others    -> the adapter of the platform: requests and responses as values
                     render Markdown -> credentials of the sending account -> adapter.send -> perform

The address decides which hosts may be connected to: a platform's address is the operator's setting and may be private;
that of a ``webhook:`` target may come from anybody and may not, unless ``allows_private`` says so.

Errors before the first request (a missing setting, a malformed target) are ``refused``: nothing was sent. An error
after a request may be ``ambiguous``: then the message may have arrived, and it is sent again only under the same key
while the platform remembers keys (``get_key_kept_s``), else with a remark that it may be a duplicate.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from hermes_worker.channels import apprise_services
from hermes_worker.channels.adapters import (
    EMAIL,
    build_credentials,
    build_email_credentials,
    choose_values,
    list_secrets,
    load_adapters,
)
from hermes_worker.channels.catalog import APPRISE, LOCAL, WEBHOOK, ChatForm, TextLimit, find_text_limit, list_platforms
from hermes_worker.channels.errors import DeliveryError, SendErrorKind
from hermes_worker.channels.exchange import Attachment, Exchange, Outcome, Part, Receipt, Unsendable, perform
from hermes_worker.channels.files import fetch_picture
from hermes_worker.channels.learnt_chats import LearntChats
from hermes_worker.channels.markup import DIALECTS, HTML, SLACK, TELEGRAM, render_markup
from hermes_worker.channels.media import MediaPicture
from hermes_worker.channels.platforms import email
from hermes_worker.channels.smtp import choose_tls, send_mail
from hermes_worker.channels.targets import NO_RULES, Target, TargetError, parse_chat
from hermes_worker.core.chat_accounts import ChatRules
from hermes_worker.core.errors import ConfigurationError
from hermes_worker.net.urls import UrlPolicy
from hermes_worker.net.wire import TOTAL_S, make_sender
from hermes_worker.system.plainfiles import replace_text

_SECRET_CHARS_MIN = 8
"""A shorter secret is not looked for in texts: it is in many by chance."""
_TYPING_S = 3.0
_FILE_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,119}(?:/[A-Za-z0-9_-][A-Za-z0-9_.-]{0,119})?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Dispatcher:
    """Sends to targets of all kinds with the credentials of one installation. Thread-safe."""

    values: Mapping[str, str] = field(repr=False)
    """The variables from which credentials and home channels are read."""
    directory: Path
    """Where files of ``local`` deliveries are written."""
    allows_private: bool = False
    """Whether ``webhook:`` and ``apprise:`` targets may name addresses of the local network."""
    channels: Sequence[str] = ()
    """Configured names of chats, each as ``platform:name=id``."""
    rules: ChatRules = NO_RULES
    """Which tenants may send to which chats."""
    learnt: LearntChats = field(default_factory=LearntChats)
    """Names of chats and home channels that people set from a chat."""

    def send(self, part: Part, target: Target, *, at: datetime, file_name: str) -> Outcome:
        """Send a part once. ``file_name`` is the place of a ``local`` delivery below ``directory``."""
        try:
            match target.platform:
                case "local":
                    return self._save(part, file_name)
                case "apprise":
                    return apprise_services.send(part, target.chat, UrlPolicy(allows_private=self.allows_private))
                case "email":
                    return self._send_mail(part, target, at)
                case _:
                    return self._request(part, target, at)
        except (ConfigurationError, Unsendable) as error:
            return _refuse(str(error))

    def edits(self, platform: str) -> bool:
        """Whether messages can be edited and deleted after they were sent."""
        return platform in load_adapters() and load_adapters()[platform].sending.edits

    def loses_buttons(self, platform: str) -> bool:
        """Whether the buttons below a sent message can be removed."""
        return platform in load_adapters() and load_adapters()[platform].loses_buttons

    def edit(self, part: Part, message_id: str, target: Target) -> Outcome:
        """Give a message of ours this text, with one attempt. Idempotent."""
        adapter = load_adapters()[target.platform]
        rendered = _render_part(part, target.platform)
        return self._change(lambda credentials: adapter.edit(rendered, message_id, target, credentials), target)

    def remove(self, message_id: str, target: Target) -> Outcome:
        """Delete a message of ours, with one attempt. Idempotent."""
        adapter = load_adapters()[target.platform]
        return self._change(lambda credentials: adapter.remove(message_id, target, credentials), target)

    def shows_typing(self, platform: str) -> bool:
        """Whether a platform can show in a chat that somebody is typing."""
        return platform in load_adapters() and load_adapters()[platform].shows_typing

    def show_typing(self, target: Target) -> Outcome:
        """Show typing for some seconds, with one short attempt: nothing waits for it."""
        adapter = load_adapters()[target.platform]
        return self._change(lambda known: adapter.show_typing(target, known), target, total_s=_TYPING_S)

    def _change(self, exchange: Callable[[Any], Exchange], target: Target, *, total_s: float = TOTAL_S) -> Outcome:
        try:
            credentials = build_credentials(target.platform, choose_values(target, self.values))
            return perform(exchange(credentials), make_sender(UrlPolicy(allows_private=True), total_s=total_s))
        except (ConfigurationError, Unsendable) as error:
            return _refuse(str(error))

    def get_key_kept_s(self, platform: str) -> float:
        """For how long sending a part again leaves one message, in seconds; 0 where the platform recognises no
        repetition."""
        if platform == LOCAL:
            return math.inf
        adapter = load_adapters().get(platform)
        return adapter.sending.key_kept_s if adapter is not None else 0.0

    def takes_files(self, platform: str) -> bool:
        return platform == EMAIL or (platform in load_adapters() and load_adapters()[platform].sending.takes_files)

    def get_caption_limit(self, platform: str) -> TextLimit | None:
        """The longest text that goes with a file; ``None`` where the text is a message of its own."""
        if platform == EMAIL:
            return find_text_limit(EMAIL)
        adapter = load_adapters().get(platform)
        return adapter.sending.caption if adapter is not None else None

    def limit(self, target: Target) -> TextLimit:
        """The longest text of one message to ``target``."""
        return (
            apprise_services.find_limit(target.chat) if target.platform == APPRISE else find_text_limit(target.platform)
        )

    def fetch_picture(self, picture: MediaPicture) -> Attachment:
        """Fetch a picture that a text names by its address. Raises ``FileGone``."""
        return fetch_picture(picture, UrlPolicy(allows_private=self.allows_private))

    @property
    def secrets(self) -> tuple[str, ...]:
        """List the credentials themselves, which no message may contain."""
        return tuple(value for value in list_secrets(self.values) if len(value) >= _SECRET_CHARS_MIN)

    def find_homes(self) -> dict[str, Target]:
        """Find the home channels, by platform: one that was set from a chat wins over a configured one. One that cannot
        be parsed counts as none."""
        found = {}
        for name, row in list_platforms().items():
            reference = self.values.get(row.home_variable or "", "").strip()
            thread = self.values.get(f"{row.home_variable}_THREAD_ID", "").strip()
            if not reference:
                continue
            try:
                found[name] = parse_chat(name, f"{reference}:{thread}" if thread else reference)
            except TargetError:
                continue
        return {**found, **self.learnt.list_homes()}

    def find_chat(self, platform: str, name: str) -> Target | None:
        """Find the chat that has this name on a platform, in any case, with or without ``#``: a configured one, else
        one that was learnt; ``None`` for no such name. Raises ``TargetError`` for a learnt name of several chats."""
        wanted = (platform, _normalize_name(name))
        for channel in self.channels:
            known, _, reference = channel.rpartition("=")
            its_platform, _, its_name = known.partition(":")
            if (its_platform, _normalize_name(its_name)) == wanted:
                try:
                    target = parse_chat(its_platform, reference)
                except TargetError:
                    return None
                return target if target.form is not ChatForm.NAME else None
        return self.learnt.find_chat(platform, name)

    def _request(self, part: Part, target: Target, at: datetime) -> Outcome:
        adapter = load_adapters()[target.platform]
        part = _render_part(part, target.platform)
        credentials = build_credentials(target.platform, choose_values(target, self.values))
        if not adapter.sending.is_exchange:
            return adapter.say(part, target, credentials)
        exchange = adapter.send(part, target, credentials, at)
        # The operator configures the address of a platform; that of a webhook may come from anybody.
        policy = UrlPolicy(allows_private=self.allows_private or target.platform != WEBHOOK)
        return perform(exchange, make_sender(policy))

    def _send_mail(self, part: Part, target: Target, at: datetime) -> Outcome:
        values = choose_values(target, self.values)
        credentials = build_email_credentials(values)
        tls = choose_tls(values.get("EMAIL_SMTP_TLS", ""), credentials.port)
        return send_mail(email.build(part, target, credentials, at=at), credentials, tls)

    def _save(self, part: Part, file_name: str) -> Outcome:
        if not _FILE_NAME.fullmatch(file_name) or ".." in file_name:
            return _refuse("the name of the file is not a plain name")
        path = self.directory / file_name
        try:
            replace_text(path, part.text.encode("utf-8", "replace").decode(), mode=0o600)
        except OSError as error:
            return DeliveryError(kind=SendErrorKind.TRANSIENT, message=f"the file was not written: {error.strerror}")
        return Receipt(message_id=str(path))


def _render_part(part: Part, platform: str) -> Part:
    """Render the text of a part as the platform shows it, unless its adapter itself chooses between Markdown and
    markup."""
    dialect = DIALECTS.get(platform)
    if dialect is None or part.is_plain or dialect in _WRITTEN_BY_ADAPTERS:
        return part
    return replace(part, text=render_markup(part.text, dialect))


_WRITTEN_BY_ADAPTERS = (HTML, SLACK, TELEGRAM)


def _normalize_name(name: str) -> str:
    return name.strip().removeprefix("#").casefold()


def _refuse(message: str) -> DeliveryError:
    return DeliveryError(kind=SendErrorKind.REFUSED, message=message)
