"""Test agents, tools and extensions without processes, ports and keys (docs/testing.md).

The steps are the product's own, over a database of SQLite that is made for the test; only the model is scripted, and
messages go through a list instead of a broker.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hermes_worker.system.faults import FaultPoint
    from hermes_worker.testing.models import AskedModel, ScriptedModel, call
    from hermes_worker.testing.stack import AgentStack, FinishedRun, MadeCall

__all__ = ["AgentStack", "AskedModel", "FaultPoint", "FinishedRun", "MadeCall", "ScriptedModel", "call"]

_PLACES = {
    **dict.fromkeys(("AskedModel", "ScriptedModel", "call"), "hermes_worker.testing.models"),
    **dict.fromkeys(("FinishedRun", "MadeCall", "AgentStack"), "hermes_worker.testing.stack"),
    "FaultPoint": "hermes_worker.system.faults",
}


def __getattr__(name: str) -> Any:
    """Load the helpers when they are asked for: pytest loads the plugin for everybody who has this package."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_PLACES[name]), name)
