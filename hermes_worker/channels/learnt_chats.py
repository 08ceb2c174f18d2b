"""Chats that people named from a chat, as delivery targets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hermes_worker.channels.catalog import ChatForm
from hermes_worker.channels.targets import Target, TargetError, parse_chat
from hermes_worker.core.chat_accounts import DEFAULT_ACCOUNT
from hermes_worker.core.chat_names import AmbiguousChatName, KnownChat, normalize_name, require_unique


@dataclass(frozen=True, slots=True, kw_only=True)
class LearntChats:
    """The home channels and chat names that people of the default tenant set, read from its rows."""

    homes_known: Callable[[], Sequence[KnownChat]] = tuple
    named_known: Callable[[str, str], Sequence[KnownChat]] = lambda platform, name: ()

    def list_homes(self) -> dict[str, Target]:
        """List the home channels by platform. One that cannot be parsed counts as none."""
        found = [_build_target(chat) for chat in self.homes_known()]
        return {target.platform: target for target in found if target is not None}

    def find_chat(self, platform: str, name: str) -> Target | None:
        """Find the chat of that name; ``None`` for no such name. Raises ``TargetError`` where several chats have it."""
        try:
            known = require_unique(self.named_known(platform, normalize_name(name)), name)
        except AmbiguousChatName as error:
            raise TargetError(str(error)) from None
        return None if known is None else _build_target(known)


def _build_target(known: KnownChat) -> Target | None:
    platform, _, account = known.account.partition(":")
    sender = platform if account == DEFAULT_ACCOUNT else f"{platform}@{account}"
    try:
        target = parse_chat(sender, known.reference)
    except TargetError:
        return None
    return target if target.form is not ChatForm.NAME else None
