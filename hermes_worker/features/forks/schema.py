"""Forks, as the API answers them, the client returns them and commands print them."""

from __future__ import annotations

from typing import Literal

from hermes_worker.resource import Resource


class ForkObject(Resource):
    """A run that goes on from an earlier point of another one."""

    object: Literal["hermes.fork"] = "hermes.fork"
    run_id: str
    session_id: str
    forked_from: str
    """The run that it goes on from."""
    step: int
    """How many iterations of that run stand before it."""
    tools: str
