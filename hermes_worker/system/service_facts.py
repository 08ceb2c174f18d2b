"""Describe this process to collectors of OpenTelemetry."""

from __future__ import annotations

import os
import socket

from hermes_worker import __version__


def describe_service(role: str) -> dict[str, str]:
    """The attributes of the resource that this process is."""
    return {
        "service.name": f"hermes-worker-{role}",
        "service.version": __version__,
        "service.instance.id": f"{socket.gethostname()}:{os.getpid()}",
    }
