"""Hermes worker: the Hermes Agent loop as a distributed task queue."""

from importlib import import_module
from typing import Any

__version__ = "0.2.0"
__all__ = ["__version__"]


def __getattr__(name: str) -> Any:
    """``celery -A hermes_worker`` asks for ``app``, which is built only then."""
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module("hermes_worker.worker.app").app
