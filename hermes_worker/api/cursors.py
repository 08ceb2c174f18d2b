"""Cursors of lists, sealed: a caller cannot read row numbers from them, nor use one for another list."""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import asdict

from hermes_worker.api.errors import ApiError, invalid
from hermes_worker.settings.sealing import Keyring, SealedElsewhere
from hermes_worker.store.runs.listing import RunFilter
from hermes_worker.store.runs.runs import fingerprint

CURSOR = r"^[A-Za-z0-9_-]{1,1000}$"


def cursor_of(keyring: Keyring, wanted: RunFilter, below: int) -> str:
    """Make the cursor for the page of the list ``wanted`` that begins below the row ``below``."""
    sealed = keyring.seal(str(below), of=_list_of(wanted))
    return base64.urlsafe_b64encode(sealed.encode()).decode().rstrip("=")


def below_of(keyring: Keyring, wanted: RunFilter, cursor: str) -> int:
    """Read the row number below which a cursor's page begins. Raises ``ApiError``."""
    try:
        sealed = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode("ascii")
        if not sealed.startswith("sealed:"):
            raise _unusable()
        return int(keyring.opened(sealed, of=_list_of(wanted)))
    except (SealedElsewhere, ValueError, binascii.Error):
        raise _unusable() from None


def _unusable() -> ApiError:
    return invalid(
        "cursor",
        "Invalid 'cursor': it is not the 'next_cursor' of a list with these filters. Begin again without it.",
        "invalid_cursor",
    )


def _list_of(wanted: RunFilter) -> str:
    said = json.loads(json.dumps(asdict(wanted), default=str))
    return f"list {fingerprint(said)}"
