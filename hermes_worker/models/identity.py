"""The identity of an endpoint, as a run stores it: two configurations with one identity give a run to the same
server.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from hermes_worker.models.catalog import build_provider_address, find_provider, find_provider_by_host
from hermes_worker.settings import ModelSettings

STAND_IN = "scripted"
"""Identity of the scripted stand-in, whatever its address."""
STAND_IN_MODEL = "scripted"
"""The one model of the stand-in."""


def identify_endpoint(settings: ModelSettings) -> str:
    """The address of the API that ``settings`` lead to, without a login and a query; ``STAND_IN`` for the stand-in.

    A stack configures the stand-in as a server of its own, which the name of its model tells apart.
    """
    if settings.is_scripted or (settings.provider == "custom" and settings.name == STAND_IN_MODEL):
        return STAND_IN
    address = settings.base_url or find_usual_address(settings)
    return _strip_address(address) or settings.provider or "nowhere"


def find_usual_model(settings: ModelSettings) -> str:
    """Find the model of runs that name none; empty when they must name one."""
    row = (find_provider(settings.provider) if settings.provider else None) or find_provider_by_host(
        settings.base_url or ""
    )
    return settings.name or (STAND_IN_MODEL if settings.is_scripted else row.default_model if row else "")


def find_usual_address(settings: ModelSettings) -> str:
    """The address of the named provider when the settings give none; empty where it is not known.

    Raises ``ConfigurationError`` for a region that the provider does not have.
    """
    row = find_provider(settings.provider) if settings.provider else None
    return build_provider_address(row, settings.find_options(row.name, *row.aliases).region) if row is not None else ""


def describe_endpoint(identity: str) -> str:
    """``identity`` as part of a sentence."""
    return "the scripted stand-in" if identity == STAND_IN else identity


def _strip_address(address: str) -> str:
    parts = urlsplit(address)
    if not parts.netloc:
        return address.rstrip("/")
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path.rstrip('/')}"
