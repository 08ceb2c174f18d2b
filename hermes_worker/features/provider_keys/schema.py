"""The provider keys of a tenant, as the API answers them, the client returns them and commands print them."""

from __future__ import annotations

from typing import Literal

from hermes_worker.resource import ListOf, Resource


class ProviderKeyObject(Resource):
    """A provider's key of a tenant. The key itself is never shown."""

    object: Literal["hermes.provider_key"] = "hermes.provider_key"
    key_id: str
    tenant: str
    provider: str
    fingerprint: str
    """Tells keys apart, and says nothing about them."""
    created_at: float
    """Epoch seconds."""


class ProviderKeyList(ListOf[ProviderKeyObject]):
    """The provider keys of a tenant, the oldest first."""
