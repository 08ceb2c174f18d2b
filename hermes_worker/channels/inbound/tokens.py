"""The signed tokens (JWT, RS256) that Microsoft and Google send as proof, and the keys that they are signed with.

The algorithm is ours and not the token's, so neither ``none`` nor HS256 with a public key is looked at. The key id of a
token only chooses among the keys that are there: it never becomes a path or an address. Keys come from one address that
the operator or the vendor's documentation names; an address that redirects elsewhere gives none.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any
from urllib.parse import urlsplit

import jwt

from hermes_worker.channels.errors import DeliveryError, SendErrorKind
from hermes_worker.channels.exchange import USER_AGENT, failure, is_success, json_object
from hermes_worker.channels.inbound.receiving import Forged, KeysExchange, WebhookRequest
from hermes_worker.channels.signature import TOLERANCE_S
from hermes_worker.core.json_values import read_list, read_mapping, read_text
from hermes_worker.net.http import HttpRequest

_ALGORITHM = "RS256"
_TOKEN_CHARS_MAX = 8_000
_KEYS_MAX = 100
_KEY_ID_CHARS_MAX = 200


def verify_token(
    request: WebhookRequest, *, issuers: Collection[str], audience: str, at: datetime
) -> Mapping[str, Any]:
    """Verify the bearer token of a request and return its claims: it must be signed by a key of ``request.keys``, from
    one of ``issuers``, for ``audience``, and valid at ``at``, give or take five minutes. Raises ``Forged``."""
    scheme, _, token = request.require_header("authorization").partition(" ")
    if scheme.lower() != "bearer" or not token or len(token) > _TOKEN_CHARS_MAX:
        raise Forged("there is no bearer token")
    if not audience:
        raise Forged("the audience is not set")
    try:
        key = _find_key(jwt.get_unverified_header(token).get("kid"), request.keys)
        claims: dict[str, Any] = jwt.decode(
            token,
            key,
            algorithms=[_ALGORITHM],
            audience=audience,
            options={
                "require": ["exp", "iss", "aud"],
                # These look at the clock of this process; ``at`` is checked below.
                "verify_exp": False,
                "verify_nbf": False,
                "verify_iat": False,
            },
        )
    except (jwt.PyJWTError, ValueError, TypeError, RecursionError) as error:
        raise Forged(f"the token does not hold: {type(error).__name__}") from None
    issuer = claims.get("iss")
    if not isinstance(issuer, str) or issuer not in issuers:
        raise Forged("the token is from another issuer")
    _check_times(claims, at.timestamp())
    return claims


def _find_key(key_id: object, keys: Mapping[str, Mapping[str, object]]) -> Any:
    if not isinstance(key_id, str) or key_id not in keys:
        raise Forged("the key of the token is unknown")
    if keys[key_id].get("kty") != "RSA":
        raise Forged("the key of the token is no RSA key")
    return jwt.PyJWK(dict(keys[key_id]), algorithm=_ALGORITHM).key


def _check_times(claims: Mapping[str, Any], now: float) -> None:
    for name, is_end in (("exp", True), ("nbf", False), ("iat", False)):
        value = claims.get(name)
        if value is None and not is_end:
            continue
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise Forged(f"{name!r} of the token is no time")
        if (now > value + TOLERANCE_S) if is_end else (value > now + TOLERANCE_S):
            raise Forged(f"the token is not valid now, by its {name!r}")


def fetch_keys(url: str) -> KeysExchange:
    """Begin the exchange that fetches the keys of a key set (RFC 7517), by id."""
    response = yield _get(url)
    document = json_object(response)
    if not is_success(response) or not read_list(document.get("keys")):
        return _refuse(response.status, url) if is_success(response) else failure(response, f"{url} has no keys")
    keys = map(read_mapping, read_list(document.get("keys"))[:_KEYS_MAX])
    return {name: key for key in keys if (name := read_text(key.get("kid"))) and len(name) <= _KEY_ID_CHARS_MAX}


def fetch_issuer_keys(url: str) -> KeysExchange:
    """Begin the exchange that fetches the keys of an issuer whose metadata (OpenID Connect Discovery) is at ``url``.
    They are fetched from the same host only."""
    response = yield _get(url)
    address = read_text(json_object(response).get("jwks_uri"))
    if not is_success(response):
        return failure(response, f"{url} has no metadata")
    if urlsplit(address)[:2] != urlsplit(url)[:2]:
        return _refuse(response.status, url)
    found = yield from fetch_keys(address)
    return found


def _get(url: str) -> HttpRequest:
    return HttpRequest(method="GET", url=url, headers={"User-Agent": USER_AGENT}, delivers=False)


def _refuse(status: int, url: str) -> DeliveryError:
    return DeliveryError(kind=SendErrorKind.REFUSED, message=f"{url} names no keys that can be used ({status})")
