"""Logins: credentials that have to be renewed, what to do about one, and what its token server answers. Pure.

A *login* is a refresh token that an operator configured. It is exchanged for an access token and, with most servers,
for the next refresh token: the old one is spent, and a server that sees it again revokes everything that came of it
(RFC 9700 §4.14.2). So an exchange is like a tool call that must not run twice: it is claimed first, and one with an
unknown outcome is not tried again.
"""

from __future__ import annotations

import hashlib
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from urllib.parse import quote, urlencode

from hermes_worker.core.json_values import parse_object

EARLY_S = 120.0
"""Seconds before its end at which a token is renewed, so that few expire on the way to a provider."""
_LIFETIME_S_MAX = 366 * 86_400.0
_SAID_CHARS_MAX = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """A configured refresh token, and where it is exchanged."""

    token_url: str
    refresh_token: str = field(repr=False)
    client_id: str = ""
    client_secret: str = field(default="", repr=False)
    sends_basic: bool = False
    """The client's secret is sent in a header (RFC 6749 §2.3.1) and not among the fields."""
    resource: str = ""
    """The resource that the tokens are for (RFC 8707); empty where the token server knows."""
    sign_in: str = "sign in again and put the new refresh token into HERMES_REFRESH_TOKENS (model.refresh_tokens)"
    """What an operator has to do when the login is dead."""

    @property
    def name(self) -> str:
        """A name for rows, logs and other workers, which reveals nothing of the token. Another token, or the same one
        elsewhere, is another login."""
        said = "\0".join((self.token_url, self.client_id, self.client_secret, self.refresh_token))
        return hashlib.sha256(said.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """An access token."""

    access_token: str = field(repr=False)
    version: int
    """How many exchanges there were up to this one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoginState:
    """The stored state of a login. Equal to a new object when it was never used."""

    version: int = 0
    """Exchanges that were made."""
    sealed: str | None = field(default=None, repr=False)
    """The tokens of the last exchange, encrypted; ``None`` before the first."""
    left_s: float | None = None
    """Seconds for which the access token is still valid, by the database's clock; ``None`` when its server did not
    say."""
    fresh_s: float | None = None
    """Seconds until it is to be renewed; ``None`` when its server gave no lifetime."""
    claim: str | None = None
    """The claim of the worker that makes an exchange, or made one without reporting the outcome."""
    has_lapsed: bool = False
    """The claim's time is over."""
    dead_reason: str | None = None


class LoginUsability(StrEnum):
    """The present usability of a login."""

    USABLE = "usable"
    DUE = "due"
    """The worker that gets the claim exchanges the refresh token."""
    BEING_RENEWED = "being_renewed"
    ABANDONED = "abandoned"
    """A worker vanished between the exchange and its outcome."""
    DEAD = "dead"


def compute_fresh_s(lifetime_s: float | None) -> float | None:
    """Seconds for which a new token is used before it is renewed; ``None`` for until it is refused."""
    return None if lifetime_s is None else max(lifetime_s - EARLY_S, lifetime_s / 2)


def is_good(state: LoginState, *, refused: int = 0) -> bool:
    """Whether there is a usable access token. ``refused`` is the newest version whose token was refused."""
    return state.sealed is not None and state.version > refused and (state.left_s is None or state.left_s > 0)


def decide_usability(state: LoginState, *, refused: int = 0) -> LoginUsability:
    """Decide the usability of a login. ``refused`` is the newest version whose token was refused."""
    can_be_used = is_good(state, refused=refused)
    if can_be_used and (state.fresh_s is None or state.fresh_s > 0):
        return LoginUsability.USABLE
    if state.dead_reason is None and state.claim is None:
        return LoginUsability.DUE
    if can_be_used:
        return LoginUsability.USABLE  # until it expires: another worker renews it, or it cannot be renewed
    if state.dead_reason is not None:
        return LoginUsability.DEAD
    return LoginUsability.ABANDONED if state.has_lapsed else LoginUsability.BEING_RENEWED


# --------------------------------------------------------------------------------------------- what a server is asked


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenClient:
    """The client's identity at a token server."""

    client_id: str = ""
    client_secret: str = field(default="", repr=False)
    sends_basic: bool = False


def build_token_request(client: TokenClient, asked: Mapping[str, str]) -> tuple[Mapping[str, str], bytes]:
    """Headers and body of a request to a token server (RFC 6749 §2.3.1, §4.1.3, §6); empty fields are left out."""
    headers = {
        "Accept": "application/json",
        "Accept-Encoding": "identity",
        "Content-Type": "application/x-www-form-urlencoded",
        "User-Agent": "hermes-worker",
    }
    fields = {name: value for name, value in asked.items() if value}
    if client.sends_basic and client.client_secret:
        pair = f"{quote(client.client_id, safe='')}:{quote(client.client_secret, safe='')}"
        headers["Authorization"] = f"Basic {b64encode(pair.encode()).decode()}"
    else:
        said = {"client_id": client.client_id, "client_secret": client.client_secret}
        fields |= {name: value for name, value in said.items() if value}
    return headers, urlencode(fields).encode()


def build_renewal(login: Login, refresh_token: str) -> tuple[Mapping[str, str], bytes]:
    """Headers and body of the exchange of a refresh token."""
    client = TokenClient(client_id=login.client_id, client_secret=login.client_secret, sends_basic=login.sends_basic)
    fields = {"grant_type": "refresh_token", "refresh_token": refresh_token, "resource": login.resource}
    return build_token_request(client, fields)


# ------------------------------------------------------------------------------------------------ what a server said


@dataclass(frozen=True, slots=True, kw_only=True)
class TokensGranted:
    access_token: str = field(repr=False)
    refresh_token: str | None = field(repr=False)
    """``None``: the old one stays good."""
    lifetime_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoginRefused:
    """The refresh token is worth nothing here, now and later."""

    said: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeDeferred:
    """No exchange was made; a later one may be."""

    said: str
    retry_after_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeUnclear:
    """The exchange may have been made, and what it gave is lost."""

    said: str


Answer = TokensGranted | LoginRefused | ExchangeDeferred | ExchangeUnclear


def parse_answer(status: int, body: bytes, retry_after_s: float | None = None) -> Answer:
    """Parse an answer of a token server (RFC 6749 §5). Its text may hold a secret: redact it."""
    document = parse_object(body)
    if status == 200:
        return _parse_grant(document)
    if 300 <= status < 400:
        return LoginRefused(said=f"HTTP {status}: redirects are not followed")
    said = f"HTTP {status}{_format_error(document)}"
    if status in (408, 425, 429) or status >= 500:
        return ExchangeDeferred(said=said, retry_after_s=retry_after_s)
    return LoginRefused(said=said)


def _parse_grant(document: Mapping[str, object]) -> Answer:
    access, refresh = document.get("access_token"), document.get("refresh_token")
    if not isinstance(access, str) or not _is_header_value(access):
        return ExchangeUnclear(said="the answer holds no access token that can be used")
    return TokensGranted(
        access_token=access,
        refresh_token=refresh if isinstance(refresh, str) and refresh else None,
        lifetime_s=_parse_lifetime_s(document.get("expires_in")),
    )


def _parse_lifetime_s(value: object) -> float | None:
    try:
        seconds = float(value) if isinstance(value, int | float | str) and not isinstance(value, bool) else None
    except ValueError:
        return None
    # ``> 0`` is false for NaN, which therefore gives None.
    return min(seconds, _LIFETIME_S_MAX) if seconds is not None and seconds > 0 else None


def _format_error(document: Mapping[str, object]) -> str:
    words = (document.get("error"), document.get("error_description"))
    text = ", ".join(" ".join(word.split()) for word in words if isinstance(word, str) and word)
    return f": {text[:_SAID_CHARS_MAX]}" if text else ""


def _is_header_value(text: str) -> bool:
    return bool(text) and text.isascii() and text.isprintable() and " " not in text
