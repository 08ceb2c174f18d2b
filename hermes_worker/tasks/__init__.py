"""The Celery shell: each task claims, loads, acts, commits and sends. What to do is decided in ``core``."""

from importlib import import_module
from typing import Any


def __getattr__(name: str) -> Any:
    """``celery -A hermes_worker.tasks.app`` means the application that ``celery -A hermes_worker`` finds."""
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module("hermes_worker.worker.app").app
