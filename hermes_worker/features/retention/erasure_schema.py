"""Erasures, as the API answers them, the client returns them and commands print them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from hermes_worker.resource import ListOf, Resource


class ForetoldErasure(Resource):
    """What an erasure would be. Nothing was changed."""

    object: Literal["hermes.foretold"] = "hermes.foretold"
    would_erase: Mapping[str, int]
    open_runs: Sequence[str]
    shared: int
    """Runs in the same sessions for which others asked."""
    held_by: Sequence[int]
    """Numbers of legal holds."""
    unknown: Sequence[str]
    """Sentences about what of it names nothing."""


class ErasureObject(Resource):
    """One that has begun and is not finished."""

    object: Literal["hermes.erasure"] = "hermes.erasure"
    receipt_id: str
    tenant: str
    by: str
    began_at: float
    """Epoch seconds."""


class ErasureList(ListOf[ErasureObject]):
    """Erasures, the oldest first."""


class ErasedPerson(Resource):
    """The names that were erased, as salted hashes."""

    salt: str
    sha256: Sequence[str]
    is_everybody: bool


class ErasureReceiptObject(Resource):
    """The receipt of an erasure. Its hash is over all of its other fields."""

    receipt: str
    """The id of the receipt."""
    version: int
    tenant: str
    by: str
    began_at: float
    """Epoch seconds."""
    ended_at: float
    """Epoch seconds."""
    person: ErasedPerson
    sessions: Sequence[str]
    jobs: Sequence[str]
    erased: Mapping[str, int]
    """Counts of rows by table, and of ``workspaces``, ``documents`` and ``previews``, which are no rows."""
    stays: Mapping[str, str]
    """What is kept, with the reason."""
    outside: Sequence[str]
    """Sentences about what is beyond the reach of an erasure."""
    not_reached: Sequence[str]
    """Sentences about what could not be erased."""
    replays: str | None
    """The receipt that this one repeats after a restore."""
    sha256: str


class ErasureWork(Resource):
    """What one request has done. Repeat it while ``done`` is false."""

    done: bool
    did: Mapping[str, int]
    open_runs: Sequence[str]
    """Runs that were asked to stop and have not ended."""
    waits_for: str | None
    """What keeps the end from being reached now."""
    receipt: ErasureReceiptObject | None
    """Once it is done."""


class ReceiptList(ListOf[ErasureReceiptObject]):
    """Receipts, oldest first."""
