"""What the checks of ``doctor`` say, and the question to a provider that several of them ask."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import httpx2

    from hermes_worker.models.endpoint import Endpoint

PATIENCE_S = 5.0
"""How long a check waits for an answer."""


class Grade(StrEnum):
    OK = "ok"
    NOTE = "note"
    """Works, but may not be what was meant."""
    BROKEN = "broken"
    FIXED = "fixed"
    """Was not as it should be, and was put right (``--fix``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorFinding:
    """One line of the report."""

    subject: str
    grade: Grade
    text: str
    """What was found, and for anything but ``OK`` what to change."""


def request_models(wire: str, place: Endpoint) -> httpx2.Response:
    """What a provider says to the cheapest call that needs a key. Raises ``HTTPError``."""
    import httpx2

    from hermes_worker.models.catalog import list_wire_rows
    from hermes_worker.models.windows import build_request_headers

    path = list_wire_rows()[wire].version_path
    return httpx2.get(
        f"{place.plain_url.removesuffix(path)}{path}/models",
        params=place.query,
        headers=build_request_headers(wire, place),
        timeout=PATIENCE_S,
        follow_redirects=False,
        proxy=place.proxy_url,
    )
