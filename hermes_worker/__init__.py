"""Hermes worker: the Hermes Agent loop as a distributed task queue."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"
__all__ = ["__version__", "sign_task", "submit", "submit_async", "submit_signed"]

if TYPE_CHECKING:
    from hermes_worker.services.embedding import submit, submit_async, submit_signed
    from hermes_worker.services.signed_tasks import sign_task

_LATE = {
    "app": "hermes_worker.worker.app",  # asked for by ``celery -A hermes_worker``
    "sign_task": "hermes_worker.services.signed_tasks",
    "submit": "hermes_worker.services.embedding",
    "submit_async": "hermes_worker.services.embedding",
    "submit_signed": "hermes_worker.services.embedding",
}


def __getattr__(name: str) -> Any:
    """Load what the package offers when it is asked for: no process needs all of it."""
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LATE[name]), name)
