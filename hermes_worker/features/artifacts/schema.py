"""The files that runs left, as the API answers them, the client returns them and commands print them."""

from __future__ import annotations

from typing import Literal

from hermes_worker.core.run import ArtifactsState
from hermes_worker.resource import Resource


class ArtifactObject(Resource):
    """A file that a run made or changed in its workspace."""

    object: Literal["hermes.artifact"] = "hermes.artifact"
    id: str
    path: str
    """Below the workspace. It was chosen by an agent: judge it before you write there."""
    size: int
    """Bytes."""
    sha256: str
    media_type: str
    """By the extension; ``application/octet-stream`` for unknown ones and for all that a browser would run."""
    modified_at: float
    """By the clock of the file system; 0 where that is not known."""
    created_at: float
    url: str
    """Relative to the server. A client that has it can read the file until ``url_expires_at``."""
    url_expires_at: int


class LeftOutObject(Resource):
    """A file that fits a pattern and was not kept."""

    path: str
    reason: str


class ArtifactList(Resource):
    """The artifacts of a run."""

    object: Literal["list"] = "list"
    run_id: str
    state: ArtifactsState
    """``none``: the run declared nothing; ``open``: it has not ended; ``pending``: its files are being gathered."""
    reason: str | None = None
    """Why it failed."""
    data: list[ArtifactObject]
    """By path. Fewer than ``gathered`` when retention has deleted some."""
    gathered: int
    left_out_total: int
    left_out: list[LeftOutObject]
    """The first of them."""
