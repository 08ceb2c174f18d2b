"""``doctor``'s findings about further keys: those of the same provider, and of fallback providers. Each is tried by the
cheapest call that needs it."""

from __future__ import annotations

from hermes_worker.cli.doctor_findings import Grade, request_models
from hermes_worker.core.errors import ConfigurationError, format_reason
from hermes_worker.models.build import list_key_endpoints
from hermes_worker.models.catalog import list_wire_rows
from hermes_worker.models.endpoint import Endpoint
from hermes_worker.settings import Settings


def check_providers(settings: Settings) -> tuple[Grade, str]:
    """Check whether each key is accepted. A provider without a key is skipped by runs, so it is no failure."""
    good, skipped, broken = 0, [], []
    for name, place in list_key_endpoints(settings):
        if isinstance(place, ConfigurationError):
            skipped.append(f"{name} is never asked: {place}")
        elif wrong := _find_problem(*place):
            broken.append(f"{name} {wrong}")
        else:
            good += 1
    text = "; ".join((f"{good} more {'key answers' if good == 1 else 'keys answer'}", *broken, *skipped))
    if broken:
        return Grade.BROKEN, text
    return (Grade.NOTE if skipped else Grade.OK), text


def _find_problem(wire: str, place: Endpoint) -> str | None:
    import httpx2

    if not list_wire_rows()[wire].headers:
        return None  # this wire is unverified live, so no call is tried
    try:
        status = request_models(wire, place).status_code
    except httpx2.HTTPError as error:
        return f"does not answer at {place.plain_url} ({format_reason(error)})"
    if status in (401, 403):
        return f"refuses the key ({status})"
    return f"answers {status}" if status >= 500 else None
