"""Versions of configurations, as the API answers them, the client returns them and commands print them."""

from __future__ import annotations

from typing import Literal

from hermes_worker.resource import ListOf, Resource


class ConfigurationObject(Resource):
    """A version of a configuration."""

    object: Literal["hermes.configuration"] = "hermes.configuration"
    tenant: str | None
    """The tenant that it configures; ``null`` for the fleet."""
    version: int
    """0 while there is none."""
    text: str
    written_by: str | None
    created_at: float | None
    """Epoch seconds."""


class ConfigurationList(ListOf[ConfigurationObject]):
    """The versions that are kept, the newest first."""
