"""A Python client of the HTTP API: submit runs, follow them as typed events or by callbacks, and call every other
operation of the API (docs/client.md).

    client = HermesClient("http://127.0.0.1:8642")
    run_id = client.submit("what is in this directory?")
    result = client.follow(run_id, Callbacks(stream_delta_callback=show, clarify_callback=ask))

``AsyncHermesClient`` has the same methods for asyncio. The callbacks have the names and meanings of Hermes Agent's, but
are called in the process that follows, on whichever worker the run is. A connection that breaks is made again and
continues where it was. A request is sent again only where that is safe.

The API requires its key. For a server of this machine the client finds it in the installation's home directory; for
others pass ``api_key``.

How it is built: ``operations`` makes requests as values, ``exchange`` and ``streaming`` decide what is sent and judge
the answers, and none of them does any I/O; ``conversation`` does, over the transport of ``blocking`` or ``awaiting``.
``methods`` has the methods of both clients.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from hermes_worker.client.blocking import HermesClient
from hermes_worker.client.exchange import RefusedError

if TYPE_CHECKING:
    from hermes_worker.client.awaiting import AsyncHermesClient
    from hermes_worker.client.callbacks import Callbacks
    from hermes_worker.client.events import (
        ApprovalRequested,
        Event,
        InputRequested,
        MessageCompleted,
        MessageDelta,
        OtherEvent,
        ReasoningDelta,
        ReplyDiscarded,
        RunEnded,
        RunStatusChanged,
        ToolCompleted,
        ToolGenerating,
        ToolStarted,
        parse_event,
    )
    from hermes_worker.client.streaming import ToldEvent

__all__ = [
    "ApprovalRequested",
    "AsyncHermesClient",
    "Callbacks",
    "Event",
    "HermesClient",
    "InputRequested",
    "MessageCompleted",
    "MessageDelta",
    "OtherEvent",
    "ReasoningDelta",
    "RefusedError",
    "ReplyDiscarded",
    "RunEnded",
    "RunStatusChanged",
    "ToldEvent",
    "ToolCompleted",
    "ToolGenerating",
    "ToolStarted",
    "parse_event",
]


_EVENTS = "hermes_worker.client.events"
_PLACES = {
    "AsyncHermesClient": "hermes_worker.client.awaiting",
    "Callbacks": "hermes_worker.client.callbacks",
    "ToldEvent": "hermes_worker.client.streaming",
}
"""The modules of names that are imported when they are asked for; all others of these are in ``_EVENTS``. Written out,
since the wheel of the thin client renames the package."""


def __getattr__(name: str) -> Any:
    """Import what only some programs need when it is asked for: asyncio takes a quarter of the time that the rest
    takes."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_PLACES.get(name, _EVENTS)), name)
