"""Cursors of lists, sealed: a caller cannot read row numbers from them, nor use one for another list."""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import asdict

from hermes_worker.api.errors import ApiError, invalid
from hermes_worker.settings.sealing import Keyring, SealedElsewhere
from hermes_worker.store.runs.listing import RunFilter
from hermes_worker.store.runs.runs import compute_fingerprint

CURSOR = r"^[A-Za-z0-9_-]{1,1000}$"


def make_cursor(keyring: Keyring, wanted: RunFilter, below: int) -> str:
    """Make the cursor for the page of the list ``wanted`` that begins below the row ``below``."""
    sealed = keyring.seal(str(below), of=_name_list(wanted))
    return base64.urlsafe_b64encode(sealed.encode()).decode().rstrip("=")


def read_cursor(keyring: Keyring, wanted: RunFilter, cursor: str) -> int:
    """Read the row number below which a cursor's page begins. Raises ``ApiError``."""
    try:
        sealed = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode("ascii")
        if not sealed.startswith("sealed:"):
            raise _bad_cursor()
        return int(keyring.open_sealed(sealed, of=_name_list(wanted)))
    except (SealedElsewhere, ValueError, binascii.Error):
        raise _bad_cursor() from None


def _bad_cursor() -> ApiError:
    return invalid(
        "cursor",
        "Invalid 'cursor': it is not the 'next_cursor' of a list with these filters. Begin again without it.",
        "invalid_cursor",
    )


def _name_list(wanted: RunFilter) -> str:
    said = json.loads(json.dumps(asdict(wanted), default=str))
    return f"list {compute_fingerprint(said)}"
