"""Cursors of lists, sealed: a caller cannot read row numbers from them, nor use one for another list."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping

from hermes_worker.api.errors import ApiError, invalid
from hermes_worker.settings.sealing import Keyring, SealedElsewhere
from hermes_worker.store.runs.runs import compute_fingerprint

CURSOR = r"^[A-Za-z0-9_-]{1,1000}$"


def make_cursor(keyring: Keyring, wanted: Mapping[str, object], below: str) -> str:
    """Make the cursor for the page of the list with the filters ``wanted`` that begins below the place ``below``."""
    sealed = keyring.seal(below, of=_name_list(wanted))
    return base64.urlsafe_b64encode(sealed.encode()).decode().rstrip("=")


def read_cursor(keyring: Keyring, wanted: Mapping[str, object], cursor: str) -> str:
    """Read the place below which a cursor's page begins. Raises ``ApiError``."""
    try:
        sealed = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode("ascii")
        if not sealed.startswith("sealed:"):
            raise _bad_cursor()
        return keyring.open_sealed(sealed, of=_name_list(wanted))
    except (SealedElsewhere, ValueError, binascii.Error):
        raise _bad_cursor() from None


def _bad_cursor() -> ApiError:
    return invalid(
        "cursor",
        "Invalid 'cursor': it is not the 'next_cursor' of a list with these filters. Begin again without it.",
        "invalid_cursor",
    )


def _name_list(wanted: Mapping[str, object]) -> str:
    said = json.loads(json.dumps(wanted, default=str))
    return f"list {compute_fingerprint(said)}"
