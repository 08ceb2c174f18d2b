"""Delivery targets: their grammar, and how a list of them is resolved when something is sent.

A job or a run says ``deliver`` as text: a comma list of ``local``, ``origin``, ``all``, ``<platform>``,
``<platform>:<chat>[:<thread>]``, ``webhook:<url>`` and ``apprise:<url>``. It is
parsed when it is stored, so that the person who makes a mistake learns of it, and resolved when there is something to
send, so that a home channel set meanwhile counts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, assert_never
from urllib.parse import urlsplit

from hermes_worker.channels.catalog import (
    APPRISE,
    LOCAL,
    WEBHOOK,
    ChatForm,
    find_platform,
    list_platforms,
    match_chat,
)
from hermes_worker.core.chat_accounts import DEFAULT_ACCOUNT, ChatRules, format_account
from hermes_worker.core.errors import HermesError
from hermes_worker.core.principals import DEFAULT_TENANT
from hermes_worker.net.urls import UnsafeUrl, parse_http_url

TARGETS_MAX = 50
NO_RULES = ChatRules()
ACCEPTED = (
    "'local', 'origin', 'all', a platform such as 'telegram', '<platform>:<chat>[:<thread>]', 'webhook:<url>' or "
    "'apprise:<url>', separated by commas"
)
_ACCOUNT = re.compile(r"[a-z][a-z0-9]{0,29}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")

# Services of apprise that act on the machine of the worker, or post to any address without the checks of 'webhook:'.
_APPRISE_LOCAL = frozenset({"dbus", "qt", "kde", "glib", "gnome", "growl", "macosx", "windows", "syslog", "file"})
_APPRISE_GENERIC = frozenset({"json", "jsons", "xml", "xmls", "form", "forms", "http", "https"})


class TargetError(HermesError):
    """A delivery target cannot be parsed; the message is one sentence for the person who wrote it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A destination of messages."""

    platform: str
    """A name of the catalogue, ``webhook``, ``apprise`` or ``local``."""
    chat: str
    """A chat id, an address or a URL; empty for ``local``."""
    thread: str | None = None
    form: ChatForm = ChatForm.ID
    account: str = ""
    """The name of the account that sends, where it is not the platform's default one: ``telegram@ops:42``."""

    @property
    def sender(self) -> str:
        """The account whose flood limits and blocks apply."""
        return f"{self.platform}@{self.account}" if self.account else self.platform

    @property
    def shown(self) -> str:
        """The target for people and logs: without what may be a secret in a URL."""
        match self.platform:
            case "webhook":
                return f"webhook:{_drop_path(self.chat)}"
            case "apprise":
                return f"apprise:{self.chat.partition('://')[0]}://***"
            case "local":
                return LOCAL
            case _:
                return f"{self.sender}:{self.chat}" + (f":{self.thread}" if self.thread else "")


@dataclass(frozen=True, slots=True)
class SpecialRef:
    """``local``, ``origin`` or ``all``."""

    word: Literal["local", "origin", "all"]


@dataclass(frozen=True, slots=True)
class PlatformRef:
    """The chat of that platform from which the job came, or its home channel."""

    platform: str


@dataclass(frozen=True, slots=True)
class ChatRef:
    """A single chat. With the form ``name`` it is looked up when there is something to send."""

    target: Target


TargetRef = SpecialRef | PlatformRef | ChatRef


@dataclass(frozen=True, slots=True, kw_only=True)
class Unresolved:
    """A target that leads nowhere, and why."""

    reference: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolution:
    """The targets of a message. Each unresolved reference becomes a failed delivery with its reason."""

    targets: tuple[Target, ...]
    unresolved: tuple[Unresolved, ...] = ()


_WITHOUT_CREDENTIALS = frozenset({LOCAL, WEBHOOK, APPRISE})
"""Targets that need no credentials of the installation."""


def require_open_to(tenant: str, references: Sequence[TargetRef], rules: ChatRules = NO_RULES) -> None:
    """Raise ``TargetError`` for targets that only the default tenant may use: the bots, mailboxes and home channels
    that the installation's credentials open are its own, except for chats that ``rules`` give to the tenant."""
    for reference in references:
        if isinstance(reference, ChatRef):
            target = reference.target
            is_open = target.platform in _WITHOUT_CREDENTIALS or _is_given_to(tenant, target, rules)
        else:
            is_open = isinstance(reference, SpecialRef) and reference.word == "local"
        if tenant != DEFAULT_TENANT and not is_open:
            raise TargetError(
                f"{format_reference(reference)!r} is sent with the installation's own credentials, "
                f"which tenant {tenant!r} may "
                "not use; choose 'local', 'webhook:<url>' or 'apprise:<url>'"
            )


def _is_given_to(tenant: str, target: Target, rules: ChatRules) -> bool:
    """Whether the rules give a chat to the tenant. A name of a chat may mean any chat, so it never counts."""
    account = format_account(target.platform, target.account or DEFAULT_ACCOUNT)
    return target.form is not ChatForm.NAME and rules.find_owner(account, target.chat).tenant == tenant


Lookup = Callable[[str, str], Target | None]
"""Finds a target by platform and name, in the channel directory."""


def normalize_deliver(deliver: str | Sequence[str] | None, *, has_origin: bool = False) -> str:
    """Write the text that is stored: a list becomes a comma list, nothing becomes ``origin`` when there is one, else
    ``local``."""
    text = deliver if isinstance(deliver, str) else ",".join(deliver or ())
    parts = [part.strip() for part in _split_list(text)]
    kept = ",".join(part for part in parts if part)
    return kept or ("origin" if has_origin else LOCAL)


def parse_targets(deliver: str) -> tuple[TargetRef, ...]:
    """Parse a comma list. Raises ``TargetError`` that names the part which cannot be parsed."""
    parts = [part.strip() for part in _split_list(deliver)]
    references = tuple(dict.fromkeys(_parse_one(part) for part in parts if part))
    if not references:
        raise TargetError(f"No delivery target is given; write {ACCEPTED}.")
    if len(references) > TARGETS_MAX:
        raise TargetError(f"At most {TARGETS_MAX} delivery targets can be given, not {len(references)}.")
    return references


def format_reference(reference: TargetRef) -> str:
    """Write ``reference`` as ``parse_targets`` reads it."""
    match reference:
        case SpecialRef(word=word):
            return word
        case PlatformRef(platform=platform):
            return platform
        case ChatRef(target=target):
            thread = f":{target.thread}" if target.thread else ""
            return f"{target.sender}:{target.chat}{thread}"
        case _:
            assert_never(reference)


def redact_target(reference: str) -> str:
    """Write a stored target for people and logs: without what may be a secret in a URL."""
    try:
        return ",".join(
            item.target.shown if isinstance(item, ChatRef) else format_reference(item)
            for item in parse_targets(reference)
        )
    except TargetError:
        return "(cannot be read)"


def resolve_targets(
    references: Iterable[TargetRef],
    *,
    origin: Target | None,
    homes: Mapping[str, Target],
    lookup: Lookup | None = None,
) -> Resolution:
    """Resolve references to targets for a message that is sent now. ``homes`` maps the names of platforms to their home
    channels. References that lead nowhere are listed with their reason; only what ``lookup`` raises is raised. A target
    named twice appears once."""
    # Jobs created over the API have an origin that nothing can be sent to.
    origin = origin if origin is not None and _is_sendable(origin.platform) else None
    found: list[Target | Unresolved] = []
    for reference in references:
        match reference:
            case SpecialRef():
                found += _resolve_special(reference, origin, homes)
            case PlatformRef():
                found.append(_resolve_platform(reference, origin, homes))
            case ChatRef():
                found.append(_resolve_chat(reference, lookup))
            case _:
                assert_never(reference)
    targets = dict.fromkeys(item for item in found if isinstance(item, Target))
    return Resolution(targets=tuple(targets), unresolved=tuple(item for item in found if isinstance(item, Unresolved)))


def parse_chat(platform_name: str, reference: str) -> Target:
    """Parse ``reference`` on a platform, as in ``<platform>:<reference>``. Raises ``TargetError``."""
    word, at, account = platform_name.strip().lower().partition("@")
    platform = find_platform(word)
    if platform is None or (at and not _ACCOUNT.fullmatch(account)):
        raise TargetError(f"{platform_name[:60]!r} is not a platform; write {ACCEPTED}.")
    matched = match_chat(platform, reference)
    return Target(
        platform=platform.name,
        chat=matched.chat,
        thread=matched.thread,
        form=matched.form,
        account="" if account == DEFAULT_ACCOUNT else account,
    )


# --- reading ---------------------------------------------------------------------------------------------------------


def _split_list(text: str) -> list[str]:
    """Split at commas. A comma inside a URL belongs to it unless a target follows."""
    parts: list[str] = []
    for piece in text.split(","):
        if parts and _is_url_target(parts[-1]) and not _begins_target(piece):
            parts[-1] += f",{piece}"
        else:
            parts.append(piece)
    return parts


def _is_url_target(part: str) -> bool:
    return part.strip().lower().startswith((f"{WEBHOOK}:", f"{APPRISE}:"))


def _begins_target(piece: str) -> bool:
    head = piece.strip().partition(":")[0].lower()
    return head in ("", LOCAL, "origin", "all", WEBHOOK, APPRISE) or find_platform(head.partition("@")[0]) is not None


def _parse_one(part: str) -> TargetRef:
    if _CONTROL.search(part):
        raise TargetError(f"The delivery target {part[:60]!r} contains control characters; take them out.")
    head, colon, rest = part.partition(":")
    word = head.strip().lower()
    match word, colon, rest.strip():
        case ("local" | "origin" | "all") as special, "", _:
            return SpecialRef(special)
        case "webhook", ":", url if url:
            return ChatRef(Target(platform=WEBHOOK, chat=_check_webhook_url(url)))
        case "apprise", ":", url if url:
            return ChatRef(Target(platform=APPRISE, chat=_check_apprise_url(url)))
        case (("webhook" | "apprise"), _, _):
            raise TargetError(f"{word!r} needs the URL to send to, as in '{word}:{_EXAMPLES[word]}'.")
        case _, "", _ if (platform := find_platform(word)) is not None:
            return PlatformRef(platform.name)
        case _, ":", reference if reference and find_platform(word.partition("@")[0]) is not None:
            return ChatRef(parse_chat(word, reference))
        case _:
            raise TargetError(f"{part[:80]!r} is not a delivery target; write {ACCEPTED}.")


_EXAMPLES = {WEBHOOK: "https://example.org/hook", APPRISE: "pover://user@token"}


def _check_webhook_url(url: str) -> str:
    """Check the form of a webhook's address: where its name resolves to is checked when it is sent to."""
    try:
        return parse_http_url(url).url
    except UnsafeUrl as error:
        raise TargetError(f"The webhook target cannot be used: {error}") from None


def _check_apprise_url(url: str) -> str:
    scheme = url.partition("://")[0].lower()
    if "://" not in url or not re.fullmatch(r"[a-z][a-z0-9+.-]{0,30}", scheme):
        raise TargetError(f"'apprise:' needs a URL of apprise, as in 'apprise:{_EXAMPLES[APPRISE]}'.")
    if scheme in _APPRISE_GENERIC:
        raise TargetError(f"'apprise:{scheme}://' posts to any address; write 'webhook:<url>' for that.")
    if scheme in _APPRISE_LOCAL:
        raise TargetError(f"'apprise:{scheme}://' acts on the worker's machine and cannot be a target.")
    return url


# --- resolving -------------------------------------------------------------------------------------------------------


def _resolve_special(
    reference: SpecialRef, origin: Target | None, homes: Mapping[str, Target]
) -> list[Target | Unresolved]:
    match reference.word:
        case "local":
            return [Target(platform=LOCAL, chat="")]
        case "origin":
            return [origin or next(iter(_list_homes_in_order(homes)), Target(platform=LOCAL, chat=""))]
        case "all":
            return [*_list_homes_in_order(homes)] or [_build_unresolved("all", "no platform has a home channel")]
        case _:
            assert_never(reference.word)


def _resolve_platform(
    reference: PlatformRef, origin: Target | None, homes: Mapping[str, Target]
) -> Target | Unresolved:
    if not _is_sendable(reference.platform):
        return _build_unresolved(reference.platform, _NO_ADAPTER)
    if origin is not None and origin.platform == reference.platform:
        return origin
    home = homes.get(reference.platform)
    if home is not None:
        return home
    variable = list_platforms()[reference.platform].home_variable
    advice = f"set {variable} or name a chat" if variable else "name a chat"
    return _build_unresolved(reference.platform, f"it has no home channel; {advice}")


def _resolve_chat(reference: ChatRef, lookup: Lookup | None) -> Target | Unresolved:
    target = reference.target
    if not _is_sendable(target.platform):
        return _build_unresolved(target.shown, _NO_ADAPTER)
    if target.form is not ChatForm.NAME:
        return target
    known = lookup(target.platform, target.chat) if lookup is not None else None
    return known or _build_unresolved(target.shown, "no chat of that name is known; write its id")


_NO_ADAPTER = "nothing can be sent there without a bridge; use an 'apprise:' or 'webhook:' target"


def _list_homes_in_order(homes: Mapping[str, Target]) -> list[Target]:
    return [homes[name] for name in list_platforms() if name in homes and _is_sendable(name)]


def _is_sendable(platform: str) -> bool:
    row = list_platforms().get(platform)
    return row.has_adapter if row is not None else platform in (WEBHOOK, APPRISE, LOCAL)


def _build_unresolved(reference: str, reason: str) -> Unresolved:
    return Unresolved(reference=reference, reason=reason)


def _drop_path(url: str) -> str:
    """Drop path and query: hooks often carry their secret there."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}" + ("/***" if parts.path.strip("/") or parts.query else "/")
