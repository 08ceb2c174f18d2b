"""What holds for one call of the command line, whichever command it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hermes_worker.core.principals import DEFAULT_TENANT


@dataclass(slots=True)
class Invocation:
    """What holds for one call of the command line."""

    is_debugging: bool = False
    """Show tracebacks."""
    tenant: str = DEFAULT_TENANT
    """The tenant whose rows the command works on."""
    server: Any = None
    """What ``cli.server`` noted of a server to be asked."""
