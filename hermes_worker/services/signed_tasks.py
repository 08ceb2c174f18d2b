"""Runs that a message of another program's broker asks for, signed with an API key (docs/celery.md).

The signature is an HMAC under the digest of the key, which is what the database keeps of a key. So a message shows no
key to whoever reads the broker, and whoever writes there without a key signs nothing. The digest alone can sign here,
though it opens nothing else: who can read ``api_keys`` and write to that broker can ask for runs of its tenants.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import time
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from hermes_worker.core.errors import HermesError
from hermes_worker.core.principals import KeyScope, Principal
from hermes_worker.store.access.principals import TenantDisabled, Tenants, hash_token

VALID_S = 43_200.0
"""Seconds for which a message is taken: shorter than the day for which its idempotency key is remembered."""
_AHEAD_S = 300.0
"""Seconds by which the sender's clock may be ahead."""


class TaskRefused(HermesError):
    """The message is not signed with a key that may submit runs for its tenant, or is too old, or asks for something
    that cannot be asked for in this way."""


class SignedRun(BaseModel, extra="forbid", strict=True):
    """What a message may say: the fields that a key may send to ``POST /v1/runs``, by the names of ``Submission``."""

    tenant: str
    text: str
    idempotency_key: str
    at: float
    session_id: str | None = None
    instructions: str | None = None
    model: str | None = None
    toolsets: list[str] | None = None
    skills: list[str] = []
    deliver: list[str] | None = None
    tags: list[str] = []
    metadata: dict[str, str] = {}
    iterations_max: int | None = None
    wall_s_max: float | None = None
    tokens_max: int | None = None
    tool_calls_max: int | None = None
    cost_usd_max: float | None = None
    not_before: float | None = None

    def list_options(self) -> dict[str, Any]:
        """Return the optional fields that the sender set, and ``idempotency_key``, by name."""
        return self.model_dump(exclude={"tenant", "text", "at"}, exclude_unset=True)


def sign_task(key_id: str, key: str, text: str, *, tenant: str, idempotency_key: str, **options: Any) -> dict[str, str]:
    """Build the arguments of a task that submits a run for the tenant of an API key. ``options`` are fields of
    ``SignedRun``; JSON must be able to hold them."""
    said = {"tenant": tenant, "text": text, "idempotency_key": idempotency_key, "at": time.time(), **options}
    body = json.dumps(said)
    return {"key_id": key_id, "body": body, "signature": _compute_signature(hash_token(key), key_id, body)}


def _compute_signature(key_hash: str, key_id: str, body: str) -> str:
    signed = f"hermes-worker task\n{key_id}\n{body}".encode("utf-8", "surrogatepass")
    return hmac.new(bytes.fromhex(key_hash), signed, hashlib.sha256).hexdigest()


def read_signed_task(tenants: Tenants, task: Mapping[str, object]) -> tuple[Principal, SignedRun]:
    """Read who asks for what in the arguments of a task. Raises ``TaskRefused``."""
    key_id, body, signature = (task.get(name) for name in ("key_id", "body", "signature"))
    if not (isinstance(key_id, str) and isinstance(body, str) and isinstance(signature, str)):
        raise TaskRefused("the task has no 'key_id', 'body' and 'signature'")
    given = signature.encode("utf-8", "surrogatepass")
    try:
        principal = tenants.find_signer(
            key_id, lambda key_hash: hmac.compare_digest(_compute_signature(key_hash, key_id, body).encode(), given)
        )
    except TenantDisabled as error:
        raise TaskRefused(str(error)) from None
    if principal is None:
        raise TaskRefused("it is not signed with a key that can be used")
    try:
        said = SignedRun.model_validate_json(body)
    except ValidationError as error:
        first = error.errors()[0]
        raise TaskRefused(f"{'.'.join(map(str, first['loc'])) or 'body'}: {first['msg']}") from None
    if said.tenant != principal.tenant:
        raise TaskRefused(f"the key acts for another tenant than {said.tenant!r}")
    if not principal.has_scope(KeyScope.RUNS_WRITE):
        raise TaskRefused(f"the key lacks the scope {KeyScope.RUNS_WRITE.value!r}")
    if not -_AHEAD_S <= time.time() - said.at <= VALID_S:
        raise TaskRefused(f"it was not signed within the last {VALID_S / 3600:g} hours")
    return principal, said
