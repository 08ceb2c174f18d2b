"""Tenants and their keys, as the API answers them, the client returns them and commands print them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from hermes_worker.resource import WHOLE, ListOf, Resource


class TenantView(Resource):
    """A tenant. ``created_at`` in epoch seconds; ``None`` for the default one before it was first written."""

    name: str
    created_at: float | None
    disabled_at: float | None
    """``None`` while it is not disabled."""
    keys: int
    """That can be used."""
    runs: int


class TenantList(ListOf[TenantView]):
    """All tenants, the default one first."""


class TenantObject(Resource):
    """A tenant, and whether its keys open anything."""

    object: Literal["hermes.tenant"] = "hermes.tenant"
    name: str
    is_disabled: bool


class DisabledTenant(TenantObject):
    stopped: int
    """Runs that this request asked to stop, with those that they caused."""
    open_runs: int
    """Runs that were not asked to stop yet: repeat the request while there are some. 0 without ``stop``."""


class PlacesBody(Resource, extra="forbid", strict=True):
    places: Annotated[int, Field(ge=1, le=1_000_000), WHOLE] | None = Field(
        description="Runs at work at once in the whole fleet; null for two for each model call of its workers."
    )


class KeyView(Resource):
    """A key, without what makes it one. Times are epoch seconds."""

    key_id: str
    tenant: str
    holder: str
    scopes: list[str]
    created_at: float
    expires_at: float | None
    last_used_at: float | None
    """To the minute."""
    revoked_at: float | None
    replaced_by: str | None
    """The key that was made for its rotation."""


class KeyList(ListOf[KeyView]):
    """The keys of a tenant, oldest first, without what makes them keys."""


class NewKeyObject(KeyView):
    """A key that was just made. ``key`` is shown this once: only a hash of it is kept."""

    key: str = Field(repr=False)


class RevokedKey(Resource):
    key_id: str
    revoked: Literal[True] = True
