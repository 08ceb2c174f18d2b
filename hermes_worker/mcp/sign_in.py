"""Sign in at an MCP server: find the issuer of its tokens, have a person approve, and exchange the code.

Every address comes from a stranger, so each is judged like one that a model chose; the local network is reached only
where the MCP server itself is in it. Redirects are not followed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from hermes_worker.core.logins import (
    Answer,
    ExchangeDeferred,
    ExchangeUnclear,
    Login,
    TokenClient,
    TokensGranted,
    build_renewal,
    build_token_request,
    parse_answer,
)
from hermes_worker.mcp.oauth import (
    AuthorizationChallenge,
    AuthorizationServer,
    ProtectedResource,
    SignInRequest,
    build_known_client,
    build_old_server_document,
    build_registration,
    choose_scope,
    derive_issuer,
    list_issuer_addresses,
    list_resource_addresses,
    parse_authorization_server,
    parse_challenge,
    parse_object,
    parse_registration,
    parse_resource,
)
from hermes_worker.mcp.protocol import McpError, build_initialize_params, build_request
from hermes_worker.mcp.servers import WITH_SESSIONS
from hermes_worker.net.http import HttpRequest, HttpResponse, NoAnswer
from hermes_worker.net.urls import UnsafeUrl, UrlPolicy
from hermes_worker.net.wire import send

_REQUEST_S: Final = 30.0
_BODY_BYTES_MAX: Final = 1_000_000
_ANY_PLACE: Final = UrlPolicy(allows_private=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class SignInClient:
    """The client that we sign in as; without an id one is registered."""

    redirect_url: str
    client_id: str = ""
    client_secret: str = field(default="", repr=False)
    scopes: str = ""
    """Scopes to request beside those that the server names: words with spaces between them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SignInResult:
    """The result of a sign-in."""

    granted: TokensGranted
    token_url: str
    client: TokenClient
    resource: str
    policy: UrlPolicy
    """The addresses that it may use."""


def sign_in(server_url: str, own: SignInClient, approve: Callable[[SignInRequest], str]) -> SignInResult:
    """Sign in. ``approve`` has a person open the address, and returns the one that the person was sent back to. Raises
    ``McpError``.
    """
    policy, refusal = _request_without_token(server_url)
    challenge = parse_challenge(refusal.headers.get("www-authenticate", ""))
    resource = _find_resource(server_url, challenge, policy)
    at = _find_authorization_server(resource, server_url, policy)
    asked = SignInRequest(
        at=at,
        client=_find_client(at, own, policy),
        resource=resource.resource,
        scope=choose_scope(challenge, resource, at, own.scopes),
        redirect_url=own.redirect_url,
    )
    code = asked.parse_code(approve(asked))
    headers, body = build_token_request(asked.client, asked.build_code_fields(code))
    response = _send_request(HttpRequest(method="POST", url=at.token_url, headers=headers, body=body), policy)
    granted = parse_answer(response.status, response.body)
    if not isinstance(granted, TokensGranted):
        raise McpError(f"the authorization server gave no token ({granted.said})")
    return SignInResult(
        granted=granted, token_url=at.token_url, client=asked.client, resource=asked.resource, policy=policy
    )


def make_exchange(policy: UrlPolicy) -> Callable[[Login, str], Answer]:
    """Build the function that sends refresh tokens to token servers that ``policy`` allows; ``models.logins`` says
    when. It raises nothing for failures of the server or the network.
    """

    def exchange(login: Login, refresh_token: str) -> Answer:
        headers, body = build_renewal(login, refresh_token)
        request = HttpRequest(method="POST", url=login.token_url, headers=headers, body=body)
        try:
            response = send(request, policy, total_s=_REQUEST_S, body_bytes_max=_BODY_BYTES_MAX)
        except NoAnswer as error:
            return ExchangeUnclear(said=error.reason) if error.was_sent else ExchangeDeferred(said=error.reason)
        except (UnsafeUrl, ValueError) as error:
            return ExchangeDeferred(said=f"the token server's address cannot be used: {error}")
        return parse_answer(response.status, response.body)

    return exchange


def _request_without_token(server_url: str) -> tuple[UrlPolicy, HttpResponse]:
    """Ask the server without a token; return its answer, and the addresses that its authorization server may have."""
    headers = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
    body = build_request("initialize", build_initialize_params(WITH_SESSIONS))
    request = HttpRequest(method="POST", url=server_url, headers=headers, body=body)
    try:
        return UrlPolicy(), send(request, UrlPolicy(), total_s=_REQUEST_S, body_bytes_max=_BODY_BYTES_MAX)
    except UnsafeUrl:
        return _ANY_PLACE, _send_request(request, _ANY_PLACE)
    except NoAnswer as error:
        raise McpError(error.reason) from None


def _find_resource(server_url: str, challenge: AuthorizationChallenge, policy: UrlPolicy) -> ProtectedResource:
    found = _find_document(list_resource_addresses(server_url, challenge), policy)
    if found is not None:
        return parse_resource(found, server_url)
    # Revision 2025-03-26 knows no such document: the server is its own authorization server.
    return ProtectedResource(resource=server_url, issuer=derive_issuer(server_url), is_named=False)


def _find_authorization_server(resource: ProtectedResource, server_url: str, policy: UrlPolicy) -> AuthorizationServer:
    issuer = resource.issuer
    found = _find_document(list_issuer_addresses(issuer), policy)
    if found is None and resource.is_named:
        raise McpError(f"{issuer[:200]} does not say how to sign in there")
    document = found or build_old_server_document(server_url)
    return parse_authorization_server(document, issuer, server_url, is_old=not resource.is_named)


def _find_client(at: AuthorizationServer, own: SignInClient, policy: UrlPolicy) -> TokenClient:
    if own.client_id:
        return build_known_client(at, own.client_id, own.client_secret)
    if at.registration_url is None:
        raise McpError(
            f"{at.issuer[:200]} registers nobody by itself: register a client there, and give its --client-id"
        )
    asked = build_registration(at, own.redirect_url)
    request = HttpRequest(
        method="POST",
        url=at.registration_url,
        headers={"Accept": "application/json", "Content-Type": "application/json"},
        body=json.dumps(asked).encode(),
    )
    response = _send_request(request, policy)
    document = parse_object(response.body)
    if response.status not in (200, 201) or document is None:
        raise McpError(f"{at.issuer[:200]} did not register us (HTTP {response.status})")
    return parse_registration(document, asked)


def _find_document(addresses: Iterable[str], policy: UrlPolicy) -> Mapping[str, Any] | None:
    """The first document that exists, or ``None``."""
    for address in addresses:
        request = HttpRequest(method="GET", url=address, headers={"Accept": "application/json"})
        response = _send_request(request, policy)
        document = parse_object(response.body) if response.status == 200 else None
        if document is not None:
            return document
    return None


def _send_request(request: HttpRequest, policy: UrlPolicy) -> HttpResponse:
    try:
        return send(request, policy, total_s=_REQUEST_S, body_bytes_max=_BODY_BYTES_MAX)
    except NoAnswer as error:
        raise McpError(error.reason) from None
    except (UnsafeUrl, ValueError) as error:
        raise McpError(f"an address of the sign-in cannot be used: {error}") from None
