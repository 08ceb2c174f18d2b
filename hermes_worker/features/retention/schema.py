"""How long things are kept and what is held, as the API answers it, the client returns it and commands print it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import Field

from hermes_worker.resource import ListOf, Resource

_NO_NUL = r"^[^\x00]*$"


class RulesObject(Resource):
    """The rules that hold for the tenant, by kind: ``never``, ``30d``, ``12h``, ``/1000``, ``30d/1000``."""

    object: Literal["hermes.retention"] = "hermes.retention"
    rules: Mapping[str, str]


class HoldView(Resource):
    """A legal hold. ``placed_at`` in epoch seconds."""

    number: int
    tenant: str
    run_id: str | None
    """The first run of the chain that is held."""
    session_id: str | None
    reason: str
    placed_by: str
    placed_at: float


class HoldList(ListOf[HoldView]):
    """What is held of the tenant, oldest first."""


class HoldReleased(Resource):
    number: int
    released: Literal[True] = True


class PrunedPlace(Resource, extra="forbid", strict=True):
    """Where a deletion stopped, for the request that goes on."""

    within: str = Field(max_length=40, pattern=_NO_NUL)
    is_through: bool
    tenant: str = Field(max_length=40, pattern=_NO_NUL)


class PruneObject(Resource):
    """What was deleted, or would be, within some seconds."""

    object: Literal["hermes.prune"] = "hermes.prune"
    dry_run: bool
    counts: Mapping[str, int]
    done: bool
    """Nothing is left that the rules let go; of a dry run: all was counted."""
    next: PrunedPlace | None
    """Send it as ``after`` to go on; none when all is done, and of a dry run."""
