"""An event of a platform, and how it came."""

from __future__ import annotations

import re
from dataclasses import dataclass

from hermes_worker.channels.catalog import ChatForm
from hermes_worker.channels.targets import ChatRef, TargetError, format_reference, parse_chat
from hermes_worker.core.chat_accounts import DEFAULT_ACCOUNT, ChatOwner, format_account
from hermes_worker.core.inbound import Inbound
from hermes_worker.core.session_keys import ChatOrigin
from hermes_worker.store.gateway import AccountLease, InboundEvent

_NOBODY = ChatOwner()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedEvent:
    """An event, and how it came."""

    platform: str
    account_name: str = DEFAULT_ACCOUNT
    event: Inbound
    hold: AccountLease | None = None
    """``None`` for an event that the platform brought to a webhook."""
    cursor: str | None = None
    """How far the account is read with this event."""
    is_beside: bool = False
    """Whether it is a press that came to a webhook, of an account whose messages come in another way."""
    owner: ChatOwner = _NOBODY
    """The owner of the chat, once that is known."""

    @property
    def account(self) -> str:
        return format_account(self.platform, self.account_name)

    @property
    def display_name(self) -> str:
        """The account's name for people: the default one is called by its platform."""
        return self.platform if self.account_name == DEFAULT_ACCOUNT else self.account

    @property
    def _nondefault_name(self) -> str:
        """The account's name; empty for the default one."""
        return "" if self.account_name == DEFAULT_ACCOUNT else self.account_name

    @property
    def sender(self) -> str:
        """The account as targets name it."""
        return f"{self.platform}@{self._nondefault_name}" if self._nondefault_name else self.platform

    @property
    def principal(self) -> str:
        """The name under which the person acts."""
        written = re.sub(r"[^\w.@+:-]", "_", self.event.sender.id)
        return f"{self.platform}:{written}"[:100]

    @property
    def row(self) -> InboundEvent:
        return InboundEvent(
            account=self.account,
            key=self.event.event_key,
            hold=self.hold,
            cursor=self.cursor,
            is_beside=self.is_beside,
        )

    @property
    def origin(self) -> ChatOrigin:
        chat, sender = self.event.chat, self.event.sender
        return ChatOrigin(
            platform=self.platform,
            chat_type=chat.kind.value,
            chat=chat.id,
            thread=chat.thread,
            user=sender.id,
            scope=chat.scope,
            profile=self.owner.profile,
            account=self._nondefault_name,
        )

    @property
    def target(self) -> str | None:
        """The target of the answer: the chat, and the thread in it; ``None`` for a chat that no target can name."""
        chat = self.event.chat
        thread = chat.answered_as or chat.thread
        reference = f"{chat.id}:{thread}" if thread else chat.id
        try:
            target = parse_chat(self.sender, reference)
        except TargetError:
            return None
        # What is no id of the platform would be looked up among the names of chats, and is none.
        return None if target.form is ChatForm.NAME else format_reference(ChatRef(target))
