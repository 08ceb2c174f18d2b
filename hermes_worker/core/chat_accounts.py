"""Names of chat accounts, and the tenants of their chats. Pure.

An account is called ``PLATFORM:NAME``; the one configured by the platform's usual variables is ``PLATFORM:default``.
The variables of another account end with its name: ``TELEGRAM_BOT_TOKEN__OPS`` is the token of ``telegram:ops``. It
shares nothing with the usual account except addresses (``..._URL``) that it does not set itself.

A rule assigns chats of an account to a tenant: ``telegram:ops/*=acme`` all of them, ``telegram:default/-100=globex``
one. Chats without a rule belong to the default tenant.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from hermes_worker.core.principals import DEFAULT_TENANT

DEFAULT_ACCOUNT: Final = "default"
ACCOUNT_PATTERN: Final = r"[a-z][a-z0-9_]{0,29}:[a-z][a-z0-9]{0,29}"
RULE_PATTERN: Final = (
    rf"{ACCOUNT_PATTERN}/[^\s,=]{{1,200}}=[a-z0-9]([a-z0-9-]{{0,38}}[a-z0-9])?(/[a-z][a-z0-9-]{{0,29}})?"
)
EVERY_CHAT: Final = "*"
_OF_ACCOUNT = re.compile(r"(?P<variable>[A-Z][A-Z0-9_]*[A-Z0-9])__(?P<name>[A-Z][A-Z0-9]{0,29})")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatOwner:
    """The tenant that owns a chat."""

    tenant: str = DEFAULT_TENANT
    profile: str = ""
    """The name space of its sessions; empty for the default one."""


@dataclass(frozen=True, slots=True)
class ChatRules:
    """The tenants of chats, as the operator configured them: each rule as ``ACCOUNT/CHAT=TENANT[/PROFILE]``."""

    rules: Sequence[str] = ()

    def find_owner(self, account: str, chat: str) -> ChatOwner:
        """Find the owner of a chat. A rule for the chat wins over one for all chats of the account."""
        found = self._index_by_place()
        return found.get(f"{account}/{chat}") or found.get(f"{account}/{EVERY_CHAT}") or ChatOwner()

    def find_owner_of_account(self, account: str) -> ChatOwner:
        return self.find_owner(account, EVERY_CHAT)

    def _index_by_place(self) -> Mapping[str, ChatOwner]:
        found: dict[str, ChatOwner] = {}
        for rule in self.rules:
            place, _, whose = rule.rpartition("=")
            tenant, _, profile = whose.partition("/")
            found.setdefault(place, ChatOwner(tenant=tenant, profile=profile))
        return found


def format_account(platform: str, name: str = DEFAULT_ACCOUNT) -> str:
    """The name of an account in rows."""
    return f"{platform}:{name}"


def strip_account_suffix(variable: str) -> str:
    """The name of the usual account's variable with the same meaning: ``TELEGRAM_BOT_TOKEN`` for
    ``TELEGRAM_BOT_TOKEN__OPS``; any other name unchanged."""
    found = _OF_ACCOUNT.fullmatch(variable)
    return found["variable"] if found is not None else variable


def add_account_suffix(variable: str, name: str) -> str:
    """A platform's variable for the account called ``name``."""
    return variable if name == DEFAULT_ACCOUNT else f"{variable}__{name.upper()}"


def select_account_values(values: Mapping[str, str], name: str, secrets: Collection[str] = ()) -> Mapping[str, str]:
    """Select the settings of the account ``name``, under the usual names of the variables. ``secrets`` are the
    variables that hold secrets; the usual account's secrets are never in the result."""
    if name == DEFAULT_ACCOUNT:
        return values
    ending = f"__{name.upper()}"
    shared = {key: value for key, value in values.items() if key.endswith("_URL") and key not in secrets}
    own = {key.removesuffix(ending): value for key, value in values.items() if key.endswith(ending)}
    return {**shared, **own}


def is_meant(entry: str, *, ids: Iterable[str], name: str = "") -> bool:
    """Whether an entry of an operator's list means the person with these ``ids``, who chose the user name ``name``.
    ``@ada`` is a name and ``4242`` an id. A word without ``@`` is also a name where the platform's ids look different,
    so a person cannot be admitted by choosing another person's id as a name."""
    word, known = entry.casefold(), {each.casefold() for each in ids if each}
    if word in known:
        return True
    bare = word.removeprefix("@")
    is_name = bool(name) and bare == name.casefold().removeprefix("@")
    if word.startswith("@"):
        # IRC and some others give only a name, for which the network vouches.
        return is_name or (not name and bare in known and not bare.isdigit())
    # Ids of Matrix begin with ``@``; rules for persons omit it.
    return f"@{word}" in known or (is_name and not _looks_like_id(word, known))


def _looks_like_id(word: str, known: Iterable[str]) -> bool:
    return word.lstrip("+-").isdigit() or any(len(word) == len(each) for each in known if not each.isdigit())
