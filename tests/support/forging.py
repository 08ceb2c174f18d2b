"""Requests that a platform did not send, made out of one that it did: for every platform by the same hands."""

from __future__ import annotations

import base64
import hmac
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from random import Random
from typing import Any

import jwt
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.algorithms import RSAAlgorithm

from hermes_worker.channels.inbound.receiving import WebhookRequest
from support.inbound_cases import InboundCase, changed, proof_of, token_key, token_of, with_proof, without

Forging = Callable[[InboundCase, datetime, Random], WebhookRequest]


def forgeries(
    case: InboundCase, clock: Callable[[], datetime], random: Random, *, on_the_way_s: float = 0.0
) -> Iterator[tuple[str, WebhookRequest]]:
    """Without end: what was done, and the request. ``on_the_way_s`` is how much later than now by ``clock`` a request
    may be looked at: one of a time to come is that much further ahead."""
    kinds = dict(_OF_HEADERS)
    if case.signs_body:
        kinds |= _OF_BODIES
    if case.signs_time:
        kinds["another time"] = _another_time
    if any("timestamp" in name for name in case.proofs):
        kinds["new time"] = _new_time
    if case.claims is not None:
        kinds |= _OF_TOKENS
    while True:
        kind = random.choice(sorted(kinds))
        if kind == "another time":
            yield kind, _another_time(case, clock(), random, on_the_way_s)
        else:
            yield kind, kinds[kind](case, clock(), random)


def _genuine(case: InboundCase, at: datetime, random: Random) -> WebhookRequest:
    """One that is the platform's, by its proof; what it says may be nothing at all."""
    return case.webhook(random.choice([case.body, case.body, b"not JSON", b"[" * 5_000, b"\xff\x00"]), at)


def _foreign_secret(case: InboundCase, at: datetime, random: Random) -> WebhookRequest:
    secret = case.secret
    other = random.choice([secret[:-1], secret + "x", secret.swapcase(), secret[::-1], "x" * len(secret), "0", ""])
    assert case.sign is not None
    return case.sign(case.body, other, at)


def _no_proof(case: InboundCase, at: datetime, random: Random) -> WebhookRequest:
    return without(_genuine(case, at, random), random.choice(case.proofs))


def _misnamed(case: InboundCase, at: datetime, random: Random) -> WebhookRequest:
    name = random.choice(case.proofs)
    request = _genuine(case, at, random)
    other = random.choice(
        [f"{name}-", f"x-{name.removeprefix('?')}", name.replace("-", "_"), "authorization", "cookie"]
    )
    if other in case.proofs:
        other = f"x-{name.removeprefix('?')}"
    return with_proof(without(request, name), other, proof_of(request, name))


def _doubled(case: InboundCase, at: datetime, random: Random) -> WebhookRequest:
    request, name = _genuine(case, at, random), random.choice(case.proofs)
    first, second = proof_of(request, name), random.choice([proof_of(request, name), "", "x", "sha256=" + "0" * 64])
    return with_proof(request, name, *random.choice([(first, second), (second, first)]))


def _joined(case: InboundCase, at: datetime, random: Random) -> WebhookRequest:
    """As a proxy joins a header that is there twice."""
    request, name = _genuine(case, at, random), random.choice(case.proofs)
    value = f"{proof_of(request, name)}, {proof_of(request, name)}"
    return with_proof(request, name, value)


def _changed(case: InboundCase, at: datetime, random: Random) -> WebhookRequest:
    request, name = _genuine(case, at, random), random.choice(case.proofs)
    value = proof_of(request, name)
    other = random.choice([value[:-1], value + "0", f'"{value}"', "", "\u00e9" * len(value), value[1:]])
    return random.choice(
        [
            changed(request, name),
            with_proof(request, name, other),
        ]
    )


_OF_HEADERS: Mapping[str, Forging] = {
    "foreign secret": _foreign_secret,
    "no proof": _no_proof,
    "misnamed header": _misnamed,
    "doubled header": _doubled,
    "joined header": _joined,
    "changed header": _changed,
}


def _flipped(case: InboundCase, at: datetime, random: Random) -> WebhookRequest:
    request = case.webhook(case.body, at)
    place = random.randrange(len(request.body))
    flipped = request.body[place] ^ (1 << random.randrange(8))
    return replace(request, body=bytes([*request.body[:place], flipped, *request.body[place + 1 :]]))


def _recoded(case: InboundCase, at: datetime, random: Random) -> WebhookRequest:
    """The same values in other bytes, or a piece of them."""
    request = case.webhook(case.body, at)
    text = request.body.decode("latin-1")
    forms = [text.encode("utf-16"), b"\xef\xbb\xbf" + request.body, request.body + b"\n", request.body[:-1], b""]
    if not isinstance(case.message, bytes):
        forms += [json.dumps(case.message, indent=1).encode(), json.dumps({"again": 1, **case.message}).encode()]
    return replace(request, body=random.choice(forms))


_OF_BODIES: Mapping[str, Forging] = {"flipped bit": _flipped, "recoded body": _recoded}


def _another_time(case: InboundCase, at: datetime, random: Random, on_the_way_s: float = 0.0) -> WebhookRequest:
    """Recorded or made ahead: ``at`` is 301 s away or more."""
    off_s = random.choice([-86_400, -302, -301, 301 + on_the_way_s, 302 + on_the_way_s, 3_600])
    return case.webhook(case.body, at + timedelta(seconds=off_s))


def _new_time(case: InboundCase, at: datetime, random: Random) -> WebhookRequest:
    """A recorded one with the time of today."""
    old = case.webhook(case.body, at - timedelta(seconds=random.choice([1, 60, 301, 86_400])))
    new = case.webhook(case.body, at)
    stamps = [name for name in case.proofs if "timestamp" in name]
    for name in stamps:
        old = with_proof(old, name, proof_of(new, name))
    return old


def _bears(case: InboundCase, at: datetime, token: str) -> WebhookRequest:
    request = case.webhook(case.body, at)
    headers = tuple((name, f"Bearer {token}" if name == "authorization" else value) for name, value in request.headers)
    return replace(request, headers=headers)


def _claims(case: InboundCase, at: datetime) -> dict[str, Any]:
    return {"exp": int(at.timestamp()) + 3_600, **(case.claims or {})}


def _unsigned(case: InboundCase, at: datetime, random: Random) -> WebhookRequest:
    """With the algorithm ``none``, and whatever stands where a signature would."""
    name = random.choice(["none", "None", "NONE", "nOnE"])
    parts = [{"alg": name, "typ": "JWT", "kid": "k1"}, _claims(case, at)]
    written = ".".join(base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode() for part in parts)
    genuine = token_of(case.claims or {}, at).rpartition(".")[2]
    return _bears(case, at, f"{written}.{random.choice(['', genuine, 'AA'])}")


def _by_public_key(case: InboundCase, at: datetime, random: Random) -> WebhookRequest:
    """HS256 with the public key as its secret, in each way to write that key."""
    key = token_key("platform").public_key()
    encoding, form = random.choice(
        [
            (Encoding.PEM, PublicFormat.SubjectPublicKeyInfo),
            (Encoding.PEM, PublicFormat.PKCS1),
            (Encoding.DER, PublicFormat.SubjectPublicKeyInfo),
        ]
    )
    parts = [{"alg": "HS256", "typ": "JWT", "kid": "k1"}, _claims(case, at)]
    head = b".".join(base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=") for part in parts)
    signature = hmac.new(key.public_bytes(encoding, form), head, "sha256").digest()
    return _bears(case, at, (head + b"." + base64.urlsafe_b64encode(signature).rstrip(b"=")).decode())


def _other_claims(case: InboundCase, at: datetime, random: Random) -> WebhookRequest:
    """Of another issuer, for somebody else, without an end, or over."""
    good = _claims(case, at)
    without_end = {name: value for name, value in good.items() if name != "exp"}
    now = int(at.timestamp())
    claims = random.choice(
        [
            {**good, "iss": "https://evil.example"},
            {**good, "iss": f"{good['iss']}.evil.example"},
            {**good, "iss": [good["iss"]]},
            {**good, "aud": "somebody else"},
            {**good, "aud": ["somebody else"]},
            {name: value for name, value in good.items() if name != "aud"},
            {name: value for name, value in good.items() if name != "iss"},
            without_end,
            {**good, "exp": now - 302},
            {**good, "exp": str(now + 60)},
            {**good, "exp": True},
            {**good, "nbf": now + 3_600},
            {**good, "iat": now + 3_600},
        ]
    )
    token = jwt.api_jws.encode(
        json.dumps(claims).encode(), token_key("platform"), algorithm="RS256", headers={"kid": "k1", "typ": "JWT"}
    )
    return _bears(case, at, token)


def _other_key(case: InboundCase, at: datetime, random: Random) -> WebhookRequest:
    """Signed by somebody else, who says where the key is, or brings it along."""
    key = token_key("another")
    own = RSAAlgorithm.to_jwk(key.public_key(), as_dict=True)
    header: dict[str, Any] = random.choice(
        [
            {"kid": "../../../../dev/null"},
            {"kid": "https://evil.example/keys.json"},
            {"kid": "file:///dev/null"},
            {"kid": "k1\x00"},
            {"kid": "k" * 5_000},
            {"kid": "' OR 1=1 --"},
            {"kid": "__class__"},
            {"kid": "k1", "jwk": own},
            {"kid": "k1", "jku": "https://evil.example/keys.json"},
            {"kid": "k1", "x5u": "https://evil.example/key.pem", "x5c": ["AAAA"]},
            {},
        ]
    )
    signer = random.choice([key, key, token_key("platform")]) if header.get("kid") != "k1" else key
    return _bears(case, at, jwt.encode(_claims(case, at), signer, algorithm="RS256", headers=header))


_OF_TOKENS: Mapping[str, Forging] = {
    "alg none": _unsigned,
    "HS256 with the public key": _by_public_key,
    "other claims": _other_claims,
    "other key": _other_key,
}
