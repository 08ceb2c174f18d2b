"""The documents and requests of signing in at MCP servers and their authorization servers. Pure.

The authorization of revision 2025-11-25 and later: a server names its authorization server in a document (RFC 9728),
which says in another one how it is spoken to (RFC 8414), and a person approves a client with PKCE (RFC 7636). All of it
is text of strangers: an address that is not where it may be is refused, and a document is taken for no more than it
says.
"""

from __future__ import annotations

import base64
import hashlib
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import SplitResult, parse_qs, urlencode, urlsplit, urlunsplit

from hermes_worker.core.json_values import parse_json
from hermes_worker.core.logins import TokenClient
from hermes_worker.mcp.protocol import McpError

_WORD_CHARS_MAX: Final = 2_000
_SCOPES_MAX: Final = 100
_OFFLINE: Final = "offline_access"
_BEARER = re.compile(r"\bbearer\b(.*)", re.IGNORECASE | re.DOTALL)
_SCOPE = re.compile(r"[!#-\[\]-~]+( [!#-\[\]-~]+)*")


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthorizationChallenge:
    """The hints in a refusal about how to get in (RFC 6750 §3, RFC 9728 §5.1)."""

    metadata_url: str | None = None
    scope: str | None = None
    lacks_scopes: bool = False
    """Whether the token is good but lacks scopes (``insufficient_scope``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtectedResource:
    """A server's document about itself (RFC 9728)."""

    resource: str
    issuer: str
    scopes: tuple[str, ...] = ()
    is_named: bool = True
    """Whether a document names the authorization server; a server of revision 2025-03-26 has none, and is its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthorizationServer:
    """The server at which a person approves, and which exchanges codes and refresh tokens (RFC 8414)."""

    issuer: str
    authorization_url: str
    token_url: str
    registration_url: str | None
    client_methods: tuple[str, ...]
    """The ways in which a client may identify itself; empty where the server does not say."""
    scopes: tuple[str, ...] = ()
    names_itself: bool = False
    """Whether its answers name their issuer (RFC 9207)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SignInRequest:
    """A sign-in that a person has to approve. ``state`` and ``verifier`` are made for it and used once."""

    at: AuthorizationServer
    client: TokenClient
    resource: str
    scope: str | None
    redirect_url: str
    state: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)
    verifier: str = field(default_factory=lambda: secrets.token_urlsafe(48), repr=False)

    @property
    def address(self) -> str:
        """The address that the person opens."""
        digest = hashlib.sha256(self.verifier.encode()).digest()
        asked = {
            "response_type": "code",
            "client_id": self.client.client_id,
            "redirect_uri": self.redirect_url,
            "state": self.state,
            "code_challenge": base64.urlsafe_b64encode(digest).decode().rstrip("="),
            "code_challenge_method": "S256",
            "resource": self.resource,
            "scope": self.scope or "",
        }
        parts = urlsplit(self.at.authorization_url)
        added = urlencode({name: value for name, value in asked.items() if value})
        query = f"{parts.query}&{added}" if parts.query else added
        return urlunsplit((parts.scheme, parts.netloc, parts.path, query, ""))

    def build_code_fields(self, code: str) -> Mapping[str, str]:
        """The fields of the request to the token server (RFC 6749 §4.1.3)."""
        return {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": self.redirect_url,
            "code_verifier": self.verifier,
            "resource": self.resource,
        }

    def is_answered_by(self, address: str) -> bool:
        """Whether a request to the redirect address belongs to this sign-in: a page of a stranger knows no state."""
        said = _find_single_value(parse_qs(urlsplit(address).query), "state")
        return said is not None and secrets.compare_digest(said.encode(), self.state.encode())

    def parse_code(self, address: str) -> str:
        """The code that the person was sent back with. Raises ``McpError``."""
        said = parse_qs(urlsplit(address).query)
        if not self.is_answered_by(address):
            raise McpError("the answer does not belong to this sign-in")
        issuer = _find_single_value(said, "iss")
        if (issuer is not None or self.at.names_itself) and issuer != self.at.issuer:
            raise McpError("the answer comes from another authorization server than the one that was asked")
        if (error := _find_single_value(said, "error")) is not None:
            reason = f"{error} {_find_single_value(said, 'error_description') or ''}"
            raise McpError(f"the sign-in was refused: {' '.join(reason.split())[:300]}")
        code = _find_single_value(said, "code")
        if not code or len(code) > _WORD_CHARS_MAX:
            raise McpError("the answer holds no code")
        return code


def parse_challenge(header: str) -> AuthorizationChallenge:
    """Parse a ``WWW-Authenticate`` header; empty for one that says nothing of use."""
    found = _BEARER.search(header[:_WORD_CHARS_MAX])
    said = dict(re.findall(r"([\w-]+)\s*=\s*\"([^\"]*)\"", found[1])) if found else {}
    scope = said.get("scope")
    return AuthorizationChallenge(
        metadata_url=said.get("resource_metadata"),
        scope=scope if scope and _SCOPE.fullmatch(scope) else None,
        lacks_scopes=said.get("error") == "insufficient_scope",
    )


def list_resource_addresses(server_url: str, challenge: AuthorizationChallenge) -> Iterator[str]:
    """Yield the possible addresses of the server's document (RFC 9728 §3.1), the likeliest first."""
    if challenge.metadata_url is not None:
        yield challenge.metadata_url
        return
    parts = urlsplit(server_url)
    for path in dict.fromkeys((parts.path.rstrip("/"), "")):
        yield _replace_path(parts, f"/.well-known/oauth-protected-resource{path}")


def list_issuer_addresses(issuer: str) -> Iterator[str]:
    """Yield the possible addresses of an authorization server's document (RFC 8414 §3.1, OpenID Connect Discovery
    §4).
    """
    parts = urlsplit(issuer)
    path = parts.path.rstrip("/")
    yield _replace_path(parts, f"/.well-known/oauth-authorization-server{path}")
    yield _replace_path(parts, f"/.well-known/openid-configuration{path}")
    if path:
        yield _replace_path(parts, f"{path}/.well-known/openid-configuration")


def derive_issuer(url: str) -> str:
    """The issuer of a server of revision 2025-03-26 that names no other one: the server's own origin."""
    return _replace_path(urlsplit(url), "")


def parse_resource(document: Mapping[str, Any], server_url: str) -> ProtectedResource:
    """Parse a server's document. Raises ``McpError``, for a document about something else as well: its tokens would be
    for that.
    """
    resource = document.get("resource")
    if not isinstance(resource, str) or not _is_part_of(server_url, resource):
        raise McpError(f"the server's document is about another address: {str(resource)[:200]!r}")
    issuers = _parse_words(document.get("authorization_servers"))
    if not issuers or _split_url(issuers[0]) is None:
        raise McpError("the server names no authorization server")
    return ProtectedResource(
        resource=resource, issuer=issuers[0], scopes=_parse_words(document.get("scopes_supported"))
    )


def build_old_server_document(server_url: str) -> Mapping[str, Any]:
    """The document for a server of revision 2025-03-26 that has none, with the addresses of that revision."""
    origin = derive_issuer(server_url)
    return {
        "issuer": origin,
        "authorization_endpoint": f"{origin}/authorize",
        "token_endpoint": f"{origin}/token",
        "registration_endpoint": f"{origin}/register",
    }


def parse_authorization_server(
    document: Mapping[str, Any], issuer: str, server_url: str, *, is_old: bool = False
) -> AuthorizationServer:
    """Parse the document of an authorization server. Raises ``McpError``: it must be the one that was asked, use PKCE,
    and be reached as safely as the MCP server. ``is_old`` is for revision 2025-03-26: it requires PKCE, and not that a
    server says so, and the document of an address may name an issuer below it.
    """
    if is_old and "code_challenge_methods_supported" not in document:
        document = {**document, "code_challenge_methods_supported": ["S256"]}
    said = str(document.get("issuer", ""))
    if said.rstrip("/") != issuer.rstrip("/") and not (is_old and _is_part_of(said, issuer)):
        raise McpError(f"{issuer[:200]} answers as somebody else: {str(document.get('issuer'))[:200]!r}")
    if "S256" not in _parse_words(document.get("code_challenge_methods_supported")):
        raise McpError(f"{issuer[:200]} does not say that it knows PKCE with S256, without which a code can be stolen")
    registration = document.get("registration_endpoint")
    return AuthorizationServer(
        issuer=str(document["issuer"]),
        authorization_url=_parse_address(document, "authorization_endpoint", server_url),
        token_url=_parse_address(document, "token_endpoint", server_url),
        registration_url=None
        if registration is None
        else _parse_address(document, "registration_endpoint", server_url),
        client_methods=_parse_words(document.get("token_endpoint_auth_methods_supported")),
        scopes=_parse_words(document.get("scopes_supported")),
        names_itself=document.get("authorization_response_iss_parameter_supported") is True,
    )


def choose_scope(
    challenge: AuthorizationChallenge, resource: ProtectedResource, at: AuthorizationServer, lacking: str = ""
) -> str | None:
    """The scopes to request: those that the refusal named, else those that the server names; those that a call lacked
    before; and the one for being renewed without a person.
    """
    asked = (challenge.scope or " ".join(resource.scopes)).split()
    asked += [one for one in lacking.split() if one not in asked]
    if _OFFLINE in at.scopes and _OFFLINE not in asked:
        asked.append(_OFFLINE)
    return " ".join(asked) or None


def build_registration(at: AuthorizationServer, redirect_url: str) -> Mapping[str, Any]:
    """The registration of this client (RFC 7591): without a secret, where the server allows that."""
    wished = ("none", "client_secret_post", "client_secret_basic")
    method = next((one for one in wished if one in at.client_methods), "none")
    return {
        "client_name": "Hermes worker",
        "redirect_uris": [redirect_url],
        "grant_types": ["authorization_code", "refresh_token"],
        "response_types": ["code"],
        "token_endpoint_auth_method": method,
    }


def parse_registration(document: Mapping[str, Any], asked: Mapping[str, Any]) -> TokenClient:
    """Parse the answer to a registration. Raises ``McpError``."""
    client_id, secret = document.get("client_id"), document.get("client_secret")
    if not isinstance(client_id, str) or not 0 < len(client_id) <= _WORD_CHARS_MAX:
        raise McpError("the authorization server registered us without an id")
    method = document.get("token_endpoint_auth_method", asked["token_endpoint_auth_method"])
    has_secret = isinstance(secret, str) and 0 < len(secret) <= _WORD_CHARS_MAX and method != "none"
    return TokenClient(
        client_id=client_id,
        client_secret=str(secret) if has_secret else "",
        sends_basic=has_secret and method == "client_secret_basic",
    )


def build_known_client(at: AuthorizationServer, client_id: str, client_secret: str) -> TokenClient:
    """A client that the operator registered. Where nothing is said, its secret goes into a header (RFC 8414 §2)."""
    takes_basic = not at.client_methods or "client_secret_basic" in at.client_methods
    return TokenClient(
        client_id=client_id, client_secret=client_secret, sends_basic=bool(client_secret) and takes_basic
    )


def parse_object(body: bytes) -> Mapping[str, Any] | None:
    """Parse a JSON object; ``None`` for anything else."""
    found = parse_json(body)
    return found if isinstance(found, dict) else None


def _parse_address(document: Mapping[str, Any], name: str, server_url: str) -> str:
    url = document.get(name)
    parts = _split_url(url) if isinstance(url, str) and len(url) <= _WORD_CHARS_MAX else None
    if parts is None or parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
        raise McpError(f"the authorization server's {name} is no address")
    if parts.scheme == "http" and urlsplit(server_url).scheme == "https":
        raise McpError(f"the authorization server's {name} is not encrypted")
    return str(url)


def _split_url(url: str) -> SplitResult | None:
    if re.search(r"[\x00-\x20\x7f\\]", url):
        return None
    try:
        return urlsplit(url)
    except ValueError:
        return None


def _is_part_of(url: str, whole: str) -> bool:
    """Whether an address is another one, or lies below it."""
    one, other = _split_url(url), _split_url(whole)
    if one is None or other is None or (one.scheme, one.netloc.lower()) != (other.scheme, other.netloc.lower()):
        return False
    return f"{one.path.rstrip('/')}/".startswith(f"{other.path.rstrip('/')}/")


def _replace_path(parts: SplitResult, path: str) -> str:
    return urlunsplit((parts.scheme, parts.netloc, path, "", ""))


def _parse_words(value: object) -> tuple[str, ...]:
    if not isinstance(value, Sequence) or isinstance(value, str):
        return ()
    return tuple(one for one in value if isinstance(one, str) and 0 < len(one) <= _WORD_CHARS_MAX)[:_SCOPES_MAX]


def _find_single_value(said: Mapping[str, list[str]], name: str) -> str | None:
    """The value of a parameter that is given once; ``None`` for several, since such an answer is ambiguous."""
    values = said.get(name, [])
    return values[0] if len(values) == 1 else None
