"""The keys of texts, as the API answers them and the client returns them."""

from __future__ import annotations

from typing import Literal

from hermes_worker.resource import Resource


class TextKeyObject(Resource):
    """A key for texts. The key itself is never shown."""

    key_id: str
    """``clear`` stands for texts that are not encrypted."""
    is_current: bool
    """This server encrypts new texts with it."""
    is_here: bool
    """This server can decrypt with it."""
    is_needed: bool
    """Texts in the database may be stored by it."""
    unused_s: float | None
    """Since when no process said that it encrypts with it; ``null`` where none ever did."""


class TextKeyList(Resource):
    """The keys that are here or needed, the current one first."""

    object: Literal["list"] = "list"
    is_on: bool
    """New texts are encrypted."""
    data: list[TextKeyObject]
